//! The door to randomness.
//!
//! `OsRng` is unpredictable (file nonces, cluster and topic ids); `SeededRng` is the same for ever from the same
//! seed, on every machine and in every version of Ottla, because a failing seed is kept as a test.

/// A source of random numbers.
pub trait Rng: Send {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;

    /// Fills the buffer.
    fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    fn below(&mut self, bound: u64) -> u64 {
        u64::try_from((u128::from(self.next_u64()) * u128::from(bound)) >> 64)
            .expect("a high half fits 64 bits")
    }

    /// A number in `low..=high`.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range has no number");
        low + self.below((high - low).saturating_add(1))
    }

    /// An index into something with `len` elements (`len` > 0).
    fn index(&mut self, len: usize) -> usize {
        assert!(len > 0, "nothing to choose from");
        usize::try_from(self.below(len as u64)).expect("smaller than a usize")
    }

    /// True `parts` times in a million.
    fn chance(&mut self, parts_per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(parts_per_million)
    }

    /// True one time in `n`.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Shuffles in place.
pub fn shuffle<T>(rng: &mut dyn Rng, items: &mut [T]) {
    for index in (1..items.len()).rev() {
        items.swap(index, rng.index(index + 1));
    }
}

/// The operating system's generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsRng;

impl Rng for OsRng {
    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn fill(&mut self, mut buffer: &mut [u8]) {
        while !buffer.is_empty() {
            let n = rustix::io::retry_on_intr(|| {
                rustix::rand::getrandom(&mut *buffer, rustix::rand::GetRandomFlags::empty())
            })
            .expect("getrandom cannot fail on the kernels we support");
            buffer = buffer.split_at_mut(n).1;
        }
    }
}

/// xoshiro256** (Blackman and Vigna, 2018) seeded by splitmix64. Not for secrets.
#[derive(Clone, Debug)]
pub struct SeededRng {
    state: [u64; 4],
}

impl SeededRng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        let mut mix = seed;
        let state = [(); 4].map(|()| {
            mix = mix.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { state }
    }

    /// A generator of its own for a part of the run, so that one part drawing more does not change the others.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

impl Rng for SeededRng {
    fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that a seed gives the same numbers for ever: the first ones of seed 0 are pinned.
    #[test]
    fn seeded_numbers_are_pinned() {
        let mut rng = SeededRng::new(0);
        assert_eq!(rng.next_u64(), 0x99ec_5f36_cb75_f2b4);
        let (mut a, mut b) = (SeededRng::new(7), SeededRng::new(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        assert_ne!(SeededRng::new(7).next_u64(), SeededRng::new(8).next_u64());
    }

    /// Proves that the helpers stay inside their ranges and reach both ends.
    #[test]
    fn ranges_hold() {
        let mut rng = SeededRng::new(1);
        let drawn: Vec<u64> = (0..1_000).map(|_| rng.between(3, 5)).collect();
        assert!(drawn.iter().all(|n| (3..=5).contains(n)) && drawn.contains(&3) && drawn.contains(&5));
        assert_eq!(rng.below(0), 0);
        let mut items: Vec<u32> = (0..50).collect();
        shuffle(&mut rng, &mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }

    /// Proves that the operating system's generator fills odd lengths and does not repeat itself.
    #[test]
    fn os_numbers_differ() {
        let (mut a, mut b) = ([0; 33], [0; 33]);
        OsRng.fill(&mut a);
        OsRng.fill(&mut b);
        assert_ne!(a, b);
    }
}
