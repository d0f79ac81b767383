//! Which partition a record goes to: by the key's hash as Java's or librdkafka's producers compute it, so that
//! producers in different languages agree on where a key lives.

use std::sync::atomic::{AtomicU32, Ordering};

/// Where a record goes that names no partition.
///
/// ```
/// use ottla_client::{ClientSettings, Partitioner, ProducerSettings};
///
/// // keys go where librdkafka's producers put them
/// let settings = ProducerSettings::new(ClientSettings::new("127.0.0.1:9092")?)
///     .partitioner(Partitioner::ConsistentRandom);
/// assert_eq!(settings.partitioner.name(), "consistent_random");
/// assert_eq!(Partitioner::from_name("murmur2"), Some(Partitioner::default()));
/// assert_eq!(Partitioner::ALL.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partitioner {
    /// murmur2 of the key, as Java's producer and librdkafka's `murmur2_random`; records without a key as `Sticky`.
    #[default]
    Murmur2,
    /// CRC-32 of the key, librdkafka's default; records without a key, or with an empty one, as `Sticky`.
    ConsistentRandom,
    /// Every record to the next partition, keys or not.
    RoundRobin,
    /// A batch's worth of records to one partition, then to another by chance; keys do not count (KIP-794 with
    /// `partitioner.ignore.keys`).
    Sticky,
}

impl Partitioner {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Murmur2, Self::ConsistentRandom, Self::RoundRobin, Self::Sticky];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Murmur2 => "murmur2",
            Self::ConsistentRandom => "consistent_random",
            Self::RoundRobin => "round_robin",
            Self::Sticky => "sticky",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|partitioner| partitioner.name() == name)
    }

    /// The partition of a record among `partition_count` (at least 1); absent when it may go anywhere.
    pub(crate) fn partition(
        self,
        key: Option<&[u8]>,
        partition_count: i32,
        round_robin: &AtomicU32,
    ) -> Option<i32> {
        match self {
            Self::Murmur2 => key.map(|key| partition_for_key(key, partition_count)),
            Self::ConsistentRandom => {
                let key = key.filter(|key| !key.is_empty())?;
                Some(modulo(crc32(key), partition_count))
            }
            Self::RoundRobin => Some(modulo(round_robin.fetch_add(1, Ordering::Relaxed), partition_count)),
            Self::Sticky => None,
        }
    }
}

/// CRC-32 as in zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes);
    u32::try_from(sum).expect("a 32-bit sum")
}

fn modulo(number: u32, partition_count: i32) -> i32 {
    let rest = i64::from(number) % i64::from(partition_count);
    i32::try_from(rest).expect("smaller than the partition count")
}

/// murmur2, 32 bit, with the seed Kafka's Java client uses (Austin Appleby's public domain algorithm).
///
/// ```
/// use ottla_client::partitioner::murmur2;
///
/// assert_eq!(murmur2(b"21"), 3_321_034_988); // -973932308 among Java's signed numbers
/// ```
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c_u32 ^ u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// The partition of a key among `partition_count` (at least 1).
///
/// ```
/// use ottla_client::partitioner::partition_for_key;
///
/// let partition = partition_for_key(b"alice", 6);
/// assert_eq!(partition, partition_for_key(b"alice", 6));
/// assert!((0..6).contains(&partition));
/// ```
pub fn partition_for_key(key: &[u8], partition_count: i32) -> i32 {
    assert!(partition_count > 0, "a topic has at least one partition");
    let positive = i32::try_from(murmur2(key) & 0x7fff_ffff).expect("31 bits fit");
    positive % partition_count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that the hash is Java's: values published with Kafka's own unit test of murmur2.
    #[test]
    fn hashes_are_javas() {
        let cases: [(&str, i32); 6] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ];
        for (text, hash) in cases {
            assert_eq!(murmur2(text.as_bytes()), u32::from_ne_bytes(hash.to_ne_bytes()), "{text}");
        }
    }

    /// Proves that librdkafka's default is followed: the check value of CRC-32 (IEEE), and no key goes anywhere.
    #[test]
    fn crc_is_librdkafkas() {
        let next = AtomicU32::new(0);
        let place = |key| Partitioner::ConsistentRandom.partition(key, 1000, &next);
        assert_eq!(place(Some(b"123456789".as_slice())), Some(modulo(0xcbf4_3926, 1000)));
        assert_eq!((place(Some(b"")), place(None)), (None, None));
    }

    /// Proves that names are found again, and that round robin takes every partition in turn.
    #[test]
    fn names_and_turns() {
        for partitioner in Partitioner::ALL {
            assert_eq!(Partitioner::from_name(partitioner.name()), Some(partitioner));
        }
        let next = AtomicU32::new(u32::MAX - 1);
        let turns: Vec<_> =
            (0..4).filter_map(|_| Partitioner::RoundRobin.partition(Some(b"k"), 2, &next)).collect();
        assert_eq!(turns, [0, 1, 0, 1]);
    }

    /// Proves that a partition is always in range, for the empty key too.
    #[test]
    fn partitions_are_in_range() {
        for count in [1, 3, 50, i32::MAX] {
            assert!((0..count).contains(&partition_for_key(b"", count)));
            assert!((0..count).contains(&partition_for_key(b"21", count)));
        }
    }
}
