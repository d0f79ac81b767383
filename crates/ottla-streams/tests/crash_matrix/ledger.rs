//! The topology under test, what goes in, and what must come out.
//!
//! Per key the input is 1, 2, 3, ... The processor counts (store `counts`), keeps the last number unless it is a
//! multiple of three (store `last`, so that there are deletes), and writes each count to `out`. A wall-clock timer
//! counts its ticks (store `ticks`) and writes each to `ticks-out`: a transaction without input. A second
//! sub-topology behind a repartition topic counts per group of keys.
//!
//! Exactly once means: the committed values of a key of `out`, `ticks-out` and `groups` are 1, 2, 3, ... without gap or
//! repetition; the stores are what the input makes of them.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_env::rng::{Rng, SeededRng};
use ottla_streams::codec::{Codec, I64, Utf8};
use ottla_streams::driver::{Driver, DriverError};
use ottla_streams::processor::{Context, ProcessError, Processor, Record, TimerClock};
use ottla_streams::store::KvStore;
use ottla_streams::topology::Topology;

pub(crate) const PARTITIONS: i32 = 4;
const KEYS: u64 = 12;

struct Counter {
    counts: KvStore<String, i64>,
    last: KvStore<String, i64>,
    ticks: KvStore<String, i64>,
    /// I5: lost in a rollback, and must not matter.
    seen: u64,
}

impl Counter {
    fn bump(
        store: &KvStore<String, i64>,
        key: &String,
        cx: &mut Context<'_, String, i64>,
    ) -> Result<i64, ProcessError> {
        // what a read says is passed over, as careless code would do: the task must notice all the same
        let count = cx.store(store).get(key).unwrap_or_default().unwrap_or(0) + 1;
        cx.store(store).put(key, &count)?;
        Ok(count)
    }
}

impl Processor for Counter {
    type KeyIn = String;
    type In = i64;
    type KeyOut = String;
    type Out = i64;

    fn init(&mut self, cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
        cx.schedule("tick", TimerClock::WallClock, Duration::from_millis(70))
    }

    fn process(
        &mut self,
        r: Record<String, i64>,
        cx: &mut Context<'_, String, i64>,
    ) -> Result<(), ProcessError> {
        self.seen += 1;
        let count = Self::bump(&self.counts, &r.key, cx)?;
        if r.value % 3 == 0 {
            cx.store(&self.last).delete(&r.key)?;
        } else {
            cx.store(&self.last).put(&r.key, &r.value)?;
        }
        cx.forward(r.with_value(count))
    }

    fn timer(
        &mut self,
        _name: &str,
        _at: i64,
        cx: &mut Context<'_, String, i64>,
    ) -> Result<(), ProcessError> {
        let key = format!("tick-{}", cx.task().partition);
        let count = Self::bump(&self.ticks, &key, cx)?;
        let time = cx.stream_time().max(0);
        cx.forward(Record::new(key, count, time))
    }
}

/// The topology.
pub(crate) fn topology() -> Topology {
    Topology::new("ledger", |b| {
        let counts = b.kv_store("counts", Utf8, I64);
        let last = b.kv_store("last", Utf8, I64);
        let ticks = b.kv_store("ticks", Utf8, I64);
        let input = b.stream("in", Utf8, I64);
        let (c, l, t) = (counts.clone(), last.clone(), ticks.clone());
        let counted = input
            .process("counter", &[&counts, &last, &ticks], move || Counter {
                counts: c.clone(),
                last: l.clone(),
                ticks: t.clone(),
                seen: 0,
            })
            .keys_as(Utf8)
            .values_as(I64);
        counted.filter(|r| r.key.starts_with("tick")).to("ticks-out");
        counted.filter(|r| !r.key.starts_with("tick")).to("out");
        input.key_by("by-group", Utf8, |r| group(&r.key)).group().count("group-counts").to("groups");
    })
    .expect("a sound topology")
}

fn group(key: &str) -> String {
    format!("g{}", key.len() + usize::from(key.as_bytes()[1]) % 3)
}

/// A driver with its input.
pub(crate) struct Ledger {
    pub(crate) driver: Driver,
    pub(crate) rng: SeededRng,
    pub(crate) sent: BTreeMap<String, i64>,
    pub(crate) seed: u64,
}

