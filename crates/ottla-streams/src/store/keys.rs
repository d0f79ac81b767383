//! Byte layouts of window and session keys: times whose byte order is their order, keys behind their length.

use std::ops::Bound;

use bytes::Bytes;

use crate::engine::KeyRange;

/// A time in ms whose byte order is its order.
pub(super) fn time(ms: i64) -> [u8; 8] {
    crate::state::window_prefix(ms)
}

/// The time of such bytes.
pub(super) fn time_of(bytes: [u8; 8]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)).cast_signed()
}

/// Appends a length and what `fill` appends; no key can be a prefix of another one's then.
pub(super) fn sized<E>(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out)?;
    let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// Takes a time off the front.
pub(super) fn take_time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some((time_of(*head), rest))
}

/// Takes what [`sized`] wrote off the front.
pub(super) fn take_sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*head)).ok()?;
    (rest.len() >= length).then(|| rest.split_at(length))
}

/// All keys that begin with these bytes.
pub(super) fn prefix_range(prefix: &[u8]) -> KeyRange {
    let start = Bound::Included(Bytes::copy_from_slice(prefix));
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return KeyRange { start, end: Bound::Excluded(Bytes::from(end)) };
        }
    }
    KeyRange { start, end: Bound::Unbounded }
}

/// Keys from one to another, both included.
pub(super) fn between(from: Vec<u8>, to: Vec<u8>) -> KeyRange {
    KeyRange { start: Bound::Included(Bytes::from(from)), end: Bound::Included(Bytes::from(to)) }
}
