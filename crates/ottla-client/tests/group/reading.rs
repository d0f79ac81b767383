//! What a consumer returns: in which isolation, from where, held back or not, and how far behind it is.

use std::time::Duration;

use ottla_client::{
    Consumer, ConsumerSettings, IsolationLevel, Lag, Record, StartAt, TopicPartition, TransactionalProducer,
    TransactionalSettings,
};
use ottla_env::time;

use super::support::*;

fn at(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

/// Proves that lag tells what is behind from what an open transaction hides, in both isolation levels.
#[test]
fn lag() {
    with_broker(|client| async move {
        topic(&client, "t", 1).await;
        fill(&client, "t", 1, 0, 5).await;
        let settings = TransactionalSettings::new(client.clone(), "open");
        let mut producer = TransactionalProducer::init(settings).await.expect("taken over");
        let transaction = producer.begin().await.expect("begun");
        for number in 0..3 {
            drop(
                transaction
                    .send(Record::to("t").partition(0).value(number.to_string()))
                    .await
                    .expect("taken"),
            );
        }
        transaction.flush().await.expect("written");
        for (isolation, behind, hidden) in
            [(IsolationLevel::ReadCommitted, 3, 3), (IsolationLevel::ReadUncommitted, 6, 0)]
        {
            let settings = ConsumerSettings::new(client.clone()).isolation(isolation).max_poll_records(2);
            let mut consumer = Consumer::connect(settings).await.expect("connected");
            consumer.assign(&[(at(0), StartAt::Beginning)]).await.expect("assigned");
            assert_eq!(consumer.lag(&at(0)), None);
            drive(&mut [&mut consumer], |_, values| !values.is_empty()).await;
            assert_eq!(consumer.lag(&at(0)), Some(Lag { behind, hidden }), "{isolation:?}");
        }
        transaction.abort().await.expect("aborted");
        producer.close().await.expect("closed");
    });
}

/// Proves that paused partitions return nothing and lose nothing, though they were fetched ahead.
#[test]
fn pausing() {
    with_broker(|client| async move {
        topic(&client, "t", 2).await;
        fill(&client, "t", 2, 0, 100).await;
        let settings = ConsumerSettings::new(client.clone()).max_poll_records(10);
        let mut consumer = Consumer::connect(settings).await.expect("connected");
        consumer.assign(&[(at(0), StartAt::Beginning), (at(1), StartAt::Beginning)]).await.expect("assigned");
        let mut values = drive(&mut [&mut consumer], |_, values| !values.is_empty()).await;
        consumer.pause(&[at(0)]).expect("assigned");
        assert_eq!(consumer.paused(), [at(0)]);
        let paused_at = consumer.position(&at(0));
        values
            .extend(drive(&mut [&mut consumer], |members, _| members[0].position(&at(1)) == Some(100)).await);
        assert_eq!(consumer.position(&at(0)), paused_at);
        consumer.resume(&[at(0)]).expect("assigned");
        values
            .extend(drive(&mut [&mut consumer], |members, _| members[0].position(&at(0)) == Some(100)).await);
        let mut distinct = values.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!((values.len(), distinct.len()), (200, 200));
        assert!(consumer.pause(&[at(7)]).is_err());
    });
}

/// Proves that polls that are dropped at any moment lose and repeat nothing, positions that are reset included.
#[test]
fn dropped_polls() {
    with_broker(|client| async move {
        topic(&client, "t", 3).await;
        fill(&client, "t", 3, 0, 300).await;
        let (mut consumer, _) = member(settings(&client, "g").max_poll_records(7), &["t"]).await;
        let mut values = Vec::new();
        let deadline = time::now() + LIMIT;
        for step in 0_u64.. {
            assert!(time::now() < deadline, "{} values", values.len());
            let wait = Duration::from_micros(step * 37 % 900);
            // the future is dropped when the time is over, wherever it is
            if let Ok(records) = time::timeout(wait, consumer.poll(Duration::from_secs(1))).await {
                for record in records.expect("read") {
                    let value = String::from_utf8_lossy(&record.value.expect("a value")).into_owned();
                    values
                        .push((record.topic_partition.partition, value.parse::<usize>().expect("a number")));
                }
            }
            if values.len() >= 900 {
                break;
            }
        }
        for partition in 0..3 {
            let numbers: Vec<usize> =
                values.iter().filter(|(of, _)| *of == partition).map(|(_, number)| *number).collect();
            assert_eq!(numbers, (0..300).collect::<Vec<_>>(), "partition {partition}");
        }
    });
}

/// Proves that what paused partitions hold in the buffer does not keep the others from being read.
#[test]
fn paused_and_full() {
    with_broker(|client| async move {
        topic(&client, "t", 9).await;
        fill(&client, "t", 9, 0, 1000).await;
        let mut settings = ConsumerSettings::new(client.clone()).max_poll_records(1);
        settings.set("queued.max.messages.kbytes", "64").expect("known");
        let mut consumer = Consumer::connect(settings).await.expect("connected");
        consumer.assign_topic(&"t".into(), StartAt::Beginning).await.expect("assigned");
        drive(&mut [&mut consumer], |members, _| members[0].metrics().queued_bytes > 60_000).await;
        let held: Vec<TopicPartition> = (0..8).map(at).collect();
        consumer.pause(&held).expect("assigned");
        assert!(consumer.metrics().queued_bytes > 50_000, "{:?}", consumer.metrics());
        fill(&client, "t", 9, 1000, 1500).await;
        drive(&mut [&mut consumer], |members, _| members[0].position(&at(8)) == Some(1500)).await;
    });
}

/// Proves that the buffer is bounded: with room for little, a slow reader still reads everything in order.
#[test]
fn small_buffers() {
    with_broker(|client| async move {
        topic(&client, "t", 4).await;
        fill(&client, "t", 4, 0, 400).await;
        let mut settings =
            ConsumerSettings::new(client.clone()).max_poll_records(20).partition_fetch_bytes(1024);
        settings.set("queued.max.messages.kbytes", "64").expect("known");
        let mut consumer = Consumer::connect(settings).await.expect("connected");
        consumer.assign_topic(&"t".into(), StartAt::Beginning).await.expect("assigned");
        let values = drive(&mut [&mut consumer], |members, values| {
            // one fetch may come on top of what the setting allows
            assert!(members[0].metrics().queued_bytes < 2 * (64 << 10), "{:?}", members[0].metrics());
            values.len() >= 1600
        })
        .await;
        for partition in 0..4 {
            let prefix = format!("{partition}:");
            let numbers: Vec<&str> = values.iter().filter_map(|value| value.strip_prefix(&prefix)).collect();
            let expected: Vec<String> = (0..400).map(|number| number.to_string()).collect();
            assert_eq!(numbers, expected, "partition {partition}");
        }
    });
}
