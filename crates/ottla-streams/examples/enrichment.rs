//! Sales with the name and the price of their product, and dead letters for those that have none or cannot be read.
//!
//! `cargo run --release -p ottla-streams --example enrichment -- [--chaos]` (`--help` for more)
//!
//! ```text
//!   sales ── (not JSON?) ── left join "products" ── (unknown? none sold?) ──> enriched
//!                  └───────────────────┴────────────────────────────────────> dead
//!   products ── table "products"
//! ```
//!
//! A dead letter is written in the same transaction as the position that moves past its record. The proof: each sale
//! came out once, in the order of its partition, in exactly one of the two topics, and the right one; enriched ones
//! with the right name and amount, dead ones as they were, with the place where they came from.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::ExitCode;

use ottla_client::partitioner::partition_for_key;
use ottla_client::{ConsumerRecord, Record};
use ottla_env::rng::{Rng, SeededRng};
use ottla_streams::app::App;
use ottla_streams::codec::{Json, Utf8};
use ottla_streams::store::KvStore;
use ottla_streams::task::{Policies, Policy};
use ottla_streams::topology::{Topology, TopologyError};
use serde::{Deserialize, Serialize};

#[path = "kit/mod.rs"]
pub(crate) mod kit;
use kit::{Example, Failure, Found, Options, Proof, Table, topic};

/// Name and cents of each product that is known; there are sales of two more.
const PRODUCTS: [(&str, i64); 6] = [
    ("lamp", 4_900),
    ("desk", 18_900),
    ("chair", 7_500),
    ("shelf", 6_000),
    ("rug", 12_000),
    ("clock", 3_200),
];
const UNKNOWN: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Product {
    name: String,
    cents: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sale {
    number: usize,
    pieces: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Enriched {
    number: usize,
    product: String,
    cents: i64,
}

/// A sale with what is known of its product, or why it is none.
fn enrich((sale, product): (Sale, Option<Product>)) -> Result<Enriched, &'static str> {
    let product = product.ok_or("nobody knows this product")?;
    if sale.pieces == 0 {
        return Err("nothing was sold");
    }
    Ok(Enriched { number: sale.number, product: product.name, cents: product.cents * sale.pieces })
}

fn product(number: usize) -> Option<Product> {
    PRODUCTS.get(number).map(|(name, cents)| Product { name: (*name).to_owned(), cents: *cents })
}

fn key(product: usize) -> String {
    format!("product-{product}")
}

/// The example.
pub(crate) struct Enrichment {
    /// Product and value of each sale.
    sales: Vec<(usize, Vec<u8>)>,
}

impl Enrichment {
    /// What becomes of a sale.
    fn outcome(&self, number: usize) -> Option<Enriched> {
        let (sold, value) = &self.sales[number];
        let sale = serde_json::from_slice(value).ok()?;
        enrich((sale, product(*sold))).ok()
    }
}

impl Example for Enrichment {
    const NAME: &'static str = "enrichment";
    const ABOUT: &'static str = "Sales with names and prices, and dead letters, exactly once.";
    const PARTITIONS: i32 = 3;
    const INPUTS: &'static [&'static str] = &["products", "sales"];
    const OUTPUTS: &'static [&'static str] = &["enriched", "dead"];

    fn new(options: &Options) -> Result<Self, Failure> {
        let mut rng = SeededRng::new(2);
        let mut below = |limit| usize::try_from(rng.below(limit)).expect("small");
        let sales = (0..options.records.unwrap_or(30_000)).map(|number| {
            let product = below((PRODUCTS.len() + UNKNOWN) as u64);
            let value = match below(20) {
                0 => format!("sale {number} in words").into_bytes(),
                pieces => {
                    let pieces = i64::try_from(pieces % 10).expect("small");
                    serde_json::to_vec(&Sale { number, pieces }).expect("numbers")
                }
            };
            (product, value)
        });
        Ok(Self { sales: sales.collect() })
    }

    fn topology(application: &str) -> Result<Topology, TopologyError> {
        Topology::new(application, |b| {
            let dead = Policy::DeadLetter(topic(application, "dead"));
            b.policies(Policies {
                on_decode_error: dead.clone(),
                on_process_error: dead,
                ..Policies::default()
            });
            let products = b.table(&topic(application, "products"), "products", Utf8, Json::<Product>::new());
            let sales = b.stream(&topic(application, "sales"), Utf8, Json::<Sale>::new());
            let both = sales.left_join(&products, |sale, product| (sale, product));
            let enriched = both.try_map_values(|_, both| Ok(enrich(both)?));
            enriched.values_as(Json::new()).to(&topic(application, "enriched"));
        })
    }

    fn tables(&self, application: &str) -> Vec<Record> {
        let products = (0..PRODUCTS.len()).map(|number| {
            let value = serde_json::to_vec(&product(number)).expect("text and a number");
            Record::to(topic(application, "products")).key(key(number)).value(value)
        });
        products.collect()
    }

    fn len(&self) -> usize {
        self.sales.len()
    }

    fn record(&self, application: &str, number: usize) -> Record {
        let (product, value) = &self.sales[number];
        Record::to(topic(application, "sales")).key(key(*product)).value(value.clone())
    }

    fn is_loaded(&self, app: &App) -> Result<bool, Failure> {
        Ok(app.store::<KvStore<String, Product>>("products")?.all()?.len() == PRODUCTS.len())
    }

    fn is_done(&self, app: &App, found: &Found) -> Result<bool, Failure> {
        Ok(found.is_taken("sales", &app.store::<KvStore<String, Product>>("products")?))
    }

    fn view(&self, app: &App) -> Result<Table, Failure> {
        let products = app.store::<KvStore<String, Product>>("products")?.all()?;
        let rows = products.into_iter().map(|(key, product)| {
            vec![key, product.name, format!("{}.{:02}", product.cents / 100, product.cents % 100)]
        });
        Ok(Table { head: vec!["product", "name", "price"], rows: rows.collect() })
    }

    fn prove(&self, _app: &App, found: &Found) -> Result<Proof, Failure> {
        let places = self.places(found.of("sales"))?;
        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<(bool, i32), usize> = BTreeMap::new();
        let mut once =
            |number: usize, is_dead: bool, partition: i32| match last.insert((is_dead, partition), number) {
                _ if !seen.insert(number) => Err(format!("sale {number} came out twice")),
                Some(before) if before > number => Err(format!("sale {number} came out after {before}")),
                Some(_) | None => Ok(()),
            };
        for record in found.of("enriched") {
            let enriched: Enriched = serde_json::from_slice(&record.value.clone().unwrap_or_default())?;
            let number = enriched.number;
            if number >= self.len() || self.outcome(number).as_ref() != Some(&enriched) {
                return Err(format!("{enriched:?} is not what sale {number} makes").into());
            }
            once(number, false, record.topic_partition.partition)?;
        }
        for record in found.of("dead") {
            let place = (header(record, "ottla.partition")?, header(record, "ottla.offset")?);
            let number = *places.get(&place).ok_or("a dead letter of nowhere")?;
            if self.outcome(number).is_some()
                || record.value.as_deref() != Some(self.sales[number].1.as_slice())
            {
                return Err(
                    format!("sale {number} is a dead letter and should not be, or not as it was").into()
                );
            }
            once(number, true, i32::try_from(place.0)?)?;
        }
        if seen.len() != self.len() {
            let missing = (0..self.len()).find(|number| !seen.contains(number));
            return Err(
                format!("{} of {} sales came out; {missing:?} did not", seen.len(), self.len()).into()
            );
        }
        let (enriched, dead) = (found.of("enriched").len(), found.of("dead").len());
        Ok(Proof {
            sentence: format!(
                "{} sales, each once and in order: {enriched} enriched with the right name and amount, {dead} dead \
                 letters as they were",
                self.len()
            ),
            figures: vec![
                ("sales", self.len() as u64),
                ("enriched", enriched as u64),
                ("dead_letters", dead as u64),
            ],
        })
    }
}

