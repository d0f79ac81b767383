//! Properties of the assignors: everything is given once, evenly, and little moves.

use proptest::prelude::*;

use ottla_protocol::types::TopicIdPartition;

use super::*;

fn topic(index: u8) -> Uuid {
    Uuid([index + 1; 16])
}

fn subscriber(id: usize, topics: impl IntoIterator<Item = u8>) -> Subscriber {
    Subscriber {
        member_id: Text::from(format!("m{id:03}")),
        topics: topics.into_iter().map(topic).collect(),
        ..Subscriber::default()
    }
}

fn counts(target: &[Assignment]) -> Vec<usize> {
    target.iter().map(Assignment::len).collect()
}

/// Every partition with a subscriber is given to exactly one subscriber of its topic, and nothing else is.
fn check_complete(subscribers: &[Subscriber], topics: &BTreeMap<Uuid, i32>, target: &[Assignment]) {
    assert_eq!(target.len(), subscribers.len());
    let mut given = BTreeSet::new();
    for (subscriber, target) in subscribers.iter().zip(target) {
        for partition in target.iter() {
            assert!(subscriber.topics.contains(&partition.topic_id), "not subscribed");
            assert!((0..topics[&partition.topic_id]).contains(&partition.partition), "does not exist");
            assert!(given.insert(partition), "given twice");
        }
    }
    let wanted =
        topics.iter().filter(|(id, _)| subscribers.iter().any(|subscriber| subscriber.topics.contains(id)));
    assert_eq!(given.len(), wanted.map(|(_, count)| usize::try_from(*count).expect("few")).sum::<usize>());
}

/// How many partitions are not where they were.
fn moved(subscribers: &[Subscriber], target: &[Assignment]) -> usize {
    let pairs = subscribers.iter().zip(target);
    pairs
        .map(|(subscriber, target)| target.iter().filter(|p| !subscriber.previous.contains(*p)).count())
        .sum()
}

/// `range` by the letter: runs in the order of ids, the first ones larger; static members first.
#[test]
fn range_by_the_letter() {
    let topics = BTreeMap::from([(topic(0), 5), (topic(1), 3)]);
    let subscribers = [subscriber(1, [0, 1]), subscriber(0, [0, 1])];
    let target = assign("range", &subscribers, &topics);
    let of = |index: usize| -> Vec<(u8, i32)> {
        target[index].iter().map(|partition| (partition.topic_id.0[0] - 1, partition.partition)).collect()
    };
    assert_eq!(of(1), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]);
    assert_eq!(of(0), [(0, 3), (0, 4), (1, 2)]);
    let mut subscribers = subscribers;
    subscribers[0].instance_id = Some("i".into());
    let target = assign("range", &subscribers, &topics);
    assert_eq!(counts(&target), [5, 3]);
}

/// `uniform` with equal subscriptions: a member that comes takes no more than its share, one that goes leaves the
/// others theirs.
#[test]
fn uniform_moves_what_it_must() {
    let topics = BTreeMap::from([(topic(0), 12)]);
    let mut subscribers: Vec<Subscriber> = Vec::new();
    for members in 1..=6 {
        subscribers.push(subscriber(members, [0]));
        let target = assign("uniform", &subscribers, &topics);
        check_complete(&subscribers, &topics, &target);
        assert_eq!(moved(&subscribers, &target), 12 / members, "{members} members");
        for (subscriber, target) in subscribers.iter_mut().zip(target) {
            subscriber.previous = target;
        }
    }
    let gone = subscribers.remove(2);
    let target = assign("uniform", &subscribers, &topics);
    assert_eq!(moved(&subscribers, &target), gone.previous.len());
}

