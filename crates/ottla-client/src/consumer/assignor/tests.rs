//! The assignors against Java's: every group of the fixture gets what Kafka's own jar gave it.

use std::collections::BTreeSet;

use super::*;
use crate::consumer::group::subscription::{self, Remembered};

/// Seeded random groups over several generations; see its first line for where it is from.
const JAVA: &str = include_str!("tests/java.txt");

struct Case {
    assignor: Assignor,
    topics: Topics,
    members: Vec<MemberSubscription>,
    /// What `members` look like on the wire: the whole subscription.
    wires: Vec<String>,
    /// What they had before, as told to the assignor.
    had: Vec<Vec<TopicPartition>>,
    given: Vec<(Text, Vec<TopicPartition>, String)>,
}

fn partitions(text: &str) -> Vec<TopicPartition> {
    let items = text.trim_start_matches('=').split(',').filter(|item| !item.is_empty());
    items
        .map(|item| {
            let (topic, partition) = item.split_once(':').expect("topic:partition");
            TopicPartition::new(topic, partition.parse().expect("a number"))
        })
        .collect()
}

fn present(text: &str) -> Option<Text> {
    (text != "-").then(|| Text::from(text))
}

fn bytes(text: &str) -> Option<Bytes> {
    let digits = text.strip_prefix('x')?;
    let pairs = (0..digits.len()).step_by(2);
    Some(pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect())
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in JAVA.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "case" => cases.push(Case {
                assignor: Assignor::from_name(words[1]).expect("known"),
                topics: Topics::new(),
                members: Vec::new(),
                wires: Vec::new(),
                had: Vec::new(),
                given: Vec::new(),
            }),
            "topic" => {
                let racks = words[3].trim_end_matches('.').split(';').map(|racks| {
                    racks.split(',').filter(|rack| !rack.is_empty()).map(Text::from).collect::<BTreeSet<_>>()
                });
                let racks: Vec<_> = racks.collect();
                assert_eq!(racks.len(), words[2].parse::<usize>().expect("a count"));
                cases.last_mut().expect("a case").topics.insert(words[1].into(), racks);
            }
            "member" => {
                let case = cases.last_mut().expect("a case");
                let had = partitions(words[6]);
                let generation: i32 = words[3].parse().expect("a number");
                let cooperative = case.assignor.is_cooperative();
                case.members.push(MemberSubscription {
                    member_id: words[1].into(),
                    group_instance_id: present(words[2]),
                    topics: words[5].split(',').filter(|topic| !topic.is_empty()).map(Text::from).collect(),
                    owned: if cooperative { had.clone() } else { Vec::new() },
                    generation_id: (generation >= 0).then_some(generation),
                    user_data: bytes(words[7]),
                    rack_id: present(words[4]),
                });
                case.had.push(had);
                case.wires.push(words[8].to_owned());
            }
            "given" => {
                let given = (words[1].into(), partitions(words[2]), words[3].to_owned());
                cases.last_mut().expect("a case").given.push(given);
            }
            _ => {}
        }
    }
    cases
}

fn sorted(mut partitions: Vec<TopicPartition>) -> Vec<TopicPartition> {
    partitions.sort();
    partitions
}

