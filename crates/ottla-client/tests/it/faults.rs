//! Our client against a network that loses, cuts, delays and garbles: nothing twice, nothing lost, no hang.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, ClientSettings, Consumer, ConsumerSettings, DeliveryError, GroupMetadata, OffsetToCommit,
    Producer, ProducerSettings, Record, StartAt, TopicPartition, TransactionError, TransactionalProducer,
    TransactionalSettings,
};
use ottla_env::time;
use ottla_protocol::types::Text;

use crate::support::{Cluster, client, run};

const TOPIC: &str = "t";
const PARTITIONS: i32 = 4;

pub(crate) async fn create(cluster: &Cluster) {
    let admin = Admin::connect(client(&cluster.direct)).await.expect("connected");
    admin.create_topic(&NewTopic::new(Text::from_static(TOPIC), PARTITIONS)).await.expect("created");
}

/// Every value of the topic by partition, in order, as a `read_committed` reader sees them.
pub(crate) async fn values(settings: ClientSettings) -> BTreeMap<i32, Vec<u64>> {
    let mut consumer = Consumer::connect(ConsumerSettings::new(settings)).await.expect("connected");
    let topic = Text::from_static(TOPIC);
    consumer.assign_topic(&topic, StartAt::Beginning).await.expect("assigned");
    let all: Vec<TopicPartition> = (0..PARTITIONS).map(|at| TopicPartition::new(TOPIC, at)).collect();
    let mut values: BTreeMap<i32, Vec<u64>> = (0..PARTITIONS).map(|at| (at, Vec::new())).collect();
    let deadline = time::now() + Duration::from_secs(60);
    loop {
        for record in consumer.poll(Duration::from_millis(200)).await.expect("read") {
            let text = String::from_utf8(record.value.expect("a value").to_vec()).expect("digits");
            let value = text.trim_start_matches('x').parse().expect("a number");
            values.get_mut(&record.topic_partition.partition).expect("a partition").push(value);
        }
        let at_end = |at: &TopicPartition| {
            let end = consumer.readable_end(at);
            end.is_some() && consumer.position(at) >= end
        };
        if all.iter().all(at_end) {
            return values;
        }
        assert!(time::now() < deadline, "the reader does not reach the end");
    }
}

/// Proves that an idempotent producer behind a network that makes every kind of fault writes each record once and in
/// order per partition, whatever was lost; and that a reader behind the same network sees exactly that.
#[test]
fn nothing_is_lost_or_doubled() {
    run(async {
        let mut faults = [0; 8];
        for seed in 0..4 {
            let cluster = Cluster::start(seed).await;
            create(&cluster).await;
            cluster.proxy.set_faulty(true);
            let settings = ProducerSettings::new(client(&cluster.proxy.address))
                .linger(Duration::from_millis(1))
                .batch_bytes(400);
            let producer = Producer::connect(settings).await.expect("connected");
            let mut last = None;
            for number in 0..6_000_u64 {
                let partition = i32::try_from(number % 4).expect("small");
                let record = Record::to(TOPIC).partition(partition).value(format!("{number:x>20}"));
                last = Some(producer.send(record).await.expect("taken"));
            }
            producer.flush().await.expect("delivered");
            last.expect("sent").wait().await.expect("delivered");
            let read = values(client(&cluster.proxy.address)).await;
            for (partition, values) in read {
                let expected = (0..1_500).map(|n| n * 4 + u64::from(partition.unsigned_abs()));
                let wrong = values.iter().copied().zip(expected).position(|(is, should)| is != should);
                if let Some(at) = wrong {
                    let found = &values[at.saturating_sub(2)..values.len().min(at + 14)];
                    let log = cluster.batches(TOPIC, partition).await;
                    panic!("seed {seed}, partition {partition}: {found:?} at {at}; the log has {log}");
                }
                assert_eq!(values.len(), 1_500, "seed {seed}, partition {partition}");
            }
            faults.iter_mut().zip(cluster.proxy.counts().all()).for_each(|(sum, count)| *sum += count);
            cluster.stop().await;
        }
        assert!(faults.iter().all(|count| *count > 0), "every fault was made: {faults:?}");
    });
}

