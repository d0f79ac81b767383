//! The queue of what happens next, by virtual time; ties are broken by the order of scheduling.

use std::collections::BTreeMap;

/// Events by time.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    events: BTreeMap<(u64, u64), T>,
    scheduled: u64,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Self {
        Self { events: BTreeMap::new(), scheduled: 0 }
    }

    /// Schedules an event at a time in ms.
    pub(crate) fn at(&mut self, time_ms: u64, event: T) {
        self.scheduled += 1;
        self.events.insert((time_ms, self.scheduled), event);
    }

    /// The next event, its time and its number, if it is not behind `until_ms`.
    pub(crate) fn pop_until(&mut self, until_ms: u64) -> Option<(u64, u64, T)> {
        let first = self.events.first_entry().filter(|first| first.key().0 <= until_ms)?;
        let ((time_ms, number), event) = first.remove_entry();
        Some((time_ms, number, event))
    }

    /// Puts an event back for later. It keeps its number: what was scheduled first happens first.
    pub(crate) fn postpone(&mut self, time_ms: u64, number: u64, event: T) {
        self.events.insert((time_ms, number), event);
    }
}
