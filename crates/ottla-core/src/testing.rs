//! A shard with its log beside it, for tests: asks, keeps what was decided, and can load it again.

use ottla_protocol::batch::{BatchBuilder, Producer};
use ottla_protocol::compression::Codec;
use ottla_protocol::entry::Entry;
use ottla_protocol::messages as m;
use ottla_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use ottla_protocol::messages::produce_response::PartitionProduceResponse;
use ottla_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use ottla_protocol::record::NewRecord;
use ottla_protocol::types::{NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Text, TopicIdPartition, Uuid};

use crate::command::{
    CheckedBatch, Command, CommandBody, ConnectionId, Context, ProduceCommand, ProducePartition,
    ProduceTopic, Token,
};
use crate::config::CoreConfig;
use crate::decision::{Answer, Bounds, Decision, Position, Reply, ShardTime};
use crate::shard::{Restore, ShardState};

/// Where time starts in tests.
pub(crate) const START_MS: i64 = 1_700_000_000_000;

/// Entries of one decision, as the log keeps them.
pub(crate) struct Logged {
    pub(crate) entries: Vec<Entry>,
    pub(crate) position: Position,
    pub(crate) time: ShardTime,
}

/// A shard and everything it ever decided.
pub(crate) struct Shard {
    pub(crate) state: ShardState,
    pub(crate) config: CoreConfig,
    pub(crate) log: Vec<Logged>,
    pub(crate) now_ms: i64,
    pub(crate) epoch: i32,
    /// The connection that asks next.
    pub(crate) connection: u64,
    pub(crate) client_id: Text,
    pub(crate) token: u64,
}

/// Who writes a batch, from which sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    pub(crate) sequence: i32,
    pub(crate) transactional: bool,
}

/// A batch of an idempotent producer.
pub(crate) fn plain(producer_id: i64, producer_epoch: i16, sequence: i32) -> From {
    From { producer_id, producer_epoch, sequence, transactional: false }
}

/// A batch of a transaction.
pub(crate) fn transactional(producer_id: i64, producer_epoch: i16, sequence: i32) -> From {
    From { producer_id, producer_epoch, sequence, transactional: true }
}

/// A batch without producer id.
pub(crate) const NOBODY: From = From {
    producer_id: NO_PRODUCER_ID,
    producer_epoch: NO_PRODUCER_EPOCH,
    sequence: NO_SEQUENCE,
    transactional: false,
};

/// A batch as the connection hands it on.
pub(crate) fn batch(from: From, records: i32) -> CheckedBatch {
    let mut builder = BatchBuilder::new(Codec::None);
    builder.set_producer(Producer {
        producer_id: from.producer_id,
        producer_epoch: from.producer_epoch,
        base_sequence: from.sequence,
        transactional: from.transactional,
    });
    for index in 0..records {
        let record = NewRecord {
            timestamp: START_MS - 5 + i64::from(index),
            key: None,
            value: Some(b"x"),
            headers: &[],
        };
        builder.append(&record).expect("test batches are small");
    }
    let (header, tail) = builder.build_parts();
    CheckedBatch { header, tail }
}

/// Produce of batches to partitions of one topic.
pub(crate) fn produce_to(
    topic: (&str, Uuid),
    transactional_id: Option<&str>,
    batches: Vec<(i32, CheckedBatch)>,
) -> ProduceCommand {
    let partitions = batches
        .into_iter()
        .map(|(partition, batch)| ProducePartition { partition, batch: Ok(batch) })
        .collect();
    ProduceCommand {
        transactional_id: transactional_id.map(Text::from),
        acks: -1,
        topics: vec![ProduceTopic { name: topic.0.into(), topic_id: topic.1, partitions }],
    }
}

impl Shard {
    /// A cluster that was just made, with the topic "t" of three partitions.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// As `new`, with other settings.
    pub(crate) fn with(change: impl FnOnce(&mut CoreConfig)) -> Self {
        let mut config = CoreConfig { hash_seed: 7, ..CoreConfig::default() };
        change(&mut config);
        let mut shard = Self {
            state: ShardState::new(config.clone()),
            config,
            log: Vec::new(),
            now_ms: START_MS,
            epoch: 1,
            connection: 1,
            client_id: "test".into(),
            token: 0,
        };
        shard.state.begin_epoch(1, ShardTime(START_MS));
        let topic_ids = [Uuid([1; 16]), Uuid([2; 16])];
        shard.ask(0, CommandBody::Bootstrap { cluster_id: Uuid([9; 16]), topic_ids });
        shard.create("t", 3, &[]);
        shard
    }

