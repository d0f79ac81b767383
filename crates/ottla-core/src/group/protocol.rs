//! The protocol that the members of a group speak, and what of it a snapshot keeps.
//!
//! Place in the walk: one [`Protocol`] per group id, in the table of [`Groups`](super::Groups). The handlers of
//! `classic` and `consumer` change its volatile part; what is durable changes only when a record is applied.
//!
//! Invariants: a group speaks one protocol at a time. After [`Protocol::begin_epoch`] the volatile part is
//! derived from the durable one and from nothing else.

use std::sync::Arc;

use super::classic::{self, ClassicGroup};
use super::consumer::{self, ConsumerGroup};
use crate::config::CoreConfig;
use crate::decision::ShardTime;
use crate::shard::{Decoder, RestoreError, section};

/// Section of classic groups in a snapshot.
pub(super) const CLASSIC_SECTION: u8 = section::GROUPS + 1;
/// Section of consumer groups in a snapshot.
pub(super) const CONSUMER_SECTION: u8 = section::GROUPS + 2;

/// How the members of a group are managed.
#[derive(Debug, Default)]
pub(super) enum Protocol {
    /// There are none and never were, or the group was deleted: offsets alone.
    #[default]
    None,
    /// JoinGroup and SyncGroup: a member assigns.
    Classic(Box<ClassicGroup>),
    /// ConsumerGroupHeartbeat (KIP-848): the coordinator assigns.
    Consumer(Box<ConsumerGroup>),
}

/// What of a group's protocol is durable; shared with snapshots, copied on the first change after one.
#[derive(Clone, Debug)]
pub(super) enum Durable {
    /// Of a classic group.
    Classic(Arc<classic::Stored>),
    /// Of a consumer group.
    Consumer(Arc<consumer::Stored>),
}

impl Protocol {
    /// What a snapshot keeps of it.
    pub(super) fn durable(&self) -> Option<Durable> {
        match self {
            Self::None => None,
            Self::Classic(group) => group.stored().cloned().map(Durable::Classic),
            Self::Consumer(group) => group.stored().cloned().map(Durable::Consumer),
        }
    }

    /// Makes the volatile part anew from the durable one, with fresh timers. `session_timeout_ms` is for members of
    /// a consumer group.
    pub(super) fn begin_epoch(&mut self, config: &CoreConfig, session_timeout_ms: i32, now: ShardTime) {
        match self {
            Self::None => {}
            Self::Classic(group) => group.begin_epoch(config, now),
            Self::Consumer(group) => group.start_timers(session_timeout_ms, now),
        }
        if self.durable().is_none() {
            *self = Self::None;
        }
    }

    /// When its next timer is due, ms.
    pub(super) fn next_deadline(&self) -> Option<i64> {
        match self {
            Self::None => None,
            Self::Classic(group) => group.next_deadline(),
            Self::Consumer(group) => group.next_deadline(),
        }
    }

    /// Moves its timers.
    pub(super) fn shift_deadlines(&mut self, by_ms: i64) {
        match self {
            Self::None => {}
            Self::Classic(group) => group.shift_deadlines(by_ms),
            Self::Consumer(group) => group.shift_deadlines(by_ms),
        }
    }
}

impl Durable {
    /// The section that it belongs to.
    pub(super) fn section(&self) -> u8 {
        match self {
            Self::Classic(_) => CLASSIC_SECTION,
            Self::Consumer(_) => CONSUMER_SECTION,
        }
    }

    /// What a snapshot writes of it, in items of which none is large: a classic group is one, a consumer group one
    /// per record.
    pub(super) fn items(&self) -> Box<dyn Iterator<Item = Vec<u8>> + '_> {
        match self {
            Self::Classic(stored) => {
                let mut item = Vec::new();
                stored.encode(&mut item);
                Box::new(std::iter::once(item))
            }
            Self::Consumer(stored) => Box::new(stored.items()),
        }
    }
}

/// Reads an item of a section into the protocol of its group.
///
/// # Errors
/// When it is not one of [`Durable::items`], or not of this group.
pub(super) fn restore(
    kind: u8,
    items: &mut Decoder<'_>,
    protocol: &mut Protocol,
) -> Result<(), RestoreError> {
    match (kind, &*protocol) {
        (CLASSIC_SECTION, Protocol::None) => {
            let stored = Arc::new(classic::Stored::decode(items)?);
            *protocol = Protocol::Classic(Box::new(ClassicGroup::loaded(stored)));
            Ok(())
        }
        (CLASSIC_SECTION, _) => Err(items.inconsistent("a group twice")),
        (CONSUMER_SECTION, Protocol::None | Protocol::Consumer(_)) => {
            let change = consumer::Stored::decode_item(items)?;
            consumer::apply(protocol, change);
            Ok(())
        }
        (CONSUMER_SECTION, _) => Err(items.inconsistent("a group of two protocols")),
        (kind, _) => Err(RestoreError::Kind { kind }),
    }
}
