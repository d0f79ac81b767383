//! Where and when a simulated process dies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::worker::{Hook, Step, Stopped};

/// A place at which a process can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// A step of the commit protocol.
    At(Step),
    /// Inside a write of a store, of a commit or of a recovery.
    InWrite,
    /// Between two pieces of a recovery.
    InRecovery,
}

impl Point {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let steps = Step::ALL.into_iter().map(Self::At);
        steps.chain([Self::InWrite, Self::InRecovery]).collect()
    }
}

impl From<Step> for Point {
    fn from(step: Step) -> Self {
        Self::At(step)
    }
}

#[derive(Debug, Default)]
struct State {
    /// Where, and how many passages before.
    armed: Option<(Point, u64)>,
    tripped: Option<Point>,
    passed: BTreeMap<Point, u64>,
    /// So many reads of a store still fail; whether with damage, else the disk refuses.
    bad_reads: (u32, bool),
}

/// The plan of one process; its hook and its engines share it.
#[derive(Clone, Debug, Default)]
pub(super) struct CrashPlan(Arc<Mutex<State>>);

impl CrashPlan {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dies there, after so many passages.
    pub(super) fn arm(&self, point: Point, after: u64) {
        self.lock().armed = Some((point, after));
    }

    /// Passes a point. `true`: dies here.
    pub(super) fn pass(&self, point: Point) -> bool {
        let mut state = self.lock();
        *state.passed.entry(point).or_default() += 1;
        match state.armed {
            Some((armed, 0)) if armed == point => {
                state.armed = None;
                state.tripped = Some(point);
                true
            }
            Some((armed, left)) if armed == point => {
                state.armed = Some((armed, left - 1));
                false
            }
            Some(_) | None => false,
        }
    }

    /// It has died: nothing that it still tries has any effect.
    pub(super) fn is_dead(&self) -> bool {
        self.lock().tripped.is_some()
    }

    /// It is started again; what was armed and not reached stays.
    pub(super) fn revive(&self) {
        self.lock().tripped = None;
    }

    /// The next reads of a store fail: with damage, or since the disk refuses.
    pub(super) fn fail_reads(&self, times: u32, damaged: bool) {
        self.lock().bad_reads = (times, damaged);
    }

    /// A read of a store: `Some` when it fails, with whether it is damage.
    pub(super) fn read(&self) -> Option<bool> {
        let mut state = self.lock();
        let (left, damaged) = state.bad_reads;
        state.bad_reads.0 = left.checked_sub(1)?;
        Some(damaged)
    }

    /// How often each point was passed.
    pub(super) fn passed(&self) -> BTreeMap<Point, u64> {
        self.lock().passed.clone()
    }
}

impl Hook for CrashPlan {
    fn at(&mut self, step: Step) -> Result<(), Stopped> {
        if self.pass(Point::At(step)) || self.is_dead() { Err(Stopped(step)) } else { Ok(()) }
    }
}
