//! Producers against a broker that fails in every way that must not matter.

mod cases;

use std::time::Duration;

use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn;

use super::*;
use crate::partitioner::partition_for_key;
use crate::record::{GroupMetadata, OffsetToCommit};
use crate::scripted::{Fault, MiniBroker, PARTITIONS, Stored, TOPIC};
use crate::settings::ClientSettings;
use ottla_protocol::compression::Codec;

fn run<F: Future>(test: F) -> F::Output {
    spawn::runtime(2).expect("a runtime").block_on(test)
}

fn client(address: &str) -> ClientSettings {
    let quick = Duration::from_millis(1);
    ClientSettings::new(address)
        .expect("an address")
        .retry_backoff(quick)
        .retry_backoff_max(quick)
        .reconnect_backoff(quick)
        .reconnect_backoff_max(quick)
}

fn settings(address: &str) -> ProducerSettings {
    ProducerSettings::new(client(address)).linger(Duration::ZERO).batch_bytes(200)
}

/// Records per partition, and whether the sequences of each producer id are without a gap.
fn lengths(broker: &MiniBroker) -> Vec<i64> {
    broker.with(|state| {
        let length = |log: &Vec<Stored>| log.iter().map(|stored| i64::from(stored.records)).sum();
        (0..PARTITIONS).map(|partition| state.logs.get(&partition).map_or(0, length)).collect()
    })
}

/// Proves that lost requests, lost answers and refusals in any order leave every record written once, at the offset
/// that its delivery names, in the order it was handed in. Twenty seeds.
#[test]
fn faults_do_not_matter() {
    run(async {
        for seed in 0..20 {
            let broker = MiniBroker::default();
            let server = broker.serve().await;
            let mut rng = SeededRng::new(seed);
            let faults = [
                Fault::CloseBefore,
                Fault::CloseAfter,
                Fault::Code(ErrorCode::NotLeaderOrFollower),
                Fault::Fine,
            ];
            broker.with(|state| state.faults = (0..30).map(|_| faults[rng.index(4)]).collect());
            let producer = Producer::connect(settings(&server.address)).await.expect("connected");
            let mut deliveries = Vec::new();
            for number in 0..200 {
                let record = Record::to(TOPIC).partition(number % PARTITIONS).value(format!("{number}"));
                deliveries.push(producer.send(record).await.expect("taken"));
            }
            producer.flush().await.expect("delivered");
            let mut next = vec![0; PARTITIONS as usize];
            for delivery in deliveries {
                let written = delivery.wait().await.expect("delivered");
                let next = &mut next[written.topic_partition.partition as usize];
                assert_eq!(written.offset, *next, "seed {seed}");
                *next += 1;
            }
            assert_eq!(lengths(&broker), next, "seed {seed}: nothing is there twice");
            assert_eq!(producer.producer_id(), 1, "seed {seed}: no hole, no new producer id");
        }
    });
}

/// Proves that a batch whose answer cannot be read is written once although those behind it were confirmed meanwhile:
/// nothing is sent that would make the broker forget it. Ten rounds.
#[test]
fn an_answer_that_cannot_be_read() {
    run(async {
        for round in 0..10 {
            let broker = MiniBroker::default();
            let server = broker.serve().await;
            broker.with(|state| {
                let garbled = |index| if index % 4 == 1 { Fault::Garbled } else { Fault::Fine };
                state.faults = (0..40).map(garbled).collect();
            });
            let producer = Producer::connect(settings(&server.address)).await.expect("connected");
            for _ in 0..200 {
                let record = Record::to(TOPIC).partition(0).value(vec![b'x'; 150]);
                producer.send(record).await.expect("taken");
            }
            producer.flush().await.expect("delivered");
            assert_eq!(lengths(&broker)[0], 200, "round {round}");
            let first = broker.with(|state| state.logs[&0][0].producer);
            assert!(broker.with(|state| state.logs[&0].iter().all(|stored| stored.producer == first)));
        }
    });
}

/// Proves that a batch which the broker will never take fails alone: those behind it, already in flight with higher
/// sequences, are written once, in order, under the producer's next epoch. Now and then it is answered before the
/// next one is sent, and leaves no gap: then there is no new epoch, and it is tried again.
#[test]
fn a_refused_batch_fails_alone() {
    run(async {
        for _ in 0..50 {
            if refused_among_others().await == (1, 1) {
                return;
            }
        }
        panic!("the refused batch was never in flight with others");
    });
}

