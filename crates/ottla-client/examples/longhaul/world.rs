//! What all parts share: the cluster, randomness, whether it is over, what was counted and what was wrong.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ottla_client::{
    Admin, ClientSettings, Consumer, ConsumerRecord, ConsumerSettings, ErrorClass, Header, IsolationLevel,
    SettingError, Text, TopicPartition, TransactionError, TransactionalProducer,
};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::rng::SeededRng;
use ottla_env::time::{self, Instant};

use super::{Failure, client};

pub(crate) const POLL: Duration = Duration::from_millis(200);
/// Behind an error that may pass.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// Records are written in bursts of this distance.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// Longest that a topic is read from its beginning to its end.
const READING: Duration = Duration::from_secs(150);
/// Faults that are told; more are counted.
const FAULTS_TOLD: u64 = 50;

pub(crate) struct World {
    bootstrap: String,
    pub(crate) admin: Admin,
    /// Begins the names of all that is made.
    pub(crate) name: String,
    /// Percent.
    load: u64,
    seed: AtomicU64,
    is_over: AtomicBool,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    faults: Mutex<(u64, Vec<String>)>,
    /// How long commits took since the last line of progress, microseconds.
    commits: Mutex<Vec<u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(crate) fn new(bootstrap: String, admin: Admin, seed: u64, load: u64) -> Self {
        Self {
            bootstrap,
            admin,
            name: format!("haul-{}", OsClock.wall_ms()),
            load,
            seed: AtomicU64::new(seed),
            is_over: AtomicBool::new(false),
            counts: Mutex::default(),
            faults: Mutex::default(),
            commits: Mutex::default(),
        }
    }

    /// How a client of that name reaches the cluster.
    pub(crate) fn client(&self, name: &str) -> Result<ClientSettings, SettingError> {
        client(&self.bootstrap, name)
    }

    /// Randomness for one part.
    pub(crate) fn rng(&self) -> SeededRng {
        SeededRng::new(self.seed.fetch_add(0x9e37_79b9, Ordering::Relaxed))
    }

    /// Of so many a second, how many in this tick.
    pub(crate) fn share(&self, per_second: u64, tick: u64) -> u64 {
        let (per_second, ticks) =
            (per_second * self.load, 100 * 1000 / u64::try_from(TICK.as_millis()).expect("20"));
        per_second * (tick + 1) / ticks - per_second * tick / ticks
    }

    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Whether nothing more is to be written.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Waits, shorter when it is over.
    pub(crate) async fn rest(&self, length: Duration) {
        let end = time::now() + length;
        while time::now() < end && !self.is_over() {
            time::sleep(PAUSE.min(length)).await;
        }
    }

    pub(crate) fn count(&self, what: &'static str, more: u64) {
        *lock(&self.counts).entry(what).or_default() += more;
    }

    /// The newest value of something.
    pub(crate) fn note(&self, what: &'static str, value: u64) {
        lock(&self.counts).insert(what, value);
    }

    /// Something is wrong.
    pub(crate) fn fault(&self, what: &str) {
        let mut faults = lock(&self.faults);
        faults.0 += 1;
        if faults.0 <= FAULTS_TOLD {
            eprintln!("longhaul: FAULT: {what}");
            faults.1.push(what.to_owned());
        }
    }

    pub(crate) fn is_sound(&self) -> bool {
        lock(&self.faults).0 == 0
    }

    /// What was done since the last call, as a JSON object.
    pub(crate) fn progress(&self, since: Duration) -> String {
        let mut commits = std::mem::take(&mut *lock(&self.commits));
        commits.sort_unstable();
        let at = |percent: usize| commits.get((commits.len() * percent / 100).min(commits.len().max(1) - 1));
        let ms = |percent| at(percent).map_or(0.0, |us| *us as f64 / 1000.0);
        format!(
            "{{\"second\": {}, \"commits\": {}, \"commit_p50_ms\": {:.2}, \"commit_p99_ms\": {:.2}, \"faults\": {}}}",
            since.as_secs(),
            commits.len(),
            ms(50),
            ms(99),
            lock(&self.faults).0
        )
    }

    /// All counts and faults, as a JSON object.
    pub(crate) fn judgement(&self, took: Duration, seed: u64) -> String {
        let quoted = |text: &String| format!("\"{}\"", text.replace(['"', '\\', '\n'], "'"));
        let faults = lock(&self.faults);
        let told: Vec<String> = faults.1.iter().map(quoted).collect();
        let counts: Vec<String> =
            lock(&self.counts).iter().map(|(name, count)| format!("\"{name}\": {count}")).collect();
        format!(
            "{{\"faults\": {}, \"told\": [{}], \"counts\": {{{}}}, \"seed\": {seed}, \"seconds\": {}}}",
            faults.0,
            told.join(", "),
            counts.join(", "),
            took.as_secs()
        )
    }

