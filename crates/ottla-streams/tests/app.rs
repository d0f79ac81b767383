//! Applications against a real broker in this process: the whole way from a record to a count and back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, ClientSettings, Consumer, ConsumerSettings, OffsetToCommit, Producer, ProducerSettings, Record,
    StartAt, Text, TopicPartition, TransactionalProducer, TransactionalSettings,
};
use ottla_env::{spawn, time};
use ottla_streams::app::{App, AppSettings, AppState, StoreQuery, Stores};
use ottla_streams::codec::{I64, Utf8};
use ottla_streams::dsl::Builder;
use ottla_streams::state_dir::StateDir;
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

/// Proves that snapshots that a query holds on to keep nobody out of the stores: the application is stopped and started
/// again in the same process and folder meanwhile, goes on, and the old snapshots stay as they were.
#[test]
fn held_snapshots_keep_nobody_out() {
    run(async {
        let cluster = cluster(3).await;
        feed(&cluster, 0, 70).await;
        let settings = AppSettings { stores: Stores::default(), ..settings(&cluster, "one") };
        let app = App::start(topology(), settings.clone()).await.expect("started");
        counts(&cluster, 70).await;
        let store = app.store::<KvStore<String, i64>>("counts").expect("a store");
        let held = store.snapshots();
        let sum = |store: &StoreQuery<KvStore<String, i64>>| -> i64 {
            held.iter()
                .flat_map(|(_, at)| store.handle().read(at).expect("readable").all().collect::<Vec<_>>())
                .map(|found| found.expect("read").1)
                .sum()
        };
        let before = sum(&store);
        assert!(before > 0 && held.len() == 3);
        app.stop().await.expect("stopped");
        feed(&cluster, 70, 140).await;
        let app = App::start(topology(), settings.clone()).await.expect("started again");
        counts(&cluster, 140).await;
        assert_eq!(sum(&store), before);
        drop(app); // as if it had crashed: its threads may still close stores
        feed(&cluster, 140, 210).await;
        let deadline = time::now() + LIMIT;
        let app = loop {
            match App::start(topology(), settings.clone()).await {
                Ok(app) => break app,
                Err(error) => {
                    assert!(error.to_string().contains("in use") && time::now() < deadline, "{error}");
                    time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        let all = counts(&cluster, 210).await;
        assert_eq!(all.values().sum::<i64>(), 210);
        drop(held);
        app.leave().await.expect("left");
        cluster.broker.shutdown().await;
    });
}

/// Proves that transactions that ids of an earlier start with more workers have left open are ended at the next start,
/// also when that needs no transactions itself: readers do not wait for their time-out.
#[test]
fn ids_of_earlier_starts_are_fenced() {
    run(async {
        let cluster = cluster(1).await;
        for (round, guarantee) in [Guarantee::ExactlyOnce, Guarantee::AtLeastOnce].into_iter().enumerate() {
            let many = AppSettings { workers: 5, ..settings(&cluster, "one") };
            let app = App::start(topology(), many).await.expect("started");
            feed(&cluster, 20 * round, 20 * round + 10).await;
            counts(&cluster, 20 * round + 10).await;
            app.stop().await.expect("stopped");
            let folder = cluster.folder.path().join("one");
            let process = StateDir::open(&folder, "letters").expect("free").identity().process_id.clone();
            let id = format!("letters/{process}/4");
            let left = TransactionalSettings::new(cluster.client.clone(), id)
                .transaction_timeout(Duration::from_secs(600));
            let mut producer = TransactionalProducer::init(left).await.expect("taken");
            let open = producer.begin().await.expect("begun");
            open.send(Record::to("counted").key("z").value("z")).await.expect("sent");
            open.flush().await.expect("written");
            let few = AppSettings { workers: 1, guarantee, ..settings(&cluster, "one") };
            let app = App::start(topology(), few).await.expect("started again");
            feed(&cluster, 20 * round + 10, 20 * round + 20).await;
            counts(&cluster, 20 * (round + 1)).await; // behind the open transaction
            assert!(open.commit().await.is_err(), "it was fenced");
            app.stop().await.expect("stopped");
        }
        cluster.broker.shutdown().await;
    });
}

/// Proves that an input that gets more partitions ends the application with an error that names it: nobody would read
/// the new ones, and records are never passed over in silence.
#[test]
fn an_input_that_grows_is_an_error() {
    run(async {
        let mut cluster = cluster(2).await;
        cluster.client.metadata_max_age = Duration::from_millis(500);
        let app = App::start(topology(), settings(&cluster, "one")).await.expect("started");
        app.wait_running().await.expect("running");
        let admin = Admin::connect(cluster.client.clone()).await.expect("connected");
        for made in admin.create_partitions(&[("words".into(), 3)].into(), false).await.into_values() {
            made.expect("made");
        }
        let error = app.wait().await.expect_err("a partition that nobody reads");
        assert!(error.to_string().contains("has got more partitions: partition 2"), "{error}");
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

/// Words with what a table says of them.
fn looked_up() -> Topology {
    Topology::new("lookup", |b| {
        let table = b.table("table", "latest", Utf8, Utf8);
        let words = b.stream("words", Utf8, Utf8);
        words.left_join(&table, |word, found| format!("{word}: {found:?}")).values_as(Utf8).to("counted");
    })
    .expect("a topology")
}

/// Proves the waiting for inputs on a real broker: a stream that was there before the application starts meets all of a
/// table that is older (KIP-695), and later a record of a table that is silent for a while is waited for as long as was
/// asked for (KIP-353).
#[test]
fn a_join_waits_for_its_table() {
    run(async {
        let cluster = cluster(1).await;
        let admin = Admin::connect(cluster.client.clone()).await.expect("connected");
        admin.create_topic(&NewTopic::new("table", 1)).await.expect("created");
        let producer =
            Producer::connect(ProducerSettings::new(cluster.client.clone())).await.expect("connected");
        let record = |topic: &str, n: i64, timestamp: i64| {
            let value = format!("{n:04}{}", "x".repeat(500));
            Record::to(topic).key(format!("k{n}")).value(value).timestamp(timestamp)
        };
        for n in 0..3000 {
            producer.send(record("words", n, 1_000_000 + n)).await.expect("sent");
        }
        for n in 0..3000 {
            producer.send(record("table", n, n)).await.expect("sent");
        }
        producer.flush().await.expect("written");
        let idle = AppSettings { max_task_idle: Some(Duration::from_secs(20)), ..settings(&cluster, "one") };
        let app =
            App::start(looked_up(), AppSettings { max_task_idle: Some(Duration::ZERO), ..idle.clone() });
        let app = app.await.expect("started");
        let found = values(&cluster, "counted", 3000).await;
        assert!(found.iter().all(|line| !line.ends_with("None")), "a word was looked up too early");
        app.stop().await.expect("stopped");
        let app = App::start(looked_up(), idle).await.expect("started again");
        app.wait_running().await.expect("running");
        producer.send(record("words", 5000, 3_000_000)).await.expect("sent");
        producer.flush().await.expect("written");
        time::sleep(Duration::from_millis(1500)).await;
        producer.send(record("table", 5000, 2_000_000)).await.expect("sent");
        producer.flush().await.expect("written");
        let found = values(&cluster, "counted", 3001).await;
        assert!(found[3000].contains("Some("), "it was not waited for: {}", &found[3000][500..]);
        app.leave().await.expect("left");
        cluster.broker.shutdown().await;
    });
}

/// Why an application ends.
async fn end_of(topology: Topology, settings: AppSettings) -> String {
    let app = App::start(topology, settings).await.expect("started");
    time::timeout(LIMIT, app.wait()).await.expect("in time").expect_err("it cannot go on").to_string()
}

/// Proves that an application ends with an error that says where and what to do, and loses nothing by it, at a record
/// that cannot be decoded, a panic of the user's code, an offset that somebody else has written, and a topology that
/// has changed.
#[test]
fn bad_input_is_named() {
    run(async {
        let cluster = cluster(1).await;
        feed(&cluster, 0, 20).await;
        let topology_of = |name: &str, build: fn(&Builder)| Topology::new(name, build).expect("a topology");
        let undecodable = topology_of("undecodable", |b| b.stream("words", Utf8, I64).to("counted"));
        let error = end_of(undecodable, settings(&cluster, "one")).await;
        assert!(error.contains("offset 0 of words/0") && error.contains("on_decode_error"), "{error}");
        let panics = topology_of("panics", |b| {
            let checked = b.stream("words", Utf8, Utf8).map_values(|_, word| {
                assert!(word != "d10", "a word of ill omen");
                word.clone()
            });
            checked.values_as(Utf8).to("counted");
        });
        let error = end_of(panics, settings(&cluster, "one")).await;
        assert!(error.contains("offset 10 of words/0") && error.contains("a word of ill omen"), "{error}");
        assert!(error.contains("on_process_error"), "{error}");
        let group = "foreign".into();
        let admin = Admin::connect(cluster.client.clone()).await.expect("connected");
        let mut offset = OffsetToCommit::new(TopicPartition::new("words", 0), 5);
        offset.metadata = "set by a mirror".into();
        for altered in admin.alter_group_offsets(&group, &[offset]).await.into_values() {
            altered.expect("altered");
        }
        let counted = |b: &Builder| {
            b.stream("words", Utf8, Utf8).group().count("counts");
        };
        let error = end_of(topology_of("foreign", counted), settings(&cluster, "one")).await;
        assert!(error.contains("`set by a mirror`") && error.contains("on_mismatch = adopt"), "{error}");
        let on_disk = AppSettings { stores: Stores::default(), ..settings(&cluster, "two") };
        let app = App::start(topology_of("changed", counted), on_disk.clone()).await.expect("started");
        let reached: BTreeMap<_, _> = [(TopicPartition::new("words", 0), 20)].into();
        let store = app.store::<KvStore<String, i64>>("counts").expect("a store");
        app.wait_running().await.expect("running");
        store.snapshot_at_least(0, &reached, LIMIT).await.expect("counted");
        app.stop().await.expect("stopped");
        let changed = topology_of("changed", |b| {
            let words = b.stream("words", Utf8, Utf8).group();
            words.count("counts");
            words.count("more");
        });
        let error = end_of(changed, on_disk).await;
        assert!(error.contains("another topology") && error.contains("another application id"), "{error}");
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
