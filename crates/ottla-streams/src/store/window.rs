//! Window stores: values by key and start time, kept for a span of stream time.
//!
//! Entries begin with a time, so that expired ones are one range at the front: with [`Layout::Starts`] `start | key`,
//! for windows whose starts are multiples of a step; with [`Layout::Buckets`] `last ms of the bucket | key | start
//! [| seq]`, so that all of a key's entries in a span are a few short ranges. Expiry is a filter on stream time;
//! space is freed a bucket at a time, locally and without a change, as the changelog's retention frees its own.

use std::collections::VecDeque;

use bytes::Bytes;

use super::keys::{between, prefix_range, sized, take_sized, take_time, time};
use super::{AnyStore, Handle, Opening, ReadBytes, StoreError, StoreHandle, put_bytes};
use crate::engine::{Direction, KeyRange, StoreId};
use crate::state::Committed;
use crate::task::Core;

/// Buckets of a span that are tried one by one.
const BUCKETS_TRIED: i64 = 16;

/// How keys are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Starts are multiples of `every_ms`; one entry per key and start.
    Starts { every_ms: i64 },
    /// Starts are any; with `duplicates`, many entries per key and start, told apart by a number.
    Buckets { bucket_ms: i64, duplicates: bool },
}

/// A store of values by key and start time. Made by [`crate::dsl::Builder::window_store`] and by windowed
/// aggregations. Entries whose start lies `retention` or more behind stream time are gone.
pub struct WindowStore<K, V> {
    pub(crate) handle: Handle<K, V>,
    pub(crate) retention_ms: i64,
    pub(crate) layout: Layout,
}

impl<K, V> Clone for WindowStore<K, V> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone(), retention_ms: self.retention_ms, layout: self.layout }
    }
}

impl<K, V> AnyStore for WindowStore<K, V> {
    fn name(&self) -> &str {
        &self.handle.name
    }
    fn place(&self) -> usize {
        self.handle.place
    }
}

impl<K: 'static, V: 'static> StoreHandle for WindowStore<K, V> {
    type Access<'a> = Windows<'a, K, V>;
    fn open<'a>(&'a self, opening: Opening<'a>) -> Windows<'a, K, V> {
        Windows { store: self, core: opening.0 }
    }
}

/// A decoded entry.
pub(crate) struct WindowEntry<K, V> {
    pub(crate) key: K,
    pub(crate) start: i64,
    /// Tells entries of the same key and start apart; 0 in stores without duplicates.
    pub(crate) seq: u32,
    pub(crate) value: V,
    pub(crate) timestamp: i64,
}

/// Entries with their keys as stored.
type Piece<K, V> = Vec<(Bytes, WindowEntry<K, V>)>;

impl<K: 'static, V: 'static> WindowStore<K, V> {
    /// Reads a snapshot of the task that has it.
    pub fn read<'a>(&'a self, committed: &'a Committed) -> Result<WindowReader<'a, K, V>, StoreError> {
        let id = self.handle.id_at(committed)?;
        Ok(WindowReader { id, store: self, bytes: committed, stream_time: committed.meta().stream_time })
    }

    fn reader<'a>(&'a self, core: &'a Core) -> Result<WindowReader<'a, K, V>, StoreError> {
        let id = self.handle.id_in(core)?;
        Ok(WindowReader { id, store: self, bytes: &core.state, stream_time: core.stream_time })
    }

    /// The last moment of the bucket of a start.
    fn bucket(&self, start: i64) -> i64 {
        match self.layout {
            Layout::Starts { .. } => start,
            Layout::Buckets { bucket_ms, .. } => {
                start.div_euclid(bucket_ms).saturating_mul(bucket_ms).saturating_add(bucket_ms - 1)
            }
        }
    }

