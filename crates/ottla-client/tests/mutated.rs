//! Answers that a broker would not give: real ones of every API that the client reads, with bytes changed, cut, put in
//! and repeated. In a binary of its own, because it looks at the memory of the process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use middle::{CORRELATION_BYTES, Kind, Shared};
use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, CallError, ClientSettings, Connection, Consumer, ConsumerSettings, GroupMetadata, OffsetReset,
    OffsetToCommit, Producer, ProducerSettings, Record, StartAt, TopicPartition, TransactionalProducer,
    TransactionalSettings,
};
use ottla_env::rng::SeededRng;
use ottla_env::{net, spawn, time};
use ottla_protocol::api::ApiKey;
use ottla_protocol::messages::*;

#[path = "mutated/middle.rs"]
mod middle;
#[path = "../examples/suite/main.rs"]
mod suite;

/// Changed answers of each kept one.
const MUTATIONS: usize = 40;
/// Longest that one call may take that has 5 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much more memory the process may come to hold, and to ask for.
const HELD_BYTES_MAX: u64 = 600 << 20;
const ASKED_BYTES_MAX: u64 = 4 << 30;

/// Panics of all threads and tasks.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// A field of the process's status, in bytes.
#[allow(clippy::disallowed_methods)] // the kernel's own words about this process, not a file of anybody
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Settings that give up soon.
fn impatient(address: &str) -> ClientSettings {
    let pause = Duration::from_millis(10);
    let mut settings = ClientSettings::new(address)
        .expect("an address")
        .request_timeout(Duration::from_secs(2))
        .retry_backoff(pause)
        .retry_backoff_max(pause)
        .reconnect_backoff(pause)
        .reconnect_backoff_max(pause);
    settings.api_timeout = Duration::from_secs(5);
    settings.connection_setup_timeout = Duration::from_secs(1);
    settings
}

/// A server that answers whatever it is asked with the next of the frames that it was given.
async fn player(frames: Arc<Mutex<Vec<Vec<u8>>>>, versions: Vec<u8>) -> (String, spawn::TaskHandle<()>) {
    let (address, listener) = middle::bind().await;
    let task = spawn::task("player", async move {
        let mut connections = spawn::TaskGroup::new();
        while let Ok((client, _)) = net::accept(&listener).await {
            let (mut read, mut write) = client.into_split();
            let (frames, versions) = (Arc::clone(&frames), versions.clone());
            connections.spawn("player-connection", async move {
                while let Some(request) = middle::read(&mut read).await {
                    let frame = match middle::kind_of(&request).0 {
                        18 => Some(versions.clone()),
                        _ => frames.lock().expect("nobody panics in here").pop(),
                    };
                    let Some(mut frame) = frame else { return };
                    frame[..CORRELATION_BYTES].copy_from_slice(&request[4..4 + CORRELATION_BYTES]);
                    if !middle::write(&mut write, &frame).await {
                        return;
                    }
                }
            });
        }
    });
    (address, task)
}

/// What came of changed answers: how many could be read, and how many were refused.
#[derive(Debug, Default)]
struct Tally {
    read: u64,
    refused: u64,
}

struct Decoder {
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
    address: String,
    connection: Option<Connection>,
    rng: SeededRng,
    tally: Tally,
}

impl Decoder {
    /// Gives changed answers to a request of this kind.
    async fn decode<R: Request + Default>(&mut self, kind: Kind, answer: &[u8]) {
        for _ in 0..MUTATIONS {
            let changed = middle::mutate(answer, &mut self.rng);
            self.frames.lock().expect("nobody panics in here").push(changed.clone());
            let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
                Some(connection) => connection,
                None => {
                    let settings = Arc::new(impatient(&self.address));
                    Connection::connect(&self.address, settings).await.expect("the player answers")
                }
            };
            let mut pending =
                connection.start(&R::default(), kind.1).await.expect("an empty request can be written");
            match pending.wait().await {
                Ok(_) => self.tally.read += 1,
                Err(CallError::Garbled { .. }) => self.tally.refused += 1,
                Err(error) => panic!("{kind:?}: {error}: {changed:02x?}"),
            }
            self.connection = Some(connection);
        }
    }
}

/// Decodes an answer of each of these requests; false for others.
macro_rules! decode {
    ($decoder:expr, $kind:expr, $answer:expr, $($request:ident)*) => {
        match ApiKey::from_code($kind.0) {
            $(Some(api) if api == $request::API => {
                $decoder.decode::<$request>($kind, $answer).await;
                true
            })*
            _ => false,
        }
    };
}

async fn decode_all(shared: &Shared, seed: u64) -> Tally {
    let answers = shared.answers.lock().expect("nobody panics in here").clone();
    let versions =
        answers.iter().find(|((api, _), _)| *api == 18).expect("every connection begins so").1[0].clone();
    let frames = Arc::default();
    let (address, task) = player(Arc::clone(&frames), versions).await;
    let rng = SeededRng::new(seed);
    let mut decoder = Decoder { frames, address, connection: None, rng, tally: Tally::default() };
    for (kind, answers) in answers {
        for answer in answers {
            let known = decode!(decoder, kind, &answer,
                ProduceRequest FetchRequest ListOffsetsRequest MetadataRequest OffsetCommitRequest
                OffsetFetchRequest FindCoordinatorRequest JoinGroupRequest HeartbeatRequest LeaveGroupRequest
                SyncGroupRequest DescribeGroupsRequest ListGroupsRequest CreateTopicsRequest DeleteTopicsRequest
                DeleteRecordsRequest InitProducerIdRequest OffsetForLeaderEpochRequest AddPartitionsToTxnRequest
                AddOffsetsToTxnRequest EndTxnRequest TxnOffsetCommitRequest DescribeConfigsRequest
                IncrementalAlterConfigsRequest DescribeLogDirsRequest CreatePartitionsRequest DeleteGroupsRequest
                OffsetDeleteRequest DescribeProducersRequest DescribeTransactionsRequest ListTransactionsRequest
                ConsumerGroupHeartbeatRequest ConsumerGroupDescribeRequest DescribeClusterRequest
                UpdateFeaturesRequest);
            assert!(known || kind.0 == 18, "the client reads answers of API {} too", kind.0);
        }
    }
    task.abort();
    decoder.tally
}

