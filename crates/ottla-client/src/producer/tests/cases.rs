//! Public bugs of other clients, as tests of our producer. The table in docs/testing.md maps the numbers of the list
//! of cases to these names.

use ottla_env::time;
use ottla_protocol::api::ApiKey;

use super::*;
use crate::error::ErrorClass;

/// Longest that anything here may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The APIs that were called since the last look, without those that only look.
fn calls(broker: &MiniBroker) -> Vec<ApiKey> {
    let calls = broker.with(|state| std::mem::take(&mut state.calls));
    let looks = [ApiKey::Metadata, ApiKey::FindCoordinator];
    calls.into_iter().map(|(api, _)| api).filter(|api| !looks.contains(api)).collect()
}

async fn write(transaction: &Transaction<'_>, value: &str) -> Delivery {
    let record = Record::to(TOPIC).partition(0).value(value.to_owned());
    transaction.send(record).await.expect("taken")
}

/// librdkafka#3575 (fixed in 1.8.2): when sequences had a hole in the middle of a transaction, the client took a new
/// epoch with InitProducerId and went on in what it took for the same transaction; the broker had aborted it, and the
/// commit lost what was written before. Proves that whatever breaks a transaction's sequences, our producer asks for
/// no epoch before the transaction has been aborted with its old one, that `commit` says so, and that the next
/// transaction is whole. Both versions of the protocol.
#[test]
fn librdkafka_3575_no_new_epoch_within_a_transaction() {
    run(async {
        for version_1 in [false, true] {
            for code in [
                ErrorCode::OutOfOrderSequenceNumber,
                ErrorCode::UnknownProducerId,
                ErrorCode::InvalidProducerEpoch,
                ErrorCode::InvalidTxnState,
                ErrorCode::TransactionAbortable,
            ] {
                let broker = MiniBroker::default();
                broker.with(|state| state.version_1 = version_1);
                let server = broker.serve().await;
                let mut producer = transactional(&server.address).await;
                let transaction = producer.begin().await.expect("begun");
                write(&transaction, "before").await;
                transaction.flush().await.expect("written");
                calls(&broker);
                broker.with(|state| state.refusals.insert(ApiKey::Produce, [code.code()].into()));
                let lost = write(&transaction, "behind").await;
                transaction.flush().await.expect_err("refused");
                lost.wait().await.expect_err("refused");
                let outcome = transaction.commit().await;
                assert!(matches!(outcome, Err(TransactionError::Aborted { .. })), "{code}: {outcome:?}");
                let told = calls(&broker);
                assert_eq!(told, [ApiKey::Produce, ApiKey::EndTxn], "{code}, version 1: {version_1}");
                assert_eq!(broker.with(|state| std::mem::take(&mut state.ends)), [(0, false)], "{code}");

                let transaction = producer.begin().await.expect("begun");
                let written = write(&transaction, "again").await;
                transaction.commit().await.expect("committed");
                assert!(written.wait().await.expect("written").offset >= 0);
                let first = calls(&broker)[0];
                // version 1: the epoch moves on when the old transaction is over; version 2: it has moved already
                let expected = if version_1 { ApiKey::InitProducerId } else { ApiKey::Produce };
                assert_eq!(first, expected, "{code}");
                assert_eq!(broker.with(|state| state.ends.clone()), [(1, true)], "{code}");
            }
        }
    });
}

/// What became of a transaction whose one request was refused.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Committed,
    Aborted,
    Stopped,
}

