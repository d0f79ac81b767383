//! Transactions: what becomes visible and what never does.

use std::time::Duration;

use ottla_client::{
    Codec, OffsetToCommit, Record, Transaction, TransactionError, TransactionalProducer,
    TransactionalSettings,
};
use ottla_env::time;

use super::harness::{
    COMMITTED, COMMITTED_AND_QUIET, Failure, Reading, Suite, UNCOMMITTED, check, collect, committed, first,
    name, record, text, until, values,
};

async fn anew(suite: &Suite) -> Result<TransactionalProducer, Failure> {
    suite.transactional(&name("txn")).await
}

/// Two transactions over two partitions are read whole.
pub(crate) async fn commit(suite: &Suite) -> Result<(), Failure> {
    let (topic, mut values) = (suite.topic(2, &[]).await?, values(20, "value"));
    let mut producer = anew(suite).await?;
    let transaction = producer.begin().await?;
    for (partition, value) in [0, 1].into_iter().cycle().zip(&values) {
        drop(transaction.send(Record::to(topic.as_str()).partition(partition).value(value.clone())).await?);
    }
    transaction.commit().await?;
    let transaction = producer.begin().await?;
    drop(transaction.send(record(&topic, "second")).await?);
    transaction.commit().await?;
    producer.close().await?;
    values.push("second".to_owned());
    values.sort();
    let read = suite.read(&topic, 21, Reading { partitions: 2, ..COMMITTED }).await?;
    let mut read: Vec<String> = read.iter().map(text).collect();
    read.sort();
    check(read == values, || format!("expected 21 committed records, got {}", read.len()))
}

/// What was aborted is read with `read_uncommitted` only.
pub(crate) async fn abort(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(1, &[]).await?;
    let mut producer = anew(suite).await?;
    let transaction = producer.begin().await?;
    drop(transaction.send(record(&topic, "aborted")).await?);
    transaction.flush().await?;
    transaction.abort().await?;
    let transaction = producer.begin().await?;
    drop(transaction.send(record(&topic, "committed")).await?);
    transaction.commit().await?;
    producer.close().await?;
    suite.expect(&topic, &["committed"], COMMITTED_AND_QUIET).await?;
    suite.expect(&topic, &["aborted", "committed"], UNCOMMITTED).await
}

/// A member's offsets take effect with the commit and not with the abort.
pub(crate) async fn offsets(suite: &Suite) -> Result<(), Failure> {
    let (source, sink, group) = (suite.topic(1, &[]).await?, suite.topic(1, &[]).await?, name("g"));
    suite.fill(&source, &values(10, "value"), Codec::None).await?;
    let mut consumer = suite.member(&group, &source).await?;
    let read = collect(&mut consumer, 10, 30).await?;
    let mut producer = anew(suite).await?;
    let transaction = producer.begin().await?;
    for read in &read[..5] {
        drop(transaction.send(record(&sink, &text(read))).await?);
    }
    let member = || consumer.group_metadata().ok_or("no metadata of a member");
    transaction.send_offsets(&[OffsetToCommit::new(first(&source), 5)], &member()?).await?;
    transaction.commit().await?;
    until(15, "offset of a committed transaction", async || {
        Ok(committed(&consumer, &group, &source).await? == Some(5))
    })
    .await?;
    let transaction = producer.begin().await?;
    drop(transaction.send(record(&sink, "aborted")).await?);
    transaction.send_offsets(&[OffsetToCommit::new(first(&source), 8)], &member()?).await?;
    transaction.abort().await?;
    time::sleep(Duration::from_millis(500)).await;
    let found = committed(&consumer, &group, &source).await?;
    check(found == Some(5), || "offset of an aborted transaction took effect".to_owned())?;
    producer.close().await?;
    consumer.close().await?;
    suite.expect(&sink, &values(5, "value"), COMMITTED_AND_QUIET).await
}

/// Whether a producer that must not go on is told that it was fenced off; an error when it goes on.
async fn is_fenced(transaction: Transaction<'_>, topic: &str) -> Result<bool, Failure> {
    let fenced = |error: &TransactionError| matches!(error, TransactionError::Fenced { .. });
    match transaction.send(record(topic, "zombie again")).await {
        Err(_) => Ok(transaction.abort().await.is_err_and(|error| fenced(&error))),
        Ok(_) => match transaction.commit().await {
            Err(error) => Ok(fenced(&error)),
            Ok(()) => Err("the first producer went on".into()),
        },
    }
}

/// Who takes a transactional id over fences the former producer off.
pub(crate) async fn fencing(suite: &Suite) -> Result<(), Failure> {
    let (topic, id) = (suite.topic(1, &[]).await?, name("txn"));
    let mut one = suite.transactional(&id).await?;
    let zombie = one.begin().await?;
    drop(zombie.send(record(&topic, "zombie")).await?);
    zombie.flush().await?;
    let mut two = suite.transactional(&id).await?;
    let live = two.begin().await?;
    drop(live.send(record(&topic, "live")).await?);
    live.commit().await?;
    if !is_fenced(zombie, &topic).await? {
        until(10, "fenced error", async || match one.begin().await {
            Ok(zombie) => is_fenced(zombie, &topic).await,
            Err(error) => Ok(matches!(error, TransactionError::Fenced { .. })),
        })
        .await?;
    }
    let live = two.begin().await?;
    drop(live.send(record(&topic, "live 2")).await?);
    live.commit().await?;
    two.close().await?;
    suite.expect(&topic, &["live", "live 2"], COMMITTED_AND_QUIET).await
}

/// What is left open is aborted by the coordinator, and cannot be committed then.
pub(crate) async fn timeout(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(1, &[]).await?;
    let settings = TransactionalSettings::new(suite.client.clone(), name("txn"));
    let settings = settings.transaction_timeout(Duration::from_secs(3));
    let mut producer = TransactionalProducer::init(settings).await?;
    let abandoned = producer.begin().await?;
    drop(abandoned.send(record(&topic, "abandoned")).await?);
    abandoned.flush().await?; // and no commit: the broker must abort it
    suite.fill(&topic, &["after".to_owned()], Codec::None).await?;
    suite.expect(&topic, &["after"], Reading { seconds: 40, ..COMMITTED_AND_QUIET }).await?;
    let late = abandoned.commit().await;
    check(late.is_err(), || "commit after the timeout succeeded".to_owned())?;
    suite.expect(&topic, &["after"], COMMITTED_AND_QUIET).await
}

/// An open transaction hides what is behind its beginning from `read_committed`.
pub(crate) async fn isolation(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(1, &[]).await?;
    suite.fill(&topic, &["before".to_owned()], Codec::None).await?;
    let mut producer = anew(suite).await?;
    let transaction = producer.begin().await?;
    drop(transaction.send(record(&topic, "open")).await?);
    transaction.flush().await?;
    suite.expect(&topic, &["before", "open"], UNCOMMITTED).await?;
    suite.expect(&topic, &["before"], Reading { quiet: 2, ..COMMITTED }).await?;
    transaction.commit().await?;
    producer.close().await?;
    suite.expect(&topic, &["before", "open"], COMMITTED).await
}
