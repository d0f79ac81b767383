//! An orderly stop, seen from clients: what was read is answered, who waits is told, nothing is destroyed.

use std::time::Duration;

use ottla_broker::Broker;
use ottla_env::time;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::wire::{PATIENCE, Wire, config, fetch_request, produce_request, run};

/// Proves: requests on their way when the broker stops are answered as a prefix of what was sent, then the
/// connection is closed; what was answered is there after the restart, and nothing twice.
#[test]
fn what_was_read_is_answered() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let value = "x".repeat(5_000);
        let mut sent = Vec::new();
        for _ in 0..100 {
            sent.push(wire.send(&produce_request("t", 0, &[&value], -1), 9).await);
        }
        let (answered, ()) = tokio::join!(
            async {
                let mut answered = 0;
                while let Some(frame) = wire.frame().await {
                    let id = i32::from_be_bytes(*frame.first_chunk().expect("a header"));
                    assert_eq!(Some(&id), sent.get(answered), "in order, none left out");
                    answered += 1;
                }
                answered
            },
            broker.shutdown()
        );
        let broker = Broker::start(config(folder.path())).await.expect("it starts again");
        let mut wire = Wire::connect(&broker).await;
        let end = wire.fetch("t", 0, 0, 0).await.high_watermark;
        assert_eq!(end, answered as i64, "answered is what happened");
        broker.shutdown().await;
    });
}

/// Proves: a stop does not wait for parked fetches and waiting members: the ones are answered with what there is,
/// the others with NOT_COORDINATOR, and a member that joined stays one.
#[test]
fn who_waits_is_told() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = config(folder.path());
        settings.core.group_initial_rebalance_delay_ms = 3_600_000;
        settings.shutdown_timeout_ms = 60_000;
        let broker = Broker::start(settings).await.expect("it starts");
        let (mut reader, mut member) = (Wire::connect(&broker).await, Wire::connect(&broker).await);
        reader.create_topic("t", 1).await;
        let fetch = reader.send(&fetch_request("t", 0, 0, 300_000), 11).await;
        let protocol = m::join_group_request::JoinGroupRequestProtocol {
            name: Text::from_static("range"),
            ..Default::default()
        };
        let join = m::JoinGroupRequest {
            group_id: Text::from_static("g"),
            session_timeout_ms: 30_000,
            rebalance_timeout_ms: 30_000,
            protocol_type: Text::from_static("consumer"),
            protocols: vec![protocol],
            ..Default::default()
        };
        let joined = member.send(&join, 2).await;
        // Time for the broker to take both up.
        time::sleep(Duration::from_secs(1)).await;
        let stopped = tokio::join!(
            async {
                let answer = reader.receive::<m::FetchRequest>(fetch, 11).await;
                assert_eq!(answer.responses[0].partitions[0].high_watermark, 0);
                assert!(reader.closes_within(PATIENCE).await);
                drop(reader);
            },
            async {
                let answer = member.receive::<m::JoinGroupRequest>(joined, 2).await;
                assert_eq!(answer.error_code, 16, "NOT_COORDINATOR");
                assert!(member.closes_within(PATIENCE).await);
                drop(member);
            },
            time::timeout(PATIENCE, broker.shutdown())
        );
        stopped.2.expect("in good time");
    });
}

/// Proves: a client that takes no answers does not keep the broker from stopping within its time.
#[test]
fn a_deaf_client_does_not_hold_up_the_stop() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = config(folder.path());
        settings.shutdown_timeout_ms = 2_000;
        let broker = Broker::start(settings).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        for _ in 0..10 {
            assert_eq!(wire.produce("t", 0, &[&"x".repeat(900_000)]).await.0, 0);
        }
        let mut request = fetch_request("t", 0, 0, 0);
        request.topics[0].partitions[0].partition_max_bytes = i32::MAX;
        for _ in 0..20 {
            wire.send(&request, 11).await;
        }
        time::timeout(PATIENCE, broker.shutdown()).await.expect("within its time");
        drop(wire);
    });
}
