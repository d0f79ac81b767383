//! Folders that brokers of each format version have left, opened by this one: with all that a folder can hold.
//!
//! `fixtures/v2` and `v3` were made by `make_a_fixture` below, which is run by hand when a version is new:
//! `FIXTURE_FOLDER=crates/ottla/fixtures/v4 cargo test -p ottla --test it -- --ignored make_a_fixture`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ottla_broker::{Broker as InProcess, Config};
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, ClientSettings, GroupMetadata, OffsetToCommit, Producer, ProducerSettings, Record, TopicPartition,
    TransactionalProducer, TransactionalSettings,
};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::disk::os::OsDisk;
use ottla_env::{files, spawn};
use serde_json::{Value, json};

use crate::support::{Broker, block_on, run, run_with};

/// A transaction that is left open lives that long: the longest there is.
const LONG: Duration = Duration::from_secs(900);

async fn transactional(client: ClientSettings, id: &str) -> TransactionalProducer {
    let settings = TransactionalSettings::new(client.clone(), id)
        .transaction_timeout(LONG)
        .producer(ProducerSettings::new(client).linger(Duration::ZERO));
    TransactionalProducer::init(settings).await.expect("taken over")
}

/// What every fixture holds, in two openings: the first ends with a snapshot, the second by a kill.
async fn fill(broker: &Broker, opening: usize) {
    let group = GroupMetadata::without_members("g");
    if opening == 0 {
        let admin = Admin::connect(broker.client()).await.expect("connected");
        let compacted = NewTopic::new("compacted", 1).config("cleanup.policy", "compact,delete");
        admin.create_topic(&compacted).await.expect("created");
        admin.create_topic(&NewTopic::new("t", 2)).await.expect("created");
        admin.create_topic(&NewTopic::new("deleted", 1)).await.expect("created");
        admin.delete_topic(&ottla_protocol::types::Text::from("deleted")).await.expect("deleted");
    }
    let producer = ProducerSettings::new(broker.client()).linger(Duration::ZERO);
    let producer = Producer::connect(producer).await.expect("connected");
    for key in ["a", "b", "a"] {
        let record = Record::to("compacted").partition(0).key(key).value(format!("{key}{opening}"));
        producer.send(record).await.expect("taken").wait().await.expect("acknowledged");
    }
    let mut ended = transactional(broker.client(), "ended").await;
    let transaction = ended.begin().await.expect("begun");
    transaction
        .send(Record::to("t").partition(0).value(format!("committed {opening}")))
        .await
        .expect("taken");
    let at = TopicPartition::new("t", 0);
    transaction
        .send_offsets(&[OffsetToCommit::new(at.clone(), 1 + opening as i64)], &group)
        .await
        .expect("taken");
    transaction.commit().await.expect("committed");
    let transaction = ended.begin().await.expect("begun");
    transaction.send(Record::to("t").partition(0).value(format!("aborted {opening}"))).await.expect("taken");
    transaction.flush().await.expect("written");
    transaction.abort().await.expect("aborted");
    let mut open = transactional(broker.client(), &format!("open {opening}")).await;
    let transaction = open.begin().await.expect("begun");
    transaction.send(Record::to("t").partition(1).value(format!("open {opening}"))).await.expect("taken");
    transaction.send_offsets(&[OffsetToCommit::new(at, 99)], &group).await.expect("taken");
    transaction.flush().await.expect("written");
    std::mem::forget(open);
}

/// Writes a fixture. Not a test: run by hand, see above.
#[test]
#[ignore = "writes a fixture of the current version"]
fn make_a_fixture() {
    let to = std::env::var("FIXTURE_FOLDER").expect("FIXTURE_FOLDER names the folder");
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(to);
    let mut broker = Broker::start();
    block_on(fill(&broker, 0));
    assert!(broker.terminate());
    broker.restart();
    block_on(fill(&broker, 1));
    let ran = run(&[
        "backup",
        to.to_str().expect("text"),
        "--no-links",
        "--data",
        broker.data().to_str().expect("text"),
    ]);
    assert_eq!(ran.code, 0, "{ran:?}");
    files::remove(&to.join("lock")).expect("removed"); // it says where the folder was
}

fn copy_of(fixture: PathBuf, to: &Path) {
    files::create_folders(to).expect("made");
    for file in files::list_folder(&fixture).expect("the fixture is there") {
        let bytes = files::read_bytes(&file, 1 << 30).expect("read");
        files::write(&to.join(file.file_name().expect("a name")), &bytes).expect("written");
    }
}

/// A clock that goes on where the fixture was left, so that nothing in it is too old, whenever this runs.
struct Then {
    wall_ms: i64,
    since: Duration,
}

impl Clock for Then {
    fn wall_ms(&self) -> i64 {
        self.wall_ms + OsClock.monotonic().saturating_sub(self.since).as_millis() as i64
    }

    fn monotonic(&self) -> Duration {
        OsClock.monotonic()
    }
}