    /// Ends a transaction that was asked to begin at `from`: whether it took effect, found out if need be; an error when
    /// the producer cannot go on.
    pub(crate) async fn outcome(
        &self,
        producer: &mut TransactionalProducer,
        from: Instant,
        outcome: Result<(), TransactionError>,
    ) -> Result<bool, TransactionError> {
        let mut outcome = outcome.map(|()| true);
        loop {
            match outcome {
                Ok(committed) => {
                    if committed {
                        let took = u64::try_from(from.elapsed().as_micros()).unwrap_or(u64::MAX);
                        lock(&self.commits).push(took);
                    }
                    self.count(if committed { "transactions committed" } else { "transactions aborted" }, 1);
                    return Ok(committed);
                }
                Err(error) if error.class() == ErrorClass::Abortable => {
                    self.count("transactions aborted", 1);
                    return Ok(false);
                }
                Err(error) if error.class() == ErrorClass::Retriable => {
                    time::sleep(PAUSE).await;
                    self.count("commits asked for again", 1);
                    outcome = producer.resolve().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A consumer of its own, for partitions that are assigned by hand.
    pub(crate) async fn consumer(&self, name: &str) -> Result<Consumer, Failure> {
        let settings = ConsumerSettings::new(self.client(name)?)
            .isolation(IsolationLevel::ReadCommitted)
            .fetch_max_wait(POLL)
            .max_poll_records(5000);
        loop {
            match Consumer::connect(settings.clone()).await {
                Err(error) if error.is_retriable() => time::sleep(PAUSE).await,
                outcome => return Ok(outcome?),
            }
        }
    }

    /// The next records; none when there are none, or the broker is away.
    pub(crate) async fn poll(
        &self,
        consumer: &mut Consumer,
        wait: Duration,
    ) -> Result<Vec<ConsumerRecord>, Failure> {
        match consumer.poll(wait).await {
            Err(error) if error.is_retriable() => {
                time::sleep(PAUSE).await;
                Ok(Vec::new())
            }
            Err(error) => Err(error.into()),
            Ok(records) => {
                self.count("records read", records.len() as u64);
                Ok(records)
            }
        }
    }

    /// Ends of what can be read now.
    pub(crate) async fn ends(
        &self,
        consumer: &Consumer,
        all: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, Failure> {
        loop {
            match consumer.end_offsets(all).await {
                Err(error) if error.is_retriable() => time::sleep(PAUSE).await,
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Reads from where the consumer stands up to the end that there is at the call.
    pub(crate) async fn read_to_end(
        &self,
        consumer: &mut Consumer,
        all: &[TopicPartition],
        mut each: impl FnMut(ConsumerRecord),
    ) -> Result<(), Failure> {
        let ends = self.ends(consumer, all).await?;
        let deadline = time::now() + READING;
        let is_short = |consumer: &Consumer, (at, end): (&TopicPartition, &i64)| {
            *end > 0 && consumer.position(at).is_none_or(|position| position < *end)
        };
        while ends.iter().any(|place| is_short(consumer, place)) {
            self.poll(consumer, POLL).await?.into_iter().for_each(&mut each);
            if time::now() > deadline {
                let short = ends.iter().filter(|place| is_short(consumer, *place));
                let short: Vec<String> = short
                    .map(|(at, end)| format!("{at} stands at {:?} of {end}", consumer.position(at)))
                    .collect();
                let seconds = READING.as_secs();
                return Err(format!("not read to the end within {seconds} s: {}", short.join(", ")).into());
            }
        }
        Ok(())
    }
}

/// All partitions of a topic.
pub(crate) fn partitions(topic: &str, count: i32) -> Vec<TopicPartition> {
    (0..count).map(|partition| TopicPartition::new(topic, partition)).collect()
}

/// A value that tells its number and can be seen to be whole.
pub(crate) fn value(number: u64, bytes: usize) -> Bytes {
    let mut text = format!("{number}:");
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while text.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(&format!("{state:016x}"));
    }
    Bytes::from(text)
}

/// The number of a value; none when it is not one that `value` has made.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number = text.split_once(':')?.0.parse().ok()?;
    (value(number, bytes.len()) == bytes).then_some(number)
}

/// The value of the only header of that name, as a number.
pub(crate) fn header(headers: &[Header], name: &str) -> Option<u64> {
    let found = headers.iter().find(|header| header.key == *name)?;
    std::str::from_utf8(found.value.as_deref()?).ok()?.parse().ok()
}

/// A name within the run.
pub(crate) fn named(world: &World, what: &str) -> Text {
    format!("{}-{what}", world.name).into()
}
