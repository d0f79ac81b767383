//! Topics, groups and producers that come, are used, and go: what is left of them must not grow.
//!
//! Each round makes a topic, writes it as an idempotent or a transactional producer that did not exist before, reads it in a
//! group of one or two members of either protocol, checks that each record came once, and deletes the topic. Some
//! groups are deleted, the others expire with their offsets; some transactions are left open, for the coordinator to
//! abort.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ottla_client::admin::{AdminError, NewTopic};
use ottla_client::{
    Consumer, ConsumerSettings, ErrorCode, GroupProtocol, OffsetReset, Producer, ProducerSettings, Record,
    Text, TransactionError, TransactionalProducer, TransactionalSettings,
};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::time;

use super::Failure;
use super::world::{PAUSE, World, header, named, number, value};

/// Rounds at once.
pub(crate) const LANES: usize = 3;
const PARTITIONS: i32 = 3;
/// Records of a round.
const RECORDS: (u64, u64) = (20, 300);
const VALUE_BYTES: usize = 500;
const TRANSACTION: Duration = Duration::from_secs(5);
/// Between two rounds, ms.
const REST_MS: u64 = 1500;
/// Longest that a group may take to read everything; a transaction that was left open holds it up.
const READING: Duration = Duration::from_secs(120);
/// Time for a record too many to appear.
const QUIET: Duration = Duration::from_millis(400);
const ABORTED: &str = "aborted";

/// Round after round until it is over.
pub(crate) async fn run(world: Arc<World>, lane: usize) -> Result<(), Failure> {
    let mut rng = world.rng();
    let mut round = 0;
    while !world.is_over() {
        let name = named(&world, &format!("passing-{lane}-{round}"));
        pass(&world, &name, &mut rng).await.map_err(|error| format!("{name}: {error}"))?;
        world.count("passing: rounds", 1);
        round += 1;
        world.rest(Duration::from_millis(rng.below(REST_MS))).await;
    }
    Ok(())
}

async fn pass(world: &World, name: &Text, rng: &mut SeededRng) -> Result<(), Failure> {
    let topic = NewTopic::new(name.clone(), PARTITIONS);
    let policy = if rng.one_in(3) { "compact" } else { "delete" };
    world.admin.create_topic(&topic.config("cleanup.policy", policy)).await?;
    let records = rng.between(RECORDS.0, RECORDS.1);
    if rng.one_in(2) {
        idempotent(world, name, records).await?;
    } else {
        transactional(world, name, records, rng).await?;
    }
    read(world, name, records, rng).await?;
    if rng.one_in(2) {
        delete_group(world, name).await?;
    } else {
        world.count("passing: groups left to expire", 1);
    }
    world.admin.delete_topic(name).await?;
    Ok(())
}

/// Record `number` has a key of its own, so that compaction leaves it.
fn record(name: &Text, number: u64) -> Record {
    Record::to(name.clone()).key(number.to_string()).value(value(number, VALUE_BYTES))
}

async fn idempotent(world: &World, name: &Text, records: u64) -> Result<(), Failure> {
    let producer = Producer::connect(ProducerSettings::new(world.client(name)?)).await?;
    for number in 0..records {
        drop(producer.send(record(name, number)).await?); // flush tells
    }
    producer.flush().await?;
    world.count("passing: idempotent producers", 1);
    Ok(())
}

/// Aborted records, then the right ones; sometimes more that are left open.
async fn transactional(world: &World, name: &Text, records: u64, rng: &mut SeededRng) -> Result<(), Failure> {
    let settings =
        TransactionalSettings::new(world.client(name)?, name.clone()).transaction_timeout(TRANSACTION);
    loop {
        let mut producer = TransactionalProducer::init(settings.clone()).await?;
        world.count("passing: transactional producers", 1);
        match write(world, &mut producer, name, records).await {
            Ok(true) if rng.one_in(4) => {
                let transaction = producer.begin().await?;
                drop(transaction.send(record(name, 0).header(ABORTED, "1")).await?);
                let _ = transaction.flush().await; // it is to be aborted whatever it says
                world.count("passing: transactions left open", 1);
                return Ok(());
            }
            Ok(true) => return Ok(producer.close().await?),
            Ok(false) => {}
            // The coordinator was away for longer than the transaction may last. What became of it is not known, and
            // the next round's check would not hold.
            Err(error) => return Err(error),
        }
        time::sleep(PAUSE).await;
    }
}

