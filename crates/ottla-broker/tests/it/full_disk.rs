//! The disk is full under a running broker: what is refused, with which codes, and that it ends by itself.

use std::sync::Arc;
use std::time::Duration;

use ottla_broker::{Broker, Config};
use ottla_env::clock::OsClock;
use ottla_env::disk::sim::SimDisk;
use ottla_env::time;
use ottla_protocol::messages as m;

use super::wire::{Wire, produce_request, run};

const KAFKA_STORAGE_ERROR: i16 = 56;
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const REQUEST_TIMED_OUT: i16 = 7;

async fn start(disk: &SimDisk) -> Broker {
    let config = Config { listen: "127.0.0.1:0".to_owned(), log_file_bytes: 1 << 20, ..Config::default() };
    Broker::start_on(config, Arc::new(disk.clone()), Arc::new(OsClock)).await.expect("it starts")
}

/// Takes all free room away, now and as often as it is called.
fn fill(disk: &SimDisk) {
    disk.set_capacity(disk.files().iter().map(|(_, bytes)| bytes).sum());
}

/// The whole reserve is there.
async fn reserve_is_whole(disk: &SimDisk) {
    for _ in 0..500 {
        let files = disk.files();
        let whole = files.iter().filter(|(name, _)| name.starts_with("reserve-0")).count() == 2;
        if whole && files.iter().any(|(name, _)| name.contains("-ahead-")) {
            return;
        }
        time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no reserve: {:?}", disk.files());
}

fn init(id: &str) -> m::InitProducerIdRequest {
    m::InitProducerIdRequest {
        transactional_id: Some(id.into()),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    }
}

async fn begin(wire: &mut Wire, id: &str) -> m::InitProducerIdResponse {
    let pair = wire.call(&init(id), 3).await;
    assert_eq!(pair.error_code, 0);
    assert_eq!(add(wire, id, &pair).await, 0);
    pair
}

async fn add(wire: &mut Wire, id: &str, pair: &m::InitProducerIdResponse) -> i16 {
    let add = m::AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: id.into(),
        v3_and_below_producer_id: pair.producer_id,
        v3_and_below_producer_epoch: pair.producer_epoch,
        v3_and_below_topics: vec![m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
            name: "t".into(),
            partitions: vec![0],
            ..Default::default()
        }],
        ..Default::default()
    };
    let added = wire.call(&add, 3).await;
    added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
}

async fn end(wire: &mut Wire, id: &str, pair: &m::InitProducerIdResponse) -> i16 {
    let end = m::EndTxnRequest {
        transactional_id: id.into(),
        producer_id: pair.producer_id,
        producer_epoch: pair.producer_epoch,
        committed: true,
        ..Default::default()
    };
    wire.call(&end, 3).await.error_code
}

