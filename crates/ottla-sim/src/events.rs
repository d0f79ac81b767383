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

    /// The next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        self.events.pop_first().map(|((time_ms, _), event)| (time_ms, event))
    }
}
