//! A broker for each example of a documentation, so that examples run when the documentation is tested.
//!
//! Place in the walk: outside of it, a development dependency of the crates whose examples speak to a broker. An
//! example stands between two lines that rustdoc does not show:
//!
//! ```
//! # ottla_doctest::run(async |bootstrap| {
//! assert!(bootstrap.starts_with("127.0.0.1:"));
//! # Ok(())
//! # });
//! ```
//!
//! Invariants: every call starts a broker of its own, on a port that the system gives and in a temporary folder,
//! and ends it; an example that fails, or takes longer than a minute, panics, which is how rustdoc learns of it.
//!
//! Not here: anything that a program uses. It knows no client, so that clients may depend on it.

use std::error::Error;
use std::time::Duration;

use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_env::{spawn, time};

/// What an example comes to.
pub type Outcome = Result<(), Box<dyn Error>>;

/// Longest that an example may take.
const LIMIT: Duration = Duration::from_secs(60);
/// An example writes little; a small log file is quick to make.
const LOG_FILE_BYTES: u64 = 4 << 20;

/// Runs an example against a broker of its own; it is given the broker's address, `HOST:PORT`.
///
/// Members of a group need not wait for others: `group.initial.rebalance.delay.ms` is 0.
///
/// # Panics
///
/// When the example fails or takes longer than a minute, and when the broker cannot be started.
pub fn run(example: impl AsyncFnOnce(&str) -> Outcome) {
    spawn::runtime(1).expect("a runtime").block_on(async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = Config {
            listen: "127.0.0.1:0".to_owned(),
            dir: folder.path().display().to_string(),
            log_file_bytes: LOG_FILE_BYTES,
            ..Config::default()
        };
        config.core.group_initial_rebalance_delay_ms = 0;
        let broker = Broker::start(config).await.expect("a broker");
        let bootstrap = broker.local_addr().to_string();
        match time::timeout(LIMIT, example(&bootstrap)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => panic!("the example failed: {error}"),
            Err(_) => panic!("the example took longer than {} s", LIMIT.as_secs()),
        }
        broker.shutdown().await;
    });
}
