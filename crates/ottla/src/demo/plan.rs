//! When who is killed: from the seed alone, in terms of how much of the work is done. Pure.

use std::collections::VecDeque;
use std::fmt;

use ottla_env::rng::Rng;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    Broker,
    Source,
    Worker(u32),
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker => f.write_str("broker"),
            Self::Source => f.write_str("source"),
            Self::Worker(index) => write!(f, "worker-{index}"),
        }
    }
}

/// The kills to come.
#[derive(Debug)]
pub(super) struct Plan {
    /// Share of the work that is done before it, and who.
    kills: VecDeque<(f64, Victim)>,
}

/// No kill comes later than this, so that there is work to recover for.
const LAST_AT: f64 = 0.93;

impl Plan {
    /// Spreads kills over the work: the first hit worker, broker and source in turn, then at random.
    pub(super) fn new(kills: u32, workers: u32, rng: &mut dyn Rng) -> Self {
        let kills = (0..kills).map(|index| {
            let jitter = rng.below(1000) as f64 / 1000.0;
            let at = (f64::from(index) + 0.2 + 0.6 * jitter) / f64::from(kills) * LAST_AT;
            let worker = Victim::Worker(u32::try_from(rng.below(u64::from(workers))).expect("few workers"));
            let victim = match (index, rng.below(10)) {
                (0, _) => worker,
                (1, _) => Victim::Broker,
                (2, _) => Victim::Source,
                (_, 0..=3) => Victim::Broker,
                (_, 4..=5) => Victim::Source,
                _ => worker,
            };
            (at, victim)
        });
        Self { kills: kills.collect() }
    }

    /// Whether kills are left.
    pub(super) fn has_more(&self) -> bool {
        !self.kills.is_empty()
    }

    /// The kill that is due when so much is done; taken.
    pub(super) fn due(&mut self, done: f64) -> Option<Victim> {
        self.kills.pop_front_if(|(at, _)| *at <= done).map(|(_, victim)| victim)
    }
}

#[cfg(test)]
mod tests {
    use ottla_env::rng::SeededRng;

    use super::*;

    /// Proves that a plan depends on its seed alone, hits everybody, and is used up in order.
    #[test]
    fn plans() {
        let plan = |seed| Plan::new(40, 2, &mut SeededRng::new(seed));
        assert_eq!(plan(1).kills, plan(1).kills);
        assert_ne!(plan(1).kills, plan(2).kills);
        let mut plan = plan(3);
        assert!(plan.kills.iter().zip(plan.kills.iter().skip(1)).all(|(a, b)| a.0 < b.0));
        let victims: std::collections::BTreeSet<_> = plan.kills.iter().map(|(_, victim)| *victim).collect();
        assert_eq!(victims.len(), 4);
        assert_eq!(plan.due(0.0), None);
        let taken = std::iter::from_fn(|| plan.due(1.0)).count();
        assert!(taken == 40 && !plan.has_more());
    }
}
