//! Snapshots: everything durable of a shard at one position, as chunks of bytes, and the way back.
//!
//! Place in the walk: the owner takes a [`Snapshot`] (reference counts only) and hands it to whoever writes it;
//! [`Snapshot::chunks`] does the encoding there. At start [`Restore`] is fed with the chunks, in order, and the
//! frames behind the snapshot are replayed.
//!
//! A chunk holds whole items of one section and can be read alone: kind (one byte), version (one byte), items to
//! its end; integers big endian, lengths 32 bits. The header comes first and counts what must follow, so that a
//! cut snapshot is never taken for a whole one. The bytes are a function of the durable state: equal states
//! give equal snapshots.
//!
//! Not here: integrity of the bytes (the log's snapshot store sums them), derived indexes, volatile state.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::TopicIdPartition;
use thiserror::Error;

use super::{ShardState, Volatile};
use crate::config::CoreConfig;
use crate::decision::Position;
use crate::partition::PartitionsSnapshot;
use crate::{clean, cluster};

/// Bytes at which a chunk is closed. No single item comes near it.
const CHUNK_BYTES: usize = 1 << 20;

/// Kinds of sections; part of the snapshot's format.
pub(crate) mod section {
    /// Position, epoch and counts.
    pub(crate) const HEADER: u8 = 0;
    /// Cluster id, features, settings, producer ids.
    pub(crate) const CLUSTER: u8 = 1;
    /// Topics.
    pub(crate) const TOPICS: u8 = 2;
    /// Partitions.
    pub(crate) const PARTITIONS: u8 = 3;
    /// Aborted transactions, by partition.
    pub(crate) const ABORTED: u8 = 4;
    /// Producers, by partition.
    pub(crate) const PRODUCERS: u8 = 5;
    /// Settings of groups.
    pub(crate) const GROUP_CONFIGS: u8 = 6;
    /// What partitions know about their cleaning.
    pub(crate) const CLEANED: u8 = 7;
    /// First kind of the transaction coordinator, which has sixteen.
    pub(crate) const TRANSACTIONS: u8 = 16;
    /// First kind of the group coordinator, which has sixteen.
    pub(crate) const GROUPS: u8 = 32;
    /// Behind the last kind.
    pub(crate) const END: u8 = 48;
}

/// Version of the shard's own sections.
const VERSION: u8 = 0;

/// A part of a snapshot: knows how to write itself as chunks.
pub(crate) trait Section: Send + Sync {
    /// The chunks, each made by [`chunked`].
    fn chunks<'a>(&'a self) -> Box<dyn Iterator<Item = Vec<u8>> + 'a>;
}

/// Why a snapshot cannot be taken over.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RestoreError {
    /// A chunk ends inside an item.
    #[error("snapshot section {kind}: cut")]
    Cut {
        /// Kind of the section.
        kind: u8,
    },
    /// A newer version's section.
    #[error("snapshot section {kind} has the unsupported version {version}")]
    Version {
        /// Kind of the section.
        kind: u8,
        /// Version found.
        version: u8,
    },
    /// A kind of section that this version does not know.
    #[error("unknown snapshot section {kind}")]
    Kind {
        /// Kind of the section.
        kind: u8,
    },
    /// Items contradict each other.
    #[error("snapshot section {kind}: {reason}")]
    Inconsistent {
        /// Kind of the section.
        kind: u8,
        /// What is wrong.
        reason: &'static str,
    },
}

/// Everything durable of a shard at one position. Cheap to take; [`Snapshot::chunks`] is where the work is.
pub struct Snapshot {
    position: Position,
    shard_epoch: i32,
    cluster: cluster::ClusterState,
    producer_ids: cluster::ProducerIds,
    topics: cluster::TopicMap,
    partitions: PartitionsSnapshot,
    transactions: Box<dyn Section>,
    groups: Box<dyn Section>,
}

