//! The node of a join of two streams: input 0 is the left one, input 1 the right one.
//!
//! A record is late once stream time has passed the last moment of its partners plus the grace. Records that must come
//! out alone wait in a store of their own by that moment: `moment | side | timestamp | number | key`, value as in
//! the side's store. A partner that comes takes them out of it.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;

use super::windows::JoinSpans;
use crate::codec::SharedCodec;
use crate::engine::{Direction, KeyRange};
use crate::processor::Record;
use crate::state::window_prefix;
use crate::store::{KvStore, StoreError, WindowEntry, WindowStore, put_bytes};
use crate::task::node::{Cx, taken};
use crate::task::{Core, Failure, Node};

/// Records that come out alone between two looks at the store.
const PIECE: usize = 256;
const LEFT: u8 = 0;
const RIGHT: u8 = 1;
/// Bytes before the key of a waiting record.
const HEAD: usize = 8 + 1 + 8 + 4;

/// Makes the result of two partners, or of a record alone.
pub(super) type Join<V, W, R> = Arc<dyn Fn(Option<&V>, Option<&W>) -> Option<R> + Send + Sync>;

/// One of the two streams.
pub(super) struct Side<K, V> {
    pub(super) store: WindowStore<K, V>,
    /// Its records come out alone when they find no partner.
    pub(super) alone: bool,
}

/// The node.
pub(super) struct JoinNode<K, V, W, R> {
    pub(super) keys: SharedCodec<K>,
    pub(super) left: Side<K, V>,
    pub(super) right: Side<K, W>,
    pub(super) waiting: Option<KvStore<Bytes, Bytes>>,
    pub(super) spans: JoinSpans,
    pub(super) join: Join<V, W, R>,
    /// No record waits for a moment before it; absent = not known. A shortcut only: the store knows.
    pub(super) nothing_before: Option<i64>,
}

/// A record that waits for a partner.
struct Waiting {
    key: Bytes,
    side: u8,
    timestamp: i64,
    value: Bytes,
}

/// Which partners a side's record has: how far before and after it.
#[derive(Clone, Copy)]
struct Reach {
    before: i64,
    after: i64,
}

impl Reach {
    /// First stream time at which a record of the side is past.
    fn past_at(self, timestamp: i64, spans: JoinSpans) -> i64 {
        timestamp.saturating_add(self.after).saturating_add(spans.grace_ms).saturating_add(1)
    }
}

/// Where a record of a side waits.
fn waiting_key<K: 'static, V: 'static>(
    store: &WindowStore<K, V>,
    (past_at, side): (i64, u8),
    (timestamp, seq): (i64, u32),
    key: &K,
) -> Result<Bytes, StoreError> {
    let mut out = window_prefix(past_at).to_vec();
    out.push(side);
    out.extend_from_slice(&window_prefix(timestamp));
    out.extend_from_slice(&seq.to_be_bytes());
    store.handle.key_into(key, &mut out)?;
    Ok(Bytes::from(out))
}

fn time_at(bytes: &[u8], at: usize) -> Option<i64> {
    let bytes = bytes.get(at..at + 8)?.first_chunk::<8>()?;
    Some((u64::from_be_bytes(*bytes) ^ (1 << 63)).cast_signed())
}

impl<K: Clone + 'static, V: Clone + 'static, W: Clone + 'static, R: Clone + 'static> JoinNode<K, V, W, R> {
    fn reach(&self, side: u8) -> Reach {
        let JoinSpans { before_ms, after_ms, .. } = self.spans;
        match side {
            LEFT => Reach { before: before_ms, after: after_ms },
            _ => Reach { before: after_ms, after: before_ms },
        }
    }

    /// A record of one side (`mine`) meets those of the other one.
    fn meet<A: Clone + 'static, B: Clone + 'static>(
        &self,
        (mine, side): (&Side<K, A>, u8),
        others: &Side<K, B>,
        record: Record<K, A>,
        pair: impl Fn(&A, Option<&B>) -> Option<R>,
        cx: &mut Cx<'_>,
    ) -> Result<Option<i64>, Failure> {
        let Record { key, value, timestamp, headers } = record;
        let past_at = self.reach(side).past_at(timestamp, self.spans);
        if self.keys.is_null(&key) {
            cx.core.metrics.null_keys += 1;
            return match pair(&value, None).filter(|_| mine.alone) {
                Some(value) => cx.forward(0, Record { key, value, timestamp, headers }).map(|()| None),
                None => Ok(None),
            };
        }
        if past_at <= cx.core.stream_time {
            cx.core.metrics.late += 1;
            return Ok(None);
        }
        let seq = mine.store.next_seq(cx.core, &key, timestamp)?;
        mine.store.write(cx.core, &key, (timestamp, seq), Some(&value), timestamp)?;
        let Reach { before, after } = self.reach(side);
        let (from, to) = (timestamp.saturating_sub(before), timestamp.saturating_add(after));
        let found: Vec<WindowEntry<K, B>> =
            others.store.entries_of(cx.core, &key, from, to)?.collect::<Result<_, _>>()?;
        for entry in &found {
            if others.alone {
                self.take_out(others, side ^ 1, entry, cx.core)?;
            }
            let Some(value) = pair(&value, Some(&entry.value)) else { continue };
            let (key, timestamp) = (key.clone(), timestamp.max(entry.start));
            cx.forward(0, Record { key, value, timestamp, headers: headers.clone() })?;
        }
        if !found.is_empty() || !mine.alone {
            return Ok(None);
        }
        let Some(waiting) = &self.waiting else { return Ok(None) };
        let at = waiting_key(&mine.store, (past_at, side), (timestamp, seq), &key)?;
        let mut bytes = Vec::new();
        mine.store.handle.value_into(&value, timestamp, &mut bytes)?;
        let id = waiting.0.id_in(cx.core)?;
        put_bytes(cx.core, id, at, Some(Bytes::from(bytes)))?;
        Ok(Some(past_at))
    }