/// A whole transaction of a new producer, with one refusal on its way; and what its producer can do afterwards.
async fn refused_once(broker: &MiniBroker, address: &str, api: ApiKey, code: i16) -> Came {
    broker.with(|state| {
        state.refusals.insert(api, [code].into());
        state.logs.clear();
        state.epoch = 0;
        state.producer_ids = 0;
    });
    let settings = TransactionalSettings::new(client(address), "id").producer(settings(address));
    let came = match TransactionalProducer::init(settings).await {
        Err(error) => {
            assert_ne!(error.class(), ErrorClass::Abortable, "{api:?} {code}: nothing is open: {error}");
            Came::Stopped
        }
        Ok(mut producer) => match one_transaction(&mut producer).await {
            Ok(()) => Came::Committed,
            Err(ErrorClass::Fatal) => {
                let asked = broker.with(|state| state.calls.len());
                let after = producer.begin().await.map(|_| ());
                assert_eq!(after.expect_err("it is useless").class(), ErrorClass::Fatal, "{api:?} {code}");
                assert_eq!(broker.with(|state| state.calls.len()), asked, "{api:?} {code}: nobody is asked");
                Came::Stopped
            }
            Err(class) => {
                if class == ErrorClass::Retriable {
                    producer.resolve().await.expect("answered");
                }
                one_transaction(&mut producer).await.expect("the next one is fine");
                Came::Aborted
            }
        },
    };
    broker.with(|state| state.refusals.clear());
    came
}

async fn one_transaction(producer: &mut TransactionalProducer) -> Result<(), ErrorClass> {
    let transaction = producer.begin().await.map_err(|error| error.class())?;
    let record = Record::to(TOPIC).partition(0).value("a");
    if let Err(error) = transaction.send(record).await {
        transaction.abort().await.expect("aborted");
        return Err(if matches!(error, SendError::Closed) {
            ErrorClass::Fatal
        } else {
            ErrorClass::Abortable
        });
    }
    let offset = OffsetToCommit::new(TopicPartition::new(TOPIC, 0), 7);
    let group = GroupMetadata::without_members("g");
    match transaction.send_offsets(&[offset], &group).await {
        Ok(()) => transaction.commit().await.map_err(|error| error.class()),
        Err(_) => {
            // who does not look at the error must not get a commit without the offsets
            let outcome = transaction.commit().await;
            Err(outcome.expect_err("the offsets are missing").class())
        }
    }
}

/// KAFKA-14417 (REQUEST_TIMED_OUT to InitProducerId ended Java's producer), KAFKA-9656 (a code that old clients do not
/// know to TxnOffsetCommit), KAFKA-17267 (REQUEST_TIMED_OUT to OffsetFetch): clients die of a code that they did not
/// expect there. Proves for every request of a transaction, in both versions of the protocol, and for every code
/// there is and some that there are not: what Kafka calls retriable is retried; everything else aborts the transaction
/// and leaves the producer fit, or stops the producer in words; nothing hangs, nothing panics.
#[test]
fn kafka_14417_9656_17267_codes_nobody_expects() {
    let apis = [
        ApiKey::Metadata,
        ApiKey::FindCoordinator,
        ApiKey::InitProducerId,
        ApiKey::AddPartitionsToTxn,
        ApiKey::AddOffsetsToTxn,
        ApiKey::TxnOffsetCommit,
        ApiKey::Produce,
        ApiKey::EndTxn,
    ];
    run(async {
        for version_1 in [false, true] {
            let broker = MiniBroker::default();
            broker.with(|state| state.version_1 = version_1);
            let server = broker.serve().await;
            for api in apis {
                let only_version_1 = matches!(api, ApiKey::AddPartitionsToTxn | ApiKey::AddOffsetsToTxn);
                if only_version_1 && !version_1 {
                    continue;
                }
                let known = ErrorCode::ALL.iter().map(|code| code.code()).filter(|code| *code != 0);
                for code in known.chain([9999, -2, i16::MIN, i16::MAX]) {
                    let tried = time::timeout(LIMIT, refused_once(&broker, &server.address, api, code));
                    let came = tried.await.unwrap_or_else(|_| panic!("{api:?} {code} hangs"));
                    let code = ErrorCode::from_code(code);
                    if code.is_retriable() {
                        assert_eq!(came, Came::Committed, "{api:?} {code}, version 1: {version_1}");
                    } else if api == ApiKey::InitProducerId {
                        assert_eq!(came, Came::Stopped, "{code}");
                    }
                    if matches!(code, ErrorCode::ProducerFenced) && api == ApiKey::EndTxn {
                        assert_eq!(came, Came::Stopped, "{code}");
                    }
                }
            }
        }
    });
}

