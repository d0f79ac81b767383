//! The examples that check themselves, against a broker in this process.

use std::time::Duration;

use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_client::ClientSettings;
use ottla_env::{spawn, time};

#[path = "../examples/admin.rs"]
mod admin;
#[path = "../examples/consume_process_produce.rs"]
mod consume_process_produce;
#[path = "../examples/consumer_group.rs"]
mod consumer_group;
#[path = "../examples/handoff.rs"]
mod handoff;
#[path = "../examples/idempotent_producer.rs"]
mod idempotent_producer;
#[path = "../examples/scale_by_ids.rs"]
mod scale_by_ids;
#[path = "../examples/suite/main.rs"]
mod suite;

/// Longest that one example may take.
const LIMIT: Duration = Duration::from_secs(150);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Starts a broker and lets an example run against it.
fn against_broker<F>(example: impl FnOnce(ClientSettings) -> F)
where
    F: Future<Output = Result<(), Failure>>,
{
    spawn::runtime(2).expect("a runtime").block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config {
            listen: "127.0.0.1:0".to_owned(),
            dir: folder.path().display().to_string(),
            log_file_bytes: 4 << 20,
            ..Config::default()
        };
        let broker = Broker::start(config).await.expect("started");
        let client = ClientSettings::new(&broker.local_addr().to_string()).expect("an address");
        let ran = time::timeout(LIMIT, example(client)).await;
        ran.expect("in time").expect("the example checks itself");
        broker.shutdown().await;
    });
}

/// Proves that an idempotent producer's records are there once and in the order of their keys.
#[test]
fn writing_once() {
    against_broker(|client| idempotent_producer::run(client, "numbers", 10_000));
}

/// Proves that a topic and a group can be made, described, changed and deleted.
#[test]
fn administration() {
    against_broker(|client| admin::run(client, "admin"));
}

/// Proves that new source partitions bring new transactional ids, and that nothing is lost or doubled meanwhile.
#[test]
fn scaling_by_ids() {
    against_broker(|client| scale_by_ids::run(client, "scale"));
}

/// Proves that partitions move between workers without loss or doubling, and that a frozen worker is refused.
#[test]
fn handing_over() {
    against_broker(|client| handoff::run(client, "handoff"));
}

/// Proves that a group of three shares a topic and reads each record once, though members come and go.
#[test]
fn sharing_a_topic() {
    against_broker(|client| consumer_group::run(client, "group"));
}

/// Proves that the chain of two stages is exact though it aborts and is begun anew.
#[test]
fn chaining() {
    against_broker(|client| consume_process_produce::run(client, "chain"));
}

/// Proves that the list of cases that other clients are tried with holds for ours.
#[test]
fn the_list_of_cases() {
    against_broker(async |client| {
        for case in suite::CASES {
            suite::run(client.clone(), case).await.map_err(|error| format!("{case}: {error}"))?;
        }
        Ok(())
    });
}
