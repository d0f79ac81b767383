//! Which process gets which task.
//!
//! A task needs the same partition of every input of its sub-topology, so partitions are shared out by task. What a
//! process has, or has state of on its disk, stays with it, as long as nobody has more than one task more than
//! another. Members are told apart by what they claim in this generation; stale claims do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use ottla_client::{MemberSubscription, PartitionAssignor, Text, TopicPartition};

use crate::record::TaskId;

/// First byte of the user data.
const VERSION: u8 = 1;
/// Tasks that one member may name, so that hostile user data costs little.
const TASKS_MAX: usize = 8_000;

/// The assignor of an application: `ottla-streams`.
#[derive(Debug)]
pub(super) struct TaskAssignor {
    /// Input topics by sub-topology.
    inputs: Vec<Vec<String>>,
    /// Tasks that have state in this process's folder.
    on_disk: Arc<Mutex<BTreeSet<TaskId>>>,
}

impl TaskAssignor {
    pub(super) fn new(inputs: Vec<Vec<String>>, on_disk: Arc<Mutex<BTreeSet<TaskId>>>) -> Self {
        Self { inputs, on_disk }
    }

    /// Every task that the topics allow, with its partitions.
    fn tasks(&self, topics: &BTreeMap<Text, usize>) -> BTreeMap<TaskId, Vec<TopicPartition>> {
        let mut tasks: BTreeMap<TaskId, Vec<TopicPartition>> = BTreeMap::new();
        for (sub_topology, inputs) in self.inputs.iter().enumerate() {
            let Ok(sub_topology) = u16::try_from(sub_topology) else { break };
            for topic in inputs {
                let name = Text::from(topic.as_str());
                let count = topics.get(&name).copied().unwrap_or(0);
                for partition in 0..i32::try_from(count).unwrap_or(i32::MAX) {
                    let id = TaskId { sub_topology, partition };
                    tasks.entry(id).or_default().push(TopicPartition::new(name.clone(), partition));
                }
            }
        }
        tasks
    }
}

fn encode(tasks: &BTreeSet<TaskId>) -> Bytes {
    let mut out = vec![VERSION];
    for task in tasks.iter().take(TASKS_MAX) {
        out.extend(task.sub_topology.to_be_bytes());
        out.extend(task.partition.to_be_bytes());
    }
    out.into()
}

/// What another member says it has; nothing when that cannot be read.
fn decode(bytes: &[u8]) -> BTreeSet<TaskId> {
    let Some((&VERSION, rest)) = bytes.split_first() else { return BTreeSet::new() };
    let (tasks, _) = rest.as_chunks::<6>();
    tasks
        .iter()
        .take(TASKS_MAX)
        .map(|[a, b, c, d, e, f]| TaskId {
            sub_topology: u16::from_be_bytes([*a, *b]),
            partition: i32::from_be_bytes([*c, *d, *e, *f]),
        })
        .collect()
}

impl PartitionAssignor for TaskAssignor {
    fn name(&self) -> &str {
        "ottla-streams"
    }

    fn is_cooperative(&self) -> bool {
        true
    }

