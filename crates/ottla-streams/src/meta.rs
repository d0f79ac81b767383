//! What a task knows of its boundary, as bytes: one record, rewritten inside every batch.
//!
//! It is the only truth about how far the stores are: there is no clean or dirty marker and no file beside the
//! store. Layout: `OTM`, format version 1, fingerprint u64, sequence number u64, stream time i64, writer text,
//! stores (topic id text, position i64, leader epoch i32, time i64), inputs (topic text, partition i32, offset
//! i64), timers (name text, due i64), CRC-32C. Numbers little-endian, lists and texts with a 16-bit length.
//!
//! Place in the walk: written by [`crate::state`], read by [`crate::recovery`].

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_client::TopicPartition;

use crate::bytes_codec::{Malformed, Reader, Writer, checked};

const MAGIC: [u8; 3] = *b"OTM";
const VERSION: u8 = 1;

/// How far a store is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorePosition {
    /// Id of the changelog topic; empty = not known. A topic made anew has another.
    pub topic_id: String,
    /// All committed changelog records below it are in the store, and none at or above it.
    pub position: i64,
    /// Leader epoch of the last record below it; -1 = not known.
    pub leader_epoch: i32,
    /// A moment (ms since 1970) at which no tombstone at or above `position` had been written or removed yet: the
    /// age of the copy, for the check that no delete was missed. 0 = not known.
    pub time_ms: i64,
}

/// What a task knows of its boundary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Of the topology that wrote it.
    pub fingerprint: u64,
    /// By [`crate::engine::StoreId`].
    pub stores: Vec<StorePosition>,
    /// Offsets of the next records to take, as committed with this boundary.
    pub inputs: BTreeMap<TopicPartition, i64>,
    /// Of the transaction; counts up per task, over all writers.
    pub seq: u64,
    /// Process id and worker that committed it; empty = none yet.
    pub writer: String,
    /// Highest timestamp of the records below `inputs`, ms since 1970; `i64::MIN` = none yet.
    pub stream_time: i64,
    /// Names of punctuations and when they are due next, ms.
    pub timers: Vec<(String, i64)>,
}

/// Why a meta record cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Not a meta record, or damaged.
    #[error("the task's meta record is damaged: {0}")]
    Malformed(#[from] Malformed),
    /// Written by a later version of this crate.
    #[error(
        "the task's meta record has format {0}; this version reads format {VERSION}: use the newer version"
    )]
    Version(u8),
}

