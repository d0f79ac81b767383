//! Groups, committed offsets, and where reading begins.

use std::time::Duration;

use ottla_client::{Codec, Consumer, IsolationLevel, OffsetToCommit, StartAt, TopicPartition};
use ottla_env::clock::{Clock, OsClock};

use super::harness::{
    COMMITTED, Failure, Suite, check, collect, committed, first, name, record, text, until, values,
};

const POLL: Duration = Duration::from_millis(300);

async fn all_of_it(member: &mut Consumer, seconds: u64, what: &str) -> Result<(), Failure> {
    until(seconds, what, async || {
        member.poll(POLL).await?;
        Ok(member.assignment().len() == 4)
    })
    .await
}

/// Two members share four partitions, and one takes over when the other leaves.
pub(crate) async fn rebalance(suite: &Suite) -> Result<(), Failure> {
    let (topic, group) = (suite.topic(4, &[]).await?, name("g"));
    let mut one = suite.member(&group, &topic).await?;
    all_of_it(&mut one, 30, "4 partitions for the first member").await?;
    let mut two = suite.member(&group, &topic).await?;
    until(40, "2 partitions for each member", async || {
        one.poll(POLL).await?;
        two.poll(POLL).await?;
        Ok(one.assignment().len() == 2 && two.assignment().len() == 2)
    })
    .await?;
    let theirs: Vec<TopicPartition> = two.assignment();
    let twice = one.assignment().into_iter().any(|mine| theirs.contains(&mine));
    check(!twice, || "a partition with two owners".to_owned())?;
    two.close().await?;
    all_of_it(&mut one, 40, "4 partitions after the second left").await?;
    one.close().await?;
    Ok(())
}

/// A member begins where the last one has committed.
pub(crate) async fn commit_resume(suite: &Suite) -> Result<(), Failure> {
    let (topic, group) = (suite.topic(1, &[]).await?, name("g"));
    suite.fill(&topic, &values(10, "value"), Codec::None).await?;
    let mut consumer = suite.member(&group, &topic).await?;
    collect(&mut consumer, 10, 30).await?;
    consumer.commit_offsets(&[OffsetToCommit::new(first(&topic), 6)]).await?;
    consumer.close().await?;
    let mut consumer = suite.member(&group, &topic).await?;
    let read = collect(&mut consumer, 4, 30).await?;
    let found = committed(&consumer, &group, &topic).await?;
    check(found == Some(6), || format!("committed offset {found:?}"))?;
    consumer.close().await?;
    let offsets: Vec<i64> = read.iter().map(|read| read.offset).collect();
    check(offsets == [6, 7, 8, 9], || format!("resumed at {offsets:?}"))
}

/// Offsets are found by time, and reading goes on there.
pub(crate) async fn seek_timestamp(suite: &Suite) -> Result<(), Failure> {
    let (topic, base) = (suite.topic(1, &[]).await?, OsClock.wall_ms() - 100_000);
    let producer = suite.producer(Codec::None).await?;
    for number in 0..10 {
        let record = record(&topic, &number.to_string()).timestamp(base + number * 1000);
        drop(producer.send(record).await?);
    }
    producer.flush().await?;
    let mut consumer = suite.consumer(None, IsolationLevel::ReadCommitted).await?;
    consumer.assign(&[(first(&topic), StartAt::Offset(0))]).await?;
    let found = consumer.offsets_for_times(&[(first(&topic), base + 4500)]).await?;
    let offset = found.get(&first(&topic)).copied().flatten().map(|found| found.offset);
    check(offset == Some(5), || format!("offset for the time: {offset:?}"))?;
    consumer.seek(&first(&topic), 5)?;
    let read = collect(&mut consumer, 5, 20).await?;
    let begin = &read[0];
    check(text(begin) == "5" && begin.timestamp == base + 5000, || format!("first record {begin:?}"))?;
    consumer.close().await?;
    Ok(())
}

/// Deleted records are gone, the others keep their offsets.
pub(crate) async fn delete_records(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(1, &[]).await?;
    suite.fill(&topic, &values(10, "value"), Codec::None).await?;
    suite.admin.delete_records(&first(&topic), 6).await?;
    let read = suite.read(&topic, 4, COMMITTED).await?;
    let offsets: Vec<i64> = read.iter().map(|read| read.offset).collect();
    check(offsets == [6, 7, 8, 9], || format!("offsets left: {offsets:?}"))
}

/// A position outside of the log starts over at the beginning.
pub(crate) async fn offset_reset(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(1, &[]).await?;
    suite.fill(&topic, &values(5, "value"), Codec::None).await?;
    let mut consumer = suite.consumer(None, IsolationLevel::ReadCommitted).await?;
    consumer.assign(&[(first(&topic), StartAt::Offset(0))]).await?;
    consumer.seek(&first(&topic), 1000)?;
    let read = collect(&mut consumer, 5, 30).await?;
    check(read[0].offset == 0, || format!("reset to {}", read[0].offset))?;
    consumer.close().await?;
    Ok(())
}
