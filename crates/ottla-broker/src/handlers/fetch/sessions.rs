//! Incremental fetch sessions (KIP-227): the broker remembers what a client wants, the client sends changes.
//!
//! A session is volatile: a restart forgets it and the client starts anew. Sessions and the partitions in them
//! are bounded; the one unused for longest makes room, but only after it rested for two minutes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ottla_protocol::types::{Text, Uuid};

use super::Wanted;
use crate::limits::FETCH_SESSION_PARTITIONS_MAX;

/// A session may be replaced once it was unused for this long.
const REST_BEFORE_EVICTION: Duration = Duration::from_secs(120);

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

/// What a fetch reads, and for which session.
pub struct Chosen {
    /// 0: none.
    pub session_id: i32,
    /// Only changes are answered.
    pub incremental: bool,
    /// What is read, in order.
    pub wanted: Vec<Wanted>,
    /// What the session last said: high watermark and log start.
    said: BTreeMap<Key, (i64, i64)>,
}

impl Chosen {
    /// Whether the bounds are other than what the session last said.
    pub fn notes_change(&self, wanted: &Wanted, high_watermark: i64, log_start_offset: i64) -> bool {
        self.said.get(&key_of(wanted)) != Some(&(high_watermark, log_start_offset))
    }
}

struct Session {
    by_id: bool,
    epoch: i32,
    used: Duration,
    next_order: u64,
    /// In the order in which they are read; those that gave data go to the end.
    order: BTreeMap<u64, Wanted>,
    places: BTreeMap<Key, (u64, (i64, i64))>,
}

/// All sessions.
pub struct FetchSessions {
    state: Mutex<State>,
    sessions_max: usize,
}

struct State {
    sessions: BTreeMap<i32, Session>,
    partitions: usize,
    next_id: u64,
}

impl FetchSessions {
    /// No sessions; `seed` makes their ids hard to guess.
    pub fn new(sessions_max: usize, seed: u64) -> Self {
        Self {
            state: Mutex::new(State { sessions: BTreeMap::new(), partitions: 0, next_id: seed }),
            sessions_max,
        }
    }

    /// Applies what a request says of its session, and tells what to read.
    pub fn begin(
        &self,
        session_id: i32,
        session_epoch: i32,
        changes: Vec<Wanted>,
        forgotten: &[(Text, Uuid, i32)],
        by_id: bool,
        now: Duration,
    ) -> Result<Chosen, SessionError> {
        let mut state = self.lock();
        if session_epoch <= 0 {
            if session_id != 0 {
                state.remove(session_id);
            }
            let session_id = match session_epoch {
                0 => state.create(self.sessions_max, &changes, by_id, now),
                _ => 0,
            };
            return Ok(Chosen { session_id, incremental: false, wanted: changes, said: BTreeMap::new() });
        }
        let State { sessions, partitions, .. } = &mut *state;
        let session = sessions.get_mut(&session_id).ok_or(SessionError::UnknownId)?;
        if session.epoch != session_epoch {
            return Err(SessionError::WrongEpoch);
        }
        if session.by_id != by_id && !(changes.is_empty() && forgotten.is_empty()) {
            return Err(SessionError::IdsAndNames);
        }
        let before = session.order.len();
        for key in forgotten {
            session.forget(key);
        }
        for wanted in changes {
            if *partitions + session.order.len() - before < FETCH_SESSION_PARTITIONS_MAX {
                session.set(wanted);
            }
        }
        *partitions = *partitions + session.order.len() - before;
        session.epoch = next_epoch(session_epoch);
        session.used = now;
        let said = session.places.iter().map(|(key, (_, said))| (key.clone(), *said)).collect();
        Ok(Chosen { session_id, incremental: true, wanted: session.order.values().cloned().collect(), said })
    }

