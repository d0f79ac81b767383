//! What the writers did and what they were told; and whether logs agree with it. Pure.

use std::collections::BTreeMap;

use ottla_client::TopicPartition;

/// What became of a transaction, as its writer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The commit was acknowledged.
    Committed,
    /// The abort was acknowledged.
    Aborted,
    /// The writer crashed: all or nothing.
    Unknown,
}

/// A record of an idempotent writer.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    /// Writer of a round.
    pub(super) writer: String,
    /// Its how manieth.
    pub(super) number: u64,
    pub(super) partition: i32,
    /// Where the broker said that it is.
    pub(super) offset: i64,
}

/// A transaction.
#[derive(Clone, Debug)]
pub(super) struct Transacted {
    /// Its writer, the same in all rounds: the name of its group too.
    pub(super) writer: String,
    /// Grows with the writer's transactions; also the offset that it commits.
    pub(super) number: u64,
    /// Where its records went.
    pub(super) records: Vec<TopicPartition>,
    pub(super) outcome: Outcome,
}

/// Everything that was done.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Acknowledged records.
    pub(super) plain: Vec<Plain>,
    pub(super) transactions: Vec<Transacted>,
    /// Writers that were refused something that they had a right to.
    pub(super) failures: Vec<String>,
}

/// A record as found: who wrote it, its number, which of the transaction's records it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) at: TopicPartition,
    pub(super) offset: i64,
    pub(super) id: Id,
}

/// What a value says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) writer: String,
    pub(super) number: u64,
    pub(super) index: usize,
}

impl Id {
    /// As the value of a record.
    pub(super) fn value(&self) -> String {
        format!("{} {} {}", self.writer, self.number, self.index)
    }

    /// From the value of a record.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(value).ok()?.split(' ');
        let id = Self {
            writer: words.next()?.to_owned(),
            number: words.next()?.parse().ok()?,
            index: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(id)
    }
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Logs {
    /// Records of the plain topic, in order of each partition.
    pub(super) plain: Vec<Found>,
    /// What readers of committed records see of the other topics.
    pub(super) committed: Vec<Found>,
    /// What readers of everything see of them.
    pub(super) all: Vec<Found>,
    /// Committed offset per writer.
    pub(super) offsets: BTreeMap<String, Option<i64>>,
}

impl History {
    /// Adds another round.
    pub(super) fn add(&mut self, other: &Self) {
        self.plain.extend(other.plain.iter().cloned());
        self.transactions.extend(other.transactions.iter().cloned());
    }

    /// What is wrong in the logs.
    pub(super) fn judge(&self, logs: &Logs) -> Vec<String> {
        let mut violations = Vec::new();
        self.judge_plain(&logs.plain, &mut violations);
        let visible = self.judge_transactions(logs, &mut violations);
        self.judge_offsets(&visible, &logs.offsets, &mut violations);
        judge_order(&logs.plain, &mut violations);
        judge_order(&logs.committed, &mut violations);
        violations
    }

    fn judge_plain(&self, found: &[Found], violations: &mut Vec<String>) {
        let mut by_id: BTreeMap<(&str, u64), Vec<(i32, i64)>> = BTreeMap::new();
        for found in found {
            let place = (found.at.partition, found.offset);
            by_id.entry((&found.id.writer, found.id.number)).or_default().push(place);
        }
        for record in &self.plain {
            let name = format!("record {} of {}", record.number, record.writer);
            match by_id.remove(&(record.writer.as_str(), record.number)).as_deref() {
                None => violations.push(format!("{name} is lost")),
                Some([(partition, offset)]) => {
                    if *partition != record.partition || (record.offset >= 0 && *offset != record.offset) {
                        violations.push(format!(
                            "{name} is at {partition}@{offset}, acknowledged was {}@{}",
                            record.partition, record.offset
                        ));
                    }
                }
                Some(places) => violations.push(format!("{name} is there {} times", places.len())),
            }
        }
        violations.extend(by_id.keys().map(|(writer, number)| {
            format!("record {number} of {writer} was never acknowledged, although every writer finished")
        }));
    }

    /// Judges the transactions; per writer the number of its last visible one.
    fn judge_transactions(&self, logs: &Logs, violations: &mut Vec<String>) -> BTreeMap<&str, u64> {
        let mut by_transaction: BTreeMap<(&str, u64), Vec<(usize, &TopicPartition)>> = BTreeMap::new();
        for found in &logs.committed {
            let records = by_transaction.entry((&found.id.writer, found.id.number)).or_default();
            records.push((found.id.index, &found.at));
        }
        let mut known = std::collections::BTreeSet::new();
        let mut visible = BTreeMap::new();
        for transaction in &self.transactions {
            let key = (transaction.writer.as_str(), transaction.number);
            known.insert(key);
            let mut seen = by_transaction.remove(&key).unwrap_or_default();
            seen.sort_unstable();
            let whole: Vec<(usize, &TopicPartition)> = transaction.records.iter().enumerate().collect();
            let name = format!(
                "transaction {} of {} ({:?})",
                transaction.number, transaction.writer, transaction.outcome
            );
            match transaction.outcome {
                Outcome::Committed | Outcome::Unknown if seen == whole => {
                    visible.insert(transaction.writer.as_str(), transaction.number);
                }
                Outcome::Aborted | Outcome::Unknown if seen.is_empty() => {}
                _ => violations.push(format!("{name} shows {} of {} records", seen.len(), whole.len())),
            }
        }
        violations.extend(
            by_transaction
                .keys()
                .map(|(writer, number)| format!("transaction {number} of {writer} was never begun")),
        );
        let strange =
            logs.all.iter().filter(|found| !known.contains(&(found.id.writer.as_str(), found.id.number)));
        violations.extend(
            strange.map(|found| {
                format!("{} at {}@{} was never written", found.id.value(), found.at, found.offset)
            }),
        );
        visible
    }

