//! Tests of the coordinator through the whole shard: scenarios of eos-semantics section 7 by their numbers, late
//! messages (section 8), and random interleavings against a naive model.
//!
//! [`Broker`] is a shard with its log kept beside it, so that it can be restarted at any point: by replaying
//! everything, or from a snapshot and what follows it.

use bytes::Bytes;
use ottla_protocol::batch::{BatchBuilder, Producer};
use ottla_protocol::compression::Codec;
use ottla_protocol::entry::Entry;
use ottla_protocol::messages as m;
use ottla_protocol::record::{self, NewRecord};
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use super::state::{Pair, State, Transaction};
use crate::command::{
    CheckedBatch, Command, CommandBody, ConnectionId, Context, ProduceCommand, ProducePartition,
    ProduceTopic, Token,
};
use crate::config::CoreConfig;
use crate::decision::{Decision, Position, Reply, ShardTime};
use crate::shard::{Restore, ShardState};

mod late;
mod model;
mod scenarios;
mod tables;

/// Records, their partition and what ended them: what a read_committed consumer sees.
pub(crate) type Visible = Vec<String>;

/// A decided group of entries, as the log keeps it.
struct Group {
    entries: Vec<Entry>,
    position: Position,
    time: ShardTime,
}

/// A shard and its log.
pub(crate) struct Broker {
    pub(crate) state: ShardState,
    pub(crate) now: i64,
    config: CoreConfig,
    log: Vec<Group>,
    epoch: i32,
    token: u64,
    /// A snapshot, and how much of the log it contains.
    snapshot: Option<(Vec<Vec<u8>>, usize)>,
    /// Connection that the helpers below use.
    pub(crate) connection: u64,
    /// Whether what looked late comes again, since its sender was found to be there.
    pub(crate) is_alive: bool,
}

