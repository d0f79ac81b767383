//! The machine and the broker's process on it: the log's steps, crashes, reloads, pauses, clock steps.

use std::time::Duration;

use ottla_env::rng::Rng;

use super::{Event, HOUSEKEEPING_MS, Server, World, no_faults};
use crate::checker::read;
use crate::shell::{self, LogStep};

/// After so many failed loads in a row the disk behaves, so that every run comes to an end.
const FAILED_LOADS_MAX: u32 = 6;

impl World {
    /// The log thread takes what is queued and writes it.
    pub(super) fn log_take(&mut self, life: u64) {
        if life != self.life {
            return;
        }
        self.write_scheduled = false;
        let Server::Up(shell) = &mut self.server else { return };
        let most = usize::try_from(self.rng.between(1, self.options.frame_decisions_max)).expect("small");
        let step = shell.write(most, &mut self.shadow, &mut self.history);
        self.catch_up();
        match step {
            LogStep::Written => {
                let delay = self.rng.below(6);
                self.events.at(self.now_ms + delay, Event::LogDone { life });
            }
            LogStep::Nothing => {}
            LogStep::Again => {
                self.write_scheduled = true;
                self.events.at(self.now_ms + 20, Event::LogTake { life });
            }
            LogStep::Dead if !self.disk.stopped() => return self.begin_reload(),
            LogStep::Dead => {}
        }
        self.look_at_the_machine();
    }

    /// The sync has returned: bounds, then answers.
    pub(super) fn log_done(&mut self, life: u64) {
        if life != self.life {
            return;
        }
        if let Server::Up(shell) = &mut self.server {
            shell.complete(&mut self.history);
            self.pump();
        }
    }

    /// Timers, the file ahead, snapshots.
    pub(super) fn housekeeping(&mut self, life: u64) {
        if life != self.life {
            return;
        }
        let Server::Up(shell) = &mut self.server else { return };
        shell.tick(&mut self.history);
        if self.rng.one_in(4) {
            shell.prepare();
        }
        let due = self.rng.below(self.options.snapshot_mean_ms) < HOUSEKEEPING_MS;
        if shell.is_writing_snapshot() || due {
            shell.snapshot_step(&mut self.rng, &mut self.history);
        }
        if !self.draining && self.rng.below(self.options.retention_mean_ms) < HOUSEKEEPING_MS {
            shell.retain(&mut self.rng, &mut self.history);
        }
        if !self.draining && self.rng.below(self.options.tidy_mean_ms) < HOUSEKEEPING_MS {
            let tidied = shell.tidy(&self.disk, &mut self.history);
            self.catch_up();
            if tidied == LogStep::Dead && !self.disk.stopped() {
                return self.begin_reload();
            }
        }
        let Server::Up(shell) = &mut self.server else { return };
        let due = !self.draining && self.rng.below(self.options.clean_mean_ms) < HOUSEKEEPING_MS;
        if shell.is_cleaning() || due {
            let step = shell.clean_step(&self.disk, &mut self.rng, &mut self.history);
            self.catch_up();
            if step == LogStep::Dead && !self.disk.stopped() {
                return self.begin_reload();
            }
        }
        let Server::Up(shell) = &mut self.server else { return };
        if self.rng.one_in(40) && self.setup.compare_states && shell.is_settled() {
            self.compare_with_shadow();
        }
        self.pump();
        self.look_at_the_machine();
        let step = if self.draining { 250 } else { HOUSEKEEPING_MS };
        self.events.at(self.now_ms + step, Event::Housekeeping { life });
    }

    fn compare_with_shadow(&mut self) {
        let Server::Up(shell) = &self.server else { return };
        let expected = self.shadow.state.position();
        if shell.position() != expected {
            let text = format!("live position {:?}, durable {expected:?}", shell.position());
            return self.history.violation(text);
        }
        self.history.counts.states_compared += 1;
        let shadow: Vec<Vec<u8>> = self.shadow.state.snapshot().chunks().skip(1).collect();
        if let Some(text) = shell::difference(&shell.chunks(), &shadow) {
            self.history
                .violation(format!("live state differs from the replayed one at {expected:?}: {text}"));
        }
    }

    /// A reader looks at a partition.
    pub(super) fn read(&mut self) {
        if let Server::Up(shell) = &mut self.server {
            read::check_some_partition(shell, &self.disk, &mut self.rng, &mut self.history, self.options.bug);
        }
        self.look_at_the_machine();
        if !self.draining {
            let delay = self.rng.between(5, 80);
            self.events.at(self.now_ms + delay, Event::Read);
        }
    }

    /// The next crash: now, or within one of the next disk operations.
    pub(super) fn plan_crash(&mut self) {
        if self.draining {
            return;
        }
        self.kill_next = self.rng.chance(self.options.kill_rate);
        let operations = self.rng.between(1, 25);
        match self.rng.below(4) {
            0 if !matches!(self.server, Server::Down) => self.crash(),
            0 => {}
            1 => self.disk.stop_after(operations),
            _ => self.disk.stop_after_changes(operations),
        }
        self.schedule(Event::Crash, self.options.crash_mean_ms);
    }