    /// A record that found a partner does not come out alone any more.
    fn take_out<B: 'static>(
        &self,
        side: &Side<K, B>,
        number: u8,
        entry: &WindowEntry<K, B>,
        core: &mut Core,
    ) -> Result<(), StoreError> {
        let Some(waiting) = &self.waiting else { return Ok(()) };
        let past_at = self.reach(number).past_at(entry.start, self.spans);
        let at = waiting_key(&side.store, (past_at, number), (entry.start, entry.seq), &entry.key)?;
        let id = waiting.0.id_in(core)?;
        let there = core.get(id, &at).map_err(|failure| {
            core.fault.get_or_insert(failure);
            StoreError::State("the state cannot be read".to_owned())
        })?;
        if there.is_some() { put_bytes(core, id, at, None) } else { Ok(()) }
    }

    /// The first records that wait for a moment up to `to`.
    fn waiting(&self, core: &Core, to: i64, limit: usize) -> Result<Vec<Waiting>, StoreError> {
        let Some(waiting) = &self.waiting else { return Ok(Vec::new()) };
        let id = waiting.0.id_in(core)?;
        let end = match to.checked_add(1) {
            Some(after) => std::ops::Bound::Excluded(Bytes::copy_from_slice(&window_prefix(after))),
            None => std::ops::Bound::Unbounded,
        };
        let range = KeyRange { start: std::ops::Bound::Unbounded, end };
        let entries = core.state.scan(id, &range, Direction::Forward).map(|entry| {
            let (key, value) = entry.map_err(|error| StoreError::State(error.to_string()))?;
            let broken = || StoreError::State("a waiting record has no time".to_owned());
            let side = *key.get(8).ok_or_else(broken)?;
            let timestamp = time_at(&key, 9).ok_or_else(broken)?;
            Ok(Waiting { key, side, timestamp, value })
        });
        entries.take(limit).collect()
    }

    /// A record comes out alone.
    fn give_alone(&self, record: Waiting, cx: &mut Cx<'_>) -> Result<(), Failure> {
        let Some(waiting) = &self.waiting else { return Ok(()) };
        let id = waiting.0.id_in(cx.core)?;
        let key = self.left.store.handle.key_of(record.key.get(HEAD..).unwrap_or(&[]))?;
        put_bytes(cx.core, id, record.key, None)?;
        let value = if record.side == LEFT {
            let (value, _) = self.left.store.handle.value_of(&record.value)?;
            (self.join)(Some(&value), None)
        } else {
            let (value, _) = self.right.store.handle.value_of(&record.value)?;
            (self.join)(None, Some(&value))
        };
        match value {
            Some(value) => cx.forward(0, Record::new(key, value, record.timestamp)),
            None => Ok(()),
        }
    }
}

impl<K: Clone + 'static, V: Clone + 'static, W: Clone + 'static, R: Clone + 'static> Node
    for JoinNode<K, V, W, R>
{
    fn process(&mut self, port: u8, item: &mut dyn Any, cx: &mut Cx<'_>) -> Result<(), Failure> {
        let join = self.join.clone();
        let waits = match port {
            LEFT => {
                let pair = |left: &V, right: Option<&W>| join(Some(left), right);
                self.meet((&self.left, LEFT), &self.right, taken::<K, V>(item), pair, cx)?
            }
            _ => {
                let pair = |right: &W, left: Option<&V>| join(left, Some(right));
                self.meet((&self.right, RIGHT), &self.left, taken::<K, W>(item), pair, cx)?
            }
        };
        if let (Some(moment), Some(known)) = (waits, self.nothing_before) {
            self.nothing_before = Some(known.min(moment));
        }
        Ok(())
    }

    fn wants_time(&self) -> bool {
        self.waiting.is_some()
    }

    fn next_due(&mut self, _from: i64, to: i64, cx: &mut Cx<'_>) -> Result<Option<i64>, Failure> {
        if self.nothing_before.is_some_and(|moment| moment > to) {
            return Ok(None);
        }
        let first = self.waiting(cx.core, i64::MAX, 1)?;
        let at = first.first().and_then(|record| time_at(&record.key, 0)).unwrap_or(i64::MAX);
        self.nothing_before = Some(at);
        Ok((at <= to).then_some(at))
    }

    fn advance(&mut self, to: i64, cx: &mut Cx<'_>) -> Result<(), Failure> {
        if self.nothing_before.is_some_and(|moment| moment > to) {
            return Ok(());
        }
        self.nothing_before = None;
        loop {
            let piece = self.waiting(cx.core, to, PIECE)?;
            if piece.is_empty() {
                return Ok(());
            }
            for record in piece {
                self.give_alone(record, cx)?;
            }
        }
    }
}
