//! The disk is full under a running broker: what is refused, with which codes, and that it ends by itself.

use std::sync::Arc;
use std::time::Duration;

use ottla_env::disk::sim::SimDisk;
use ottla_env::time;
use ottla_protocol::messages as m;

use super::requests::{init, start};
use super::wire::{Wire, produce_request, run};

const KAFKA_STORAGE_ERROR: i16 = 56;
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const REQUEST_TIMED_OUT: i16 = 7;

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
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        wire.create_topic("to-go", 1).await;
        let first = wire.begin("first", 0).await;
        let second = wire.begin("second", 0).await;
        assert_eq!(wire.commit_offset("g", 1).await, 0);
        reserve_is_whole(&disk).await;
        fill(&disk);
        assert_eq!(produce_until_refused(&mut wire).await, KAFKA_STORAGE_ERROR);
        assert_eq!(wire.call(&init(Some("third")), 3).await.error_code, COORDINATOR_NOT_AVAILABLE);
        assert_eq!(create(&mut wire, "new").await, REQUEST_TIMED_OUT);
        assert_eq!(wire.commit_offset("g", 2).await, 0);
        assert_eq!(wire.commit("first", &first).await, 0, "an open transaction ends at mark 1");
        let mut last = 2;
        let refused = loop {
            fill(&disk);
            last += 1;
            match wire.commit_offset("g", last).await {
                0 => assert!(last < 5_000, "mark 2 does not come"),
                code => break code,
            }
        };
        assert_eq!(refused, COORDINATOR_NOT_AVAILABLE);
        assert_eq!(wire.add("first", &first, vec![0]).await, COORDINATOR_NOT_AVAILABLE);
        assert_eq!(wire.commit("second", &second).await, 0, "an open transaction ends at mark 2");
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
        assert_eq!(wire.commit_offset("g", last + 1).await, 0);
        broker.shutdown().await;
    });
}

/// Proves: a broker that is killed on a full disk starts on it, refuses what there is no room for, ends the transaction
/// that was open, and goes on when there is room.
#[test]
fn a_start_on_a_full_disk() {
    run(async {
        let disk = SimDisk::new(2);
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let open = wire.begin("open", 0).await;
        reserve_is_whole(&disk).await;
        fill(&disk);
        assert_eq!(produce_until_refused(&mut wire).await, KAFKA_STORAGE_ERROR);
        let end_offset = wire.fetch("t", 0, 0, 0).await.high_watermark;
        let after = disk.kill();
        drop(wire);
        broker.shutdown().await;
        fill(&after);
        let broker = start(Arc::new(after.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        let fetched = wire.fetch("t", 0, 0, 0).await;
        assert_eq!((fetched.error, fetched.high_watermark), (0, end_offset), "nothing acknowledged is lost");
        assert_eq!(produce_until_refused(&mut wire).await, KAFKA_STORAGE_ERROR);
        assert_eq!(wire.commit("open", &open).await, 0);
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
