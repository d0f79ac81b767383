//! Public bugs of other brokers, each as a test that bears its name; the numbers are those of docs/testing.md.

use std::sync::Arc;

use ottla_env::disk::sim::{Fault, SimDisk};
use ottla_protocol::batch::{BatchBuilder, Producer};
use ottla_protocol::compression::Codec;
use ottla_protocol::messages as m;
use ottla_protocol::record::NewRecord;

use super::requests::{Pair, start};
use super::wire::{Wire, fetch_request, produce_request, run};

/// Produces one record with a sequence; gives (error, base offset).
async fn send(wire: &mut Wire, pair: &Pair, sequence: i32, id: Option<&str>) -> (i16, i64) {
    let mut builder = BatchBuilder::new(Codec::None);
    builder.set_producer(Producer {
        producer_id: pair.producer_id,
        producer_epoch: pair.producer_epoch,
        base_sequence: sequence,
        transactional: id.is_some(),
    });
    let record = NewRecord { timestamp: 1_000, value: Some(b"value"), ..NewRecord::default() };
    builder.append(&record).expect("small");
    let mut request = produce_request("t", 0, &[], -1);
    request.transactional_id = id.map(Into::into);
    request.topic_data[0].partition_data[0].records = Some(builder.build().into());
    let answer = wire.call(&request, 9).await;
    let answer = &answer.responses[0].partition_responses[0];
    (answer.error_code, answer.base_offset)
}

/// High watermark and last stable offset.
async fn ends(wire: &mut Wire) -> (i64, i64) {
    let response = wire.call(&fetch_request("t", 0, 0, 0), 11).await;
    let data = &response.responses[0].partitions[0];
    (data.high_watermark, data.last_stable_offset)
}

async fn delete_records(wire: &mut Wire) -> i64 {
    use m::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
    let partition = DeleteRecordsPartition { partition_index: 0, offset: -1, ..Default::default() };
    let request = m::DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: "t".into(),
            partitions: vec![partition],
            ..Default::default()
        }],
        timeout_ms: 5_000,
        ..Default::default()
    };
    wire.call(&request, 2).await.topics[0].partitions[0].low_watermark
}

/// Proves (14, KAFKA-9749; 16, KAFKA-14880; 18, KAFKA-7519): the write of the very first record of a transactional id,
/// of an addition and of the markers each fail once, and the transaction still ends, with nothing left open.
#[test]
fn kafka_9749_14880_7519_failed_writes_of_the_coordinator() {
    run(async {
        let disk = SimDisk::new(14);
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        disk.inject(Fault::SyncError, "");
        let pair = wire.init(Some("tx")).await;
        assert_eq!(disk.waiting_faults(), 0, "the write of the first record failed");
        disk.inject(Fault::SyncError, "");
        assert_eq!(wire.add("tx", &pair, vec![0]).await, 0);
        assert_eq!(send(&mut wire, &pair, 0, Some("tx")).await, (0, 0));
        disk.inject(Fault::SyncError, "");
        assert_eq!(wire.commit("tx", &pair).await, 0);
        assert_eq!(disk.waiting_faults(), 0, "the write of the markers failed");
        assert_eq!(ends(&mut wire).await, (2, 2), "nothing is left open");
        let again = wire.init(Some("tx")).await;
        assert_eq!(again.producer_epoch, pair.producer_epoch + 1, "the id is not stuck");
        broker.shutdown().await;
    });
}

/// Proves (26, RP#30003; 76, KAFKA-12153, KAFKA-10706): a transaction that was open without data when a snapshot was
/// taken, and open at the log's end when the broker was killed, holds back readers and can be committed after each start.
#[test]
fn rp_30003_kafka_12153_open_transactions_survive_starts() {
    run(async {
        let mut disk = SimDisk::new(26);
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let pair = wire.init(Some("tx")).await;
        assert_eq!(wire.add("tx", &pair, vec![0]).await, 0);
        broker.shutdown().await; // with a snapshot
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        assert_eq!(send(&mut wire, &pair, 0, Some("tx")).await, (0, 0));
        assert_eq!(wire.produce("t", 0, &["behind it"]).await, (0, 1));
        let killed = disk.kill();
        broker.shutdown().await;
        disk = killed;
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        assert_eq!(ends(&mut wire).await, (2, 0), "it is still open");
        assert_eq!(wire.commit("tx", &pair).await, 0);
        assert_eq!(ends(&mut wire).await, (3, 3));
        broker.shutdown().await;
    });
}

/// Proves (36, RP#3039; 41, KAFKA-6683): five batches, the append of each failed once, are each appended once, and their
/// repetition, also after a kill, gets the offsets that they have.
#[test]
fn rp_3039_kafka_6683_failed_appends_are_repeated_once() {
    run(async {
        let disk = SimDisk::new(41);
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let pair = wire.init(None).await;
        for sequence in 0..5 {
            disk.inject(Fault::SyncError, "");
            assert_eq!(send(&mut wire, &pair, sequence, None).await, (0, i64::from(sequence)));
            assert_eq!(disk.waiting_faults(), 0);
        }
        for sequence in 0..5 {
            assert_eq!(send(&mut wire, &pair, sequence, None).await, (0, i64::from(sequence)), "repeated");
        }
        let killed = disk.kill();
        broker.shutdown().await;
        let broker = start(Arc::new(killed.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        for sequence in 0..5 {
            assert_eq!(
                send(&mut wire, &pair, sequence, None).await,
                (0, i64::from(sequence)),
                "after a kill"
            );
        }
        assert_eq!(ends(&mut wire).await, (5, 5));
        broker.shutdown().await;
    });
}

/// Proves (37, RP#5355, KAFKA-14034; 44, KAFKA-7298, KAFKA-7190): when all records of a producer were deleted its last
/// batch is still known as a duplicate, and its next one is appended, also after a kill.
#[test]
fn rp_5355_kafka_7298_deleted_records_forget_no_producer() {
    run(async {
        let disk = SimDisk::new(37);
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let pair = wire.init(None).await;
        for sequence in 0..3 {
            assert_eq!(send(&mut wire, &pair, sequence, None).await, (0, i64::from(sequence)));
        }
        assert_eq!(delete_records(&mut wire).await, 3);
        let (code, _) = send(&mut wire, &pair, 2, None).await;
        assert!(code == 0 || code == 46, "a duplicate, not an unknown error: {code}");
        assert_eq!(wire.fetch("t", 0, 3, 0).await.high_watermark, 3, "and nothing was appended");
        let killed = disk.kill();
        broker.shutdown().await;
        let broker = start(Arc::new(killed.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        assert_eq!(send(&mut wire, &pair, 3, None).await, (0, 3));
        broker.shutdown().await;
    });
}

/// Proves (86, RP#4900): a deleted group does not come back after a kill.
#[test]
fn rp_4900_a_deleted_group_stays_deleted() {
    run(async {
        let disk = SimDisk::new(86);
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        assert_eq!(wire.commit_offset("g", 7).await, 0);
        assert_eq!(wire.call(&m::ListGroupsRequest::default(), 4).await.groups.len(), 1);
        let delete = m::DeleteGroupsRequest { groups_names: vec!["g".into()], ..Default::default() };
        assert_eq!(wire.call(&delete, 2).await.results[0].error_code, 0);
        let killed = disk.kill();
        broker.shutdown().await;
        let broker = start(Arc::new(killed.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        assert_eq!(wire.call(&m::ListGroupsRequest::default(), 4).await.groups, Vec::new());
        broker.shutdown().await;
    });
}
