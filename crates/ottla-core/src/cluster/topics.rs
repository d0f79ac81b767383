//! Topics by name and id.
//!
//! Two maps of shared shards: taking them for an image or a snapshot costs a reference count per shard, and a
//! change copies one shard of each.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::{Equivalent, HashMap};
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use super::config::{Kept, TopicConfig};
use super::names::{self, CONSUMER_OFFSETS, TRANSACTION_STATE};
use crate::config::CoreConfig;
use crate::decision::Position;
use crate::partition::Role;
use crate::shard::{Decoder, Encoder, RestoreError};

/// Shards of a map.
const SHARDS: usize = 32;

/// A topic.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Its name.
    pub name: Text,
    /// Its id, never given again.
    pub id: Uuid,
    /// Number of partitions, numbered from 0.
    pub partition_count: i32,
    /// What it is for.
    pub role: Role,
    /// Added to the shard's epoch, it gives the leader epoch of its partitions.
    pub base_leader_epoch: i32,
    /// Its settings.
    pub config: Arc<TopicConfig>,
    /// Of the last decision that changed the topic itself; after a load that of the load.
    pub(crate) last_position: Position,
}

impl Topic {
    /// Every topic has one replica.
    pub const REPLICATION_FACTOR: i16 = 1;

    /// Whether this is `__consumer_offsets` or `__transaction_state`.
    pub fn is_internal(&self) -> bool {
        self.role != Role::Data
    }

    /// The partition, if the topic has it.
    pub fn partition(&self, partition: i32) -> Option<TopicIdPartition> {
        (0..self.partition_count)
            .contains(&partition)
            .then_some(TopicIdPartition { topic_id: self.id, partition })
    }

    /// All of its partitions.
    pub fn partitions(&self) -> impl Iterator<Item = TopicIdPartition> + use<> {
        let topic_id = self.id;
        (0..self.partition_count).map(move |partition| TopicIdPartition { topic_id, partition })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.bytes(self.name.as_bytes());
        out.extend_from_slice(&self.id.0);
        out.i32(self.partition_count);
        out.u8(self.role as u8);
        out.i32(self.base_leader_epoch);
        let overrides = self.config.overrides();
        out.u32(u32::try_from(overrides.len()).expect("a topic has few settings"));
        for (name, value) in overrides {
            out.bytes(name.as_bytes());
            out.bytes(value.as_bytes());
        }
    }

    pub(crate) fn decode(items: &mut Decoder<'_>, position: Position) -> Result<Self, RestoreError> {
        let (name, id) = (items.text()?, items.uuid()?);
        let partition_count = items.i32()?;
        if !(1..=super::PARTITION_COUNT_MAX).contains(&partition_count) {
            return Err(items.inconsistent("a topic with an impossible number of partitions"));
        }
        let role = Role::from_number(items.u8()?).ok_or(items.inconsistent("unknown role"))?;
        let base_leader_epoch = items.i32()?;
        let mut overrides = Vec::new();
        for _ in 0..items.u32()? {
            overrides.push((items.text()?, items.text()?));
        }
        let config = Arc::new(TopicConfig::stored(overrides));
        Ok(Self { name, id, partition_count, role, base_leader_epoch, config, last_position: position })
    }
}

/// A hash map in shared shards.
#[derive(Clone)]
struct SharedMap<K, V> {
    shards: Vec<Arc<HashMap<K, V, FixedState>>>,
    hasher: FixedState,
}

impl<K: Clone + Eq + Hash, V: Clone> SharedMap<K, V> {
    fn new(hasher: FixedState) -> Self {
        let shards = (0..SHARDS).map(|_| Arc::new(HashMap::with_hasher(hasher.clone()))).collect();
        Self { shards, hasher }
    }

    fn shard<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        // The upper bits: the table inside a shard uses the lower ones.
        (self.hasher.hash_one(key) >> 48) as usize % SHARDS
    }

    fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<&V> {
        self.shards[self.shard(key)].get(key)
    }

    fn insert(&mut self, key: K, value: V) -> Option<V> {
        let shard = self.shard(&key);
        Arc::make_mut(&mut self.shards[shard]).insert(key, value)
    }

    fn remove<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<V> {
        let shard = self.shard(key);
        Arc::make_mut(&mut self.shards[shard]).remove(key)
    }

    fn values(&self) -> impl Iterator<Item = &V> {
        self.shards.iter().flat_map(|shard| shard.values())
    }
}

