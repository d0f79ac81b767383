//! Compacted topics: whatever the cleaner does, the last committed value of each key is there, nothing older comes
//! behind it, nothing aborted is seen, and a key whose last record is a tombstone has no older value again.
//!
//! Each record of a key has a version, counted up, in a header; an aborted one says so in a header of its own. A reading
//! from the beginning is compared with what was acknowledged before it and asked for behind it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    ConsumerRecord, ErrorClass, Producer, ProducerSettings, Record, StartAt, TransactionError,
    TransactionalProducer, TransactionalSettings,
};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn;
use ottla_env::time::{self, Instant};

use super::Failure;
use super::world::{PAUSE, World, header, number, partitions, value};

const PARTITIONS: i32 = 4;
const KEYS: usize = 2000;
/// Records a second.
const RATE: u64 = 400;
/// Most records of one transaction, or one burst.
const RECORDS_MOST: u64 = 40;
const VALUE_BYTES: (u64, u64) = (40, 400);
/// One record in so many is a tombstone, one transaction in so many is aborted.
const TOMBSTONE_ONE_IN: u64 = 10;
const ABORT_ONE_IN: u64 = 8;
const READ_EVERY: Duration = Duration::from_secs(20);
/// Of the topic that is deleted by time as well.
const KEPT: Duration = Duration::from_secs(90);
/// What is older than this may be gone there.
const SURELY_KEPT: Duration = Duration::from_secs(60);
const TRANSACTION: Duration = Duration::from_secs(20);
const VERSION: &str = "version";
const ABORTED: &str = "aborted";

/// What becomes of old records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Compacted; written in transactions.
    Compact,
    /// Compacted and deleted; written without transactions.
    Both,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Compact, Self::Both];

    fn topic(self, world: &World) -> (String, NewTopic) {
        let (name, policy) = match self {
            Self::Compact => ("compacted", "compact"),
            Self::Both => ("compacted-kept", "compact,delete"),
        };
        let name = format!("{}-{name}", world.name);
        let topic = NewTopic::new(name.as_str(), PARTITIONS)
            .config("cleanup.policy", policy)
            .config("retention.ms", KEPT.as_millis().to_string())
            .config("segment.ms", "10000")
            .config("min.cleanable.dirty.ratio", "0.3")
            .config("delete.retention.ms", "30000");
        (name, topic)
    }
}

/// What is known of a key.
#[derive(Clone, Copy, Default)]
struct Key {
    /// The last version whose commit was acknowledged, 0 for none; when, and whether it is a tombstone.
    acknowledged: u64,
    is_tombstone: bool,
    at: Option<Instant>,
    /// The last version that was to be committed.
    attempted: u64,
}

type Keys = Arc<Mutex<Vec<Key>>>;

fn lock(keys: &Keys) -> MutexGuard<'_, Vec<Key>> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes and reads until it is over, and once more behind it.
pub(crate) async fn run(world: Arc<World>, kind: Kind) -> Result<(), Failure> {
    let (name, topic) = kind.topic(&world);
    world.admin.create_topic(&topic).await?;
    let keys: Keys = Arc::new(Mutex::new(vec![Key::default(); KEYS]));
    let writer = spawn::task("compacted-writer", write(world.clone(), kind, name.clone(), keys.clone()));
    while !world.is_over() {
        world.rest(READ_EVERY).await;
        read(&world, kind, &name, &keys).await?;
    }
    writer.await??;
    read(&world, kind, &name, &keys).await
}

