//! Codecs, keys, headers, and records that are too large.

use std::collections::BTreeSet;

use bytes::Bytes;
use ottla_client::{Codec, ConsumerRecord, DeliveryError, Record};
use ottla_env::clock::{Clock, OsClock};
use ottla_protocol::error::ErrorCode;

use super::harness::{COMMITTED, COMMITTED_AND_QUIET, Failure, Reading, Suite, check, record, values};

/// What is written with a codec is read.
pub(crate) async fn codec(suite: &Suite, codec: Codec) -> Result<(), Failure> {
    let (topic, values) = (suite.topic(1, &[]).await?, values(200, &"compressible ".repeat(10)));
    suite.fill(&topic, &values, codec).await?;
    suite.expect(&topic, &values, COMMITTED).await
}

/// A key has one partition; absent and empty keys and values stay what they are.
pub(crate) async fn keys(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(4, &[]).await?;
    let producer = suite.producer(Codec::None).await?;
    for number in 0..40 {
        let record = Record::to(topic.as_str()).key(format!("k{}", number % 4)).value(format!("v{number}"));
        drop(producer.send(record).await?);
    }
    drop(producer.send(Record::to(topic.as_str()).value("no key")).await?);
    drop(producer.send(Record::to(topic.as_str()).key("tombstone")).await?);
    drop(producer.send(Record::to(topic.as_str()).key("").value("")).await?);
    producer.flush().await?;
    let read = suite.read(&topic, 43, Reading { partitions: 4, ..COMMITTED }).await?;
    check(read.len() == 43, || format!("expected 43 records, got {}", read.len()))?;
    for key in ["k0", "k1", "k2", "k3"] {
        let of_key: Vec<&ConsumerRecord> =
            read.iter().filter(|r| r.key.as_deref() == Some(key.as_bytes())).collect();
        let partitions: BTreeSet<i32> = of_key.iter().map(|r| r.topic_partition.partition).collect();
        check(of_key.len() == 10 && partitions.len() == 1, || {
            "records of one key in several partitions".to_owned()
        })?;
    }
    let keys_of = |value: &[u8]| -> Vec<Option<Bytes>> {
        read.iter().filter(|r| r.value.as_deref() == Some(value)).map(|r| r.key.clone()).collect()
    };
    let values_of = |key: &[u8]| -> Vec<Option<Bytes>> {
        read.iter().filter(|r| r.key.as_deref() == Some(key)).map(|r| r.value.clone()).collect()
    };
    check(keys_of(b"no key") == [None], || "null key changed".to_owned())?;
    check(values_of(b"tombstone") == [None], || "null value changed".to_owned())?;
    check(values_of(b"") == [Some(Bytes::new())], || "empty key or value changed".to_owned())
}

/// Headers keep order, repetition and empty values.
pub(crate) async fn headers(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(1, &[]).await?;
    let sent =
        record(&topic, "v").header("a", "1").header("a", "2").header("empty", "").header("b", "\u{e9}");
    let producer = suite.producer(Codec::None).await?;
    drop(producer.send(sent.clone()).await?);
    producer.flush().await?;
    let read = suite.read(&topic, 1, COMMITTED).await?;
    check(read.first().is_some_and(|read| read.headers == sent.headers), || {
        format!("headers changed: {:?}", read.first().map(|read| &read.headers))
    })
}

/// Many records, each once and in order.
pub(crate) async fn idempotent(suite: &Suite) -> Result<(), Failure> {
    let (topic, values) = (suite.topic(1, &[]).await?, values(500, "value"));
    suite.fill(&topic, &values, Codec::None).await?;
    suite.expect(&topic, &values, COMMITTED_AND_QUIET).await
}

/// A record that the topic does not take is refused as such, and the producer goes on.
pub(crate) async fn too_large(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(1, &[("max.message.bytes", "10000")]).await?;
    let producer = suite.producer(Codec::None).await?;
    drop(producer.send(Record::to(topic.as_str()).partition(0).value(noise(50_000))).await?);
    match producer.flush().await {
        Err(DeliveryError::Refused { code: ErrorCode::MessageTooLarge, .. }) => {}
        Err(error) => return Err(format!("unexpected error {error}").into()),
        Ok(()) => return Err("no error".into()),
    }
    drop(producer.send(record(&topic, "small")).await?);
    producer.flush().await?;
    suite.expect(&topic, &["small"], COMMITTED).await
}

/// Bytes that do not compress.
fn noise(count: usize) -> Vec<u8> {
    let mut state = OsClock.wall_ms().unsigned_abs() | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..count).map(|_| next()).collect()
}