/// Writes 80 transactions of two records and an offset through the faults; each that was aborted is done again, each
/// whose outcome is not known is resolved.
async fn transactions(cluster: &Cluster, version: i16) {
    let settings = TransactionalSettings::new(client(&cluster.proxy.address), "id")
        .producer(ProducerSettings::new(client(&cluster.proxy.address)).linger(Duration::ZERO));
    let mut producer = TransactionalProducer::init(settings).await.expect("taken over");
    let group = GroupMetadata::without_members("g");
    let mut number = 0;
    let mut attempts = 0;
    while number < 80 {
        attempts += 1;
        assert!(attempts < 1_000, "version {version}: transaction {number} never ends");
        let transaction = producer.begin().await.expect("begun");
        let mut taken = true;
        for partition in 0..2 {
            let record = Record::to(TOPIC).partition(partition).value(number.to_string());
            taken &= transaction.send(record).await.is_ok();
        }
        let offset = OffsetToCommit::new(TopicPartition::new(TOPIC, 3), number);
        taken &= transaction.send_offsets(&[offset], &group).await.is_ok();
        let ended = if taken { transaction.commit().await } else { transaction.abort().await };
        let committed = match ended {
            Ok(()) => taken,
            Err(TransactionError::Aborted { .. }) => false,
            Err(TransactionError::Unknown { commit, .. }) => {
                producer.resolve().await.expect("answered") && commit
            }
            Err(error) => panic!("version {version}: {error}"),
        };
        number += i64::from(committed);
    }
}

/// Proves that transactions behind the same network, in both versions of the protocol, are each there once: records
/// and offset together, in order.
#[test]
fn transactions_are_exactly_once() {
    run(async {
        for version in [2, 1] {
            let cluster = Cluster::start(10 + version as u64).await;
            cluster.finalize_transaction_version(version).await;
            create(&cluster).await;
            cluster.proxy.set_faulty(true);
            transactions(&cluster, version).await;
            cluster.proxy.set_faulty(false);
            let read = values(client(&cluster.direct)).await;
            for partition in 0..2 {
                assert_eq!(read[&partition], (0..80).collect::<Vec<u64>>(), "version {version}");
            }
            let consumer = Consumer::connect(ConsumerSettings::new(client(&cluster.direct))).await;
            let at = TopicPartition::new(TOPIC, 3);
            let group = Text::from_static("g");
            let committed = consumer.expect("connected").committed(&group, &[at]).await.expect("told");
            assert_eq!(committed[0].offset, Some(79), "version {version}");
            cluster.stop().await;
        }
    });
}

/// Proves that a network that swallows everything is an error within `delivery.timeout.ms` and one
/// `request.timeout.ms`, for records and for the end of a transaction, and that the outcome can be resolved later.
#[test]
fn silence_is_an_error_in_time() {
    run(async {
        let cluster = Cluster::start(20).await;
        create(&cluster).await;
        let client = client(&cluster.proxy.address).request_timeout(Duration::from_millis(500));
        let settings = ProducerSettings::new(client.clone()).delivery_timeout(Duration::from_secs(1));
        let producer = Producer::connect(settings.clone()).await.expect("connected");
        let settings = TransactionalSettings::new(client, "id").producer(settings);
        let mut transactional = TransactionalProducer::init(settings).await.expect("taken over");
        let transaction = transactional.begin().await.expect("begun");
        transaction.send(Record::to(TOPIC).partition(0).value("1")).await.expect("taken");
        transaction.flush().await.expect("written");
        producer.send(Record::to(TOPIC).partition(1).value("0")).await.expect("taken");
        producer.flush().await.expect("written");

        cluster.proxy.set_silent(true);
        let limit = Duration::from_secs(20);
        let record = producer.send(Record::to(TOPIC).partition(1).value("1")).await.expect("taken");
        let error = time::timeout(limit, record.wait()).await.expect("in time").expect_err("not confirmed");
        assert!(matches!(error, DeliveryError::TimedOut { may_exist: true, .. }), "{error}");
        let error =
            time::timeout(limit, transaction.commit()).await.expect("in time").expect_err("no answer");
        assert!(matches!(error, TransactionError::Unknown { commit: true, .. }), "{error}");
        cluster.proxy.set_silent(false);
        assert!(transactional.resolve().await.expect("answered"));
        assert_eq!(values(crate::support::client(&cluster.direct)).await[&0], [1]);
        cluster.stop().await;
    });
}
