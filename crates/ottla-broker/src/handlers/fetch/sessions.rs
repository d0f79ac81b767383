//! Incremental fetch sessions (KIP-227): the broker remembers what a client wants, the client sends changes.
//!
//! As in Kafka: epoch 0 asks for a session, -1 for none, both close the one that is named; any other epoch has to
//! be the session's next. A session begins with the answer to its first request, and ends when nothing is left
//! in it. It is volatile: a restart forgets it and the client starts anew. Sessions and the partitions in them
//! are bounded. Room for a new one is made by one that was unused for two minutes, else by one that is smaller
//! and at least two minutes old. Kafka lets followers' sessions evict clients'; nobody is a follower here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ottla_protocol::types::{Text, Uuid};

use super::Wanted;
use crate::limits::FETCH_SESSION_PARTITIONS_MAX;

/// A session may be replaced once it was unused, or is old, for longer than this.
const EVICTION_AGE: Duration = Duration::from_secs(120);
/// A bound that was never said, or has to be said again.
const UNSAID: (i64, i64) = (-1, -1);

/// Why a session cannot be used; the client starts a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionError {
    /// No such session.
    UnknownId,
    /// The request is not the session's next.
    WrongEpoch,
    /// The session names topics by name and the request by id, or the other way round.
    IdsAndNames,
}

type Key = (Text, Uuid, i32);

/// What a request says of its session.
pub struct Asked {
    /// The session, 0 for none.
    pub session_id: i32,
    /// 0 for a new one, -1 for none.
    pub session_epoch: i32,
    /// Partitions that are new or wanted otherwise; without a session, all.
    pub changes: Vec<Wanted>,
    /// Partitions that are not wanted any more.
    pub forgotten: Vec<(Text, Uuid, i32)>,
    /// Topics are named by id.
    pub by_id: bool,
}

/// What a fetch reads, and for which session.
#[derive(Debug)]
pub struct Chosen {
    kind: Kind,
    /// What is read, in order.
    pub wanted: Vec<Wanted>,
    /// What the session last said of each: high watermark and log start.
    said: Vec<(i64, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sessionless,
    /// A session begins with the answer.
    New {
        by_id: bool,
    },
    /// Only changes are answered.
    Next {
        session_id: i32,
        epoch: i32,
    },
}

/// What an answer says of one partition.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// High watermark and log start; -1 with an error.
    pub bounds: (i64, i64),
    /// Records are in it.
    pub has_records: bool,
    /// An error is in it.
    pub has_error: bool,
}

impl Chosen {
    /// Whether the partition at this place is in the answer: always, but in a session only with news.
    pub fn is_told(&self, place: usize, said: Said) -> bool {
        !matches!(self.kind, Kind::Next { .. })
            || said.has_records
            || said.has_error
            || self.said.get(place) != Some(&said.bounds)
    }
}

struct Session {
    by_id: bool,
    /// Epoch of the next request.
    epoch: i32,
    created: Duration,
    used: Duration,
    /// Partitions when it was last used: what it weighs.
    size: usize,
    next_order: u64,
    /// In the order in which they are read; those that gave data go to the end.
    order: BTreeMap<u64, (Wanted, (i64, i64))>,
    places: BTreeMap<Key, u64>,
}

/// All sessions.
pub struct FetchSessions {
    state: Mutex<State>,
    sessions_max: usize,
}

struct State {
    sessions: BTreeMap<i32, Session>,
    /// All, by when they were last used.
    by_use: BTreeSet<(Duration, i32)>,
    /// Those that were old when they were last used, by weight.
    evictable: BTreeSet<(usize, i32)>,
    partitions: usize,
    evictions: u64,
    next_id: u64,
}

/// How many sessions there are; for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions.
    pub sessions: usize,
    /// Partitions in all of them.
    pub partitions: usize,
    /// Sessions that made room for others, since the start.
    pub evictions: u64,
}

impl FetchSessions {
    /// No sessions; `seed` makes their ids hard to guess.
    pub fn new(sessions_max: usize, seed: u64) -> Self {
        let state = State {
            sessions: BTreeMap::new(),
            by_use: BTreeSet::new(),
            evictable: BTreeSet::new(),
            partitions: 0,
            evictions: 0,
            next_id: seed,
        };
        Self { state: Mutex::new(state), sessions_max }
    }

    /// Applies what a request says of its session, and tells what to read.
    pub fn begin(&self, asked: Asked, now: Duration) -> Result<Chosen, SessionError> {
        let mut state = self.lock();
        let Asked { session_id, session_epoch, changes, forgotten, by_id } = asked;
        if matches!(session_epoch, 0 | -1) {
            state.remove(session_id);
            let kind = if session_epoch == 0 { Kind::New { by_id } } else { Kind::Sessionless };
            return Ok(Chosen { kind, said: Vec::new(), wanted: once_each(changes) });
        }
        let partitions = state.partitions;
        let session = state.sessions.get_mut(&session_id).ok_or(SessionError::UnknownId)?;
        if session.epoch != session_epoch {
            return Err(SessionError::WrongEpoch);
        }
        if session.by_id != by_id {
            return Err(SessionError::IdsAndNames);
        }
        if partitions + changes.len() > FETCH_SESSION_PARTITIONS_MAX {
            // The client comes back with all that it wants, and gets no session.
            state.remove(session_id);
            return Err(SessionError::UnknownId);
        }
        let before = session.order.len();
        changes.iter().cloned().for_each(|wanted| session.set(wanted, UNSAID));
        forgotten.iter().for_each(|key| session.forget(key));
        session.epoch = next_epoch(session_epoch);
        let (epoch, after) = (session.epoch, session.order.len());
        let (wanted, said) = session.order.values().cloned().unzip();
        state.partitions = partitions + after - before;
        if after == 0 {
            state.remove(session_id);
            return Ok(Chosen { kind: Kind::Sessionless, wanted: once_each(changes), said: Vec::new() });
        }
        state.touch(session_id, now);
        Ok(Chosen { kind: Kind::Next { session_id, epoch }, wanted, said })
    }

