//! The broker's shell in miniature: what the owner thread and the log thread do around the core, in one thread.
//!
//! Decisions are queued, taken in groups as frames, appended and synced; then bounds are published, answers are
//! released, in this order. While a frame is in flight the owner decides on. A failed append throws the state
//! away and loads it again at a higher epoch; requests in flight are settled then. `files` is the thread that tidies
//! the folder, `cleaner` its share of compaction. The planted bugs of
//! `options::Bug` sit here, each at the place where a real shell could have it.

mod cleaner;
mod files;
pub(crate) mod load;
mod time;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ottla_core::CoreConfig;
use ottla_core::command::{Command, CommandBody, Token};
use ottla_core::decision::{Bounds, Decision, Position, Reply, ShardTime};
use ottla_core::shard::{ShardState, Snapshot};
use ottla_env::clock::ManualClock;
use ottla_env::disk::sim::SimDisk;
use ottla_env::rng::{Rng, SeededRng};
use ottla_protocol::entry::Entry;
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::{
    AppendError, DurableEnd, FilePreparer, Levels, LogOptions, LogReader, LogWriter, SnapshotInfo,
    SnapshotStore, SnapshotWriter,
};

pub(crate) use load::{LoadError, difference};
pub(crate) use time::ShardClock;

use crate::history::History;
use crate::options::Bug;

/// What a shell is started with, again and again.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) log: LogOptions,
    pub(crate) core: CoreConfig,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) bug: Option<Bug>,
    pub(crate) compare_states: bool,
    /// Ids of the cluster and of the two internal topics.
    pub(crate) ids: [ottla_protocol::types::Uuid; 3],
}

/// One decision on its way to the disk.
struct Decided {
    position: Position,
    time: ShardTime,
    entries: Vec<Entry>,
    bounds: Vec<(TopicIdPartition, Option<Bounds>)>,
}

/// An answer that waits for a position.
struct Pending {
    order: u64,
    command: Command,
    reply: Reply,
    rests_on: Position,
}

/// A frame whose sync has succeeded and whose completion nobody has heard of yet.
struct InFlight {
    position: Position,
    bounds: Vec<(TopicIdPartition, Option<Bounds>)>,
    answers: Vec<Pending>,
}

/// A snapshot that is being written, chunk by chunk.
struct SnapshotJob {
    writer: SnapshotWriter,
    chunks: VecDeque<Vec<u8>>,
}

/// The parts of an open log.
struct Log {
    writer: LogWriter,
    reader: LogReader,
    snapshots: SnapshotStore,
    preparer: FilePreparer,
    levels: Levels,
    epoch: i32,
}

/// A state that replays every durable frame beside the live one; it outlives the shell.
pub(crate) struct Shadow {
    pub(crate) state: ShardState,
    /// The frame whose append may have reached the disk, and what it would add.
    pub(crate) unsure: Option<(ShardTime, Position, Vec<Entry>)>,
}

/// How a step of the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogStep {
    /// A frame is durable; `complete` publishes it.
    Written,
    /// Nothing was queued.
    Nothing,
    /// No room; the frame stays queued.
    Again,
    /// The log is dead (or the machine has stopped).
    Dead,
}

/// One life of the broker.
pub(crate) struct Shell {
    setup: Setup,
    core: ShardState,
    clock: ShardClock,
    log: Log,
    queue: VecDeque<Decided>,
    waiting: Vec<Pending>,
    parked: BTreeMap<Token, (u64, Command)>,
    in_flight: Option<InFlight>,
    snapshot: Option<SnapshotJob>,
    durable: Position,
    /// Time of the newest frame or snapshot, ms: what the log writes of its own accord is not older.
    pub(crate) log_ms: i64,
    /// A pass of the cleaner on its way.
    cleaning: Option<cleaner::Cleaning>,
    /// Bounds as published; readers see nothing else.
    pub(crate) published: BTreeMap<TopicIdPartition, Bounds>,
    order: u64,
    last_loop_ms: u64,
    /// Answers that have left.
    pub(crate) released: Vec<(Token, Reply)>,
    /// For `Bug::DropDuplicateCheck`: the next sequence by partition and producer.
    next_sequences: BTreeMap<(TopicIdPartition, i64, i16), i32>,
}

