//! Transactions of the client against its own broker.

use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, Consumer, ConsumerSettings, ErrorClass, GroupMetadata, IsolationLevel, OffsetToCommit,
    ProducerSettings, Record, StartAt, TopicPartition, TransactionError, TransactionalProducer,
    TransactionalSettings,
};
use ottla_protocol::types::Text;
use serde_json::Value;

use crate::support::{Broker, block_on};

const SOON: Duration = Duration::from_millis(300);
const WAIT: Duration = Duration::from_secs(10);

async fn topic(broker: &Broker) -> Admin {
    let admin = Admin::connect(broker.client()).await.expect("connected");
    admin.create_topic(&NewTopic::new("t", 2)).await.expect("created");
    admin
}

async fn producer(broker: &Broker, name: &str) -> TransactionalProducer {
    let producer = ProducerSettings::new(broker.client()).linger(Duration::ZERO);
    let settings = TransactionalSettings::new(broker.client(), name).producer(producer);
    TransactionalProducer::init(settings).await.expect("taken over")
}

async fn consumer(broker: &Broker, isolation: IsolationLevel) -> Consumer {
    let settings =
        ConsumerSettings::new(broker.client()).isolation(isolation).fetch_max_wait(Duration::from_millis(50));
    let mut consumer = Consumer::connect(settings).await.expect("connected");
    consumer.assign_topic(&Text::from("t"), StartAt::Beginning).await.expect("assigned");
    consumer
}

/// Everything that comes until nothing does for a moment.
async fn read(consumer: &mut Consumer) -> Vec<String> {
    let mut values = Vec::new();
    loop {
        let records = consumer.poll(SOON).await.expect("read");
        if records.is_empty() {
            values.sort();
            return values;
        }
        let text =
            |value: Option<bytes::Bytes>| String::from_utf8(value.expect("a value").to_vec()).expect("text");
        values.extend(records.into_iter().map(|record| text(record.value)));
    }
}

/// Proves that records and offsets over two partitions become visible together, that open and aborted ones do not,
/// and that producer id and epoch move on with each transaction.
#[test]
fn together_or_not_at_all() {
    let broker = Broker::start();
    block_on(async {
        topic(&broker).await;
        let mut producer = producer(&broker, "x").await;
        let mut committed = consumer(&broker, IsolationLevel::ReadCommitted).await;
        let mut all = consumer(&broker, IsolationLevel::ReadUncommitted).await;
        let group = GroupMetadata::without_members("g");
        let at = TopicPartition::new("t", 0);
        let (id, epoch) = producer.producer_id_and_epoch();

        let transaction = producer.begin().await.expect("begun");
        for partition in 0..2 {
            transaction
                .send(Record::to("t").partition(partition).value(format!("a{partition}")))
                .await
                .expect("taken");
        }
        transaction.send_offsets(&[OffsetToCommit::new(at.clone(), 7)], &group).await.expect("taken");
        transaction.flush().await.expect("written");
        assert_eq!(read(&mut committed).await, Vec::<String>::new());
        assert_eq!(read(&mut all).await, ["a0", "a1"]);
        transaction.commit().await.expect("committed");
        assert_eq!(read(&mut committed).await, ["a0", "a1"]);
        let offsets = committed.committed(&group.group_id, std::slice::from_ref(&at)).await.expect("fetched");
        assert_eq!(offsets[0].offset, Some(7));

        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to("t").partition(0).value("b")).await.expect("taken");
        transaction.send_offsets(&[OffsetToCommit::new(at.clone(), 8)], &group).await.expect("taken");
        transaction.flush().await.expect("written");
        transaction.abort().await.expect("aborted");
        assert_eq!(read(&mut committed).await, Vec::<String>::new());
        assert_eq!(read(&mut all).await, ["b"]);
        let offsets = committed.committed(&group.group_id, &[at]).await.expect("fetched");
        assert_eq!(offsets[0].offset, Some(7), "the aborted offset is gone");
        assert_eq!(producer.producer_id_and_epoch(), (id, epoch + 2));
    });
}

/// Proves that a kill inside a transaction, before and after its records are written, is invisible: it commits.
#[test]
fn a_kill_inside_a_transaction() {
    let mut broker = Broker::start();
    block_on(async {
        topic(&broker).await;
        let mut producer = producer(&broker, "x").await;
        let mut expected = Vec::new();
        for round in 0..3 {
            let transaction = producer.begin().await.expect("begun");
            transaction.send(Record::to("t").value(format!("{round} before"))).await.expect("taken");
            if round != 1 {
                transaction.flush().await.expect("written");
            }
            broker.kill_and_restart();
            transaction.send(Record::to("t").value(format!("{round} behind"))).await.expect("taken");
            transaction.commit().await.expect("committed");
            expected.extend([format!("{round} before"), format!("{round} behind")]);
        }
        let mut committed = consumer(&broker, IsolationLevel::ReadCommitted).await;
        assert_eq!(read(&mut committed).await, expected);
    });
}