    /// What the entries of a key begin with, in the bucket of a start.
    fn prefix(&self, key: &K, start: i64) -> Result<Vec<u8>, StoreError> {
        let mut out = time(self.bucket(start)).to_vec();
        match self.layout {
            Layout::Starts { .. } => self.handle.key_into(key, &mut out)?,
            Layout::Buckets { .. } => sized(&mut out, |out| self.handle.key_into(key, out))?,
        }
        Ok(out)
    }

    fn entry_key(&self, key: &K, start: i64, seq: u32) -> Result<Vec<u8>, StoreError> {
        let mut out = self.prefix(key, start)?;
        if let Layout::Buckets { duplicates, .. } = self.layout {
            out.extend_from_slice(&time(start));
            if duplicates {
                out.extend_from_slice(&seq.to_be_bytes());
            }
        }
        Ok(out)
    }

    fn entry(&self, key: &[u8], value: &[u8]) -> Result<WindowEntry<K, V>, StoreError> {
        let broken =
            || StoreError::State(format!("the store {:?} has a key that is no window key", self.handle.name));
        let (start, key, seq) = match self.layout {
            Layout::Starts { .. } => {
                let (start, key) = take_time(key).ok_or_else(broken)?;
                (start, key, 0)
            }
            Layout::Buckets { .. } => {
                let (_, rest) = take_time(key).ok_or_else(broken)?;
                let (key, rest) = take_sized(rest).ok_or_else(broken)?;
                let (start, rest) = take_time(rest).ok_or_else(broken)?;
                (start, key, rest.first_chunk::<4>().map_or(0, |seq| u32::from_be_bytes(*seq)))
            }
        };
        let (value, timestamp) = self.handle.value_of(value)?;
        Ok(WindowEntry { key: self.handle.key_of(key)?, start, seq, value, timestamp })
    }

    /// Starts at or below it are gone.
    pub(crate) fn expired_to(&self, stream_time: i64) -> i64 {
        stream_time.saturating_sub(self.retention_ms)
    }

    /// Value and timestamp of a window, inside a task.
    pub(crate) fn find(&self, core: &Core, key: &K, start: i64) -> Result<Option<(V, i64)>, StoreError> {
        self.reader(core)?.find(key, start)
    }

    /// Writes a value, inside a task. One that is expired already is left out.
    pub(crate) fn write(
        &self,
        core: &mut Core,
        key: &K,
        (start, seq): (i64, u32),
        value: Option<&V>,
        timestamp: i64,
    ) -> Result<(), StoreError> {
        let id = self.handle.id_in(core)?;
        self.free_space(core, id)?;
        if start <= self.expired_to(core.stream_time) {
            return Ok(());
        }
        let entry = self.entry_key(key, start, seq)?;
        let value = match value {
            Some(value) if !self.handle.value.is_null(value) => {
                let mut bytes = Vec::new();
                self.handle.value_into(value, timestamp, &mut bytes)?;
                Some(Bytes::from(bytes))
            }
            Some(_) | None => None,
        };
        put_bytes(core, id, Bytes::from(entry), value)
    }

    /// Frees the space of expired buckets, when time has moved on enough since the last time.
    fn free_space(&self, core: &mut Core, id: StoreId) -> Result<(), StoreError> {
        if core.stream_time == i64::MIN {
            return Ok(());
        }
        let expired = self.expired_to(core.stream_time);
        let place = usize::from(id.0);
        let step = (self.retention_ms / 8).max(1);
        if core.freed[place].is_some_and(|freed| expired.saturating_sub(freed) < step) {
            return Ok(());
        }
        core.freed[place] = Some(expired);
        // A bucket goes when its last moment is expired.
        let to = Bytes::copy_from_slice(&time(expired.saturating_add(1)));
        core.expire(id, Bytes::new(), to).map_err(|failure| {
            core.fault.get_or_insert(failure);
            StoreError::State("expired windows cannot be removed".to_owned())
        })
    }

