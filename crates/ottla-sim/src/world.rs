//! The world of one run: a machine, a broker on it, clients, and the network between them, in virtual time.
//!
//! Everything that happens is an event in one queue; everything that is random comes from the seed. `network`
//! carries requests and answers and breaks connections, `machine` crashes, reloads and pauses the broker.

mod finish;
mod machine;
mod network;

use std::collections::BTreeMap;
use std::sync::Arc;

use ottla_core::CoreConfig;
use ottla_core::command::{Command, ConnectionId, Token};
use ottla_core::decision::Reply;
use ottla_core::shard::ShardState;
use ottla_env::clock::ManualClock;
use ottla_env::disk::sim::{FaultCounts, FaultPlan, SimDisk};
use ottla_env::rng::{Rng, SeededRng};
use ottla_protocol::types::Uuid;
use ottla_storage::{LogOptions, Nonces};

use crate::client::transactional::{Protocol, Transactional};
use crate::client::{Call, Client, admin::Admin, idempotent::Idempotent, offsets::Offsets, plain::Plain};
use crate::events::EventQueue;
use crate::history::{Counts, History};
use crate::options::{Bug, Options};
use crate::shell::{Setup, Shadow, Shell, Unsettled};

/// The date on which every run begins, ms.
const BEGIN_MS: i64 = 1_700_000_000_000;
/// How often the broker looks after its timers, files and snapshots, ms.
const HOUSEKEEPING_MS: u64 = 20;
/// How much virtual time a run gets to come to rest, ms.
const REST_MS: u64 = 300_000;

/// What happens.
pub(crate) enum Event {
    Wake(usize),
    Deliver(Delivery),
    Answer { call: u64, token: Token, reply: Reply },
    Reconnect(usize),
    ConnectionClosed(ConnectionId),
    Cut,
    ClientCrash,
    LogTake { life: u64 },
    LogDone { life: u64 },
    Housekeeping { life: u64 },
    Read,
    Crash,
    Restart,
    Pause,
    ClockStep,
}

/// A request on the wire.
pub(crate) struct Delivery {
    client: usize,
    connection: ConnectionId,
    command: Command,
    may_be_late: bool,
    is_v1: bool,
    late: bool,
    process: u64,
    life: u64,
}

/// The broker.
enum Server {
    Up(Box<Shell>),
    /// In the same process: requests wait.
    Reloading(Box<Unsettled>, Vec<Command>),
    Down,
}

/// A client and its connection.
struct Slot {
    client: Option<Box<dyn Client>>,
    connection: Option<ConnectionId>,
    /// Nothing sent on the connection arrives before this time.
    last_delivery_ms: u64,
    rng: SeededRng,
}

/// A request that waits for its answer.
struct Waiting {
    client: usize,
    call: Call,
    attempts: u32,
    /// The attempt that may be answered.
    token: Option<Token>,
}

/// One run.
pub(crate) struct World {
    options: Options,
    pub(crate) history: History,
    clock: Arc<ManualClock>,
    now_ms: u64,
    disk: SimDisk,
    setup: Setup,
    shadow: Shadow,
    server: Server,
    slots: Vec<Slot>,
    waiting: BTreeMap<u64, Waiting>,
    tokens: BTreeMap<Token, u64>,
    events: EventQueue<Event>,
    rng: SeededRng,
    crash_rng: SeededRng,
    next_call: u64,
    next_token: u64,
    next_connection: u64,
    /// Grows with every start of the process.
    process: u64,
    /// Grows with every load, reloads included.
    life: u64,
    write_scheduled: bool,
    kill_next: bool,
    failed_loads: u32,
    paused_until_ms: u64,
    draining: bool,
    shard_seen_ms: i64,
    shard_forward_ms: i64,
    trace: u64,
}

/// What came out of a run.
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) counts: Counts,
    pub(crate) faults: FaultCounts,
    pub(crate) trace: u64,
    pub(crate) operations: u64,
    pub(crate) journal: Vec<String>,
}