/// Proves that a new producer of the same name fences off the old one and aborts what it left open, at once.
#[test]
fn fencing() {
    let broker = Broker::start();
    block_on(async {
        topic(&broker).await;
        let mut old = producer(&broker, "x").await;
        let transaction = old.begin().await.expect("begun");
        transaction.send(Record::to("t").value("zombie")).await.expect("taken");
        transaction.flush().await.expect("written");
        let mut new = producer(&broker, "x").await;
        let living = new.begin().await.expect("begun");
        living.send(Record::to("t").value("living")).await.expect("taken");
        living.commit().await.expect("committed");
        let error = transaction.commit().await.expect_err("fenced");
        assert!(
            matches!(error, TransactionError::Fenced { .. }) && error.class() == ErrorClass::Fatal,
            "{error}"
        );
        assert!(old.begin().await.is_err(), "it stays so");
        let mut committed = consumer(&broker, IsolationLevel::ReadCommitted).await;
        assert_eq!(read(&mut committed).await, ["living"]);
    });
}

/// Proves that `txn why` names the id, the state and the remedy of an open transaction, and that the remedy works.
#[test]
fn who_holds_back_readers() {
    let broker = Broker::start();
    block_on(async {
        let admin = topic(&broker).await;
        let mut producer = producer(&broker, "holder").await;
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to("t").partition(1).value("hidden")).await.expect("taken");
        transaction.flush().await.expect("written");
        let at = TopicPartition::new("t", 1);
        let producers = admin.describe_producers(&at).await.expect("described");
        assert_eq!(producers[0].transaction_start_offset, Some(0));
        let text = broker.ok(&["txn", "why", "t"], "");
        assert!(text.contains("`holder` (Ongoing") && text.contains("ottla txn abort holder"), "{text}");
        assert!(text.contains("hidden: 1 record, 6 B"), "{text}");
        let json: Value =
            serde_json::from_str(&broker.ok(&["txn", "why", "t/1", "--json"], "")).expect("JSON");
        assert_eq!(json["holders"][0]["transaction"]["state"], "Ongoing");
        let shown: Value =
            serde_json::from_str(&broker.ok(&["txn", "abort", "holder", "--json"], "")).expect("JSON");
        assert_eq!(shown["on"][0]["start_offset"], 0, "{shown}");
        let token = shown["token"].as_str().expect("a token");
        assert!(!broker.ok(&["txn", "why", "t"], "").contains("nobody"), "to look at it changes nothing");
        let wrong = broker.ottla(&["txn", "abort", "holder", "--token", "0000000000000000"], "");
        assert!(wrong.code == 3 && wrong.stderr.contains("has moved on"), "{wrong:?}");
        broker.ok(&["txn", "abort", "holder", "--token", token], "");
        assert!(broker.ok(&["txn", "why", "t"], "").contains("nobody"));
        let late = broker.ottla(&["txn", "abort", "holder", "--token", token], "");
        assert!(late.code == 3 && late.stderr.contains("no open transaction"), "{late:?}");
        let mut committed = consumer(&broker, IsolationLevel::ReadCommitted).await;
        assert_eq!(read(&mut committed).await, Vec::<String>::new());
        assert!(transaction.commit().await.is_err());
    });
}

/// Proves that a transaction that is open for longer than its time-out is aborted, and its producer told.
#[test]
fn time_out() {
    let broker = Broker::start();
    block_on(async {
        topic(&broker).await;
        let settings = TransactionalSettings::new(broker.client(), "slow")
            .transaction_timeout(Duration::from_millis(200));
        let mut producer = TransactionalProducer::init(settings).await.expect("taken over");
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to("t").partition(0).value("late")).await.expect("taken");
        transaction.flush().await.expect("written");
        let mut committed = consumer(&broker, IsolationLevel::ReadCommitted).await;
        let at = TopicPartition::new("t", 0);
        let deadline = ottla_env::time::now() + 4 * WAIT;
        while committed.position(&at) < Some(2) {
            assert!(committed.poll(SOON).await.expect("read").is_empty());
            assert!(ottla_env::time::now() < deadline, "the sweep comes every ten seconds");
        }
        let error = transaction.commit().await.expect_err("timed out");
        assert!(matches!(error, TransactionError::Fenced { .. }), "{error}");
    });
}

