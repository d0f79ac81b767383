//! What every client does: create, produce, fetch, look up, and find it all again after a restart.

use ottla_broker::Broker;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::wire::{Wire, config, fetch_request, produce_request, run};

/// Proves: what was acknowledged is read back, before and after a restart, with offsets going on.
#[test]
fn produce_fetch_restart() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        let id = wire.create_topic("t", 2).await;
        assert_eq!(wire.produce("t", 1, &["a", "b"]).await, (0, 0));
        assert_eq!(wire.produce("t", 1, &["c"]).await, (0, 2));
        assert_eq!(wire.produce("t", 7, &["x"]).await.0, 3, "no such partition");
        assert_eq!(wire.produce("none", 0, &["x"]).await.0, 3, "no such topic");
        let fetched = wire.fetch("t", 1, 0, 0).await;
        assert_eq!((fetched.values.join(""), fetched.high_watermark), ("abc".to_owned(), 3));
        broker.shutdown().await;
        let files = ottla_env::files::list_folder(folder.path()).expect("listed");
        let is_snapshot = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "snapshot");
        assert!(files.iter().any(is_snapshot), "an orderly stop leaves a snapshot: {files:?}");

        let broker = Broker::start(config(folder.path())).await.expect("it starts again");
        let mut wire = Wire::connect(&broker).await;
        let fetched = wire.fetch("t", 1, 1, 0).await;
        assert!(fetched.values.ends_with(&["b".to_owned(), "c".to_owned()]), "{fetched:?}");
        assert_eq!(wire.produce("t", 1, &["d"]).await, (0, 3));
        let topics = Some(vec![m::metadata_request::MetadataRequestTopic {
            name: Some(Text::from_static("t")),
            ..Default::default()
        }]);
        let metadata = wire.call(&m::MetadataRequest { topics, ..Default::default() }, 12).await;
        assert_eq!((metadata.topics[0].topic_id, metadata.topics[0].partitions.len()), (id, 2));
        broker.shutdown().await;
    });
}

/// Proves: a parked fetch is woken by a produce on another connection, and answered early when a request waits
/// behind it on its own.
#[test]
fn parked_fetches() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let (mut reader, mut writer) = (Wire::connect(&broker).await, Wire::connect(&broker).await);
        writer.create_topic("t", 1).await;
        let parked = reader.send(&fetch_request("t", 0, 0, 60_000), 11).await;
        assert_eq!(writer.produce("t", 0, &["woken"]).await, (0, 0));
        let answer = reader.receive::<m::FetchRequest>(parked, 11).await;
        assert!(
            answer.responses[0].partitions[0].records.as_ref().is_some_and(|records| !records.is_empty())
        );

        let parked = reader.send(&fetch_request("t", 0, 1, 60_000), 11).await;
        let behind = reader.send(&m::MetadataRequest::default(), 12).await;
        let answer = reader.receive::<m::FetchRequest>(parked, 11).await;
        assert_eq!(answer.responses[0].partitions[0].high_watermark, 1);
        reader.receive::<m::MetadataRequest>(behind, 12).await;
        broker.shutdown().await;
    });
}

/// Proves: acks=0 has no answer and does not hold up the next one; pipelined requests are answered in order.
#[test]
fn pipelined_requests() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        wire.send(&produce_request("t", 0, &["silent"], 0), 9).await;
        let mut ids = Vec::new();
        for n in 0..50 {
            ids.push(wire.send(&produce_request("t", 0, &[&n.to_string()], -1), 9).await);
        }
        for (n, id) in ids.into_iter().enumerate() {
            let answer = wire.receive::<m::ProduceRequest>(id, 9).await;
            let partition = &answer.responses[0].partition_responses[0];
            assert_eq!((partition.error_code, partition.base_offset), (0, n as i64 + 1));
        }
        broker.shutdown().await;
    });
}

/// Proves: a second broker on the folder is refused and told the pid of the first.
#[test]
fn one_broker_per_folder() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let second = Broker::start(config(folder.path())).await.err().expect("refused").to_string();
        assert!(second.contains(&ottla_env::process::id().to_string()), "{second}");
        broker.shutdown().await;
    });
}