/// Has the first of 40 batches refused; returns the producer id and epoch that the others were written under.
async fn refused_among_others() -> (i64, i16) {
    let broker = MiniBroker::default();
    let server = broker.serve().await;
    broker.with(|state| state.faults = [Fault::Code(ErrorCode::InvalidRecord)].into());
    let producer = Producer::connect(settings(&server.address)).await.expect("connected");
    let mut deliveries = Vec::new();
    for number in 0..40 {
        let record = Record::to(TOPIC).partition(0).value(vec![b'x'; 150]).header("n", number.to_string());
        deliveries.push(producer.send(record).await.expect("taken"));
    }
    let error = producer.flush().await.expect_err("one batch is refused");
    assert!(matches!(error, DeliveryError::Refused { code: ErrorCode::InvalidRecord, .. }), "{error}");
    let (mut refused, mut last) = (0, -1);
    for delivery in deliveries {
        match delivery.wait().await {
            Ok(written) => {
                assert_eq!(written.offset, last + 1);
                last = written.offset;
            }
            Err(_) => refused += 1,
        }
    }
    assert_eq!((refused, last), (1, 38));
    assert_eq!(lengths(&broker)[0], 39);
    broker.with(|state| {
        let log = &state.logs[&0];
        assert!(log.iter().all(|stored| stored.producer == log[0].producer), "one epoch");
        log[0].producer
    })
}

/// Proves that a batch that is too large for its topic is parted until it fits, with those behind it in order, each
/// record at the offset that its delivery names; and that a single record that is too large fails alone. All codecs.
#[test]
fn large_batches_are_parted() {
    run(async {
        for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            let broker = MiniBroker::default();
            let server = broker.serve().await;
            broker.with(|state| state.batch_bytes_max = Some(400));
            let mut settings = settings(&server.address).batch_bytes(4_000).compression(codec);
            settings.linger = Duration::from_millis(20);
            let producer = Producer::connect(settings).await.expect("connected");
            let mut rng = SeededRng::new(3);
            let mut deliveries = Vec::new();
            for number in 0..100 {
                // bytes that no codec makes smaller
                let mut value = vec![0; if number == 50 { 500 } else { 60 }];
                rng.fill(&mut value);
                let record = Record::to(TOPIC).partition(0).value(value).header("n", number.to_string());
                deliveries.push(producer.send(record).await.expect("taken"));
            }
            producer.flush().await.expect_err("one record is too large");
            let mut next = 0;
            for (number, delivery) in deliveries.into_iter().enumerate() {
                match delivery.wait().await {
                    Ok(written) => {
                        assert_eq!(written.offset, next, "{codec:?}, record {number}");
                        next += 1;
                    }
                    Err(error) => {
                        assert!(matches!(
                            error,
                            DeliveryError::Refused { code: ErrorCode::MessageTooLarge, .. }
                        ));
                        assert_eq!(number, 50, "{codec:?}: {error}");
                    }
                }
            }
            assert_eq!((next, lengths(&broker)[0]), (99, 99), "{codec:?}");
        }
    });
}

/// Proves that a broker that has forgotten the producer is answered with the next epoch (KIP-360), without a loss.
#[test]
fn a_forgotten_producer_begins_anew() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let producer = Producer::connect(settings(&server.address)).await.expect("connected");
        producer.send(Record::to(TOPIC).partition(0).value("a")).await.expect("taken");
        producer.flush().await.expect("delivered");
        broker.with(|state| state.logs.clear());
        producer.send(Record::to(TOPIC).partition(0).value("b")).await.expect("taken");
        producer.flush().await.expect("delivered");
        let stored = Stored { producer: (1, 1), sequence: 0, records: 1 };
        assert_eq!(broker.with(|state| state.logs[&0].clone()), [stored]);
    });
}

/// Proves that time-outs, full buffers, large records and unknown places are errors that say so.
#[test]
fn errors_are_named() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let mut settings = settings(&server.address).delivery_timeout(Duration::from_millis(150));
        settings.buffer_bytes = 64 << 10;
        settings.max_request_bytes = 60 << 10;
        settings.max_block = Duration::from_millis(20);
        let producer = Producer::connect(settings).await.expect("connected");
        broker.with(|state| state.faults = std::iter::repeat_n(Fault::CloseBefore, 10_000).collect());
        let large = Record::to(TOPIC).value(vec![0; 64 << 10]);
        assert!(matches!(producer.send(large).await, Err(SendError::TooLarge { .. })));
        let nowhere = Record::to(TOPIC).partition(PARTITIONS);
        assert!(matches!(producer.send(nowhere).await, Err(SendError::NoSuchPartition { .. })));
        let first = producer.send(Record::to(TOPIC).value(vec![0; 50 << 10])).await.expect("room");
        let second = producer.send(Record::to(TOPIC).value(vec![0; 50 << 10])).await;
        assert!(matches!(second, Err(SendError::BufferFull { .. })));
        let error = first.wait().await.expect_err("never taken");
        assert!(matches!(error, DeliveryError::TimedOut { may_exist: true, .. }), "{error}");
        assert_eq!(error.class(), crate::ErrorClass::Abortable);
    });
}

