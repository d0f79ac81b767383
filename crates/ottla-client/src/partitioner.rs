//! Which partition a record goes to: murmur2 of the key like Java's client, so that producers in different
//! languages agree on where a key lives.

/// murmur2, 32 bit, with the seed Kafka's Java client uses (Austin Appleby's public domain algorithm).
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

    /// Proves that a partition is always in range, for the empty key too.
    #[test]
    fn partitions_are_in_range() {
        for count in [1, 3, 50, i32::MAX] {
            assert!((0..count).contains(&partition_for_key(b"", count)));
            assert!((0..count).contains(&partition_for_key(b"21", count)));
        }
    }
}
