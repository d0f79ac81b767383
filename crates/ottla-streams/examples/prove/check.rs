//! The exact check, of what is in the topics and in the state folders when everything has ended.
//!
//! Recomputed from the input: per key the counts of the output are 1, 2, 3, ... in this order, each with its sum. Each
//! store of each folder is the fold of its changelog below its position; one folder per store is at the changelog's
//! end, and is what the input gives. No recovery replays more than one transaction of what its process had written.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;

use super::application::{COUNTS, TOTALS};

/// Numbers of each key, in order.
pub(crate) type Input = BTreeMap<String, Vec<i64>>;
/// A store's entries, as bytes.
pub(crate) type Entries = BTreeMap<Bytes, Bytes>;

/// A change of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) key: String,
    pub(crate) count: i64,
    pub(crate) sum: i64,
}

/// A committed record of a changelog.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) offset: i64,
    pub(crate) key: Bytes,
    pub(crate) value: Option<Bytes>,
}

/// Committed changelog records by store and partition, in order.
pub(crate) type Changelogs = BTreeMap<(String, i32), Vec<Change>>;

/// A store in a state folder.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) store: String,
    pub(crate) partition: i32,
    pub(crate) position: i64,
    pub(crate) entries: Entries,
    /// The same as key, count and sum (no sum in the store of counts); absent = undecodable.
    pub(crate) totals: Vec<Option<(String, i64, Option<i64>)>>,
}

/// A task was brought to its boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    pub(crate) process: usize,
    /// As `SUBTOPOLOGY_PARTITION`.
    pub(crate) task: String,
    pub(crate) replayed: u64,
    /// Positions of its stores before and after.
    pub(crate) from: Vec<i64>,
    pub(crate) to: Vec<i64>,
}

impl Recovery {
    /// From what a process tells.
    pub(crate) fn read(process: usize, told: &Value) -> Option<Self> {
        let numbers =
            |value: &Value| value.as_array()?.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>();
        Some(Self {
            process,
            task: told["task"].as_str()?.to_owned(),
            replayed: told["replayed"].as_u64()?,
            from: numbers(&told["from"])?,
            to: numbers(&told["to"])?,
        })
    }
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Judgement {
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    pub(crate) out_of_order: u64,
    pub(crate) wrong_sums: u64,
    /// Nobody has fed this.
    pub(crate) invented: u64,
    /// Stores of folders.
    pub(crate) stores: u64,
    /// Not the fold of their changelog.
    pub(crate) stores_differ_from_changelog: u64,
    /// At the changelog's end in no folder.
    pub(crate) stores_incomplete: u64,
    /// Entries that the input does not give, or that are missing.
    pub(crate) entries_differ_from_input: u64,
    /// Recoveries of tasks with stores.
    pub(crate) recoveries: u64,
    /// Those of them whose process had the task before.
    pub(crate) recoveries_of_own: u64,
    pub(crate) replayed: u64,
    /// The most that was replayed by a process that had the task last.
    pub(crate) replayed_of_own_max: u64,
    /// The largest transaction, in records of one task's changelogs.
    pub(crate) transaction_max: u64,
    /// More than one transaction behind what the process had written.
    pub(crate) replayed_too_much: u64,
    /// Another number than the changelog has there.
    pub(crate) replayed_wrongly: u64,
    /// A store was behind where it had been.
    pub(crate) went_back: u64,
}

impl Judgement {
    pub(crate) fn of(
        input: &Input,
        output: &[Total],
        changelogs: &Changelogs,
        found: &[Found],
        recoveries: &[Recovery],
        stores: &[String],
    ) -> Self {
        let mut judgement = Self::default();
        judgement.judge_output(input, output);
        judgement.judge_stores(input, changelogs, found);
        judgement.judge_recoveries(changelogs, recoveries, stores);
        judgement
    }

    pub(crate) fn is_exact(&self) -> bool {
        let Self { lost, twice, out_of_order, wrong_sums, invented, .. } = self;
        let Self { stores_differ_from_changelog, stores_incomplete, entries_differ_from_input, .. } = self;
        let Self { replayed_too_much, replayed_wrongly, went_back, .. } = self;
        let output = [lost, twice, out_of_order, wrong_sums, invented];
        let stores = [stores_differ_from_changelog, stores_incomplete, entries_differ_from_input];
        let recoveries = [replayed_too_much, replayed_wrongly, went_back];
        output.into_iter().chain(stores).chain(recoveries).all(|faults| *faults == 0)
    }

    fn judge_output(&mut self, input: &Input, output: &[Total]) {
        let mut seen: BTreeMap<&str, Vec<bool>> =
            input.iter().map(|(key, numbers)| (key.as_str(), vec![false; numbers.len()])).collect();
        let mut last: BTreeMap<&str, i64> = BTreeMap::new();
        for Total { key, count, sum } in output {
            let index = usize::try_from(count - 1).ok();
            let place = index.and_then(|index| Some((index, seen.get_mut(key.as_str())?.get_mut(index)?)));
            match place {
                None => self.invented += 1,
                Some((_, true)) => self.twice += 1,
                Some((index, seen)) => {
                    *seen = true;
                    let before = last.insert(key, *count).unwrap_or(0);
                    self.out_of_order += u64::from(*count < before);
                    self.wrong_sums += u64::from(input[key][..=index].iter().sum::<i64>() != *sum);
                }
            }
        }
        self.lost = seen.values().flatten().filter(|seen| !**seen).count() as u64;
    }