impl Shell {
    /// Decides a command.
    pub(crate) fn decide(&mut self, mut command: Command, history: &mut History) {
        let now = self.tell_time();
        if self.setup.bug == Some(Bug::DropDuplicateCheck) {
            self.forge_sequences(&mut command);
        }
        let decision = self.core.step(command.clone(), now);
        self.carry_out(decision, Some(command), now, history);
    }

    /// Fires the timers that are due.
    pub(crate) fn tick(&mut self, history: &mut History) {
        let now = self.tell_time();
        if self.core.next_deadline().is_some_and(|deadline| deadline <= now) {
            let tick = Command { context: Default::default(), body: CommandBody::Tick };
            let decision = self.core.step(tick, now);
            self.carry_out(decision, None, now, history);
        }
    }

    /// Shard time as it is now.
    pub(crate) fn shard_time(&mut self) -> i64 {
        self.clock.now().0
    }

    /// The time of the next decision. Moves the deadlines when the shell stood still for over a second.
    fn tell_time(&mut self) -> ShardTime {
        let monotonic = self.clock.monotonic_ms();
        let gap = monotonic.saturating_sub(self.last_loop_ms);
        self.last_loop_ms = monotonic;
        let looked_around = 250;
        if gap > 1_000 + looked_around {
            self.core.shift_deadlines(i64::try_from(gap - looked_around).expect("virtual time is short"));
        }
        self.clock.now()
    }

    fn carry_out(
        &mut self,
        decision: Decision,
        command: Option<Command>,
        now: ShardTime,
        history: &mut History,
    ) {
        let Decision { entries, answers, touched, .. } = decision;
        if !entries.is_empty() {
            let bounds: Vec<_> = touched.into_iter().map(|id| (id, self.core.bounds(id))).collect();
            if self.setup.bug == Some(Bug::PublishBeforeDurable) {
                self.publish(bounds.clone(), false, history);
            }
            self.queue.push_back(Decided { position: self.core.position(), time: now, entries, bounds });
        }
        if let Some(command) = command {
            self.order += 1;
            self.parked.insert(command.context.token, (self.order, command));
        }
        for answer in answers {
            let Some((order, command)) = self.parked.remove(&answer.token) else { continue };
            let early = self.setup.bug == Some(Bug::AnswerBeforeDurable);
            if answer.rests_on <= self.durable || early {
                self.release(command, answer.reply);
            } else {
                let (reply, rests_on) = (answer.reply, answer.rests_on);
                self.waiting.push(Pending { order, command, reply, rests_on });
            }
        }
    }

    fn release(&mut self, command: Command, mut reply: Reply) {
        if self.setup.bug == Some(Bug::WrongBaseOffset)
            && let Reply::Produce(response) = &mut reply
        {
            for partition in response.responses.iter_mut().flat_map(|topic| &mut topic.partition_responses) {
                partition.base_offset += 1;
            }
        }
        self.released.push((command.context.token, reply));
    }

    /// Whether the log thread has something to do and may do it.
    pub(crate) fn wants_to_write(&self) -> bool {
        !self.queue.is_empty() && self.in_flight.is_none()
    }

    /// Takes up to `decisions_max` decisions as one frame, appends and syncs it.
    pub(crate) fn write(
        &mut self,
        decisions_max: usize,
        shadow: &mut Shadow,
        history: &mut History,
    ) -> LogStep {
        if !self.wants_to_write() {
            return LogStep::Nothing;
        }
        let most = self.queue.len().min(decisions_max.max(1));
        // The core keeps the time of a producer's last append; a replay has only the frame's. For states that can
        // be compared to the byte a frame holds decisions of one time.
        let first = self.queue[0].time;
        let same_time = self.queue.iter().take(most).take_while(|decided| decided.time == first).count();
        let count = if self.setup.compare_states { same_time } else { most };
        let taken: Vec<Decided> = self.queue.drain(..count).collect();
        let last = taken.last().expect("at least one was taken");
        let (position, time) = (last.position, last.time);
        let entries: Vec<Entry> = taken.iter().flat_map(|decided| decided.entries.iter().cloned()).collect();
        shadow.unsure = Some((time, position, entries.clone()));
        let appended = if self.setup.bug == Some(Bug::SplitDecision) && entries.len() > 1 {
            let (first, second) = entries.split_at(entries.len() / 2);
            let first = self.log.writer.append(time.0, position.0, first);
            first.and_then(|_| self.log.writer.append(time.0, position.0, second))
        } else {
            self.log.writer.append(time.0, position.0, &entries)
        };
        match appended {
            Ok(_) => {}
            Err(AppendError::NotWritten(_)) => {
                shadow.unsure = None;
                for decided in taken.into_iter().rev() {
                    self.queue.push_front(decided);
                }
                return LogStep::Again;
            }
            Err(AppendError::Unknown(_)) => {
                if self.setup.bug != Some(Bug::AnswerAfterFailedSync) {
                    return LogStep::Dead;
                }
            }
        }
        history.counts.frames += 1;
        history.frame_written(time.0);
        history.entries_durable(&entries, time.0);
        self.log_ms = self.log_ms.max(time.0);
        let durable = shadow.unsure.take().filter(|_| self.setup.compare_states);
        if let Some((time, position, entries)) = durable
            && let Err(error) = shadow.state.replay(&entries, position, time)
        {
            history.violation(format!("frame with position {position:?} cannot be replayed: {error}"));
        }
        let bounds = taken.into_iter().flat_map(|decided| decided.bounds).collect();
        let answers = self.waiting.extract_if(.., |pending| pending.rests_on <= position).collect();
        self.in_flight = Some(InFlight { position, bounds, answers });
        LogStep::Written
    }

