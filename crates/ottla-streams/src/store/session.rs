//! Session stores: values by key and a span of time, of which one key has few at a time.
//!
//! Entries are `1 | key | start`, value `end | flag | value`, so that the sessions of a key near a moment are one short
//! backward walk. A second kind of entry, `0 | due | start | key`, says when to look at a session again: it is
//! written when the session begins and moved only when it comes due, so that a session that grows costs one write
//! per record. Sessions that expire are deleted with changes like any other, so nothing rests on the clock of brokers.

use bytes::Bytes;

use super::keys::{between, prefix_range, sized, take_sized, take_time, time};
use super::{AnyStore, Handle, Opening, ReadBytes, StoreError, StoreHandle, put_bytes};
use crate::codec::CodecError;
use crate::engine::{Direction, StoreId};
use crate::state::Committed;
use crate::task::Core;

const INDEX: u8 = 0;
const DATA: u8 = 1;
/// Sessions that a write of a store without an aggregation looks at for clean-up.
const CLEAN_PER_WRITE: usize = 4;

/// A session of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Session<V> {
    /// First timestamp, ms.
    pub start: i64,
    /// Last timestamp, ms.
    pub end: i64,
    /// Its value.
    pub value: V,
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It may still grow.
    Open,
    /// Its result was given; it is kept for readers.
    Closed,
}

/// A session to look at.
pub(crate) struct Due<K> {
    pub(crate) index: Bytes,
    /// When.
    pub(crate) at: i64,
    pub(crate) key: K,
    pub(crate) start: i64,
}

/// A store of values by key and span. Made by [`crate::dsl::Builder::session_store`] and by session aggregations.
/// Sessions whose end lies more than `retention` behind stream time are gone.
pub struct SessionStore<K, V> {
    pub(crate) handle: Handle<K, V>,
    pub(crate) retention_ms: i64,
}

impl<K, V> Clone for SessionStore<K, V> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone(), retention_ms: self.retention_ms }
    }
}

impl<K, V> AnyStore for SessionStore<K, V> {
    fn name(&self) -> &str {
        &self.handle.name
    }
    fn place(&self) -> usize {
        self.handle.place
    }
}

impl<K: 'static, V: 'static> StoreHandle for SessionStore<K, V> {
    type Access<'a> = Sessions<'a, K, V>;
    fn open<'a>(&'a self, opening: Opening<'a>) -> Sessions<'a, K, V> {
        Sessions { store: self, core: opening.0 }
    }
}

/// A decoded session.
pub(crate) struct Entry<V> {
    pub(crate) session: Session<V>,
    pub(crate) stage: Stage,
    pub(crate) timestamp: i64,
}

impl<K: 'static, V: 'static> SessionStore<K, V> {
    /// Reads a snapshot of the task that has it.
    pub fn read<'a>(&'a self, committed: &'a Committed) -> Result<SessionReader<'a, K, V>, StoreError> {
        let id = self.handle.id_at(committed)?;
        Ok(SessionReader { id, store: self, bytes: committed, stream_time: committed.meta().stream_time })
    }

    fn reader<'a>(&'a self, core: &'a Core) -> Result<SessionReader<'a, K, V>, StoreError> {
        let id = self.handle.id_in(core)?;
        Ok(SessionReader { id, store: self, bytes: &core.state, stream_time: core.stream_time })
    }

    fn prefix(&self, key: &K) -> Result<Vec<u8>, StoreError> {
        let mut out = vec![DATA];
        sized(&mut out, |out| self.handle.key_into(key, out))?;
        Ok(out)
    }

    fn data_key(&self, key: &K, start: i64) -> Result<Bytes, StoreError> {
        let mut out = self.prefix(key)?;
        out.extend_from_slice(&time(start));
        Ok(Bytes::from(out))
    }

    fn index_key(&self, key: &K, start: i64, due: i64) -> Result<Bytes, StoreError> {
        let mut out = vec![INDEX];
        out.extend_from_slice(&time(due));
        out.extend_from_slice(&time(start));
        self.handle.key_into(key, &mut out)?;
        Ok(Bytes::from(out))
    }

    fn broken(&self) -> StoreError {
        StoreError::State(format!("the store {:?} has an entry that is no session", self.handle.name))
    }

    fn entry(&self, start: i64, value: &[u8]) -> Result<Entry<V>, StoreError> {
        let (end, rest) = take_time(value).ok_or_else(|| self.broken())?;
        let (flag, rest) = rest.split_first().ok_or_else(|| self.broken())?;
        let (value, timestamp) = self.handle.value_of(rest)?;
        let stage = if *flag == 0 { Stage::Open } else { Stage::Closed };
        Ok(Entry { session: Session { start, end, value }, stage, timestamp })
    }