/// Proves that a leader of ours gives every member exactly what a leader of Java's would: all assignors, equal and
/// different subscriptions, static members, racks, members that missed generations, disputed partitions.
#[test]
fn assignments_are_javas() {
    let cases = cases();
    assert!(cases.len() > 150, "{}", cases.len());
    let mut wrong = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let ours = assign(&case.assignor, &case.topics, &case.members);
        for (member, theirs, _) in &case.given {
            let ours = ours.get(member).cloned().unwrap_or_default();
            if sorted(ours.clone()) != sorted(theirs.clone()) {
                wrong.push(format!("{index} {:?} {member}: {ours:?} instead of {theirs:?}", case.assignor));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Proves that subscriptions of ours are the bytes of Java's, user data included, and that both directions agree.
#[test]
fn subscriptions_are_javas_bytes() {
    for case in cases() {
        for ((member, had), wire) in case.members.iter().zip(&case.had).zip(&case.wires) {
            let generation = member.generation_id.unwrap_or(-1);
            let mut remembered = Remembered::default();
            if generation >= 0 && matches!(case.assignor, Assignor::Sticky | Assignor::CooperativeSticky) {
                remembered.take(had.clone(), generation);
            }
            let user_data = remembered.user_data(&case.assignor);
            assert_eq!(user_data, member.user_data, "{:?} {had:?}", case.assignor);
            let encoded = subscription::encode(&MemberSubscription { user_data, ..member.clone() });
            let wire = bytes(wire).expect("hex");
            assert_eq!(encoded, wire, "{member:?}");
            let mut decoded = subscription::decode(&wire).expect("readable");
            decoded.member_id = member.member_id.clone();
            decoded.group_instance_id = member.group_instance_id.clone();
            let owned = sorted(member.owned.clone());
            assert_eq!(decoded, MemberSubscription { owned, ..member.clone() });
        }
    }
}

/// Proves the same of assignments.
#[test]
fn assignments_are_javas_bytes() {
    for (_, given, wire) in cases().into_iter().flat_map(|case| case.given) {
        let wire = bytes(&wire).expect("hex");
        assert_eq!(subscription::encode_assignment(&given), wire, "{given:?}");
        let read = subscription::decode_assignment(&wire).expect("readable");
        assert_eq!(sorted(read), sorted(given));
    }
}

/// Proves that hostile subscriptions and user data are refused or ignored, whatever they claim.
#[test]
fn hostile_bytes() {
    for bytes in [&b""[..], b"\0", b"\xff\xff", b"\0\x03\x7f\xff\xff\xff", b"\0\x01\0\0\0\x01\0\x05ab"] {
        assert!(subscription::decode(&Bytes::from_static(bytes)).is_none(), "{bytes:?}");
    }
    let topics: Topics = [(Text::from("t"), vec![BTreeSet::new(); 2])].into();
    for data in [&b"\x7f\xff\xff\xff"[..], b"\0\0\0\x01\0\x01t\x7f\xff\xff\xff", b"\xff", b""] {
        let member = MemberSubscription {
            member_id: "m".into(),
            topics: vec!["t".into()],
            user_data: Some(Bytes::copy_from_slice(data)),
            owned: vec![TopicPartition::new("t", -1), TopicPartition::new("t", i32::MAX)],
            ..MemberSubscription::default()
        };
        for assignor in [Assignor::Sticky, Assignor::CooperativeSticky] {
            let given = assign(&assignor, &topics, std::slice::from_ref(&member));
            assert_eq!(given[&Text::from("m")].len(), 2, "{assignor:?} {data:?}");
        }
    }
}

/// A strategy that answers what it was told to.
#[derive(Debug)]
struct Says(std::collections::BTreeMap<Text, Vec<TopicPartition>>);

impl PartitionAssignor for Says {
    fn name(&self) -> &str {
        "says"
    }

    fn is_cooperative(&self) -> bool {
        true
    }

    fn assign(
        &self,
        _topics: &std::collections::BTreeMap<Text, usize>,
        _members: &[MemberSubscription],
    ) -> std::collections::BTreeMap<Text, Vec<TopicPartition>> {
        self.0.clone()
    }
}

/// Proves that a strategy of the program's own that is wrong cannot have a partition read twice: partitions given
/// twice, that do not exist, to nobody, or still read by another member are left out, and the rest is kept.
#[test]
fn a_wrong_strategy_gives_no_partition_twice() {
    let at = |partition| TopicPartition::new("t", partition);
    let topics: Topics = [(Text::from("t"), vec![Default::default(); 4])].into_iter().collect();
    let member = |id: &str, owned: Vec<TopicPartition>, generation: i32| MemberSubscription {
        member_id: id.into(),
        topics: vec!["t".into()],
        owned,
        generation_id: Some(generation),
        ..MemberSubscription::default()
    };
    let members = [member("a", vec![at(2), at(3)], 7), member("b", vec![at(3)], 6), member("c", vec![], -1)];
    let says = Says(
        [
            (Text::from("a"), vec![at(0), at(0), at(-1), at(4), TopicPartition::new("u", 0)]),
            (Text::from("b"), vec![at(0), at(1), at(2), at(3)]),
            (Text::from("x"), vec![at(3)]),
        ]
        .into_iter()
        .collect(),
    );
    let given = assign(&Assignor::Custom(CustomAssignor::new(says)), &topics, &members);
    let expected = [("a", vec![at(0)]), ("b", vec![at(1)]), ("c", vec![])];
    assert_eq!(given, expected.into_iter().map(|(member, given)| (member.into(), given)).collect());
}
