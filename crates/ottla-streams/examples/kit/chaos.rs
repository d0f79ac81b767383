//! Children that run the application and are killed in the middle.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use ottla_client::ClientSettings;
use ottla_client::admin::TransactionFilter;
use ottla_env::process::{self, Output};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::{spawn, time};
use ottla_streams::app::App;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::cluster::{Cluster, settings};
use super::{Example, Failure, Options};

/// How a child is told what to do.
const VARIABLE: &str = "OTTLA_STREAMS_EXAMPLE_CHILD";
/// Longest that a child may take to its first result.
const CHILD_LIMIT: Duration = Duration::from_secs(60);
/// A child is killed at most so many ms after its first result.
const AFTER_MAX_MS: u64 = 400;

/// What a child is told.
#[derive(Serialize, Deserialize)]
struct Told {
    example: String,
    application: String,
    bootstrap: String,
    state_dir: std::path::PathBuf,
}

/// What the kills met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kills {
    /// How many there were.
    pub(super) count: usize,
    /// How many left a transaction open.
    pub(super) met_open: usize,
}

pub(super) fn child<E: Example>() -> Option<ExitCode> {
    let told = std::env::var(VARIABLE).ok()?;
    let told: Told = serde_json::from_str(&told).ok()?;
    if told.example != E::NAME {
        return None;
    }
    // The parent holds the other end of our input: who is left without a parent ends.
    let watching = spawn::thread("parent", || {
        let mut nothing = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut nothing); // an end, by error or not
        std::process::exit(3);
    });
    match watching.map_err(Failure::from).and_then(|_| work::<E>(&told)) {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("the child failed: {error}");
            Some(ExitCode::FAILURE)
        }
    }
}

fn work<E: Example>(told: &Told) -> Result<(), Failure> {
    let settings = settings(ClientSettings::new(&told.bootstrap)?, told.state_dir.clone());
    spawn::runtime(2)?.block_on(async {
        let app = App::start(E::topology(&told.application)?, settings).await?;
        Ok(app.wait().await?)
    })
}

/// Writes the input while children work on it and are killed.
pub(super) async fn run<E: Example>(
    example: &E,
    cluster: &Cluster,
    options: &Options,
    again: &[&str],
) -> Result<Kills, Failure> {
    let (allow, allowed) = watch::channel(0);
    let feed = cluster.feed(example, options.kills + 1, allowed);
    let kill = async {
        let mut rng = SeededRng::new(7);
        let mut kills = Kills::default();
        while kills.count < options.kills {
            kills.count += 1;
            allow.send_replace(kills.count);
            let open = one::<E>(cluster, again, &mut rng).await?;
            kills.met_open += usize::from(open > 0);
            if !options.json {
                let committed = cluster.committed(E::OUTPUTS[0]).await?; // and a marker per transaction
                println!("kill {}: transactions left open: {open}; results so far: {committed}", kills.count);
            }
        }
        allow.send_replace(options.kills + 1); // the rest, for the parent
        Ok::<_, Failure>(kills)
    };
    let ((), kills) = tokio::try_join!(feed, kill)?;
    Ok(kills)
}

/// A child's life; tells how many transactions it left open.
async fn one<E: Example>(cluster: &Cluster, again: &[&str], rng: &mut SeededRng) -> Result<usize, Failure> {
    let before = cluster.committed(E::OUTPUTS[0]).await?;
    let mut child = start::<E>(cluster, again)?;
    let deadline = time::now() + CHILD_LIMIT;
    while cluster.committed(E::OUTPUTS[0]).await? <= before {
        if let Some(status) = child.try_wait()? {
            return Err(format!("a child ended by itself: {status}").into());
        }
        if time::now() > deadline {
            child.kill()?;
            return Err(format!("a child had no result within {CHILD_LIMIT:?}").into());
        }
        time::sleep(Duration::from_millis(10)).await;
    }
    time::sleep(Duration::from_millis(rng.below(AFTER_MAX_MS))).await;
    child.kill()?;
    let filter = TransactionFilter { states: vec!["Ongoing".into()], ..TransactionFilter::default() };
    let open = match cluster.admin.list_transactions(&filter).await {
        Err(error) if error.is_unsupported() => Vec::new(), // before Kafka 3.0 nobody tells
        listed => listed?,
    };
    let ours = format!("{}/", cluster.application);
    Ok(open.iter().filter(|listed| listed.transactional_id.starts_with(&ours)).count())
}

fn start<E: Example>(cluster: &Cluster, again: &[&str]) -> Result<process::Child, Failure> {
    let told = serde_json::to_string(&Told {
        example: E::NAME.to_owned(),
        application: cluster.application.clone(),
        bootstrap: cluster.bootstrap.clone(),
        state_dir: cluster.state_dir(),
    })?;
    let program = process::current_program()?;
    let mut arguments: Vec<OsString> = vec![format!("{VARIABLE}={told}").into(), program.into()];
    arguments.extend(again.iter().map(OsString::from));
    // `env` sets the variable and becomes the program: the process id is the child's.
    Ok(process::spawn(OsStr::new("env"), &arguments, true, Output::Null, Output::Inherit)?)
}
