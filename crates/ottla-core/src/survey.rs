//! A survey: what a shard's state holds, counted for the metrics.
//!
//! Place in the walk: beside it. The owner takes one step of a survey between its commands when somebody asks; a step
//! looks at a bounded part of the tables, so that nobody waits for a survey. What it finds is of different instants
//! when it took several steps, and rests on no position: it is a measurement, not an answer to a client.
//!
//! Invariants: it changes nothing. What it keeps is bounded by what the asker asked for.

use std::collections::BTreeMap;

use ottla_protocol::types::{Text, Uuid};

use crate::decision::ShardTime;
use crate::shard::ShardState;

/// Transactional ids or offsets that one step looks at.
const SLOTS_MAX: u32 = 4096;

/// What was found, and where the survey stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    next: Next,
    offsets_max: usize,
    /// When its last step was taken, shard time.
    pub now: ShardTime,
    /// Transactional ids by state, under Kafka's names.
    pub transactional_ids: BTreeMap<&'static str, u64>,
    /// When the oldest open transaction began, ms of shard time.
    pub oldest_open_since_ms: Option<i64>,
    /// Producers that partitions know, once per partition.
    pub producers: u64,
    /// Groups by type and state, under Kafka's names.
    pub groups: BTreeMap<(&'static str, &'static str), u64>,
    /// Members of groups by type.
    pub group_members: BTreeMap<&'static str, u64>,
    /// Committed and pending offsets of all groups.
    pub group_offsets: u64,
    /// The first committed offsets, up to the number that was asked for.
    pub committed: Vec<Committed>,
    /// When that number was reached: keys of offsets that are not among them.
    pub left_out: u64,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The group.
    pub group: Text,
    /// The topic's name.
    pub topic: Text,
    /// The topic's id; zero when the record could not say.
    pub topic_id: Uuid,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Counts,
    TransactionalIds(u32),
    Offsets(u32),
    Nothing,
}

impl Survey {
    /// A survey that keeps at most so many committed offsets.
    pub fn new(offsets_max: usize) -> Self {
        Self { offsets_max, ..Self::default() }
    }

    /// Whether no step is left.
    pub fn is_done(&self) -> bool {
        self.next == Next::Nothing
    }
}

impl ShardState {
    /// Takes the next step of a survey.
    pub fn survey(&self, survey: &mut Survey, now: ShardTime) {
        survey.now = now;
        survey.next = match survey.next {
            Next::Counts => {
                survey.producers = self.partitions.producer_count() as u64;
                self.groups.count(survey);
                Next::TransactionalIds(0)
            }
            Next::TransactionalIds(from) => self.survey_transactional_ids(survey, from),
            Next::Offsets(from) => self.survey_offsets(survey, from),
            Next::Nothing => Next::Nothing,
        };
    }

    fn survey_transactional_ids(&self, survey: &mut Survey, from: u32) -> Next {
        let to = from.saturating_add(SLOTS_MAX);
        for transaction in self.transactions.in_slots(from, to) {
            *survey.transactional_ids.entry(transaction.state.name()).or_default() += 1;
            if transaction.timeout_at().is_some() {
                let since = transaction.start_timestamp;
                let oldest = survey.oldest_open_since_ms.unwrap_or(since);
                survey.oldest_open_since_ms = Some(oldest.min(since));
            }
        }
        if to < self.transactions.slot_bound() { Next::TransactionalIds(to) } else { Next::Offsets(0) }
    }

    fn survey_offsets(&self, survey: &mut Survey, from: u32) -> Next {
        let to = from.saturating_add(SLOTS_MAX);
        let room = survey.offsets_max.saturating_sub(survey.committed.len());
        survey.committed.extend(self.groups.committed_in_slots(from, to).take(room));
        let kept = survey.committed.len();
        if kept >= survey.offsets_max {
            survey.left_out = self.groups.keys().saturating_sub(kept as u64);
            return Next::Nothing;
        }
        if to < self.groups.slot_bound() { Next::Offsets(to) } else { Next::Nothing }
    }
}

#[cfg(test)]
mod tests;