/// A broker of this process on a folder, by that clock.
async fn start(folder: &Path, wall_ms: i64) -> InProcess {
    let config =
        Config { dir: folder.display().to_string(), listen: "127.0.0.1:0".to_owned(), ..Config::default() };
    let disk = Arc::new(OsDisk::open(folder).expect("the folder is there"));
    let clock = Arc::new(Then { wall_ms, since: OsClock.monotonic() });
    InProcess::start_on(config, disk, clock).await.expect("it opens")
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Runs a command against a broker; its standard output.
fn ok(address: &str, arguments: &[&str]) -> String {
    let ran = run_with(arguments, "", &[("OTTLA_BOOTSTRAP", address)]);
    assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.stdout, ran.stderr);
    ran.stdout
}

fn values(address: &str, place: &str, isolation: &str) -> Vec<String> {
    let read = ["consume", place, "--from", "beginning", "--until-end", "--isolation", isolation];
    ok(address, &read).lines().map(str::to_owned).collect()
}

/// Everything that the fixture holds.
fn check_contents(address: &str) {
    let mut topics: Vec<String> = objects(&ok(address, &["topic", "list", "--json"]))
        .iter()
        .map(|topic| topic["topic"].as_str().unwrap_or_default().to_owned())
        .collect();
    topics.sort();
    topics.retain(|name| !name.starts_with("__"));
    assert_eq!(topics, ["compacted", "t"]);
    let described = ok(address, &["topic", "describe", "compacted", "--json"]);
    let described: Value = serde_json::from_str(&described).expect("JSON");
    assert!(described["configs"].to_string().contains("compact,delete"), "{described}");

    assert_eq!(values(address, "t/0", "committed"), ["committed 0", "committed 1"]);
    let all = ["committed 0", "aborted 0", "committed 1", "aborted 1"];
    assert_eq!(values(address, "t/0", "uncommitted"), all);
    assert_eq!(values(address, "t/1", "committed"), [""; 0], "the open ones hold readers back");
    assert_eq!(values(address, "t/1", "uncommitted"), ["open 0", "open 1"]);
    assert_eq!(values(address, "compacted/0", "committed").last().map(String::as_str), Some("a1"));
    let group: Value =
        serde_json::from_str(&ok(address, &["group", "describe", "g", "--json"])).expect("JSON");
    let offsets = &group["partitions"][0];
    assert!(
        [&offsets["offset"], &offsets["committed"], &offsets["committed_offset"]].contains(&&json!(2)),
        "{group}"
    );

    let transactions = objects(&ok(address, &["txn", "list", "--json"]));
    let state = |id: &str| {
        let found = transactions.iter().find(|transaction| transaction["transactional_id"] == id);
        found.map(|transaction| transaction["state"].clone())
    };
    let ongoing = Some(json!("Ongoing"));
    assert_eq!((state("open 0"), state("open 1")), (ongoing.clone(), ongoing), "{transactions:?}");
    assert_eq!(state("ended"), Some(json!("CompleteAbort")), "{transactions:?}");
}

/// Proves that a folder of format version 2, with a snapshot and frames behind it, opens with everything in it: topics
/// and their settings, what is committed, aborted and open, offsets of a group; and that it goes on: the open
/// transactions end, and the folder opens again and is whole.
#[test]
fn version_2_opens() {
    opens("v2");
}

/// Proves the same of format version 3.
#[test]
fn version_3_opens() {
    opens("v3");
}

fn opens(version: &str) {
    let at = tempfile::tempdir().expect("a folder");
    let folder = at.path().join("data");
    copy_of(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(version), &folder);
    let looked = run(&["doctor", folder.to_str().expect("text"), "--json"]);
    assert_eq!(looked.code, 0, "{looked:?}");
    let found: Value = serde_json::from_str(&looked.stdout).expect("JSON");
    let times =
        found["files"].as_array().expect("files").iter().filter_map(|file| file["last_time"].as_i64());
    let then = times.max().expect("it has frames") + 1;

    let runtime = spawn::runtime(2).expect("a runtime");
    let broker = runtime.block_on(start(&folder, then));
    let address = broker.local_addr().to_string();
    check_contents(&address);
    runtime.block_on(async {
        let client = ClientSettings::new(&address).expect("an address");
        // taking an id over ends what it left open
        for id in ["open 0", "open 1"] {
            let mut producer = transactional(client.clone(), id).await;
            let transaction = producer.begin().await.expect("begun");
            // by the clock of the broker, not by that of this machine
            let record = Record::to("t").partition(1).timestamp(then).value(format!("{id} again"));
            transaction.send(record).await.expect("taken");
            transaction.commit().await.expect("committed");
        }
        broker.shutdown().await;
        let broker = start(&folder, then + 60_000).await;
        let address = broker.local_addr().to_string();
        let read = spawn::blocking("consume", move || values(&address, "t/1", "committed"));
        assert_eq!(read.await.expect("read"), ["open 0 again", "open 1 again"]);
        broker.shutdown().await;
    });
    let found = run(&["doctor", folder.to_str().expect("text"), "--json"]);
    assert_eq!(found.code, 0, "{found:?}");
}
