//! `cargo xtask bench --parts streams`: `ottla-streams` beside Kafka Streams 4.4, the same topology, in one run.
//!
//! Every side gets an empty broker, the same records (loaded by the same Java program) and an empty state folder; it is
//! killed with SIGKILL in the middle and started again in the same folder at once. Both programs tell events line by
//! line (`crates/ottla-streams/examples/streams_bench.rs`, `compat/java/StreamsBench.java`); times are this program's,
//! from the signal or the start of the process to the line. Memory and processor time come from `/proc`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Figures, KAFKA_JVM, Options};
use crate::broker::{Broker, Kind};
use crate::run::{self, Workspace};

/// What Kafka Streams gets, as its heap.
const STREAMS_JVM: &str = "-Xmx1g";
/// What ours gets: how many arenas the C library's allocator makes. Without it there are eight per core, each with
/// holes of its own.
const OUR_ARENAS: &str = "2";
/// Longest time of one start of an application.
const LIMIT: Duration = Duration::from_secs(420);
/// Between two looks at memory.
const SAMPLE: Duration = Duration::from_millis(100);

/// What to do.
#[derive(clap::Args)]
pub(super) struct Asked {
    /// streams: records of the throughput load
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// streams: keys of the throughput load; times the bytes of a value is its state
    #[arg(long, default_value_t = 200_000)]
    keys: u64,
    /// streams: bytes of a value, in both loads
    #[arg(long, default_value_t = 1_000)]
    value_bytes: u64,
    /// streams: leave the state of 1 GiB out
    #[arg(long)]
    small_only: bool,
    /// streams: so many rounds of all sides in turn, medians of them
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// streams: this program (the example streams_bench) as ours, instead of building it
    #[arg(long)]
    program: Option<PathBuf>,
}

impl Asked {
    /// As a person would type it, behind `--parts streams`.
    pub(super) fn shown(&self) -> String {
        let Self { records, keys, value_bytes, small_only, repeat, .. } = self;
        let rest = if *small_only { " --small-only" } else { "" };
        format!("--records {records} --keys {keys} --value-bytes {value_bytes} --repeat {repeat}{rest}")
    }
}

/// Who is measured, on which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    name: &'static str,
    broker: Kind,
    program: Program,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Ours,
    KafkaStreams { transactional: bool, is_static: bool },
}

const SIDES: [Side; 5] = [
    Side { name: "ottla-streams on Ottla", broker: Kind::Ottla, program: Program::Ours },
    Side {
        name: "Kafka Streams",
        broker: Kind::Kafka,
        program: Program::KafkaStreams { transactional: false, is_static: false },
    },
    Side { name: "ottla-streams on Kafka", broker: Kind::Kafka, program: Program::Ours },
    Side {
        name: "Kafka Streams, transactional stores",
        broker: Kind::Kafka,
        program: Program::KafkaStreams { transactional: true, is_static: false },
    },
    Side {
        name: "the same, static membership",
        broker: Kind::Kafka,
        program: Program::KafkaStreams { transactional: true, is_static: true },
    },
];

/// What is loaded, and how much of it is processed before the kill.
#[derive(Clone, Copy, Debug)]
struct Load {
    records: u64,
    keys: u64,
    value_bytes: u64,
    kill_at: u64,
    /// Go on to the end after the kill.
    to_the_end: bool,
}

/// Programs that were built.
struct Programs {
    ours: PathBuf,
    classes: PathBuf,
    classpath: String,
    ottla: PathBuf,
}

/// Measures all sides in turn, so often as asked for; the median of each figure.
pub(super) fn measure(workspace: &Workspace, options: &Options) -> Result<Vec<(&'static str, Figures)>> {
    let programs = build(workspace, options)?;
    let is_asked = |side: &&Side| {
        let broker = if side.broker == Kind::Ottla { "ottla" } else { "kafka" };
        options.brokers.iter().any(|name| name == broker)
    };
    let mut all: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for round in 0..options.streams.repeat.max(1) {
        for side in SIDES.iter().filter(is_asked) {
            run::step(&format!("{}, round {}", side.name, round + 1));
            let mut figures = Figures::new();
            figures.insert("load of the machine before".into(), load_average());
            for (name, load) in loads(options, round) {
                once(workspace, &programs, *side, name, load, &mut figures)
                    .with_context(|| format!("{}, {name}", side.name))?;
            }
            all.entry(side.name).or_default().push(figures);
        }
    }
    let columns = SIDES.iter().filter_map(|side| Some((side.name, medians(all.get(side.name)?))));
    Ok(columns.collect())
}

/// What each round does. The large state is measured once: it is slow, and only about the way back.
fn loads(options: &Options, round: u32) -> Vec<(&'static str, Load)> {
    let (records, keys, value_bytes) = match options.quick {
        true => (60_000, 20_000, 200),
        false => (options.streams.records, options.streams.keys, options.streams.value_bytes),
    };
    let kill_at = records / 2;
    let small = Load { records, keys, value_bytes, kill_at, to_the_end: true };
    let mut all = vec![("200 MiB", small)];
    if !options.quick && round == 0 && !options.streams.small_only {
        let keys = (1 << 30) / value_bytes.max(1);
        let (records, kill_at) = (keys + keys / 10, keys + keys / 50);
        all.push(("1 GiB", Load { records, keys, value_bytes, kill_at, to_the_end: false }));
    }
    all
}

