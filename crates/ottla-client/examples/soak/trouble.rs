//! The workers' processes, and what is done to them and to the broker.

use std::ffi::OsString;
use std::io;
use std::process::{ChildStdin, ExitStatus};
use std::time::Duration;

use ottla_env::process::{self, Child, Output, Signal};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn::{self, TaskHandle};
use ottla_env::time::{self, Instant};

use super::{Failure, TICK, worker};

/// Between two strikes at workers, in ms.
const STRIKE_MS: (u64, u64) = (1000, 4000);
/// Between two kills of the broker, in ms.
const BREAK_MS: (u64, u64) = (3000, 8000);
/// One strike in so many stops a worker instead of killing it.
const FREEZE_ONE_IN: u64 = 4;
/// Longer than session and transaction, and than the coordinator takes to notice (10 s).
const FROZEN: Duration = Duration::from_secs(12 + worker::SESSION.as_secs() + worker::TRANSACTION.as_secs());
/// Before a worker that ended by itself is started again.
const RESPITE: Duration = Duration::from_millis(300);

/// A place for a worker, with a transactional id of its own.
struct Slot {
    arguments: Vec<OsString>,
    child: Child,
    /// Closed when this is dropped: the child ends.
    _stdin: Option<ChildStdin>,
    revive_at: Option<Instant>,
    thaw_at: Option<Instant>,
}

/// A child is never left behind, not even a stopped one.
impl Drop for Slot {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill(); // it has ended meanwhile: fine
        }
    }
}

/// All workers.
pub(crate) struct Trouble {
    rng: SeededRng,
    slots: Vec<Slot>,
    break_command: Option<String>,
    breaking: Option<TaskHandle<io::Result<ExitStatus>>>,
    strike_at: Instant,
    break_at: Instant,
    kills: u32,
    freezes: u32,
    breaks: u32,
    exits: u32,
}

impl Trouble {
    pub(crate) fn new(rng: SeededRng, break_command: Option<String>) -> Self {
        let soon = time::now() + Duration::from_millis(BREAK_MS.0);
        let (slots, breaking) = (Vec::new(), None);
        let (kills, freezes, breaks, exits) = (0, 0, 0, 0);
        Self {
            rng,
            slots,
            break_command,
            breaking,
            strike_at: soon,
            break_at: soon,
            kills,
            freezes,
            breaks,
            exits,
        }
    }

    /// Starts a worker with these arguments.
    pub(crate) fn add(&mut self, arguments: [String; 6]) -> Result<(), Failure> {
        let arguments: Vec<OsString> =
            std::iter::once(worker::COMMAND.to_owned()).chain(arguments).map(OsString::from).collect();
        let (child, stdin) = start(&arguments)?;
        self.slots.push(Slot { arguments, child, _stdin: stdin, revive_at: None, thaw_at: None });
        Ok(())
    }

    /// Starts again what has ended, wakes what has slept, and strikes when it is time for it and `strikes`.
    pub(crate) async fn tend(&mut self, strikes: bool) -> Result<(), Failure> {
        let now = time::now();
        for slot in &mut self.slots {
            if slot.thaw_at.is_some_and(|at| at <= now) {
                slot.child.signal(Signal::Continue)?;
                slot.thaw_at = None;
            }
            match slot.revive_at {
                Some(at) if at > now => continue,
                Some(_) => {}
                None => match slot.child.try_wait()? {
                    None => continue,
                    Some(status) if status.code().is_some() => {
                        self.exits += 1;
                        slot.revive_at = Some(now + RESPITE);
                        continue;
                    }
                    Some(_) => {}
                },
            }
            (slot.child, slot._stdin) = start(&slot.arguments)?;
            (slot.revive_at, slot.thaw_at) = (None, None);
        }
        if strikes {
            self.strike(now).await?;
        }
        Ok(())
    }

    async fn strike(&mut self, now: Instant) -> Result<(), Failure> {
        if self.strike_at <= now {
            self.strike_at = now + Duration::from_millis(self.rng.between(STRIKE_MS.0, STRIKE_MS.1));
            // who is stopped must wake up as a zombie, and not be killed before
            let mut awake: Vec<&mut Slot> =
                self.slots.iter_mut().filter(|slot| slot.thaw_at.is_none()).collect();
            if !awake.is_empty() {
                let victim = self.rng.index(awake.len());
                let slot = &mut awake[victim];
                if self.rng.one_in(FREEZE_ONE_IN) {
                    slot.child.signal(Signal::Stop)?;
                    slot.thaw_at = Some(now + FROZEN);
                    self.freezes += 1;
                } else {
                    slot.child.signal(Signal::Kill)?;
                    self.kills += 1;
                }
            }
        }
        if self.breaking.as_ref().is_some_and(TaskHandle::is_finished) {
            self.broken().await?;
            self.break_at = now + Duration::from_millis(self.rng.between(BREAK_MS.0, BREAK_MS.1));
        }
        let is_due = self.breaking.is_none() && self.break_at <= now;
        if let Some(command) = self.break_command.clone().filter(|_| is_due) {
            self.breaks += 1;
            self.breaking = Some(spawn::blocking("soak-break", move || {
                process::spawn("sh".as_ref(), &["-c", &command], false, Output::Null, Output::Inherit)?.wait()
            }));
        }
        Ok(())
    }

    /// Waits for the command that breaks the broker.
    async fn broken(&mut self) -> Result<(), Failure> {
        match self.breaking.take() {
            None => Ok(()),
            Some(breaking) => match breaking.await?? {
                status if status.success() => Ok(()),
                status => Err(format!("SOAK_BREAK failed: {status}").into()),
            },
        }
    }

    /// Goes on until the broker is back and everybody is awake.
    pub(crate) async fn settle(&mut self) -> Result<(), Failure> {
        self.broken().await?;
        while self.slots.iter().any(|slot| slot.thaw_at.is_some()) {
            self.tend(false).await?;
            time::sleep(TICK).await;
        }
        Ok(())
    }

    /// Ends all workers.
    pub(crate) fn end(&mut self) {
        self.slots.clear();
    }

    /// As fields of a JSON object.
    pub(crate) fn counts(&self) -> String {
        let Self { kills, freezes, breaks, exits, .. } = self;
        format!("\"kills\": {kills}, \"freezes\": {freezes}, \"broker_kills\": {breaks}, \"exits\": {exits}")
    }
}

fn start(arguments: &[OsString]) -> Result<(Child, Option<ChildStdin>), Failure> {
    let program = process::current_program()?;
    let mut child = process::spawn(program.as_os_str(), arguments, true, Output::Null, Output::Inherit)?;
    let stdin = child.take_stdin();
    Ok((child, stdin))
}
