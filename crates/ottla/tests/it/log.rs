//! `ottla log dump` on folders of real brokers: running, stopped, damaged.

use std::path::Path;
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, GroupMetadata, OffsetToCommit, ProducerSettings, Record, TopicPartition, TransactionalProducer,
    TransactionalSettings,
};
use serde_json::{Value, json};

use crate::support::{Broker, Ran, block_on, run};

fn dump(path: &Path, more: &[&str]) -> Ran {
    let mut arguments = vec!["log", "dump", path.to_str().expect("text")];
    arguments.extend(more);
    run(&arguments)
}

fn objects(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{ran:?}"))).collect()
}

fn of_type<'a>(all: &'a [Value], kind: &str) -> Vec<&'a Value> {
    all.iter().filter(|value| value["type"] == kind).collect()
}

/// One committed transaction with offsets, one aborted, one open, over the two partitions of `t`.
async fn transactions(broker: &Broker) {
    let admin = Admin::connect(broker.client()).await.expect("connected");
    admin.create_topic(&NewTopic::new("t", 2)).await.expect("created");
    let settings = TransactionalSettings::new(broker.client(), "an-id")
        .producer(ProducerSettings::new(broker.client()).linger(Duration::ZERO));
    let mut producer = TransactionalProducer::init(settings).await.expect("taken over");
    let at = TopicPartition::new("t", 0);
    let group = GroupMetadata::without_members("a-group");
    let transaction = producer.begin().await.expect("begun");
    transaction.send(Record::to("t").partition(0).key("k").value("committed")).await.expect("taken");
    transaction.send_offsets(&[OffsetToCommit::new(at, 7)], &group).await.expect("taken");
    transaction.commit().await.expect("committed");
    let transaction = producer.begin().await.expect("begun");
    transaction.send(Record::to("t").partition(1).value("aborted")).await.expect("taken");
    transaction.flush().await.expect("written");
    transaction.abort().await.expect("aborted");
    let transaction = producer.begin().await.expect("begun");
    transaction.send(Record::to("t").partition(0).value("open")).await.expect("taken");
    transaction.flush().await.expect("written");
}

/// Proves that a running broker's folder is shown without a change: batches with their producers, decoded markers,
/// transactions, offset commits and control records; and that filters leave only what was asked for.
#[test]
fn a_running_folder() {
    let broker = Broker::start();
    block_on(transactions(&broker));
    let folder = broker.data();
    let ran = dump(&folder, &["--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let all = objects(&ran);
    let what = |kind: &str| {
        let records = of_type(&all, "record").into_iter().filter(|record| record["what"] == kind);
        records.cloned().collect::<Vec<_>>()
    };
    let topics = what("topic");
    assert!(topics.iter().any(|record| record["decoded"]["topic"] == "t"), "{topics:?}");
    assert_eq!(what("commit marker").iter().filter(|marker| marker["topic"] == "t").count(), 1);
    assert_eq!(what("abort marker").iter().filter(|marker| marker["topic"] == "t").count(), 1);
    let commits = what("offset commit");
    assert_eq!(commits.len(), 1, "{commits:?}");
    let decoded = &commits[0]["decoded"];
    assert_eq!(
        (&decoded["group"], &decoded["topic"], &decoded["partition"], &decoded["offset"]),
        (&json!("a-group"), &json!("t"), &json!(0), &json!(7))
    );
    let states = what("transaction");
    let last = &states.last().expect("there are transactions")["decoded"];
    assert_eq!(
        (&last["transactional_id"], &last["state"]),
        (&json!("an-id"), &json!("Ongoing")),
        "{states:?}"
    );
    assert!(states.iter().any(|state| state["decoded"]["state"] == "CompleteAbort"), "{states:?}");
    assert!(of_type(&all, "record").iter().all(|record| record.get("undecodable").is_none()));
    assert_eq!(of_type(&all, "end").len(), of_type(&all, "file").len(), "every file has its end");

    let only = dump(&folder, &["--json", "--topic", "t/0", "--offsets", "0..1", "--records"]);
    let only = objects(&only);
    let batches = of_type(&only, "batch");
    assert!(batches.iter().all(|batch| batch["topic"] == "t" && batch["partition"] == 0), "{only:?}");
    let records = of_type(&only, "record");
    assert_eq!(records.len(), 2, "{only:?}");
    assert_eq!((&records[0]["value"], &records[1]["what"]), (&json!("committed"), &json!("commit marker")));
    assert!(batches.len() == 2 && of_type(&only, "frame").len() <= 2, "frames without a match are left out");

    broker.ok(&["produce", "t"], "still alive\n"); // nothing was locked
    let text = dump(&folder, &["--topic", "__transaction_state"]).stdout;
    assert!(text.contains("transactional_id=an-id") && text.contains("state=Ongoing"), "{text}");
    assert!(!text.contains("still alive") && !text.contains(" t/"), "{text}");
}

/// Proves that single files and snapshots of a stopped folder are shown, that damage is shown in its place with what
/// lies behind it, and that what is none of the log's is refused.
#[test]
fn files_and_damage() {
    let mut broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "-p", "1"], "");
    for value in ["first", "find-me-in-the-file", "third"] {
        broker.ok(&["produce", "orders"], &format!("{value}\n"));
    }
    assert!(broker.terminate());
    let folder = broker.data();
    let whole = dump(&folder, &["--json"]);
    assert_eq!(whole.code, 0, "{whole:?}");
    let all = objects(&whole);
    let snapshots = of_type(&all, "snapshot");
    let snapshot = snapshots.last().expect("a stop takes a snapshot");
    assert!(snapshot["topics"].as_u64() >= Some(3) && snapshot["unreadable"].is_null(), "{snapshot}");
    let name = snapshot["file"].as_str().expect("a name");
    let text = dump(&folder.join(name), &[]);
    assert!(text.code == 0 && text.stdout.contains("partitions:"), "{text:?}");

    let batches = of_type(&all, "batch");
    let second = batches.iter().find(|batch| batch["topic"] == "orders" && batch["base_offset"] == 1);
    let file = folder.join(second.expect("it is there")["file"].as_str().expect("a name"));
    let bytes = ottla_env::files::read_bytes(&file, 1 << 30).expect("read");
    let needle = b"find-me-in-the-file";
    let at = bytes.windows(needle.len()).position(|window| window == needle).expect("the record is there");
    let mut damaged = bytes.clone();
    damaged[at] ^= 1;
    ottla_env::files::write(&file, &damaged).expect("written");
    let shown = dump(&file, &["--json"]);
    assert_eq!(shown.code, 4, "{shown:?}");
    let found = objects(&shown);
    let bad = of_type(&found, "damaged_batch");
    assert_eq!(bad.len(), 1, "{shown:?}");
    assert_eq!(
        (&bad[0]["topic"], &bad[0]["base_offset"], &bad[0]["last_offset"]),
        (&json!("orders"), &json!(1), &json!(1))
    );
    let good = of_type(&found, "batch");
    assert!(good.iter().any(|batch| batch["base_offset"] == 2 && batch["topic"] == "orders"), "{shown:?}");
    assert!(dump(&folder, &[]).stdout.contains("DAMAGED"));

    let letter = folder.join("letter.txt");
    ottla_env::files::write(&letter, b"hello").expect("written");
    let refused = dump(&letter, &[]);
    assert!(refused.code == 1 && refused.stderr.contains("none of the log's files"), "{refused:?}");
    assert_eq!(dump(Path::new("/no/such/folder"), &[]).code, 1);
}