impl Snapshot {
    pub(super) fn of(state: &ShardState) -> Self {
        Self {
            position: state.position,
            shard_epoch: state.shard_epoch,
            cluster: state.cluster.clone(),
            producer_ids: state.producer_ids,
            topics: state.topics.map().clone(),
            partitions: state.partitions.snapshot(),
            transactions: state.transactions.snapshot(),
            groups: state.groups.snapshot(),
        }
    }

    /// The position that the snapshot contains.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The bytes: chunks of about 1 MiB at most, to be fed to [`Restore`] in this order.
    pub fn chunks(&self) -> impl Iterator<Item = Vec<u8>> {
        std::iter::once(self.header())
            .chain(chunked(section::CLUSTER, VERSION, std::iter::once(self), |snapshot, out| {
                out.i64(snapshot.producer_ids.next());
                snapshot.cluster.encode(out);
            }))
            .chain(chunked(
                section::GROUP_CONFIGS,
                VERSION,
                self.cluster.group_configs().iter(),
                cluster::ClusterState::encode_group_config,
            ))
            .chain(chunked(section::TOPICS, VERSION, self.topics.sorted().into_iter(), |topic, out| {
                topic.encode(out);
            }))
            .chain(self.partitions.chunks())
            .chain(self.transactions.chunks())
            .chain(self.groups.chunks())
    }

    /// What the cleaner needs to know of these partitions; those that do not exist are left out. One walk over all
    /// producers, so ask for many at once, on another thread than the owner's. Only for a snapshot whose position is
    /// durable.
    pub fn clean_inputs(
        &self,
        wanted: &BTreeSet<TopicIdPartition>,
    ) -> BTreeMap<TopicIdPartition, clean::Input> {
        self.partitions.clean_inputs(wanted)
    }

    fn header(&self) -> Vec<u8> {
        let mut out = vec![section::HEADER, VERSION];
        out.u64(self.position.0);
        out.i32(self.shard_epoch);
        out.u64(self.topics.len() as u64);
        out.u64(self.partitions.partition_count() as u64);
        out.u64(self.partitions.producer_count() as u64);
        out
    }
}

/// Counts that the header announces.
struct Announced {
    position: Position,
    shard_epoch: i32,
    topics: u64,
    partitions: u64,
    producers: u64,
}

/// Builds a state from the chunks of a snapshot.
pub struct Restore {
    state: ShardState,
    announced: Option<Announced>,
}