    /// How many entries a key has at a start, for [`Layout::Buckets`] with duplicates: the number of the next one.
    pub(crate) fn next_seq(&self, core: &Core, key: &K, start: i64) -> Result<u32, StoreError> {
        let id = self.handle.id_in(core)?;
        let mut prefix = self.prefix(key, start)?;
        prefix.extend_from_slice(&time(start));
        let Some(last) = core.state.scan(id, &prefix_range(&prefix), Direction::Reverse).next() else {
            return Ok(0);
        };
        let (last, _) = last.map_err(|error| StoreError::State(error.to_string()))?;
        let seq = last.last_chunk::<4>().map_or(0, |seq| u32::from_be_bytes(*seq));
        Ok(seq.saturating_add(1))
    }

    /// Entries of a key with starts in a span, inside a task.
    pub(crate) fn entries_of<'a>(
        &'a self,
        core: &'a Core,
        key: &'a K,
        from: i64,
        to: i64,
    ) -> Result<impl Iterator<Item = Result<WindowEntry<K, V>, StoreError>> + 'a, StoreError> {
        Ok(self.reader(core)?.entries(key, from, to))
    }

    /// At most `limit` entries with starts in a span, after a key of the store; in order of start (of bucket, with
    /// [`Layout::Buckets`]). For walks that forward between the pieces.
    pub(crate) fn piece(
        &self,
        core: &Core,
        (from, to): (i64, i64),
        after: Option<Bytes>,
        limit: usize,
    ) -> Result<Piece<K, V>, StoreError> {
        let reader = self.reader(core)?;
        let mut range = reader.span(from, to);
        if let Some(after) = after {
            range.start = std::ops::Bound::Excluded(after);
        }
        let entries = reader.bytes.scan(reader.id, &range, Direction::Forward).map(|entry| {
            let (key, value) = entry.map_err(|error| StoreError::State(error.to_string()))?;
            Ok((key.clone(), self.entry(&key, &value)?))
        });
        entries.take(limit).collect()
    }
}

/// A window store that is only read.
/// ```
/// use ottla_streams::store::{StoreError, WindowReader};
///
/// /// The counts of a page in the hour before a moment, and of all pages in that time.
/// fn look(counts: &WindowReader<'_, String, i64>, page: &String, now: i64) -> Result<(i64, i64), StoreError> {
///     let (mut mine, mut all) = (0, 0);
///     for window in counts.fetch(page, now - 3_600_000, now) {
///         mine += window?.1;
///     }
///     for window in counts.all(now - 3_600_000, now) {
///         all += window?.2;
///     }
///     Ok((mine, all))
/// }
/// ```
pub struct WindowReader<'a, K, V> {
    id: StoreId,
    store: &'a WindowStore<K, V>,
    bytes: &'a dyn ReadBytes,
    stream_time: i64,
}

impl<'a, K: 'static, V: 'static> WindowReader<'a, K, V> {
    fn find(&self, key: &K, start: i64) -> Result<Option<(V, i64)>, StoreError> {
        if start <= self.store.expired_to(self.stream_time) {
            return Ok(None);
        }
        let entry = self.store.entry_key(key, start, 0)?;
        self.bytes.get(self.id, &entry)?.map(|value| self.store.handle.value_of(&value)).transpose()
    }

    /// The value of the window that starts then, ms.
    pub fn get(&self, key: &K, start: i64) -> Result<Option<V>, StoreError> {
        Ok(self.find(key, start)?.map(|(value, _)| value))
    }