impl Ledger {
    pub(crate) fn new(seed: u64, set_up: impl FnOnce(Driver) -> Driver) -> Self {
        let driver = Driver::new(topology()).partitions("in", PARTITIONS).seed(seed);
        Self { driver: set_up(driver), rng: SeededRng::new(seed ^ 0xfeed), sent: BTreeMap::new(), seed }
    }

    /// Writes so many records.
    pub(crate) fn feed(&mut self, records: u64) {
        for _ in 0..records {
            let key = format!("k{}", self.rng.below(KEYS));
            let number = self.sent.entry(key.clone()).or_insert(0);
            *number += 1;
            let number = *number;
            self.driver.pipe_as("in", (&Utf8, &key), (&I64, &number)).expect("the topic is there");
        }
    }

    /// Lets a few rounds and a little time pass.
    pub(crate) fn work(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.driver.round().expect("it started");
            if self.rng.one_in(3) {
                let ms = self.rng.below(60);
                self.driver.advance(Duration::from_millis(ms)).expect("it started");
            }
        }
    }

    /// Everything that must hold, or the first thing that does not.
    pub(crate) fn verdict(&mut self) -> Result<(), String> {
        self.driver.run().map_err(|error| error.to_string())?;
        if let Err(error) = self.driver.check() {
            let DriverError::Violated { found, .. } = error else { return Err(error.to_string()) };
            return Err(found.join("; "));
        }
        let refused = self.driver.refused();
        if !refused.is_empty() {
            return Err(format!("refused: {}", refused.join("; ")));
        }
        let out = self.sequences("out")?;
        if out != self.sent {
            return Err(format!("out has {out:?}, the input {:?}", self.sent));
        }
        let ticks = self.sequences("ticks-out")?;
        self.compare("ticks", &ticks)?;
        self.compare("counts", &self.sent.clone())?;
        let last = |(key, number): (&String, &i64)| (number % 3 != 0).then(|| (key.clone(), *number));
        self.compare("last", &self.sent.iter().filter_map(last).collect())?;
        let mut groups: BTreeMap<String, i64> = BTreeMap::new();
        for (key, number) in &self.sent {
            *groups.entry(group(key)).or_default() += number;
        }
        let told = self.sequences("groups")?;
        if told != groups {
            return Err(format!("groups has {told:?}, the input {groups:?}"));
        }
        self.compare("group-counts", &groups)
    }

    /// Asserts that everything holds, and names the seed if not.
    pub(crate) fn prove(&mut self) {
        if let Err(reason) = self.verdict() {
            panic!("seed {}: {reason}\nfailures: {:?}", self.seed, self.driver.failures());
        }
    }

    /// Per key of a topic, the last of its values, which must be 1, 2, 3, ...
    pub(crate) fn sequences(&mut self, topic: &str) -> Result<BTreeMap<String, i64>, String> {
        let mut last = BTreeMap::new();
        for found in self.driver.read_all(topic).map_err(|error| error.to_string())? {
            let key =
                Utf8.decode(&found.record.key.unwrap_or_default()).map_err(|error| error.to_string())?;
            let value =
                I64.decode(&found.record.value.unwrap_or_default()).map_err(|error| error.to_string())?;
            let before = last.insert(key.clone(), value).unwrap_or(0);
            if value != before + 1 {
                return Err(format!(
                    "{topic}: key {key} goes from {before} to {value} at offset {}",
                    found.offset
                ));
            }
        }
        Ok(last)
    }

    fn compare(&mut self, store: &str, wanted: &BTreeMap<String, i64>) -> Result<(), String> {
        let held = self.driver.store::<String, i64>(store).map_err(|error| error.to_string())?;
        if held == *wanted {
            Ok(())
        } else {
            Err(format!("store {store} holds {held:?}, should hold {wanted:?}"))
        }
    }

    /// Replayed changelog records, over all processes.
    pub(crate) fn replayed(&self) -> u64 {
        self.driver.counts().iter().map(|counts| counts.replayed).sum()
    }

    pub(crate) fn rebuilds(&self) -> u64 {
        self.driver.counts().iter().map(|counts| counts.rebuilds).sum()
    }
}
