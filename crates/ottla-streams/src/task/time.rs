//! Stream time, timers, and what fails where no record is to blame.

use super::{Failure, Task, TaskError, TimerClock, Trouble};

/// Where in a step something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum During {
    Record,
    Time,
    Timer,
    Start,
}

impl During {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Record => "with a record",
            Self::Time => "when stream time moved on",
            Self::Timer => "in a timer",
            Self::Start => "at its start",
        }
    }
}

impl Task {
    /// Moves stream time on, when that moment is later: from closing to closing, each seen by all nodes in the order
    /// of flow, so that what closes first is there for what closes next.
    pub(super) fn move_time(&mut self, to: i64) -> Result<(), TaskError> {
        let mut from = self.core.stream_time;
        while from < to {
            let mut next: Option<i64> = None;
            for index in 0..self.timed.len() {
                let place = self.timed[index];
                let result = self.guarded(|core| {
                    core.with_node(place, |node, cx| {
                        let due = node.next_due(from, to, cx)?;
                        next = [next, due].into_iter().flatten().min();
                        Ok(())
                    })
                });
                self.blameless(result, During::Time)?;
            }
            let Some(tick) = next else { break };
            let tick = tick.clamp(from.saturating_add(1), to);
            self.core.stream_time = tick - 1;
            self.core.now = tick - 1;
            for index in 0..self.timed.len() {
                let place = self.timed[index];
                let result = self.guarded(|core| core.with_node(place, |node, cx| node.advance(tick, cx)));
                self.blameless(result, During::Time)?;
            }
            from = tick;
        }
        self.core.stream_time = self.core.stream_time.max(to);
        Ok(())
    }

    /// Fires the timers of a clock that are due; whether there were any.
    pub(super) fn fire(&mut self, clock: TimerClock, now: i64) -> Result<bool, TaskError> {
        let mut any = false;
        while let Some(due) = self.core.timers.pop(clock, now) {
            any = true;
            self.core.metrics.timers += 1;
            self.core.now = if clock == TimerClock::StreamTime { now } else { self.core.stream_time };
            let result =
                self.guarded(|core| core.with_node(due.node, |node, cx| node.timer(&due.name, due.at, cx)));
            self.blameless(result, During::Timer)?;
        }
        Ok(any)
    }

    /// A failure that no record is to blame for.
    pub(super) fn blameless(&mut self, result: Result<(), Trouble>, during: During) -> Result<(), TaskError> {
        let Err(trouble) = result else { return Ok(()) };
        let node = self.core.culprit();
        self.core.working.clear();
        Err(match trouble {
            Trouble::Failed(Failure::State(error)) => error.into(),
            Trouble::Failed(Failure::Decode(reason) | Failure::Encode(reason) | Failure::Process(reason)) => {
                TaskError::Timer { node, during: during.text(), reason }
            }
            Trouble::Panicked(message) => TaskError::Panicked { at: self.position(), node, message },
        })
    }
}
