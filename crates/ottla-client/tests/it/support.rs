//! A broker in this process, with a proxy in front of it that may be told to fail.

use std::time::Duration;

use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_client::{ClientSettings, Connection, Versions};
use ottla_env::spawn;
use ottla_protocol::batch::BatchIter;
use ottla_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use ottla_protocol::messages::update_features_request::FeatureUpdateKey;
use ottla_protocol::messages::{FetchRequest, UpdateFeaturesRequest};
use ottla_protocol::types::Text;

use crate::proxy::Proxy;

/// Runs a test on a runtime of its own.
pub(crate) fn run<F: Future>(test: F) -> F::Output {
    spawn::runtime(2).expect("a runtime").block_on(test)
}

/// Settings that try again soon.
pub(crate) fn client(address: &str) -> ClientSettings {
    let pause = Duration::from_millis(10);
    ClientSettings::new(address)
        .expect("an address")
        .retry_backoff(pause)
        .retry_backoff_max(pause)
        .reconnect_backoff(pause)
        .reconnect_backoff_max(pause)
}

/// A broker that names the proxy as its address.
pub(crate) struct Cluster {
    pub(crate) proxy: Proxy,
    /// The broker's own address, past the proxy (only as far as metadata is not used).
    pub(crate) direct: String,
    broker: Broker,
    _folder: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn start(seed: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (address, listener) = Proxy::bind().await;
        let config = Config {
            listen: "127.0.0.1:0".to_owned(),
            advertised_listener: address,
            dir: folder.path().display().to_string(),
            log_file_bytes: 4 << 20,
            ..Config::default()
        };
        let broker = Broker::start(config).await.expect("started");
        let direct = broker.local_addr().to_string();
        let proxy = Proxy::forward(listener, direct.clone(), seed);
        Self { proxy, direct, broker, _folder: folder }
    }

    /// Sets the protocol that transactions speak.
    pub(crate) async fn finalize_transaction_version(&self, level: i16) {
        let settings = std::sync::Arc::new(client(&self.direct));
        let connection = Connection::connect(&self.direct, settings).await.expect("connected");
        let update = FeatureUpdateKey {
            feature: Text::from_static("transaction.version"),
            max_version_level: level,
            upgrade_type: if level < 2 { 2 } else { 1 },
            ..FeatureUpdateKey::default()
        };
        let request = UpdateFeaturesRequest { feature_updates: vec![update], ..Default::default() };
        let answer = connection.call(&request, Versions::new(1, 2)).await.expect("answered");
        assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
    }

    /// Offset, epoch, sequence and length of each batch of a partition, for messages.
    pub(crate) async fn batches(&self, topic: &str, partition: i32) -> String {
        let settings = std::sync::Arc::new(client(&self.direct));
        let connection = Connection::connect(&self.direct, settings).await.expect("connected");
        let partition = FetchPartition { partition, partition_max_bytes: 1 << 24, ..Default::default() };
        let topic = FetchTopic { topic: topic.into(), partitions: vec![partition], ..Default::default() };
        let request =
            FetchRequest { max_bytes: 1 << 24, max_wait_ms: 100, topics: vec![topic], ..Default::default() };
        let answer = connection.call(&request, Versions::new(12, 12)).await.expect("answered");
        let records = answer.responses[0].partitions[0].records.as_ref().expect("records").to_bytes();
        let batches = BatchIter::new(records).map(|batch| {
            let header = batch.expect("a batch").header;
            let (epoch, sequence) = (header.producer_epoch, header.base_sequence);
            format!("{}: {epoch}/{sequence}+{}", header.base_offset, header.records_count)
        });
        batches.collect::<Vec<_>>().join(", ")
    }

    pub(crate) async fn stop(self) {
        self.broker.shutdown().await;
    }
}