fn build(workspace: &Workspace, options: &Options) -> Result<Programs> {
    let classpath = run::output(Command::new(workspace.path("compat/kafka-oracle")).arg("classpath"))?;
    run::check(Command::new(workspace.path("compat/kafka-oracle")).arg("install"))?;
    let classpath = classpath.trim().to_owned();
    let classes = workspace.target.join("streams-bench-classes");
    std::fs::create_dir_all(&classes)?;
    let mut javac = Command::new("javac");
    javac.arg("-d").arg(&classes).args(["-cp", &classpath]);
    run::check(javac.arg(workspace.path("compat/java/StreamsBench.java")))?;
    let ottla = match &options.binary {
        Some(binary) => binary.clone(),
        None => workspace.release_binary("ottla", "ottla")?,
    };
    let ours = match &options.streams.program {
        Some(program) => program.canonicalize().with_context(|| format!("no {}", program.display()))?,
        None => workspace.release_example("ottla-streams", "streams_bench")?,
    };
    Ok(Programs { ours, classes, classpath, ottla })
}

impl Programs {
    fn java(&self) -> Command {
        let mut command = Command::new("java");
        let classpath = format!("{}:{}", self.classes.display(), self.classpath);
        command.args([STREAMS_JVM, "-cp", &classpath, "StreamsBench"]);
        command
    }

    fn application(&self, program: Program, bootstrap: &str, folder: &Path) -> Command {
        match program {
            Program::Ours => {
                let mut command = Command::new(&self.ours);
                command.arg(bootstrap).arg(folder).env("MALLOC_ARENA_MAX", OUR_ARENAS);
                command
            }
            Program::KafkaStreams { transactional, is_static } => {
                let mut command = self.java();
                command.args(["run", bootstrap]).arg(folder).arg(transactional.to_string());
                command.envs(is_static.then_some(("INSTANCE", "bench")));
                command
            }
        }
    }
}

/// One side, one load: to the kill, and back.
fn once(
    workspace: &Workspace,
    programs: &Programs,
    side: Side,
    name: &str,
    load: Load,
    figures: &mut Figures,
) -> Result<()> {
    let broker = match side.broker {
        Kind::Ottla => Broker::start_binary(workspace, programs.ottla.clone())?,
        Kind::Kafka => Broker::start(workspace, Kind::Kafka, None, &[("ORACLE_JVM", KAFKA_JVM)])?,
    };
    let bootstrap = broker.bootstrap.as_str();
    let numbers = [load.records, load.keys, load.value_bytes].map(|number| number.to_string());
    run::output(programs.java().args(["load", bootstrap]).args(&numbers))?;
    let folder = workspace.target.join(format!("streams-bench-state-{}", std::process::id()));
    let _removed = Removed(folder.clone());
    let start = || Application::start(programs.application(side.program, bootstrap, &folder));
    let mut put = |figure: &str, value: f64| {
        figures.insert(format!("{name}: {figure}"), value);
    };

    let mut application = start()?;
    application.until(|event| event.is("COMMITTED") && event.number(0) >= load.kill_at)?;
    put("records per second to the kill", application.rate()?);
    put("processor time, us per record", application.cpu_us_per_record()?);
    let mut resident = application.resident_max();
    application.kill()?;
    put("state on disk at the kill, MiB", super::mebibytes(folder_bytes(&folder)));

    let mut application = start()?;
    let first = application.until(|event| event.is("FIRST_RECORD"))?;
    put("kill -9 to first processed record, ms", first.as_secs_f64() * 1000.0);
    let end = if load.to_the_end { "CAUGHT_UP" } else { "COMMITTED" };
    application.until(|event| event.is(end))?;
    put("changelog records restored after it", application.restored() as f64);
    if load.to_the_end {
        put("records per second after it", application.rate()?);
        for (figure, value) in application.commit_latency() {
            put(&format!("commit: {figure}"), value);
        }
    }
    resident = resident.max(application.resident_max());
    put("memory at most, MiB", super::mebibytes(resident));
    application.kill()
}

/// A line of an application.
#[derive(Clone, Debug)]
struct Event {
    at: Duration,
    words: Vec<String>,
}

impl Event {
    /// `MILLISECONDS EVENT details`; anything else is none.
    fn read(at: Duration, line: &str) -> Option<Self> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words.first()?.parse::<u64>().ok()?;
        (words.len() > 1).then_some(Self { at, words })
    }

    fn is(&self, name: &str) -> bool {
        self.words[1] == name
    }

    /// A number among the details, 0 when it is none.
    fn number(&self, place: usize) -> u64 {
        self.words.get(place + 2).and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}

