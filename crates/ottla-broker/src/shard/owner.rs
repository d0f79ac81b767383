//! The owner: the one thread that decides and applies.
//!
//! It empties the inbox before it fires timers. If the log dies it throws the state away, rebuilds it from
//! storage at a higher epoch, releases the answers that survived and decides the rest again, in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use ottla_core::command::{Command, CommandBody, ConnectionId, Token};
use ottla_core::config::CoreConfig;
use ottla_core::decision::{Decision, Position, Reply, ShardTime};
use ottla_core::shard::ShardState;
use ottla_env::clock::Clock;
use ottla_env::disk::Disk;
use ottla_env::spawn::{self, ThreadHandle};
use ottla_storage::{LogOptions, Opened, Space, SpaceWatch};

use super::desk::{FilesDesk, SurveyDesk};
use super::events;
use super::files::FilesThread;
use super::full_disk;
use super::inbox::{Inbox, Popped};
use super::late::HeldRequests;
use super::log_queue::{Decided, LogQueue, Pending, ToLog};
use super::log_thread::{LogProgress, LogThread, Remains};
use super::pulse::Pulse;
use super::recovery::{Recovered, recover};
use super::snapshots;
use super::time::{ShardClock, SharedTime};
use super::unavailable::unavailable;
use super::view::View;
use super::{Request, ShardHandle, is_transactional_v1, log_queue};
use crate::limits::{
    FULL_DISK_INTERVAL, FULL_DISK_SNAPSHOT_INTERVAL, OWNER_BATCH_MAX, OWNER_GAP, OWNER_LOOK_AROUND,
    RELOAD_RETRY, RELOAD_WAIT, V1_LATE_HOLD, V1_QUEUE_AGE_MAX,
};

use crate::metrics::health::Status;
use crate::metrics::{Metrics, nanos};

/// What the owner needs to start, and to start over.
#[derive(Clone)]
pub struct OwnerSetup {
    /// The folder.
    pub disk: Arc<dyn Disk>,
    /// How its log is opened.
    pub log: LogOptions,
    /// How the core is set up.
    pub core: CoreConfig,
    /// The machine's clock.
    pub clock: Arc<dyn Clock>,
    /// Where connections read shard time.
    pub time: SharedTime,
    /// Where requests come from.
    pub inbox: Arc<Inbox<Request>>,
    /// For commands of the shell's own.
    pub shard: ShardHandle,
    /// Log bytes after which a snapshot is written.
    pub snapshot_bytes: u64,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Where surveys are asked for.
    pub desk: Arc<SurveyDesk>,
    /// Where the thread that tidies the files asks.
    pub files_desk: Arc<FilesDesk>,
}

/// The owner's thread state.
pub struct Owner {
    setup: OwnerSetup,
    state: ShardState,
    clock: ShardClock,
    view: Arc<View>,
    log: LogThreads,
    /// Requests whose answer comes with a later decision.
    parked: BTreeMap<Token, (u64, Request)>,
    /// Requests that look late.
    held: HeldRequests,
    order: u64,
    last_loop: Duration,
    pulse: Pulse,
    /// When a snapshot was last asked for, and of which position.
    last_snapshot: (Duration, Position),
}

/// The threads behind the owner, for one life of the log.
struct LogThreads {
    queue: Arc<LogQueue>,
    progress: Arc<LogProgress>,
    log: Option<ThreadHandle<Remains>>,
    helpers: Vec<ThreadHandle<()>>,
    space: SpaceWatch,
    /// Known once the log has died.
    durable_end: Option<ottla_storage::DurableEnd>,
}

