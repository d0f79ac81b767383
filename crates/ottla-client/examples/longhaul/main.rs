//! Mixed load for as long as one likes, everything that is read checked: `cargo xtask prove soak`.
//!
//! | part | what it does | what must hold |
//! |---|---|---|
//! | `chain` | feeder -> in -> two workers -> mid -> two workers -> out; each batch one transaction; workers abort and are dropped | per key each number once, in order |
//! | `compacted` | updates and tombstones on a compacted topic, in transactions that commit and abort, and on one that is compacted and deleted | the last value of each key, order, nothing aborted |
//! | `kept` | two topics with short retention, by time and by size | offset n is record n, from the log start to the end, without a gap |
//! | `passing` | topics, groups of both protocols, idempotent and transactional producers that come, work and go | exactly what was committed |
//!
//! The broker may be killed and restarted at any time. Every part works until the time is over and then until all that it
//! has written was seen.
//!
//! Usage: `longhaul BOOTSTRAP SECONDS`, with `LONGHAUL_SEED` and `LONGHAUL_LOAD` (percent of the load, default 100). Each
//! ten seconds it prints one JSON object with what was done in them; when it writes no more, `{"settling": true}`; at the
//! end one object with all counts. Exit code 1 when anything is wrong.
//!
//! Not here: killing and watching the broker, which whoever starts this does.

mod chain;
mod compacted;
mod kept;
mod passing;
mod world;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ottla_client::{Admin, ClientSettings, SettingError};
use ottla_env::rng::{OsRng, Rng};
use ottla_env::spawn::{self, TaskHandle};
use ottla_env::time;
use world::World;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// Longest that a part may take behind the end to see all that it has written.
const PATIENCE: Duration = Duration::from_secs(180);

/// Settings that find a restarted broker quickly.
pub(crate) fn client(bootstrap: &str, name: &str) -> Result<ClientSettings, SettingError> {
    Ok(ClientSettings::new(bootstrap)?
        .client_id(name)
        .request_timeout(Duration::from_secs(15))
        .reconnect_backoff(Duration::from_millis(20))
        .reconnect_backoff_max(Duration::from_millis(200))
        .retry_backoff(Duration::from_millis(20))
        .retry_backoff_max(Duration::from_millis(200)))
}

/// A part that runs; a failure of it is a fault.
type Part = (&'static str, TaskHandle<Result<(), Failure>>);

fn parts(world: &Arc<World>) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![("chain", spawn::task("chain", chain::run(world.clone())))];
    for kind in compacted::Kind::ALL {
        parts.push(("compacted", spawn::task("compacted", compacted::run(world.clone(), kind))));
    }
    for kind in kept::Kind::ALL {
        parts.push(("kept", spawn::task("kept", kept::run(world.clone(), kind))));
    }
    for lane in 0..passing::LANES {
        parts.push(("passing", spawn::task("passing", passing::run(world.clone(), lane))));
    }
    parts
}

async fn run() -> Result<bool, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, seconds] = &arguments[..] else { return Err("usage: longhaul BOOTSTRAP SECONDS".into()) };
    let number = |name: &str, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().map_err(|_| format!("{name}={text} is not a number")),
        Err(_) => Ok(default),
    };
    let length = Duration::from_secs(seconds.parse()?);
    let seed = number("LONGHAUL_SEED", OsRng.below(1_000_000))?;
    let load = number("LONGHAUL_LOAD", 100)?.clamp(1, 10_000);
    let admin = Admin::connect(client(bootstrap, "longhaul")?).await?;
    let world = Arc::new(World::new(bootstrap.clone(), admin, seed, load));

    let (begin, mut tick) = (time::now(), time::now());
    let parts = parts(&world);
    while begin.elapsed() < length {
        tick = (tick + PROGRESS).min(begin + length);
        time::sleep_until(tick).await;
        println!("{}", world.progress(begin.elapsed()));
    }
    world.stop();
    println!("{{\"settling\": true}}");
    let deadline = time::now() + PATIENCE;
    for (name, mut part) in parts {
        match time::timeout_at(deadline, &mut part).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => world.fault(&format!("{name}: {error}")),
            Ok(Err(panic)) => world.fault(&format!("{name}: {panic}")),
            Err(_) => {
                part.abort();
                world.fault(&format!("{name}: not at its end {} s after the last write", PATIENCE.as_secs()));
            }
        }
    }
    println!("{}", world.judgement(begin.elapsed(), seed));
    Ok(world.is_sound())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("longhaul: {error}");
            ExitCode::from(2)
        }
    }
}
