//! What the coordinator knows of one transactional id, and how it may change.
//!
//! Place in the walk: the handlers of `txn/` read a [`Transaction`], build the next one with the methods here
//! and write it as a record; applying that record is the only thing that changes state.
//!
//! Invariants: every next state passes [`State::may_become`]; an epoch is never negative and never passes
//! 32767; partitions are sorted and unique, and belong to topics by id, so that a topic created again under an
//! old name is never touched by an older transaction.

use ottla_protocol::types::{NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Text, TopicIdPartition};

use crate::decision::ShardTime;

/// The last epoch that a client is given. The next one, 32767, only ever stands in markers.
pub(crate) const LAST_CLIENT_EPOCH: i16 = i16::MAX - 1;

/// `transaction.version` that the log says for protocol v1 (Kafka's clients of it are 0), and for v2.
pub(crate) const V1: i16 = 0;
/// See [`V1`].
pub(crate) const V2: i16 = 2;

/// Where a transactional id stands. The numbers are those of Kafka's transaction log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub(crate) enum State {
    /// Has a producer, and no transaction since that producer came.
    Empty = 0,
    /// A transaction is open.
    Ongoing = 1,
    /// Committed; markers may be missing.
    PrepareCommit = 2,
    /// Aborted; markers may be missing.
    PrepareAbort = 3,
    /// Committed, all markers written.
    CompleteCommit = 4,
    /// Aborted, all markers written.
    CompleteAbort = 5,
}

impl State {
    /// All states, in the order of their numbers.
    pub(crate) const ALL: [Self; 6] = [
        Self::Empty,
        Self::Ongoing,
        Self::PrepareCommit,
        Self::PrepareAbort,
        Self::CompleteCommit,
        Self::CompleteAbort,
    ];

    /// The state of a number in the log; `Dead` (6) and the fence (7) are never written.
    pub(crate) fn from_status(status: i8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as i8 == status)
    }

    /// Kafka's name of the state, as tools see it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Ongoing => "Ongoing",
            Self::PrepareCommit => "PrepareCommit",
            Self::PrepareAbort => "PrepareAbort",
            Self::CompleteCommit => "CompleteCommit",
            Self::CompleteAbort => "CompleteAbort",
        }
    }

    /// Whether a tool may filter by this name, also by the two states that never show.
    pub(crate) fn is_name(name: &str) -> bool {
        matches!(name, "Dead" | "PrepareEpochFence") || Self::ALL.iter().any(|state| state.name() == name)
    }

    /// No transaction is open or being completed.
    pub(crate) fn is_resting(self) -> bool {
        matches!(self, Self::Empty | Self::CompleteCommit | Self::CompleteAbort)
    }

    /// A decision was made whose markers may be missing.
    pub(crate) fn is_prepared(self) -> bool {
        matches!(self, Self::PrepareCommit | Self::PrepareAbort)
    }

    /// Whether the next record of the same id may say `next` (KIP-98, and KIP-890 for the abort of nothing).
    pub(crate) fn may_become(self, next: Self) -> bool {
        match next {
            Self::Empty => self.is_resting(),
            Self::Ongoing => self.is_resting() || self == Self::Ongoing,
            Self::PrepareCommit => self == Self::Ongoing,
            Self::PrepareAbort => self == Self::Ongoing || self.is_resting(),
            Self::CompleteCommit => self == Self::PrepareCommit,
            Self::CompleteAbort => self == Self::PrepareAbort,
        }
    }
}

/// A producer id and its epoch: who a request claims to come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The producer id.
    pub(crate) producer_id: i64,
    /// The producer epoch.
    pub(crate) producer_epoch: i16,
}

impl Pair {
    /// "No pair", as error answers carry it.
    pub(crate) const NONE: Self = Self { producer_id: NO_PRODUCER_ID, producer_epoch: NO_PRODUCER_EPOCH };
}

