//! What several tests ask: a broker on a simulated disk, transactions of protocol v1, offsets of a group.

use std::sync::Arc;

use ottla_broker::{Broker, Config};
use ottla_env::clock::OsClock;
use ottla_env::disk::Disk;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::wire::Wire;

/// A producer id and its epoch.
pub(crate) type Pair = m::InitProducerIdResponse;

/// Starts a broker on that disk, with small files.
pub(crate) async fn start(disk: Arc<dyn Disk>) -> Broker {
    let config = Config { listen: "127.0.0.1:0".to_owned(), log_file_bytes: 1 << 20, ..Config::default() };
    Broker::start_on(config, disk, Arc::new(OsClock)).await.expect("it starts")
}

/// For a new producer id, transactional or not.
pub(crate) fn init(id: Option<&str>) -> m::InitProducerIdRequest {
    m::InitProducerIdRequest {
        transactional_id: id.map(Text::from),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    }
}

/// For adding partitions of topic `t` to a transaction.
pub(crate) fn add(id: &str, pair: &Pair, partitions: Vec<i32>) -> m::AddPartitionsToTxnRequest {
    m::AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: id.into(),
        v3_and_below_producer_id: pair.producer_id,
        v3_and_below_producer_epoch: pair.producer_epoch,
        v3_and_below_topics: vec![m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
            name: "t".into(),
            partitions,
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// For ending a transaction.
pub(crate) fn end(id: &str, pair: &Pair, committed: bool) -> m::EndTxnRequest {
    m::EndTxnRequest {
        transactional_id: id.into(),
        producer_id: pair.producer_id,
        producer_epoch: pair.producer_epoch,
        committed,
        ..Default::default()
    }
}

impl Wire {
    /// A new producer id.
    pub(crate) async fn init(&mut self, id: Option<&str>) -> Pair {
        let pair = self.call(&init(id), 3).await;
        assert_eq!(pair.error_code, 0);
        pair
    }

    /// Adds partitions of topic `t` to a transaction; gives the error of the last one.
    pub(crate) async fn add(&mut self, id: &str, pair: &Pair, partitions: Vec<i32>) -> i16 {
        let added = self.call(&add(id, pair, partitions), 3).await;
        let results = &added.results_by_topic_v3_and_below[0].results_by_partition;
        results.last().expect("an answer for each").partition_error_code
    }

    /// A transaction with one partition of topic `t`.
    pub(crate) async fn begin(&mut self, id: &str, partition: i32) -> Pair {
        let pair = self.init(Some(id)).await;
        assert_eq!(self.add(id, &pair, vec![partition]).await, 0);
        pair
    }

    /// Commits a transaction; gives the error.
    pub(crate) async fn commit(&mut self, id: &str, pair: &Pair) -> i16 {
        self.call(&end(id, pair, true), 3).await.error_code
    }

    /// Commits an offset of partition 0 of topic `t` for a group without members; gives the error.
    pub(crate) async fn commit_offset(&mut self, group: &str, offset: i64) -> i16 {
        use m::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
        let partition = OffsetCommitRequestPartition {
            partition_index: 0,
            committed_offset: offset,
            ..Default::default()
        };
        let topic =
            OffsetCommitRequestTopic { name: "t".into(), partitions: vec![partition], ..Default::default() };
        let request = m::OffsetCommitRequest {
            group_id: group.into(),
            generation_id_or_member_epoch: -1,
            topics: vec![topic],
            ..Default::default()
        };
        self.call(&request, 8).await.topics[0].partitions[0].error_code
    }
}