/// Whether everything was committed, else nothing was.
async fn write(
    world: &World,
    producer: &mut TransactionalProducer,
    name: &Text,
    records: u64,
) -> Result<bool, Failure> {
    for aborts in [true, false] {
        let mut end = time::now();
        let outcome = async {
            let transaction = producer.begin().await?;
            for number in 0..records {
                let record = record(name, number);
                let record = if aborts { record.header(ABORTED, "1") } else { record };
                if let Err(error) = transaction.send(record).await {
                    transaction.abort().await?;
                    return Err(TransactionError::Aborted { cause: error.to_string() });
                }
            }
            if aborts {
                let _ = transaction.flush().await; // it is aborted whatever it says
                transaction.abort().await?;
                return Err(TransactionError::Aborted { cause: "as planned".to_owned() });
            }
            end = time::now();
            transaction.commit().await
        };
        let outcome = outcome.await;
        let committed = world.outcome(producer, end, outcome).await?;
        if !aborts {
            return Ok(committed);
        }
    }
    Ok(false)
}

/// Each record once, by a group that did not exist before.
async fn read(world: &World, name: &Text, records: u64, rng: &mut SeededRng) -> Result<(), Failure> {
    let is_848 = rng.one_in(2);
    let settings = ConsumerSettings::new(world.client(name)?)
        .group_id(name.clone())
        .group_protocol(if is_848 { GroupProtocol::Consumer } else { GroupProtocol::Classic })
        .session_timeout(Duration::from_secs(6))
        .heartbeat_interval(Duration::from_millis(500))
        .fetch_max_wait(Duration::from_millis(100))
        .offset_reset(OffsetReset::Earliest);
    let mut members = Vec::new();
    for _ in 0..rng.between(1, 2) {
        let mut member = Consumer::connect(settings.clone()).await?;
        member.subscribe(&[name]).await?;
        members.push(member);
    }
    let mut seen: BTreeMap<(i32, i64), u64> = BTreeMap::new();
    let mut deadline = time::now() + READING;
    let mut is_complete = false;
    while time::now() < deadline {
        for member in &mut members {
            for record in world.poll(member, Duration::from_millis(50)).await? {
                let written = record.value.as_deref().and_then(number);
                if header(&record.headers, ABORTED).is_some() {
                    world.fault(&format!("{name}: offset {} was aborted", record.offset));
                }
                let written = written.ok_or("a value that nobody wrote")?;
                // A rebalance may give a partition to another member, which begins where nothing was committed.
                let before = seen.insert((record.topic_partition.partition, record.offset), written);
                if before.is_some_and(|before| before != written) {
                    world.fault(&format!(
                        "{name}: offset {} changes from {before:?} to {written}",
                        record.offset
                    ));
                }
            }
        }
        if !is_complete && seen.len() as u64 >= records {
            is_complete = true;
            deadline = time::now() + QUIET;
        }
    }
    let mut numbers: Vec<u64> = seen.into_values().collect();
    numbers.sort_unstable();
    if !numbers.iter().copied().eq(0..records) {
        world.fault(&format!("{name}: {} of {records} records were read: {numbers:?}", numbers.len()));
    }
    world.count(if is_848 { "passing: KIP-848 groups" } else { "passing: classic groups" }, 1);
    for member in members {
        // A rebalance or the broker's restart may be in the way: what is not committed does no harm here.
        let _ = member.commit_positions().await;
        let _ = time::timeout(Duration::from_secs(10), member.close()).await;
    }
    Ok(())
}

/// Members that could not say that they leave are in it until their session ends.
async fn delete_group(world: &World, name: &Text) -> Result<(), Failure> {
    let deadline = time::now() + READING;
    loop {
        let result = world.admin.delete_groups(std::slice::from_ref(name)).await.pop_first();
        match result.ok_or("every group has a result")?.1 {
            Ok(()) => break,
            Err(error) if is_passing(&error) && time::now() < deadline => time::sleep(PAUSE).await,
            // it expired, or an attempt of this call has deleted it
            Err(error) if error.code() == Some(ErrorCode::GroupIdNotFound) => break,
            Err(error) => return Err(error.into()),
        }
    }
    world.count("passing: groups deleted", 1);
    Ok(())
}

fn is_passing(error: &AdminError) -> bool {
    error.code() == Some(ErrorCode::NonEmptyGroup)
}