    /// One command; what it wrote is kept.
    pub(crate) fn run(&mut self, version: i16, body: CommandBody) -> Decision {
        self.token += 1;
        let context = Context {
            token: Token(self.token),
            connection: ConnectionId(self.connection),
            client_id: self.client_id.clone(),
            client_host: "host".into(),
            version,
            is_alive: false,
        };
        let time = ShardTime(self.now_ms);
        let before = self.state.position();
        let decision = self.state.step(Command { context, body }, time);
        let position = self.state.position();
        assert_eq!(
            position.0 - before.0,
            u64::from(!decision.entries.is_empty()),
            "one position per group of entries"
        );
        assert!(
            decision.answers.iter().all(|answer| answer.rests_on <= position),
            "answers rest on what is decided"
        );
        if !decision.entries.is_empty() {
            self.log.push(Logged { entries: decision.entries.clone(), position, time });
        }
        decision
    }

    /// The answer to a command that has one.
    pub(crate) fn answer(&mut self, version: i16, body: CommandBody) -> Answer {
        let mut decision = self.run(version, body);
        assert_eq!(decision.answers.len(), 1, "a command is answered once");
        let answer = decision.answers.remove(0);
        assert_eq!(answer.token, Token(self.token), "the answer is for the command");
        answer
    }

    /// As `answer`, the reply alone.
    pub(crate) fn ask(&mut self, version: i16, body: CommandBody) -> Reply {
        self.answer(version, body).reply
    }

    /// Creates a topic and gives its id.
    pub(crate) fn create(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Uuid {
        let configs = configs
            .iter()
            .map(|(name, value)| CreatableTopicConfig {
                name: (*name).into(),
                value: Some((*value).into()),
                ..Default::default()
            })
            .collect();
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: -1,
            configs,
            ..Default::default()
        };
        let request = m::CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let Reply::CreateTopics(response) = self.ask(7, CommandBody::CreateTopics(request)) else {
            panic!("CreateTopics is answered");
        };
        assert_eq!(response.topics[0].error_code, 0, "{:?}", response.topics[0].error_message);
        response.topics[0].topic_id
    }

    /// Id of a topic.
    pub(crate) fn topic_id(&self, name: &str) -> Uuid {
        self.state.topics.by_name(name).expect("the topic exists").id
    }

    /// A partition of topic "t".
    pub(crate) fn partition(&self, partition: i32) -> TopicIdPartition {
        TopicIdPartition { topic_id: self.topic_id("t"), partition }
    }

    /// Bounds of a partition of topic "t".
    pub(crate) fn bounds(&self, partition: i32) -> Bounds {
        self.state.bounds(self.partition(partition)).expect("the partition exists")
    }

    /// Log start, last stable offset and high watermark of a partition of topic "t".
    pub(crate) fn offsets(&self, partition: i32) -> (i64, i64, i64) {
        let bounds = self.bounds(partition);
        (bounds.log_start_offset, bounds.last_stable_offset, bounds.high_watermark)
    }

    /// Produces batches to topic "t" and gives the answers of the partitions.
    pub(crate) fn produce(
        &mut self,
        version: i16,
        transactional_id: Option<&str>,
        batches: Vec<(i32, CheckedBatch)>,
    ) -> Vec<PartitionProduceResponse> {
        let command = produce_to(("t", self.topic_id("t")), transactional_id, batches);
        let Reply::Produce(mut response) = self.ask(version, CommandBody::Produce(command)) else {
            panic!("Produce is answered");
        };
        response.responses.remove(0).partition_responses
    }

    /// Produces one batch to partition 0 of topic "t": error code and base offset. Transactional batches go as
    /// transactional id "x".
    pub(crate) fn send(&mut self, version: i16, from: From, records: i32) -> (i16, i64) {
        self.send_to(0, version, from, records)
    }

    /// As `send`, to any partition.
    pub(crate) fn send_to(&mut self, partition: i32, version: i16, from: From, records: i32) -> (i16, i64) {
        let transactional_id = from.transactional.then_some("x");
        let response =
            self.produce(version, transactional_id, vec![(partition, batch(from, records))]).remove(0);
        (response.error_code, response.base_offset)
    }