/// Proves that a transaction can be ended on one partition by a marker, past its coordinator, and that its producer
/// can still abort it afterwards.
#[test]
fn abort_by_marker() {
    let broker = Broker::start();
    block_on(async {
        topic(&broker).await;
        let mut producer = producer(&broker, "x").await;
        let (producer_id, _) = producer.producer_id_and_epoch();
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to("t").partition(1).value("hidden")).await.expect("taken");
        transaction.flush().await.expect("written");
        let id = producer_id.to_string();
        let nobody = broker.ottla(&["txn", "abort", "--partition", "t/0", "--producer-id", &id], "");
        assert!(nobody.code == 1 && nobody.stderr.contains("no open transaction"), "{nobody:?}");
        let hanging = ["txn", "abort", "--partition", "t/1", "--producer-id", &id];
        let shown: Value =
            serde_json::from_str(&broker.ok(&[&hanging[..], &["--json"]].concat(), "")).expect("JSON");
        let token = shown["token"].as_str().expect("a token");
        transaction.send(Record::to("t").partition(1).value("more")).await.expect("taken");
        transaction.flush().await.expect("written");
        let moved = broker.ottla(&[&hanging[..], &["--token", token]].concat(), "");
        assert!(moved.code == 3 && moved.stderr.contains("has moved on"), "{moved:?}");
        let shown: Value =
            serde_json::from_str(&broker.ok(&[&hanging[..], &["--json"]].concat(), "")).expect("JSON");
        let token = shown["token"].as_str().expect("a token");
        broker.ok(&[&hanging[..], &["--token", token]].concat(), "");
        assert!(broker.ok(&["txn", "why", "t"], "").contains("nobody"));
        transaction.abort().await.expect("aborted");
        let mut committed = consumer(&broker, IsolationLevel::ReadCommitted).await;
        assert_eq!(read(&mut committed).await, Vec::<String>::new());
    });
}

/// Proves that a transaction is aborted only while it is the one that was looked at: when its producer has committed
/// and begun the next one since, the old token is refused and the new transaction lives.
#[test]
fn a_stale_token_aborts_nothing() {
    let broker = Broker::start();
    block_on(async {
        topic(&broker).await;
        let mut producer = producer(&broker, "x").await;
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to("t").partition(0).value("first")).await.expect("taken");
        transaction.flush().await.expect("written");
        let shown: Value =
            serde_json::from_str(&broker.ok(&["txn", "abort", "x", "--json"], "")).expect("JSON");
        let token = shown["token"].as_str().expect("a token");
        transaction.commit().await.expect("committed");
        let next = producer.begin().await.expect("begun");
        next.send(Record::to("t").partition(0).value("second")).await.expect("taken");
        next.flush().await.expect("written");
        let stale = broker.ottla(&["txn", "abort", "x", "--token", token], "");
        assert!(stale.code == 3 && stale.stderr.contains("has moved on"), "{stale:?}");
        next.commit().await.expect("still alive");
        let mut committed = consumer(&broker, IsolationLevel::ReadCommitted).await;
        assert_eq!(read(&mut committed).await, ["first", "second"]);
    });
}

/// Proves that the admin's fence hits one holder only: with a pair that is not in use any more it is refused, with
/// the one in use it aborts, and the producer is told.
#[test]
fn fencing_one_holder() {
    let broker = Broker::start();
    block_on(async {
        let admin = topic(&broker).await;
        let mut old = producer(&broker, "x").await;
        let (old_id, old_epoch) = old.producer_id_and_epoch();
        let transaction = old.begin().await.expect("begun");
        transaction.send(Record::to("t").partition(0).value("a")).await.expect("taken");
        transaction.flush().await.expect("written");
        let id = Text::from("x");
        let found = admin.describe_transaction(&id).await.expect("described");
        assert_eq!((found.producer_id, found.producer_epoch), (old_id, old_epoch));
        let refused = admin.fence_holder(&id, old_id, old_epoch + 7).await.expect_err("not the holder");
        assert!(
            matches!(
                refused.code().map(|code| code.name()),
                Some("PRODUCER_FENCED" | "INVALID_PRODUCER_EPOCH")
            ),
            "{refused}"
        );
        let fenced = admin.fence_holder(&id, old_id, old_epoch).await.expect("fenced");
        assert!(fenced.producer_epoch > old_epoch, "{fenced:?}");
        let error = transaction.commit().await.expect_err("fenced");
        assert_eq!(error.class(), ErrorClass::Fatal);
        let hanging = broker.ok(&["txn", "find-hanging", "--silent-for", "0s"], "");
        assert!(hanging.contains("no transaction hangs"), "{hanging}");
    });
}
