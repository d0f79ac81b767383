//! The exact check: per key the numbers 0, 1, 2, ... without gap, repetition or swap, read anew from the beginning.

#[cfg(test)]
mod tests;

use std::time::Duration;

use ottla_client::{
    ClientSettings, Consumer, ConsumerRecord, ConsumerSettings, IsolationLevel, StartAt, TopicPartition,
};
use ottla_env::time;

use super::{Failure, KEYS, PARTITIONS, POLL};

/// Longest that a whole topic is read.
const READING: Duration = Duration::from_secs(120);

/// A consumer at the beginning of a topic.
pub(crate) async fn reader(
    settings: &ClientSettings,
    topic: &str,
    is_committed: bool,
) -> Result<Consumer, Failure> {
    let isolation =
        if is_committed { IsolationLevel::ReadCommitted } else { IsolationLevel::ReadUncommitted };
    let settings = ConsumerSettings::new(settings.clone()).isolation(isolation).max_poll_records(5000);
    let mut consumer = Consumer::connect(settings).await?;
    consumer.assign_topic(&topic.into(), StartAt::Beginning).await?;
    Ok(consumer)
}

/// The next records; none when there are none, or the broker is away.
pub(crate) async fn poll(consumer: &mut Consumer, wait: Duration) -> Result<Vec<ConsumerRecord>, Failure> {
    match consumer.poll(wait).await {
        Err(error) if error.is_retriable() => Ok(Vec::new()),
        outcome => Ok(outcome?),
    }
}

/// Everything up to the end that there is now.
async fn read_all(
    settings: &ClientSettings,
    topic: &str,
    is_committed: bool,
) -> Result<Vec<ConsumerRecord>, Failure> {
    let mut consumer = reader(settings, topic, is_committed).await?;
    let all: Vec<_> = (0..PARTITIONS).map(|partition| TopicPartition::new(topic, partition)).collect();
    let ends = consumer.end_offsets(&all).await?;
    let mut records = Vec::new();
    let deadline = time::now() + READING;
    while ends.iter().any(|(at, end)| consumer.position(at).is_none_or(|position| position < *end)) {
        records.extend(poll(&mut consumer, POLL).await?);
        if time::now() > deadline {
            return Err(format!("{topic} cannot be read to its end within {} s", READING.as_secs()).into());
        }
    }
    consumer.close().await?;
    Ok(records)
}

/// What came out.
#[derive(Default)]
pub(crate) struct Judgement {
    read: usize,
    read_uncommitted: usize,
    lost: u64,
    twice: u64,
    out_of_order: u64,
    /// Nobody has written this.
    invented: u64,
}

impl Judgement {
    /// Reads the topic and compares; `sent` is the count of each key.
    pub(crate) async fn of(settings: &ClientSettings, topic: &str, sent: &[u64]) -> Result<Self, Failure> {
        let records = read_all(settings, topic, true).await?;
        let uncommitted = read_all(settings, topic, false).await?;
        let numbers = |record: &ConsumerRecord| -> Option<(i32, usize, u64)> {
            let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<u64>().ok();
            let key = usize::try_from(number(record.key.as_deref()?)?).ok()?;
            Some((record.topic_partition.partition, key, number(record.value.as_deref()?)?))
        };
        let mut judgement = Self::judge(records.iter().map(numbers), sent);
        (judgement.read, judgement.read_uncommitted) = (records.len(), uncommitted.len());
        Ok(judgement)
    }

    /// Judges partition, key and number of each record, in the order of the partitions.
    fn judge(records: impl Iterator<Item = Option<(i32, usize, u64)>>, sent: &[u64]) -> Self {
        let mut judgement = Self::default();
        let mut seen: Vec<Vec<bool>> =
            sent.iter().map(|count| vec![false; usize::try_from(*count).unwrap_or(usize::MAX)]).collect();
        let mut next = [0; KEYS];
        for record in records {
            let place = record.filter(|(partition, key, _)| {
                i32::try_from(key % KEYS).is_ok_and(|key| key % PARTITIONS == *partition)
            });
            let place = place.and_then(|(_, key, number)| {
                let index = usize::try_from(number).ok()?;
                seen.get_mut(key)?.get_mut(index).map(|seen| (seen, key, number))
            });
            match place {
                None => judgement.invented += 1,
                Some((true, ..)) => judgement.twice += 1,
                Some((seen, key, number)) => {
                    *seen = true;
                    judgement.out_of_order += u64::from(number < next[key]);
                    next[key] = number + 1;
                }
            }
        }
        judgement.lost = seen.iter().flatten().filter(|seen| !**seen).count() as u64;
        judgement
    }

    pub(crate) fn is_exact(&self) -> bool {
        (self.lost, self.twice, self.out_of_order, self.invented) == (0, 0, 0, 0)
    }

    /// As fields of a JSON object.
    pub(crate) fn counts(&self) -> String {
        let Self { read, read_uncommitted, lost, twice, out_of_order, invented } = self;
        format!(
            "\"read\": {read}, \"read_uncommitted\": {read_uncommitted}, \"lost\": {lost}, \"twice\": {twice}, \
             \"out_of_order\": {out_of_order}, \"invented\": {invented}"
        )
    }
}
