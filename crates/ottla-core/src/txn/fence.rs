//! Connection marks: how a late request of protocol v1 is told from a punctual one (eos-semantics, section 8).
//!
//! Place in the walk: the handlers of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit and Produce
//! ask before they decide. With protocol v1 nothing in a request names its transaction. But a client that gave a
//! request up has opened a newer connection for its next ones, and connections are numbered in the order of
//! their acceptance: what arrives for the same pair on an older connection than the newest that spoke for it looks
//! late. Nothing is decided then ([`Reply::Late`]).
//!
//! It only looks so, because a client may keep a pool of connections and take one of them for each request, as
//! kafka-go does. But who gave a request up closes its connection or goes on with the newer one, and who has a pool
//! waits for the answer. So the broker waits for a time. If either happens, the request was late and is dropped; if
//! not, the command comes again with [`Context::is_alive`], is let through, and the order of connections says nothing
//! any more about this pair. Only a connection whose own InitProducerId was answered with another pair than the
//! current one is left behind for certain.
//!
//! [`Reply::Late`]: crate::decision::Reply::Late
//!
//! Invariants: volatile; a missing mark only lets a request pass. Only requests of the current pair set marks,
//! so that nobody can cut the owner off by naming him. Each family has marks of its own, since some clients use
//! separate connections for data and coordinators. Bounded: the older half is forgotten when a table is full.

use std::hash::Hash;

use foldhash::quality::FixedState;
use hashbrown::HashMap;
use ottla_protocol::types::{Text, TopicIdPartition};

use super::state::Pair;
use crate::command::{ConnectionId, Context};
use crate::config::CoreConfig;

/// Who spoke last for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    pair: Pair,
    connection: ConnectionId,
}

/// Marks by key, in two generations: when the young one is full the old one is forgotten.
#[derive(Debug)]
struct Marks<K> {
    young: HashMap<K, Mark, FixedState>,
    old: HashMap<K, Mark, FixedState>,
    hasher: FixedState,
    generation_max: usize,
}

impl<K: Hash + Eq> Marks<K> {
    fn new(seed: u64, marks_max: usize) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self {
            young: HashMap::with_hasher(hasher.clone()),
            old: HashMap::with_hasher(hasher.clone()),
            hasher,
            generation_max: (marks_max / 2).max(1),
        }
    }

    fn get(&self, key: &K) -> Option<&Mark> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    fn is_late(&self, key: &K, pair: Pair, connection: ConnectionId) -> bool {
        self.get(key).is_some_and(|mark| mark.pair == pair && connection < mark.connection)
    }

    fn has(&self, key: &K, pair: Pair) -> bool {
        self.get(key).is_some_and(|mark| mark.pair == pair)
    }

    fn note(&mut self, key: K, pair: Pair, connection: ConnectionId) {
        if self.is_late(&key, pair, connection) {
            return;
        }
        if self.young.len() >= self.generation_max && !self.young.contains_key(&key) {
            let empty = HashMap::with_hasher(self.hasher.clone());
            self.old = std::mem::replace(&mut self.young, empty);
        }
        self.young.insert(key, Mark { pair, connection });
    }
}

/// All marks, and what became of the requests that looked late.
#[derive(Debug)]
pub(crate) struct Fence {
    enabled: bool,
    transactional_ids: Marks<Text>,
    groups: Marks<(Text, i64)>,
    partitions: Marks<(TopicIdPartition, i64)>,
    /// What InitProducerId was answered with, by id and connection.
    inits: Marks<(Text, ConnectionId)>,
    /// Pairs whose client uses several connections at once, by producer id.
    pooled: Marks<i64>,
    cut: u64,
    let_through: u64,
}