    /// Crashes the broker if the machine has stopped in the middle of an operation.
    pub(super) fn look_at_the_machine(&mut self) {
        if self.disk.stopped() {
            self.history.counts.stops_in_operation += 1;
            self.crash();
        }
    }

    /// The process or the machine dies now.
    pub(super) fn crash(&mut self) {
        let kill = self.kill_next;
        self.note(|| format!("crash, process killed: {kill}"));
        self.disk = if self.kill_next { self.disk.kill() } else { self.disk.crash(&mut self.crash_rng) };
        // Only now: what the old process would tidy up at its end does not happen any more.
        self.server = Server::Down;
        self.process += 1;
        self.life += 1;
        self.write_scheduled = false;
        for client in 0..self.slots.len() {
            self.break_connection(client);
        }
        let delay = self.rng.between(1, 200);
        self.events.at(self.now_ms + delay, Event::Restart);
    }

    /// The log is dead, the process is not: load again, with what is in flight.
    fn begin_reload(&mut self) {
        let Server::Up(shell) = std::mem::replace(&mut self.server, Server::Down) else { return };
        self.history.counts.reloads += 1;
        self.note(|| "reload".to_owned());
        self.life += 1;
        self.write_scheduled = false;
        self.server = Server::Reloading(Box::new(shell.into_unsettled()), Vec::new());
        self.restart();
    }

    /// Loads the broker; it may be cut off by a crash or fail, and is then tried again.
    pub(super) fn restart(&mut self) {
        let reloading = matches!(self.server, Server::Reloading(..));
        if matches!(self.server, Server::Up(_)) {
            return;
        }
        let behaves = self.draining || self.failed_loads >= FAILED_LOADS_MAX;
        self.disk.set_plan(if behaves { no_faults() } else { self.options.faults.clone() });
        if !behaves && self.rng.chance(self.options.recovery_crash_rate) {
            self.kill_next = self.rng.chance(self.options.kill_rate);
            let operations = self.rng.between(1, 60);
            if self.rng.one_in(2) {
                self.disk.stop_after(operations);
            } else {
                self.disk.stop_after_changes(operations.div_ceil(6));
            }
        }
        self.rot_a_snapshot();
        let server = std::mem::replace(&mut self.server, Server::Down);
        let unsettled = match &server {
            Server::Reloading(unsettled, _) => Some(&**unsettled),
            Server::Up(_) | Server::Down => None,
        };
        let loaded = shell::start(&self.disk, &self.setup, &mut self.shadow, unsettled, &mut self.history);
        self.catch_up();
        match loaded {
            Ok(mut shell) => {
                self.failed_loads = 0;
                self.history.counts.restarts += u64::from(!reloading);
                let held = match server {
                    Server::Reloading(unsettled, held) => {
                        shell.settle(*unsettled, &mut self.history);
                        held
                    }
                    Server::Up(_) | Server::Down => Vec::new(),
                };
                for command in held {
                    shell.decide(command, &mut self.history);
                }
                self.server = Server::Up(Box::new(shell));
                self.events.at(self.now_ms + 1, Event::Housekeeping { life: self.life });
                self.pump();
                self.look_at_the_machine();
            }
            Err(error) => {
                self.server = server;
                self.failed_loads += 1;
                self.history.counts.recoveries_repeated += 1;
                if self.disk.stopped() {
                    self.look_at_the_machine();
                } else if error.is_input_output() {
                    self.events.at(self.now_ms + 50, Event::Restart);
                } else {
                    self.history.violation(format!("the log cannot be loaded: {error}"));
                }
            }
        }
    }

    /// Sometimes a bit of a snapshot has changed at rest; an older one and the log are there.
    fn rot_a_snapshot(&mut self) {
        if self.draining || !self.rng.one_in(8) || !self.options.rot {
            return;
        }
        let files = self.disk.files();
        let snapshots: Vec<_> =
            files.iter().filter(|(name, len)| name.ends_with(".snapshot") && *len > 0).collect();
        if let Some((name, len)) = snapshots.last() {
            let (at, bit) = (self.rng.below(*len), self.rng.below(8) as u32);
            self.disk.flip_bit(name, at, bit).expect("the file is there");
        }
    }

    /// The broker's process stands still.
    pub(super) fn pause(&mut self) {
        if self.draining {
            return;
        }
        let pause = self.rng.between(1_000, 12_000);
        self.paused_until_ms = self.paused_until_ms.max(self.now_ms + pause);
        self.history.counts.pauses += 1;
        self.schedule(Event::Pause, self.options.pause_mean_ms);
    }

    /// The wall clock jumps.
    pub(super) fn step_clock(&mut self) {
        if self.draining {
            return;
        }
        let size = i64::try_from(Duration::from_secs(self.rng.between(1, 7_500)).as_millis()).expect("small");
        self.clock.step_wall(if self.rng.one_in(2) { size } else { -size });
        self.history.counts.clock_steps += 1;
        self.schedule(Event::ClockStep, self.options.clock_step_mean_ms);
    }
}