impl Meta {
    /// The meta of a task that never committed anything.
    pub fn new(fingerprint: u64, stores: usize) -> Self {
        Self {
            fingerprint,
            stores: vec![StorePosition { leader_epoch: -1, ..StorePosition::default() }; stores],
            stream_time: i64::MIN,
            ..Self::default()
        }
    }

    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = Writer(Vec::with_capacity(64 + 48 * (self.stores.len() + self.inputs.len())));
        out.0.extend_from_slice(&MAGIC);
        out.0.push(VERSION);
        out.u64(self.fingerprint);
        out.u64(self.seq);
        out.i64(self.stream_time);
        out.text(&self.writer);
        out.count(self.stores.len());
        for store in &self.stores {
            out.text(&store.topic_id);
            out.i64(store.position);
            out.i32(store.leader_epoch);
            out.i64(store.time_ms);
        }
        out.count(self.inputs.len());
        for (at, offset) in &self.inputs {
            out.text(&at.topic);
            out.i32(at.partition);
            out.i64(*offset);
        }
        out.count(self.timers.len());
        for (name, due) in &self.timers {
            out.text(name);
            out.i64(*due);
        }
        Bytes::from(out.sealed())
    }

    /// From bytes; any bytes at all.
    pub fn decode(bytes: &[u8]) -> Result<Self, MetaError> {
        let mut input = Reader(checked(bytes)?);
        if [input.u8()?, input.u8()?, input.u8()?] != MAGIC {
            return Err(Malformed::Checksum.into());
        }
        match input.u8()? {
            VERSION => {}
            other => return Err(MetaError::Version(other)),
        }
        let fingerprint = input.u64()?;
        let seq = input.u64()?;
        let stream_time = input.i64()?;
        let writer = input.text()?;
        let stores = input.list(|input| {
            Ok(StorePosition {
                topic_id: input.text()?,
                position: input.i64()?,
                leader_epoch: input.i32()?,
                time_ms: input.i64()?,
            })
        })?;
        let inputs =
            input.list(|input| Ok((TopicPartition::new(input.text()?, input.i32()?), input.i64()?)))?;
        let timers = input.list(|input| Ok((input.text()?, input.i64()?)))?;
        input.finish()?;
        Ok(Self {
            fingerprint,
            stores,
            inputs: inputs.into_iter().collect(),
            seq,
            writer,
            stream_time,
            timers,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn metas() -> impl Strategy<Value = Meta> {
        let store = ("[a-z]{0,20}", any::<i64>(), any::<i32>(), any::<i64>()).prop_map(
            |(topic_id, position, leader_epoch, time_ms)| StorePosition {
                topic_id,
                position,
                leader_epoch,
                time_ms,
            },
        );
        let input = (("[a-z.]{1,30}", any::<i32>()), any::<i64>())
            .prop_map(|((topic, partition), offset)| (TopicPartition::new(topic, partition), offset));
        (
            any::<(u64, u64, i64)>(),
            "[a-z/0-9]{0,40}",
            proptest::collection::vec(store, 0..6),
            proptest::collection::vec(input, 0..4),
            proptest::collection::vec(("[a-z]{1,10}", any::<i64>()), 0..4),
        )
            .prop_map(|((fingerprint, seq, stream_time), writer, stores, inputs, timers)| Meta {
                fingerprint,
                stores,
                inputs: inputs.into_iter().collect(),
                seq,
                writer,
                stream_time,
                timers,
            })
    }

    proptest! {
        /// Proves that what is written is what is read, and that one changed bit, a cut and added bytes are seen.
        #[test]
        fn round_trip_and_damage(meta in metas(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let bytes = meta.encode();
            prop_assert_eq!(&Meta::decode(&bytes).expect("ours"), &meta);
            let mut damaged = bytes.to_vec();
            damaged[at.index(bytes.len())] ^= 1 << bit;
            prop_assert!(Meta::decode(&damaged).is_err());
            prop_assert!(Meta::decode(&bytes[..at.index(bytes.len())]).is_err());
            damaged = bytes.to_vec();
            damaged.push(bit);
            prop_assert!(Meta::decode(&damaged).is_err());
        }

        /// Proves that no bytes panic, with a checksum that fits too, so that the parser itself is reached.
        #[test]
        fn any_bytes(body in proptest::collection::vec(any::<u8>(), 0..200), ours in any::<bool>()) {
            let mut out = Writer::default();
            if ours {
                out.0.extend_from_slice(b"OTM\x01");
            }
            out.0.extend_from_slice(&body);
            let sealed = out.sealed();
            if let Ok(meta) = Meta::decode(&sealed) {
                prop_assert_eq!(Meta::decode(&meta.encode()).expect("ours"), meta);
            }
            let _ = Meta::decode(&body);
        }
    }

    /// Proves that a record of a later format is named as such, and is not taken for damage.
    #[test]
    fn later_version_is_named() {
        let mut out = Writer(b"OTM\x02rest".to_vec());
        out.u64(1);
        assert_eq!(Meta::decode(&out.sealed()), Err(MetaError::Version(2)));
    }

    /// Proves that the bytes on disk stay what they are: a fixture of format 1.
    #[test]
    fn fixture_of_format_1() {
        let mut meta = Meta::new(7, 1);
        meta.stores[0] = StorePosition { topic_id: "t".into(), position: 5, leader_epoch: 2, time_ms: 9 };
        meta.inputs.insert(TopicPartition::new("in", 3), 4);
        meta.seq = 6;
        meta.writer = "p/0".into();
        meta.stream_time = 8;
        meta.timers.push(("x".into(), 10));
        let hex: String = meta.encode()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "4f544d010700000000000000");
        assert_eq!(meta.encode().len(), 4 + 24 + 5 + 2 + 23 + 2 + 16 + 2 + 11 + 4);
    }
}