impl Fence {
    /// No marks yet.
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let (seed, marks_max) = (config.hash_seed, config.limits.fence_marks_max);
        Self {
            enabled: config.connection_fence_enable,
            transactional_ids: Marks::new(seed, marks_max),
            groups: Marks::new(seed, marks_max),
            partitions: Marks::new(seed, marks_max),
            inits: Marks::new(seed, marks_max),
            pooled: Marks::new(seed, marks_max),
            cut: 0,
            let_through: 0,
        }
    }

    /// How many requests were dropped as late since this tenure began. Healthy clients cause none (ADR 0006 names
    /// the one exception).
    pub(crate) fn cut(&self) -> u64 {
        self.cut
    }

    /// How many looked late and were not.
    pub(crate) fn let_through(&self) -> u64 {
        self.let_through
    }

    /// One more is dropped.
    pub(crate) fn count_cut(&mut self) {
        self.cut += 1;
    }

    /// What looks late is late, unless its sender was found to be there. The broker's own requests (connection 0)
    /// are never late.
    fn judge(&mut self, looks_late: bool, pair: Pair, context: &Context) -> bool {
        let ours = context.connection == ConnectionId::default();
        if !looks_late || !self.enabled || ours || self.pooled.has(&pair.producer_id, pair) {
            return false;
        }
        if context.is_alive {
            self.pooled.note(pair.producer_id, pair, context.connection);
            self.let_through += 1;
        }
        !context.is_alive
    }

    /// Whether a coordinator request for this id and (current) pair is late.
    pub(crate) fn late_for_id(&mut self, id: &Text, pair: Pair, context: &Context) -> bool {
        let looks_late = self.transactional_ids.is_late(id, pair, context.connection);
        self.judge(looks_late, pair, context)
    }

    /// Whether a connection that looks late for this id is so for certain.
    pub(crate) fn is_left_behind(&self, id: &Text, pair: Pair, connection: ConnectionId) -> bool {
        self.inits.get(&(id.clone(), connection)).is_some_and(|mark| mark.pair != pair)
    }

    /// Notes what InitProducerId was answered with.
    pub(crate) fn note_init(&mut self, id: &Text, pair: Pair, connection: ConnectionId) {
        self.inits.note((id.detached(), connection), pair, connection);
    }

    /// Notes a coordinator request of the current pair.
    pub(crate) fn note_id(&mut self, id: &Text, pair: Pair, connection: ConnectionId) {
        self.transactional_ids.note(id.detached(), pair, connection);
    }

    /// Whether a TxnOffsetCommit for this group and (current) pair is late.
    pub(crate) fn late_for_group(&mut self, group: &Text, pair: Pair, context: &Context) -> bool {
        let looks_late = self.groups.is_late(&(group.clone(), pair.producer_id), pair, context.connection);
        self.judge(looks_late, pair, context)
    }

    /// Notes a TxnOffsetCommit of the current pair.
    pub(crate) fn note_group(&mut self, group: &Text, pair: Pair, connection: ConnectionId) {
        self.groups.note((group.detached(), pair.producer_id), pair, connection);
    }

    /// Whether a transactional Produce of protocol v1 by this pair is late.
    pub(crate) fn late_for_partition(
        &mut self,
        partition: TopicIdPartition,
        pair: Pair,
        context: &Context,
    ) -> bool {
        let looks_late = self.partitions.is_late(&(partition, pair.producer_id), pair, context.connection);
        self.judge(looks_late, pair, context)
    }

    /// Notes a transactional Produce of protocol v1 that was accepted.
    pub(crate) fn note_partition(
        &mut self,
        partition: TopicIdPartition,
        pair: Pair,
        connection: ConnectionId,
    ) {
        self.partitions.note((partition, pair.producer_id), pair, connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: Pair = Pair { producer_id: 7, producer_epoch: 3 };

    fn on(connection: u64) -> Context {
        Context { connection: ConnectionId(connection), ..Context::default() }
    }

    fn fence(marks_max: usize) -> Fence {
        let mut config = CoreConfig::default();
        config.limits.fence_marks_max = marks_max;
        Fence::new(&config)
    }

    /// Scenario 82: only an older connection with the same pair is late; another pair, an equal or newer
    /// connection, the broker itself, another family are not.
    #[test]
    fn only_older_connections_are_late() {
        let (mut fence, id) = (fence(10), Text::from("t"));
        assert!(!fence.late_for_id(&id, PAIR, &on(1)));
        fence.note_id(&id, PAIR, ConnectionId(5));
        fence.note_id(&id, PAIR, ConnectionId(4));
        assert!(fence.late_for_id(&id, PAIR, &on(4)));
        assert!(!fence.late_for_id(&id, PAIR, &on(5)));
        assert!(!fence.late_for_id(&id, PAIR, &on(6)));
        assert!(!fence.late_for_id(&id, PAIR, &on(0)));
        assert!(!fence.late_for_id(&id, Pair { producer_epoch: 4, ..PAIR }, &on(4)));
        assert!(!fence.late_for_group(&id, PAIR, &on(4)));
        fence.note_id(&id, Pair { producer_epoch: 4, ..PAIR }, ConnectionId(2));
        assert!(!fence.late_for_id(&id, PAIR, &on(1)), "the mark is empty when the pair changes");
    }

    /// A sender that is still there is let through, and so is all that follows of its pair, in every family; another
    /// pair is judged afresh.
    #[test]
    fn a_pool_of_connections_is_not_late() {
        let (mut fence, id) = (fence(10), Text::from("t"));
        let next = Pair { producer_epoch: 4, ..PAIR };
        fence.note_id(&id, PAIR, ConnectionId(5));
        fence.note_group(&id, PAIR, ConnectionId(5));
        assert!(fence.late_for_id(&id, PAIR, &on(4)));
        assert!(!fence.late_for_id(&id, PAIR, &Context { is_alive: true, ..on(4) }));
        assert!(!fence.late_for_id(&id, PAIR, &on(3)));
        assert!(!fence.late_for_group(&id, PAIR, &on(3)));
        assert_eq!((fence.cut(), fence.let_through()), (0, 1));
        fence.note_id(&id, next, ConnectionId(5));
        assert!(fence.late_for_id(&id, next, &on(4)));
    }

    /// A connection whose InitProducerId was answered with a pair that is not the current one is left behind; another
    /// id and another connection are not.
    #[test]
    fn a_superseded_connection_is_left_behind() {
        let (mut fence, id) = (fence(10), Text::from("t"));
        let next = Pair { producer_epoch: 4, ..PAIR };
        fence.note_init(&id, PAIR, ConnectionId(1));
        fence.note_init(&id, next, ConnectionId(2));
        assert!(fence.is_left_behind(&id, next, ConnectionId(1)));
        assert!(!fence.is_left_behind(&id, next, ConnectionId(2)));
        assert!(!fence.is_left_behind(&id, next, ConnectionId(3)));
        assert!(!fence.is_left_behind(&Text::from("u"), next, ConnectionId(1)));
        fence.note_init(&id, next, ConnectionId(1));
        assert!(!fence.is_left_behind(&id, next, ConnectionId(1)), "it has asked again");
    }

    /// The tables are bounded, and the marks noted last survive.
    #[test]
    fn bounded() {
        let mut fence = fence(10);
        for partition in 0..1000 {
            let partition = TopicIdPartition { partition, ..TopicIdPartition::default() };
            fence.note_partition(partition, PAIR, ConnectionId(9));
            assert!(fence.partitions.young.len() + fence.partitions.old.len() <= 10);
            assert!(fence.late_for_partition(partition, PAIR, &on(8)));
        }
    }

    /// Switched off it lets everything pass.
    #[test]
    fn switchable() {
        let config = CoreConfig { connection_fence_enable: false, ..CoreConfig::default() };
        let mut fence = Fence::new(&config);
        fence.note_group(&Text::from("g"), PAIR, ConnectionId(9));
        assert!(!fence.late_for_group(&Text::from("g"), PAIR, &on(1)));
    }
}
