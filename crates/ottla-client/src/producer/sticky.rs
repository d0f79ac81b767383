//! Where records without a key go: one partition until a batch's worth of bytes went there, then another by
//! chance (KIP-794).
//!
//! Chance prefers partitions with short queues, so that a slow broker gets less, and never takes a partition
//! without a leader while another has one. Pure: queue lengths and randomness are handed in.

use ottla_env::rng::Rng;

/// The partition a topic's keyless records go to at present.
#[derive(Debug, Default)]
pub(super) struct Sticky {
    partition: Option<i32>,
    bytes: usize,
}

impl Sticky {
    /// The partition, absent when it is time to choose or the topic has shrunk.
    pub(super) fn partition(&self, count: i32) -> Option<i32> {
        self.partition.filter(|partition| *partition < count)
    }

    /// Counts a record. At a batch's end the partition is left when `batch_bytes` went there; at twice that in any
    /// case.
    pub(super) fn count(&mut self, bytes: usize, batch_bytes: usize, at_boundary: bool) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= batch_bytes && at_boundary || self.bytes / 2 >= batch_bytes {
            self.partition = None;
        }
    }

    /// Chooses a partition. `leaders` has the leader of each, -1 for none; `waiting` tells how many batches a
    /// partition has in its queue.
    pub(super) fn choose(
        &mut self,
        leaders: &[i32],
        waiting: impl Fn(i32) -> usize,
        rng: &mut dyn Rng,
    ) -> i32 {
        let nobody_leads = leaders.iter().all(|leader| *leader < 0);
        let candidates = (0_i32..).zip(leaders).filter(|(_, leader)| nobody_leads || **leader >= 0);
        let queues: Vec<(i32, usize)> = candidates.map(|(at, _)| (at, waiting(at))).collect();
        let longest = queues.iter().map(|(_, length)| *length).max().unwrap_or(0);
        let weight = |length: usize| (longest - length + 1) as u64;
        let mut at = rng.below(queues.iter().map(|(_, length)| weight(*length)).sum());
        let mut chosen = 0;
        for (partition, length) in queues {
            chosen = partition;
            match at.checked_sub(weight(length)) {
                Some(left) => at = left,
                None => break,
            }
        }
        *self = Self { partition: Some(chosen), bytes: 0 };
        chosen
    }
}

#[cfg(test)]
mod tests {
    use ottla_env::rng::SeededRng;

    use super::*;

    /// Proves that a partition is kept for a batch's worth of bytes and left at the batch's end, or at twice that.
    #[test]
    fn a_partition_is_kept_for_a_batch() {
        let mut sticky = Sticky::default();
        assert_eq!(sticky.partition(3), None);
        let chosen = sticky.choose(&[1, 1, 1], |_| 0, &mut SeededRng::new(1));
        sticky.count(99, 100, true);
        assert_eq!((sticky.partition(3), sticky.partition(chosen)), (Some(chosen), None));
        sticky.count(50, 100, false);
        assert_eq!(sticky.partition(3), Some(chosen), "not in the middle of a batch");
        sticky.count(51, 100, false);
        assert_eq!(sticky.partition(3), None);
    }

    /// Proves that over many choices each partition gets its share: equal when queues are, less with a long queue,
    /// none without a leader unless nobody has one.
    #[test]
    fn shares_follow_queues_and_leaders() {
        let mut rng = SeededRng::new(7);
        let mut shares = |leaders: &[i32], queues: [usize; 4]| {
            let mut counts = [0; 4];
            for _ in 0..10_000 {
                let chosen = Sticky::default().choose(leaders, |at| queues[at as usize], &mut rng);
                counts[chosen as usize] += 1;
            }
            counts
        };
        let equal = shares(&[1, 1, 1, 1], [2; 4]);
        assert!(equal.iter().all(|count| (2_200..2_800).contains(count)), "{equal:?}");
        let busy = shares(&[1, 1, 1, 1], [9, 0, 0, 0]);
        assert!(busy[0] < 700 && busy[1] > 2_700, "{busy:?}");
        let alone = shares(&[-1, -1, 3, -1], [0; 4]);
        assert_eq!(alone, [0, 0, 10_000, 0]);
        assert!(shares(&[-1; 4], [0; 4]).iter().all(|count| *count > 2_000));
    }
}
