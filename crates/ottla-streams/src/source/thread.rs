//! A source at work in a thread of its own, over the client.
//!
//! [`SourceThread::start`] has all lanes in one process. The transactional id is `<group>/<name>`; a second process that
//! starts with the same name takes it over: the first one's transaction is ended, and its thread stops with
//! [`PortError::Fenced`]. [`SourceThread::join`] (in [`super::group`]) shares the lanes between processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use ottla_client::admin::{AdminError, NewTopic};
use ottla_client::{ClientSettings, ErrorCode, GroupMetadata, Text, TransactionalSettings};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::spawn::{self, Handle, ThreadHandle};
use ottla_env::time;

use super::Source;
use super::runner::{Runner, RunnerError, RunnerMetrics, RunnerSettings, SourceRan};
use crate::kafka::{KafkaReader, KafkaWriter};
use crate::port::PortError;

/// Bytes of one fetch of positions.
pub(super) const FETCH_BYTES: usize = 1 << 20;
/// How long nothing is done when nothing is there.
pub(super) const IDLE_PAUSE: Duration = Duration::from_millis(5);
/// Longest until all brokers know a topic that was just made.
const KNOWN_MAX: Duration = Duration::from_secs(30);

/// A running source.
#[derive(Debug)]
pub struct SourceThread {
    stop: Arc<AtomicBool>,
    leave: Arc<AtomicBool>,
    thread: ThreadHandle<Result<RunnerMetrics, RunnerError>>,
}

impl SourceThread {
    /// Makes the positions topic when it is absent, takes the transactional id, and begins, with all lanes. Blocks
    /// meanwhile, so not for tasks of a runtime. `name`: of the source within the application.
    pub fn start(
        runtime: &Handle,
        client: &ClientSettings,
        settings: RunnerSettings,
        name: &str,
        source: Box<dyn Source>,
    ) -> Result<Self, RunnerError> {
        let reader = KafkaReader::connect(runtime, client, FETCH_BYTES)?;
        make_positions(runtime, &reader, &settings)?;
        let id = format!("{}/{name}", settings.group_id);
        let transactional =
            TransactionalSettings::new(client.clone(), id).transaction_timeout(settings.transaction_timeout);
        let port = KafkaWriter::take(runtime, transactional)?;
        let mut runner = Runner::new(settings, source, port, Box::new(reader));
        for lane in 0..runner.settings().lanes {
            runner.assign(lane, OsClock.wall_ms())?;
        }
        let stop = Arc::<AtomicBool>::default();
        let told = Arc::clone(&stop);
        begin(stop, move |_| run(runner, &told))
    }

    /// Whether it has ended by itself, which it does only with an error.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Commits what was read, ends, and tells how it went. With static membership in a group its lanes stay its own for
    /// a session's time-out.
    pub fn stop(self) -> Result<RunnerMetrics, RunnerError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(ended) => ended,
            Err(_) => {
                Err(PortError::Fatal("the source panicked; nothing uncommitted was kept".to_owned()).into())
            }
        }
    }

    /// As [`SourceThread::stop`], and leaves the group for good, so that others take its lanes at once.
    pub fn leave(self) -> Result<RunnerMetrics, RunnerError> {
        self.leave.store(true, Ordering::Relaxed);
        self.stop()
    }
}

/// Starts the thread.
pub(super) fn begin(
    stop: Arc<AtomicBool>,
    body: impl FnOnce(&AtomicBool) -> Result<RunnerMetrics, RunnerError> + Send + 'static,
) -> Result<SourceThread, RunnerError> {
    let leave = Arc::<AtomicBool>::default();
    let told = Arc::clone(&leave);
    let thread = spawn::thread("streams-source", move || body(&told))
        .map_err(|error| PortError::Fatal(format!("no thread for a source: {error}")))?;
    Ok(SourceThread { stop, leave, thread })
}

/// A pause without a clock of its own: nobody ever sends.
pub(super) struct Pause(Sender<()>, Receiver<()>);

impl Pause {
    pub(super) fn new() -> Self {
        let (never, idle) = channel();
        Self(never, idle)
    }

    pub(super) fn wait(&self, time: Duration) {
        let Self(_never, idle) = self;
        let _ = idle.recv_timeout(time); // it always times out
    }
}

/// Makes the positions topic when it is absent. One with another number of partitions is refused: source partitions
/// would move to lanes that do not know their positions, and be read again from their beginning.
pub(super) fn make_positions(
    runtime: &Handle,
    reader: &KafkaReader,
    settings: &RunnerSettings,
) -> Result<(), PortError> {
    let name = settings.positions_topic.as_str();
    let topic = NewTopic::new(name, settings.lanes).config("cleanup.policy", "compact");
    match runtime.block_on(reader.admin().create_topic(&topic)) {
        Ok(()) | Err(AdminError::Refused { code: ErrorCode::TopicAlreadyExists, .. }) => {}
        Err(error) => return Err(PortError::Fatal(format!("topic {name} cannot be created: {error}"))),
    }
    let (deadline, pause) = (time::now() + KNOWN_MAX, Pause::new());
    let partitions = loop {
        match runtime.block_on(reader.admin().describe_topic(&Text::from(name))) {
            Ok(found) => break found.partition_count,
            Err(_) if time::now() < deadline => pause.wait(Duration::from_millis(50)), // not known everywhere yet
            Err(error) => return Err(PortError::Fatal(format!("topic {name} cannot be described: {error}"))),
        }
    };
    if partitions == settings.lanes {
        return Ok(());
    }
    Err(PortError::Fatal(format!(
        "topic {name} has {partitions} partitions and the settings say {} lanes: the number of lanes cannot change under \
         the same application id, since sources would be read again from their beginning. Set lanes to {partitions}",
        settings.lanes
    )))
}

fn run(mut runner: Runner<KafkaWriter>, stop: &AtomicBool) -> Result<RunnerMetrics, RunnerError> {
    let group = GroupMetadata::without_members(runner.settings().group_id.as_str());
    let pause = Pause::new();
    while !stop.load(Ordering::Relaxed) {
        if runner.run_once(OsClock.monotonic(), OsClock.wall_ms(), &group)? == SourceRan::Idle {
            pause.wait(IDLE_PAUSE);
        }
    }
    let deadline = time::now() + Duration::from_secs(10);
    while !runner.commit(OsClock.monotonic(), &group)? && runner.is_dirty() && time::now() < deadline {
        pause.wait(IDLE_PAUSE);
    }
    Ok(runner.metrics())
}
