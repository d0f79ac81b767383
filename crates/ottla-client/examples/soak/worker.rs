//! A worker: copies from one topic to another, each batch in one transaction with its offsets, until it is killed or
//! meets an error that ends its producer or its membership; whoever started it starts it again.

use std::collections::BTreeMap;
use std::io::Read;
use std::process;
use std::time::Duration;

use ottla_client::{
    Consumer, ConsumerRecord, ConsumerSettings, ErrorClass, GroupMetadata, GroupProtocol, IsolationLevel,
    OffsetReset, OffsetToCommit, Record, TransactionError, TransactionalProducer, TransactionalSettings,
};
use ottla_env::rng::{OsRng, Rng, SeededRng};
use ottla_env::{spawn, time};

use super::{Failure, client};

/// The first argument of a worker's process.
pub(crate) const COMMAND: &str = "worker";
/// Session of a classic group; KIP-848's is the broker's.
pub(crate) const SESSION: Duration = Duration::from_secs(6);
pub(crate) const TRANSACTION: Duration = Duration::from_secs(10);

const POLL: Duration = Duration::from_millis(250);
/// Behind an error that may pass.
const PAUSE: Duration = Duration::from_millis(100);
/// One transaction in so many is aborted on purpose.
const ABORT_ONE_IN: u64 = 12;
/// Longest that a transaction stays open for no reason but to be hit by a kill or a stop, in ms.
const LINGER_MS: u64 = 800;

/// Works. Arguments: BOOTSTRAP FROM TO GROUP ID PROTOCOL
pub(crate) async fn run(arguments: &[String]) -> Result<(), Failure> {
    let [bootstrap, from, to, group, id, protocol] = arguments else {
        return Err("a worker has six arguments".into());
    };
    end_with_parent()?;
    let mut rng = SeededRng::new(OsRng.next_u64());
    let settings = client(bootstrap, id)?;
    let transactional =
        TransactionalSettings::new(settings.clone(), id.as_str()).transaction_timeout(TRANSACTION);
    let is_verbose = std::env::var_os("SOAK_VERBOSE").is_some();
    let is_848 = protocol == "consumer";
    let group = ConsumerSettings::new(settings)
        .group_id(group.as_str())
        .group_protocol(if is_848 { GroupProtocol::Consumer } else { GroupProtocol::Classic })
        .session_timeout(SESSION)
        .heartbeat_interval(Duration::from_secs(1))
        .offset_reset(OffsetReset::Earliest)
        .fetch_max_wait(POLL)
        .max_poll_records(usize::try_from(rng.between(50, 500))?);
    // A static member that was killed is replaced at once. A group that waits for a dead member's session would wait for
    // ever: each start of the broker begins all sessions anew.
    let group = if is_848 { group } else { group.group_instance_id(id.as_str()) };
    let group = match std::env::var_os("SOAK_UNCOMMITTED") {
        Some(_) => group.isolation(IsolationLevel::ReadUncommitted),
        None => group,
    };
    let mut producer = TransactionalProducer::init(transactional).await?;
    let mut consumer = Consumer::connect(group).await?;
    consumer.subscribe(&[from]).await?;
    loop {
        let records = match consumer.poll(POLL).await {
            Ok(records) => records,
            Err(error) if error.is_retriable() => {
                time::sleep(PAUSE).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if records.is_empty() {
            continue;
        }
        let member = consumer.group_metadata().ok_or("a member has metadata")?;
        let copied = copy(&mut producer, &member, records, to, &mut rng).await;
        if let Some(error) = copied.as_ref().err().filter(|_| is_verbose) {
            eprintln!("{id}: {error}");
        }
        if !is_committed(&mut producer, copied).await? {
            for at in consumer.assignment() {
                consumer.seek_to_committed(&at)?;
            }
        }
    }
}

/// One transaction.
async fn copy(
    producer: &mut TransactionalProducer,
    member: &GroupMetadata,
    records: Vec<ConsumerRecord>,
    to: &str,
    rng: &mut SeededRng,
) -> Result<(), TransactionError> {
    let transaction = producer.begin().await?;
    let mut next = BTreeMap::new();
    let mut cause = rng.one_in(ABORT_ONE_IN).then(|| "as planned".to_owned());
    for record in records {
        next.insert(record.topic_partition.clone(), record.offset + 1);
        let mut copy = Record::to(to).partition(record.topic_partition.partition);
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
        transaction.abort().await?;
        return Err(error);
    }
    transaction.commit().await
}

/// Whether the transaction took effect, found out if need be; an error when the producer cannot go on.
async fn is_committed(
    producer: &mut TransactionalProducer,
    outcome: Result<(), TransactionError>,
) -> Result<bool, TransactionError> {
    let mut outcome = outcome.map(|()| true);
    loop {
        match outcome {
            Ok(committed) => return Ok(committed),
            Err(error) if error.class() == ErrorClass::Abortable => return Ok(false),
            Err(error) if error.class() == ErrorClass::Retriable => {
                time::sleep(PAUSE).await;
                outcome = producer.resolve().await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Ends this process when whoever started it has ended, which closes our standard input.
fn end_with_parent() -> Result<(), Failure> {
    spawn::thread("soak-parent", || {
        let mut rest = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut rest); // closed or broken: either way nobody is there
        process::exit(0);
    })?;
    Ok(())
}
