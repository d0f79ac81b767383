//! Which topics the members of a group mean: names, what regular expressions stand for, and the hash by which a
//! change of those topics is noticed.
//!
//! Place in the walk: `settle` asks here when a subscription changed or when topics did.
//!
//! Invariants: a regular expression is resolved after its first member came and again after every change of
//! topics, but not in a heartbeat and not all the time (`settle::refresh`), as in Kafka; its record goes with its
//! last member. Internal topics match like others, as in Kafka.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::{Text, Uuid};

use super::member::Metadata;
use super::re2::Pattern;
use super::record::{Change, Resolved};
use super::state::Stored;
use crate::cluster::Topics;
use crate::decision::ShardTime;

/// The records that remove the regular expressions that no member has any more.
pub(super) fn unused(stored: &Stored) -> Vec<Change> {
    let wanted = stored.wanted_regexes();
    let unused = stored.regexes.keys().filter(|regex| !wanted.contains_key(*regex));
    unused.map(|regex| Change::Regex(regex.clone(), None)).collect()
}

/// The records that bring the regular expressions of a group up to the topics of now.
pub(super) fn resolve(stored: &Stored, topics: &Topics, now: ShardTime) -> Vec<Change> {
    let names: Vec<&Text> = topics.map().sorted().into_iter().map(|topic| &topic.name).collect();
    let version = i64::try_from(topics.rests_on().0).unwrap_or(i64::MAX);
    let mut changes = Vec::new();
    for regex in stored.wanted_regexes().keys() {
        // A pattern in a record was compiled once; if it cannot be any more, it matches nothing.
        let pattern = Pattern::new(regex).ok();
        let matches = |name: &Text| pattern.as_ref().is_some_and(|pattern| pattern.matches(name));
        let matching: Vec<Text> =
            names.iter().filter(|name| matches(name)).map(|name| (*name).clone()).collect();
        if stored.regexes.get(regex).is_none_or(|there| there.topics != matching) {
            let resolved = Resolved { topics: matching, version, timestamp: now.0 };
            changes.push(Change::Regex(regex.clone(), Some(resolved)));
        }
    }
    changes
}

/// Hash over the existing topics that a group subscribes to: name, id and number of partitions. 0: there are
/// none. FNV-1a, since it is durable and nobody gains by a collision but his own group's old assignment.
pub(super) fn hash(stored: &Stored, topics: &Topics) -> i64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let mut hash = BASIS;
    let mut eat = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    };
    let mut any = false;
    for topic in stored.subscribed_topics().into_iter().filter_map(|name| topics.by_name(name)) {
        any = true;
        eat(topic.name.as_bytes());
        eat(&[0]);
        eat(&topic.id.0);
        eat(&topic.partition_count.to_be_bytes());
    }
    if any { i64::from_ne_bytes(hash.to_ne_bytes()) } else { 0 }
}

/// Existing topics of the whole group, with their number of partitions.
pub(super) fn partition_counts(stored: &Stored, topics: &Topics) -> BTreeMap<Uuid, i32> {
    let existing = stored.subscribed_topics().into_iter().filter_map(|name| topics.by_name(name));
    existing.map(|topic| (topic.id, topic.partition_count)).collect()
}

/// Existing topics of one member.
pub(super) fn topic_ids(stored: &Stored, metadata: &Metadata, topics: &Topics) -> BTreeSet<Uuid> {
    stored.subscription(metadata).filter_map(|name| topics.by_name(name)).map(|topic| topic.id).collect()
}
