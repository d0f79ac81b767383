//! The client against its own broker, kills included.

use std::time::Duration;

use ottla_client::admin::{AlterConfig, ConfigOperation, ConfigResource, NewTopic};
use ottla_client::{
    Admin, Codec, Consumer, ConsumerError, ConsumerSettings, GroupMetadata, OffsetReset, OffsetToCommit,
    Producer, ProducerSettings, Record, StartAt, TopicPartition,
};
use ottla_protocol::types::Text;

use crate::support::{Broker, block_on};

const WAIT: Duration = Duration::from_secs(10);

async fn topic(broker: &Broker, name: &str, partitions: i32) -> Admin {
    let admin = Admin::connect(broker.client()).await.expect("connected");
    admin.create_topic(&NewTopic::new(name, partitions)).await.expect("created");
    admin
}

/// The next `count` values of an assigned consumer.
async fn values(consumer: &mut Consumer, count: usize) -> Vec<String> {
    let mut values = Vec::new();
    while values.len() < count {
        let records = consumer.poll(WAIT).await.expect("read");
        assert!(!records.is_empty(), "nothing came, {values:?}");
        let text = |value: &bytes::Bytes| String::from_utf8(value.to_vec()).expect("text");
        values.extend(records.iter().map(|record| text(record.value.as_ref().expect("a value"))));
    }
    values
}

/// Proves that brokers killed and started again under a producer and a consumer are invisible to both: every record
/// arrives once and in order, in every codec.
#[test]
fn kills_are_invisible() {
    let mut broker = Broker::start();
    block_on(async {
        topic(&broker, "t", 1).await;
        let settings = ProducerSettings::new(broker.client()).compression(Codec::Lz4).batch_bytes(500);
        let producer = Producer::connect(settings).await.expect("connected");
        let mut consumer =
            Consumer::connect(ConsumerSettings::new(broker.client())).await.expect("connected");
        consumer.assign(&[(TopicPartition::new("t", 0), StartAt::Beginning)]).await.expect("assigned");
        let mut expected = Vec::new();
        for round in 0..3 {
            for number in 0..200 {
                let value = format!("{round}-{number}");
                producer.send(Record::to("t").value(value.clone())).await.expect("taken");
                expected.push(value);
                if number == 100 {
                    broker.kill_and_restart();
                }
            }
        }
        producer.flush().await.expect("delivered");
        assert_eq!(values(&mut consumer, expected.len()).await, expected);
        assert_eq!(consumer.position(&TopicPartition::new("t", 0)), Some(600));
        assert_eq!(consumer.readable_end(&TopicPartition::new("t", 0)), Some(600));
    });
}

/// Proves offsets by position and time, seeking, the end of a partition, and committed offsets of a group without
/// members, through a kill.
#[test]
fn offsets() {
    let mut broker = Broker::start();
    block_on(async {
        topic(&broker, "t", 2).await;
        let producer = Producer::connect(ProducerSettings::new(broker.client())).await.expect("connected");
        for number in 0..10_i64 {
            let record = Record::to("t").partition(0).timestamp(1000 + number).value(number.to_string());
            producer.send(record).await.expect("taken");
        }
        producer.flush().await.expect("delivered");
        let mut consumer =
            Consumer::connect(ConsumerSettings::new(broker.client())).await.expect("connected");
        let (full, empty) = (TopicPartition::new("t", 0), TopicPartition::new("t", 1));
        let ends = consumer.end_offsets(&[full.clone(), empty.clone()]).await.expect("listed");
        assert_eq!((ends[&full], ends[&empty]), (10, 0));
        let found =
            consumer.offsets_for_times(&[(full.clone(), 1007), (empty.clone(), 0)]).await.expect("listed");
        assert_eq!((found[&full].map(|found| found.offset), found[&empty]), (Some(7), None));
        consumer.assign(&[(full.clone(), StartAt::Timestamp(1008))]).await.expect("assigned");
        assert_eq!(values(&mut consumer, 2).await, ["8", "9"]);
        consumer.seek(&full, 4).expect("assigned");
        assert_eq!(values(&mut consumer, 1).await[0], "4");
        assert!(matches!(consumer.seek(&empty, 0), Err(ConsumerError::NotAssigned { .. })));

        let group = GroupMetadata::without_members("g");
        consumer.commit(&group, &[OffsetToCommit::new(full.clone(), 5)]).await.expect("committed");
        broker.kill_and_restart();
        let partitions = [full.clone(), empty.clone()];
        let committed = consumer.committed(&Text::from("g"), &partitions).await.expect("fetched");
        let offsets: Vec<_> = committed.iter().map(|found| found.offset).collect();
        assert_eq!(offsets, [Some(5), None]);
        let admin = Admin::connect(broker.client()).await.expect("connected");
        assert_eq!(admin.group_offsets(&Text::from("g")).await.expect("fetched").len(), 1);
    });
}

/// Proves that a position outside of the log is an error by default, and begins anew where it is told to.
#[test]
fn out_of_range() {
    let broker = Broker::start();
    block_on(async {
        let admin = topic(&broker, "t", 1).await;
        let producer = Producer::connect(ProducerSettings::new(broker.client())).await.expect("connected");
        for number in 0..5 {
            producer.send(Record::to("t").value(number.to_string())).await.expect("taken");
        }
        producer.flush().await.expect("delivered");
        let at = TopicPartition::new("t", 0);
        assert_eq!(admin.delete_records(&at, 3).await.expect("deleted"), 3);
        let mut consumer =
            Consumer::connect(ConsumerSettings::new(broker.client())).await.expect("connected");
        consumer.assign(&[(at.clone(), StartAt::Offset(1))]).await.expect("assigned");
        let error = consumer.poll(WAIT).await.expect_err("gone");
        assert!(matches!(error, ConsumerError::OutOfRange { offset: 1, .. }), "{error}");
        let settings = ConsumerSettings::new(broker.client()).offset_reset(OffsetReset::Earliest);
        let mut consumer = Consumer::connect(settings).await.expect("connected");
        consumer.assign(&[(at, StartAt::Offset(1))]).await.expect("assigned");
        assert_eq!(values(&mut consumer, 2).await, ["3", "4"]);
    });
}

/// Proves that settings of a topic can be read, changed and reset, and that bad ones are refused by name.
#[test]
fn configs() {
    let broker = Broker::start();
    block_on(async {
        let admin = topic(&broker, "t", 1).await;
        let resource = ConfigResource::Topic(Text::from("t"));
        let name = Text::from("retention.ms");
        let change = |operation, value: Option<&str>| AlterConfig {
            name: name.clone(),
            operation,
            value: value.map(Text::from),
        };
        admin.alter_configs(&resource, &[change(ConfigOperation::Set, Some("1000"))]).await.expect("changed");
        let configs = admin.describe_configs(&resource).await.expect("described");
        let found = configs.iter().find(|config| config.name == name).expect("listed");
        assert!(found.value.as_ref().is_some_and(|value| value == "1000") && !found.is_default, "{found:?}");
        let bad = admin.alter_configs(&resource, &[change(ConfigOperation::Set, Some("soon"))]).await;
        assert!(bad.expect_err("refused").code().is_some());
        admin.alter_configs(&resource, &[change(ConfigOperation::Delete, None)]).await.expect("reset");
        let configs = admin.describe_configs(&resource).await.expect("described");
        assert!(configs.iter().any(|config| config.name == name && config.is_default));
    });
}