/// KAFKA-14417 again, for producers without a transactional id: a coordinator's REQUEST_TIMED_OUT and its relatives
/// are waited out, and a code that means "no" is an error that names it.
#[test]
fn kafka_14417_init_producer_id_timed_out() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let codes = [
            ErrorCode::RequestTimedOut,
            ErrorCode::CoordinatorLoadInProgress,
            ErrorCode::CoordinatorNotAvailable,
            ErrorCode::NotCoordinator,
        ];
        broker.with(|state| {
            state.refusals.insert(ApiKey::InitProducerId, codes.map(ErrorCode::code).into());
        });
        let producer = Producer::connect(settings(&server.address)).await.expect("connected");
        assert_eq!(producer.producer_id(), 1);
        broker.with(|state| {
            state
                .refusals
                .insert(ApiKey::InitProducerId, [ErrorCode::ClusterAuthorizationFailed.code()].into())
        });
        let error = Producer::connect(settings(&server.address)).await.expect_err("refused");
        assert!(error.to_string().contains("CLUSTER_AUTHORIZATION_FAILED"), "{error}");
    });
}

/// Redpanda#22687: clients were wedged for ever when the broker evicted the producer or its epoch was used up.
/// Proves for the last epoch what `a_forgotten_producer_begins_anew` proves for the others: a producer that has no
/// epoch left takes another producer id, and loses and doubles nothing.
#[test]
fn redpanda_22687_no_epoch_left() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let producer = Producer::connect(settings(&server.address)).await.expect("connected");
        producer.core.accumulator.flush().await;
        let mut identity = producer.core.accumulator.identity();
        identity.producer_epoch = i16::MAX - 1;
        producer.core.accumulator.begin(identity, accumulator::Protocol::V2);
        for (value, expected) in [("a", (1, i16::MAX - 1)), ("b", (1, i16::MAX)), ("c", (2, 0))] {
            producer.send(Record::to(TOPIC).partition(0).value(value)).await.expect("taken");
            time::timeout(LIMIT, producer.flush()).await.expect("not wedged").expect("delivered");
            let log = broker.with(|state| std::mem::take(&mut state.logs).remove(&0).expect("written"));
            assert_eq!(log, [Stored { producer: expected, sequence: 0, records: 1 }], "{value}");
        }
    });
}

/// librdkafka#4953: at a change of leader the first of several batches in flight was refused with a retriable error
/// and those behind it with OUT_OF_ORDER_SEQUENCE_NUMBER; the client took that for lost state, moved its epoch on, and
/// wrote what the new leader had already. Proves that only a true gap is taken for one: however many batches stand
/// behind the one that is retried, and whether it was written or not, everything is there once, in order, under the
/// first epoch.
#[test]
fn librdkafka_4953_batches_behind_a_retried_one() {
    run(async {
        let retried = [
            Fault::Code(ErrorCode::NotLeaderOrFollower),
            Fault::Code(ErrorCode::LeaderNotAvailable),
            Fault::Code(ErrorCode::UnknownTopicOrPartition),
            Fault::CloseBefore,
            Fault::CloseAfter,
        ];
        for first in retried {
            for behind in 0..5 {
                let broker = MiniBroker::default();
                let server = broker.serve().await;
                let producer = Producer::connect(settings(&server.address)).await.expect("connected");
                broker.with(|state| {
                    state.faults = std::iter::repeat_n(Fault::Fine, behind).chain([first]).collect();
                });
                let mut deliveries = Vec::new();
                for _ in 0..40 {
                    let record = Record::to(TOPIC).partition(0).value(vec![b'x'; 150]);
                    deliveries.push(producer.send(record).await.expect("taken"));
                }
                producer.flush().await.expect("delivered");
                for (expected, delivery) in (0..).zip(deliveries) {
                    assert_eq!(delivery.wait().await.expect("delivered").offset, expected);
                }
                let sequences: Vec<_> =
                    broker.with(|state| state.logs[&0].iter().map(|at| (at.producer, at.sequence)).collect());
                let expected: Vec<_> = (0..40).map(|sequence| ((1, 0), sequence)).collect();
                assert_eq!(sequences, expected, "{first:?} behind {behind}");
                let asked = calls(&broker).into_iter().filter(|api| *api == ApiKey::InitProducerId);
                assert_eq!(asked.count(), 1, "{first:?}: only the one to begin with");
            }
        }
    });
}

