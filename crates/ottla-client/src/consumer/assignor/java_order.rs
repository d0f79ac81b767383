//! The order in which Java's hash tables are walked, because some ties are decided by it.
//!
//! A table has 16 buckets and doubles when it is filled beyond three quarters; it is walked bucket by bucket, and
//! within a bucket in the order of arrival. (From eight keys in one bucket on Java orders them otherwise; member
//! ids are random enough.)

use std::collections::BTreeMap;

use ottla_protocol::types::Text;

use crate::record::TopicPartition;

/// Java's hash of a string: over UTF-16 units, base 31.
pub(super) fn hash_text(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// Java's hash of a `TopicPartition`.
pub(super) fn hash_partition(at: &TopicPartition) -> i32 {
    31_i32.wrapping_add(at.partition).wrapping_mul(31).wrapping_add(hash_text(&at.topic))
}

/// Items as a table walks them that took them in this order; all keys differ.
pub(super) fn walk<T>(mut items: Vec<T>, hash: impl Fn(&T) -> i32) -> Vec<T> {
    let mut buckets: usize = 16;
    while items.len() > buckets / 4 * 3 {
        buckets *= 2;
    }
    let mask = u32::try_from(buckets - 1).unwrap_or(u32::MAX);
    items.sort_by_key(|item| {
        let hash = hash(item).cast_unsigned();
        (hash ^ (hash >> 16)) & mask
    });
    items
}

/// Partitions grouped by topic, topics in the order of their first partition.
pub(crate) fn grouped(partitions: &[TopicPartition]) -> Vec<(Text, Vec<i32>)> {
    let mut groups: Vec<(Text, Vec<i32>)> = Vec::new();
    let mut places: BTreeMap<&Text, usize> = BTreeMap::new();
    for at in partitions {
        let place = *places.entry(&at.topic).or_insert_with(|| {
            groups.push((at.topic.clone(), Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(at.partition);
    }
    groups
}

/// The same, topics in the order of Java's tables: how the sticky assignor writes what it had. Its way of grouping
/// puts a new key in front of the others in its bucket.
pub(crate) fn by_topic(partitions: &[TopicPartition]) -> Vec<(Text, Vec<i32>)> {
    let mut groups = grouped(partitions);
    groups.reverse();
    walk(groups, |(topic, _)| hash_text(topic))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves the hashes with values that Java documents or that follow from its definition.
    #[test]
    fn hashes() {
        assert_eq!(hash_text(""), 0);
        assert_eq!(hash_text("abc"), 96_354);
        assert_eq!(hash_text("polygenelubricants"), i32::MIN);
        assert_eq!(hash_partition(&TopicPartition::new("abc", 2)), 33 * 31 + 96_354);
    }

    /// Proves that the walk is by bucket, and that a full table doubles.
    #[test]
    fn walks() {
        assert_eq!(walk(vec![17, 3, 1, 16], |n| *n), [16, 17, 1, 3]);
        let many: Vec<i32> = (0..13).chain([16]).rev().collect();
        assert_eq!(walk(many, |n| *n), (0..13).chain([16]).collect::<Vec<_>>());
    }
}