    /// Entries of a key with starts from `from` to `to` (both included, ms), by start.
    pub fn fetch<'k>(
        &self,
        key: &'k K,
        from: i64,
        to: i64,
    ) -> impl Iterator<Item = Result<(i64, V), StoreError>> + use<'a, 'k, K, V> {
        self.entries(key, from, to).map(|entry| entry.map(|entry| (entry.start, entry.value)))
    }

    /// Entries of all keys with starts from `from` to `to` (both included, ms), roughly by start.
    pub fn all(
        &self,
        from: i64,
        to: i64,
    ) -> impl Iterator<Item = Result<(K, i64, V), StoreError>> + use<'a, K, V> {
        let (store, range) = (self.store, self.span(from, to));
        let (from, to) = self.clip(from, to);
        let entries = self.bytes.scan(self.id, &range, Direction::Forward).map(move |entry| {
            let (key, value) = entry.map_err(|error| StoreError::State(error.to_string()))?;
            store.entry(&key, &value)
        });
        let inside =
            entries.filter(move |entry| entry.as_ref().map_or(true, |e| e.start >= from && e.start <= to));
        inside.map(|entry| entry.map(|entry| (entry.key, entry.start, entry.value)))
    }

    /// The part of a span that is not expired, and that windows of records can start in.
    fn clip(&self, from: i64, to: i64) -> (i64, i64) {
        let to = match self.store.layout {
            Layout::Starts { .. } => to.min(self.stream_time),
            Layout::Buckets { .. } => to,
        };
        (from.max(self.store.expired_to(self.stream_time).saturating_add(1)), to)
    }

    /// Byte range of all entries in the buckets of a span.
    fn span(&self, from: i64, to: i64) -> KeyRange {
        let (from, to) = self.clip(from, to);
        if from > to {
            return between(vec![1], vec![0]);
        }
        let mut last = time(self.store.bucket(to)).to_vec();
        let range = prefix_range(&std::mem::take(&mut last));
        KeyRange { end: range.end, ..between(time(self.store.bucket(from)).to_vec(), Vec::new()) }
    }

    fn entries<'k>(
        &self,
        key: &'k K,
        from: i64,
        to: i64,
    ) -> impl Iterator<Item = Result<WindowEntry<K, V>, StoreError>> + use<'a, 'k, K, V> {
        let (from, to) = self.clip(from, to);
        let step = match self.store.layout {
            Layout::Starts { every_ms } => every_ms,
            Layout::Buckets { bucket_ms, .. } => bucket_ms,
        };
        let first = match self.store.layout {
            Layout::Starts { .. } => ceil(from, step),
            Layout::Buckets { .. } => from.div_euclid(step).saturating_mul(step),
        };
        let (bytes, id, store) = (self.bytes, self.id, self.store);
        let next = (from <= to && first <= to).then_some(first);
        // A long span is mostly empty: its buckets are looked for then, instead of tried.
        let long =
            matches!(store.layout, Layout::Buckets { .. }) && to.saturating_sub(from) / step > BUCKETS_TRIED;
        Walk { bytes, id, store, key, next, step, long, from, to, found: VecDeque::new() }
    }
}

/// The lowest multiple at or above a moment.
fn ceil(moment: i64, step: i64) -> i64 {
    let floor = moment.div_euclid(step).saturating_mul(step);
    if floor < moment { floor.saturating_add(step) } else { floor }
}

/// Goes through the starts or buckets of one key.
struct Walk<'a, 'k, K, V> {
    bytes: &'a dyn ReadBytes,
    id: StoreId,
    store: &'a WindowStore<K, V>,
    key: &'k K,
    next: Option<i64>,
    step: i64,
    long: bool,
    from: i64,
    to: i64,
    found: VecDeque<WindowEntry<K, V>>,
}

impl<K: 'static, V: 'static> Walk<'_, '_, K, V> {
    /// The first bucket at or after one that has entries of any key, by its first moment.
    fn next_bucket(&mut self, at: i64) -> Result<Option<i64>, StoreError> {
        let range = KeyRange {
            end: prefix_range(&time(self.store.bucket(self.to))).end,
            ..between(time(self.store.bucket(at)).to_vec(), Vec::new())
        };
        let Some(first) = self.bytes.scan(self.id, &range, Direction::Forward).next() else {
            self.next = None;
            return Ok(None);
        };
        let (key, _) = first.map_err(|error| StoreError::State(error.to_string()))?;
        let last = take_time(&key).map_or(at, |(last, _)| last);
        Ok(Some(last.div_euclid(self.step).saturating_mul(self.step).max(at)))
    }