/// The owner could not go on: the log is dead and does not come back.
#[derive(Debug, thiserror::Error)]
#[error("thread could not be started: {0}")]
pub struct StartError(#[from] std::io::Error);

impl Owner {
    /// Publishes the recovered state and starts the log's threads.
    pub fn start(setup: OwnerSetup, recovered: Recovered, view: Arc<View>) -> Result<Self, StartError> {
        let Recovered { state, opened, clock } = recovered;
        publish_all(&state, &view, opened.writer.durable_sequence().0);
        let log = LogThreads::start(&setup, opened, &view, state.position())?;
        let last_loop = clock.monotonic();
        let pulse = Pulse::new(setup.metrics.clone(), last_loop);
        Ok(Self {
            setup,
            state,
            clock,
            view,
            log,
            parked: BTreeMap::new(),
            held: HeldRequests::default(),
            order: 0,
            last_loop,
            pulse,
            last_snapshot: (last_loop, Position::default()),
        })
    }

    /// Runs until the inbox is closed and drained; then writes a last snapshot and ends the log's threads.
    pub fn run(mut self) {
        let mut batch = Vec::with_capacity(OWNER_BATCH_MAX);
        loop {
            let wait = self.time_to_deadline();
            self.pulse.rest(self.clock.monotonic());
            let popped = self.setup.inbox.pop(&mut batch, OWNER_BATCH_MAX, wait);
            if self.log.queue.has_failed() {
                self.reload();
            }
            let now = self.tell_time(wait);
            self.pulse.wake(self.last_loop);
            for request in batch.drain(..) {
                self.decide(request, now);
            }
            match popped {
                Popped::Closed => break,
                Popped::More => {}
                Popped::Drained | Popped::TimedOut | Popped::Nudged => {
                    self.let_through(now);
                    self.fire_timers(now);
                }
            }
            self.pulse.end(self.clock.monotonic());
            self.setup.desk.serve(&self.state, now);
            self.setup.files_desk.serve(&self.state);
            let counted = &self.setup.metrics.owner;
            counted.late_requests.set(self.state.late_requests());
            counted.late_requests_let_through.set(self.state.late_requests_let_through());
            self.snapshot_if_due(now);
        }
        self.release_parked();
        let now = self.clock.now();
        self.request_snapshot(now);
        self.log.stop();
    }

    /// An orderly stop: whoever waits for other members is told to look for its coordinator, which keeps the
    /// member's place; a connection that just closed would be an error to some clients.
    fn release_parked(&mut self) {
        for (_, request) in std::mem::take(&mut self.parked).into_values() {
            let reply = unavailable(&request.command, true);
            request.answer(reply);
        }
    }

    /// How long to wait for work. With deadlines ahead the wait is short, so that a pause of the whole process
    /// shows as a wait that took too long.
    fn time_to_deadline(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        let deadline = self.state.next_deadline();
        let core =
            deadline.map(|deadline| Duration::from_millis(u64::try_from(deadline.0 - now.0).unwrap_or(0)));
        let held = self.held.next().map(|until| until.saturating_sub(self.clock.monotonic()));
        let full = self.wants_room().then_some(OWNER_LOOK_AROUND);
        let left = core.into_iter().chain(held).chain(full).min()?;
        Some(left.min(OWNER_LOOK_AROUND))
    }

    /// Shard time for the next decisions. A gap of our own (pause, slow log, reload) moves the deadlines: clients
    /// could not reach us.
    fn tell_time(&mut self, waited: Option<Duration>) -> ShardTime {
        let monotonic = self.clock.monotonic();
        let elapsed = monotonic.saturating_sub(self.last_loop);
        self.last_loop = monotonic;
        let gap = waited.map_or(Duration::ZERO, |waited| elapsed.saturating_sub(waited));
        if gap > OWNER_GAP {
            let by_ms = i64::try_from(gap.as_millis()).unwrap_or(i64::MAX / 4);
            tracing::warn!(gap_ms = by_ms, "the shard was paused; deadlines move by the gap");
            self.state.shift_deadlines(by_ms);
            self.held.shift(gap);
        }
        self.clock.now()
    }

    fn fire_timers(&mut self, now: ShardTime) {
        if self.state.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.pulse.begin(self.clock.monotonic());
            let tick = Command { context: Default::default(), body: CommandBody::Tick };
            let decision = self.state.step(tick, now);
            self.carry_out(decision, None, now);
        }
    }

    fn decide(&mut self, request: Request, now: ShardTime) {
        // A v1 transactional request names no transaction: one that was stuck here may meet the next one.
        let began = self.clock.monotonic();
        self.pulse.begin_command(began, request.arrived);
        let age = began.saturating_sub(request.arrived);
        if age > V1_QUEUE_AGE_MAX && is_transactional_v1(&request.command) {
            request.answer(Reply::Close("a v1 transactional request waited here for too long"));
            return;
        }
        if let Some(reply) = full_disk::refusal(self.log.space.now(), &request.command) {
            return request.answer(reply);
        }
        if let CommandBody::ConnectionClosed(connection) = request.command.body {
            self.drop_held(connection);
        } else if let Some(until) = self.held.holds(request.command.context.connection)
            && is_transactional_v1(&request.command)
        {
            return self.hold(until, request);
        }
        for overtaken in self.held.overtaken(&request.command) {
            self.drop_late(overtaken, "its client goes on with a newer connection");
        }
        self.step(request, now);
    }

    fn step(&mut self, request: Request, now: ShardTime) {
        let decision = self.state.step(request.command.clone(), now);
        self.carry_out(decision, Some(request), now);
    }

    /// What looks late is held; beyond the bound it is late.
    fn hold(&mut self, until: Duration, request: Request) {
        if let Some(request) = self.held.hold(until, request) {
            self.drop_late(request, "too many requests look late");
        }
    }

    /// What was held for this connection was late.
    fn drop_held(&mut self, connection: ConnectionId) {
        for request in self.held.closed(connection) {
            self.drop_late(request, "its client has closed the connection");
        }
    }

    /// Nothing was decided about a late request, and it is not answered: its connection is closed.
    fn drop_late(&mut self, request: Request, reason: &'static str) {
        self.state.late_request_dropped();
        let connection = request.command.context.connection.0;
        tracing::info!(connection, reason, "a late request of transactions v1 was dropped");
        request.answer(Reply::Close(reason));
    }

    /// What was held long enough is decided: its sender is there.
    fn let_through(&mut self, now: ShardTime) {
        for mut request in self.held.due(self.clock.monotonic()) {
            request.command.context.is_alive = true;
            self.step(request, now);
        }
    }

    /// Hands a decision to the log, and its answers to whoever may let them out.
    fn carry_out(&mut self, decision: Decision, request: Option<Request>, now: ShardTime) {
        let Decision { entries, answers, touched, image_changed, events } = decision;
        events.iter().for_each(|event| events::tell(event, &self.setup.metrics.owner));
        if image_changed && let Some(request) = &request {
            events::tell_change(&request.command);
        }
        if !entries.is_empty() {
            let bytes = entries.iter().map(|entry| entry.batch_bytes()).sum();
            let bounds = touched.into_iter().map(|id| (id, self.state.bounds(id))).collect();
            let image = image_changed.then(|| self.state.image());
            let position = self.state.position();
            self.log.queue.push(ToLog::Decision(Decided {
                position,
                time: now,
                entries,
                bytes,
                bounds,
                image,
            }));
        }
        let mut own = request.map(|request| {
            self.order += 1;
            (self.order, request)
        });
        for answer in answers {
            let is_own = |(_, request): &mut (u64, Request)| request.command.context.token == answer.token;
            let answered = own.take_if(is_own).or_else(|| self.parked.remove(&answer.token));
            if let Some((order, request)) = answered {
                let decided = self.pulse.began();
                let (reply, rests_on) = (answer.reply, answer.rests_on);
                self.let_out(Pending { order, request, reply, rests_on, decided });
            }
        }
        // Nobody waits for an answer to the news that a connection is gone.
        if let Some((order, request)) = own
            && !matches!(request.command.body, CommandBody::ConnectionClosed(_))
        {
            self.parked.insert(request.command.context.token, (order, request));
        }
    }

    fn let_out(&mut self, pending: Pending) {
        if matches!(pending.reply, Reply::Late(_)) {
            return self.hold(self.clock.monotonic() + V1_LATE_HOLD, pending.request);
        }
        if pending.rests_on.0 <= self.log.progress.durable.load(Ordering::Acquire) {
            pending.request.answer(pending.reply);
        } else {
            self.log.queue.push(ToLog::Answer(pending));
        }
    }

    fn snapshot_if_due(&mut self, now: ShardTime) {
        let written = self.log.progress.bytes_since_snapshot.load(Ordering::Relaxed);
        let is_wanted = written >= self.setup.snapshot_bytes || self.setup.files_desk.takes_snapshot();
        let since = self.last_loop.saturating_sub(self.last_snapshot.0);
        if is_wanted || (self.wants_room() && since >= FULL_DISK_SNAPSHOT_INTERVAL) {
            self.request_snapshot(now);
        }
    }

    /// On a full disk files can only go once two snapshots have no need of them.
    fn wants_room(&self) -> bool {
        self.log.space.now() != Space::Enough && self.state.position() > self.last_snapshot.1
    }

    fn request_snapshot(&mut self, now: ShardTime) {
        self.log.progress.bytes_since_snapshot.store(0, Ordering::Relaxed);
        let snapshot = self.state.snapshot();
        self.last_snapshot = (self.last_loop, self.state.position());
        self.log.queue.push(ToLog::Snapshot(snapshot, self.state.position(), now));
    }

    /// The log is dead: rebuild from storage, then settle every request that was in flight.
    fn reload(&mut self) {
        let began = self.clock.monotonic();
        let mut waiting = self.collect_unsettled();
        let mut options = self.setup.log.clone();
        options.durable_end = self.log.durable_end;
        let recovered = loop {
            match recover(&self.setup.disk, &options, &self.setup.core, &self.setup.clock, &self.setup.time) {
                Ok(recovered) => break recovered,
                Err(error) => {
                    tracing::error!(%error, "reload failed; trying again");
                    let reason = format!("the log cannot be reopened after a failed write: {error}");
                    self.setup.metrics.health.set(Status::RefusingWrites { reason }, self.clock.monotonic());
                }
            }
            self.give_up_on_the_oldest(&mut waiting);
            if self.setup.inbox.is_closed() {
                return self.abandon(waiting);
            }
            self.setup.inbox.rest(RELOAD_RETRY);
        };
        let Recovered { mut state, opened, clock } = recovered;
        state.adopt_connection_marks(&mut self.state);
        let survived = state.position();
        (self.state, self.clock) = (state, clock);
        self.view.replace_reader(opened.reader.clone());
        publish_all(&self.state, &self.view, opened.writer.durable_sequence().0);
        match LogThreads::start(&self.setup, opened, &self.view, survived) {
            Ok(log) => self.log = log,
            Err(error) => {
                tracing::error!(%error, "no thread for the log; shutting down");
                self.setup.inbox.close();
                return self.abandon(waiting);
            }
        }
        tracing::warn!(requests = waiting.len(), position = survived.0, "shard rebuilt");
        self.last_loop = self.clock.monotonic();
        self.setup.metrics.owner.reloads.add(1);
        self.setup.metrics.log.recovery_nanos.set(nanos(self.last_loop.saturating_sub(began)));
        self.setup.metrics.health.set(Status::Ready, self.last_loop);
        let now = self.clock.now();
        for unsettled in waiting {
            match unsettled.reply {
                Some((reply, rests_on)) if rests_on <= survived => unsettled.request.answer(reply),
                _ => self.decide(unsettled.request, now),
            }
        }
    }

    /// Everything that was decided and not answered, in the order of the decisions.
    fn collect_unsettled(&mut self) -> Vec<Unsettled> {
        let mut all = BTreeMap::new();
        let remains = self.log.collect();
        for Pending { order, request, reply, rests_on, .. } in remains {
            all.insert(order, Unsettled { request, reply: Some((reply, rests_on)) });
        }
        for (order, request) in std::mem::take(&mut self.parked).into_values() {
            all.insert(order, Unsettled { request, reply: None });
        }
        all.into_values().collect()
    }

    /// Requests that have waited for the reload too long get an error that says whether they may have happened.
    fn give_up_on_the_oldest(&self, waiting: &mut Vec<Unsettled>) {
        let now = self.clock.monotonic();
        let is_old = |request: &Request| now.saturating_sub(request.arrived) > RELOAD_WAIT;
        for unsettled in waiting.extract_if(.., |unsettled| is_old(&unsettled.request)) {
            let reply = unavailable(&unsettled.request.command, true);
            unsettled.request.answer(reply);
        }
        for request in self.setup.inbox.take_matching(is_old) {
            let reply = unavailable(&request.command, false);
            request.answer(reply);
        }
    }

    fn abandon(&self, waiting: Vec<Unsettled>) {
        for unsettled in waiting {
            let reply = unavailable(&unsettled.request.command, true);
            unsettled.request.answer(reply);
        }
    }
}