impl Enrichment {
    /// The number of the sale at each partition and offset of the input, which must hold what was written.
    fn places(&self, sales: &[ConsumerRecord]) -> Result<BTreeMap<(i64, i64), usize>, Failure> {
        let mut of_partition: BTreeMap<i32, VecDeque<usize>> = BTreeMap::new();
        for (number, (product, _)) in self.sales.iter().enumerate() {
            let partition = partition_for_key(key(*product).as_bytes(), Self::PARTITIONS);
            of_partition.entry(partition).or_default().push_back(number);
        }
        let mut places = BTreeMap::new();
        for record in sales {
            let partition = record.topic_partition.partition;
            let number =
                of_partition.get_mut(&partition).and_then(VecDeque::pop_front).ok_or("a sale too many")?;
            if record.value.as_deref() != Some(self.sales[number].1.as_slice()) {
                return Err(format!("the input does not hold sale {number}").into());
            }
            places.insert((i64::from(partition), record.offset), number);
        }
        Ok(places)
    }
}

/// A number in a header.
fn header(record: &ConsumerRecord, name: &str) -> Result<i64, Failure> {
    let found = record.headers.iter().find(|header| header.key == name);
    let value = found.and_then(|header| header.value.clone()).ok_or("a dead letter without its place")?;
    Ok(std::str::from_utf8(&value)?.parse()?)
}

#[allow(dead_code)] // a test runs it otherwise
fn main() -> ExitCode {
    kit::main::<Enrichment>()
}