    /// Remembers what an answer says of each wanted partition, and moves those that gave data behind the others.
    /// Gives the id of the session, 0 for none. `WrongEpoch` when somebody else has used it meanwhile.
    pub fn finish(&self, chosen: Chosen, said: &[Said], now: Duration) -> Result<i32, SessionError> {
        let mut state = self.lock();
        match chosen.kind {
            Kind::Sessionless => Ok(0),
            Kind::New { by_id } => Ok(state.create(self.sessions_max, chosen.wanted, said, by_id, now)),
            Kind::Next { session_id, epoch } => {
                let session = state.sessions.get_mut(&session_id);
                let session = session.filter(|session| session.epoch == epoch);
                let session = session.ok_or(SessionError::WrongEpoch)?;
                chosen.wanted.iter().zip(said).for_each(|(wanted, said)| session.note(wanted, said));
                Ok(session_id)
            }
        }
    }

    /// How many there are.
    pub fn counts(&self) -> Counts {
        let state = self.lock();
        Counts { sessions: state.sessions.len(), partitions: state.partitions, evictions: state.evictions }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, session_id: i32) {
        if let Some(session) = self.sessions.remove(&session_id) {
            self.partitions -= session.order.len();
            self.by_use.remove(&(session.used, session_id));
            self.evictable.remove(&(session.size, session_id));
        }
    }

    fn touch(&mut self, session_id: i32, now: Duration) {
        let session = self.sessions.get_mut(&session_id).expect("only sessions that exist are used");
        self.by_use.remove(&(session.used, session_id));
        self.evictable.remove(&(session.size, session_id));
        (session.used, session.size) = (now, session.order.len());
        self.by_use.insert((now, session_id));
        if now.saturating_sub(session.created) > EVICTION_AGE {
            self.evictable.insert((session.size, session_id));
        }
    }

    /// A new session's id, or 0 when there is no room for one.
    fn create(
        &mut self,
        sessions_max: usize,
        wanted: Vec<Wanted>,
        said: &[Said],
        by_id: bool,
        now: Duration,
    ) -> i32 {
        let size = wanted.len();
        if self.partitions + size > FETCH_SESSION_PARTITIONS_MAX
            || (self.sessions.len() >= sessions_max && !self.evict_for(size, now))
        {
            return 0;
        }
        let mut session = Session {
            by_id,
            epoch: 1,
            created: now,
            used: now,
            size,
            next_order: 0,
            order: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        wanted.into_iter().zip(said).for_each(|(wanted, said)| session.set(wanted, said.bounds));
        self.partitions += session.order.len();
        let id = self.unused_id();
        self.sessions.insert(id, session);
        self.touch(id, now);
        id
    }

    /// Makes room for a session of `size` partitions, if one may go for it.
    fn evict_for(&mut self, size: usize, now: Duration) -> bool {
        let stale = self.by_use.first().filter(|(used, _)| now.saturating_sub(*used) > EVICTION_AGE);
        let stale = stale.map(|(_, id)| *id);
        let smaller = || self.evictable.first().filter(|(weight, _)| *weight < size).map(|(_, id)| *id);
        match stale.or_else(smaller) {
            Some(id) => {
                self.remove(id);
                self.evictions += 1;
                true
            }
            None => false,
        }
    }

    fn unused_id(&mut self) -> i32 {
        loop {
            self.next_id =
                self.next_id.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = (self.next_id >> 33) as i32;
            if id > 0 && !self.sessions.contains_key(&id) {
                return id;
            }
        }
    }
}

impl Session {
    /// Keeps a copy of the topic's name: one that shares the request's bytes would keep all of them for as long as the
    /// session lives, out of every budget.
    fn set(&mut self, wanted: Wanted, said: (i64, i64)) {
        let key = key_of(&wanted);
        if let Some((old, _)) = self.places.get(&key).and_then(|place| self.order.get_mut(place)) {
            *old = Wanted { topic: old.topic.clone(), ..wanted };
        } else {
            let wanted = Wanted { topic: wanted.topic.detached(), ..wanted };
            self.places.insert(key_of(&wanted), self.next_order);
            self.order.insert(self.next_order, (wanted, said));
            self.next_order += 1;
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(place) = self.places.remove(key) {
            self.order.remove(&place);
        }
    }

    fn note(&mut self, wanted: &Wanted, said: &Said) {
        let Some(place) = self.places.get_mut(&key_of(wanted)) else { return };
        let Some((_, bounds)) = self.order.get_mut(place) else { return };
        *bounds = if said.has_error { UNSAID } else { said.bounds };
        if said.has_records
            && let Some(entry) = self.order.remove(place)
        {
            *place = self.next_order;
            self.order.insert(self.next_order, entry);
            self.next_order += 1;
        }
    }
}

/// A partition that is named twice is wanted as it was named last, at its first place.
fn once_each(wanted: Vec<Wanted>) -> Vec<Wanted> {
    let mut places = BTreeMap::new();
    let mut once: Vec<Wanted> = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let place = *places.entry(key_of(&wanted)).or_insert(once.len());
        match once.get_mut(place) {
            Some(first) => *first = wanted,
            None => once.push(wanted),
        }
    }
    once
}

fn key_of(wanted: &Wanted) -> Key {
    (wanted.topic.clone(), wanted.topic_id, wanted.partition)
}

fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch + 1 }
}

#[cfg(test)]
mod tests;
