//! Orders per customer: a table of totals, a join with the customers' names, and sales per minute.
//!
//! `cargo run --release -p ottla-streams --example orders -- [--chaos]` (`--help` for more)
//!
//! ```text
//!   orders ──┬── aggregate "totals" ── changes ── join "names" ──> totals
//!            └── window of a minute ── reduce "minutes" ── on close ──> minutes
//!   customers ── table "names"
//! ```
//!
//! The proof: each customer's totals came out one after another, none left out and none twice, with the right sum and
//! name; every minute that has ended came out once, with the sum that its orders have; and the stores say the same.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use ottla_client::Record;
use ottla_client::partitioner::partition_for_key;
use ottla_env::clock::{Clock, OsClock};
use ottla_env::rng::{Rng, SeededRng};
use ottla_streams::app::App;
use ottla_streams::codec::{I64, Json, Utf8};
use ottla_streams::dsl::Tumbling;
use ottla_streams::processor;
use ottla_streams::store::KvStore;
use ottla_streams::topology::{Topology, TopologyError};
use serde::{Deserialize, Serialize};

#[path = "kit/mod.rs"]
pub(crate) mod kit;
use kit::{Example, Failure, Found, Options, Proof, Table, topic};

const NAMES: [&str; 12] =
    ["Ada", "Ben", "Cem", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Kai", "Lena"];
const MINUTE_MS: i64 = 60_000;
/// Time between orders: event time, not ours.
const STEP_MS: i64 = 150;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    cents: i64,
}

/// What a customer has bought so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Total {
    orders: u64,
    cents: i64,
}

/// The same, with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Named {
    name: String,
    total: Total,
}

/// The example.
pub(crate) struct Orders {
    /// Customer and cents of each order.
    orders: Vec<(usize, i64)>,
    /// Event time of the first, at the start of a minute; all lie in the past.
    start_ms: i64,
}

impl Example for Orders {
    const NAME: &'static str = "orders";
    const ABOUT: &'static str = "Orders per customer: a table, a join and a window, exactly once.";
    const PARTITIONS: i32 = 3;
    const INPUTS: &'static [&'static str] = &["customers", "orders"];
    const OUTPUTS: &'static [&'static str] = &["totals", "minutes"];

    fn new(options: &Options) -> Result<Self, Failure> {
        let count = options.records.unwrap_or(30_000);
        let mut rng = SeededRng::new(1);
        let mut below = |limit| usize::try_from(rng.below(limit)).expect("small");
        let customers = NAMES.len() as u64;
        let orders: Vec<_> = (0..count).map(|_| (below(customers), 100 + below(9_900) as i64)).collect();
        let span_ms = i64::try_from(count)? * STEP_MS;
        let start_ms = (OsClock.wall_ms() - span_ms).div_euclid(MINUTE_MS) * MINUTE_MS;
        Ok(Self { orders, start_ms })
    }

    fn topology(application: &str) -> Result<Topology, TopologyError> {
        Topology::new(application, |b| {
            let orders = b.stream(&topic(application, "orders"), Utf8, Json::<Order>::new());
            let names = b.table(&topic(application, "customers"), "names", Utf8, Utf8);
            let totals =
                orders.group().aggregate("totals", Json::<Total>::new(), Total::default, |total, order| {
                    Total { orders: total.orders + 1, cents: total.cents + order.value.cents }
                });
            let named = totals.changes().join(&names, |total, name| Named { name, total });
            named.values_as(Json::new()).to(&topic(application, "totals"));

            let cents = orders.map_values(|_, order| order.cents).values_as(I64);
            let minutes = cents.window(Tumbling::of(Duration::from_secs(60))).reduce("minutes", |a, b| a + b);
            let closed = minutes.emit_on_close();
            let by_minute = closed.map(|r| {
                let key = format!("{} {}", r.key.key, r.key.start);
                processor::Record::new(key, r.value, r.timestamp)
            });
            by_minute.keys_as(Utf8).values_as(I64).to(&topic(application, "minutes"));
        })
    }

    fn tables(&self, application: &str) -> Vec<Record> {
        let customers = NAMES.iter().enumerate();
        customers
            .map(|(number, name)| {
                let record = Record::to(topic(application, "customers")).key(key(number)).value(*name);
                record.timestamp(self.start_ms)
            })
            .collect()
    }

    fn len(&self) -> usize {
        self.orders.len()
    }

    fn record(&self, application: &str, number: usize) -> Record {
        let (customer, cents) = self.orders[number];
        let value = serde_json::to_vec(&Order { cents }).expect("a number");
        let record = Record::to(topic(application, "orders")).key(key(customer)).value(value);
        record.timestamp(self.time(number))
    }

    fn is_loaded(&self, app: &App) -> Result<bool, Failure> {
        Ok(app.store::<KvStore<String, String>>("names")?.all()?.len() == NAMES.len())
    }

    fn is_done(&self, app: &App, found: &Found) -> Result<bool, Failure> {
        Ok(found.is_taken("orders", &app.store::<KvStore<String, Total>>("totals")?))
    }

    fn view(&self, app: &App) -> Result<Table, Failure> {
        let names: BTreeMap<_, _> =
            app.store::<KvStore<String, String>>("names")?.all()?.into_iter().collect();
        let mut totals = app.store::<KvStore<String, Total>>("totals")?.all()?;
        totals.sort_by_key(|(_, total)| std::cmp::Reverse(total.cents));
        let rows = totals.into_iter().map(|(key, total)| {
            let name = names.get(&key).cloned().unwrap_or_default();
            let amount = format!("{}.{:02}", total.cents / 100, total.cents % 100);
            vec![name, total.orders.to_string(), amount]
        });
        Ok(Table { head: vec!["customer", "orders", "amount"], rows: rows.collect() })
    }

    fn prove(&self, app: &App, found: &Found) -> Result<Proof, Failure> {
        let totals = self.prove_totals(found)?;
        let mut stored = app.store::<KvStore<String, Total>>("totals")?.all()?;
        stored.sort_by(|one, two| one.0.cmp(&two.0));
        if !stored.iter().map(|(key, total)| (key, total)).eq(&totals) {
            return Err(format!("the store has {stored:?}, the orders make {totals:?}").into());
        }
        let minutes = self.prove_minutes(found)?;
        Ok(Proof {
            sentence: format!(
                "{} orders of {} customers, each counted once and in order, under its name; {minutes} minutes \
                 closed once each with the right sum; the store says the same",
                self.len(),
                totals.len()
            ),
            figures: vec![
                ("orders", self.len() as u64),
                ("customers", totals.len() as u64),
                ("minutes", minutes as u64),
            ],
        })
    }
}

