//! The application's processes, and what is done to them and to the broker.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ottla_env::process::{self, Child, Output, Signal};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn::{self, TaskHandle};
use ottla_env::time::{self, Instant};
use serde_json::Value;

use super::check::Recovery;
use super::points::{Points, Sentence};
use super::{Failure, TICK, application};

/// Between two strikes at processes, in ms.
const STRIKE_MS: (u64, u64) = (1000, 3000);
/// Between two kills of the broker, in ms.
const BREAK_MS: (u64, u64) = (8_000, 20_000);
/// One strike in so many stops a process instead of killing it.
const FREEZE_ONE_IN: u64 = 20;
/// Longer than session and transaction, and than the coordinator takes to notice (10 s).
const FROZEN: Duration =
    Duration::from_secs(10 + application::SESSION.as_secs() + application::TRANSACTION.as_secs());
/// One process in so many that starts under fire is to kill itself at a named point.
const NAMED_ONE_IN: u64 = 2;
/// For so long nobody else kills who is sentenced.
const GRACE: Duration = Duration::from_secs(15);
/// The same, when the broker is to go away first, and has to come back.
const LONG_GRACE: Duration = Duration::from_secs(60);
/// Before a process that ended by itself is started again.
const RESPITE: Duration = Duration::from_millis(300);
/// Longest that a process may take to end in order.
const STOPPING: Duration = Duration::from_secs(60);
/// Between two orderly restarts, once everybody runs, in ms.
const ROLL_MS: (u64, u64) = (500, 2000);

/// What a process has told last.
#[derive(Default)]
struct Told {
    recoveries: Vec<Recovery>,
    /// Tasks that run, by process; absent = it does not run all that it has.
    running: BTreeMap<usize, u64>,
    /// Processes that stand still in the middle of a commit.
    held: Vec<usize>,
    /// What befell them.
    happened: BTreeMap<String, u64>,
}

/// Shell commands that do something to the broker.
#[derive(Clone, Default)]
pub(crate) struct Breaks {
    /// Kills it and starts it again.
    pub(crate) restart: Option<String>,
    /// Takes it away for longer than a commit waits for its answer.
    pub(crate) away: Vec<String>,
}

type Ears = Arc<Mutex<Told>>;

fn lock(ears: &Ears) -> MutexGuard<'_, Told> {
    ears.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place for a process, with a state folder of its own.
struct Slot {
    arguments: Vec<OsString>,
    child: Child,
    /// Closed when this is dropped: the child ends.
    stdin: Option<ChildStdin>,
    /// The point at which it is to kill itself.
    sentence: Option<Sentence>,
    /// Its next sentence.
    next: Option<Sentence>,
    /// Until then nobody else kills it.
    spared_until: Instant,
    /// We have killed it.
    is_killed: bool,
    revive_at: Option<Instant>,
    thaw_at: Option<Instant>,
    stop_by: Option<Instant>,
}

/// A child is never left behind, not even a stopped one.
impl Drop for Slot {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill(); // it has ended meanwhile: fine
        }
    }
}

/// All processes.
pub(crate) struct Trouble {
    rng: SeededRng,
    slots: Vec<Slot>,
    ears: Ears,
    breaks_by: Breaks,
    points: Points,
    breaking: Option<TaskHandle<io::Result<ExitStatus>>>,
    strike_at: Instant,
    break_at: Instant,
    roll_at: Option<Instant>,
    kills: u64,
    freezes: u64,
    breaks: u64,
    pauses: u64,
    restarts: u64,
    exits: u64,
}

impl Trouble {
    pub(crate) fn new(rng: SeededRng, breaks: Breaks) -> Self {
        let now = time::now();
        Self {
            rng,
            slots: Vec::new(),
            ears: Ears::default(),
            points: Points::new(!breaks.away.is_empty()),
            breaks_by: breaks,
            breaking: None,
            strike_at: now,
            break_at: now + Duration::from_millis(BREAK_MS.0),
            roll_at: None,
            kills: 0,
            freezes: 0,
            breaks: 0,
            pauses: 0,
            restarts: 0,
            exits: 0,
        }
    }