    fn judge_stores(&mut self, input: &Input, changelogs: &Changelogs, found: &[Found]) {
        let mut expected: BTreeMap<(&str, &str), (i64, Option<i64>)> = BTreeMap::new();
        for (key, numbers) in input {
            let count = i64::try_from(numbers.len()).unwrap_or(i64::MAX);
            expected.insert((COUNTS, key), (count, None));
            expected.insert((TOTALS, key), (count, Some(numbers.iter().sum())));
        }
        for ((store, partition), changes) in changelogs {
            let end = changes.last().map_or(0, |change| change.offset + 1);
            let whole = |found: &&Found| {
                found.store == *store && found.partition == *partition && found.position >= end
            };
            let Some(whole) = found.iter().find(whole) else {
                self.stores_incomplete += 1;
                continue;
            };
            for entry in &whole.totals {
                let fits = entry.as_ref().is_some_and(|(key, count, sum)| {
                    expected.remove(&(store.as_str(), key.as_str())) == Some((*count, *sum))
                });
                self.entries_differ_from_input += u64::from(!fits);
            }
        }
        self.entries_differ_from_input += expected.len() as u64;
        for Found { store, partition, position, entries, .. } in found {
            self.stores += 1;
            let changes = changelogs.get(&(store.clone(), *partition)).map_or(&[][..], Vec::as_slice);
            let mut fold = Entries::new();
            for change in changes.iter().take_while(|change| change.offset < *position) {
                match &change.value {
                    Some(value) => drop(fold.insert(change.key.clone(), value.clone())),
                    None => drop(fold.remove(&change.key)),
                }
            }
            self.stores_differ_from_changelog += u64::from(fold != *entries);
        }
    }

    /// `stores`: names of a task's stores, in their order.
    fn judge_recoveries(&mut self, changelogs: &Changelogs, recoveries: &[Recovery], stores: &[String]) {
        let logs = |partition: i32| -> Vec<&[Change]> {
            let log = |store: &String| changelogs.get(&(store.clone(), partition));
            stores.iter().map(|store| log(store).map_or(&[][..], Vec::as_slice)).collect()
        };
        let tasks: BTreeMap<&str, Vec<&Recovery>> = recoveries
            .iter()
            .filter(|recovery| !recovery.to.is_empty())
            .fold(BTreeMap::new(), |mut tasks: BTreeMap<&str, Vec<&Recovery>>, recovery| {
                tasks.entry(&recovery.task).or_default().push(recovery);
                tasks
            });
        for (task, recoveries) in tasks {
            let partition = task.rsplit('_').next().and_then(|text| text.parse().ok()).unwrap_or(-1);
            let logs = logs(partition);
            let largest = logs.iter().map(|log| transactions(log).max().unwrap_or(0)).sum();
            self.transaction_max = self.transaction_max.max(largest);
            for (index, recovery) in recoveries.iter().enumerate() {
                self.judge_recovery(&logs, &recoveries, index, recovery);
            }
        }
    }

    fn judge_recovery(&mut self, logs: &[&[Change]], all: &[&Recovery], index: usize, recovery: &Recovery) {
        self.recoveries += 1;
        self.replayed += recovery.replayed;
        let pieces = |from: &[i64], to: &[i64]| -> Vec<Vec<Change>> {
            let piece = |(log, (from, to)): (&&[Change], (&i64, &i64))| {
                let within = |change: &&Change| (*from..*to).contains(&change.offset);
                log.iter().filter(within).cloned().collect()
            };
            logs.iter().zip(from.iter().zip(to)).map(piece).collect()
        };
        let there: usize = pieces(&recovery.from, &recovery.to).iter().map(Vec::len).sum();
        self.replayed_wrongly += u64::from(there as u64 != recovery.replayed);
        let Some(before) = all[..index].iter().rfind(|before| before.process == recovery.process) else {
            return;
        };
        self.recoveries_of_own += 1;
        self.went_back += u64::from(recovery.from.iter().zip(&before.to).any(|(from, had)| from < had));
        // what it had written: up to where another process went on
        let others = all.iter().filter(|other| {
            other.process != recovery.process
                && other.to.iter().zip(&before.to).all(|(other, had)| other >= had)
        });
        let taken = others.map(|other| &other.to).min();
        let own = taken.map_or(&recovery.to, |taken| taken.min(&recovery.to));
        let tail = pieces(&recovery.from, own);
        self.replayed_too_much += u64::from(tail.iter().any(|log| transactions(log).count() > 1));
        if own == &recovery.to {
            self.replayed_of_own_max = self.replayed_of_own_max.max(recovery.replayed);
        }
    }
}

/// How many records each transaction has: between two of them is a marker, which takes an offset.
fn transactions(log: &[Change]) -> impl Iterator<Item = u64> {
    log.chunk_by(|before, after| before.offset + 1 == after.offset).map(|chunk| chunk.len() as u64)
}