fn key(customer: usize) -> String {
    format!("customer-{customer:02}")
}

impl Orders {
    fn time(&self, number: usize) -> i64 {
        self.start_ms + i64::try_from(number).expect("bounded by the options") * STEP_MS
    }

    /// Every step of every customer's total, in order, is in the topic once, with the name. The last ones.
    fn prove_totals(&self, found: &Found) -> Result<BTreeMap<String, Total>, Failure> {
        let mut steps: BTreeMap<String, Vec<Named>> = BTreeMap::new();
        for (customer, cents) in &self.orders {
            let steps = steps.entry(key(*customer)).or_default();
            let Total { orders, cents: before } =
                steps.last().map_or_else(Total::default, |last| last.total.clone());
            let total = Total { orders: orders + 1, cents: before + cents };
            steps.push(Named { name: NAMES[*customer].to_owned(), total });
        }
        let mut seen: BTreeMap<String, Vec<Named>> = BTreeMap::new();
        for record in found.of("totals") {
            let (key, value) =
                (record.key.clone().unwrap_or_default(), record.value.clone().unwrap_or_default());
            seen.entry(String::from_utf8(key.to_vec())?).or_default().push(serde_json::from_slice(&value)?);
        }
        for (key, expected) in &steps {
            let got = seen.remove(key).unwrap_or_default();
            if got != *expected {
                let same = got.iter().zip(expected).take_while(|(one, two)| one == two).count();
                let (got, expected) = (got.get(same), expected.get(same));
                return Err(format!("total {same} of {key} is {got:?} and must be {expected:?}").into());
            }
        }
        if let Some(key) = seen.keys().next() {
            return Err(format!("nobody knows {key}").into());
        }
        let last = |steps: Vec<Named>| steps.last().map_or_else(Total::default, |last| last.total.clone());
        Ok(steps.into_iter().map(|(key, steps)| (key, last(steps))).collect())
    }

    /// Every minute of a customer that the last order of its partition ended is in the topic once.
    fn prove_minutes(&self, found: &Found) -> Result<usize, Failure> {
        let mut sums: BTreeMap<(usize, i64), i64> = BTreeMap::new();
        let mut ends: BTreeMap<i32, i64> = BTreeMap::new();
        let partition = |customer: usize| partition_for_key(key(customer).as_bytes(), Self::PARTITIONS);
        for (number, (customer, cents)) in self.orders.iter().enumerate() {
            let time = self.time(number);
            *sums.entry((*customer, time.div_euclid(MINUTE_MS) * MINUTE_MS)).or_default() += cents;
            ends.insert(partition(*customer), time);
        }
        sums.retain(|(customer, start), _| {
            ends.get(&partition(*customer)).is_some_and(|end| start + MINUTE_MS <= *end)
        });
        let expected: BTreeMap<String, i64> = sums
            .into_iter()
            .map(|((customer, start), sum)| (format!("{} {start}", key(customer)), sum))
            .collect();
        let mut seen = BTreeMap::new();
        for record in found.of("minutes") {
            let minute = String::from_utf8(record.key.clone().unwrap_or_default().to_vec())?;
            let sum = i64::from_be_bytes(record.value.clone().unwrap_or_default()[..].try_into()?);
            if seen.insert(minute.clone(), sum).is_some() {
                return Err(format!("minute {minute} closed twice").into());
            }
        }
        if seen != expected {
            let differs = expected.iter().find(|(minute, sum)| seen.get(*minute) != Some(*sum));
            return Err(format!(
                "{} minutes closed and {} must have; the first that differs: {differs:?}",
                seen.len(),
                expected.len()
            )
            .into());
        }
        Ok(expected.len())
    }
}

#[allow(dead_code)] // a test runs it otherwise
fn main() -> ExitCode {
    kit::main::<Orders>()
}
