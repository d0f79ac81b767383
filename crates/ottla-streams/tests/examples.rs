//! The examples, killed in the middle, with a broker in this process. Their children are this program again.
#![allow(clippy::duplicate_mod)] // each example is a program of its own, with its own copy of what they share

#[path = "../examples/enrichment.rs"]
mod enrichment;
#[path = "../examples/orders.rs"]
mod orders;
#[path = "../examples/word_count.rs"]
mod word_count;

use std::process::ExitCode;

/// The arguments with which this program runs one test, as a child.
fn only(test: &str) -> [&str; 4] {
    [test, "--exact", "--ignored", "--nocapture"]
}

fn ended(child: Option<ExitCode>) {
    assert!(child.is_none_or(|code| code == ExitCode::SUCCESS), "the child says why");
}

/// The child of the test below; a test of nothing when it is started by anybody else.
#[test]
#[ignore = "a process that is killed: `cargo test -p ottla-streams --test examples orders_with_chaos` starts it"]
fn orders_child() {
    ended(orders::kit::child::<orders::Orders>());
}

/// Proves that totals, joins and closed windows are exact though the process dies three times, and that the example
/// notices when they are not (it compares with its input).
#[test]
fn orders_with_chaos() {
    let options = orders::kit::Options::parse(&["--chaos", "--kills", "3", "--records", "4000"]);
    let options = options.expect("valid").expect("no help");
    orders::kit::run::<orders::Orders>(&options, &only("orders_child")).expect("proved");
}

/// The child of the test below.
#[test]
#[ignore = "a process that is killed: `cargo test -p ottla-streams --test examples word_count_with_chaos` starts it"]
fn word_count_child() {
    ended(word_count::kit::child::<word_count::WordCount>());
}

/// Proves that words go through a repartition topic and are counted once each though the process dies three times.
#[test]
fn word_count_with_chaos() {
    let options = word_count::kit::Options::parse(&["--chaos", "--kills", "3", "--records", "600", "--json"]);
    let options = options.expect("valid").expect("no help");
    word_count::kit::run::<word_count::WordCount>(&options, &only("word_count_child")).expect("proved");
}

/// The child of the test below.
#[test]
#[ignore = "a process that is killed: `cargo test -p ottla-streams --test examples enrichment_with_chaos` starts it"]
fn enrichment_child() {
    ended(enrichment::kit::child::<enrichment::Enrichment>());
}

/// Proves that each record is enriched or a dead letter, once, though the process dies three times.
#[test]
fn enrichment_with_chaos() {
    let options = enrichment::kit::Options::parse(&["--chaos", "--kills", "3", "--records", "4000"]);
    let options = options.expect("valid").expect("no help");
    enrichment::kit::run::<enrichment::Enrichment>(&options, &only("enrichment_child")).expect("proved");
}

/// Proves that wrong arguments are refused with what is right, and help is no error.
#[test]
fn arguments() {
    use orders::kit::Options;
    assert_eq!(Options::parse(&["--help"]), Ok(None));
    let refused = |arguments: &[&str]| Options::parse(arguments).expect_err("wrong");
    assert_eq!(refused(&["--kills", "0"]), "--kills must be a number from 1 to 1000, not `0`");
    assert_eq!(refused(&["--records", "many"]), "--records must be a number from 1 to 1000000, not `many`");
    assert_eq!(refused(&["--brokers"]), "--brokers needs a value");
    assert_eq!(refused(&["orders"]), "unknown argument `orders`");
    let options = Options::parse(&["--json"]).expect("valid").expect("no help");
    assert_eq!((options.kills, options.json, options.chaos), (8, true, false));
}
