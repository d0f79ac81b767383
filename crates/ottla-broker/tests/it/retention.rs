//! Retention and deletes on a real folder: records go, and their space comes back.

use std::path::Path;
use std::time::Duration;

use ottla_broker::{Broker, Config};
use ottla_env::time;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::wire::{PATIENCE, Wire, config, produce_request_at, run};

const OFFSET_OUT_OF_RANGE: i16 = 1;

/// Small files, frequent looks.
fn small(folder: &Path, rewrite: bool) -> Config {
    let mut config = config(folder);
    config.log_file_bytes = 1 << 20;
    config.snapshot_log_bytes = 1 << 20;
    config.core.log_retention_check_interval_ms = 200;
    config.levels.rewrite = rewrite;
    config.levels.run_bytes = 4 << 20;
    config.levels.data_file_bytes = 2 << 20;
    config
}

/// Bytes of the log's files, without those that are prepared ahead.
fn bytes(folder: &Path) -> u64 {
    #[allow(clippy::disallowed_methods)] // the test looks from outside
    let entries = std::fs::read_dir(folder).expect("there");
    let files = entries.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.ends_with(".log") || name.ends_with(".data")
    });
    files.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            time::sleep(Duration::from_millis(100)).await;
        }
    };
    time::timeout(3 * PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn fill(wire: &mut Wire, topic: &str, batches: usize, timestamp: i64) {
    let value = "x".repeat(100_000);
    for _ in 0..batches {
        let request = produce_request_at(topic, 0, &[&value], -1, timestamp);
        let answer = wire.call(&request, 9).await;
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    }
}

async fn alter(wire: &mut Wire, topic: &str, name: &str, value: &str) {
    use m::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let change =
        AlterableConfig { name: name.into(), value: Some(value.into()), ..AlterableConfig::default() };
    let resource = AlterConfigsResource {
        resource_type: 2,
        resource_name: topic.into(),
        configs: vec![change],
        ..AlterConfigsResource::default()
    };
    let request = m::IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    assert_eq!(wire.call(&request, 1).await.responses[0].error_code, 0);
}

/// The earliest offset of partition 0.
async fn earliest(wire: &mut Wire, topic: &str) -> i64 {
    use m::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
    let partition = ListOffsetsPartition { timestamp: -2, current_leader_epoch: -1, ..Default::default() };
    let topic = ListOffsetsTopic { name: topic.into(), partitions: vec![partition], ..Default::default() };
    let request = m::ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    wire.call(&request, 5).await.topics[0].partitions[0].offset
}

async fn delete(wire: &mut Wire, topic: &str) {
    let request = m::DeleteTopicsRequest {
        topic_names: vec![Text::from(topic)],
        timeout_ms: 10_000,
        ..Default::default()
    };
    assert_eq!(wire.call(&request, 3).await.responses[0].error_code, 0);
}

/// Proves: what `retention.ms` and `retention.bytes` do not keep goes, and what they keep stays; a fetch below the log
/// start is out of range; deletes and retention give the space back; all of it is as before after a restart.
fn records_go_and_space_comes_back(rewrite: bool) {
    run(async move {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(small(folder.path(), rewrite)).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        for topic in ["kept", "aged", "sized", "deleted"] {
            wire.create_topic(topic, 1).await;
            alter(&mut wire, topic, "retention.ms", "-1").await;
        }
        let now = 1_700_000_000_000;
        assert_eq!(wire.produce("kept", 0, &["one", "two"]).await, (0, 0));
        for _ in 0..10 {
            for topic in ["aged", "sized", "deleted"] {
                fill(&mut wire, topic, 5, now).await;
            }
        }
        let full = bytes(folder.path());
        assert!(full > 14 << 20, "{full} bytes");
        assert_eq!(earliest(&mut wire, "aged").await, 0, "nothing goes without a limit");
        alter(&mut wire, "aged", "retention.ms", "1000").await;
        alter(&mut wire, "sized", "retention.bytes", "500000").await;
        delete(&mut wire, "deleted").await;
        until("the log starts move", async || {
            earliest(&mut wire, "aged").await == 50 && earliest(&mut wire, "sized").await == 45
        })
        .await;
        assert_eq!(wire.fetch("aged", 0, 0, 0).await.error, OFFSET_OUT_OF_RANGE);
        assert_eq!(wire.fetch("aged", 0, 50, 0).await.error, 0);
        assert_eq!(wire.fetch("sized", 0, 44, 0).await.error, OFFSET_OUT_OF_RANGE);
        assert_eq!(wire.fetch("sized", 0, 45, 0).await.values.len(), 5);
        // Snapshots are written as the log grows; only what two of them contain may go.
        alter(&mut wire, "kept", "retention.bytes", "-1").await;
        until("space comes back", async || {
            fill(&mut wire, "sized", 2, now).await;
            bytes(folder.path()) < full / 2
        })
        .await;
        let kept = ["one", "two"].map(str::to_owned);
        assert_eq!(wire.fetch("kept", 0, 0, 0).await.values, kept);
        let start = earliest(&mut wire, "sized").await;
        broker.shutdown().await;
        let broker = Broker::start(small(folder.path(), rewrite)).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        assert_eq!(wire.fetch("kept", 0, 0, 0).await.values, kept);
        assert_eq!(earliest(&mut wire, "aged").await, 50);
        assert!(earliest(&mut wire, "sized").await >= start);
        assert_eq!(wire.fetch("deleted", 0, 0, 0).await.error, 3);
        broker.shutdown().await;
    });
}

#[test]
fn with_whole_files_alone() {
    records_go_and_space_comes_back(false);
}

#[test]
fn with_rewriting() {
    records_go_and_space_comes_back(true);
}