    /// Starts a process.
    pub(crate) fn add(&mut self, bootstrap: &str, name: &str, folder: &PathBuf) -> Result<(), Failure> {
        let index = self.slots.len();
        let mut arguments: Vec<OsString> = [application::COMMAND, bootstrap, name].map(OsString::from).into();
        arguments.extend([folder.into(), format!("p{index}").into()]);
        let (child, stdin) = start(&arguments, &[], index, &self.ears)?;
        let (sentence, next, spared_until, is_killed) = (None, None, time::now(), false);
        let (revive_at, thaw_at, stop_by) = (None, None, None);
        self.slots.push(Slot {
            arguments,
            child,
            stdin,
            sentence,
            next,
            spared_until,
            is_killed,
            revive_at,
            thaw_at,
            stop_by,
        });
        Ok(())
    }

    /// Starts again what has ended, wakes what has slept; under `fire` those that start may be sentenced.
    fn tend(&mut self, fire: bool) -> Result<(), Failure> {
        let now = time::now();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.thaw_at.is_some_and(|at| at <= now) {
                slot.child.signal(Signal::Continue)?;
                slot.thaw_at = None;
            }
            if slot.stop_by.is_some_and(|at| at <= now) {
                return Err(format!("process {index} does not end within {} s", STOPPING.as_secs()).into());
            }
            match slot.revive_at {
                Some(at) if at > now => continue,
                Some(_) => {}
                None => {
                    let Some(status) = slot.child.try_wait()? else { continue };
                    lock(&self.ears).running.remove(&index);
                    let in_order = slot.stop_by.take().is_some() && status.success();
                    match (status.code(), slot.sentence.take()) {
                        (Some(_), sentence) => {
                            sentence.iter().for_each(|sentence| self.points.not_met(sentence));
                            if !in_order {
                                self.exits += 1;
                                slot.revive_at = Some(now + RESPITE);
                                continue;
                            }
                        }
                        (None, Some(sentence)) if !slot.is_killed => {
                            self.points.met(sentence.point);
                            slot.next = Points::after(sentence.point, &mut self.rng);
                        }
                        (None, sentence) => sentence.iter().for_each(|it| self.points.not_met(it)),
                    }
                }
            }
            slot.sentence = slot.next.take().filter(|_| fire);
            if slot.sentence.is_none() && fire && self.rng.one_in(NAMED_ONE_IN) {
                slot.sentence = Some(self.points.next(&mut self.rng));
            }
            let grace = match &slot.sentence {
                Some(sentence) if sentence.takes_broker => LONG_GRACE,
                Some(_) => GRACE,
                None => Duration::ZERO,
            };
            slot.spared_until = now + grace;
            let environment = slot.sentence.as_ref().map_or(&[][..], |sentence| &sentence.environment[..]);
            (slot.child, slot.stdin) = start(&slot.arguments, environment, index, &self.ears)?;
            (slot.revive_at, slot.thaw_at, slot.is_killed) = (None, None, false);
        }
        Ok(())
    }

    /// Tends, and strikes when it is time for it.
    pub(crate) async fn fire(&mut self) -> Result<(), Failure> {
        self.tend(true)?;
        let now = time::now();
        if self.strike_at <= now {
            self.strike_at = now + Duration::from_millis(self.rng.between(STRIKE_MS.0, STRIKE_MS.1));
            // who is stopped must wake up as a zombie, and not be killed before
            let awake =
                |slot: &&mut Slot| slot.thaw_at.is_none() && !slot.is_killed && slot.spared_until <= now;
            let is_one_away = self.slots.iter().any(|slot| slot.thaw_at.is_some());
            let mut awake: Vec<&mut Slot> = self.slots.iter_mut().filter(awake).collect();
            if !awake.is_empty() {
                let victim = self.rng.index(awake.len());
                let slot = &mut awake[victim];
                if !is_one_away && self.rng.one_in(FREEZE_ONE_IN) {
                    slot.child.signal(Signal::Stop)?;
                    slot.thaw_at = Some(now + FROZEN);
                    self.freezes += 1;
                } else {
                    slot.child.signal(Signal::Kill)?;
                    slot.is_killed = true;
                    self.kills += 1;
                }
            }
        }
        if self.breaking.as_ref().is_some_and(TaskHandle::is_finished) {
            self.broken().await?;
            self.break_at = now + Duration::from_millis(self.rng.between(BREAK_MS.0, BREAK_MS.1));
        }
        let is_held = !std::mem::take(&mut lock(&self.ears).held).is_empty();
        // in the middle of a commit, and when it is time for it, but not while somebody waits for the former
        let is_awaited = self.slots.iter().any(|slot| {
            slot.spared_until > now && slot.sentence.as_ref().is_some_and(|sentence| sentence.takes_broker)
        });
        let way = self.rng.index(self.breaks_by.away.len().max(1));
        let away = self.breaks_by.away.get(way).filter(|_| is_held);
        let restart = self.breaks_by.restart.as_ref().filter(|_| self.break_at <= now && !is_awaited);
        if let (None, Some(command)) = (&self.breaking, away.or(restart).cloned()) {
            match away {
                Some(_) => self.pauses += 1,
                None => self.breaks += 1,
            }
            self.breaking = Some(spawn::blocking("prove-break", move || {
                process::spawn("sh".as_ref(), &["-c", &command], false, Output::Null, Output::Inherit)?.wait()
            }));
        }
        Ok(())
    }

    /// Tends, and ends one process after another in order, each once all others run.
    pub(crate) fn roll(&mut self) -> Result<(), Failure> {
        self.tend(false)?;
        let now = time::now();
        let is_stopping = self.slots.iter().any(|slot| slot.stop_by.is_some());
        if !self.all_run() || is_stopping {
            self.roll_at = None;
            return Ok(());
        }
        let pause = Duration::from_millis(self.rng.between(ROLL_MS.0, ROLL_MS.1));
        if *self.roll_at.get_or_insert(now + pause) <= now {
            let next = usize::try_from(self.restarts)? % self.slots.len();
            self.restarts += 1;
            self.roll_at = None;
            stop(&mut self.slots[next])?;
        }
        Ok(())
    }

    /// Waits for the command that breaks the broker.
    async fn broken(&mut self) -> Result<(), Failure> {
        match self.breaking.take() {
            None => Ok(()),
            Some(breaking) => match breaking.await?? {
                status if status.success() => Ok(()),
                status => Err(format!("PROVE_BREAK failed: {status}").into()),
            },
        }
    }

    /// Tends without striking.
    pub(crate) fn calm(&mut self) -> Result<(), Failure> {
        self.tend(false)
    }

    /// Goes on until the broker is back, everybody is awake and nobody is sentenced.
    pub(crate) async fn settle(&mut self) -> Result<(), Failure> {
        self.broken().await?;
        while self.slots.iter().any(|slot| slot.thaw_at.is_some()) {
            self.calm()?;
            time::sleep(TICK).await;
        }
        for slot in &mut self.slots {
            if slot.sentence.is_some() && !slot.is_killed {
                slot.child.signal(Signal::Kill)?;
                slot.is_killed = true;
                self.kills += 1;
            }
        }
        Ok(())
    }

    /// Whether everybody runs all tasks that it has.
    pub(crate) fn all_run(&self) -> bool {
        lock(&self.ears).running.len() == self.slots.len()
    }

    /// Ends all processes in order; how many did not obey.
    pub(crate) async fn end(&mut self) -> Result<u64, Failure> {
        let mut refused = 0;
        for slot in &mut self.slots {
            stop(slot)?;
        }
        for slot in &mut self.slots {
            let status = loop {
                match slot.child.try_wait()? {
                    Some(status) => break Some(status),
                    None if slot.stop_by.is_some_and(|at| at <= time::now()) => break None,
                    None => time::sleep(TICK).await,
                }
            };
            refused += u64::from(!status.is_some_and(|status| status.success()));
        }
        self.slots.clear();
        Ok(refused)
    }

    /// Everything that was struck with SIGKILL so far: processes, by us or by themselves, and the broker.
    pub(crate) fn all_kills(&self) -> u64 {
        self.kills + self.points.counts().values().sum::<u64>() + self.breaks
    }

    /// How often each named point was met.
    pub(crate) fn points(&self) -> Value {
        serde_json::json!(self.points.counts())
    }

    /// Named points that were never met.
    pub(crate) fn missed(&self) -> Vec<&'static str> {
        self.points.missed()
    }

    /// How often each row of the crash matrix was met, as far as that can be told.
    pub(crate) fn rows(&self) -> Value {
        let told = lock(&self.ears);
        let happened = |what: &str| told.happened.get(what).copied().unwrap_or(0);
        let mut rows = self.points.rows();
        rows.extend([
            ("C8", happened("unknown")),
            ("C9", happened("not_owner")),
            ("C11", happened("timed_out")),
            ("C22", self.breaks + self.pauses),
            ("C23", happened("rolled_back")),
        ]);
        serde_json::json!(rows)
    }

    /// Orderly restarts so far.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// What was restored, in the order in which it was told.
    pub(crate) fn recoveries(&self) -> Vec<Recovery> {
        lock(&self.ears).recoveries.clone()
    }

    /// As fields of a JSON object.
    pub(crate) fn counts(&self) -> Value {
        let Self { kills, freezes, breaks, pauses, restarts, exits, .. } = self;
        let named: u64 = self.points.counts().values().sum();
        serde_json::json!({
            "kills": self.all_kills(), "process_kills_at_random": kills, "broker_kills": breaks,
            "process_kills_at_points": named, "broker_away": pauses, "freezes": freezes,
            "orderly_restarts": restarts, "exits": exits,
        })
    }
}

