//! Clients that send and do not read, or that begin and do not end: they cost little, and only themselves.

use std::time::Duration;

use ottla_broker::Broker;
use ottla_env::{process, time};
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use crate::wire::{PATIENCE, Wire, config, fetch_request, produce_request, run};

fn resident() -> u64 {
    process::resident_bytes(process::id()).expect("known")
}

/// Proves: clients that ask for large answers again and again and take none of them hold a bounded number of
/// bytes, and others are served meanwhile.
#[test]
fn answers_that_nobody_takes() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut good = Wire::connect(&broker).await;
        good.create_topic("many", 5_000).await;
        let before = resident();
        let all = m::MetadataRequest { topics: None, ..Default::default() };
        let mut deaf = Vec::new();
        for _ in 0..10 {
            let mut wire = Wire::connect(&broker).await;
            // Each answer has about 200 KB: all of them together would have 10 * 1000 of these.
            for _ in 0..1_000 {
                wire.send(&all, 12).await;
            }
            deaf.push(wire);
        }
        let versions = good.call(&m::ApiVersionsRequest::default(), 2).await;
        assert_eq!(versions.error_code, 0);
        let after = resident();
        assert!(after < before + (256 << 20), "{before} -> {after} bytes resident");
        broker.shutdown().await;
    });
}

/// Proves: fetches whose answers nobody takes do not take the bytes of fetched data from others for ever.
#[test]
fn fetched_data_that_nobody_takes() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut good = Wire::connect(&broker).await;
        good.create_topic("t", 1).await;
        let value = "x".repeat(900_000);
        for _ in 0..24 {
            assert_eq!(good.produce("t", 0, &[&value]).await.0, 0);
        }
        let mut request = fetch_request("t", 0, 0, 0);
        request.max_bytes = i32::MAX;
        request.topics[0].partitions[0].partition_max_bytes = i32::MAX;
        let mut deaf = Vec::new();
        for _ in 0..30 {
            let mut wire = Wire::connect(&broker).await;
            for _ in 0..20 {
                wire.send(&request, 11).await;
            }
            deaf.push(wire);
        }
        // Time for all of them to take what they get.
        time::sleep(Duration::from_secs(2)).await;
        let id = good.send(&fetch_request("t", 0, 3, 0), 11).await;
        assert!(good.answers_within(PATIENCE * 2).await, "others are served");
        let answer = good.receive::<m::FetchRequest>(id, 11).await;
        let partition = &answer.responses[0].partitions[0];
        assert_eq!(partition.error_code, 0);
        assert!(partition.records.as_ref().is_some_and(|records| !records.is_empty()));
        broker.shutdown().await;
    });
}

/// Proves: fetches that wait for more than there is keep nothing of what there is, and get it when their time is over.
#[test]
fn fetches_that_wait_hold_no_data() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path());
        config.tail_cache_bytes = 1 << 20;
        let broker = Broker::start(config).await.expect("it starts");
        let mut good = Wire::connect(&broker).await;
        good.create_topic("t", 1).await;
        for _ in 0..15 {
            assert_eq!(good.produce("t", 0, &[&"x".repeat(900_000)]).await.0, 0);
        }
        let fetch = |wait_ms| {
            let mut request = fetch_request("t", 0, 0, wait_ms);
            (request.min_bytes, request.max_bytes) = (i32::MAX, i32::MAX);
            request.topics[0].partitions[0].partition_max_bytes = i32::MAX;
            request
        };
        let before = resident();
        let mut waiting = Vec::new();
        for _ in 0..50 {
            let mut wire = Wire::connect(&broker).await;
            wire.send(&fetch(300_000), 11).await;
            // Each has about 13 MB to read, one after the other.
            assert!(!wire.answers_within(Duration::from_millis(100)).await, "it waits");
            waiting.push(wire);
        }
        let after = resident();
        assert!(after < before + (400 << 20), "{before} -> {after} bytes resident");
        drop(waiting);
        let id = good.send(&fetch(1_000), 11).await;
        let answer = good.receive::<m::FetchRequest>(id, 11).await;
        let records = answer.responses[0].partitions[0].records.as_ref().expect("some");
        assert!(records.len() > 15 * 900_000, "{} bytes", records.len());
        broker.shutdown().await;
    });
}

/// Proves: requests that began to arrive and never end hold up others of their kind for a bounded time only.
#[test]
fn requests_that_never_end() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path());
        config.queued_max_request_bytes = 4 << 20;
        let broker = Broker::start(config).await.expect("it starts");
        let mut good = Wire::connect(&broker).await;
        good.create_topic("t", 1).await;
        let mut halves = Vec::new();
        for _ in 0..2 {
            let mut wire = Wire::connect(&broker).await;
            wire.send_raw(&(1_u32 << 20).to_be_bytes()).await;
            wire.send_raw(&[0; 1000]).await;
            halves.push(wire);
        }
        // Once all the room is claimed, a request waits for some, and then those that bring nothing are cut.
        let mut waited = false;
        for _ in 0..10 {
            let id = good.send(&produce_request("t", 0, &["patient"], -1), 9).await;
            waited = !good.answers_within(Duration::from_secs(1)).await;
            let answer = time::timeout(PATIENCE * 2, good.receive::<m::ProduceRequest>(id, 9)).await;
            assert_eq!(answer.expect("served").responses[0].partition_responses[0].error_code, 0);
            if waited {
                break;
            }
        }
        assert!(waited, "the room was claimed");
        let mut cut = 0;
        for half in &mut halves {
            cut += usize::from(half.closes_within(Duration::from_secs(1)).await);
        }
        assert!(cut > 0, "somebody made room");
        broker.shutdown().await;
    });
}

/// Proves: group members that wait hold none of the room that requests need, and too many of them are told to
/// come again.
#[test]
fn members_that_wait() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path());
        config.queued_max_request_bytes = 4 << 20;
        config.core.group_initial_rebalance_delay_ms = 3_600_000;
        let broker = Broker::start(config).await.expect("it starts");
        let mut good = Wire::connect(&broker).await;
        good.create_topic("t", 1).await;
        let (mut waiting, mut refused) = (Vec::new(), 0);
        for n in 0..12 {
            let protocol = m::join_group_request::JoinGroupRequestProtocol {
                name: Text::from_static("range"),
                metadata: vec![0; 200 << 10].into(),
                ..Default::default()
            };
            let join = m::JoinGroupRequest {
                group_id: Text::from(format!("g{n}")),
                session_timeout_ms: 30_000,
                rebalance_timeout_ms: 30_000,
                protocol_type: Text::from_static("consumer"),
                protocols: vec![protocol],
                ..Default::default()
            };
            let mut wire = Wire::connect(&broker).await;
            let id = wire.send(&join, 2).await;
            if wire.answers_within(Duration::from_millis(200)).await {
                let answer = wire.receive::<m::JoinGroupRequest>(id, 2).await;
                assert_eq!(answer.error_code, 14, "COORDINATOR_LOAD_IN_PROGRESS: come again");
                refused += 1;
            }
            waiting.push(wire);
        }
        assert!((1..12).contains(&refused), "{refused} of 12 refused");
        assert_eq!(good.produce("t", 0, &["not held up"]).await, (0, 0));
        broker.shutdown().await;
    });
}