/// librdkafka 1.7.0: behind an aborted transaction without records, readers dropped records of the next one that
/// was committed. The reader's half is `librdkafka_1_7_0_abort_without_records`; this proves the writer's: a partition
/// that was added and never written to (protocol version 1) is aborted at the coordinator, with nothing sent to it,
/// and the next transaction adds it again before it writes.
#[test]
fn librdkafka_1_7_0_abort_of_an_added_partition() {
    run(async {
        let broker = MiniBroker::default();
        broker.with(|state| state.version_1 = true);
        let server = broker.serve().await;
        let mut settings = settings(&server.address).linger(Duration::from_secs(60));
        settings.delivery_timeout = Duration::from_secs(1000);
        let settings = TransactionalSettings::new(client(&server.address), "id").producer(settings);
        let mut producer = TransactionalProducer::init(settings).await.expect("taken over");
        let transaction = producer.begin().await.expect("begun");
        let delivery = write(&transaction, "never sent").await;
        let added = async {
            while broker.with(|state| state.added.is_empty()) {
                time::sleep(Duration::from_millis(1)).await;
            }
        };
        time::timeout(LIMIT, added).await.expect("the partition is added although the batch lingers");
        transaction.abort().await.expect("aborted");
        assert!(matches!(delivery.wait().await, Err(DeliveryError::Aborted { .. })));
        assert_eq!(lengths(&broker), [0, 0]);
        let transaction = producer.begin().await.expect("begun");
        write(&transaction, "a").await;
        transaction.commit().await.expect("committed");
        assert_eq!(lengths(&broker), [1, 0]);
        let ends = broker.with(|state| state.ends.clone());
        assert_eq!((ends.len(), ends[0].1, ends[1].1), (2, false, true), "{ends:?}");
        let adds = calls(&broker).into_iter().filter(|api| *api == ApiKey::AddPartitionsToTxn);
        assert_eq!(adds.count(), 2);
    });
}

/// librdkafka#5577 is the class of answers whose arrays are absent or empty, and of errors of the whole that do not
/// reach the parts. Proves that an answer which leaves out a partition, or an offset, is never a success: the
/// transaction is aborted, not committed without it.
#[test]
fn librdkafka_5577_what_an_answer_leaves_out_is_not_done() {
    run(async {
        for (api, version_1) in [
            (ApiKey::AddPartitionsToTxn, true),
            (ApiKey::TxnOffsetCommit, true),
            (ApiKey::TxnOffsetCommit, false),
        ] {
            let broker = MiniBroker::default();
            broker.with(|state| {
                state.version_1 = version_1;
                state.mute.insert(api);
            });
            let server = broker.serve().await;
            let mut producer = transactional(&server.address).await;
            let class = one_transaction(&mut producer).await.expect_err("not whole");
            assert_eq!(class, ErrorClass::Abortable, "{api:?}");
            let ends = broker.with(|state| std::mem::take(&mut state.ends));
            assert!(ends.iter().all(|(_, committed)| !committed), "{api:?}: {ends:?}");
            broker.with(|state| state.mute.clear());
            one_transaction(&mut producer).await.expect("the next one is whole");
        }
    });
}

