//! Names of topics, and where a coordinator's key lives.

/// Name of the topic that holds groups and their offsets.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";
/// Name of the topic that holds transactions.
pub const TRANSACTION_STATE: &str = "__transaction_state";
/// Longest name of a topic, bytes.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

/// Whether the name is that of an internal topic.
pub fn is_internal(name: &str) -> bool {
    name == CONSUMER_OFFSETS || name == TRANSACTION_STATE
}

/// Whether a topic may have this name. The error says why not.
pub fn validate_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("a topic's name is not empty");
    }
    if name == "." || name == ".." {
        return Err("a topic's name is not '.' or '..'");
    }
    if name.len() > TOPIC_NAME_BYTES_MAX {
        return Err("a topic's name has at most 249 characters");
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if !name.bytes().all(allowed) {
        return Err("a topic's name consists of ASCII letters, digits, '.', '_' and '-'");
    }
    Ok(())
}

/// The name with every '.' as '_', if it has any of the two: topics whose names agree in that would have the
/// same metrics in Kafka, and are refused.
pub(super) fn collision_key(name: &str) -> Option<String> {
    name.contains(['.', '_']).then(|| name.replace('.', "_"))
}

/// Partition of an internal topic that a group or transactional id lives in: Java's string hash over UTF-16
/// code units, without its sign, modulo the count. The smallest int counts as 0.
pub fn coordinator_partition(key: &str, partition_count: i32) -> i32 {
    let hash =
        key.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    hash.checked_abs().unwrap_or(0) % partition_count
}
