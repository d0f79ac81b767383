//! For proofs only: what the environment asks of an application that is to be killed at a certain point.
//!
//! | variable | effect |
//! |---|---|
//! | `OTTLA_STREAMS_KILL_AT=POINT[:N]` | SIGKILL to itself when a worker passes the point the N-th time (default 1): the name of a [`Step`], or `in-restore` for the restore threads |
//! | `OTTLA_STREAMS_HOLD_AT=STEP[:N]` | a worker tells that it is there (the event `held`), and stands still for half a second, so that whoever listens can break the cluster under it |

use std::time::Duration;

use ottla_env::process::{self, Signal};
use ottla_env::spawn::Handle;
use ottla_env::time;

use crate::worker::{Hook, Step, Stopped};

/// How long a worker stands still.
const HOLD: Duration = Duration::from_millis(500);
/// The point in the restore threads.
const IN_RESTORE: &str = "in-restore";

/// A point, and how often it is still passed unharmed.
struct At {
    name: String,
    left: u32,
}

impl At {
    fn from_variable(variable: &str) -> Option<Self> {
        let text = std::env::var(variable).ok()?;
        let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
        match count.parse() {
            Ok(left) if name == IN_RESTORE || Step::from_name(name).is_some() => {
                Some(Self { name: name.to_owned(), left })
            }
            _ => {
                tracing::error!(variable, text, "no such point: it is passed over");
                None
            }
        }
    }

    /// Whether this is the passage that was meant.
    fn is_now(&mut self, name: &str) -> bool {
        if self.name != name || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.left == 0
    }
}

fn kill() {
    if let Err(error) = process::send_signal(process::id(), Signal::Kill) {
        tracing::error!(%error, "the process could not kill itself");
    }
}

/// What a worker has to go through.
pub(super) struct Ordeal {
    kill: Option<At>,
    hold: Option<At>,
    runtime: Handle,
}

impl Ordeal {
    /// `None` in ordinary work.
    pub(super) fn from_environment(runtime: &Handle) -> Option<Self> {
        let (kill, hold) =
            (At::from_variable("OTTLA_STREAMS_KILL_AT"), At::from_variable("OTTLA_STREAMS_HOLD_AT"));
        (kill.is_some() || hold.is_some()).then(|| Self { kill, hold, runtime: runtime.clone() })
    }
}

impl Hook for Ordeal {
    fn at(&mut self, step: Step) -> Result<(), Stopped> {
        if self.hold.as_mut().is_some_and(|at| at.is_now(step.name())) {
            tracing::info!(at = step.name(), "held");
            self.runtime.block_on(time::sleep(HOLD));
        }
        if self.kill.as_mut().is_some_and(|at| at.is_now(step.name())) {
            kill();
        }
        Ok(())
    }
}

/// What a restore thread has to go through.
pub(super) struct RestoreOrdeal(Option<At>);

impl RestoreOrdeal {
    pub(super) fn from_environment() -> Self {
        Self(At::from_variable("OTTLA_STREAMS_KILL_AT").filter(|at| at.name == IN_RESTORE))
    }

    /// A piece of a changelog was replayed.
    pub(super) fn replayed(&mut self) {
        if self.0.as_mut().is_some_and(|at| at.is_now(IN_RESTORE)) {
            kill();
        }
    }
}
