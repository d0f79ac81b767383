//! Committed and pending offsets: one value per group, topic and partition, and what open transactions will make
//! of it (KIP-98, section 5.3 of eos-semantics).
//!
//! Place in the walk: [`Groups`](super::Groups) holds a table of these and changes them when a record or a
//! marker is applied.
//!
//! Invariants: a pending offset counts only with the COMMIT marker of its producer, and only if no later record
//! of the same key stands in the log; live and in replay alike, since both go by offsets in the log.

use ottla_protocol::types::{Text, Uuid};

use crate::shard::{Decoder, Encoder, RestoreError};

/// What an offset is committed for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OffsetKey {
    pub(super) group: Text,
    pub(super) topic: Text,
    pub(super) partition: i32,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    pub(super) offset: i64,
    /// Leader epoch of the last consumed record, -1 for unknown.
    pub(super) leader_epoch: i32,
    pub(super) metadata: Text,
    /// When it was committed, ms.
    pub(super) commit_timestamp: i64,
    /// When it expires, ms, if the client said so; else -1.
    pub(super) expire_timestamp: i64,
    /// Id of the topic; zero when the record could not say.
    pub(super) topic_id: Uuid,
    /// Where its record stands in its partition of `__consumer_offsets`.
    pub(super) log_offset: i64,
}

/// The values of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OffsetSlot {
    pub(super) key: OffsetKey,
    /// Partition of `__consumer_offsets` that keeps the group.
    pub(super) log_partition: i32,
    pub(super) committed: Option<Commit>,
    /// Producer id and what its open transaction will commit, in the order of producer ids.
    pub(super) pending: Vec<(i64, Commit)>,
}

impl OffsetSlot {
    /// Neither committed nor pending: to be removed.
    pub(super) fn is_empty(&self) -> bool {
        self.committed.is_none() && self.pending.is_empty()
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        usize::from(self.committed.is_some()) + self.pending.len()
    }

    /// A later record of the same producer takes the place of an earlier one.
    pub(super) fn set_pending(&mut self, producer_id: i64, commit: Commit) {
        match self.pending.binary_search_by_key(&producer_id, |(id, _)| *id) {
            Ok(at) => self.pending[at].1 = commit,
            Err(at) => self.pending.insert(at, (producer_id, commit)),
        }
    }

    /// The producer's transaction has ended.
    pub(super) fn end(&mut self, producer_id: i64, committed: bool) {
        let Ok(at) = self.pending.binary_search_by_key(&producer_id, |(id, _)| *id) else { return };
        let (_, commit) = self.pending.remove(at);
        if committed && self.committed.as_ref().is_none_or(|there| commit.log_offset > there.log_offset) {
            self.committed = Some(commit);
        }
    }

    /// Whether the committed value, which nothing pending will replace, is past its time: `retention_ms` since
    /// its commit, or since `since_ms`.
    pub(super) fn is_expired(&self, now_ms: i64, retention_ms: i64, since_ms: Option<i64>) -> bool {
        let Some(committed) = &self.committed else { return false };
        let expires_at = if committed.expire_timestamp >= 0 {
            committed.expire_timestamp
        } else {
            since_ms.unwrap_or(committed.commit_timestamp).saturating_add(retention_ms)
        };
        self.pending.is_empty() && expires_at <= now_ms
    }

    /// Whether it belongs to this topic, by id where the record says it.
    pub(super) fn is_of_topic(&self, topic_id: Uuid, name: &str) -> bool {
        let values = self.committed.iter().chain(self.pending.iter().map(|(_, commit)| commit));
        self.key.topic == *name
            && values.map(|commit| commit.topic_id).all(|id| id.is_zero() || id == topic_id)
    }

    /// Writes it for a snapshot.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.bytes(self.key.group.as_bytes());
        out.bytes(self.key.topic.as_bytes());
        out.i32(self.key.partition);
        out.i32(self.log_partition);
        out.u8(u8::from(self.committed.is_some()));
        if let Some(commit) = &self.committed {
            commit.encode(out);
        }
        out.u32(u32::try_from(self.pending.len()).expect("limits keep it small"));
        for (producer_id, commit) in &self.pending {
            out.i64(*producer_id);
            commit.encode(out);
        }
    }

    /// Reads what [`OffsetSlot::encode`] wrote.
    pub(super) fn decode(items: &mut Decoder<'_>) -> Result<Self, RestoreError> {
        let key = OffsetKey { group: items.text()?, topic: items.text()?, partition: items.i32()? };
        let log_partition = items.i32()?;
        let committed = match items.u8()? {
            0 => None,
            1 => Some(Commit::decode(items)?),
            _ => return Err(items.inconsistent("neither committed nor not")),
        };
        let mut slot = Self { key, log_partition, committed, pending: Vec::new() };
        for _ in 0..items.u32()? {
            let producer_id = items.i64()?;
            if slot.pending.last().is_some_and(|(last, _)| *last >= producer_id) {
                return Err(items.inconsistent("pending offsets out of order"));
            }
            slot.pending.push((producer_id, Commit::decode(items)?));
        }
        if slot.is_empty() {
            return Err(items.inconsistent("an offset without a value"));
        }
        Ok(slot)
    }
}

impl Commit {
    fn encode(&self, out: &mut Vec<u8>) {
        out.i64(self.offset);
        out.i32(self.leader_epoch);
        out.bytes(self.metadata.as_bytes());
        out.i64(self.commit_timestamp);
        out.i64(self.expire_timestamp);
        out.extend_from_slice(&self.topic_id.0);
        out.i64(self.log_offset);
    }

    fn decode(items: &mut Decoder<'_>) -> Result<Self, RestoreError> {
        Ok(Self {
            offset: items.i64()?,
            leader_epoch: items.i32()?,
            metadata: items.text()?,
            commit_timestamp: items.i64()?,
            expire_timestamp: items.i64()?,
            topic_id: items.uuid()?,
            log_offset: items.i64()?,
        })
    }
}
