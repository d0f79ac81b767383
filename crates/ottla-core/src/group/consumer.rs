//! The consumer protocol (KIP-848): members say what they want and have, the coordinator decides who gets what.
//!
//! Place in the walk: `shard/dispatch` calls the two handlers of its own; the classic handlers hand a request
//! on when the group speaks this protocol (`join_group` and so on: classic members of a consumer group);
//! [`Groups`](super::Groups) hands on the records with its key types.
//!
//! Files: `state` (what is durable), `member` (one member and its next step), `record`, `assignment`, `assignor`,
//! `re2` and `subscription` (which topics a member means), `heartbeat`, `settle` (from a changed group to a
//! member's next step), `departure` (leaving, fencing, timers), `describe`, `offsets` (who may commit),
//! `classic_member` (members of the classic protocol), `migrate` (from and to classic groups), `embedded` (what
//! classic members say in bytes).
//!
//! Three epochs: the group's grows when members, subscriptions or subscribed topics change; the target's is the
//! group epoch it was made for; a member's says how far the member has come.
//!
//! Invariants: [`Stored`] changes only in [`apply`]. A partition is owned by one member at a time. Timers are
//! volatile: a restart gives everybody a whole session.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ottla_protocol::codec::Reader;
use ottla_protocol::coordinator::record_type;
use ottla_protocol::types::Text;

use super::protocol::Protocol;
use crate::decision::{Position, ShardTime};
use crate::shard::{Decoder, Encoder, NewRecord, RestoreError, ShardState, Step};

mod assignment;
mod assignor;
mod classic_member;
mod departure;
mod describe;
mod embedded;
mod heartbeat;
mod member;
mod migrate;
mod offsets;
mod re2;
mod record;
mod settle;
mod state;
mod subscription;
#[cfg(test)]
mod tests;

pub(super) use classic_member::{heartbeat, join_group, leave_group, sync_group};
pub(super) use departure::tick;
pub(crate) use describe::consumer_group_describe;
pub(crate) use heartbeat::consumer_group_heartbeat;
use member::{Member, MemberState};
pub(super) use record::Change;
pub(super) use state::Stored;

/// Longest id of a member, instance or rack, bytes.
const ID_BYTES_MAX: usize = 4096;

/// A consumer group: what is durable, and the timers around it.
#[derive(Debug, Default)]
pub(super) struct ConsumerGroup {
    stored: Arc<Stored>,
    timers: BTreeMap<Text, Timers>,
    /// Ids that were given to classic members that must still come with them, and when they expire, ms.
    pending: BTreeMap<Text, i64>,
    /// The change of topics up to which the hash of the subscribed topics is known. None: not since the start.
    hashed_at: Option<Position>,
    refresh: Refresh,
    /// When a target is made that had to wait, ms.
    assign_at: Option<i64>,
}

/// When the regular expressions of a group are looked up among the topics.
#[derive(Clone, Copy, Debug, Default)]
struct Refresh {
    /// When it is due, ms. None: it is not needed.
    at: Option<i64>,
    /// When it was done last, ms, and up to which change of topics. None: not since the start.
    done: Option<(i64, Position)>,
}

/// Timers of a member.
#[derive(Clone, Copy, Debug)]
struct Timers {
    /// When its session ends, ms.
    session_at: i64,
    /// When it must have given up what it was told to, ms, and the member epoch at which it was told.
    revocation: Option<(i64, i32)>,
    /// When a classic member must have sent the SyncGroup or JoinGroup that is its turn, ms.
    turn_at: Option<i64>,
}

impl Timers {
    fn next(&self) -> i64 {
        let revocation = self.revocation.map(|(at, _)| at);
        revocation.into_iter().chain(self.turn_at).fold(self.session_at, i64::min)
    }
}

impl Stored {
    /// What a snapshot writes of it: its records.
    pub(super) fn items(&self) -> impl Iterator<Item = Vec<u8>> {
        self.changes().map(|change| {
            let record = change.encode(&Text::EMPTY);
            let mut item = Vec::new();
            item.bytes(&record.key);
            item.bytes(&record.value.expect("what is there has a value"));
            item
        })
    }

    /// Reads one of [`Stored::items`].
    pub(super) fn decode_item(items: &mut Decoder<'_>) -> Result<Change, RestoreError> {
        let (key, value) = (items.bytes()?, items.bytes()?);
        let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        let (kind, mut reader) =
            record_type(&key).map_err(|_| items.inconsistent("a record's key is cut"))?;
        match Change::decode(kind, &mut reader, Some(&value)).map_err(|reason| items.inconsistent(reason))? {
            Some((_, change)) => Ok(change),
            None => Err(items.inconsistent("a record of another kind")),
        }
    }
}

impl ConsumerGroup {
    /// A group as it was stored; `start_timers` comes before any request.
    pub(super) fn loaded(stored: Arc<Stored>) -> Self {
        Self { stored, ..Self::default() }
    }

    /// What is durable; none for a group that only exists in memory.
    pub(super) fn stored(&self) -> Option<&Arc<Stored>> {
        Some(&self.stored)
    }