/// A request in flight when the log died, with its answer if it had one.
struct Unsettled {
    request: Request,
    reply: Option<(Reply, Position)>,
}

impl LogThreads {
    fn start(
        setup: &OwnerSetup,
        opened: Opened,
        view: &Arc<View>,
        durable: Position,
    ) -> Result<Self, StartError> {
        let Opened { writer, snapshots: store, mut preparer, levels, epoch, report, .. } = opened;
        let queue = Arc::new(LogQueue::default());
        let progress = Arc::new(LogProgress::default());
        progress.durable.store(durable.0, Ordering::Release);
        let (snapshots, jobs) = sync_channel(1);
        let (written, work) = sync_channel(1);
        let (done, snapshots_done) = sync_channel(0);
        let (log_lives, ends) = sync_channel(0);
        let space = preparer.space();
        let files = FilesThread {
            levels,
            snapshots: store.clone(),
            view: view.clone(),
            queue: queue.clone(),
            shard: setup.shard.clone(),
            ends,
            space: space.clone(),
            metrics: setup.metrics.clone(),
            clock: setup.clock.clone(),
            time: setup.time.clone(),
            desk: setup.files_desk.clone(),
            progress: progress.clone(),
            cleaner: Default::default(),
            wished: None,
        };
        let (metrics, clock) = (setup.metrics.clone(), setup.clock.clone());
        let write_snapshots = move || {
            snapshots::run(store, &jobs, &metrics, &clock);
            drop(done);
        };
        let watch = space.clone();
        let prepare = move || {
            while preparer.run_once() {}
            loop {
                // Nobody writes to a full disk: whether it has room again is looked for.
                let wait = if watch.now() == Space::Enough { Duration::MAX } else { FULL_DISK_INTERVAL };
                match work.recv_timeout(wait) {
                    Ok(()) | Err(RecvTimeoutError::Timeout) => while preparer.run_once() {},
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let helpers = vec![
            spawn::thread("ottla-snapshot", write_snapshots)?,
            spawn::thread("ottla-prepare", prepare)?,
            spawn::thread("ottla-files", move || files.run())?,
        ];
        let inbox = setup.inbox.clone();
        let thread = LogThread {
            queue: queue.clone(),
            writer,
            view: view.clone(),
            progress: progress.clone(),
            snapshots,
            snapshots_done,
            log_lives,
            written,
            epoch,
            last_time: ShardTime(report.shard_time),
            metrics: setup.metrics.clone(),
            clock: setup.clock.clone(),
            on_failure: Box::new(move || inbox.nudge()),
        };
        let log = Some(spawn::thread("ottla-log", move || thread.run())?);
        Ok(Self { queue, progress, log, helpers, space, durable_end: None })
    }

    /// Ends the threads after everything queued is written.
    fn stop(mut self) {
        self.collect().into_iter().for_each(|pending| {
            let reply = unavailable(&pending.request.command, true);
            pending.request.answer(reply);
        });
    }

    /// Ends the threads; gives back the answers that were not released.
    fn collect(&mut self) -> Vec<Pending> {
        self.queue.close();
        let mut pending = match self.log.take().map(ThreadHandle::join) {
            Some(Ok(remains)) => {
                self.durable_end = remains.durable_end;
                remains.pending
            }
            Some(Err(_)) => {
                tracing::error!("the log thread panicked; its unreleased answers are lost");
                Vec::new()
            }
            None => Vec::new(),
        };
        for item in self.queue.drain() {
            if let log_queue::ToLog::Answer(answer) = item {
                pending.push(answer);
            }
        }
        for helper in self.helpers.drain(..) {
            if helper.join().is_err() {
                tracing::error!("a helper thread of the log panicked");
            }
        }
        pending
    }
}

/// Publishes every partition and the image, after a load.
fn publish_all(state: &ShardState, view: &View, sequence: u64) {
    view.publish_all(sequence, state.all_bounds().collect(), state.image());
    view.wake();
}
