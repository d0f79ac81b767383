//! A source at work in a thread of its own, over the client: all lanes in one process.
//!
//! The transactional id is `<application>/source/<name>`. A second process that starts with the same name takes it
//! over: the first one's transaction is ended, and its thread stops with [`PortError::Fenced`]. Spreading the lanes over
//! processes takes a group of their own and [`Runner::assign`]; that is not here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ottla_client::admin::{AdminError, NewTopic};
use ottla_client::{ClientSettings, GroupMetadata, TransactionalSettings};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::spawn::{self, Handle, ThreadHandle};
use ottla_env::time;

use super::Source;
use super::runner::{Runner, RunnerError, RunnerMetrics, RunnerSettings, SourceRan};
use crate::kafka::{KafkaReader, KafkaWriter};
use crate::port::PortError;

/// Bytes of one fetch of positions.
const FETCH_BYTES: usize = 1 << 20;
/// How long nothing is done when nothing is there.
const IDLE_PAUSE: Duration = Duration::from_millis(5);

/// A running source.
#[derive(Debug)]
pub struct SourceThread {
    stop: Arc<AtomicBool>,
    thread: ThreadHandle<Result<RunnerMetrics, RunnerError>>,
}

impl SourceThread {
    /// Makes the positions topic when it is absent, takes the transactional id, and begins. Blocks meanwhile, so not for
    /// tasks of a runtime. `name`: of the source within the application.
    pub fn start(
        runtime: &Handle,
        client: &ClientSettings,
        settings: RunnerSettings,
        name: &str,
        source: Box<dyn Source>,
    ) -> Result<Self, RunnerError> {
        let reader = KafkaReader::connect(runtime, client, FETCH_BYTES)?;
        let positions = NewTopic::new(settings.positions_topic.as_str(), settings.lanes)
            .config("cleanup.policy", "compact");
        make_topic(runtime, &reader, positions)?;
        let id = format!("{}/{name}", settings.group_id);
        let port = KafkaWriter::take(runtime, TransactionalSettings::new(client.clone(), id))?;
        let mut runner = Runner::new(settings, source, port, Box::new(reader));
        for lane in 0..runner.settings().lanes {
            runner.assign(lane, OsClock.wall_ms())?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = spawn::thread("streams-source", move || run(runner, &told))
            .map_err(|error| PortError::Fatal(format!("no thread for a source: {error}")))?;
        Ok(Self { stop, thread })
    }

    /// Whether it has ended by itself, which it does only with an error.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Commits what was read, ends, and tells how it went.
    pub fn stop(self) -> Result<RunnerMetrics, RunnerError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(ended) => ended,
            Err(_) => {
                Err(PortError::Fatal("the source panicked; nothing uncommitted was kept".to_owned()).into())
            }
        }
    }
}

fn make_topic(runtime: &Handle, reader: &KafkaReader, topic: NewTopic) -> Result<(), PortError> {
    let made = runtime.block_on(reader.admin().create_topics(std::slice::from_ref(&topic), false));
    match made.into_values().next() {
        Some(Err(error)) if !exists(&error) => {
            Err(PortError::Fatal(format!("topic {} cannot be created: {error}", topic.name)))
        }
        _ => Ok(()),
    }
}

fn exists(error: &AdminError) -> bool {
    error.to_string().contains("TOPIC_ALREADY_EXISTS")
}

fn run(mut runner: Runner<KafkaWriter>, stop: &AtomicBool) -> Result<RunnerMetrics, RunnerError> {
    let group = GroupMetadata::without_members(runner.settings().group_id.as_str());
    let (never, idle) = std::sync::mpsc::channel::<()>();
    while !stop.load(Ordering::Relaxed) {
        if runner.run_once(OsClock.monotonic(), OsClock.wall_ms(), &group)? == SourceRan::Idle {
            let _ = idle.recv_timeout(IDLE_PAUSE); // nobody sends: a pause
        }
    }
    drop(never);
    let deadline = time::now() + Duration::from_secs(10);
    while !runner.commit(OsClock.monotonic(), &group)? && runner.is_dirty() && time::now() < deadline {
        let _ = idle.recv_timeout(IDLE_PAUSE);
    }
    Ok(runner.metrics())
}