    /// Remembers what an answer said, and moves partitions that gave data behind the others.
    pub fn note(&self, session_id: i32, notes: &[(Wanted, i64, i64, bool)]) {
        let mut state = self.lock();
        let Some(session) = state.sessions.get_mut(&session_id) else { return };
        for (wanted, high_watermark, log_start_offset, gave_data) in notes {
            let Some((place, said)) = session.places.get_mut(&key_of(wanted)) else { continue };
            *said = (*high_watermark, *log_start_offset);
            if *gave_data && let Some(wanted) = session.order.remove(place) {
                *place = session.next_order;
                session.order.insert(session.next_order, wanted);
                session.next_order += 1;
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, session_id: i32) {
        if let Some(session) = self.sessions.remove(&session_id) {
            self.partitions -= session.order.len();
        }
    }

    /// A new session's id, or 0 when there is no room for one.
    fn create(&mut self, sessions_max: usize, wanted: &[Wanted], by_id: bool, now: Duration) -> i32 {
        let oldest = self.sessions.iter().min_by_key(|(_, session)| session.used);
        if self.sessions.len() >= sessions_max
            && let Some((&id, _)) =
                oldest.filter(|(_, session)| now.saturating_sub(session.used) > REST_BEFORE_EVICTION)
        {
            self.remove(id);
        }
        if self.sessions.len() >= sessions_max
            || self.partitions + wanted.len() > FETCH_SESSION_PARTITIONS_MAX
        {
            return 0;
        }
        let mut session = Session {
            by_id,
            epoch: 1,
            used: now,
            next_order: 0,
            order: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        wanted.iter().cloned().for_each(|wanted| session.set(wanted));
        self.partitions += session.order.len();
        let id = self.unused_id();
        self.sessions.insert(id, session);
        id
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
    fn set(&mut self, wanted: Wanted) {
        let key = key_of(&wanted);
        let order = &mut self.order;
        if let Some((place, _)) = self.places.get(&key) {
            order.insert(*place, wanted);
        } else {
            order.insert(self.next_order, wanted);
            self.places.insert(key, (self.next_order, (-1, -1)));
            self.next_order += 1;
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some((place, _)) = self.places.remove(key) {
            self.order.remove(&place);
        }
    }
}

fn key_of(wanted: &Wanted) -> Key {
    (wanted.topic.clone(), wanted.topic_id, wanted.partition)
}

fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(partition: i32, fetch_offset: i64) -> Wanted {
        Wanted {
            topic: Text::from_static("t"),
            topic_id: Uuid::ZERO,
            partition,
            fetch_offset,
            max_bytes: 1,
            current_leader_epoch: -1,
        }
    }

    fn partitions(chosen: &Chosen) -> Vec<(i32, i64)> {
        chosen.wanted.iter().map(|wanted| (wanted.partition, wanted.fetch_offset)).collect()
    }

    const NOW: Duration = Duration::from_secs(1000);

    /// Proves: a session remembers, changes, forgets, rotates what gave data, and notices what it said.
    #[test]
    fn a_session_goes_on_by_changes() {
        let sessions = FetchSessions::new(2, 7);
        let first = sessions.begin(0, 0, vec![wanted(0, 0), wanted(1, 0), wanted(2, 0)], &[], false, NOW);
        let first = first.unwrap_or_else(|error| panic!("{error:?}"));
        assert!(first.session_id > 0 && !first.incremental);
        let id = first.session_id;
        sessions.note(id, &[(wanted(0, 0), 10, 0, true), (wanted(1, 0), 5, 0, false)]);
        let forgotten = [(Text::from_static("t"), Uuid::ZERO, 2)];
        let next = sessions.begin(id, 1, vec![wanted(0, 10)], &forgotten, false, NOW);
        let next = next.unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(partitions(&next), vec![(1, 0), (0, 10)]);
        assert!(next.incremental && !next.notes_change(&wanted(0, 10), 10, 0));
        assert!(next.notes_change(&wanted(1, 0), 6, 0));
    }

    /// Proves: wrong ids, epochs and namings are refused; a final epoch closes; slots are bounded.
    #[test]
    fn refusals_and_bounds() {
        let sessions = FetchSessions::new(1, 7);
        let begin = |id, epoch, by_id, now| {
            sessions.begin(id, epoch, vec![wanted(0, 0)], &[], by_id, now).map(|chosen| chosen.session_id)
        };
        let id = begin(0, 0, false, NOW).expect("created");
        assert_eq!(begin(id + 1, 1, false, NOW), Err(SessionError::UnknownId));
        assert_eq!(begin(id, 2, false, NOW), Err(SessionError::WrongEpoch));
        assert_eq!(begin(id, 1, true, NOW), Err(SessionError::IdsAndNames));
        assert_eq!(begin(0, 0, false, NOW), Ok(0), "no slot, and the one session is fresh");
        assert!(begin(0, 0, false, NOW + Duration::from_secs(121)).expect("evicted") > 0);
        assert_eq!(begin(id, 1, false, NOW), Err(SessionError::UnknownId));
        assert_eq!(begin(0, -1, false, NOW), Ok(0));
    }
}
