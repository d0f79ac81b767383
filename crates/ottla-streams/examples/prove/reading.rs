//! Reads what is checked: topics to their end, and the stores of state folders whose processes have ended.

use std::path::Path;
use std::time::Duration;

use ottla_client::{
    ClientSettings, Consumer, ConsumerRecord, ConsumerSettings, IsolationLevel, StartAt, TopicPartition,
};
use ottla_env::time;
use ottla_streams::engine::rocks::{RocksSettings, RocksShared};
use ottla_streams::engine::{Direction, KeyRange};
use ottla_streams::open::{EngineKind, Place, StateOpener};
use ottla_streams::state_dir::StateDir;
use ottla_streams::store::KvStore;
use ottla_streams::topology::Topology;

use super::application::{COUNTS, TOTALS, input_of, output_of};
use super::check::{Change, Changelogs, Entries, Found, Input, Total};
use super::{Failure, PARTITIONS, POLL};

/// Longest that a whole topic is read.
const READING: Duration = Duration::from_secs(120);

/// A consumer at the beginning of a topic, of committed records.
pub(crate) async fn reader(settings: &ClientSettings, topic: &str) -> Result<Consumer, Failure> {
    let settings = ConsumerSettings::new(settings.clone())
        .isolation(IsolationLevel::ReadCommitted)
        .max_poll_records(5000);
    let mut consumer = Consumer::connect(settings).await?;
    consumer.assign_topic(&topic.into(), StartAt::Beginning).await?;
    Ok(consumer)
}

/// The next records; none when there are none, or the broker is away.
pub(crate) async fn poll(consumer: &mut Consumer, wait: Duration) -> Result<Vec<ConsumerRecord>, Failure> {
    match consumer.poll(wait).await {
        Err(error) if error.is_retriable() => Ok(Vec::new()),
        outcome => Ok(outcome?),
    }
}

/// Everything committed up to the end that there is now.
async fn read_all(settings: &ClientSettings, topic: &str) -> Result<Vec<ConsumerRecord>, Failure> {
    let mut consumer = reader(settings, topic).await?;
    let all: Vec<_> = (0..PARTITIONS).map(|partition| TopicPartition::new(topic, partition)).collect();
    let ends = consumer.end_offsets(&all).await?;
    let mut records = Vec::new();
    let deadline = time::now() + READING;
    while ends.iter().any(|(at, end)| consumer.position(at).is_none_or(|position| position < *end)) {
        records.extend(poll(&mut consumer, POLL).await?);
        if time::now() > deadline {
            return Err(format!("{topic} cannot be read to its end within {} s", READING.as_secs()).into());
        }
    }
    consumer.close().await?;
    Ok(records)
}

/// Numbers by key, as they were fed.
pub(crate) async fn input(settings: &ClientSettings, name: &str) -> Result<Input, Failure> {
    let mut input = Input::new();
    for record in read_all(settings, &input_of(name)).await? {
        let (key, number): (String, i64) = serde_json::from_slice(&record.value.unwrap_or_default())?;
        input.entry(key).or_default().push(number);
    }
    Ok(input)
}

/// The output, partition by partition.
pub(crate) async fn output(settings: &ClientSettings, name: &str) -> Result<Vec<Total>, Failure> {
    let total = |record: ConsumerRecord| -> Result<Total, Failure> {
        let key = String::from_utf8(record.key.unwrap_or_default().to_vec())?;
        let (count, sum) = serde_json::from_slice(&record.value.unwrap_or_default())?;
        Ok(Total { key, count, sum })
    };
    read_all(settings, &output_of(name)).await?.into_iter().map(total).collect()
}

/// The changelogs of all stores.
pub(crate) async fn changelogs(settings: &ClientSettings, name: &str) -> Result<Changelogs, Failure> {
    let mut changelogs = Changelogs::new();
    for store in [COUNTS, TOTALS] {
        for partition in 0..PARTITIONS {
            changelogs.insert((store.to_owned(), partition), Vec::new());
        }
        for record in read_all(settings, &format!("{name}.{store}.changelog")).await? {
            let key = record.key.ok_or("a changelog has a record without key")?;
            let change = Change { offset: record.offset, key, value: record.value };
            let at = (store.to_owned(), record.topic_partition.partition);
            changelogs.entry(at).or_default().push(change);
        }
    }
    Ok(changelogs)
}

/// What is in a state folder: its stores, and how many copies were set aside or are being rebuilt.
pub(crate) fn folder(topology: &Topology, folder: &Path) -> Result<(Vec<Found>, u64), Failure> {
    let dir = StateDir::open(folder, topology.name())?;
    let opener = StateOpener::new(EngineKind::Rocks(RocksShared::new(RocksSettings::default())));
    let (mut found, mut aside) = (Vec::new(), 0);
    for id in dir.tasks()? {
        let task = dir.task(id)?;
        let rebuilt = ottla_env::files::facts(&task.rebuild()).is_ok();
        aside += task.asides()?.len() as u64 + u64::from(rebuilt);
        let sub = &topology.sub_topologies()[usize::from(id.sub_topology)];
        let opened = opener.open(&task, Place::Current, &sub.stores, sub.fingerprint)?;
        aside += u64::from(opened.set_aside.is_some());
        let snapshot = opened.state.snapshot();
        for (spec, position) in sub.stores.iter().zip(&snapshot.meta().stores) {
            let store = snapshot.store(&spec.name).ok_or("a store is missing")?;
            let entries = snapshot.scan(store, &KeyRange::ALL, Direction::Forward);
            let entries = entries.collect::<Result<Entries, _>>()?;
            let totals =
                entries.iter().map(|(key, value)| decoded(topology, &spec.name, key, value)).collect();
            let (store, position) = (spec.name.clone(), position.position);
            found.push(Found { store, partition: id.partition, position, entries, totals });
        }
    }
    Ok((found, aside))
}

/// Key, count and sum of an entry.
fn decoded(topology: &Topology, store: &str, key: &[u8], value: &[u8]) -> Option<(String, i64, Option<i64>)> {
    if store == COUNTS {
        let (key, count) = topology.store::<KvStore<String, i64>>(store)?.entry(key, value).ok()?;
        return Some((key, count, None));
    }
    let (key, total) = topology.store::<KvStore<String, (i64, i64)>>(store)?.entry(key, value).ok()?;
    Some((key, total.0, Some(total.1)))
}
