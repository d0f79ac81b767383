//! Consume, process, produce, twice over: what is fed must come out once, in its key's order.
//!
//! Workers are tasks that abort now and then and are dropped now and then, whatever they are doing; the next one takes
//! the same transactional id. The first stage's group is classic with static members, the second one's is of KIP-848.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Consumer, ConsumerRecord, ConsumerSettings, ErrorClass, GroupMetadata, GroupProtocol, OffsetReset,
    OffsetToCommit, Producer, ProducerSettings, Record, StartAt, Text, TransactionError,
    TransactionalProducer, TransactionalSettings,
};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn::TaskGroup;
use ottla_env::time;

use super::Failure;
use super::world::{PAUSE, POLL, TICK, World, named, number, partitions, value};

const PARTITIONS: i32 = 4;
const KEYS: usize = 16;
const WORKERS: usize = 2;
/// Records a second.
const RATE: u64 = 200;
const VALUE_BYTES: usize = 400;
/// How long what is written is kept: nobody may be behind by so much.
const KEPT: Duration = Duration::from_secs(300);
const SESSION: Duration = Duration::from_secs(6);
const TRANSACTION: Duration = Duration::from_secs(10);
/// How long a worker lives until it is dropped, seconds.
const LIFE: (u64, u64) = (20, 120);
/// One transaction in so many is aborted on purpose.
const ABORT_ONE_IN: u64 = 12;
/// Longest that a transaction stays open for no reason, ms.
const LINGER_MS: u64 = 100;
/// The producer's outcomes are looked at so often, in ticks.
const FLUSH_TICKS: u64 = 250;

/// Feeds and checks until it is over, and to the end.
pub(crate) async fn run(world: Arc<World>) -> Result<(), Failure> {
    let topics = ["in", "mid", "out"].map(|name| named(&world, name));
    for topic in &topics {
        let topic = NewTopic::new(topic.clone(), PARTITIONS);
        world.admin.create_topic(&topic.config("retention.ms", KEPT.as_millis().to_string())).await?;
    }
    let mut workers = TaskGroup::new();
    for stage in 0..2 {
        for place in 0..WORKERS {
            let job = Job {
                from: topics[stage].clone(),
                to: topics[stage + 1].clone(),
                group: named(&world, &format!("stage-{stage}")),
                id: named(&world, &format!("worker-{stage}-{place}")),
                is_848: stage == 1,
            };
            workers.spawn("worker", work(world.clone(), job));
        }
    }
    let mut rng = world.rng();
    let producer = Producer::connect(ProducerSettings::new(world.client("feeder")?)).await?;
    let mut reader = world.consumer("chain-reader").await?;
    let start: Vec<_> =
        partitions(&topics[2], PARTITIONS).into_iter().map(|at| (at, StartAt::Offset(0))).collect();
    reader.assign(&start).await?;
    let (mut sent, mut next) = ([0; KEYS], [0; KEYS]);
    let (mut tick, mut count) = (time::now(), 0);
    while !world.is_over() {
        for _ in 0..world.share(RATE, count) {
            let key = rng.index(KEYS);
            let record = Record::to(topics[0].clone()).partition(i32::try_from(key)? % PARTITIONS);
            let record = record.key(key.to_string()).value(value(sent[key], VALUE_BYTES));
            drop(producer.send(record).await?); // flush tells
            sent[key] += 1;
        }
        count += 1;
        if count % FLUSH_TICKS == 0 {
            producer.flush().await?;
        }
        let records = world.poll(&mut reader, Duration::ZERO).await?;
        check(&world, records, &mut next);
        tick = (tick + TICK).max(time::now());
        time::sleep_until(tick).await;
    }
    producer.flush().await?;
    while next.iter().zip(&sent).any(|(next, sent)| next < sent) {
        let records = world.poll(&mut reader, POLL).await?;
        check(&world, records, &mut next);
    }
    workers.abort_all().await;
    world.count("chain: records through both stages", next.iter().sum());
    // nothing may come behind the last
    let records = world.poll(&mut reader, Duration::from_secs(3)).await?;
    check(&world, records, &mut next);
    if next != sent {
        world.fault(&format!("chain: {next:?} came out of {sent:?}"));
    }
    reader.close().await?;
    Ok(())
}

