//! A broker, topics with numbers in them, and a listener that notes what it is told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_client::admin::{GroupFilter, NewTopic};
use ottla_client::{
    Admin, Assignor, Callback, ClientSettings, Consumer, ConsumerSettings, GroupProtocol, LostReason,
    OffsetReset, Producer, ProducerSettings, Rebalance, RebalanceListener, Record, TopicPartition,
};
use ottla_env::{spawn, time};

/// Longest any wait takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Names a cluster to run against instead, one test after the other (`--test-threads=1`): all its topics and groups
/// are deleted before each. So the tests are tried on Apache Kafka.
const WIPE_AND_TEST: &str = "OTTLA_WIPE_AND_TEST";

/// Deletes everything.
async fn wipe(client: &ClientSettings) {
    let admin = Admin::connect(client.clone()).await.expect("connected");
    for topic in admin.list_topics().await.expect("listed") {
        if !topic.is_internal {
            admin.delete_topic(&topic.name).await.expect("deleted");
        }
    }
    let groups = admin.list_groups(&GroupFilter::default()).await.expect("listed");
    let groups: Vec<_> = groups.into_iter().map(|group| group.group_id).collect();
    let deadline = time::now() + LIMIT;
    while !admin.delete_groups(&groups).await.into_values().all(|deleted| deleted.is_ok()) {
        // members of the last test are given up when their sessions time out
        let left = admin.list_groups(&GroupFilter::default()).await.expect("listed");
        if left.is_empty() {
            break;
        }
        assert!(time::now() < deadline, "{left:?} cannot be deleted");
        time::sleep(Duration::from_secs(1)).await;
    }
}

/// Runs a test against a broker.
pub(crate) fn with_broker<F: Future<Output = ()>>(test: impl FnOnce(ClientSettings) -> F) {
    spawn::runtime(2).expect("a runtime").block_on(async {
        if let Ok(bootstrap) = std::env::var(WIPE_AND_TEST) {
            let client = ClientSettings::new(&bootstrap).expect("an address");
            wipe(&client).await;
            return test(client).await;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config {
            listen: "127.0.0.1:0".to_owned(),
            dir: folder.path().display().to_string(),
            log_file_bytes: 4 << 20,
            ..Config::default()
        };
        let broker = Broker::start(config).await.expect("started");
        let pause = Duration::from_millis(20);
        let client = ClientSettings::new(&broker.local_addr().to_string())
            .expect("an address")
            .retry_backoff(pause)
            .retry_backoff_max(pause);
        test(client).await;
        broker.shutdown().await;
    });
}

pub(crate) async fn topic(client: &ClientSettings, name: &str, partitions: i32) -> Admin {
    let admin = Admin::connect(client.clone()).await.expect("connected");
    admin.create_topic(&NewTopic::new(name, partitions)).await.expect("created");
    admin
}

/// Writes the numbers `from..to` to each of the partitions.
pub(crate) async fn fill(client: &ClientSettings, topic: &str, partitions: i32, from: usize, to: usize) {
    let producer = Producer::connect(ProducerSettings::new(client.clone())).await.expect("connected");
    for number in from..to {
        for partition in 0..partitions {
            let record = Record::to(topic).partition(partition).value(number.to_string());
            drop(producer.send(record).await.expect("taken"));
        }
    }
    producer.flush().await.expect("delivered");
}

/// Settings of a member that notices things soon.
pub(crate) fn settings(client: &ClientSettings, group_id: &str) -> ConsumerSettings {
    ConsumerSettings::new(client.clone())
        .group_id(group_id)
        .heartbeat_interval(Duration::from_millis(200))
        .offset_reset(OffsetReset::Earliest)
}

/// Each way a group may work.
pub(crate) fn ways() -> Vec<(GroupProtocol, Assignor)> {
    let classic = [Assignor::Range, Assignor::RoundRobin, Assignor::Sticky, Assignor::CooperativeSticky];
    let classic = classic.map(|assignor| (GroupProtocol::Classic, assignor));
    classic.into_iter().chain([(GroupProtocol::Consumer, Assignor::Range)]).collect()
}

/// What a listener was told, in order: `+` added, `-` given up, `!` lost, then the partitions.
pub(crate) type Told = Arc<Mutex<Vec<String>>>;

/// Notes what it is told; commits what is given up.
pub(crate) struct Notes(pub(crate) Told);

impl Notes {
    fn note(&self, sign: char, partitions: &[TopicPartition]) {
        let partitions: Vec<String> = partitions.iter().map(|at| at.partition.to_string()).collect();
        self.0.lock().expect("no panic").push(format!("{sign}{}", partitions.join(",")));
    }
}

impl RebalanceListener for Notes {
    fn assigned<'a>(&'a mut self, _: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        self.note('+', partitions);
        Box::pin(std::future::ready(()))
    }

    fn revoked<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        self.note('-', partitions);
        Box::pin(async move { rebalance.commit_positions().await.expect("still ours") })
    }

    fn lost<'a>(
        &'a mut self,
        _: Rebalance<'a>,
        partitions: &'a [TopicPartition],
        _: LostReason,
    ) -> Callback<'a> {
        self.note('!', partitions);
        Box::pin(std::future::ready(()))
    }
}

/// A consumer with notes.
pub(crate) async fn member(settings: ConsumerSettings, topics: &[&str]) -> (Consumer, Told) {
    let told = Told::default();
    let mut consumer = Consumer::connect(settings).await.expect("connected");
    consumer.set_listener(Notes(Arc::clone(&told)));
    consumer.subscribe(topics).await.expect("a subscription");
    (consumer, told)
}

/// What a listener was told so far.
pub(crate) fn notes(told: &Told) -> Vec<String> {
    told.lock().expect("no panic").clone()
}

/// Polls all of them in turn until it is done, and checks that no partition is read by two; the values that came.
pub(crate) async fn drive(
    members: &mut [&mut Consumer],
    mut done: impl FnMut(&[&mut Consumer], &[String]) -> bool,
) -> Vec<String> {
    let deadline = time::now() + LIMIT;
    let mut values = Vec::new();
    while !done(members, &values) {
        let shown: Vec<_> = members.iter().map(|member| member.assignment()).collect();
        assert!(time::now() < deadline, "not done: {shown:?}, {} values", values.len());
        for member in members.iter_mut() {
            for record in member.poll(POLL).await.expect("read") {
                let value = record.value.expect("a value");
                values.push(format!(
                    "{}:{}",
                    record.topic_partition.partition,
                    String::from_utf8_lossy(&value)
                ));
            }
        }
    }
    values
}

/// Whether the members own all partitions, each one's share as given, in any order of members.
pub(crate) fn shares(members: &[&mut Consumer], expected: &[usize]) -> bool {
    let mut shares: Vec<usize> = members.iter().map(|member| member.assignment().len()).collect();
    shares.sort_unstable();
    shares == expected
}

/// Asserts that no partition is with two members.
pub(crate) fn assert_disjoint(members: &[&mut Consumer]) {
    let mut all: Vec<TopicPartition> = members.iter().flat_map(|member| member.assignment()).collect();
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "a partition is with two members");
}