/// One transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// The id.
    pub(crate) transactional_id: Text,
    /// The producer id in use; while a decision is being completed the one that its markers carry.
    pub(crate) producer_id: i64,
    /// The producer id before the last change of producer ids, -1 for none.
    pub(crate) previous_producer_id: i64,
    /// The producer id that takes over when the decision is complete, -1 for "the same".
    pub(crate) next_producer_id: i64,
    /// The epoch in use; while a decision is being completed the one that its markers carry.
    pub(crate) producer_epoch: i16,
    /// The epoch whose holder may learn the pair in use by repeating its request; -1 for none. A producer
    /// that was fenced by another one's InitProducerId never may.
    pub(crate) last_producer_epoch: i16,
    /// A transaction that is open longer is aborted, ms.
    pub(crate) timeout_ms: i32,
    /// Where the id stands.
    pub(crate) state: State,
    /// The partitions of the transaction, those of the consumer offsets included; sorted, unique.
    pub(crate) partitions: Vec<TopicIdPartition>,
    /// When the last transaction began, -1 for "none since InitProducerId".
    pub(crate) start_timestamp: i64,
    /// When the last record was written.
    pub(crate) last_update_timestamp: i64,
    /// `transaction.version` of the rules that the last change followed, [`V1`] or [`V2`]; so with a decision it
    /// tells whether its markers carry a bumped epoch.
    pub(crate) client_transaction_version: i16,
    /// Counts the transactions of this id; tells those of one epoch apart.
    pub(crate) transaction_sequence: i64,
}

impl Transaction {
    /// A new id with its first producer.
    pub(crate) fn new(transactional_id: Text, producer_id: i64, timeout_ms: i32, now: ShardTime) -> Self {
        Self {
            transactional_id,
            producer_id,
            previous_producer_id: NO_PRODUCER_ID,
            next_producer_id: NO_PRODUCER_ID,
            producer_epoch: 0,
            last_producer_epoch: NO_PRODUCER_EPOCH,
            timeout_ms,
            state: State::Empty,
            partitions: Vec::new(),
            start_timestamp: -1,
            last_update_timestamp: now.0,
            client_transaction_version: 0,
            transaction_sequence: 0,
        }
    }

    /// The pair in use.
    pub(crate) fn pair(&self) -> Pair {
        Pair { producer_id: self.producer_id, producer_epoch: self.producer_epoch }
    }

    /// No further epoch can be given to a client under this producer id.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.producer_epoch >= LAST_CLIENT_EPOCH
    }

    /// Whether this pair is the one before the pair in use, and its holder the one who was given the latter.
    pub(crate) fn is_predecessor(&self, pair: Pair) -> bool {
        if pair.producer_epoch < 0 || pair.producer_epoch != self.last_producer_epoch {
            return false;
        }
        if pair.producer_id == self.producer_id {
            return i32::from(pair.producer_epoch) + 1 == i32::from(self.producer_epoch);
        }
        pair.producer_id == self.previous_producer_id
            && pair.producer_epoch >= LAST_CLIENT_EPOCH
            && self.producer_epoch == 0
    }

    /// Whether all of these (sorted) partitions are in the transaction already.
    pub(crate) fn has_all(&self, partitions: &[TopicIdPartition]) -> bool {
        partitions.iter().all(|partition| self.partitions.binary_search(partition).is_ok())
    }

    /// When an open transaction is past its timeout; `None` when none is open.
    pub(crate) fn timeout_at(&self) -> Option<i64> {
        (self.state == State::Ongoing)
            .then(|| self.start_timestamp.saturating_add(i64::from(self.timeout_ms)).saturating_add(1))
    }

    /// The id with a producer that starts afresh under this pair.
    pub(crate) fn initialised(
        &self,
        pair: Pair,
        last_producer_epoch: i16,
        timeout_ms: i32,
        now: ShardTime,
    ) -> Self {
        let mut next = self.next(State::Empty, now);
        if pair.producer_id != self.producer_id {
            next.previous_producer_id = self.producer_id;
        }
        next.producer_id = pair.producer_id;
        next.producer_epoch = pair.producer_epoch;
        next.last_producer_epoch = last_producer_epoch;
        next.timeout_ms = timeout_ms;
        next.partitions = Vec::new();
        next.start_timestamp = -1;
        next
    }

    /// The transaction with these (sorted, unique) partitions beside those it has; begins it if none is open.
    pub(crate) fn with_partitions(
        &self,
        partitions: Vec<TopicIdPartition>,
        client_transaction_version: i16,
        now: ShardTime,
    ) -> Self {
        let begins = self.state != State::Ongoing;
        let mut next = self.next(State::Ongoing, now);
        next.partitions = partitions;
        next.client_transaction_version = client_transaction_version;
        if begins {
            next.start_timestamp = now.0;
            next.transaction_sequence += 1;
        }
        next
    }

    /// The decision: commit or abort, under the epoch that the markers will carry.
    pub(crate) fn prepared(
        &self,
        decision: &Prepare,
        partitions: Vec<TopicIdPartition>,
        now: ShardTime,
    ) -> Self {
        let state = if decision.commit { State::PrepareCommit } else { State::PrepareAbort };
        let mut next = self.next(state, now);
        if self.state != State::Ongoing {
            next.start_timestamp = now.0;
        }
        if decision.bump {
            next.producer_epoch = self.producer_epoch.checked_add(1).expect("32767 is never bumped");
            next.last_producer_epoch = decision.last_producer_epoch;
            assert!(!self.is_exhausted() || decision.next_producer_id >= 0, "epochs end without a next id");
        }
        next.next_producer_id = decision.next_producer_id;
        next.partitions = partitions;
        next.client_transaction_version = if decision.bump { V2 } else { V1 };
        next
    }

    /// The decision is complete: all markers are written.
    pub(crate) fn completed(&self, now: ShardTime) -> Self {
        let done = match self.state {
            State::PrepareCommit => State::CompleteCommit,
            State::PrepareAbort => State::CompleteAbort,
            State::Empty | State::Ongoing | State::CompleteCommit | State::CompleteAbort => {
                panic!("{} is no decision", self.state.name())
            }
        };
        let mut next = self.next(done, now);
        if self.next_producer_id != NO_PRODUCER_ID {
            next.previous_producer_id = self.producer_id;
            next.producer_id = self.next_producer_id;
            next.producer_epoch = 0;
            next.next_producer_id = NO_PRODUCER_ID;
        }
        next.partitions = Vec::new();
        next
    }

    fn next(&self, state: State, now: ShardTime) -> Self {
        assert!(self.state.may_become(state), "{} to {}", self.state.name(), state.name());
        Self { state, last_update_timestamp: now.0, ..self.clone() }
    }
}