    /// Gives every member a whole session, and time to give up what it was told to.
    pub(super) fn start_timers(&mut self, configured_ms: i32, now: ShardTime) {
        self.hashed_at = None;
        self.refresh = Refresh::default();
        self.assign_at = None;
        self.pending.clear();
        let timers = self.stored.members.iter().map(|(id, member)| {
            let session_at = now.0.saturating_add(session_timeout_ms(member, configured_ms));
            let revoking = member.current.state == MemberState::Unrevoked;
            let revocation = revoking.then(|| revocation(member, now));
            (id.clone(), Timers { session_at, revocation, turn_at: None })
        });
        self.timers = timers.collect();
    }

    /// When the next timer is due, ms.
    pub(super) fn next_deadline(&self) -> Option<i64> {
        self.timers.values().map(Timers::next).chain(self.refresh.at).chain(self.assign_at).min()
    }

    /// Moves the timers.
    pub(super) fn shift_deadlines(&mut self, by_ms: i64) {
        for timers in self.timers.values_mut() {
            timers.session_at = timers.session_at.saturating_add(by_ms);
            let revocation = timers.revocation.as_mut().map(|(at, _)| at);
            for at in revocation.into_iter().chain(&mut timers.turn_at) {
                *at = at.saturating_add(by_ms);
            }
        }
        for at in self.pending.values_mut().chain(&mut self.refresh.at).chain(&mut self.assign_at) {
            *at = at.saturating_add(by_ms);
        }
    }

    /// Kafka's name of the state.
    pub(super) fn state_name(&self) -> &'static str {
        self.stored.state().name()
    }

    /// Whether it has no members.
    pub(super) fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Members, and the bytes that they make the broker keep.
    pub(super) fn weight(&self) -> (usize, usize) {
        self.stored.weight()
    }

    /// Whether a member subscribes to the topic.
    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        self.stored.is_subscribed(topic)
    }

    /// The records that remove the group, without its offsets.
    pub(super) fn tombstones(&self, group: &Text) -> Vec<NewRecord> {
        self.stored.tombstones().iter().map(|change| change.encode(group)).collect()
    }
}

/// How long a member of the group may be silent that says nothing of it, ms.
fn configured_session_ms(state: &ShardState, group: &str) -> i32 {
    state.cluster.group_configs().session_timeout_ms(group, &state.config)
}

/// How long a member may be silent, ms; `configured_ms` for those that say nothing of it.
fn session_timeout_ms(member: &Member, configured_ms: i32) -> i64 {
    let classic = member.metadata.classic.as_ref().map(|classic| classic.session_timeout_ms);
    i64::from(classic.unwrap_or(configured_ms))
}

/// Until when a member must have given up what it was told to at its current epoch.
fn revocation(member: &Member, now: ShardTime) -> (i64, i32) {
    (now.0.saturating_add(i64::from(member.metadata.rebalance_timeout_ms.max(0))), member.current.epoch)
}

/// Reads a record whose key type is none of offsets or classic groups.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn decode(
    record_type: i16,
    reader: &mut Reader,
    value: Option<&Bytes>,
) -> Result<Option<(Text, Change)>, &'static str> {
    Change::decode(record_type, reader, value)
}

/// Applies a change to the group's protocol, which may be none yet, and leaves none when the group is gone.
pub(super) fn apply(protocol: &mut Protocol, change: Change) {
    let removes = matches!(
        change,
        Change::Group(None)
            | Change::Target(None)
            | Change::Member(_, None)
            | Change::MemberTarget(_, None)
            | Change::Current(_, None)
            | Change::Regex(_, None)
    );
    match protocol {
        Protocol::Consumer(_) if change == Change::Group(None) => *protocol = Protocol::None,
        Protocol::Consumer(group) => Arc::make_mut(&mut group.stored).apply(change),
        Protocol::None | Protocol::Classic(_) if removes => {}
        Protocol::None | Protocol::Classic(_) => {
            let mut stored = Stored::default();
            stored.apply(change);
            *protocol = Protocol::Consumer(Box::new(ConsumerGroup::loaded(Arc::new(stored))));
        }
    }
}

/// A consumer group.
fn get<'a>(state: &'a ShardState, group: &str) -> Option<&'a ConsumerGroup> {
    match state.groups.protocol(group) {
        Protocol::Consumer(consumer) => Some(consumer),
        Protocol::None | Protocol::Classic(_) => None,
    }
}

/// A consumer group, to change what is volatile of it.
fn get_mut<'a>(state: &'a mut ShardState, group: &str) -> Option<&'a mut ConsumerGroup> {
    match &mut state.groups.index.get_mut(group.as_bytes())?.protocol {
        Protocol::Consumer(consumer) => Some(consumer),
        Protocol::None | Protocol::Classic(_) => None,
    }
}

/// Writes changes of a group, as one batch.
fn write(step: &mut Step<'_>, group: &Text, changes: &[Change]) {
    if changes.is_empty() {
        return;
    }
    let records: Vec<NewRecord> = changes.iter().map(|change| change.encode(group)).collect();
    let partition = super::offsets_partition(step.state, group);
    step.append_records(partition, &records, crate::shard::Stamp::NONE);
}