impl World {
    /// The world of a seed, before anything happened.
    pub(crate) fn new(seed: u64, options: Options) -> Self {
        let mut rng = SeededRng::new(seed);
        let clock = Arc::new(ManualClock::new(BEGIN_MS));
        let disk = SimDisk::new(rng.next_u64());
        disk.set_clock(Arc::clone(&clock));
        disk.set_skip_syncs(options.bug == Some(Bug::SkipSync));
        disk.set_always_cached(options.bug == Some(Bug::BelievePageCache));
        let setup = setup(&options, &clock, &mut rng);
        let shadow = Shadow { state: ShardState::new(setup.core.clone()), unsure: None };
        let crash_rng = rng.fork();
        let mut world = Self {
            options,
            history: History::default(),
            clock,
            now_ms: 0,
            disk,
            setup,
            shadow,
            server: Server::Down,
            slots: Vec::new(),
            waiting: BTreeMap::new(),
            tokens: BTreeMap::new(),
            events: EventQueue::new(),
            rng,
            crash_rng,
            next_call: 0,
            next_token: 0,
            next_connection: 0,
            process: 0,
            life: 0,
            write_scheduled: false,
            kill_next: false,
            failed_loads: 0,
            paused_until_ms: 0,
            draining: false,
            shard_seen_ms: BEGIN_MS,
            shard_forward_ms: 0,
            trace: seed,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        let wanted = self.options.clients;
        let mut clients: Vec<Box<dyn Client>> = vec![Box::new(Admin::new())];
        clients.extend((0..wanted.plain).map(|n| Box::new(Plain::new(n)) as Box<dyn Client>));
        clients.extend((0..wanted.idempotent).map(|n| Box::new(Idempotent::new(n)) as Box<dyn Client>));
        clients.extend((0..wanted.offsets).map(|n| Box::new(Offsets::new(n)) as Box<dyn Client>));
        let of = |name: &str, protocol, n| Box::new(Transactional::new(format!("{name}-{n}"), protocol, 0));
        clients.extend((0..wanted.transactional_v1).map(|n| of("v1", Protocol::V1, n) as Box<dyn Client>));
        clients.extend((0..wanted.transactional_v2).map(|n| of("v2", Protocol::V2, n) as Box<dyn Client>));
        for client in clients {
            self.add_client(client);
        }
        self.events.at(0, Event::Restart);
        self.events.at(30, Event::Read);
        self.schedule(Event::Cut, self.options.cut_mean_ms);
        self.schedule(Event::ClientCrash, self.options.client_crash_mean_ms);
        self.schedule(Event::Crash, self.options.crash_mean_ms);
        self.schedule(Event::Pause, self.options.pause_mean_ms);
        self.schedule(Event::ClockStep, self.options.clock_step_mean_ms);
    }

    /// Schedules an event at a random time around a mean.
    fn schedule(&mut self, event: Event, mean_ms: u64) {
        let delay = self.rng.between(mean_ms / 4, mean_ms * 2);
        self.events.at(self.now_ms + delay, event);
    }

    fn add_client(&mut self, client: Box<dyn Client>) {
        let rng = self.rng.fork();
        let delay = self.rng.between(1, 150);
        self.slots.push(Slot { client: Some(client), connection: None, last_delivery_ms: 0, rng });
        self.events.at(self.now_ms + delay, Event::Wake(self.slots.len() - 1));
    }

    /// Runs to the end: clients work for a time, then everything comes to rest, then the log is judged.
    pub(crate) fn run(mut self) -> Outcome {
        self.run_until(self.options.duration_ms, |_| false);
        if self.history.violations.is_empty() {
            self.finish();
        }
        Outcome {
            violations: self.history.violations,
            counts: self.history.counts,
            faults: self.disk.counts(),
            trace: self.trace ^ self.disk.trace_hash(),
            operations: self.disk.operations(),
            journal: self.history.journal,
        }
    }

    /// Lets clients work for a time, and gives the folder as it is when the process is killed then, with what it is
    /// opened with.
    pub(crate) fn folder(mut self) -> Result<(SimDisk, Setup), String> {
        self.run_until(self.options.duration_ms, |_| false);
        match self.history.violations.first() {
            Some(violation) => Err(violation.clone()),
            None => Ok((self.disk.kill(), self.setup.clone())),
        }
    }

    /// Lets events happen until a time, a broken promise, or until the condition holds.
    fn run_until(&mut self, until_ms: u64, mut enough: impl FnMut(&Self) -> bool) {
        while self.history.violations.is_empty() && !enough(self) {
            let Some((time_ms, number, event)) = self.events.pop_until(until_ms) else { return };
            if time_ms < self.paused_until_ms && event.is_of_the_broker() {
                self.events.postpone(self.paused_until_ms, number, event);
                continue;
            }
            let time_ms = time_ms.max(self.now_ms);
            self.clock.advance(std::time::Duration::from_millis(time_ms - self.now_ms));
            self.now_ms = time_ms;
            self.happen(event);
            self.catch_up();
        }
    }

    /// The disk may have let time pass by itself (slow syncs).
    fn catch_up(&mut self) {
        use ottla_env::clock::Clock;
        let now_ms = u64::try_from(self.clock.monotonic().as_millis()).expect("virtual time is short");
        self.now_ms = self.now_ms.max(now_ms);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake(client) => self.with_client(client, |client, ctx| client.wake(ctx)),
            Event::Deliver(delivery) => self.deliver(delivery),
            Event::Answer { call, token, reply } => self.answer(call, token, reply),
            Event::Reconnect(client) => self.reconnect(client),
            Event::ConnectionClosed(connection) => self.connection_closed(connection),
            Event::Cut => self.cut_one(),
            Event::ClientCrash => self.crash_client(),
            Event::LogTake { life } => self.log_take(life),
            Event::LogDone { life } => self.log_done(life),
            Event::Housekeeping { life } => self.housekeeping(life),
            Event::Read => self.read(),
            Event::Crash => self.plan_crash(),
            Event::Restart => self.restart(),
            Event::Pause => self.pause(),
            Event::ClockStep => self.step_clock(),
        }
    }

