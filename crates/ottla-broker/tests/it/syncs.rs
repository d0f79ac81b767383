//! Acknowledged means on disk: which answers wait for which sync, how many requests share one, what goes on
//! while a sync is slow.

use std::sync::Arc;
use std::time::Duration;

use ottla_broker::{Broker, Config};
use ottla_env::clock::OsClock;
use ottla_env::disk::Disk;
use ottla_env::time;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::gated::{Gate, GatedDisk};
use super::wire::{Wire, fetch_request, produce_request, run};

async fn start(disk: Arc<dyn Disk>) -> Broker {
    let config = Config { listen: "127.0.0.1:0".to_owned(), ..Config::default() };
    Broker::start_on(config, disk, Arc::new(OsClock)).await.expect("it starts")
}

async fn started() -> (Broker, Arc<Gate>) {
    let (disk, gate) = GatedDisk::with_gate(1);
    (start(disk).await, gate)
}

/// Proves: no answer leaves before the sync that covers it, reads of what is not durable included; and what is
/// durable can be read meanwhile.
#[test]
fn no_answer_before_its_sync() {
    run(async {
        let (broker, gate) = started().await;
        let (mut writer, mut reader) = (Wire::connect(&broker).await, Wire::connect(&broker).await);
        writer.create_topic("t", 1).await;
        assert_eq!(writer.produce("t", 0, &["durable"]).await, (0, 0));
        gate.hold(true);
        let held = writer.send(&produce_request("t", 0, &["held"], -1), 9).await;
        gate.wait_for_a_held_sync();
        // A hundred other requests are answered, none of them shows the record, and its own answer is not there.
        for _ in 0..100 {
            let fetched = reader.fetch("t", 0, 0, 0).await;
            assert_eq!((fetched.values, fetched.high_watermark), (vec!["durable".to_owned()], 1));
        }
        assert!(
            time::timeout(Duration::from_millis(50), writer.frame()).await.is_err(),
            "answered too early"
        );
        gate.hold(false);
        let answer = writer.receive::<m::ProduceRequest>(held, 9).await;
        assert_eq!(answer.responses[0].partition_responses[0].base_offset, 1);
        assert_eq!(reader.fetch("t", 0, 1, 0).await.values, vec!["held".to_owned()]);
        broker.shutdown().await;
    });
}

/// Proves: under 64 connections many requests share one sync.
#[test]
fn many_requests_share_a_sync() {
    run(async {
        let (broker, gate) = started().await;
        Wire::connect(&broker).await.create_topic("t", 64).await;
        gate.slow(Duration::from_millis(5));
        let before = gate.syncs();
        let mut group = Vec::new();
        for n in 0..64 {
            let mut wire = Wire::connect(&broker).await;
            group.push(ottla_env::spawn::task("producer", async move {
                for _ in 0..20 {
                    assert_eq!(wire.produce("t", n, &["x"]).await.0, 0);
                }
            }));
        }
        for task in group {
            task.await.expect("no panic");
        }
        let syncs = gate.syncs() - before;
        assert!(syncs < 64 * 20 / 8, "{syncs} syncs for {} requests", 64 * 20);
        broker.shutdown().await;
    });
}

/// Proves: the whole commit of a transaction over ten partitions and a group's offsets is one sync.
#[test]
fn a_commit_is_one_sync() {
    run(async {
        let (broker, gate) = started().await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 10).await;
        let pair = wire.init(Some("tx")).await;
        assert_eq!(wire.add("tx", &pair, (0..10).collect()).await, 0);
        let offsets = m::AddOffsetsToTxnRequest {
            transactional_id: Text::from_static("tx"),
            producer_id: pair.producer_id,
            producer_epoch: pair.producer_epoch,
            group_id: Text::from_static("g"),
            ..Default::default()
        };
        assert_eq!(wire.call(&offsets, 3).await.error_code, 0);
        let before = gate.syncs();
        assert_eq!(wire.commit("tx", &pair).await, 0);
        assert_eq!(gate.syncs() - before, 1);
        let fetched = wire.fetch("t", 9, 0, 0).await;
        assert_eq!(fetched.high_watermark, 1, "the marker is there when the commit is answered");
        broker.shutdown().await;
    });
}

/// Proves: while every sync takes a second, fetches of what is durable and metadata are answered as ever, and a
/// parked fetch still wakes when its record is durable.
#[test]
fn slow_syncs_hold_up_nobody_else() {
    run(async {
        let (broker, gate) = started().await;
        let (mut writer, mut reader) = (Wire::connect(&broker).await, Wire::connect(&broker).await);
        writer.create_topic("t", 1).await;
        assert_eq!(writer.produce("t", 0, &["before"]).await, (0, 0));
        gate.slow(Duration::from_secs(1));
        let slow = writer.send(&produce_request("t", 0, &["slow"], -1), 9).await;
        gate.wait_for_a_held_sync();
        let syncs = gate.syncs();
        for _ in 0..50 {
            assert_eq!(reader.fetch("t", 0, 0, 0).await.values.len(), 1);
            reader.call(&m::MetadataRequest::default(), 12).await;
        }
        assert_eq!(gate.syncs(), syncs, "fifty rounds within one slow sync");
        let parked = reader.send(&fetch_request("t", 0, 1, 10_000), 11).await;
        writer.receive::<m::ProduceRequest>(slow, 9).await;
        let answer = reader.receive::<m::FetchRequest>(parked, 11).await;
        assert_eq!(answer.responses[0].partitions[0].high_watermark, 2);
        broker.shutdown().await;
    });
}