    /// Writes a marker to a partition of topic "t" as a coordinator does, and gives the code.
    pub(crate) fn marker(
        &mut self,
        partition: i32,
        (producer_id, producer_epoch): (i64, i16),
        commit: bool,
        coordinator_epoch: i32,
        transaction_version: i8,
    ) -> i16 {
        let topics = vec![WritableTxnMarkerTopic {
            name: "t".into(),
            partition_indexes: vec![partition],
            ..Default::default()
        }];
        let marker = WritableTxnMarker {
            producer_id,
            producer_epoch,
            transaction_result: commit,
            topics,
            coordinator_epoch,
            transaction_version,
            ..Default::default()
        };
        let request = m::WriteTxnMarkersRequest { markers: vec![marker], ..Default::default() };
        let Reply::WriteTxnMarkers(response) = self.ask(2, CommandBody::WriteTxnMarkers(request)) else {
            panic!("WriteTxnMarkers is answered");
        };
        response.markers[0].topics[0].partitions[0].error_code
    }

    /// InitProducerId of a transactional id without an expected pair.
    pub(crate) fn init(&mut self, transactional_id: &str) -> (i64, i16) {
        let request = m::InitProducerIdRequest {
            transactional_id: Some(transactional_id.into()),
            transaction_timeout_ms: 60_000,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        };
        let Reply::InitProducerId(response) = self.ask(5, CommandBody::InitProducerId(request)) else {
            panic!("InitProducerId is answered");
        };
        assert_eq!(response.error_code, 0);
        (response.producer_id, response.producer_epoch)
    }

    /// AddPartitionsToTxn 3 of a partition of topic "t" by id "x", and gives the code.
    pub(crate) fn add(&mut self, (producer_id, producer_epoch): (i64, i16), partition: i32) -> i16 {
        let topic = m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
            name: "t".into(),
            partitions: vec![partition],
            ..Default::default()
        };
        let request = m::AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: "x".into(),
            v3_and_below_producer_id: producer_id,
            v3_and_below_producer_epoch: producer_epoch,
            v3_and_below_topics: vec![topic],
            ..Default::default()
        };
        let Reply::AddPartitionsToTxn(response) = self.ask(3, CommandBody::AddPartitionsToTxn(request))
        else {
            panic!("AddPartitionsToTxn is answered");
        };
        response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    }

    /// EndTxn of id "x": code and the pair to use next.
    pub(crate) fn end(&mut self, version: i16, pair: (i64, i16), commit: bool) -> (i16, (i64, i16)) {
        let request = m::EndTxnRequest {
            transactional_id: "x".into(),
            producer_id: pair.0,
            producer_epoch: pair.1,
            committed: commit,
            ..Default::default()
        };
        let Reply::EndTxn(response) = self.ask(version, CommandBody::EndTxn(request)) else {
            panic!("EndTxn is answered");
        };
        (response.error_code, (response.producer_id, response.producer_epoch))
    }

    /// The bytes of a snapshot taken now.
    pub(crate) fn snapshot(&self) -> Vec<Vec<u8>> {
        self.state.snapshot().chunks().collect()
    }

    /// A state loaded from a snapshot of the first `decisions` decisions (none for 0) and the log behind it.
    pub(crate) fn loaded(&self, decisions: usize) -> ShardState {
        let mut state = ShardState::new(self.config.clone());
        let replay = |state: &mut ShardState, logged: &Logged| {
            state.replay(&logged.entries, logged.position, logged.time).expect("the log continues the state");
        };
        for logged in &self.log[..decisions] {
            replay(&mut state, logged);
        }
        if decisions > 0 {
            let mut restore = Restore::new(self.config.clone());
            for chunk in state.snapshot().chunks() {
                restore.feed(&chunk).expect("a snapshot can be restored");
            }
            state = restore.finish().expect("the snapshot is whole");
        }
        for logged in &self.log[decisions..] {
            replay(&mut state, logged);
        }
        state
    }

    /// That the log alone, and snapshots with the log behind them, give the state there is.
    pub(crate) fn assert_loads(&self) {
        let live = self.snapshot();
        for decisions in [0, self.log.len() / 2, self.log.len()] {
            let mut state = self.loaded(decisions);
            state.begin_epoch(self.epoch, ShardTime(self.now_ms));
            assert_eq!(state.position(), self.state.position());
            let loaded: Vec<Vec<u8>> = state.snapshot().chunks().collect();
            assert!(
                loaded == live,
                "a snapshot at {decisions} of {} decisions gives another state",
                self.log.len()
            );
        }
    }

    /// A crash: the state is loaded again, half of it from a snapshot, in a new epoch.
    pub(crate) fn reload(&mut self) {
        self.assert_loads();
        self.epoch += 1;
        self.state = self.loaded(self.log.len() / 2);
        self.state.begin_epoch(self.epoch, ShardTime(self.now_ms));
    }
}