impl Restore {
    /// Begins with an empty state.
    pub fn new(config: CoreConfig) -> Self {
        Self { state: ShardState::new(config), announced: None }
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// When the chunk is not what [`Snapshot::chunks`] wrote. The restore is then of no use.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        let [kind, version, items @ ..] = chunk else {
            return Err(RestoreError::Cut { kind: chunk.first().copied().unwrap_or_default() });
        };
        let (kind, version) = (*kind, *version);
        if (kind == section::HEADER) != self.announced.is_none() {
            return Err(RestoreError::Inconsistent { kind, reason: "the header is not the first chunk" });
        }
        let items = Decoder { kind, rest: items };
        match kind {
            section::TRANSACTIONS..section::GROUPS => self.state.transactions.restore(kind, version, items),
            section::GROUPS..section::END => self.state.groups.restore(kind, version, items),
            section::HEADER..=section::CLEANED if version == VERSION => self.feed_own(kind, items),
            section::HEADER..=section::CLEANED => Err(RestoreError::Version { kind, version }),
            _ => Err(RestoreError::Kind { kind }),
        }
    }

    fn feed_own(&mut self, kind: u8, mut items: Decoder<'_>) -> Result<(), RestoreError> {
        let state = &mut self.state;
        if kind == section::HEADER {
            self.announced = Some(Announced {
                position: Position(items.u64()?),
                shard_epoch: items.i32()?,
                topics: items.u64()?,
                partitions: items.u64()?,
                producers: items.u64()?,
            });
            return items.end();
        }
        let announced = self.announced.as_ref().expect("the header was first");
        while !items.is_empty() {
            match kind {
                section::CLUSTER => {
                    state.producer_ids = cluster::ProducerIds::restored(items.i64()?, announced.position);
                    state.cluster.decode(&mut items, announced.position)?;
                }
                section::GROUP_CONFIGS => state.cluster.decode_group_config(&mut items)?,
                section::TOPICS => {
                    let topic = cluster::Topic::decode(&mut items, announced.position)?;
                    state.topics.insert(topic, announced.position);
                }
                section::PARTITIONS => state.partitions.decode_partition(&mut items, announced.position)?,
                section::ABORTED => state.partitions.decode_aborted(&mut items)?,
                section::CLEANED => state.partitions.decode_cleaned(&mut items)?,
                _ => state.partitions.decode_producer(&mut items)?,
            }
        }
        Ok(())
    }

    /// The state, once every chunk was fed. `ShardState::begin_epoch` comes after the replay.
    ///
    /// # Errors
    /// When chunks are missing.
    pub fn finish(self) -> Result<ShardState, RestoreError> {
        let Self { mut state, announced } = self;
        let kind = section::HEADER;
        let announced = announced.ok_or(RestoreError::Inconsistent { kind, reason: "there is no header" })?;
        let counts = [
            (section::TOPICS, announced.topics, state.topics.len()),
            (section::PARTITIONS, announced.partitions, state.partitions.partition_count()),
            (section::PRODUCERS, announced.producers, state.partitions.producer_count()),
        ];
        for (kind, wanted, found) in counts {
            if wanted != found as u64 {
                return Err(RestoreError::Inconsistent { kind, reason: "not as many items as announced" });
            }
        }
        let mut of_topics = state.topics.map().sorted().into_iter().flat_map(|topic| topic.partitions());
        if !of_topics.all(|partition| state.partitions.slot(partition).is_some()) {
            return Err(RestoreError::Inconsistent {
                kind: section::PARTITIONS,
                reason: "a topic misses partitions",
            });
        }
        state.position = announced.position;
        state.shard_epoch = announced.shard_epoch;
        state.topics.set_defaults(&state.config.kept);
        cluster::settings_changed(&mut state);
        state.volatile = Volatile::new(&state.config);
        Ok(state)
    }
}

/// What a chunk of a snapshot is, for people who look at one.
#[derive(Clone, Debug)]
pub struct ChunkFacts {
    /// Kind of its section, a number of the format.
    pub kind: u8,
    /// What that kind holds, in words.
    pub name: &'static str,
    /// Position, topics, partitions and producers; only of the header.
    pub header: Option<[u64; 4]>,
    /// Its topics; only of the section that has them.
    pub topics: Vec<cluster::Topic>,
}

impl ChunkFacts {
    /// Looks at a chunk alone.
    ///
    /// # Errors
    /// When it is none that this build knows.
    pub fn of(chunk: &[u8]) -> Result<Self, RestoreError> {
        let [kind, version, items @ ..] = chunk else {
            return Err(RestoreError::Cut { kind: chunk.first().copied().unwrap_or_default() });
        };
        let (kind, version) = (*kind, *version);
        let mut facts = Self { kind, name: section_name(kind)?, header: None, topics: Vec::new() };
        let mut items = Decoder { kind, rest: items };
        match kind {
            section::HEADER | section::TOPICS if version != VERSION => {
                return Err(RestoreError::Version { kind, version });
            }
            section::HEADER => {
                let (position, _epoch) = (items.u64()?, items.i32()?);
                facts.header = Some([position, items.u64()?, items.u64()?, items.u64()?]);
            }
            section::TOPICS => {
                while !items.is_empty() {
                    facts.topics.push(cluster::Topic::decode(&mut items, Position::default())?);
                }
            }
            _ => {}
        }
        Ok(facts)
    }
}