    /// Reads the entries of the start or bucket at `at`.
    fn load(&mut self, at: i64) -> Result<(), StoreError> {
        let prefix = self.store.prefix(self.key, at)?;
        if let Layout::Starts { .. } = self.store.layout {
            if let Some(value) = self.bytes.get(self.id, &prefix)? {
                self.found.push_back(self.store.entry(&prefix, &value)?);
            }
            return Ok(());
        }
        let bound = |moment: i64| [&prefix[..], &time(moment)[..]].concat();
        let range =
            KeyRange { end: prefix_range(&bound(self.to)).end, ..between(bound(self.from), Vec::new()) };
        for entry in self.bytes.scan(self.id, &range, Direction::Forward) {
            let (key, value) = entry.map_err(|error| StoreError::State(error.to_string()))?;
            self.found.push_back(self.store.entry(&key, &value)?);
        }
        Ok(())
    }
}

impl<K: 'static, V: 'static> Iterator for Walk<'_, '_, K, V> {
    type Item = Result<WindowEntry<K, V>, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.found.pop_front() {
                return Some(Ok(entry));
            }
            let mut at = self.next?;
            if self.long {
                match self.next_bucket(at) {
                    Ok(found) => at = found?,
                    Err(error) => {
                        self.next = None;
                        return Some(Err(error));
                    }
                }
            }
            self.next = at.checked_add(self.step).filter(|next| *next <= self.to);
            if let Err(error) = self.load(at) {
                self.next = None;
                return Some(Err(error));
            }
        }
    }
}

/// A window store in a processor: reads see the writes before them.
/// ```
/// use ottla_streams::store::{StoreError, Windows};
///
/// /// Keeps a price, and tells the highest one of the minute before it.
/// fn highest(prices: &mut Windows<'_, String, i64>, share: &String, now: i64, price: i64) -> Result<i64, StoreError> {
///     prices.put(share, now, &price)?;
///     let minute: Vec<(i64, i64)> = prices.fetch(share, now - 60_000, now)?.collect::<Result<_, _>>()?;
///     Ok(minute.iter().map(|(_, price)| *price).max().unwrap_or(price))
/// }
/// ```
pub struct Windows<'a, K, V> {
    store: &'a WindowStore<K, V>,
    core: &'a mut Core,
}

impl<K: 'static, V: 'static> Windows<'_, K, V> {
    /// The value of the window that starts then, ms.
    pub fn get(&self, key: &K, start: i64) -> Result<Option<V>, StoreError> {
        self.store.reader(self.core)?.get(key, start)
    }

    /// Sets the value of the window that starts then, ms. One that is expired already is left out.
    pub fn put(&mut self, key: &K, start: i64, value: &V) -> Result<(), StoreError> {
        let now = self.core.now;
        self.store.write(self.core, key, (start, 0), Some(value), now)
    }

    /// Removes the window that starts then, ms.
    pub fn delete(&mut self, key: &K, start: i64) -> Result<(), StoreError> {
        let now = self.core.now;
        self.store.write(self.core, key, (start, 0), None, now)
    }

    /// Entries of a key with starts from `from` to `to` (both included, ms), by start.
    pub fn fetch<'s>(
        &'s self,
        key: &'s K,
        from: i64,
        to: i64,
    ) -> Result<impl Iterator<Item = Result<(i64, V), StoreError>> + 's, StoreError> {
        Ok(self.store.reader(self.core)?.fetch(key, from, to))
    }

    /// Entries of all keys with starts from `from` to `to` (both included, ms), roughly by start.
    pub fn all(
        &self,
        from: i64,
        to: i64,
    ) -> Result<impl Iterator<Item = Result<(K, i64, V), StoreError>>, StoreError> {
        Ok(self.store.reader(self.core)?.all(from, to))
    }
}