fn stop(slot: &mut Slot) -> Result<(), Failure> {
    slot.stop_by = Some(time::now() + STOPPING);
    if let Some(stdin) = &mut slot.stdin {
        match writeln!(stdin, "{}", application::STOP) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {} // it has ended already
            outcome => outcome?,
        }
    }
    Ok(())
}

/// Starts a process, and a thread that listens to it.
fn start(
    arguments: &[OsString],
    environment: &[String],
    index: usize,
    ears: &Ears,
) -> Result<(Child, Option<ChildStdin>), Failure> {
    let mut all: Vec<OsString> = environment.iter().map(OsString::from).collect();
    all.push(process::current_program()?.into());
    all.extend_from_slice(arguments);
    let mut child = process::spawn("env".as_ref(), &all, true, Output::Piped, Output::Inherit)?;
    let stdin = child.take_stdin();
    let stdout = child.take_stdout().ok_or("standard output was asked for")?;
    let ears = Arc::clone(ears);
    spawn::thread("prove-ears", move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
            let mut told = lock(&ears);
            if let Some(happened) = value["happened"].as_str() {
                *told.happened.entry(happened.to_owned()).or_default() += 1;
                if happened == "held" {
                    told.held.push(index);
                }
            }
            if let Some(recovery) = Recovery::read(index, &value) {
                told.recoveries.push(recovery);
            }
            match (value.get("running"), value["running"].as_u64()) {
                (_, Some(tasks)) => drop(told.running.insert(index, tasks)),
                (Some(_), None) => drop(told.running.remove(&index)),
                (None, None) => {}
            }
        }
    })?;
    Ok((child, stdin))
}