fn section_name(kind: u8) -> Result<&'static str, RestoreError> {
    Ok(match kind {
        section::HEADER => "header",
        section::CLUSTER => "cluster",
        section::TOPICS => "topics",
        section::PARTITIONS => "partitions",
        section::ABORTED => "aborted transactions",
        section::PRODUCERS => "producers",
        section::GROUP_CONFIGS => "settings of groups",
        section::CLEANED => "cleaning of partitions",
        section::TRANSACTIONS..section::GROUPS => "transactional ids",
        section::GROUPS => "committed and pending offsets",
        33..section::END => "groups",
        _ => return Err(RestoreError::Kind { kind }),
    })
}

/// Packs items into chunks: closes a chunk when the next item finds it full.
pub(crate) fn chunked<'a, T: 'a>(
    kind: u8,
    version: u8,
    items: impl Iterator<Item = T> + 'a,
    encode: impl Fn(T, &mut Vec<u8>) + 'a,
) -> Box<dyn Iterator<Item = Vec<u8>> + 'a> {
    let mut items = items.peekable();
    Box::new(std::iter::from_fn(move || {
        items.peek()?;
        let mut chunk = vec![kind, version];
        while chunk.len() < CHUNK_BYTES - CHUNK_BYTES / 16 {
            let Some(item) = items.next() else { break };
            encode(item, &mut chunk);
        }
        Some(chunk)
    }))
}

/// Writes the values of an item.
pub(crate) trait Encoder {
    /// A byte.
    fn u8(&mut self, value: u8);
    /// Two bytes.
    fn i16(&mut self, value: i16);
    /// Four bytes.
    fn i32(&mut self, value: i32);
    /// Four bytes.
    fn u32(&mut self, value: u32);
    /// Eight bytes.
    fn i64(&mut self, value: i64);
    /// Eight bytes.
    fn u64(&mut self, value: u64);
    /// Length and bytes.
    fn bytes(&mut self, value: &[u8]);
}

impl Encoder for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    fn i16(&mut self, value: i16) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn bytes(&mut self, value: &[u8]) {
        self.u32(u32::try_from(value.len()).expect("limits keep every item far below 4 GiB"));
        self.extend_from_slice(value);
    }
}

/// Reads the values of a chunk's items.
#[derive(Debug)]
pub(crate) struct Decoder<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Whether the chunk ends here.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// That the chunk ends here.
    pub(crate) fn end(&self) -> Result<(), RestoreError> {
        if self.is_empty() { Ok(()) } else { Err(self.inconsistent("bytes follow the last item")) }
    }

    /// An error about this section.
    pub(crate) fn inconsistent(&self, reason: &'static str) -> RestoreError {
        RestoreError::Inconsistent { kind: self.kind, reason }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(RestoreError::Cut { kind: self.kind })?;
        self.rest = rest;
        Ok(*array)
    }

    /// A byte.
    pub(crate) fn u8(&mut self) -> Result<u8, RestoreError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    /// Two bytes.
    pub(crate) fn i16(&mut self) -> Result<i16, RestoreError> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    /// Four bytes.
    pub(crate) fn i32(&mut self) -> Result<i32, RestoreError> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    /// Four bytes.
    pub(crate) fn u32(&mut self) -> Result<u32, RestoreError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// Eight bytes.
    pub(crate) fn i64(&mut self) -> Result<i64, RestoreError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// Eight bytes.
    pub(crate) fn u64(&mut self) -> Result<u64, RestoreError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Sixteen bytes.
    pub(crate) fn uuid(&mut self) -> Result<ottla_protocol::types::Uuid, RestoreError> {
        Ok(ottla_protocol::types::Uuid(self.array()?))
    }

    /// Length and bytes.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], RestoreError> {
        let length = self.u32()? as usize;
        let (bytes, rest) =
            self.rest.split_at_checked(length).ok_or(RestoreError::Cut { kind: self.kind })?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Length and UTF-8.
    pub(crate) fn text(&mut self) -> Result<ottla_protocol::types::Text, RestoreError> {
        let bytes = bytes::Bytes::copy_from_slice(self.bytes()?);
        ottla_protocol::types::Text::from_utf8(bytes).map_err(|_| self.inconsistent("text is not UTF-8"))
    }
}
