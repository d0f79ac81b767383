//! Timers of a task's processors.
//!
//! A timer is due at the multiples of its interval. On stream time that makes the next moment a function of the
//! stream time alone, which commits with the offsets: timers fire in the step of the record that moves time over a
//! multiple, and nothing else needs to be kept. On the wall clock the next moment is kept in the task's meta, so that
//! a restart neither forgets a tick nor fires it twice. Several multiples passed at once are one tick.

/// Which clock a timer follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerClock {
    /// The highest timestamp of the records taken so far. Repeats exactly when records are taken again.
    StreamTime,
    /// The clock of the machine.
    WallClock,
}

/// One timer.
#[derive(Clone, Debug)]
struct Timer {
    node: usize,
    name: String,
    /// Unique in the sub-topology: node and name.
    full: String,
    clock: TimerClock,
    every_ms: i64,
    /// When it is due; `None` = not known before the clock is first told.
    due: Option<i64>,
}

/// All timers of a task.
#[derive(Debug, Default)]
pub(crate) struct Timers(Vec<Timer>);

/// A timer that is due.
pub(crate) struct Due {
    pub(crate) node: usize,
    pub(crate) name: String,
    pub(crate) at: i64,
}

/// The first multiple after a moment.
fn after(moment: i64, every_ms: i64) -> i64 {
    moment.div_euclid(every_ms).saturating_add(1).saturating_mul(every_ms)
}

impl Timers {
    /// Adds a timer; one of the same node and name is replaced.
    pub(crate) fn schedule(
        &mut self,
        (node, node_name): (usize, &str),
        name: &str,
        clock: TimerClock,
        every_ms: i64,
        (stream_time, kept): (i64, &[(String, i64)]),
    ) {
        let full = format!("{node_name}/{name}");
        let due = match clock {
            TimerClock::StreamTime => (stream_time != i64::MIN).then(|| after(stream_time, every_ms)),
            TimerClock::WallClock => kept.iter().find(|(kept, _)| *kept == full).map(|(_, due)| *due),
        };
        self.0.retain(|timer| timer.full != full);
        self.0.push(Timer { node, name: name.to_owned(), full, clock, every_ms, due });
    }

    /// The next timer of a clock that is due, moved on.
    pub(crate) fn pop(&mut self, clock: TimerClock, now: i64) -> Option<Due> {
        for timer in self.0.iter_mut().filter(|timer| timer.clock == clock) {
            match timer.due {
                None => timer.due = Some(after(now, timer.every_ms)),
                Some(due) if due <= now => {
                    timer.due = Some(after(now, timer.every_ms));
                    return Some(Due { node: timer.node, name: timer.name.clone(), at: now });
                }
                Some(_) => {}
            }
        }
        None
    }

    /// When the next wall-clock timer is due.
    pub(crate) fn next_wall(&self) -> Option<i64> {
        let wall = self.0.iter().filter(|timer| timer.clock == TimerClock::WallClock);
        wall.map(|timer| timer.due.unwrap_or(i64::MIN)).min()
    }

    /// What to keep: wall-clock timers and when they are due.
    pub(crate) fn kept(&self) -> Vec<(String, i64)> {
        let wall = self.0.iter().filter(|timer| timer.clock == TimerClock::WallClock);
        wall.filter_map(|timer| timer.due.map(|due| (timer.full.clone(), due))).collect()
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that several passed multiples are one tick, and that negative times have multiples too.
    #[test]
    fn a_tick_per_passage() {
        let mut timers = Timers::default();
        timers.schedule((0, "n"), "t", TimerClock::StreamTime, 10, (-25, &[]));
        assert!(timers.pop(TimerClock::StreamTime, -21).is_none());
        assert_eq!(timers.pop(TimerClock::StreamTime, -20).map(|due| due.at), Some(-20));
        assert_eq!(timers.pop(TimerClock::StreamTime, 37).map(|due| due.at), Some(37));
        assert!(timers.pop(TimerClock::StreamTime, 39).is_none());
        assert!(timers.pop(TimerClock::StreamTime, 40).is_some());
    }

    /// Proves that a kept wall-clock moment is used after a restart, and that without one the first look only
    /// starts the timer.
    #[test]
    fn wall_clock_is_kept() {
        let mut timers = Timers::default();
        timers.schedule((0, "n"), "t", TimerClock::WallClock, 10, (i64::MIN, &[]));
        assert!(timers.pop(TimerClock::WallClock, 15).is_none());
        assert_eq!(timers.kept(), [("n/t".to_string(), 20)]);
        let kept = timers.kept();
        let mut again = Timers::default();
        again.schedule((0, "n"), "t", TimerClock::WallClock, 10, (i64::MIN, &kept));
        assert_eq!(again.next_wall(), Some(20));
        assert!(again.pop(TimerClock::WallClock, 99).is_some());
        assert!(again.pop(TimerClock::WallClock, 99).is_none());
    }
}
