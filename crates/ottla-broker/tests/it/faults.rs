//! The disk fails under a running broker: nothing acknowledged is lost, and it goes on by itself.

use std::sync::Arc;

use ottla_broker::{Broker, Config};
use ottla_env::disk::sim::{Fault, SimDisk};
use ottla_protocol::messages as m;

use super::requests::{end, start};
use super::wire::{Wire, fetch_request, produce_request, produce_request_at, run};

/// Proves: a sync that fails once makes the shard reload; the requests in flight are decided again and
/// acknowledged, each value is there once, and after a crash too.
#[test]
fn a_failed_sync_is_survived() {
    run(async {
        let disk = SimDisk::new(1);
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let mut acknowledged = Vec::new();
        for round in 0..10 {
            disk.inject(Fault::SyncError, "");
            let values: Vec<String> = (0..5).map(|n| format!("{round}-{n}")).collect();
            let mut ids = Vec::new();
            for value in &values {
                ids.push(wire.send(&produce_request("t", 0, &[value], -1), 9).await);
            }
            for (id, value) in ids.into_iter().zip(values) {
                let answer = wire.receive::<m::ProduceRequest>(id, 9).await;
                assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
                acknowledged.push(value);
            }
        }
        assert_eq!(wire.fetch("t", 0, 0, 0).await.values, acknowledged);
        broker.shutdown().await;
        let after = disk.crash(&mut ottla_env::rng::SeededRng::new(2));
        let broker = start(Arc::new(after.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        assert_eq!(wire.fetch("t", 0, 0, 0).await.values, acknowledged);
        broker.shutdown().await;
    });
}

/// Proves: while the log cannot be written, reads go on, and a Produce gets a retriable error in the end.
#[test]
fn reads_go_on_while_the_log_is_dead() {
    run(async {
        let disk = SimDisk::new(3);
        let broker = start(Arc::new(disk.clone())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        assert_eq!(wire.produce("t", 0, &["before"]).await, (0, 0));
        disk.set_plan(ottla_env::disk::sim::FaultPlan::default().with(Fault::SyncError, 1_000_000));
        let produce = wire.send(&produce_request("t", 0, &["during"], -1), 9).await;
        let mut reader = Wire::connect(&broker).await;
        let fetch = reader.send(&fetch_request("t", 0, 0, 0), 11).await;
        let fetched = reader.receive::<m::FetchRequest>(fetch, 11).await;
        assert_eq!(fetched.responses[0].partitions[0].high_watermark, 1);
        let answer = wire.receive::<m::ProduceRequest>(produce, 9).await;
        let code = answer.responses[0].partition_responses[0].error_code;
        assert!(code == 20 || code == 19, "retriable, and honest about the outcome: {code}");
        disk.set_plan(ottla_env::disk::sim::FaultPlan::default());
        assert_eq!(wire.produce("t", 0, &["after"]).await.0, 0);
        broker.shutdown().await;
    });
}

/// Proves: who spoke last for a v1 transaction is remembered over a reload: an EndTxn of an older connection ends
/// nothing while its producer goes on with a newer one, and its connection is closed.
#[test]
fn a_reload_keeps_the_connection_marks() {
    run(async {
        let disk = SimDisk::new(5);
        let broker = start(Arc::new(disk.clone())).await;
        let (mut old, mut new) = (Wire::connect(&broker).await, Wire::connect(&broker).await);
        new.create_topic("t", 1).await;
        let pair = new.begin("tx", 0).await;
        disk.inject(Fault::SyncError, "");
        assert_eq!(new.produce("t", 0, &["after the reload"]).await.0, 0);
        assert_eq!(disk.waiting_faults(), 0, "the sync failed, so the shard was rebuilt");
        old.send(&end("tx", &pair, true), 3).await;
        assert!(
            new.speak_until_closed("tx", &pair, &mut old).await,
            "it is late: its client goes on without it"
        );
        assert_eq!(new.commit("tx", &pair).await, 0, "the owner's own commit");
        broker.shutdown().await;
    });
}

/// Proves: a wall clock that falls back by hours does not make the records of clients with the right time look as if
/// they came from the future: timestamps are compared with shard time.
#[test]
fn a_clock_that_falls_back_refuses_nobody() {
    run(async {
        let wall_ms = 1_700_000_000_000;
        let clock = Arc::new(ottla_env::clock::ManualClock::new(wall_ms));
        let config = Config { listen: "127.0.0.1:0".to_owned(), ..Config::default() };
        let disk = Arc::new(SimDisk::new(6));
        let broker = Broker::start_on(config, disk, clock.clone()).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        clock.step_wall(-5 * 3_600_000);
        let request = produce_request_at("t", 0, &["now"], -1, wall_ms);
        let answer = wire.call(&request, 9).await;
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
        let request = produce_request_at("t", 0, &["too far ahead"], -1, wall_ms + 2 * 3_600_000);
        let answer = wire.call(&request, 9).await;
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 32);
        broker.shutdown().await;
    });
}
