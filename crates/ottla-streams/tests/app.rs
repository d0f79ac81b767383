//! Applications against a real broker in this process: the whole way from a record to a count and back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, ClientSettings, Consumer, ConsumerSettings, Producer, ProducerSettings, Record, StartAt, Text,
    TopicPartition,
};
use ottla_env::{spawn, time};
use ottla_streams::app::{App, AppSettings, AppState, Stores};
use ottla_streams::codec::{I64, Utf8};
use ottla_streams::store::KvStore;
use ottla_streams::topology::Topology;
use ottla_streams::worker::Guarantee;

/// Longest that a test waits for anything.
const LIMIT: Duration = Duration::from_secs(60);

struct Cluster {
    client: ClientSettings,
    broker: Broker,
    folder: tempfile::TempDir,
}

async fn cluster(partitions: i32) -> Cluster {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = Config {
        listen: "127.0.0.1:0".to_owned(),
        dir: folder.path().join("broker").display().to_string(),
        log_file_bytes: 4 << 20,
        ..Config::default()
    };
    config.core.group_initial_rebalance_delay_ms = 0;
    let broker = Broker::start(config).await.expect("started");
    let client = ClientSettings::new(&broker.local_addr().to_string()).expect("an address");
    let admin = Admin::connect(client.clone()).await.expect("connected");
    for topic in ["words", "counted"] {
        admin.create_topic(&NewTopic::new(topic, partitions)).await.expect("created");
    }
    Cluster { client, broker, folder }
}

/// Counts words by their first letter, through a repartition topic.
fn topology() -> Topology {
    Topology::new("letters", |b| {
        b.stream("words", Utf8, Utf8)
            .key_by("by-letter", Utf8, |r| r.value.chars().take(1).collect::<String>())
            .group()
            .count("counts")
            .changes()
            .to("counted");
    })
    .expect("a topology")
}

fn settings(cluster: &Cluster, state: &str) -> AppSettings {
    AppSettings {
        workers: 2,
        stores: Stores::Memory,
        session_timeout: Duration::from_secs(6),
        heartbeat_interval: Duration::from_millis(200),
        ..AppSettings::new(cluster.client.clone(), cluster.folder.path().join(state))
    }
}

async fn feed(cluster: &Cluster, from: usize, to: usize) {
    let producer = Producer::connect(ProducerSettings::new(cluster.client.clone())).await.expect("connected");
    for number in from..to {
        let letter = char::from(b'a' + u8::try_from(number % 7).expect("small"));
        let record = Record::to("words").key(format!("k{number}")).value(format!("{letter}{number}"));
        producer.send(record).await.expect("sent");
    }
    producer.flush().await.expect("written");
}

/// Reads so many committed counts, and asserts that each letter's are 1, 2, 3, ...
async fn counts(cluster: &Cluster, total: usize) -> BTreeMap<String, i64> {
    let mut consumer =
        Consumer::connect(ConsumerSettings::new(cluster.client.clone())).await.expect("connected");
    consumer.assign_topic(&Text::from("counted"), StartAt::Beginning).await.expect("assigned");
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    let mut seen = 0;
    let deadline = time::now() + LIMIT;
    while seen < total {
        assert!(time::now() < deadline, "{seen} of {total} counts: {last:?}");
        for record in consumer.poll(Duration::from_millis(200)).await.expect("read") {
            let letter = String::from_utf8(record.key.expect("a key").to_vec()).expect("text");
            let bytes: [u8; 8] = record.value.expect("a value")[..].try_into().expect("8 bytes");
            let (count, before) = (i64::from_be_bytes(bytes), last.get(&letter).copied().unwrap_or(0));
            assert_eq!(count, before + 1, "of {letter}");
            last.insert(letter, count);
            seen += 1;
        }
    }
    let more = consumer.poll(Duration::from_millis(300)).await.expect("read");
    assert!(more.is_empty(), "{} counts too many", more.len());
    last
}

fn run<F: Future>(test: F) -> F::Output {
    spawn::runtime(2).expect("a runtime").block_on(test)
}