/// How a transaction is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prepare {
    /// Commit or abort.
    pub(crate) commit: bool,
    /// Whether the markers carry the next epoch: always with protocol v2 and when the server aborts.
    pub(crate) bump: bool,
    /// With a bump: the epoch whose holder may repeat its request, -1 when nobody may.
    pub(crate) last_producer_epoch: i16,
    /// With a bump of the last epoch: the producer id that takes over, else -1.
    pub(crate) next_producer_id: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of legal transitions is exactly that of eos-semantics 3.2.
    #[test]
    fn legal_transitions() {
        use State::{CompleteAbort, CompleteCommit, Empty, Ongoing, PrepareAbort, PrepareCommit};
        let legal = [
            (Empty, vec![Empty, Ongoing, PrepareAbort]),
            (Ongoing, vec![Ongoing, PrepareCommit, PrepareAbort]),
            (PrepareCommit, vec![CompleteCommit]),
            (PrepareAbort, vec![CompleteAbort]),
            (CompleteCommit, vec![Empty, Ongoing, PrepareAbort]),
            (CompleteAbort, vec![Empty, Ongoing, PrepareAbort]),
        ];
        for (from, to) in legal {
            for next in State::ALL {
                assert_eq!(from.may_become(next), to.contains(&next), "{} to {}", from.name(), next.name());
            }
            assert_eq!(State::from_status(from as i8), Some(from));
        }
        assert_eq!(State::from_status(6), None);
        assert_eq!(State::from_status(-1), None);
    }

    /// Scenarios 33 and 44: at the last epoch the markers carry 32767 and the next producer id starts at 0.
    #[test]
    fn the_last_epoch_rolls_over() {
        let now = ShardTime(5);
        let mut id = Transaction::new(Text::from("t"), 7, 1000, now);
        id.producer_epoch = LAST_CLIENT_EPOCH;
        let open = id.with_partitions(Vec::new(), 2, now);
        let decision =
            Prepare { commit: true, bump: true, last_producer_epoch: LAST_CLIENT_EPOCH, next_producer_id: 8 };
        let prepared = open.prepared(&decision, Vec::new(), now);
        assert_eq!(prepared.pair(), Pair { producer_id: 7, producer_epoch: i16::MAX });
        let done = prepared.completed(now);
        assert_eq!(done.pair(), Pair { producer_id: 8, producer_epoch: 0 });
        assert_eq!((done.previous_producer_id, done.next_producer_id), (7, -1));
        assert!(done.is_predecessor(Pair { producer_id: 7, producer_epoch: LAST_CLIENT_EPOCH }));
        assert!(!done.is_predecessor(Pair { producer_id: 7, producer_epoch: LAST_CLIENT_EPOCH - 1 }));
        assert!(!done.is_predecessor(Pair { producer_id: 8, producer_epoch: LAST_CLIENT_EPOCH }));
    }
}