    /// Writes something down, if anybody wants to read it.
    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.options.journal {
            self.history.journal.push(format!("{} {}", self.now_ms, text()));
        }
    }

    fn mix(&mut self, text: &str) {
        for byte in text.bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(7);
        }
    }
}

impl Event {
    /// Whether it does not happen while the broker is paused.
    fn is_of_the_broker(&self) -> bool {
        match self {
            Self::Deliver(_)
            | Self::ConnectionClosed(_)
            | Self::LogTake { .. }
            | Self::LogDone { .. }
            | Self::Housekeeping { .. }
            | Self::Read
            | Self::Restart => true,
            Self::Wake(_)
            | Self::Answer { .. }
            | Self::Reconnect(_)
            | Self::Cut
            | Self::ClientCrash
            | Self::Crash
            | Self::Pause
            | Self::ClockStep => false,
        }
    }
}

fn setup(options: &Options, clock: &Arc<ManualClock>, rng: &mut SeededRng) -> Setup {
    let mut nonces = rng.fork();
    let mut log = LogOptions::new(Nonces::new(move || nonces.next_u64()));
    log.file_bytes = options.file_bytes;
    log.growth_bytes = 4 << 10;
    log.tail_bytes_max = options.tail_bytes_max;
    log.open_files_max = 4;
    log.levels = options.levels;
    let core = CoreConfig {
        hash_seed: rng.next_u64(),
        offsets_topic_num_partitions: options.internal_partitions,
        transaction_state_log_num_partitions: options.internal_partitions,
        transaction_abort_interval_ms: 500,
        ..CoreConfig::default()
    };
    let mut id = || {
        let mut bytes = [0; 16];
        rng.fill(&mut bytes);
        Uuid(bytes)
    };
    Setup {
        log,
        core,
        clock: Arc::clone(clock),
        bug: options.bug,
        compare_states: options.compare_states,
        ids: [id(), id(), id()],
    }
}

/// The plan of a disk that does nothing wrong.
fn no_faults() -> FaultPlan {
    FaultPlan::default()
}