    fn judge_offsets(
        &self,
        visible: &BTreeMap<&str, u64>,
        offsets: &BTreeMap<String, Option<i64>>,
        violations: &mut Vec<String>,
    ) {
        for (writer, last) in visible {
            let committed = offsets.get(*writer).copied().flatten();
            if committed != i64::try_from(*last).ok() {
                violations.push(format!(
                    "the offset of {writer} is {committed:?}, its last visible transaction is {last}"
                ));
            }
        }
    }
}

/// A writer's records stand in a partition in the order they were written in.
fn judge_order(found: &[Found], violations: &mut Vec<String>) {
    let mut last: BTreeMap<(&TopicPartition, &str), (u64, usize)> = BTreeMap::new();
    for found in found {
        let place = (found.id.number, found.id.index);
        let before = last.insert((&found.at, &found.id.writer), place);
        if before.is_some_and(|before| before >= place) {
            violations.push(format!(
                "{} stands behind a later record at {}@{}",
                found.id.value(),
                found.at,
                found.offset
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    fn found(partition: i32, offset: i64, writer: &str, number: u64, index: usize) -> Found {
        Found { at: at(partition), offset, id: Id { writer: writer.to_owned(), number, index } }
    }

    fn transacted(number: u64, outcome: Outcome) -> Transacted {
        Transacted { writer: "w".to_owned(), number, records: vec![at(0), at(1)], outcome }
    }

    /// Proves that plain records must be there once, where they were acknowledged, in order.
    #[test]
    fn plain_records() {
        let plain = |number, offset| Plain { writer: "p".to_owned(), number, partition: 0, offset };
        let history = History { plain: vec![plain(0, 0), plain(1, 1)], ..History::default() };
        let judge = |found: Vec<Found>| history.judge(&Logs { plain: found, ..Logs::default() });
        assert_eq!(judge(vec![found(0, 0, "p", 0, 0), found(0, 1, "p", 1, 0)]), Vec::<String>::new());
        let lost = judge(vec![found(0, 0, "p", 0, 0)]);
        assert!(lost.len() == 1 && lost[0].contains("lost"), "{lost:?}");
        let twice = judge(vec![found(0, 0, "p", 0, 0), found(0, 1, "p", 1, 0), found(0, 2, "p", 1, 0)]);
        assert!(
            twice.iter().any(|v| v.contains("2 times")) && twice.iter().any(|v| v.contains("behind")),
            "{twice:?}"
        );
        let moved = judge(vec![found(0, 0, "p", 0, 0), found(0, 5, "p", 1, 0)]);
        assert!(moved[0].contains("acknowledged was 0@1"), "{moved:?}");
    }

    /// Proves that transactions are judged as a whole, with their offset, whatever their outcome.
    #[test]
    fn transactions() {
        let history = |outcome| History { transactions: vec![transacted(7, outcome)], ..History::default() };
        let whole = vec![found(0, 0, "w", 7, 0), found(1, 0, "w", 7, 1)];
        let logs = |committed: &[Found], offset| Logs {
            committed: committed.to_vec(),
            all: whole.clone(),
            offsets: [("w".to_owned(), offset)].into(),
            ..Logs::default()
        };
        assert!(history(Outcome::Committed).judge(&logs(&whole, Some(7))).is_empty());
        assert!(history(Outcome::Unknown).judge(&logs(&whole, Some(7))).is_empty());
        assert!(history(Outcome::Unknown).judge(&logs(&[], None)).is_empty());
        assert!(history(Outcome::Aborted).judge(&logs(&[], None)).is_empty());
        for (outcome, shown, offset) in [
            (Outcome::Committed, &whole[..1], Some(7)),
            (Outcome::Committed, &whole[..], Some(6)),
            (Outcome::Committed, &[], None),
            (Outcome::Unknown, &whole[1..], Some(7)),
            (Outcome::Aborted, &whole[..], Some(7)),
        ] {
            assert_eq!(
                history(outcome).judge(&logs(shown, offset)).len(),
                1,
                "{outcome:?} {shown:?} {offset:?}"
            );
        }
        assert_eq!(History::default().judge(&logs(&[], None)).len(), 2, "invented records");
    }
}