/// Proves that a topic which a broker does not know yet, as brokers do for a moment after its creation, is waited for,
/// and that one which stays unknown is an error that says so.
#[test]
fn a_new_topic_is_waited_for() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let producer = Producer::connect(settings(&server.address)).await.expect("connected");
        broker.with(|state| state.topic_unknown = 3);
        let sent = producer.send(Record::to(TOPIC).value("one")).await.expect("taken");
        assert_eq!(sent.wait().await.expect("written").offset, 0);
        let other = producer.send(Record::to("other").value("one")).await;
        assert!(matches!(other, Err(SendError::Cluster(ClusterError::NoSuchTopic { .. }))), "{other:?}");
    });
}

async fn transactional(broker_address: &str) -> TransactionalProducer {
    let settings =
        TransactionalSettings::new(client(broker_address), "id").producer(settings(broker_address));
    TransactionalProducer::init(settings).await.expect("taken over")
}

/// Proves that a commit whose answer is lost is repeated with the same epoch, that the next transaction takes the
/// epoch of the answer and begins at sequence 0, and that an empty transaction asks nobody.
#[test]
fn a_lost_answer_to_a_commit() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let mut producer = transactional(&server.address).await;
        producer.begin().await.expect("begun").commit().await.expect("empty");
        assert!(broker.with(|state| state.ends.is_empty()));
        for number in 0..2 {
            let transaction = producer.begin().await.expect("begun");
            transaction.send(Record::to(TOPIC).value("a")).await.expect("taken");
            transaction.flush().await.expect("written");
            broker.with(|state| state.faults = [Fault::CloseAfter, Fault::CloseBefore].into());
            transaction.commit().await.expect("committed");
            assert_eq!(producer.producer_id_and_epoch(), (1, number + 1));
        }
        assert_eq!(
            broker.with(|state| std::mem::take(&mut state.ends)),
            [(0, true), (0, true), (0, true), (1, true), (1, true), (1, true)]
        );
    });
}

/// Proves that a transaction with a refused record is aborted instead of committed, says why, and leaves the
/// producer fit for the next; and that a dropped one is aborted by the next `begin`.
#[test]
fn failed_and_dropped_transactions_are_aborted() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let mut producer = transactional(&server.address).await;
        broker.with(|state| state.faults = [Fault::Code(ErrorCode::InvalidRecord)].into());
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to(TOPIC).value("a")).await.expect("taken");
        let error = transaction.commit().await.expect_err("aborted");
        assert!(
            matches!(&error, TransactionError::Aborted { cause } if cause.contains("INVALID_RECORD")),
            "{error}"
        );
        let dropped = producer.begin().await.expect("begun");
        dropped.send(Record::to(TOPIC).value("b")).await.expect("taken");
        dropped.flush().await.expect("written");
        drop(dropped);
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to(TOPIC).value("c")).await.expect("taken");
        transaction.commit().await.expect("committed");
        assert_eq!(broker.with(|state| std::mem::take(&mut state.ends)), [(0, false), (1, false), (2, true)]);
    });
}

/// Proves that a fenced producer says so and stays useless, and that an unknown outcome can be resolved.
#[test]
fn fenced_and_unknown() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let settings = settings(&server.address).delivery_timeout(Duration::from_millis(200));
        let settings = TransactionalSettings::new(client(&server.address), "id").producer(settings);
        let mut producer = TransactionalProducer::init(settings).await.expect("taken over");
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to(TOPIC).value("a")).await.expect("taken");
        transaction.flush().await.expect("written");
        broker.with(|state| state.faults = std::iter::repeat_n(Fault::CloseBefore, 1000).collect());
        let error = transaction.commit().await.expect_err("no answer");
        assert!(matches!(error, TransactionError::Unknown { commit: true, .. }), "{error}");
        assert!(matches!(producer.begin().await, Err(TransactionError::Unknown { .. })));
        broker.with(|state| state.faults.clear());
        assert!(producer.resolve().await.expect("answered"), "it was a commit");

        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to(TOPIC).value("b")).await.expect("taken");
        transaction.flush().await.expect("written");
        broker.with(|state| state.faults = [Fault::Code(ErrorCode::ProducerFenced)].into());
        let error = transaction.commit().await.expect_err("fenced");
        assert!(matches!(error, TransactionError::Fenced { .. }), "{error}");
        assert_eq!(error.class(), crate::ErrorClass::Fatal);
        assert!(matches!(producer.begin().await, Err(TransactionError::Fenced { .. })));
    });
}