async fn write(world: Arc<World>, kind: Kind, name: String, keys: Keys) -> Result<(), Failure> {
    let mut rng = world.rng();
    let client = world.client(&name)?;
    let begun = time::now();
    let mut written = 0;
    if kind == Kind::Both {
        let producer = Producer::connect(ProducerSettings::new(client)).await?;
        while !world.is_over() {
            let chosen = choose(&mut rng, &keys);
            attempt(&keys, &chosen);
            for (key, version, is_tombstone) in &chosen {
                drop(producer.send(record(&mut rng, &name, *key, *version, *is_tombstone, false)).await?);
            }
            producer.flush().await?;
            acknowledge(&keys, &chosen);
            written += chosen.len() as u64;
            pace(&world, begun, written).await;
        }
        world.count("compacted: records written", written);
        return Ok(());
    }
    let settings = TransactionalSettings::new(client, name.as_str()).transaction_timeout(TRANSACTION);
    let mut producer = TransactionalProducer::init(settings.clone()).await?;
    while !world.is_over() {
        let chosen = choose(&mut rng, &keys);
        let aborts = rng.one_in(ABORT_ONE_IN);
        if !aborts {
            attempt(&keys, &chosen);
        }
        let mut end = time::now();
        let outcome = transaction(&mut producer, &mut rng, &name, &chosen, aborts, &mut end).await;
        match world.outcome(&mut producer, end, outcome).await {
            Ok(true) => acknowledge(&keys, &chosen),
            Ok(false) => {}
            Err(error) => {
                world.count("compacted: producers that gave up", 1);
                eprintln!("longhaul: {name}: {error}");
                time::sleep(PAUSE).await;
                producer = TransactionalProducer::init(settings.clone()).await?;
            }
        }
        written += chosen.len() as u64;
        pace(&world, begun, written).await;
    }
    world.count("compacted: records written", written);
    producer.close().await?;
    Ok(())
}

/// Waits until so many may have been written.
async fn pace(world: &World, begun: Instant, written: u64) {
    let ticks = begun.elapsed().as_millis() as u64 / 20;
    let due: u64 = world.share(RATE, 0).max(1) * ticks;
    if written > due {
        time::sleep(Duration::from_millis((written - due) * 1000 / RATE.max(1)).min(Duration::from_secs(1)))
            .await;
    }
}

/// Key, version and whether it is a tombstone of what is written next; no key twice.
fn choose(rng: &mut SeededRng, keys: &Keys) -> Vec<(usize, u64, bool)> {
    let keys = lock(keys);
    let mut chosen = BTreeMap::new();
    for _ in 0..rng.between(1, RECORDS_MOST) {
        // some keys change much more often than others
        let key = if rng.one_in(2) { rng.index(KEYS) } else { rng.index(KEYS / 20) };
        chosen.insert(key, (keys[key].attempted + 1, rng.one_in(TOMBSTONE_ONE_IN)));
    }
    chosen.into_iter().map(|(key, (version, is_tombstone))| (key, version, is_tombstone)).collect()
}

fn attempt(keys: &Keys, chosen: &[(usize, u64, bool)]) {
    let mut keys = lock(keys);
    chosen.iter().for_each(|(key, version, _)| keys[*key].attempted = *version);
}

fn acknowledge(keys: &Keys, chosen: &[(usize, u64, bool)]) {
    let mut keys = lock(keys);
    for (key, version, is_tombstone) in chosen {
        keys[*key] = Key {
            acknowledged: *version,
            is_tombstone: *is_tombstone,
            at: Some(time::now()),
            attempted: *version,
        };
    }
}

fn record(
    rng: &mut SeededRng,
    name: &str,
    key: usize,
    version: u64,
    is_tombstone: bool,
    aborted: bool,
) -> Record {
    let partition = i32::try_from(key).unwrap_or(0) % PARTITIONS;
    let record = Record::to(name).partition(partition).key(key.to_string());
    let record = record.header(VERSION, version.to_string());
    let record = if aborted { record.header(ABORTED, "1") } else { record };
    let bytes = rng.between(VALUE_BYTES.0, VALUE_BYTES.1);
    if is_tombstone { record } else { record.value(value(version, usize::try_from(bytes).unwrap_or(40))) }
}

async fn transaction(
    producer: &mut TransactionalProducer,
    rng: &mut SeededRng,
    name: &str,
    chosen: &[(usize, u64, bool)],
    aborts: bool,
    end: &mut Instant,
) -> Result<(), TransactionError> {
    let transaction = producer.begin().await?;
    for (key, version, is_tombstone) in chosen {
        let sent = transaction.send(record(rng, name, *key, *version, *is_tombstone, aborts)).await;
        if let Err(error) = sent {
            transaction.abort().await?;
            return Err(TransactionError::Aborted { cause: error.to_string() });
        }
    }
    if aborts {
        let flushed = transaction.flush().await; // so that there is something to abort
        transaction.abort().await?;
        let cause = flushed.map_or_else(|error| error.to_string(), |()| "as planned".to_owned());
        return Err(TransactionError::Aborted { cause });
    }
    *end = time::now();
    match transaction.commit().await {
        Err(error) if error.class() == ErrorClass::Fatal => Err(error),
        outcome => outcome,
    }
}