    /// The session of a key that starts then.
    pub(crate) fn find(&self, core: &Core, key: &K, start: i64) -> Result<Option<Entry<V>>, StoreError> {
        let id = self.handle.id_in(core)?;
        let found = ReadBytes::get(&core.state, id, &self.data_key(key, start)?)?;
        found.map(|value| self.entry(start, &value)).transpose()
    }

    /// Writes a session; `due` = a moment to look at it again, for a new one.
    pub(crate) fn write(
        &self,
        core: &mut Core,
        key: &K,
        entry: &Entry<V>,
        due: Option<i64>,
    ) -> Result<(), StoreError> {
        let id = self.handle.id_in(core)?;
        if self.handle.value.is_null(&entry.session.value) {
            let error = CodecError::new(self.handle.value.name(), "null cannot be a session's value");
            return Err(self.handle.codec(error));
        }
        let mut value = time(entry.session.end).to_vec();
        value.push(u8::from(entry.stage == Stage::Closed));
        self.handle.value_into(&entry.session.value, entry.timestamp, &mut value)?;
        put_bytes(core, id, self.data_key(key, entry.session.start)?, Some(Bytes::from(value)))?;
        match due {
            Some(due) => self.look_again(core, key, entry.session.start, due),
            None => Ok(()),
        }
    }

    /// Sets when to look at a session again.
    pub(crate) fn look_again(
        &self,
        core: &mut Core,
        key: &K,
        start: i64,
        due: i64,
    ) -> Result<(), StoreError> {
        let id = self.handle.id_in(core)?;
        put_bytes(core, id, self.index_key(key, start, due)?, Some(Bytes::new()))
    }

    /// Removes a session; the note to look at it stays until it is due.
    pub(crate) fn remove(&self, core: &mut Core, key: &K, start: i64) -> Result<(), StoreError> {
        let id = self.handle.id_in(core)?;
        put_bytes(core, id, self.data_key(key, start)?, None)
    }

    /// Removes a note.
    pub(crate) fn looked(&self, core: &mut Core, index: Bytes) -> Result<(), StoreError> {
        let id = self.handle.id_in(core)?;
        put_bytes(core, id, index, None)
    }

    /// The earliest sessions to look at, at or before a moment.
    pub(crate) fn due(&self, core: &Core, to: i64, limit: usize) -> Result<Vec<Due<K>>, StoreError> {
        let id = self.handle.id_in(core)?;
        let mut last = vec![INDEX];
        last.extend_from_slice(&time(to));
        let range =
            crate::engine::KeyRange { end: prefix_range(&last).end, ..between(vec![INDEX], Vec::new()) };
        let entries = ReadBytes::scan(&core.state, id, &range, Direction::Forward).map(|entry| {
            let (index, _) = entry.map_err(|error| StoreError::State(error.to_string()))?;
            let parts = index.get(1..).and_then(take_time);
            let parts = parts.and_then(|(at, rest)| take_time(rest).map(|(start, key)| (at, start, key)));
            let (at, start, key) = parts.ok_or_else(|| self.broken())?;
            Ok(Due { key: self.handle.key_of(key)?, at, start, index: index.clone() })
        });
        entries.take(limit).collect()
    }

    /// Sessions of a key that have a moment of a span, by start.
    pub(crate) fn overlapping(
        &self,
        core: &Core,
        key: &K,
        from: i64,
        to: i64,
    ) -> Result<Vec<Entry<V>>, StoreError> {
        self.reader(core)?.entries(key, from, to)
    }
}

/// A session store that is only read.
/// ```
/// use ottla_streams::store::{SessionReader, StoreError};
///
/// /// How long a visitor's longest visit since a moment was, in ms.
/// fn longest(visits: &SessionReader<'_, String, i64>, visitor: &String, since: i64) -> Result<i64, StoreError> {
///     let sessions = visits.fetch(visitor, since, i64::MAX)?;
///     Ok(sessions.iter().map(|session| session.end - session.start).max().unwrap_or(0))
/// }
/// ```
pub struct SessionReader<'a, K, V> {
    id: StoreId,
    store: &'a SessionStore<K, V>,
    bytes: &'a dyn ReadBytes,
    stream_time: i64,
}

