//! Topics with short retention: record n of a partition is at offset n, from the log start to the end.
//!
//! One reader follows the end from the first record on and must miss nothing; every now and then a new one begins at the
//! log start, and may only miss what is below the log start by then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Consumer, ConsumerSettings, OffsetReset, Producer, ProducerSettings, Record, StartAt, TopicPartition,
};
use ottla_env::time;

use super::Failure;
use super::world::{POLL, TICK, World, number, partitions, value};

const PARTITIONS: i32 = 2;
/// Records a second.
const RATE: u64 = 400;
/// Most that retention by size may leave of a partition, as a multiple of what it is to keep: deleting goes by units.
const EXCESS: i64 = 6;
const KEPT_BYTES: i64 = 4 << 20;
const KEPT: Duration = Duration::from_secs(60);
/// Longest that a record may stay by time: retention, how often it is looked, how long a file is filled.
const KEPT_MOST: Duration = Duration::from_secs(180);
const VALUE_BYTES: usize = 1024;
/// Between two readings from the log start.
const READ_EVERY: Duration = Duration::from_secs(15);
/// The producer's outcomes are looked at so often, in ticks.
const FLUSH_TICKS: u64 = 250;

/// By what records go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Time,
    Size,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Time, Self::Size];

    fn topic(self, world: &World) -> (String, NewTopic) {
        let (name, setting, value) = match self {
            Self::Time => ("by-time", "retention.ms", KEPT.as_millis().to_string()),
            Self::Size => ("by-size", "retention.bytes", KEPT_BYTES.to_string()),
        };
        let name = format!("{}-{name}", world.name);
        let topic = NewTopic::new(name.as_str(), PARTITIONS).config(setting, value);
        (name, topic)
    }
}

/// Writes, follows and reads again until it is over, and to the end.
pub(crate) async fn run(world: Arc<World>, kind: Kind) -> Result<(), Failure> {
    let (name, topic) = kind.topic(&world);
    world.admin.create_topic(&topic).await?;
    let producer = Producer::connect(ProducerSettings::new(world.client(&name)?)).await?;
    let all = partitions(&name, PARTITIONS);
    let mut follower = world.consumer(&name).await?;
    let start: Vec<_> = all.iter().map(|at| (at.clone(), StartAt::Offset(0))).collect();
    follower.assign(&start).await?;
    let mut seen: BTreeMap<TopicPartition, i64> = all.iter().map(|at| (at.clone(), 0)).collect();
    let mut sent = vec![0; all.len()];
    let (mut tick, mut count, mut read_at) = (time::now(), 0, time::now() + READ_EVERY);
    while !world.is_over() {
        for _ in 0..world.share(RATE, count) {
            let partition = usize::try_from(sent.iter().sum::<u64>())? % sent.len();
            let record = Record::to(name.as_str()).partition(i32::try_from(partition)?);
            drop(producer.send(record.value(value(sent[partition], VALUE_BYTES))).await?); // flush tells
            sent[partition] += 1;
        }
        count += 1;
        if count % FLUSH_TICKS == 0 {
            producer.flush().await?;
        }
        follow(&world, &mut follower, &mut seen, Duration::ZERO).await?;
        if time::now() >= read_at {
            read_again(&world, kind, &name, &all).await?;
            read_at = time::now() + READ_EVERY;
        }
        tick = (tick + TICK).max(time::now());
        time::sleep_until(tick).await;
    }
    producer.flush().await?;
    while seen.values().zip(&sent).any(|(seen, sent)| u64::try_from(*seen).is_ok_and(|seen| seen < *sent)) {
        follow(&world, &mut follower, &mut seen, POLL).await?;
    }
    read_again(&world, kind, &name, &all).await?;
    world.count("kept: records written", sent.iter().sum());
    follower.close().await?;
    Ok(())
}

/// What is new must go on where it was.
async fn follow(
    world: &World,
    follower: &mut Consumer,
    seen: &mut BTreeMap<TopicPartition, i64>,
    wait: Duration,
) -> Result<(), Failure> {
    for record in world.poll(follower, wait).await? {
        let next = seen.get_mut(&record.topic_partition).ok_or("only what was assigned is read")?;
        let written = record.value.as_deref().and_then(number);
        if record.offset != *next || written != u64::try_from(record.offset).ok() {
            world.fault(&format!(
                "{}: offset {} holds {written:?}, expected offset {next} and its number",
                record.topic_partition, record.offset
            ));
        }
        *next = record.offset + 1;
    }
    Ok(())
}

/// From the log start to the end, with a new consumer.
async fn read_again(world: &World, kind: Kind, name: &str, all: &[TopicPartition]) -> Result<(), Failure> {
    // the log start may move while it is read
    let settings = ConsumerSettings::new(world.client(&format!("{name}-again"))?)
        .offset_reset(OffsetReset::Earliest)
        .max_poll_records(5000);
    let mut consumer = match Consumer::connect(settings).await {
        Err(error) if error.is_retriable() => return Ok(()), // next time
        outcome => outcome?,
    };
    let start: Vec<_> = all.iter().map(|at| (at.clone(), StartAt::Beginning)).collect();
    match consumer.assign(&start).await {
        Err(error) if error.is_retriable() => return Ok(()),
        outcome => outcome?,
    }
    let (mut next, mut gaps) = (BTreeMap::new(), Vec::new());
    let (mut first, mut oldest) = (BTreeMap::new(), i64::MAX);
    let mut newest = 0;
    let read = world.read_to_end(&mut consumer, all, |record| {
        let written = record.value.as_deref().and_then(number);
        let expected = next.insert(record.topic_partition.clone(), record.offset + 1);
        if written != u64::try_from(record.offset).ok() || expected.is_some_and(|next| next > record.offset) {
            world.fault(&format!("{}: offset {} holds {written:?}", record.topic_partition, record.offset));
        }
        if expected.is_some_and(|next| next < record.offset) {
            gaps.push((record.topic_partition.clone(), record.offset));
        }
        first.entry(record.topic_partition).or_insert(record.offset);
        oldest = oldest.min(record.timestamp);
        newest = newest.max(record.timestamp);
    });
    read.await?;
    let starts = loop {
        match consumer.beginning_offsets(all).await {
            Err(error) if error.is_retriable() => time::sleep(POLL).await,
            outcome => break outcome?,
        }
    };
    for (at, offset) in gaps {
        if starts[&at] < offset {
            world.fault(&format!("{at}: a gap before offset {offset}, and the log start is {}", starts[&at]));
        }
    }
    world.count("kept: readings from the log start", 1);
    let least: i64 = first.iter().map(|(at, first)| next[at] - first).max().unwrap_or(0);
    match kind {
        Kind::Time if newest - oldest > i64::try_from(KEPT_MOST.as_millis())? => {
            world.fault(&format!("{name}: a record of {} ms ago is still there", newest - oldest));
        }
        Kind::Size if least * i64::try_from(VALUE_BYTES)? > EXCESS * KEPT_BYTES => {
            world.fault(&format!("{name}: {least} records of a partition are still there"));
        }
        Kind::Time => {
            world.note("kept: age of the oldest by time, ms", u64::try_from(newest - oldest).unwrap_or(0))
        }
        Kind::Size => world.note("kept: records of a partition by size", u64::try_from(least)?),
    }
    world.count("kept: log starts moved past", starts.values().filter(|start| **start > 0).count() as u64);
    match consumer.close().await {
        Err(error) if error.is_retriable() => Ok(()),
        outcome => Ok(outcome?),
    }
}
