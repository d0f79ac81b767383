//! Too many connections, and connections that rest.

use std::time::Duration;

use ottla_broker::Broker;
use ottla_env::time;
use ottla_protocol::messages as m;

use crate::wire::{PATIENCE, Wire, config, fetch_request, run};

/// Proves: above the number for its address a connection is closed at once, and one that ends makes room.
#[test]
fn too_many_from_one_address() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path());
        config.core.max_connections_per_ip = 0;
        config.core.max_connections_per_ip_overrides = "127.0.0.1:2".to_owned();
        let broker = Broker::start(config).await.expect("it starts");
        let (mut first, mut second) = (Wire::connect(&broker).await, Wire::connect(&broker).await);
        first.call(&m::ApiVersionsRequest::default(), 2).await;
        second.call(&m::ApiVersionsRequest::default(), 2).await;
        for _ in 0..20 {
            assert!(Wire::connect(&broker).await.closes_within(PATIENCE).await, "a third is closed");
        }
        drop(first);
        let deadline = time::now() + PATIENCE;
        loop {
            let mut third = Wire::connect(&broker).await;
            if !third.closes_within(Duration::from_millis(100)).await {
                third.call(&m::ApiVersionsRequest::default(), 2).await;
                break;
            }
            assert!(time::now() < deadline, "the place of an ended connection never came back");
        }
        second.call(&m::ApiVersionsRequest::default(), 2).await;
        broker.shutdown().await;
    });
}

/// Proves: above `max.connections` a connection waits, is served once another has ended, and does not keep the
/// broker from stopping.
#[test]
fn too_many_in_all() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path());
        config.core.max_connections = 1;
        let broker = Broker::start(config).await.expect("it starts");
        let mut first = Wire::connect(&broker).await;
        first.call(&m::ApiVersionsRequest::default(), 2).await;
        let mut second = Wire::connect(&broker).await;
        let id = second.send(&m::ApiVersionsRequest::default(), 2).await;
        assert!(!second.closes_within(Duration::from_secs(1)).await, "it waits");
        drop(first);
        second.receive::<m::ApiVersionsRequest>(id, 2).await;
        let mut third = Wire::connect(&broker).await;
        third.send(&m::ApiVersionsRequest::default(), 2).await;
        broker.shutdown().await;
        assert!(third.closes_within(PATIENCE).await);
    });
}

/// Proves: a connection that rests longer than `connections.max.idle.ms` is closed, one that uses it or waits for
/// an answer is not.
#[test]
fn resting_connections_are_closed() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path());
        config.connections_max_idle_ms = 2_000;
        let broker = Broker::start(config).await.expect("it starts");
        let (mut resting, mut busy) = (Wire::connect(&broker).await, Wire::connect(&broker).await);
        let mut parked = Wire::connect(&broker).await;
        parked.create_topic("t", 1).await;
        let fetch = parked.send(&fetch_request("t", 0, 0, 6_000), 11).await;
        let started = time::now();
        let rest = async {
            assert!(resting.closes_within(PATIENCE).await);
            started.elapsed()
        };
        let work = async {
            for _ in 0..10 {
                busy.call(&m::ApiVersionsRequest::default(), 2).await;
                time::sleep(Duration::from_millis(500)).await;
            }
        };
        let ((rested, ()), answer) =
            tokio::join!(async { tokio::join!(rest, work) }, parked.receive::<m::FetchRequest>(fetch, 11));
        assert!(rested >= Duration::from_secs(1), "closed after {rested:?}");
        assert_eq!(answer.responses.len(), 1, "a parked fetch is not idle");
        assert!(parked.closes_within(PATIENCE).await, "but it rests once it is answered");
        broker.shutdown().await;
    });
}