/// Topics by name and id, shared with images and snapshots.
#[derive(Clone)]
pub(crate) struct TopicMap {
    by_name: SharedMap<Text, Arc<Topic>>,
    by_id: SharedMap<Uuid, Arc<Topic>>,
    len: usize,
}

impl TopicMap {
    /// The topic with this name.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name.as_bytes())
    }

    /// The topic with this id.
    pub(crate) fn by_id(&self, id: Uuid) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    /// Number of topics, internal ones included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All topics by name.
    pub(crate) fn sorted(&self) -> Vec<&Arc<Topic>> {
        let mut topics: Vec<_> = self.by_name.values().collect();
        topics.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        topics
    }
}

/// The topics of the shard.
pub(crate) struct Topics {
    map: TopicMap,
    /// Names that hold '.' or '_', with every '.' as '_'.
    collisions: HashMap<String, Text, FixedState>,
    last_position: Position,
}

impl Topics {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let hasher = FixedState::with_seed(config.hash_seed);
        let map = TopicMap {
            by_name: SharedMap::new(hasher.clone()),
            by_id: SharedMap::new(hasher.clone()),
            len: 0,
        };
        Self { map, collisions: HashMap::with_hasher(hasher), last_position: Position::default() }
    }

    /// The maps as they are now.
    pub(crate) fn map(&self) -> &TopicMap {
        &self.map
    }

    /// The topic with this name.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Topic>> {
        self.map.by_name(name)
    }

    /// The topic with this id.
    #[inline]
    pub(crate) fn by_id(&self, id: Uuid) -> Option<&Arc<Topic>> {
        self.map.by_id(id)
    }

    /// Number of topics, internal ones included.
    pub(crate) fn len(&self) -> usize {
        self.map.len
    }

    /// `__transaction_state`, once the cluster was made.
    pub(crate) fn transaction_state(&self) -> Option<&Arc<Topic>> {
        self.by_name(TRANSACTION_STATE)
    }

    /// `__consumer_offsets`, once the cluster was made.
    pub(crate) fn consumer_offsets(&self) -> Option<&Arc<Topic>> {
        self.by_name(CONSUMER_OFFSETS)
    }

    /// Position of the last decision that changed any topic: what "there is no such topic" rests on.
    pub(crate) fn rests_on(&self) -> Position {
        self.last_position
    }

    /// The topic whose name differs from this one only in '.' and '_'.
    pub(super) fn collides_with(&self, name: &str) -> Option<&Text> {
        self.collisions.get(&names::collision_key(name)?).filter(|other| **other != name)
    }

    /// Resolves the settings of every topic anew, over other defaults.
    pub(crate) fn set_defaults(&mut self, defaults: &Kept) {
        let topics: Vec<Arc<Topic>> = self.map.by_id.values().cloned().collect();
        for topic in topics {
            let config = topic.config.with_defaults(defaults);
            if config != *topic.config {
                let topic = Arc::new(Topic { config: Arc::new(config), ..Topic::clone(&topic) });
                self.map.by_name.insert(topic.name.clone(), topic.clone());
                self.map.by_id.insert(topic.id, topic);
            }
        }
    }

    /// Adds a topic or replaces what is known of it.
    pub(crate) fn insert(&mut self, topic: Topic, position: Position) {
        self.last_position = position;
        if let Some(key) = names::collision_key(&topic.name) {
            self.collisions.insert(key, topic.name.clone());
        }
        let topic = Arc::new(topic);
        let old = self.map.by_name.insert(topic.name.clone(), topic.clone());
        self.map.len += usize::from(old.is_none());
        self.map.by_id.insert(topic.id, topic);
    }

    /// Takes a topic out.
    pub(super) fn remove(&mut self, id: Uuid, position: Position) -> Option<Arc<Topic>> {
        let topic = self.map.by_id.remove(&id)?;
        self.map.by_name.remove(&topic.name);
        self.map.len -= 1;
        if let Some(key) = names::collision_key(&topic.name) {
            self.collisions.remove(&key);
        }
        self.last_position = position;
        Some(topic)
    }
}
