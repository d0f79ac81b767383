//! The node of a session aggregation: joins sessions that a record brings together, closes them when stream time has
//! passed their end, gap and grace. Output 0 has every change (a session that grows is gone under its old bounds),
//! output 1 the final results.
//!
//! A session that is closed never changes again, and a record that would be closed by itself is late; so the sessions
//! of a key never overlap.

use std::any::Any;
use std::sync::Arc;

use super::window_node::Add;
use super::windows::{SessionSpans, Windowed};
use crate::codec::SharedCodec;
use crate::processor::Record;
use crate::store::{Due, Session, SessionEntry, SessionStore, Stage};
use crate::task::node::{Cx, taken};
use crate::task::{Failure, Node};

/// Sessions that are looked at between two looks at the store.
const PIECE: usize = 256;

/// Makes one result of two sessions', the earlier one first.
pub(super) type Merge<A> = Arc<dyn Fn(A, A) -> A + Send + Sync>;

/// The node.
pub(super) struct SessionNode<K, V, A> {
    pub(super) store: SessionStore<K, A>,
    pub(super) keys: SharedCodec<K>,
    pub(super) spans: SessionSpans,
    pub(super) add: Add<K, V, A>,
    pub(super) merge: Merge<A>,
    /// No note is due before it; absent = not known. A shortcut only: the store knows.
    pub(super) nothing_before: Option<i64>,
}

impl<K: Clone + 'static, V: 'static, A: Clone + 'static> SessionNode<K, V, A> {
    /// Looks at a session whose note is due.
    fn look(&self, due: Due<K>, now: i64, cx: &mut Cx<'_>) -> Result<(), Failure> {
        self.store.looked(cx.core, due.index)?;
        let Some(entry) = self.store.find(cx.core, &due.key, due.start)? else { return Ok(()) };
        let (closes_at, gone_at) =
            (self.spans.closes_at(entry.session.end), self.spans.gone_at(entry.session.end));
        if closes_at > now {
            return Ok(self.store.look_again(cx.core, &due.key, due.start, closes_at)?);
        }
        if gone_at <= now {
            self.store.remove(cx.core, &due.key, due.start)?;
        } else {
            let closed = SessionEntry { stage: Stage::Closed, session: entry.session.clone(), ..entry };
            self.store.write(cx.core, &due.key, &closed, Some(gone_at))?;
        }
        if entry.stage == Stage::Open {
            let Session { start, end, value } = entry.session;
            let key = Windowed { key: due.key, start, end };
            cx.forward(1, Record::new(key, value, entry.timestamp))?;
        }
        Ok(())
    }
}

impl<K: Clone + 'static, V: 'static, A: Clone + 'static> Node for SessionNode<K, V, A> {
    fn process(&mut self, _port: u8, item: &mut dyn Any, cx: &mut Cx<'_>) -> Result<(), Failure> {
        let record = taken::<K, V>(item);
        if self.keys.is_null(&record.key) {
            cx.core.metrics.null_keys += 1;
            return Ok(());
        }
        let now = cx.core.stream_time;
        let moment = record.timestamp;
        if self.spans.closes_at(moment) <= now {
            cx.core.metrics.late += 1;
            return Ok(());
        }
        let (from, to) = (moment.saturating_sub(self.spans.gap_ms), moment.saturating_add(self.spans.gap_ms));
        let mut near = self.store.overlapping(cx.core, &record.key, from, to)?;
        near.retain(|entry| self.spans.closes_at(entry.session.end) > now);
        let start = near.iter().map(|entry| entry.session.start).fold(moment, i64::min);
        let end = near.iter().map(|entry| entry.session.end).fold(moment, i64::max);
        let timestamp = near.iter().map(|entry| entry.timestamp).fold(moment, i64::max);
        let starts_anew = near.iter().all(|entry| entry.session.start != start);
        let gone: Vec<(i64, i64)> =
            near.iter().map(|entry| (entry.session.start, entry.session.end)).collect();
        let before =
            near.into_iter().map(|entry| entry.session.value).reduce(|one, two| (self.merge)(one, two));
        let value = (self.add)(before, &record);
        for (old, _) in gone.iter().filter(|(old, _)| *old != start) {
            self.store.remove(cx.core, &record.key, *old)?;
        }
        let session = Session { start, end, value };
        let entry = SessionEntry { session, stage: Stage::Open, timestamp };
        let due = starts_anew.then(|| self.spans.closes_at(end));
        self.store.write(cx.core, &record.key, &entry, due)?;
        if let (Some(due), Some(known)) = (due, self.nothing_before) {
            self.nothing_before = Some(known.min(due));
        }
        for (old_start, old_end) in gone.into_iter().filter(|old| *old != (start, end)) {
            let key = Windowed { key: record.key.clone(), start: old_start, end: old_end };
            cx.forward(0, Record { key, value: None::<A>, timestamp, headers: record.headers.clone() })?;
        }
        let key = Windowed { key: record.key, start, end };
        let value = Some(entry.session.value);
        cx.forward(0, Record { key, value, timestamp, headers: record.headers })
    }

    fn wants_time(&self) -> bool {
        true
    }

    fn next_due(&mut self, _from: i64, to: i64, cx: &mut Cx<'_>) -> Result<Option<i64>, Failure> {
        if self.nothing_before.is_some_and(|moment| moment > to) {
            return Ok(None);
        }
        let first = self.store.due(cx.core, i64::MAX, 1)?;
        let at = first.first().map_or(i64::MAX, |due| due.at);
        self.nothing_before = Some(at);
        Ok((at <= to).then_some(at))
    }

    fn advance(&mut self, to: i64, cx: &mut Cx<'_>) -> Result<(), Failure> {
        if self.nothing_before.is_some_and(|moment| moment > to) {
            return Ok(());
        }
        self.nothing_before = None;
        loop {
            let piece = self.store.due(cx.core, to, PIECE)?;
            if piece.is_empty() {
                return Ok(());
            }
            for due in piece {
                self.look(due, to, cx)?;
            }
        }
    }
}