    /// Publishes the frame that was written and releases what waited for it.
    pub(crate) fn complete(&mut self, history: &mut History) {
        let Some(InFlight { position, bounds, answers }) = self.in_flight.take() else { return };
        if self.setup.bug != Some(Bug::PublishBeforeDurable) {
            self.publish(bounds, false, history);
        }
        self.durable = position;
        for pending in answers {
            self.release(pending.command, pending.reply);
        }
        let now_durable: Vec<Pending> =
            self.waiting.extract_if(.., |waiting| waiting.rests_on <= position).collect();
        for pending in now_durable {
            self.release(pending.command, pending.reply);
        }
    }

    fn publish(
        &mut self,
        bounds: Vec<(TopicIdPartition, Option<Bounds>)>,
        new_epoch: bool,
        history: &mut History,
    ) {
        for (partition, bounds) in bounds {
            match bounds {
                Some(bounds) => {
                    history.bounds_published(partition, &bounds, new_epoch);
                    self.published.insert(partition, bounds);
                }
                None => {
                    self.published.remove(&partition);
                }
            }
        }
        let image = self.core.image();
        for (name, topic) in &mut history.topics {
            if topic.id.is_none() {
                topic.id = image.topic_by_name(name).map(|found| found.id);
            }
        }
    }

    /// Whether everything decided is durable and published.
    pub(crate) fn is_settled(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_none() && self.core.position() == self.durable
    }

    /// Does one piece of the file preparer's work.
    pub(crate) fn prepare(&mut self) {
        self.log.preparer.run_once();
    }

    /// Begins a snapshot of the durable state, or writes the next chunk of the one in progress.
    pub(crate) fn snapshot_step(&mut self, rng: &mut SeededRng, history: &mut History) {
        if let Some(mut job) = self.snapshot.take() {
            match job.chunks.pop_front() {
                Some(chunk) => {
                    if job.writer.chunk(&chunk).is_ok() {
                        self.snapshot = Some(job);
                    }
                }
                None => history.counts.snapshots += u64::from(job.writer.finish().is_ok()),
            }
            return;
        }
        if !self.is_settled() || rng.one_in(4) {
            return;
        }
        let info = SnapshotInfo {
            frame_sequence: self.log.writer.durable_sequence(),
            epoch: self.log.epoch,
            position: self.core.position().0,
            shard_time: self.clock.now().0,
        };
        let snapshot: Snapshot = self.core.snapshot();
        self.log_ms = self.log_ms.max(info.shard_time);
        if let Ok(writer) = self.log.snapshots.begin(info) {
            self.snapshot = Some(SnapshotJob { writer, chunks: snapshot.chunks().collect() });
        }
    }

    /// Whether a snapshot is being written.
    pub(crate) fn is_writing_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Reads for fetches.
    pub(crate) fn reader(&self) -> &LogReader {
        &self.log.reader
    }

    /// The chunks of a snapshot of the live state, without the header (which names the epoch).
    pub(crate) fn chunks(&self) -> Vec<Vec<u8>> {
        load::chunks(&self.core)
    }

