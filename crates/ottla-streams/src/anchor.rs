//! The metadata string of a task's offset commit: how far its stores are as of that transaction.
//!
//! Input offsets and restore targets commit together this way, so that recovery reads both in one stable answer.
//! The string is `ottla:` and base64 (no padding) of: version 1, sequence number u64, stream time i64, writer text,
//! targets (offset i64, leader epoch i32), timers (name text, due i64), CRC-32C. It stands on the lowest input
//! partition of the task; when an input is added the lowest may be another, so a reader looks at all of them and
//! takes the highest sequence number. Strings of others (offset tools, mirrors) are told apart by the prefix.
//!
//! Place in the walk: written at step S2 of a commit, read by [`crate::recovery`] and by whoever must know how an
//! unknown commit ended.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ottla_client::CommittedOffset;

use crate::bytes_codec::{CRC_BYTES, Malformed, Reader, Writer, checked};

const PREFIX: &str = "ottla:";
const VERSION: u8 = 1;
/// Longest string that brokers take unless told otherwise (`offset.metadata.max.bytes`).
pub const ANCHOR_BYTES_MAX: usize = 4096;

/// Where a changelog ends as of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// All committed records below it belong to the store.
    pub offset: i64,
    /// Leader epoch of the last record below it; -1 = not known.
    pub leader_epoch: i32,
}

/// The witness of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Process id and worker.
    pub writer: String,
    /// Counts up per task, over all writers.
    pub seq: u64,
    /// By [`crate::engine::StoreId`].
    pub targets: Vec<Target>,
    /// Highest timestamp of the records taken, ms; `i64::MIN` = none yet.
    pub stream_time: i64,
    /// Punctuations and when they are due next; left out of the string when it would be too long with them.
    pub timers: Vec<(String, i64)>,
}

/// A string of ours that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnchorError {
    /// Cut or changed.
    #[error("the offset's metadata begins like ours but is damaged: {0}")]
    Malformed(#[from] Malformed),
    /// Not base64.
    #[error("the offset's metadata begins like ours but is not base64")]
    Base64,
    /// Written by a later version of this crate.
    #[error(
        "the offset's metadata has format {0}; this version reads format {VERSION}: use the newer version"
    )]
    Version(u8),
}

impl Anchor {
    /// Longest string for that many stores and that long a writer, without timers.
    pub const fn size_max(stores: usize, writer_len: usize) -> usize {
        let bytes = 1 + 8 + 8 + 2 + writer_len + 2 + 12 * stores + 2 + CRC_BYTES;
        PREFIX.len() + (bytes * 4).div_ceil(3)
    }

    /// As the metadata string. Timers are left out when it would be longer than [`ANCHOR_BYTES_MAX`] with them.
    pub fn encode(&self) -> String {
        let full = self.encode_with(&self.timers);
        if full.len() <= ANCHOR_BYTES_MAX || self.timers.is_empty() { full } else { self.encode_with(&[]) }
    }

    fn encode_with(&self, timers: &[(String, i64)]) -> String {
        let mut out = Writer(vec![VERSION]);
        out.u64(self.seq);
        out.i64(self.stream_time);
        out.text(&self.writer);
        out.count(self.targets.len());
        for target in &self.targets {
            out.i64(target.offset);
            out.i32(target.leader_epoch);
        }
        out.count(timers.len());
        for (name, due) in timers {
            out.text(name);
            out.i64(*due);
        }
        let mut text = String::from(PREFIX);
        STANDARD_NO_PAD.encode_string(out.sealed(), &mut text);
        text
    }

    /// From a metadata string; `None` = somebody else's.
    pub fn decode(metadata: &str) -> Result<Option<Self>, AnchorError> {
        let Some(encoded) = metadata.strip_prefix(PREFIX) else { return Ok(None) };
        let bytes = STANDARD_NO_PAD.decode(encoded).map_err(|_| AnchorError::Base64)?;
        let mut input = Reader(checked(&bytes)?);
        match input.u8()? {
            VERSION => {}
            other => return Err(AnchorError::Version(other)),
        }
        let seq = input.u64()?;
        let stream_time = input.i64()?;
        let writer = input.text()?;
        let targets = input.list(|input| Ok(Target { offset: input.i64()?, leader_epoch: input.i32()? }))?;
        let timers = input.list(|input| Ok((input.text()?, input.i64()?)))?;
        input.finish()?;
        Ok(Some(Self { writer, seq, targets, stream_time, timers }))
    }
}

/// The anchor with the highest sequence number over all input partitions of a task.
///
/// A damaged string of ours is an error and not skipped: it may have been the newest one.
pub fn find_newest(committed: &[CommittedOffset]) -> Result<Option<Anchor>, AnchorError> {
    let mut newest: Option<Anchor> = None;
    for offset in committed.iter().filter(|offset| offset.offset.is_some()) {
        if let Some(anchor) = Anchor::decode(&offset.metadata)?
            && newest.as_ref().is_none_or(|known| known.seq < anchor.seq)
        {
            newest = Some(anchor);
        }
    }
    Ok(newest)
}