async fn commit_offset(wire: &mut Wire, offset: i64) -> i16 {
    use m::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
    let request = m::OffsetCommitRequest {
        group_id: "g".into(),
        generation_id_or_member_epoch: -1,
        topics: vec![OffsetCommitRequestTopic {
            name: "t".into(),
            partitions: vec![OffsetCommitRequestPartition {
                partition_index: 0,
                committed_offset: offset,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    wire.call(&request, 8).await.topics[0].partitions[0].error_code
}

async fn create(wire: &mut Wire, name: &str) -> i16 {
    let request = m::CreateTopicsRequest {
        topics: vec![m::create_topics_request::CreatableTopic {
            name: name.into(),
            num_partitions: 1,
            replication_factor: 1,
            ..Default::default()
        }],
        timeout_ms: 5_000,
        ..Default::default()
    };
    wire.call(&request, 5).await.topics[0].error_code
}

/// Produces until the answer is another than 0.
async fn produce_until_refused(wire: &mut Wire) -> i16 {
    let value = "x".repeat(3_000);
    for _ in 0..2_000 {
        let (code, _) = wire.produce("t", 0, &[&value]).await;
        if code != 0 {
            return code;
        }
    }
    0
}

/// Proves: on a full disk Produce gets 56, a new producer 15, a new topic 7, while offsets are committed and open
/// transactions end; when half of the reserve is gone offset commits and additions to transactions get 15, and open
/// transactions and deletes still go through; room lets everything through again, and nothing acknowledged is lost.
#[test]
fn marks_refuse_what_architecture_says() {
    run(async {
        let disk = SimDisk::new(1);
        let broker = start(&disk).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        wire.create_topic("to-go", 1).await;
        let first = begin(&mut wire, "first").await;
        let second = begin(&mut wire, "second").await;
        assert_eq!(commit_offset(&mut wire, 1).await, 0);
        reserve_is_whole(&disk).await;
        fill(&disk);
        assert_eq!(produce_until_refused(&mut wire).await, KAFKA_STORAGE_ERROR);
        assert_eq!(wire.call(&init("third"), 3).await.error_code, COORDINATOR_NOT_AVAILABLE);
        assert_eq!(create(&mut wire, "new").await, REQUEST_TIMED_OUT);
        assert_eq!(commit_offset(&mut wire, 2).await, 0);
        assert_eq!(end(&mut wire, "first", &first).await, 0, "an open transaction ends at mark 1");
        let mut last = 2;
        let refused = loop {
            fill(&disk);
            last += 1;
            match commit_offset(&mut wire, last).await {
                0 => assert!(last < 5_000, "mark 2 does not come"),
                code => break code,
            }
        };
        assert_eq!(refused, COORDINATOR_NOT_AVAILABLE);
        assert_eq!(add(&mut wire, "first", &first).await, COORDINATOR_NOT_AVAILABLE);
        assert_eq!(end(&mut wire, "second", &second).await, 0, "an open transaction ends at mark 2");
        let delete = m::DeleteTopicsRequest {
            topic_names: vec!["to-go".into()],
            timeout_ms: 5_000,
            ..Default::default()
        };
        assert_eq!(wire.call(&delete, 5).await.responses[0].error_code, 0, "deletes pass");
        let end_offset = wire.fetch("t", 0, 0, 0).await.high_watermark;
        disk.set_capacity(1 << 40);
        for _ in 0..500 {
            if wire.produce("t", 0, &["after"]).await.0 == 0 {
                break;
            }
            time::sleep(Duration::from_millis(20)).await;
        }
        let (code, offset) = wire.produce("t", 0, &["after"]).await;
        assert_eq!(code, 0, "it resumes by itself");
        assert!(offset > end_offset);
        assert_eq!(commit_offset(&mut wire, last + 1).await, 0);
        broker.shutdown().await;
    });
}

/// Proves: a broker that is killed on a full disk starts on it, refuses what there is no room for, ends the transaction
/// that was open, and goes on when there is room.
#[test]
fn a_start_on_a_full_disk() {
    run(async {
        let disk = SimDisk::new(2);
        let broker = start(&disk).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let open = begin(&mut wire, "open").await;
        reserve_is_whole(&disk).await;
        fill(&disk);
        assert_eq!(produce_until_refused(&mut wire).await, KAFKA_STORAGE_ERROR);
        let end_offset = wire.fetch("t", 0, 0, 0).await.high_watermark;
        let after = disk.kill();
        drop(wire);
        broker.shutdown().await;
        fill(&after);
        let broker = start(&after).await;
        let mut wire = Wire::connect(&broker).await;
        let fetched = wire.fetch("t", 0, 0, 0).await;
        assert_eq!((fetched.error, fetched.high_watermark), (0, end_offset), "nothing acknowledged is lost");
        assert_eq!(produce_until_refused(&mut wire).await, KAFKA_STORAGE_ERROR);
        assert_eq!(end(&mut wire, "open", &open).await, 0);
        after.set_capacity(1 << 40);
        let mut code = -1;
        for _ in 0..500 {
            let id = wire.send(&produce_request("t", 0, &["after"], -1), 9).await;
            code =
                wire.receive::<m::ProduceRequest>(id, 9).await.responses[0].partition_responses[0].error_code;
            if code == 0 {
                break;
            }
            time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(code, 0, "it resumes by itself");
        broker.shutdown().await;
    });
}