/// A thousand members and ten thousand partitions are assigned in one go.
#[test]
fn large_groups() {
    let topics: BTreeMap<Uuid, i32> = (0..10).map(|index| (topic(index), 1000)).collect();
    let subscribers: Vec<Subscriber> = (0..1000).map(|id| subscriber(id, 0..10)).collect();
    let target = assign("uniform", &subscribers, &topics);
    assert!(counts(&target).iter().all(|count| *count == 10));
    let mixed: Vec<Subscriber> =
        (0..1000).map(|id| subscriber(id, (0..10).filter(|t| (id + usize::from(*t)) % 3 != 0))).collect();
    let target = assign("uniform", &mixed, &topics);
    check_complete(&mixed, &topics, &target);
    let counts = counts(&target);
    assert!(counts.iter().max().expect("members") - counts.iter().min().expect("members") <= 2);
}

fn world() -> impl Strategy<Value = (Vec<Subscriber>, BTreeMap<Uuid, i32>)> {
    let topics = prop::collection::vec(0..12i32, 1..5);
    let members = prop::collection::vec((prop::collection::btree_set(0..5u8, 0..5), any::<u64>()), 0..8);
    (topics, members, any::<bool>()).prop_map(|(topics, members, equal)| {
        let topics: BTreeMap<Uuid, i32> =
            topics.into_iter().enumerate().map(|(index, count)| (topic(index as u8), count)).collect();
        let mut subscribers: Vec<Subscriber> = members
            .iter()
            .enumerate()
            .map(|(id, (of, _))| subscriber(id, if equal { members[0].0.clone() } else { of.clone() }))
            .collect();
        // Anything as the old target, also what is not there any more, each partition once.
        let mut seeds: u64 = members.iter().map(|(_, seed)| seed).fold(1, |all, seed| all ^ seed);
        for index in 0..5 {
            for partition in 0..14 {
                seeds = seeds.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let to = (seeds >> 33) as usize % (members.len() + 1);
                if let Some(subscriber) = subscribers.get_mut(to) {
                    subscriber.previous.insert(TopicIdPartition { topic_id: topic(index), partition });
                }
            }
        }
        (subscribers, topics)
    })
}

proptest! {
    /// Both assignors give everything once. `uniform`: nobody could give one to a subscriber with two fewer;
    /// with equal subscriptions the counts differ by one at most; a second run changes nothing.
    #[test]
    fn properties((mut subscribers, topics) in world()) {
        for subscriber in &mut subscribers {
            subscriber.topics.retain(|id| topics.contains_key(id));
        }
        check_complete(&subscribers, &topics, &assign("range", &subscribers, &topics));
        let target = assign("uniform", &subscribers, &topics);
        check_complete(&subscribers, &topics, &target);
        let counts = counts(&target);
        for (from, given) in target.iter().enumerate() {
            for partition in given.iter() {
                for (to, subscriber) in subscribers.iter().enumerate() {
                    if subscriber.topics.contains(&partition.topic_id) {
                        prop_assert!(counts[from] < counts[to] + 2, "{from} could give {partition:?} to {to}");
                    }
                }
            }
        }
        let kept: usize = subscribers
            .iter()
            .zip(&target)
            .map(|(subscriber, target)| target.iter().filter(|p| subscriber.previous.contains(*p)).count())
            .sum();
        if subscribers.windows(2).all(|pair| pair[0].topics == pair[1].topics) && !subscribers.is_empty() {
            // As much is kept as the shares allow.
            let share = counts.iter().sum::<usize>() / subscribers.len();
            let valid = |subscriber: &Subscriber| {
                let exists = |p: &TopicIdPartition| {
                    subscriber.topics.contains(&p.topic_id) && topics.get(&p.topic_id).is_some_and(|n| p.partition < *n)
                };
                subscriber.previous.iter().filter(exists).count()
            };
            let mut larger = counts.iter().sum::<usize>() % subscribers.len();
            let most: usize = subscribers
                .iter()
                .map(|subscriber| {
                    let valid = valid(subscriber);
                    let extra = usize::from(valid > share && larger > 0);
                    larger -= extra;
                    valid.min(share + extra)
                })
                .sum();
            prop_assert_eq!(kept, most);
        }
        let mut again = subscribers.clone();
        for (subscriber, target) in again.iter_mut().zip(&target) {
            subscriber.previous = target.clone();
        }
        prop_assert_eq!(assign("uniform", &again, &topics), target);
    }
}