/// A running application and what it has told.
struct Application {
    child: Child,
    lines: Receiver<Event>,
    events: Vec<Event>,
    began: Instant,
    resident_max: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    sampler: Option<JoinHandle<()>>,
}

impl Application {
    fn start(mut command: Command) -> Result<Self> {
        let shown = run::shown(&command);
        let began = Instant::now();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot run {shown}"))?;
        let output = child.stdout.take().context("its output is piped")?;
        let (sender, lines) = sync_channel(4096);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let event = Event::read(began.elapsed(), &line);
                if event.is_some_and(|event| sender.send(event).is_err()) {
                    return;
                }
            }
        });
        let (resident_max, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (max, end, pid) = (Arc::clone(&resident_max), Arc::clone(&ended), child.id());
        let sampler = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                max.fetch_max(resident(pid), Ordering::Relaxed);
                std::thread::sleep(SAMPLE);
            }
        });
        Ok(Self { child, lines, events: Vec::new(), began, resident_max, ended, sampler: Some(sampler) })
    }

    /// Waits for an event; when it came, since the start.
    fn until(&mut self, is_it: impl Fn(&Event) -> bool) -> Result<Duration> {
        loop {
            let left = LIMIT.saturating_sub(self.began.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(event) => {
                    let (found, at) = (is_it(&event), event.at);
                    self.events.push(event);
                    if found {
                        return Ok(at);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("not within {LIMIT:?}; last: {:?}", self.events.last())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the application ended; last: {:?}", self.events.last())
                }
            }
        }
    }

    fn last(&self, name: &str) -> Option<&Event> {
        self.events.iter().rev().find(|event| event.is(name))
    }

    /// Records committed a second, from the first processed record to the last commit that was told.
    fn rate(&self) -> Result<f64> {
        let first = self.events.iter().find(|event| event.is("FIRST_RECORD")).context("no first record")?;
        let before =
            self.events.iter().find(|event| event.is("COMMITTED")).map_or(0, |event| event.number(0));
        let last = self.last("COMMITTED").context("no commit")?;
        let seconds = last.at.saturating_sub(first.at).as_secs_f64();
        Ok((last.number(0) - before) as f64 / seconds.max(0.001))
    }

    fn cpu_us_per_record(&self) -> Result<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks =
            |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        let records = self.last("COMMITTED").map_or(1, |event| event.number(0).max(1));
        Ok((ticks(11) + ticks(12)) * 10_000.0 / records as f64)
    }

    fn resident_max(&self) -> u64 {
        self.resident_max.load(Ordering::Relaxed)
    }

    /// Changelog records, all tasks.
    fn restored(&self) -> u64 {
        self.last("RESTORE_END").map_or(0, |event| event.number(1))
    }

    /// `NAME VALUE` in turn.
    fn commit_latency(&self) -> Vec<(String, f64)> {
        let words = self.last("COMMIT_LATENCY").map_or(&[][..], |event| &event.words[2..]);
        words.chunks_exact(2).filter_map(|pair| Some((pair[0].clone(), pair[1].parse().ok()?))).collect()
    }

    /// With SIGKILL.
    fn kill(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.ended.store(true, Ordering::Relaxed);
        self.child.kill()?;
        self.child.wait()?;
        if let Some(sampler) = self.sampler.take() {
            let _ = sampler.join(); // it cannot panic
        }
        Ok(())
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        if self.sampler.is_some()
            && let Err(error) = self.end()
        {
            eprintln!("xtask: {error:#}");
        }
    }
}

/// A folder that goes with this value.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // it may not have been made
    }
}

/// Resident bytes of a process, 0 when it has ended.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// Bytes of all files below; what vanishes meanwhile counts nothing.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => folder_bytes(&entry.path()),
            _ => entry.metadata().map_or(0, |found| found.len()),
        })
        .sum()
}

/// The median of each figure.
fn medians(rounds: &[Figures]) -> Figures {
    let mut values: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (name, value) in rounds.iter().flatten() {
        values.entry(name).or_default().push(*value);
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0
    };
    values.into_iter().map(|(name, all)| (name.clone(), median(all))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that lines which are no events are passed over, that details are found, and that medians are taken by
    /// figure, over the rounds that have it.
    #[test]
    fn events_and_medians() {
        let at = Duration::from_secs(1);
        assert!(Event::read(at, "WARN something").is_none() && Event::read(at, "12").is_none());
        let event = Event::read(at, "12 COMMITTED 500 of 1000 processed 510").unwrap();
        assert!(event.is("COMMITTED"));
        assert_eq!((event.number(0), event.number(2), event.number(9)), (500, 1000, 0));
        let round = |a: f64| Figures::from([("a".to_owned(), a)]);
        let mut last = round(9.0);
        last.insert("b".to_owned(), 4.0);
        let medians = medians(&[round(1.0), round(3.0), last]);
        assert_eq!((medians["a"], medians["b"]), (3.0, 4.0));
    }
}
