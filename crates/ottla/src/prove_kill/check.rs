//! Reads the logs behind a round and has the history judge them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use ottla_client::{Consumer, ConsumerSettings, IsolationLevel, StartAt, TopicPartition};
use ottla_env::time;
use ottla_protocol::types::Text;

use super::history::{Found, History, Id, Logs};
use super::{PARTITIONS, PLAIN, TRANSACTED};
use crate::broker_process::client;

/// Longest that reading may stand still: no transaction is open when it begins.
const QUIET_MAX: Duration = Duration::from_secs(20);

/// Reads the logs.
pub(super) struct Checker {
    committed: Consumer,
    all: Consumer,
    /// Where each partition was read to.
    from: BTreeMap<TopicPartition, i64>,
}

impl Checker {
    pub(super) async fn connect(bootstrap: &str) -> Result<Self> {
        let settings = ConsumerSettings::new(client(bootstrap, "prove-check")?)
            .max_poll_records(10_000)
            .fetch_max_wait(Duration::from_millis(50));
        let committed = Consumer::connect(settings.clone().isolation(IsolationLevel::ReadCommitted)).await?;
        let all = Consumer::connect(settings.isolation(IsolationLevel::ReadUncommitted)).await?;
        let mut checker = Self { committed, all, from: BTreeMap::new() };
        checker.rewind();
        Ok(checker)
    }

    /// The next check reads everything.
    pub(super) fn rewind(&mut self) {
        let topics = TRANSACTED.iter().chain([&PLAIN]);
        let partitions =
            topics.flat_map(|topic| (0..PARTITIONS).map(|index| TopicPartition::new(*topic, index)));
        self.from = partitions.map(|at| (at, 0)).collect();
    }

    /// Up to where each partition was read.
    pub(super) fn read_to(&self) -> BTreeMap<TopicPartition, i64> {
        self.from.clone()
    }

    /// Reads on to the end and says what is wrong.
    pub(super) async fn check(&mut self, history: &History) -> Result<Vec<String>> {
        let partitions: Vec<_> = self.from.keys().cloned().collect();
        let ends = self.all.end_offsets(&partitions).await?;
        let mut violations = Vec::new();
        let mut logs = Logs::default();
        let committed = read(&mut self.committed, &self.from, &ends, &mut violations).await?;
        let all = read(&mut self.all, &self.from, &ends, &mut violations).await?;
        let is_plain = |found: &Found| found.at.topic == PLAIN;
        violations.extend(difference(
            committed.iter().filter(|found| is_plain(found)),
            all.iter().filter(|found| is_plain(found)),
        ));
        (logs.plain, logs.all) = all.into_iter().partition(is_plain);
        logs.committed = committed.into_iter().filter(|found| !is_plain(found)).collect();
        let at = TopicPartition::new(TRANSACTED[0], 0);
        for transaction in &history.transactions {
            if !logs.offsets.contains_key(&transaction.writer) {
                let group = Text::from(transaction.writer.as_str());
                let committed = self.committed.committed(&group, std::slice::from_ref(&at)).await?;
                logs.offsets
                    .insert(transaction.writer.clone(), committed.first().and_then(|found| found.offset));
            }
        }
        self.from = ends;
        violations.extend(history.judge(&logs));
        Ok(violations)
    }
}

/// Plain records look the same to both kinds of readers. Only the order within a partition is given: how the
/// partitions of one read interleave is chance.
fn difference<'a>(
    committed: impl Iterator<Item = &'a Found>,
    all: impl Iterator<Item = &'a Found>,
) -> Option<String> {
    let place = |found: &'a Found| ((&found.at, found.offset), &found.id);
    let (committed, all): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (committed.map(place).collect(), all.map(place).collect());
    let only_committed = committed.iter().find(|(place, id)| all.get(*place) != Some(*id));
    let only_all = all.iter().find(|(place, id)| committed.get(*place) != Some(*id));
    let ((at, offset), _) = only_committed.or(only_all)?;
    Some(format!(
        "{at}@{offset}: readers of committed records see {} plain records, readers of everything {}, and differ here",
        committed.len(),
        all.len()
    ))
}

/// Reads the partitions between two offsets, in order of each.
async fn read(
    consumer: &mut Consumer,
    from: &BTreeMap<TopicPartition, i64>,
    ends: &BTreeMap<TopicPartition, i64>,
    violations: &mut Vec<String>,
) -> Result<Vec<Found>> {
    let start: Vec<_> = from.iter().map(|(at, offset)| (at.clone(), StartAt::Offset(*offset))).collect();
    consumer.assign(&start).await?;
    let mut found = Vec::new();
    let mut progress_at = time::now();
    while ends.iter().any(|(at, end)| consumer.position(at).is_some_and(|position| position < *end)) {
        let records = consumer.poll(Duration::from_millis(100)).await?;
        if !records.is_empty() {
            progress_at = time::now();
        }
        for record in records {
            let (at, offset) = (record.topic_partition, record.offset);
            match record.value.as_deref().and_then(Id::parse) {
                Some(id) => found.push(Found { at, offset, id }),
                None => violations.push(format!("{at}@{offset} holds something that nobody wrote")),
            }
        }
        if progress_at.elapsed() > QUIET_MAX {
            bail!("reading stands still although no transaction should be open");
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(partition: i32, offset: i64) -> Found {
        let id = Id { writer: "w".to_owned(), number: offset.unsigned_abs(), index: 0 };
        Found { at: TopicPartition::new(PLAIN, partition), offset, id }
    }

    /// Proves: partitions may interleave in any way, a record that only one kind of reader sees is named.
    #[test]
    fn only_the_order_within_a_partition_counts() {
        let one = [found(0, 1), found(1, 1), found(0, 2)];
        let other = [found(1, 1), found(0, 1), found(0, 2)];
        assert_eq!(difference(one.iter(), other.iter()), None);
        let missing = difference(one.iter(), other[..2].iter()).expect("a difference");
        assert!(missing.contains(&format!("{}@2", TopicPartition::new(PLAIN, 0))), "{missing}");
    }
}