/// Does a bit of everything; whatever fails fails in time. What each came to is counted: done, or refused.
async fn a_bit_of_everything(address: &str, round: u64) -> (u64, u64) {
    let client = impatient(address);
    let (mut done, mut refused) = (0, 0);
    let mut count = |is_done: bool| if is_done { done += 1 } else { refused += 1 };
    let producer = ProducerSettings::new(client.clone()).delivery_timeout(Duration::from_secs(4));
    let settings =
        TransactionalSettings::new(client.clone(), format!("id-{round}")).producer(producer.clone());
    if let Ok(producer) = Producer::connect(producer).await {
        for number in 0..20 {
            let record = Record::to("mutated").partition(number % 2).value(number.to_string());
            count(producer.send(record).await.is_ok());
        }
        count(producer.flush().await.is_ok());
    }
    if let Ok(mut producer) = TransactionalProducer::init(settings).await {
        for number in 0..5 {
            let Ok(transaction) = producer.begin().await else {
                count(false);
                count(producer.resolve().await.is_ok());
                continue;
            };
            count(transaction.send(Record::to("mutated").partition(0).value("a")).await.is_ok());
            let offset = OffsetToCommit::new(TopicPartition::new("mutated", 0), number);
            let group = GroupMetadata::without_members("mutated");
            count(transaction.send_offsets(&[offset], &group).await.is_ok());
            count(transaction.commit().await.is_ok());
        }
    }
    let settings = ConsumerSettings::new(client.clone()).offset_reset(OffsetReset::Earliest);
    // a group that somebody has just left takes no commits from outside for a while
    let group_id = |is_member: bool| format!("group-{round}-{is_member}");
    for is_member in [true, false] {
        let Ok(mut consumer) = Consumer::connect(settings.clone().group_id(group_id(is_member))).await else {
            continue;
        };
        if is_member {
            count(consumer.subscribe(&["mutated"]).await.is_ok());
        } else {
            count(consumer.assign_topic(&"mutated".into(), StartAt::Beginning).await.is_ok());
        }
        for _ in 0..15 {
            count(consumer.poll(Duration::from_millis(50)).await.is_ok());
            // a member that has not joined yet may not commit
            let committed = consumer.commit_positions().await.is_ok();
            count(committed || is_member);
        }
        count(consumer.close().await.is_ok());
    }
    if let Ok(admin) = Admin::connect(client).await {
        let (at, group_id) = ([TopicPartition::new("mutated", 0)], group_id(false).into());
        for _ in 0..5 {
            count(admin.list_topics().await.is_ok());
            count(admin.beginning_offsets(&at).await.is_ok());
            count(admin.group_offsets(&group_id).await.is_ok());
            count(admin.describe_topic(&"mutated".into()).await.is_ok());
        }
    }
    (done, refused)
}

/// Proves that whatever a broker answers, to any request of the client, in any version it speaks, the client neither
/// panics, nor takes memory for what is only claimed, nor waits longer than it says: it reads the answer or refuses it,
/// and goes on when the answers are right again.
#[test]
fn mutated_answers() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        hook(panic);
    }));
    spawn::runtime(2).expect("a runtime").block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (address, listener) = middle::bind().await;
        let config = Config {
            listen: "127.0.0.1:0".to_owned(),
            advertised_listener: address.clone(),
            dir: folder.path().display().to_string(),
            log_file_bytes: 4 << 20,
            ..Config::default()
        };
        let broker = Broker::start(config).await.expect("started");
        let shared = Arc::new(Shared::default());
        let task = middle::forward(listener, broker.local_addr().to_string(), 7, Arc::clone(&shared));
        let client = ClientSettings::new(&address).expect("an address");
        for case in suite::CASES {
            suite::run(client.clone(), case).await.unwrap_or_else(|error| panic!("{case}: {error}"));
        }
        let admin = Admin::connect(client.clone()).await.expect("connected");
        admin.create_topic(&NewTopic::new("mutated", 2)).await.expect("created");
        a_bit_of_everything(&address, 0).await;

        let before = (status("VmHWM"), status("VmPeak"));
        let tally = decode_all(&shared, 1).await;
        assert!(tally.read > 100 && tally.refused > 100, "{tally:?}");
        shared.mutates.store(true, Ordering::Relaxed);
        let (mut done, mut refused) = (0, 0);
        for round in 1..4 {
            let came = time::timeout(PATIENCE * 4, a_bit_of_everything(&address, round)).await;
            let (more_done, more_refused) = came.expect("nothing hangs");
            (done, refused) = (done + more_done, refused + more_refused);
        }
        assert!(shared.mutated.load(Ordering::Relaxed) > 50 && done > 0 && refused > 0, "{done}, {refused}");
        let after = (status("VmHWM"), status("VmPeak"));
        assert!(after.0 - before.0 < HELD_BYTES_MAX, "{before:?} {after:?}");
        assert!(after.1 - before.1 < ASKED_BYTES_MAX, "{before:?} {after:?}");

        shared.mutates.store(false, Ordering::Relaxed);
        let (_, refused) = a_bit_of_everything(&address, 4).await;
        assert_eq!(refused, 0, "right answers are understood again");
        task.abort();
        broker.shutdown().await;
    });
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "tasks that panicked");
}
