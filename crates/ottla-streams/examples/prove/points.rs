//! The named points at which a process kills itself, one after another in an order by chance, so that each has its turn;
//! and which row of the crash matrix each stands for.

use std::collections::BTreeMap;

use ottla_env::rng::{Rng, SeededRng, shuffle};
use ottla_streams::worker::Step;

/// The point in the restore threads.
const IN_RESTORE: &str = "in-restore";
/// At the latest at this pass of a point of a commit.
const PASSES: u64 = 12;
/// The user's code panics at the latest at this record.
const PANIC_AT: u64 = 40;
/// Points of a commit whose outcome is not known have one turn in so many rounds: each takes the broker away for long.
const AWAY_ONE_IN: u64 = 3;

/// What a process is sentenced to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// The point.
    pub(crate) point: &'static str,
    /// How it is told.
    pub(crate) environment: Vec<String>,
    /// The broker is to go away while the process asks it for a commit.
    pub(crate) takes_broker: bool,
}

impl Sentence {
    fn of(point: &'static str, rng: &mut SeededRng) -> Self {
        let step = Step::from_name(point);
        let is_rollback = step.is_some_and(|step| (Step::BeforeAbort..Step::BeforeReinit).contains(&step));
        let takes_broker = step.is_some_and(|step| step >= Step::BeforeReinit);
        let passes = match step {
            Some(step) if step < Step::BeforeAbort => rng.between(1, PASSES),
            _ => 1,
        };
        let mut environment = vec![format!("OTTLA_STREAMS_KILL_AT={point}:{passes}")];
        if is_rollback {
            environment.push(format!("PROVE_PANIC={}", rng.between(1, PANIC_AT)));
        }
        if takes_broker {
            let (at, pass) = (Step::BeforeEndTxn.name(), rng.between(2, PASSES));
            environment.push(format!("OTTLA_STREAMS_HOLD_AT={at}:{pass}"));
        }
        Self { point, environment, takes_broker }
    }
}

/// The points, and how often each was met.
pub(crate) struct Points {
    deck: Vec<&'static str>,
    rounds: u64,
    /// Whether the broker can be taken away.
    with_broker: bool,
    met: BTreeMap<&'static str, u64>,
}

impl Points {
    pub(crate) fn new(with_broker: bool) -> Self {
        Self { deck: Vec::new(), rounds: 0, with_broker, met: BTreeMap::new() }
    }

    /// The next point. A restore that can be interrupted comes after a commit that was not applied: its turn is dealt by
    /// [`Points::after`].
    pub(crate) fn next(&mut self, rng: &mut SeededRng) -> Sentence {
        if self.deck.is_empty() {
            let with_away = self.with_broker && self.rounds.is_multiple_of(AWAY_ONE_IN);
            self.rounds += 1;
            self.deck = Step::ALL
                .into_iter()
                .filter(|step| with_away || *step < Step::BeforeReinit)
                .map(Step::name)
                .collect();
            shuffle(rng, &mut self.deck);
        }
        let point = self.deck.pop().unwrap_or(IN_RESTORE);
        Sentence::of(point, rng)
    }

    /// A process was killed at a point: what it meets when it comes back, before anything else.
    pub(crate) fn after(point: &'static str, rng: &mut SeededRng) -> Option<Sentence> {
        let leaves_a_tail = point == Step::AfterEndTxn.name() || point == Step::InApply.name();
        (leaves_a_tail && rng.one_in(2)).then(|| Sentence::of(IN_RESTORE, rng))
    }

    /// A process has died at a point.
    pub(crate) fn met(&mut self, point: &'static str) {
        *self.met.entry(point).or_default() += 1;
    }

    /// It died otherwise: the point is due again.
    pub(crate) fn not_met(&mut self, sentence: &Sentence) {
        if sentence.point != IN_RESTORE {
            self.deck.push(sentence.point);
        }
    }

    fn all(&self) -> impl Iterator<Item = &'static str> {
        let with_broker = self.with_broker;
        let steps = Step::ALL.into_iter().filter(move |step| with_broker || *step < Step::BeforeReinit);
        steps.map(Step::name).chain([IN_RESTORE])
    }

    /// How often each was met.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.all().map(|point| (point, self.of(point))).collect()
    }

    /// Those that never were.
    pub(crate) fn missed(&self) -> Vec<&'static str> {
        self.all().filter(|point| self.of(point) == 0).collect()
    }

    fn of(&self, point: &str) -> u64 {
        self.met.get(point).copied().unwrap_or(0)
    }

    fn at(&self, steps: &[Step]) -> u64 {
        steps.iter().map(|step| self.of(step.name())).sum()
    }

    /// Kills by row of the crash matrix, as far as a point stands for one.
    pub(crate) fn rows(&self) -> BTreeMap<&'static str, u64> {
        [
            ("C1", self.at(&[Step::AfterSend, Step::BeforeFlush, Step::AfterFlush])),
            ("C2", self.at(&[Step::AfterOffsets, Step::BeforeEndTxn])),
            ("C3", self.at(&[Step::BeforeReinit])), // asked for, and not answered
            ("C4", self.at(&[Step::AfterEndTxn])),
            ("C5", self.at(&[Step::InApply])),
            ("C7", self.of(IN_RESTORE)),
        ]
        .into()
    }
}