    fn user_data(&self) -> Option<Bytes> {
        Some(encode(&self.on_disk.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn assign(
        &self,
        topics: &BTreeMap<Text, usize>,
        members: &[MemberSubscription],
    ) -> BTreeMap<Text, Vec<TopicPartition>> {
        let tasks = self.tasks(topics);
        if members.is_empty() {
            return BTreeMap::new();
        }
        let mut members: Vec<&MemberSubscription> = members.iter().collect();
        // static members keep their names over restarts, so ties fall the same way each time
        members.sort_by_key(|member| {
            (member.group_instance_id.is_none(), &member.group_instance_id, &member.member_id)
        });
        let claims: Vec<[BTreeSet<TaskId>; 2]> =
            members.iter().map(|member| [self.owned(member, &tasks), on_disk(member)]).collect();
        let shares = share(tasks.keys().copied().collect(), &claims);
        let partitions = |share: BTreeSet<TaskId>| share.iter().flat_map(|id| tasks[id].clone()).collect();
        members
            .iter()
            .zip(shares)
            .map(|(member, share)| (member.member_id.clone(), partitions(share)))
            .collect()
    }
}

impl TaskAssignor {
    /// Tasks of which a member has every partition.
    fn owned(
        &self,
        member: &MemberSubscription,
        tasks: &BTreeMap<TaskId, Vec<TopicPartition>>,
    ) -> BTreeSet<TaskId> {
        let owned: BTreeSet<&TopicPartition> = member.owned.iter().collect();
        let whole = |(id, partitions): (&TaskId, &Vec<TopicPartition>)| {
            partitions.iter().all(|at| owned.contains(at)).then_some(*id)
        };
        tasks.iter().filter_map(whole).collect()
    }
}

fn on_disk(member: &MemberSubscription) -> BTreeSet<TaskId> {
    member.user_data.as_ref().map(|bytes| decode(bytes)).unwrap_or_default()
}

/// Shares tasks out evenly. `claims` of each member: what it has, then what it has state of. Claims are met in that
/// order, up to the even share; the rest goes to whoever has least, the first of them.
fn share(tasks: BTreeSet<TaskId>, claims: &[[BTreeSet<TaskId>; 2]]) -> Vec<BTreeSet<TaskId>> {
    let (least, over) = (tasks.len() / claims.len(), tasks.len() % claims.len());
    let elsewhere = |member: usize, id: &TaskId| {
        claims.iter().enumerate().any(|(other, claims)| other != member && claims[1].contains(id))
    };
    let in_order = |(member, [owned, on_disk]): (usize, &[BTreeSet<TaskId>; 2])| {
        let mut owned: Vec<TaskId> = owned.iter().copied().collect();
        // whoever must give something up gives up what another has state of
        owned.sort_by_key(|id| (elsewhere(member, id), *id));
        [owned, on_disk.iter().copied().collect()]
    };
    let claims: Vec<[Vec<TaskId>; 2]> = claims.iter().enumerate().map(in_order).collect();
    let mut shares: Vec<BTreeSet<TaskId>> = vec![BTreeSet::new(); claims.len()];
    let mut left = tasks;
    let mut larger = 0;
    // first everyone up to the even share, then those that have more claims up to one more
    for (bound, rank) in [(least, 0), (least + 1, 0), (least, 1), (least + 1, 1)] {
        for (share, claims) in shares.iter_mut().zip(&claims) {
            for id in &claims[rank] {
                let grows_over = share.len() == least;
                if share.len() >= bound || grows_over && larger == over {
                    break;
                }
                if left.remove(id) {
                    share.insert(*id);
                    larger += usize::from(grows_over);
                }
            }
        }
    }
    for id in left {
        let fewest = shares.iter().enumerate().min_by_key(|(_, share)| share.len()).map(|(index, _)| index);
        shares[fewest.expect("there is a member")].insert(id);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignor() -> TaskAssignor {
        TaskAssignor::new(vec![vec!["a".into(), "b".into()], vec!["c".into()]], Arc::default())
    }

    fn topics() -> BTreeMap<Text, usize> {
        [("a".into(), 4), ("b".into(), 4), ("c".into(), 3)].into()
    }

    fn member(id: &str, owned: Vec<TopicPartition>, disk: &[(u16, i32)]) -> MemberSubscription {
        let disk = disk
            .iter()
            .map(|(sub_topology, partition)| TaskId { sub_topology: *sub_topology, partition: *partition });
        MemberSubscription {
            member_id: id.into(),
            owned,
            user_data: Some(encode(&disk.collect())),
            ..MemberSubscription::default()
        }
    }

    fn names(given: &BTreeMap<Text, Vec<TopicPartition>>, id: &str) -> Vec<String> {
        let mut names: Vec<String> =
            given[&Text::from(id)].iter().map(|at| format!("{}-{}", at.topic, at.partition)).collect();
        names.sort();
        names
    }

    /// Proves that all partitions of a task go to one member, that shares are even, and that every partition is
    /// given once.
    #[test]
    fn tasks_stay_whole_and_shares_even() {
        let members = [member("x", vec![], &[]), member("y", vec![], &[]), member("z", vec![], &[])];
        let given = assignor().assign(&topics(), &members);
        let mut all: Vec<TopicPartition> = given.values().flatten().cloned().collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 11);
        for partitions in given.values() {
            let of = |topic: &str| -> BTreeSet<i32> {
                partitions.iter().filter(|at| at.topic == topic).map(|at| at.partition).collect()
            };
            assert_eq!(of("a"), of("b"), "{partitions:?}");
            let tasks = of("a").len() + of("c").len();
            assert!((2..=3).contains(&tasks), "{partitions:?}");
        }
    }

    /// Proves that a member that comes takes only what makes it even, that the others keep what they have, and that
    /// a member that returns with state on its disk gets that back.
    #[test]
    fn what_is_there_stays() {
        let alone = assignor().assign(&topics(), &[member("x", vec![], &[])]);
        let had = alone[&Text::from("x")].clone();
        let given = assignor()
            .assign(&topics(), &[member("x", had.clone(), &[]), member("y", vec![], &[(1, 2), (0, 3)])]);
        assert!(
            names(&given, "y").contains(&"c-2".to_owned()) && names(&given, "y").contains(&"a-3".to_owned())
        );
        assert!(given[&Text::from("x")].iter().all(|at| had.contains(at)));
        let again = assignor().assign(
            &topics(),
            &[
                member("x", given[&Text::from("x")].clone(), &[]),
                member("y", given[&Text::from("y")].clone(), &[]),
            ],
        );
        assert_eq!((names(&again, "x"), names(&again, "y")), (names(&given, "x"), names(&given, "y")));
    }

    /// Proves that user data of any bytes is read without harm.
    #[test]
    fn hostile_user_data() {
        for bytes in [&b""[..], b"\x02abcdef", b"\x01", b"\x01abcde", &[1; 60_001]] {
            assert!(decode(bytes).len() <= TASKS_MAX);
        }
        let tasks: BTreeSet<TaskId> = [TaskId { sub_topology: 3, partition: 70_000 }].into();
        assert_eq!(decode(&encode(&tasks)), tasks);
    }
}