impl<K: 'static, V: 'static> SessionReader<'_, K, V> {
    /// Sessions of a key are apart, so they are in the same order by start and by end: the walk goes back from the
    /// last one that starts in the span, to the first that ends before it.
    fn entries(&self, key: &K, from: i64, to: i64) -> Result<Vec<Entry<V>>, StoreError> {
        let prefix = self.store.prefix(key)?;
        let bound = |moment: i64| [&prefix[..], &time(moment)[..]].concat();
        let range = between(bound(i64::MIN), bound(to));
        let gone_to = self.stream_time.saturating_sub(self.store.retention_ms);
        let mut found = Vec::new();
        for entry in self.bytes.scan(self.id, &range, Direction::Reverse) {
            let (key, value) = entry.map_err(|error| StoreError::State(error.to_string()))?;
            let start = key.get(prefix.len()..).and_then(take_time).ok_or_else(|| self.store.broken())?.0;
            let entry = self.store.entry(start, &value)?;
            if entry.session.end < from || entry.session.end < gone_to {
                break;
            }
            found.push(entry);
        }
        found.reverse();
        Ok(found)
    }

    /// Sessions of a key that have a moment between `from` and `to` (both included, ms), by start.
    pub fn fetch(&self, key: &K, from: i64, to: i64) -> Result<Vec<Session<V>>, StoreError> {
        Ok(self.entries(key, from, to)?.into_iter().map(|entry| entry.session).collect())
    }

    /// All sessions, by the length and bytes of their keys, then by start.
    pub fn all(&self) -> impl Iterator<Item = Result<(K, Session<V>), StoreError>> {
        let gone_to = self.stream_time.saturating_sub(self.store.retention_ms);
        let entries = self.bytes.scan(self.id, &prefix_range(&[DATA]), Direction::Forward).map(|entry| {
            let (bytes, value) = entry.map_err(|error| StoreError::State(error.to_string()))?;
            let parts =
                bytes.get(1..).and_then(take_sized).and_then(|(key, rest)| Some((key, take_time(rest)?.0)));
            let (key, start) = parts.ok_or_else(|| self.store.broken())?;
            Ok((self.store.handle.key_of(key)?, self.store.entry(start, &value)?.session))
        });
        entries.filter(move |entry| entry.as_ref().map_or(true, |(_, session)| session.end >= gone_to))
    }
}

/// A session store in a processor: reads see the writes before them.
/// ```
/// use ottla_streams::store::{Session, Sessions, StoreError};
///
/// /// Joins what lies within a second of a moment into one session.
/// fn visit(visits: &mut Sessions<'_, String, i64>, visitor: &String, now: i64) -> Result<(), StoreError> {
///     let near = visits.fetch(visitor, now - 1_000, now + 1_000)?;
///     let mut joined = Session { start: now, end: now, value: 1 };
///     for old in near {
///         visits.remove(visitor, old.start)?;
///         joined.start = joined.start.min(old.start);
///         joined.end = joined.end.max(old.end);
///         joined.value += old.value;
///     }
///     visits.put(visitor, joined)
/// }
/// ```
pub struct Sessions<'a, K, V> {
    store: &'a SessionStore<K, V>,
    core: &'a mut Core,
}

impl<K: 'static, V: 'static> Sessions<'_, K, V> {
    /// Sessions of a key that have a moment between `from` and `to` (both included, ms), by start.
    pub fn fetch(&self, key: &K, from: i64, to: i64) -> Result<Vec<Session<V>>, StoreError> {
        self.store.reader(self.core)?.fetch(key, from, to)
    }

    /// Sets the value of a session; one of the same start is replaced. Sessions of one key must not overlap; who
    /// merges them removes the old ones.
    pub fn put(&mut self, key: &K, session: Session<V>) -> Result<(), StoreError> {
        self.clean()?;
        let (start, end) = (session.start, session.end);
        let known = self.store.find(self.core, key, start)?.is_some();
        let due = (!known).then(|| end.saturating_add(self.store.retention_ms).saturating_add(1));
        let entry = Entry { session, stage: Stage::Open, timestamp: self.core.now };
        self.store.write(self.core, key, &entry, due)
    }

    /// Removes the session of a key that starts then, ms.
    pub fn remove(&mut self, key: &K, start: i64) -> Result<(), StoreError> {
        self.store.remove(self.core, key, start)
    }

    /// Removes a few sessions that are expired.
    fn clean(&mut self) -> Result<(), StoreError> {
        let now = self.core.stream_time;
        for due in self.store.due(self.core, now, CLEAN_PER_WRITE)? {
            self.store.looked(self.core, due.index)?;
            let Some(entry) = self.store.find(self.core, &due.key, due.start)? else { continue };
            let gone = entry.session.end.saturating_add(self.store.retention_ms).saturating_add(1);
            if gone <= now {
                self.store.remove(self.core, &due.key, due.start)?;
            } else {
                self.store.look_again(self.core, &due.key, due.start, gone)?;
            }
        }
        Ok(())
    }
}
