//! The part of a scrape that is state: transactions, groups, lag. From a survey of the shard and the published bounds.
//!
//! Place: [`super::scrape`] calls it. Without a survey (the shard is being rebuilt, or too busy) its families are
//! there without samples.
//!
//! The lag of a group is told in two numbers. "Behind" is what a read_committed reader could read and has not.
//! "Hidden" is what open transactions keep from it: nothing that the group could do better.

use std::collections::BTreeMap;
use std::sync::Arc;

use ottla_core::decision::Bounds;
use ottla_core::survey::{Committed, Survey};
use ottla_protocol::types::TopicIdPartition;

use super::table as t;
use super::text::Text;
use crate::limits::{METRICS_LABEL_BYTES_MAX, METRICS_PARTITIONS_MAX, METRICS_TOPICS_MAX};
use crate::shared::Shared;

/// Ids by state, producers, the oldest open transaction.
pub(super) fn write_transactions(text: &mut Text, survey: Option<&Survey>) {
    let mut ids = text.family(&t::TRANSACTIONAL_IDS);
    for (state, count) in survey.iter().flat_map(|survey| &survey.transactional_ids) {
        ids.sample(&[state], *count);
    }
    let mut oldest = text.family(&t::OLDEST_OPEN);
    if let Some(survey) = survey {
        let age_ms = survey.oldest_open_since_ms.map_or(0, |since| survey.now.0.saturating_sub(since).max(0));
        oldest.sample(&[], age_ms as f64 / 1e3);
    }
    let mut producers = text.family(&t::PRODUCERS);
    if let Some(survey) = survey {
        producers.sample(&[], survey.producers);
    }
}

/// Groups, members, offsets.
pub(super) fn write_groups(text: &mut Text, survey: Option<&Survey>) {
    let mut groups = text.family(&t::GROUPS_COUNT);
    for ((kind, state), count) in survey.iter().flat_map(|survey| &survey.groups) {
        groups.sample(&[kind, state], *count);
    }
    let mut members = text.family(&t::GROUP_MEMBERS);
    for (kind, count) in survey.iter().flat_map(|survey| &survey.group_members) {
        members.sample(&[kind], *count);
    }
    let mut offsets = text.family(&t::GROUP_OFFSETS);
    if let Some(survey) = survey {
        offsets.sample(&[], survey.group_offsets);
    }
}

/// What open transactions hide, per partition where they do.
pub(super) fn write_stable_lag(text: &mut Text, shared: Option<&Arc<Shared>>) {
    let mut family = text.family(&t::LSO_LAG);
    let Some(shared) = shared else { return };
    for (topic, partition, lag) in stable_lags(shared).into_iter().take(METRICS_PARTITIONS_MAX) {
        family.sample(&[&topic, &partition.to_string()], lag);
    }
}

fn stable_lags(shared: &Shared) -> Vec<(String, i32, i64)> {
    let image = shared.view.image();
    let mut lags = Vec::new();
    for topic in image.topics() {
        for partition in 0..topic.partition_count {
            let id = TopicIdPartition { topic_id: topic.id, partition };
            let Some(slot) = shared.view.slot(id) else { continue };
            let published = slot.newest();
            let lag = published.bounds.high_watermark - published.bounds.last_stable_offset;
            if lag > 0 {
                lags.push((topic.name.to_string(), partition, lag));
            }
        }
    }
    lags
}

/// The two lags of a group that has committed `offset`.
fn lags(bounds: &Bounds, offset: i64) -> (i64, i64) {
    let (stable, end) = (bounds.last_stable_offset, bounds.high_watermark);
    // What was removed from the beginning of the log is nothing that can still be read.
    let from = offset.max(bounds.log_start_offset);
    ((stable - from).max(0), (end - from.max(stable)).max(0))
}

/// Lag of each committed offset that is named.
pub(super) fn write_lags(text: &mut Text, shared: Option<&Arc<Shared>>, survey: Option<&Survey>) {
    let found = match (shared, survey) {
        (Some(shared), Some(survey)) => lags_of(shared, survey),
        _ => BTreeMap::new(),
    };
    let mut write = |metric, of: fn(&(i64, i64)) -> i64| {
        let mut family = text.family(metric);
        for ((group, topic, partition), lags) in &found {
            family.sample(&[group, topic, &partition.to_string()], of(lags));
        }
    };
    write(&t::LAG_BEHIND, |(behind, _)| *behind);
    write(&t::LAG_HIDDEN, |(_, hidden)| *hidden);
}

type LagKey<'a> = (&'a str, &'a str, i32);

fn lags_of<'a>(shared: &Shared, survey: &'a Survey) -> BTreeMap<LagKey<'a>, (i64, i64)> {
    let image = shared.view.image();
    let named = survey.committed.iter().filter(|committed| is_named(committed));
    let found = named.filter_map(|committed| {
        let topic = image.topic_by_name(&committed.topic)?;
        if !committed.topic_id.is_zero() && committed.topic_id != topic.id {
            return None; // of a topic that was deleted and made again
        }
        let id = TopicIdPartition { topic_id: topic.id, partition: committed.partition };
        let published = shared.view.slot(id)?.newest();
        let key = (&*committed.group, &*committed.topic, committed.partition);
        Some((key, lags(&published.bounds, committed.offset)))
    });
    found.collect()
}

/// Whether the id of the group is short enough to be a label.
fn is_named(committed: &Committed) -> bool {
    committed.group.len() <= METRICS_LABEL_BYTES_MAX
}

/// How many series are missing.
pub(super) fn write_left_out(text: &mut Text, shared: Option<&Arc<Shared>>, survey: Option<&Survey>) {
    let topics = shared.map_or(0, |shared| shared.view.image().topic_count());
    let partitions = shared.map_or(0, |shared| stable_lags(shared).len());
    let unnamed = survey.map_or(0, |survey| survey.committed.iter().filter(|one| !is_named(one)).count());
    let lags = survey.map_or(0, |survey| survey.left_out) + unnamed as u64;
    text.family(&t::LEFT_OUT)
        .sample(&[t::MESSAGES_IN.name], topics.saturating_sub(METRICS_TOPICS_MAX))
        .sample(&[t::LSO_LAG.name], partitions.saturating_sub(METRICS_PARTITIONS_MAX))
        .sample(&[t::LAG_BEHIND.name], lags);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: what open transactions hide is told apart from what a group is behind, for readers at every place.
    #[test]
    fn two_kinds_of_lag() {
        let bounds = Bounds {
            log_start_offset: 10,
            high_watermark: 100,
            last_stable_offset: 60,
            cleaned: ottla_core::clean::CleanedState::NONE,
            leader_epoch: 0,
            aborted: Arc::default(),
            leader_epochs: Arc::default(),
        };
        assert_eq!(lags(&bounds, 40), (20, 40));
        assert_eq!(lags(&bounds, 60), (0, 40));
        assert_eq!(lags(&bounds, 80), (0, 20), "it reads uncommitted");
        assert_eq!(lags(&bounds, 100), (0, 0));
        assert_eq!(lags(&bounds, 120), (0, 0), "ahead, after the log was lost");
        assert_eq!(lags(&bounds, 0), (50, 40), "behind the start of the log");
    }
}