/// Each key's next number, nothing else.
fn check(world: &World, records: Vec<ConsumerRecord>, next: &mut [u64; KEYS]) {
    for record in records {
        let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok()?.parse::<usize>().ok());
        let place = key.and_then(|key| next.get_mut(key));
        let written = record.value.as_deref().and_then(number);
        match (place, written) {
            (Some(next), Some(written)) => {
                if written != *next {
                    let (at, offset) = (&record.topic_partition, record.offset);
                    world.fault(&format!(
                        "chain: {at} offset {offset} key {key:?}: {written}, expected {next}"
                    ));
                }
                *next = written + 1;
            }
            _ => world.fault(&format!(
                "chain: {} offset {}: nobody wrote this",
                record.topic_partition, record.offset
            )),
        }
    }
}

/// What a worker does.
#[derive(Clone)]
struct Job {
    from: Text,
    to: Text,
    group: Text,
    id: Text,
    is_848: bool,
}

/// One worker after another.
async fn work(world: Arc<World>, job: Job) {
    let mut rng = world.rng();
    loop {
        let life = Duration::from_secs(rng.between(LIFE.0, LIFE.1));
        match time::timeout(life, one_life(&world, &job, &mut rng)).await {
            Err(_) => world.count("chain: workers dropped", 1),
            Ok(Err(error)) => {
                world.count("chain: workers that gave up", 1);
                eprintln!("longhaul: {}: {error}", job.id);
            }
            Ok(Ok(())) => {}
        }
        time::sleep(PAUSE).await;
    }
}

async fn one_life(world: &World, job: &Job, rng: &mut SeededRng) -> Result<(), Failure> {
    let settings = world.client(&job.id)?;
    let transactional =
        TransactionalSettings::new(settings.clone(), job.id.clone()).transaction_timeout(TRANSACTION);
    let group = ConsumerSettings::new(settings)
        .group_id(job.group.clone())
        .group_protocol(if job.is_848 { GroupProtocol::Consumer } else { GroupProtocol::Classic })
        .session_timeout(SESSION)
        .heartbeat_interval(Duration::from_secs(1))
        .offset_reset(OffsetReset::Earliest)
        .fetch_max_wait(POLL)
        .max_poll_records(usize::try_from(rng.between(50, 500))?);
    // A static member that was dropped is replaced at once.
    let group = if job.is_848 { group } else { group.group_instance_id(job.id.clone()) };
    let mut producer = TransactionalProducer::init(transactional).await?;
    let mut consumer = Consumer::connect(group).await?;
    consumer.subscribe(&[&job.from]).await?;
    loop {
        let records = world.poll(&mut consumer, POLL).await?;
        if records.is_empty() {
            continue;
        }
        let member = consumer.group_metadata().ok_or("a member has metadata")?;
        let (begun, copied) = copy(&mut producer, &member, records, &job.to, rng).await;
        if !world.outcome(&mut producer, begun, copied).await? {
            for at in consumer.assignment() {
                consumer.seek_to_committed(&at)?;
            }
        }
    }
}

/// One transaction, and when its end was asked for.
async fn copy(
    producer: &mut TransactionalProducer,
    member: &GroupMetadata,
    records: Vec<ConsumerRecord>,
    to: &Text,
    rng: &mut SeededRng,
) -> (time::Instant, Result<(), TransactionError>) {
    let mut end = time::now();
    let outcome = async {
        let transaction = producer.begin().await?;
        let mut next = BTreeMap::new();
        let mut cause = rng.one_in(ABORT_ONE_IN).then(|| "as planned".to_owned());
        for record in records {
            next.insert(record.topic_partition.clone(), record.offset + 1);
            let mut copy = Record::to(to.clone()).partition(record.topic_partition.partition);
            (copy.key, copy.value) = (record.key, record.value);
            if let Err(error) = transaction.send(copy).await {
                cause = Some(error.to_string());
                break;
            }
        }
        time::sleep(Duration::from_millis(rng.below(LINGER_MS))).await;
        if let Some(cause) = cause {
            transaction.abort().await?;
            return Err(TransactionError::Aborted { cause });
        }
        let offsets: Vec<_> = next.into_iter().map(|(at, offset)| OffsetToCommit::new(at, offset)).collect();
        if let Err(error) = transaction.send_offsets(&offsets, member).await {
            if error.class() != ErrorClass::Fatal {
                transaction.abort().await?;
            }
            return Err(error);
        }
        end = time::now();
        transaction.commit().await
    };
    let outcome = outcome.await;
    (end, outcome)
}
