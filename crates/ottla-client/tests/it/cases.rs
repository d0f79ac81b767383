//! Cases that need a real coordinator and a real log: public bugs, and a cluster that changes under a transaction.

use std::time::Duration;

use ottla_client::{
    Admin, GroupMetadata, OffsetToCommit, ProducerSettings, Record, Text, TopicPartition, TransactionError,
    TransactionalProducer, TransactionalSettings,
};
use ottla_env::time;

use crate::faults::{create, values};
use crate::support::{Cluster, client, run};

const TOPIC: &str = "t";

async fn transactional(cluster: &Cluster, linger: Duration) -> TransactionalProducer {
    let producer = ProducerSettings::new(client(&cluster.proxy.address)).linger(linger);
    let settings = TransactionalSettings::new(client(&cluster.proxy.address), "id").producer(producer);
    TransactionalProducer::init(settings).await.expect("taken over")
}

/// Waits until the coordinator knows of the open transaction's partition.
async fn added(cluster: &Cluster) {
    let admin = Admin::connect(client(&cluster.direct)).await.expect("connected");
    let id = Text::from_static("id");
    let started = time::now();
    loop {
        let mut described = admin.describe_transactions(std::slice::from_ref(&id)).await;
        let described = described.remove(&id).expect("asked for").expect("it is known");
        if !described.partitions.is_empty() {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "the partition is never added");
    }
}

/// librdkafka 1.7.0: committed records were dropped behind an aborted transaction that had no records. Proves it from
/// end to end, writer, log and reader, in both versions of the protocol: transactions that are aborted before
/// anything was sent hide nothing of those around them.
#[test]
fn librdkafka_1_7_0_aborts_with_nothing_sent() {
    run(async {
        for version in [1, 2] {
            let cluster = Cluster::start(200 + version as u64).await;
            cluster.finalize_transaction_version(version).await;
            create(&cluster).await;
            let mut producer = transactional(&cluster, Duration::from_secs(30)).await;
            for number in 0..6 {
                let transaction = producer.begin().await.expect("begun");
                let record = Record::to(TOPIC).partition(0).value(number.to_string());
                drop(transaction.send(record).await.expect("taken"));
                if number % 2 == 0 {
                    transaction.commit().await.expect("committed");
                } else {
                    // lingers: with version 1 the partition is added meanwhile, with version 2 nobody is told
                    if version == 1 {
                        added(&cluster).await;
                    }
                    transaction.abort().await.expect("aborted");
                }
            }
            assert_eq!(values(client(&cluster.direct)).await[&0], [0, 2, 4], "version {version}");
            cluster.stop().await;
        }
    });
}

/// Proves that a cluster which finalizes the other `transaction.version` again and again in the middle of
/// transactions, behind a network that cuts connections so that the producer learns of it at any moment, costs no
/// record, no offset and no order: each transaction is ended as it was begun.
#[test]
fn the_protocol_is_finalized_anew_in_mid_transaction() {
    run(async {
        let cluster = Cluster::start(210).await;
        create(&cluster).await;
        let mut version = 1;
        cluster.finalize_transaction_version(version).await;
        let mut producer = transactional(&cluster, Duration::ZERO).await;
        cluster.proxy.set_faulty(true);
        let group = GroupMetadata::without_members("g");
        let (mut number, mut attempts) = (0_u64, 0);
        while number < 60 {
            attempts += 1;
            assert!(attempts < 1_000, "transaction {number} never ends");
            let transaction = producer.begin().await.expect("begun");
            let mut taken = true;
            for partition in 0..2 {
                if attempts % 2 == partition {
                    version = 3 - version;
                    cluster.finalize_transaction_version(version).await;
                }
                let record = Record::to(TOPIC).partition(partition).value(number.to_string());
                taken &= transaction.send(record).await.is_ok();
                taken &= transaction.flush().await.is_ok();
            }
            let offset =
                OffsetToCommit::new(TopicPartition::new(TOPIC, 3), i64::try_from(number).expect("few"));
            taken &= transaction.send_offsets(&[offset], &group).await.is_ok();
            let ended = if taken { transaction.commit().await } else { transaction.abort().await };
            let committed = match ended {
                Ok(()) => taken,
                Err(TransactionError::Aborted { .. }) => false,
                Err(TransactionError::Unknown { commit, .. }) => {
                    producer.resolve().await.expect("answered") && commit
                }
                Err(error) => panic!("transaction {number}: {error}"),
            };
            number += u64::from(committed);
        }
        cluster.proxy.set_faulty(false);
        let read = values(client(&cluster.direct)).await;
        for partition in 0..2 {
            assert_eq!(read[&partition], (0..60).collect::<Vec<u64>>());
        }
        cluster.stop().await;
    });
}