/// The last record of a key that a reading has found.
#[derive(Clone, Copy)]
struct Found {
    version: u64,
    is_tombstone: bool,
}

/// From the beginning to the end, and compares.
async fn read(world: &World, kind: Kind, name: &str, keys: &Keys) -> Result<(), Failure> {
    let before = lock(keys).clone();
    let begun = time::now();
    let mut consumer = world.consumer(&format!("{name}-reader")).await?;
    let all = partitions(name, PARTITIONS);
    let start: Vec<_> = all.iter().map(|at| (at.clone(), StartAt::Beginning)).collect();
    loop {
        match consumer.assign(&start).await {
            Err(error) if error.is_retriable() => time::sleep(PAUSE).await,
            outcome => break outcome?,
        }
    }
    let mut found: Vec<Option<Found>> = vec![None; KEYS];
    let mut count = 0;
    let read = world.read_to_end(&mut consumer, &all, |record| {
        count += 1;
        if let Err(problem) = take(&mut found, &record) {
            world.fault(&format!("{} offset {}: {problem}", record.topic_partition, record.offset));
        }
    });
    read.await?;
    let behind = lock(keys).clone();
    for (key, (found, (before, behind))) in found.iter().zip(before.iter().zip(&behind)).enumerate() {
        let may_be_gone = kind == Kind::Both
            && before.at.is_none_or(|at| begun.elapsed() + begun.duration_since(at) > SURELY_KEPT);
        if let Err(problem) = judge(*found, before, behind, may_be_gone) {
            world.fault(&format!("{name}: key {key}: {problem}"));
        }
    }
    world.count("compacted: readings compared", 1);
    let live = found.iter().flatten().filter(|found| !found.is_tombstone).count();
    match kind {
        Kind::Compact => {
            world.note("compacted: records in the last reading", count);
            world.note("compacted: live keys in the last reading", live as u64);
        }
        Kind::Both => world.note("compacted and deleted: records in the last reading", count),
    }
    match consumer.close().await {
        Err(error) if error.is_retriable() => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Takes what was read for a key's last; what is wrong with it in itself is an error.
fn take(found: &mut [Option<Found>], record: &ConsumerRecord) -> Result<(), String> {
    let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok()?.parse::<usize>().ok());
    let place = key.and_then(|key| found.get_mut(key)).ok_or("nobody wrote this key")?;
    let version = header(&record.headers, VERSION).ok_or("it has no version")?;
    if header(&record.headers, ABORTED).is_some() {
        return Err(format!("version {version} of key {key:?} was aborted"));
    }
    if record.value.as_deref().is_some_and(|value| number(value) != Some(version)) {
        return Err(format!("the value of version {version} of key {key:?} is another one's"));
    }
    if place.is_some_and(|before| before.version >= version) {
        return Err(format!("version {version} of key {key:?} comes behind a newer one"));
    }
    *place = Some(Found { version, is_tombstone: record.value.is_none() });
    Ok(())
}

/// Whether what a reading has found of a key lies between what was known before and behind it.
fn judge(found: Option<Found>, before: &Key, behind: &Key, may_be_gone: bool) -> Result<(), String> {
    let was_written = behind.attempted > before.acknowledged;
    match found {
        None if before.acknowledged == 0 || before.is_tombstone || may_be_gone || was_written => Ok(()),
        None => Err(format!("version {} is lost", before.acknowledged)),
        Some(found) if found.version < before.acknowledged => {
            Err(format!("ends with version {}, and {} was acknowledged", found.version, before.acknowledged))
        }
        Some(found) if found.version > behind.attempted => {
            Err(format!("nobody wrote version {}", found.version))
        }
        Some(found) if found.version == before.acknowledged && found.is_tombstone != before.is_tombstone => {
            Err(format!("version {} is a tombstone, or should be one", found.version))
        }
        Some(_) => Ok(()),
    }
}