/// Proves protocol version 1: partitions and groups are added before they are written to, whatever is lost on the way;
/// sequences go on over transactions under one epoch; and a transaction that failed moves the epoch on.
#[test]
fn version_1() {
    run(async {
        let broker = MiniBroker::default();
        broker.with(|state| state.version_1 = true);
        let server = broker.serve().await;
        let mut producer = transactional(&server.address).await;
        for _ in 0..2 {
            broker.with(|state| state.faults = [Fault::CloseBefore, Fault::CloseAfter].into());
            let transaction = producer.begin().await.expect("begun");
            for partition in 0..PARTITIONS {
                let record = Record::to(TOPIC).partition(partition).value("a");
                transaction.send(record).await.expect("taken");
            }
            let offset = OffsetToCommit::new(TopicPartition::new(TOPIC, 0), 7);
            let group = GroupMetadata::without_members("g");
            transaction.send_offsets(&[offset], &group).await.expect("taken");
            transaction.commit().await.expect("committed");
        }
        let sequences = broker.with(|state| state.logs[&1].clone());
        assert_eq!(sequences.iter().map(|stored| stored.sequence).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(producer.producer_id_and_epoch(), (1, 0));

        broker.with(|state| state.faults = [Fault::Fine, Fault::Code(ErrorCode::InvalidRecord)].into());
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to(TOPIC).partition(0).value("b")).await.expect("taken");
        assert!(matches!(transaction.commit().await, Err(TransactionError::Aborted { .. })));
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to(TOPIC).partition(0).value("c")).await.expect("taken");
        transaction.commit().await.expect("committed");
        let last = broker.with(|state| *state.logs[&0].last().expect("written"));
        assert_eq!(last, Stored { producer: (1, 1), sequence: 0, records: 1 });
        assert_eq!(
            broker.with(|state| std::mem::take(&mut state.ends)),
            [(0, true), (0, true), (0, false), (1, true)]
        );
    });
}

/// Proves that a partition that the coordinator refuses fails the transaction, and that nothing is written to it.
#[test]
fn version_1_refused() {
    run(async {
        let broker = MiniBroker::default();
        broker.with(|state| state.version_1 = true);
        let server = broker.serve().await;
        let mut producer = transactional(&server.address).await;
        broker.with(|state| state.faults = [Fault::Code(ErrorCode::TopicAuthorizationFailed)].into());
        let transaction = producer.begin().await.expect("begun");
        transaction.send(Record::to(TOPIC).partition(0).value("a")).await.expect("taken");
        let error = transaction.commit().await.expect_err("aborted");
        assert!(error.to_string().contains("AddPartitionsToTxn"), "{error}");
        assert_eq!(lengths(&broker), [0, 0]);
        producer.close().await.expect("nothing is open");
    });
}

/// Proves that keys go where Java sends them, that keyless records fill a batch before they move on, and that the
/// settings' names and bounds hold.
#[test]
fn places_and_settings() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let producer = Producer::connect(settings(&server.address)).await.expect("connected");
        let keyed = producer.send(Record::to(TOPIC).key("21").value("a")).await.expect("taken");
        assert_eq!(keyed.topic_partition().partition, partition_for_key(b"21", PARTITIONS));
        let mut partitions = Vec::new();
        for _ in 0..20 {
            let delivery = producer.send(Record::to(TOPIC).value(vec![0; 150])).await.expect("taken");
            partitions.push(delivery.topic_partition().partition);
        }
        producer.flush().await.expect("delivered");
        assert!(partitions.contains(&0) && partitions.contains(&1), "{partitions:?}");
    });
    let mut settings = ProducerSettings::new(ClientSettings::new("a:1").expect("an address"));
    settings.set("compression.type", "zstd").expect("known");
    settings.set("retry.backoff.ms", "7").expect("the client's");
    assert!(settings.set("max.in.flight.requests.per.connection", "6").is_err());
    assert!(settings.set("compression.type", "brotli").is_err());
    let unknown = settings.set("acks", "1").expect_err("always all");
    assert!(unknown.to_string().contains("linger.ms"), "{unknown}");
}