/// The class of librdkafka#5577 once more: a broker that answers a commit, or InitProducerId, with no identity where
/// the version has one. Proves that -1 is never taken for a producer id: the commit counts, the next transaction asks
/// who it is; and a producer that was given none does not begin.
#[test]
fn librdkafka_5577_an_absent_identity() {
    run(async {
        let broker = MiniBroker::default();
        let server = broker.serve().await;
        let mut producer = transactional(&server.address).await;
        let transaction = producer.begin().await.expect("begun");
        write(&transaction, "a").await;
        transaction.flush().await.expect("written");
        broker.with(|state| state.nameless = 1);
        transaction.commit().await.expect("committed");
        assert_eq!(producer.producer_id_and_epoch(), (1, 0));
        calls(&broker);
        one_transaction(&mut producer).await.expect("committed");
        assert_eq!(calls(&broker)[0], ApiKey::InitProducerId);
        assert!(producer.producer_id_and_epoch().0 >= 0);

        broker.with(|state| state.nameless = 2);
        let settings = settings(&server.address);
        let named = Producer::connect(settings.clone()).await;
        assert!(matches!(named, Err(ClusterError::Refused { .. })), "{named:?}");
        let settings = TransactionalSettings::new(client(&server.address), "id").producer(settings);
        let named = TransactionalProducer::init(settings).await;
        assert!(matches!(named, Err(TransactionError::Refused { .. })), "{named:?}");
    });
}

/// Makes every connection of a producer end, so that the next ones tell what is finalized now.
async fn reconnect(broker: &MiniBroker, finalize_version_1: bool) {
    broker.with(|state| {
        state.version_1 = finalize_version_1;
        state.features_epoch += 1;
    });
}

/// Proves that the protocol changes between transactions only (KIP-890): when the cluster finalizes another
/// `transaction.version` while a transaction is open, and the producer learns of it on a new connection, that
/// transaction is ended in the version it was begun in, and the next is begun in the new one. Both ways.
#[test]
fn the_protocol_changes_between_transactions_only() {
    run(async {
        for to_version_1 in [false, true] {
            let broker = MiniBroker::default();
            broker.with(|state| state.version_1 = !to_version_1);
            let server = broker.serve().await;
            let mut producer = transactional(&server.address).await;
            let transaction = producer.begin().await.expect("begun");
            write(&transaction, "a").await;
            transaction.flush().await.expect("written");
            reconnect(&broker, to_version_1).await;
            // both connections end: that of the data with the next batch, that of control with the offsets
            broker.with(|state| state.faults = [Fault::CloseBefore].into());
            write(&transaction, "b").await;
            transaction.flush().await.expect("written");
            broker.with(|state| state.faults = [Fault::CloseBefore].into());
            let offset = OffsetToCommit::new(TopicPartition::new(TOPIC, 0), 7);
            let group = GroupMetadata::without_members("g");
            transaction.send_offsets(&[offset], &group).await.expect("taken");
            let record = Record::to(TOPIC).partition(1).value("c");
            transaction.send(record).await.expect("taken");
            transaction.commit().await.expect("committed");
            let spoken = |calls: Vec<(ApiKey, i16)>| {
                let version_2 = |(api, version): (ApiKey, i16)| match api {
                    ApiKey::Produce => Some(version >= 12),
                    ApiKey::EndTxn | ApiKey::TxnOffsetCommit => Some(version >= 5),
                    ApiKey::AddPartitionsToTxn | ApiKey::AddOffsetsToTxn => Some(false),
                    _ => None,
                };
                calls.into_iter().filter_map(version_2).collect::<Vec<bool>>()
            };
            let first = spoken(broker.with(|state| std::mem::take(&mut state.calls)));
            assert!(first.len() >= 6, "{first:?}");
            assert!(first.iter().all(|version_2| *version_2 == to_version_1), "to 1: {to_version_1}");
            one_transaction(&mut producer).await.expect("committed");
            let second = spoken(broker.with(|state| std::mem::take(&mut state.calls)));
            assert!(second.iter().all(|version_2| *version_2 != to_version_1), "to 1: {to_version_1}");
            assert_eq!(lengths(&broker), [3, 1]);
            let ends = broker.with(|state| state.ends.clone());
            assert!(ends.iter().all(|(_, committed)| *committed), "{ends:?}");
        }
    });
}