/// Proves the whole way on a real broker: every record is counted once, through a repartition topic; what is
/// committed can be queried; an application that stops and starts goes on where it was.
#[test]
fn counts_go_on_over_a_restart() {
    run(async {
        let cluster = cluster(3).await;
        feed(&cluster, 0, 200).await;
        let app = App::start(topology(), settings(&cluster, "one")).await.expect("started");
        let first = counts(&cluster, 200).await;
        app.wait_running().await.expect("running");
        let store = app.store::<KvStore<String, i64>>("counts").expect("a store");
        let queried: BTreeMap<String, i64> = store.all().expect("read").into_iter().collect();
        assert_eq!(queried, first);
        assert_eq!(store.get(&"a".to_owned()).expect("read"), Some(29));
        app.stop().await.expect("stopped");
        feed(&cluster, 200, 300).await;
        let app = App::start(topology(), settings(&cluster, "one")).await.expect("started again");
        let all = counts(&cluster, 300).await;
        assert_eq!(all.values().sum::<i64>(), 300);
        app.leave().await.expect("left");
        cluster.broker.shutdown().await;
    });
}

/// Proves that two processes share the tasks, that one that dies without a word is replaced when its session ends,
/// and that nothing is counted twice or lost on the way.
#[test]
fn a_process_that_dies_is_replaced() {
    run(async {
        let cluster = cluster(4).await;
        let one = App::start(topology(), settings(&cluster, "one")).await.expect("started");
        one.wait_running().await.expect("running");
        let two = App::start(topology(), settings(&cluster, "two")).await.expect("started");
        two.wait_running().await.expect("running");
        feed(&cluster, 0, 300).await;
        counts(&cluster, 300).await;
        drop(two);
        feed(&cluster, 300, 500).await;
        let all = counts(&cluster, 500).await;
        assert_eq!(all.values().sum::<i64>(), 500);
        one.leave().await.expect("left");
        cluster.broker.shutdown().await;
    });
}

/// Proves that at-least-once work needs no transaction and still goes on over an orderly restart without counting
/// twice.
#[test]
fn at_least_once() {
    run(async {
        let cluster = cluster(2).await;
        feed(&cluster, 0, 100).await;
        let settings = AppSettings { guarantee: Guarantee::AtLeastOnce, ..settings(&cluster, "one") };
        let app = App::start(topology(), settings.clone()).await.expect("started");
        counts(&cluster, 100).await;
        app.stop().await.expect("stopped");
        feed(&cluster, 100, 150).await;
        let app = App::start(topology(), settings).await.expect("started again");
        counts(&cluster, 150).await;
        app.leave().await.expect("left");
        cluster.broker.shutdown().await;
    });
}

/// Proves that what cannot work is said at the start: an input that is not there, a folder in use, an internal topic
/// of another size.
#[test]
fn what_cannot_work_is_said() {
    run(async {
        let cluster = cluster(2).await;
        let missing =
            Topology::new("missing", |b| b.stream("nothing", Utf8, I64).to("counted")).expect("a topology");
        let error = App::start(missing, settings(&cluster, "one")).await.expect_err("no input");
        assert!(error.to_string().contains("input topic `nothing` does not exist"), "{error}");
        let app = App::start(topology(), settings(&cluster, "one")).await.expect("started");
        let error = App::start(topology(), settings(&cluster, "one")).await.expect_err("in use");
        assert!(error.to_string().contains("in use"), "{error}");
        app.leave().await.expect("left");
        let admin = Admin::connect(cluster.client.clone()).await.expect("connected");
        admin.delete_topic(&"letters.counts.changelog".into()).await.expect("deleted");
        admin.create_topic(&NewTopic::new("letters.counts.changelog", 5)).await.expect("created");
        let error = App::start(topology(), settings(&cluster, "one")).await.expect_err("another size");
        assert!(error.to_string().contains("has 5 partitions and must have 2"), "{error}");
        cluster.broker.shutdown().await;
    });
}

/// Proves that the states of an application are told in order of its life.
#[test]
fn states_are_told() {
    run(async {
        let cluster = cluster(1).await;
        let app = App::start(topology(), settings(&cluster, "one")).await.expect("started");
        app.wait_running().await.expect("running");
        assert_eq!(app.state(), AppState::Running { tasks: 2 });
        app.stop().await.expect("stopped");
        cluster.broker.shutdown().await;
    });
}