impl Broker {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut CoreConfig)) -> Self {
        let mut config = CoreConfig { num_partitions: 3, ..CoreConfig::default() };
        change(&mut config);
        let mut broker = Self {
            state: ShardState::new(config.clone()),
            now: 1_000_000,
            config,
            log: Vec::new(),
            epoch: 1,
            token: 0,
            snapshot: None,
            connection: 1,
            is_alive: false,
        };
        broker.state.begin_epoch(1, ShardTime(broker.now));
        let topic_ids = [Uuid([1; 16]), Uuid([2; 16])];
        broker.run(0, CommandBody::Bootstrap { cluster_id: Uuid([9; 16]), topic_ids });
        broker
    }

    /// Runs one command and keeps what it wrote.
    pub(crate) fn run(&mut self, version: i16, body: CommandBody) -> Decision {
        self.token += 1;
        let context = Context {
            token: Token(self.token),
            connection: ConnectionId(self.connection),
            version,
            is_alive: self.is_alive,
            ..Context::default()
        };
        let before = self.state.position();
        let decision = self.state.step(Command { context, body }, ShardTime(self.now));
        let position = self.state.position();
        assert_eq!(
            position.0 > before.0,
            !decision.entries.is_empty(),
            "a position per decision with entries"
        );
        assert!(
            decision.answers.iter().all(|answer| answer.rests_on <= position),
            "answers rest on the past"
        );
        if !decision.entries.is_empty() {
            self.log.push(Group { entries: decision.entries.clone(), position, time: ShardTime(self.now) });
        }
        decision
    }

    /// The one answer of a command.
    pub(crate) fn ask(&mut self, version: i16, body: CommandBody) -> Reply {
        let token = Token(self.token + 1);
        let mut decision = self.run(version, body);
        assert_eq!(decision.answers.len(), 1, "one answer");
        let answer = decision.answers.remove(0);
        assert_eq!(answer.token, token);
        self.drop_late(answer.reply)
    }

    /// The peer of a late request has always closed its connection.
    fn drop_late(&mut self, reply: Reply) -> Reply {
        match reply {
            Reply::Late(reason) => {
                self.state.late_request_dropped();
                Reply::Close(reason)
            }
            reply => reply,
        }
    }

    /// Loads the state again from the whole log.
    pub(crate) fn restart(&mut self) {
        self.load(ShardState::new(self.config.clone()), 0);
    }

    /// Takes a snapshot for [`Broker::restart_from_snapshot`].
    pub(crate) fn take_snapshot(&mut self) {
        self.snapshot = Some((self.state.snapshot().chunks().collect(), self.log.len()));
    }

    /// Loads the state again from the last snapshot (or a fresh one) and the log behind it.
    pub(crate) fn restart_from_snapshot(&mut self) {
        if self.snapshot.is_none() {
            self.take_snapshot();
        }
        let (chunks, contained) = self.snapshot.as_ref().expect("just taken");
        let mut restore = Restore::new(self.config.clone());
        for chunk in chunks {
            restore.feed(chunk).expect("our own snapshot");
        }
        let state = restore.finish().expect("our own snapshot");
        self.load(state, *contained);
    }

    fn load(&mut self, mut state: ShardState, from: usize) {
        for group in &self.log[from..] {
            state.replay(&group.entries, group.position, group.time).expect("our own log");
        }
        // Not the header: it names the epoch, which begins below.
        let (lived, loaded) = (all_chunks(&self.state), all_chunks(&state));
        assert_eq!(lived.len(), loaded.len());
        for (lived, loaded) in lived.iter().zip(&loaded).skip(1) {
            assert!(lived == loaded, "section {}: what is loaded is not what was live", lived[0]);
        }
        self.epoch += 1;
        state.begin_epoch(self.epoch, ShardTime(self.now));
        self.state = state;
    }

    /// Lets time pass and fires everything that is due on the way.
    pub(crate) fn pass(&mut self, ms: i64) {
        let until = self.now + ms;
        let mut fired = 0;
        while let Some(at) = self.state.next_deadline().filter(|at| at.0 <= until) {
            self.now = self.now.max(at.0);
            self.run(0, CommandBody::Tick);
            fired += 1;
            assert!(fired < 100_000, "ticks make progress");
        }
        self.now = until;
    }

    pub(crate) fn topic(&mut self, name: &str) -> Uuid {
        self.run(0, CommandBody::AutoCreateTopics(vec![Text::from(name)]));
        self.state.topics.by_name(name).expect("just created").id
    }

    pub(crate) fn delete_topic(&mut self, name: &str) {
        let request = m::DeleteTopicsRequest { topic_names: vec![Text::from(name)], ..Default::default() };
        match self.ask(5, CommandBody::DeleteTopics(request)) {
            Reply::DeleteTopics(response) => assert_eq!(response.responses[0].error_code, 0),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn id(&self, id: &str) -> &Transaction {
        self.state.transactions.get(id).expect("the id exists")
    }

    pub(crate) fn state_of(&self, id: &str) -> State {
        self.id(id).state
    }

    /// InitProducerId 4: code and pair.
    pub(crate) fn init(&mut self, id: &str, expected: Option<Pair>) -> (i16, Pair) {
        self.init_with(4, id, expected, 60_000)
    }

    pub(crate) fn init_with(
        &mut self,
        version: i16,
        id: &str,
        expected: Option<Pair>,
        timeout_ms: i32,
    ) -> (i16, Pair) {
        let pair = expected.unwrap_or(Pair::NONE);
        let request = m::InitProducerIdRequest {
            transactional_id: Some(Text::from(id)),
            transaction_timeout_ms: timeout_ms,
            producer_id: pair.producer_id,
            producer_epoch: pair.producer_epoch,
            ..Default::default()
        };
        match self.ask(version, CommandBody::InitProducerId(request)) {
            Reply::InitProducerId(response) => (
                response.error_code,
                Pair { producer_id: response.producer_id, producer_epoch: response.producer_epoch },
            ),
            Reply::Close(_) => (CLOSED, Pair::NONE),
            other => panic!("{other:?}"),
        }
    }

    /// AddPartitionsToTxn 3 of one partition.
    pub(crate) fn add(&mut self, id: &str, pair: Pair, topic: &str, partition: i32) -> i16 {
        self.add_with(3, id, pair, topic, partition)
    }

    pub(crate) fn add_with(
        &mut self,
        version: i16,
        id: &str,
        pair: Pair,
        topic: &str,
        partition: i32,
    ) -> i16 {
        let request = m::AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: Text::from(id),
            v3_and_below_producer_id: pair.producer_id,
            v3_and_below_producer_epoch: pair.producer_epoch,
            v3_and_below_topics: vec![m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
                name: Text::from(topic),
                partitions: vec![partition],
                ..Default::default()
            }],
            ..Default::default()
        };
        match self.ask(version, CommandBody::AddPartitionsToTxn(request)) {
            Reply::AddPartitionsToTxn(response) => {
                response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            }
            Reply::Close(_) => CLOSED,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn add_offsets(&mut self, id: &str, pair: Pair, group: &str) -> i16 {
        let request = m::AddOffsetsToTxnRequest {
            transactional_id: Text::from(id),
            producer_id: pair.producer_id,
            producer_epoch: pair.producer_epoch,
            group_id: Text::from(group),
            ..Default::default()
        };
        match self.ask(3, CommandBody::AddOffsetsToTxn(request)) {
            Reply::AddOffsetsToTxn(response) => response.error_code,
            Reply::Close(_) => CLOSED,
            other => panic!("{other:?}"),
        }
    }

    /// EndTxn: code and pair.
    pub(crate) fn end(&mut self, version: i16, id: &str, pair: Pair, commit: bool) -> (i16, Pair) {
        let request = m::EndTxnRequest {
            transactional_id: Text::from(id),
            producer_id: pair.producer_id,
            producer_epoch: pair.producer_epoch,
            committed: commit,
            ..Default::default()
        };
        match self.ask(version, CommandBody::EndTxn(request)) {
            Reply::EndTxn(response) => (
                response.error_code,
                Pair { producer_id: response.producer_id, producer_epoch: response.producer_epoch },
            ),
            Reply::Close(_) => (CLOSED, Pair::NONE),
            other => panic!("{other:?}"),
        }
    }

    /// A transactional Produce of one record: its code.
    pub(crate) fn produce(&mut self, version: i16, id: &str, pair: Pair, to: &To<'_>, value: &str) -> i16 {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.set_producer(Producer {
            producer_id: pair.producer_id,
            producer_epoch: pair.producer_epoch,
            base_sequence: to.sequence,
            transactional: true,
        });
        let record =
            NewRecord { timestamp: self.now, key: None, value: Some(value.as_bytes()), headers: &[] };
        builder.append(&record).expect("small");
        let (header, tail) = builder.build_parts();
        let topic_id = self.state.topics.by_name(to.topic).map_or(Uuid::ZERO, |topic| topic.id);
        let request = ProduceCommand {
            transactional_id: Some(Text::from(id)),
            acks: -1,
            topics: vec![ProduceTopic {
                name: Text::from(to.topic),
                topic_id,
                partitions: vec![ProducePartition {
                    partition: to.partition,
                    batch: Ok(CheckedBatch { header, tail }),
                }],
            }],
        };
        match self.ask(version, CommandBody::Produce(request)) {
            Reply::Produce(response) => response.responses[0].partition_responses[0].error_code,
            Reply::Close(_) => CLOSED,
            other => panic!("{other:?}"),
        }
    }

    /// TxnOffsetCommit of partition 0.
    pub(crate) fn txn_commit(&mut self, version: i16, id: &str, pair: Pair, at: &At<'_>) -> i16 {
        let topic_id = self.state.topics.by_name(at.topic).map_or(Uuid([0xff; 16]), |topic| topic.id);
        let request = m::TxnOffsetCommitRequest {
            transactional_id: Text::from(id),
            group_id: Text::from(at.group),
            producer_id: pair.producer_id,
            producer_epoch: pair.producer_epoch,
            generation_id_or_member_epoch: at.generation,
            topics: vec![m::txn_offset_commit_request::TxnOffsetCommitRequestTopic {
                name: Text::from(at.topic),
                topic_id,
                partitions: vec![m::txn_offset_commit_request::TxnOffsetCommitRequestPartition {
                    partition_index: 0,
                    committed_offset: at.offset,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        match self.ask(version, CommandBody::TxnOffsetCommit(request)) {
            Reply::TxnOffsetCommit(response) => response.topics[0].partitions[0].error_code,
            Reply::Close(_) => CLOSED,
            other => panic!("{other:?}"),
        }
    }

    /// OffsetFetch 8 of partition 0: offset and code.
    pub(crate) fn offset(&mut self, group: &str, topic: &str, require_stable: bool) -> (i64, i16) {
        let request = m::OffsetFetchRequest {
            require_stable,
            groups: vec![m::offset_fetch_request::OffsetFetchRequestGroup {
                group_id: Text::from(group),
                topics: Some(vec![m::offset_fetch_request::OffsetFetchRequestTopics {
                    name: Text::from(topic),
                    partition_indexes: vec![0],
                    ..Default::default()
                }]),
                ..Default::default()
            }],
            ..Default::default()
        };
        match self.ask(8, CommandBody::OffsetFetch(request)) {
            Reply::OffsetFetch(response) => {
                let partition = &response.groups[0].topics[0].partitions[0];
                (partition.committed_offset, partition.error_code)
            }
            other => panic!("{other:?}"),
        }
    }

    /// WriteTxnMarkers of one partition, as an operator sends it.
    pub(crate) fn write_marker(
        &mut self,
        pair: Pair,
        topic: &str,
        commit: bool,
        coordinator_epoch: i32,
        transaction_version: i8,
    ) -> i16 {
        let request = m::WriteTxnMarkersRequest {
            markers: vec![m::write_txn_markers_request::WritableTxnMarker {
                producer_id: pair.producer_id,
                producer_epoch: pair.producer_epoch,
                transaction_result: commit,
                topics: vec![m::write_txn_markers_request::WritableTxnMarkerTopic {
                    name: Text::from(topic),
                    partition_indexes: vec![0],
                    ..Default::default()
                }],
                coordinator_epoch,
                transaction_version,
                ..Default::default()
            }],
            ..Default::default()
        };
        match self.ask(2, CommandBody::WriteTxnMarkers(request)) {
            Reply::WriteTxnMarkers(response) => response.markers[0].topics[0].partitions[0].error_code,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn partition(&self, topic: &str, partition: i32) -> TopicIdPartition {
        TopicIdPartition { topic_id: self.state.topics.by_name(topic).expect("exists").id, partition }
    }

    /// Last stable offset and high watermark.
    pub(crate) fn bounds(&self, topic: &str, partition: i32) -> (i64, i64) {
        let bounds = self.state.bounds(self.partition(topic, partition)).expect("exists");
        (bounds.last_stable_offset, bounds.high_watermark)
    }

    fn entries(&self, partition: TopicIdPartition) -> impl Iterator<Item = &Entry> {
        self.log.iter().flat_map(|group| &group.entries).filter(move |entry| entry.partition == partition)
    }

    /// Markers of a partition: commit?, producer epoch.
    pub(crate) fn markers(&self, topic: &str, partition: i32) -> Vec<(bool, i16)> {
        self.entries(self.partition(topic, partition))
            .filter(|entry| entry.header.is_control())
            .map(|entry| {
                let marker = ottla_protocol::batch::parse_marker(&entry.header, &entry.tail);
                (marker.expect("sound").expect("a marker").commit, entry.header.producer_epoch)
            })
            .collect()
    }

    /// The values that a read_committed consumer sees, found from the markers alone.
    pub(crate) fn visible(&self, topic: &str, partition: i32) -> Visible {
        let (stable, _) = self.bounds(topic, partition);
        let committed = self.committed(topic, partition).into_iter();
        committed.filter(|(offset, _)| *offset < stable).map(|(_, value)| value).collect()
    }

    /// Offsets and values that were committed, also those that still wait behind an open transaction.
    pub(crate) fn committed(&self, topic: &str, partition: i32) -> Vec<(i64, String)> {
        let mut committed: Vec<(i64, String)> = Vec::new();
        let mut open: std::collections::BTreeMap<i64, Vec<(i64, String)>> = Default::default();
        for entry in self.entries(self.partition(topic, partition)) {
            let header = &entry.header;
            if header.is_control() {
                let marker = ottla_protocol::batch::parse_marker(header, &entry.tail).expect("sound");
                let records = open.remove(&header.producer_id).unwrap_or_default();
                if marker.expect("a marker").commit {
                    committed.extend(records);
                }
                continue;
            }
            let records = record::records_of(header, &entry.tail, 0).expect("plain").map(|record| {
                let record = record.expect("sound");
                let value = record.value.unwrap_or_else(Bytes::new);
                (record.offset, String::from_utf8(value.to_vec()).expect("text"))
            });
            open.entry(header.producer_id).or_default().extend(records);
        }
        committed.sort();
        committed
    }
}

/// What the helpers say for a connection that was closed.
pub(crate) const CLOSED: i16 = 999;

/// Where a record goes.
pub(crate) struct To<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: i32,
    pub(crate) sequence: i32,
}

/// The topic's partition 0 at this sequence.
pub(crate) fn to(topic: &str, sequence: i32) -> To<'_> {
    To { topic, partition: 0, sequence }
}

/// What an offset is committed for.
pub(crate) struct At<'a> {
    pub(crate) group: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) offset: i64,
    pub(crate) generation: i32,
}

pub(crate) fn at<'a>(group: &'a str, topic: &'a str, offset: i64) -> At<'a> {
    At { group, topic, offset, generation: -1 }
}

fn all_chunks(state: &ShardState) -> Vec<Vec<u8>> {
    state.snapshot().chunks().collect()
}

impl Pair {
    /// The pair with another epoch.
    fn at(self, producer_epoch: i16) -> Self {
        Self { producer_epoch, ..self }
    }
}
