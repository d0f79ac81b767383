//! Committed offsets, recomputed from the records in `__consumer_offsets`: a plain commit counts at once, a
//! transactional one when its marker comes, and then only if nothing newer was committed in between.

use std::collections::BTreeMap;

use ottla_protocol::batch::parse_marker;
use ottla_protocol::codec::Message;
use ottla_protocol::coordinator;
use ottla_protocol::messages::{OffsetCommitKey, OffsetCommitValue};
use ottla_protocol::record::RecordIter;
use ottla_protocol::types::TopicIdPartition;

use super::{Fate, Found};
use crate::history::History;
use crate::shell::Shell;

/// Type of the record of a committed offset.
const OFFSET_COMMIT: i16 = 1;

/// A group's partition.
type Place = (String, String, i32);

/// What the records say.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    /// The fate of each commit that is in the log, by its number.
    pub(crate) fates: BTreeMap<usize, Fate>,
    /// The value that counts.
    pub(crate) values: BTreeMap<Place, i64>,
}

struct Decoded {
    place: Place,
    value: i64,
}

fn decode(batch: &super::log::LogBatch) -> Result<Vec<Decoded>, String> {
    let mut decoded = Vec::new();
    for record in RecordIter::new(&batch.header, batch.tail.slice(40..)) {
        let record = record.map_err(|error| error.to_string())?;
        let (Some(key), Some(value)) = (&record.key, &record.value) else { continue };
        let (number, mut reader) = coordinator::record_type(key).map_err(|error| error.to_string())?;
        if number != OFFSET_COMMIT {
            continue;
        }
        let key = OffsetCommitKey::decode(&mut reader, 0).map_err(|error| error.to_string())?;
        let value: OffsetCommitValue = coordinator::decode_value(value).map_err(|error| error.to_string())?;
        let place = (key.group.to_string(), key.topic.to_string(), key.partition);
        decoded.push(Decoded { place, value: value.offset });
    }
    Ok(decoded)
}

/// Recomputes all offsets and checks that every record was sent, and that every acknowledged commit is there.
pub(super) fn judge(
    found: &Found,
    fates: &BTreeMap<TopicIdPartition, Vec<Fate>>,
    history: &mut History,
) -> Commits {
    let mut commits = Commits::default();
    let clients: Vec<_> = history.topics.values().filter_map(|topic| topic.id).collect();
    for (partition, batches) in found {
        if clients.contains(&partition.topic_id) {
            continue;
        }
        // Offsets of the records whose value counts, and those that wait for a marker.
        let mut current: BTreeMap<Place, i64> = BTreeMap::new();
        let mut pending: BTreeMap<i64, Vec<(Place, i64, i64)>> = BTreeMap::new();
        for (batch, fate) in batches.iter().zip(&fates[partition]) {
            let header = &batch.header;
            let offset = header.base_offset;
            if header.is_control() {
                let commit =
                    parse_marker(header, &batch.tail).ok().flatten().is_some_and(|marker| marker.commit);
                for (place, value, offset) in pending.remove(&header.producer_id).unwrap_or_default() {
                    if commit && current.get(&place).is_none_or(|newest| *newest < offset) {
                        current.insert(place.clone(), offset);
                        commits.values.insert(place, value);
                    }
                }
                continue;
            }
            let decoded = decode(batch).unwrap_or_default();
            for Decoded { place, value } in decoded {
                check_sent(&place, value, history);
                commits.fates.insert(usize::try_from(value).unwrap_or(usize::MAX), *fate);
                if header.is_transactional() {
                    pending.entry(header.producer_id).or_default().push((place, value, offset));
                } else {
                    current.insert(place.clone(), offset);
                    commits.values.insert(place, value);
                }
            }
        }
    }
    let mut violations = Vec::new();
    for (number, commit) in history.commits.iter().enumerate() {
        if commit.acked && !commits.fates.contains_key(&number) {
            violations
                .push(format!("offset commit {number} of {} was acknowledged and is lost", commit.group));
        }
    }
    violations.into_iter().for_each(|text| history.violation(text));
    history.expected_offsets = commits.values.clone();
    commits
}

fn check_sent(place: &Place, value: i64, history: &mut History) {
    let sent = usize::try_from(value).ok().and_then(|number| history.commits.get(number));
    let matches =
        sent.is_some_and(|sent| sent.group == place.0 && sent.topic == place.1 && sent.partition == place.2);
    if !matches {
        history.violation(format!("nobody committed offset {value} for {place:?}"));
    }
}

/// What the coordinator answers is what its records say.
pub(crate) fn judge_answers(shell: &mut Shell, history: &mut History) {
    let places: Vec<(Place, i64)> = history.expected_offsets.clone().into_iter().collect();
    for ((group, topic, partition), expected) in places {
        let reply = shell.ask(8, crate::message::offset_fetch(&group, &topic, partition, true), history);
        let found = reply.as_ref().and_then(crate::message::fetched_offset);
        if found != Some((0, expected)) {
            let text = format!("group {group} has {expected} by its records, and answers {found:?}");
            history.violation(text);
        }
    }
}