/// Feeds records of about `bytes` each, to partition 0, and returns when they are written.
async fn feed_large(cluster: &Cluster, count: usize, bytes: usize) {
    let producer = Producer::connect(ProducerSettings::new(cluster.client.clone())).await.expect("connected");
    for number in 0..count {
        let value = format!("{number:08}{}", "x".repeat(bytes));
        producer.send(Record::to("words").partition(0).value(value).key("k")).await.expect("sent");
    }
    producer.flush().await.expect("written");
}

/// Reads every committed value of a topic, until so many came.
async fn values(cluster: &Cluster, topic: &str, total: usize) -> Vec<String> {
    let mut consumer =
        Consumer::connect(ConsumerSettings::new(cluster.client.clone())).await.expect("connected");
    consumer.assign_topic(&Text::from(topic), StartAt::Beginning).await.expect("assigned");
    let mut found = Vec::new();
    let deadline = time::now() + LIMIT;
    while found.len() < total {
        assert!(time::now() < deadline, "{} of {total} records", found.len());
        for record in consumer.poll(Duration::from_millis(200)).await.expect("read") {
            found.push(String::from_utf8(record.value.expect("a value").to_vec()).expect("text"));
        }
    }
    found
}

/// Proves that a task that failed twice in a row gets a worker of its own and goes on there, and that none of the
/// records that were on their way to the old worker is lost or taken twice.
#[test]
fn a_task_that_is_set_apart_loses_nothing() {
    run(async {
        let cluster = cluster(2).await;
        let tries = Arc::new(AtomicU32::new(0));
        let unlucky = Arc::clone(&tries);
        let topology = Topology::new("letters", move |b| {
            let echo = b.stream("words", Utf8, Utf8).map_values(move |_, value| {
                assert!(value != "poison" || unlucky.fetch_add(1, Ordering::SeqCst) >= 3, "not yet");
                value.clone()
            });
            echo.values_as(Utf8).to("counted");
        })
        .expect("a topology");
        let settings = AppSettings { workers: 1, ..settings(&cluster, "one") };
        let app = App::start(topology, settings).await.expect("started");
        app.wait_running().await.expect("running");
        let producer =
            Producer::connect(ProducerSettings::new(cluster.client.clone())).await.expect("connected");
        let mut sent = Vec::new();
        for number in 0..6_000 {
            let value = if number == 500 { "poison".to_owned() } else { format!("{number}") };
            let record = Record::to("words").partition(number % 2).key("k").value(value.clone());
            producer.send(record).await.expect("sent");
            sent.push(value);
            if number % 20 == 0 {
                time::sleep(Duration::from_millis(2)).await;
            }
        }
        producer.flush().await.expect("written");
        let mut found = values(&cluster, "counted", sent.len()).await;
        assert!(tries.load(Ordering::SeqCst) > 3, "the record failed three times");
        found.sort();
        sent.sort();
        assert!(
            found == sent,
            "{} records, {} differ",
            found.len(),
            found.iter().zip(&sent).filter(|(a, b)| a != b).count()
        );
        app.leave().await.expect("left");
        cluster.broker.shutdown().await;
    });
}

/// Proves that records that are deleted before they were read stop the application with an error that names them:
/// what is lost is never passed over in silence.
#[test]
fn an_input_that_is_cut_is_an_error() {
    run(async {
        let cluster = cluster(1).await;
        feed_large(&cluster, 6_000, 1_000).await;
        let topology = Topology::new("letters", |b| {
            let slow = b.stream("words", Utf8, Utf8).map_values(|_, value| {
                let (_keep, never) = std::sync::mpsc::channel::<()>();
                let _ = never.recv_timeout(Duration::from_millis(1)); // it takes its time
                value[..8].to_owned()
            });
            slow.values_as(Utf8).to("counted");
        })
        .expect("a topology");
        let settings = AppSettings { workers: 1, buffer_bytes_max: 64 << 10, ..settings(&cluster, "one") };
        let app = App::start(topology, settings).await.expect("started");
        values(&cluster, "counted", 1).await;
        let admin = Admin::connect(cluster.client.clone()).await.expect("connected");
        admin.delete_records(&TopicPartition::new("words", 0), 6_000).await.expect("deleted");
        let error = app.wait().await.expect_err("records are missing");
        assert!(error.to_string().contains("out of range"), "{error}");
        cluster.broker.shutdown().await;
    });
}
