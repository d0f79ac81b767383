//! When the coordinator looks at a group's timers.
//!
//! Place in the walk: [`Groups::schedule`](super::Groups::schedule) after every change of a group; the shard's
//! tick takes the groups that are due.
//!
//! Invariants: a group with a timer has one entry, at or before its first deadline. A deadline that moves back
//! (a heartbeat) costs nothing: the entry stays, and the look at it finds the new one.

use std::collections::BTreeSet;

use ottla_protocol::types::Text;

use super::Groups;

/// The groups with timers, by when to look at them.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(i64, Text)>);

impl Timers {
    /// When the first look is due, ms.
    pub(super) fn first(&self) -> Option<i64> {
        self.0.first().map(|(at, _)| *at)
    }
}

impl Groups {
    /// Looks at a group's timers at `at_ms` at the latest.
    pub(super) fn schedule(&mut self, group: &Text, at_ms: i64) {
        let Some(entry) = self.index.get_mut(group.as_bytes().as_ref()) else { return };
        match entry.scheduled {
            Some(at) if at <= at_ms => return,
            Some(at) => {
                self.timers.0.remove(&(at, group.clone()));
            }
            None => {}
        }
        entry.scheduled = Some(at_ms);
        self.timers.0.insert((at_ms, group.detached())); // the name may be a part of a request
    }

    /// Looks at a group's timers when the first of them is due.
    pub(super) fn reschedule(&mut self, group: &Text) {
        let entry = self.index.get(group.as_bytes().as_ref());
        if let Some(at) = entry.and_then(|entry| entry.protocol.next_deadline()) {
            self.schedule(group, at);
        }
    }

    /// Looks at a group's timers no more.
    pub(super) fn unschedule(&mut self, group: &Text) {
        let entry = self.index.get_mut(group.as_bytes().as_ref());
        if let Some(at) = entry.and_then(|entry| entry.scheduled.take()) {
            self.timers.0.remove(&(at, group.clone()));
        }
    }

    /// The next group whose timers are due. It has no entry any more; its handler schedules it again.
    pub(super) fn next_due(&mut self, now_ms: i64) -> Option<Text> {
        if self.timers.first()? > now_ms {
            return None;
        }
        let (_, group) = self.timers.0.pop_first()?;
        if let Some(entry) = self.index.get_mut(group.as_bytes().as_ref()) {
            entry.scheduled = None;
        }
        Some(group)
    }

    /// Forgets all entries and makes them anew.
    pub(super) fn reschedule_all(&mut self) {
        self.timers.0.clear();
        for (name, entry) in &mut self.index {
            entry.scheduled = entry.protocol.next_deadline();
            if let Some(at) = entry.scheduled {
                self.timers.0.insert((at, name.clone()));
            }
        }
    }
}
