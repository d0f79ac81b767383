//! What the examples share: their options, a broker of their own, children that are killed, and how they report.
//!
//! Each example is an [`Example`]: a topology, an input that follows from its number of records, and a proof, which
//! computes the result from the input again and compares. [`main`] does the rest:
//!
//! ```text
//!   broker (own, or --brokers) <- tables <- input, bit by bit
//!   --chaos:  child with the topology -> SIGKILL -> child in the same state folder -> SIGKILL -> ...
//!   then the topology in this process, in the same state folder, until everything is taken -> proof
//! ```
//!
//! Start here to see how an application is run; the topologies are in the examples themselves.

mod chaos;
mod cluster;
mod options;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use ottla_client::Record;
use ottla_env::{spawn, time};
use ottla_streams::app::App;
use ottla_streams::topology::{Topology, TopologyError};

use cluster::Cluster;
pub(crate) use cluster::{Found, topic};
pub(crate) use options::Options;
pub(crate) use report::{Proof, Table};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Longest that a run may take.
const LIMIT: Duration = Duration::from_secs(300);
/// How often it is looked whether all is done, and the view drawn.
const LOOK: Duration = Duration::from_millis(200);

/// An application that shows itself.
pub(crate) trait Example: Sized + Send + Sync + 'static {
    /// Its name on the command line, and the first part of the application's.
    const NAME: &'static str;
    /// What it does, for `--help`.
    const ABOUT: &'static str;
    /// Partitions of its topics.
    const PARTITIONS: i32;
    /// Topics that it reads, without the application's name; the tables' first.
    const INPUTS: &'static [&'static str];
    /// Topics that it writes, the first of them all the time.
    const OUTPUTS: &'static [&'static str];

    /// The example for these options.
    fn new(options: &Options) -> Result<Self, Failure>;
    /// What it computes; topics carry the application's name, see [`topic`].
    fn topology(application: &str) -> Result<Topology, TopologyError>;
    /// Records that must be in their table before the first one of the input.
    fn tables(&self, application: &str) -> Vec<Record>;
    /// How many records the input has.
    fn len(&self) -> usize;
    /// A record of the input.
    fn record(&self, application: &str, number: usize) -> Record;
    /// Whether all tables are there.
    fn is_loaded(&self, app: &App) -> Result<bool, Failure>;
    /// Whether everything that was read so far is committed.
    fn is_done(&self, app: &App, found: &Found) -> Result<bool, Failure>;
    /// What there is to see, from the stores.
    fn view(&self, app: &App) -> Result<Table, Failure>;
    /// Computes the result from the input and compares it with stores and topics.
    fn prove(&self, app: &App, found: &Found) -> Result<Proof, Failure>;
}

/// The whole of an example's `main`.
pub(crate) fn main<E: Example>() -> ExitCode {
    if let Some(code) = child::<E>() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match Options::parse(&arguments) {
        Ok(Some(options)) => match run::<E>(&options, &[]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                report::failed::<E>(&options, &error);
                ExitCode::FAILURE
            }
        },
        Ok(None) => {
            println!("{}\n\n{}", E::ABOUT, options::help(E::NAME));
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{problem}\n\n{}", options::help(E::NAME));
            ExitCode::from(2)
        }
    }
}

/// Runs the example; `again` are the arguments with which this program becomes a child of it (see [`child`]).
pub(crate) fn run<E: Example>(options: &Options, again: &[&str]) -> Result<(), Failure> {
    spawn::runtime(2)?.block_on(async {
        match time::timeout(LIMIT, story::<E>(options, again)).await {
            Ok(ended) => ended,
            Err(_) => Err(format!("it was not done within {LIMIT:?}").into()),
        }
    })
}

/// When this process is the child of an example: runs its application until it is killed.
pub(crate) fn child<E: Example>() -> Option<ExitCode> {
    chaos::child::<E>()
}

async fn story<E: Example>(options: &Options, again: &[&str]) -> Result<(), Failure> {
    let example = E::new(options)?;
    let cluster = Cluster::start::<E>(options).await?;
    let began = time::now();
    let mut app = App::start(E::topology(&cluster.application)?, cluster.settings()).await?;
    cluster.write(example.tables(&cluster.application)).await?;
    until(async || example.is_loaded(&app)).await?;
    let mut kills = chaos::Kills::default();
    if options.chaos {
        // The folder goes from hand to hand: this process had it, the children have it, and it comes back.
        app.stop().await?;
        kills = chaos::run(&example, &cluster, options, again).await?;
        app = App::start(E::topology(&cluster.application)?, cluster.settings()).await?;
    } else {
        let (allow, allowed) = tokio::sync::watch::channel(1);
        let feed = cluster.feed(&example, 1, allowed);
        tokio::pin!(feed);
        loop {
            tokio::select! {
                fed = &mut feed => break fed?,
                () = time::sleep(LOOK) => report::draw(options, &example.view(&app)?),
            }
        }
        drop(allow);
    }
    let found = finish(&example, &cluster, &app, options).await?;
    let proof = example.prove(&app, &found)?;
    let seconds = time::now().duration_since(began).as_secs_f64();
    let view = example.view(&app)?;
    report::proved::<E>(options, &view, &proof, &kills, (example.len(), seconds));
    app.leave().await?;
    cluster.end().await;
    Ok(())
}

/// Waits until all input is taken, and reads all topics to their ends.
async fn finish<E: Example>(
    example: &E,
    cluster: &Cluster,
    app: &App,
    options: &Options,
) -> Result<Found, Failure> {
    let input = cluster.read(E::INPUTS).await?;
    until(async || {
        report::draw(options, &example.view(app)?);
        match app.state() {
            ottla_streams::app::AppState::Failed(reason) => Err(reason.into()),
            _ => example.is_done(app, &input),
        }
    })
    .await?;
    Ok(cluster.read(E::OUTPUTS).await?.and(input))
}

async fn until(mut is_it: impl AsyncFnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    while !is_it().await? {
        time::sleep(LOOK).await;
    }
    Ok(())
}