    /// Position of the live state.
    pub(crate) fn position(&self) -> Position {
        self.core.position()
    }

    /// Up to where the log is known to be durable.
    pub(crate) fn durable_end(&self) -> DurableEnd {
        self.log.writer.durable_end()
    }

    /// Ends this life because the log died: gives back what has to be settled by the next.
    pub(crate) fn into_unsettled(self) -> Unsettled {
        let durable_end = self.durable_end();
        let mut requests: BTreeMap<u64, (Command, Option<(Reply, Position)>)> = BTreeMap::new();
        let in_flight = self.in_flight.into_iter().flat_map(|frame| frame.answers);
        for pending in self.waiting.into_iter().chain(in_flight) {
            requests.insert(pending.order, (pending.command, Some((pending.reply, pending.rests_on))));
        }
        for (order, command) in self.parked.into_values() {
            requests.insert(order, (command, None));
        }
        let kept = (self.setup.bug == Some(Bug::KeepStateAfterFailedWrite)).then_some(self.core);
        Unsettled { requests: requests.into_values().collect(), durable_end, published: self.published, kept }
    }

    /// Settles what the previous life in this process left: answers that survived leave, the rest is decided
    /// again, in order.
    pub(crate) fn settle(&mut self, unsettled: Unsettled, history: &mut History) {
        let survived = self.durable;
        if let Some(kept) = unsettled.kept {
            self.core = kept;
        }
        for (command, reply) in unsettled.requests {
            let survives = reply.as_ref().is_some_and(|(_, rests_on)| *rests_on <= survived);
            let release = survives || (self.setup.bug == Some(Bug::ReleaseAllAfterReload) && reply.is_some());
            match reply {
                Some((reply, _)) if release => self.release(command, reply),
                _ => self.decide(command, history),
            }
        }
    }

    /// Asks and waits for the answer, with nobody else around; none when it cannot become durable.
    pub(crate) fn ask(&mut self, version: i16, body: CommandBody, history: &mut History) -> Option<Reply> {
        let token = Token(u64::MAX);
        let context = ottla_core::command::Context { token, version, ..Default::default() };
        self.decide(Command { context, body }, history);
        let mut shadow = Shadow { state: ShardState::new(self.setup.core.clone()), unsure: None };
        let compares = std::mem::replace(&mut self.setup.compare_states, false);
        while self.write(usize::MAX, &mut shadow, history) == LogStep::Written {
            self.complete(history);
        }
        self.setup.compare_states = compares;
        let released = std::mem::take(&mut self.released);
        released.into_iter().find_map(|(released, reply)| (released == token).then_some(reply))
    }

    /// `Bug::DropDuplicateCheck`: every batch gets the sequence that the core expects.
    fn forge_sequences(&mut self, command: &mut Command) {
        let CommandBody::Produce(produce) = &mut command.body else { return };
        for topic in &mut produce.topics {
            for partition in &mut topic.partitions {
                let Ok(batch) = &mut partition.batch else { continue };
                if batch.header.producer_id < 0 || batch.header.is_transactional() {
                    continue;
                }
                let place = TopicIdPartition { topic_id: topic.topic_id, partition: partition.partition };
                let key = (place, batch.header.producer_id, batch.header.producer_epoch);
                let next = self.next_sequences.entry(key).or_insert(batch.header.base_sequence);
                batch.header.base_sequence = *next;
                *next += batch.header.records_count;
                let mut tail = batch.tail.to_vec();
                tail[..40].copy_from_slice(&batch.header.tail_header());
                batch.tail = tail.into();
                batch.header.crc = ottla_protocol::batch::crc_of(&batch.tail);
            }
        }
    }
}

/// What a life leaves to the next one in the same process.
pub(crate) struct Unsettled {
    requests: Vec<(Command, Option<(Reply, Position)>)>,
    /// `Bug::KeepStateAfterFailedWrite`.
    kept: Option<ShardState>,
    pub(crate) durable_end: DurableEnd,
    pub(crate) published: BTreeMap<TopicIdPartition, Bounds>,
}

/// Loads the shell from a disk.
pub(crate) fn start(
    disk: &SimDisk,
    setup: &Setup,
    shadow: &mut Shadow,
    unsettled: Option<&Unsettled>,
    history: &mut History,
) -> Result<Shell, LoadError> {
    load::load(disk, setup, shadow, unsettled, history)
}