/// As [`find_newest`]; damaged strings are logged and skipped. For reading the witness of an own commit, where the
/// caller knows which sequence number it looks for.
pub fn newest(committed: &[CommittedOffset]) -> Option<Anchor> {
    let mut newest: Option<Anchor> = None;
    for offset in committed.iter().filter(|offset| offset.offset.is_some()) {
        match Anchor::decode(&offset.metadata) {
            Ok(Some(anchor)) if newest.as_ref().is_none_or(|known| known.seq < anchor.seq) => {
                newest = Some(anchor)
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(partition = %offset.topic_partition, %error, "offset metadata is skipped")
            }
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use ottla_client::TopicPartition;
    use proptest::prelude::*;

    use super::*;

    fn anchors() -> impl Strategy<Value = Anchor> {
        let target = any::<(i64, i32)>().prop_map(|(offset, leader_epoch)| Target { offset, leader_epoch });
        (
            any::<(u64, i64)>(),
            "[a-z0-9/]{0,60}",
            proptest::collection::vec(target, 0..20),
            proptest::collection::vec(("[a-z]{1,10}", any::<i64>()), 0..4),
        )
            .prop_map(|((seq, stream_time), writer, targets, timers)| Anchor {
                writer,
                seq,
                targets,
                stream_time,
                timers,
            })
    }

    proptest! {
        /// Proves that what is written is what is read, within the promised size, and that damage is seen.
        #[test]
        fn round_trip_and_damage(anchor in anchors(), at in any::<prop::sample::Index>(), with in "[A-Za-z0-9+/=é ]") {
            let text = anchor.encode();
            prop_assert_eq!(Anchor::decode(&text), Ok(Some(anchor.clone())));
            let bare = Anchor { timers: Vec::new(), ..anchor };
            prop_assert!(bare.encode().len() <= Anchor::size_max(bare.targets.len(), bare.writer.len()));
            let at = at.index(text.len());
            let mut damaged = text.clone();
            damaged.replace_range(at..=at, &with);
            if damaged != text {
                prop_assert!(!matches!(Anchor::decode(&damaged), Ok(Some(_))), "{} was taken", damaged);
            }
            prop_assert!(!matches!(Anchor::decode(&text[..at]), Ok(Some(_))));
        }

        /// Proves that no string panics, whoever wrote it, and that only ours are taken for ours.
        #[test]
        fn any_string(text in "\\PC{0,200}", body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Anchor::decode(&text);
            prop_assert!(text.starts_with(PREFIX) || Anchor::decode(&text) == Ok(None));
            let mut out = Writer(vec![VERSION]);
            out.0.extend_from_slice(&body);
            let _ = Anchor::decode(&format!("{PREFIX}{}", STANDARD_NO_PAD.encode(out.sealed())));
        }
    }

    fn committed(partition: i32, offset: Option<i64>, metadata: &str) -> CommittedOffset {
        CommittedOffset {
            topic_partition: TopicPartition::new("in", partition),
            offset,
            leader_epoch: -1,
            metadata: metadata.into(),
        }
    }

    /// Proves that the highest sequence number wins wherever it stands, that strings of other tools are passed over,
    /// and that a damaged one of ours stops a recovery but not the search for an own witness.
    #[test]
    fn newest_over_partitions() {
        let anchor =
            |seq| Anchor { writer: "p/0".into(), seq, targets: vec![], stream_time: 0, timers: vec![] };
        let all = [
            committed(0, Some(1), &anchor(3).encode()),
            committed(1, Some(1), &anchor(7).encode()),
            committed(2, Some(1), "reset by kafka-consumer-groups"),
            committed(3, None, &anchor(9).encode()),
        ];
        assert_eq!(newest(&all).map(|anchor| anchor.seq), Some(7));
        assert_eq!(find_newest(&all).map(|found| found.map(|anchor| anchor.seq)), Ok(Some(7)));
        assert_eq!(newest(&all[2..]), None);
        let cut = [committed(0, Some(1), "ottla:AQ"), all[0].clone()];
        assert_eq!(newest(&cut).map(|anchor| anchor.seq), Some(3));
        assert!(find_newest(&cut).is_err());
    }

    /// Proves that timers are given up, and nothing else, when the string would pass what brokers take.
    #[test]
    fn timers_give_way() {
        let targets = vec![Target { offset: 1, leader_epoch: 2 }; 200];
        let timers = (0..60).map(|n| (format!("a-long-name-of-a-timer-{n}"), n)).collect();
        let anchor = Anchor { writer: "w".into(), seq: 1, targets, stream_time: 5, timers };
        let text = anchor.encode();
        assert!(text.len() <= ANCHOR_BYTES_MAX, "{}", text.len());
        let read = Anchor::decode(&text).expect("ours").expect("ours");
        assert_eq!(read, Anchor { timers: Vec::new(), ..anchor });
    }

    /// Proves that a later format is named as such.
    #[test]
    fn later_version_is_named() {
        let text = format!("{PREFIX}{}", STANDARD_NO_PAD.encode(Writer(vec![9]).sealed()));
        assert_eq!(Anchor::decode(&text), Err(AnchorError::Version(9)));
    }
}
