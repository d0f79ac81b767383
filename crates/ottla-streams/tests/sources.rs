//! Sources into a real broker, with processes that are killed again and again: log files while writers write and rotate,
//! and an outbox in a PostgreSQL that is killed too (feature `postgres`); one process, or two that share the lanes.
//!
//! The parent is the broker, the writers, the rotators and the one who kills; a child is a source's thread over the
//! client, in a process of its own. Afterwards what consumers with `read_committed` see is compared with what was
//! written: everything once, and in order. With `OTTLA_SOURCES_BROKER=HOST:PORT` that broker is used, for instance
//! Apache Kafka (`compat/kafka-oracle`), instead of one in this process.

#[cfg(feature = "postgres")]
#[path = "sources/postgres.rs"]
mod server;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_client::admin::NewTopic;
use ottla_client::{ClientSettings, TopicPartition};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::disk::Disk;
use ottla_env::disk::os::OsDisk;
use ottla_env::process::{self, Child, Output};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn::{self, Runtime};
use ottla_env::{files, time};
use ottla_streams::kafka::KafkaReader;
use ottla_streams::port::ReadPort;
use ottla_streams::source::Source;
use ottla_streams::source::files::{LogFiles, LogFilesSettings};
use ottla_streams::source::group::GroupSettings;
use ottla_streams::source::runner::RunnerSettings;
use ottla_streams::source::thread::SourceThread;

/// How the child is told what to do; it does nothing without.
const VARIABLE: &str = "OTTLA_SOURCES_CHILD";
/// A broker that runs already.
const BROKER: &str = "OTTLA_SOURCES_BROKER";
const LANES: i32 = 3;
const LOGS: usize = 4;
const LINES: u64 = 1_500;
const KILLS: u64 = 12;
/// Of the processes that share lanes.
const SESSION: Duration = Duration::from_secs(6);

fn client(address: &str) -> ClientSettings {
    ClientSettings::new(address).expect("an address").retry_backoff(Duration::from_millis(20))
}

/// The topic of an application.
fn lines_of(app: &str) -> String {
    format!("{app}-lines")
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    (0..LOGS).map(|n| folder.join(format!("app-{n}.log"))).collect()
}

fn pause(ms: u64) {
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(ms));
}

/// The process that is killed; a test of nothing when it is started by anybody else.
#[test]
#[ignore = "a process that is killed: `cargo test -p ottla-streams --test sources` starts it"]
fn child() {
    let Ok(told) = std::env::var(VARIABLE) else { return };
    let told: Vec<&str> = told.split('|').collect();
    let [address, app, what, folder] = told[..] else { panic!("{told:?}") };
    let runtime = spawn::runtime(2).expect("a runtime");
    let settings = RunnerSettings {
        commit_interval: Duration::from_millis(20),
        piece_bytes_max: 700,
        ..RunnerSettings::new(app, &lines_of(app), LANES, "p/0")
    };
    let (handle, client, source) = (runtime.handle(), client(address), source(what));
    let running = match folder {
        "" => SourceThread::start(handle, &client, settings, "test", source),
        folder => {
            let group = GroupSettings {
                session_timeout: SESSION,
                heartbeat_interval: Duration::from_secs(1),
                ..GroupSettings::new(folder)
            };
            SourceThread::join(handle, &client, settings, "test", &group, source)
        }
    };
    let running = running.expect("started");
    while !running.is_finished() {
        pause(20);
    }
    panic!("the source has ended: {:?}", running.stop());
}

fn source(what: &str) -> Box<dyn Source> {
    match what.split_once('=').expect("kind and place") {
        ("files", folder) => Box::new(LogFiles::new(LogFilesSettings {
            rotated_grace: Duration::from_millis(300),
            ..LogFilesSettings::new(paths(Path::new(folder)))
        })),
        #[cfg(feature = "postgres")]
        ("outbox", connection) => {
            use ottla_streams::source::outbox::{Outbox, OutboxSettings};
            let settings = OutboxSettings { rows_max: 7, ..OutboxSettings::new(connection, "outbox") };
            Box::new(Outbox::new(settings).expect("settings"))
        }
        other => panic!("no source {other:?}"),
    }
}

/// A child that has all lanes, or, with a folder of its own, shares them.
fn start_child(bed: &Bed, what: &str, folder: &str) -> Child {
    let program = process::current_program().expect("a program");
    let set = format!("{VARIABLE}={}|{}|{what}|{folder}", bed.address, bed.app);
    let arguments = [OsStr::new(&set), program.as_os_str(), OsStr::new("child")];
    let arguments: Vec<&OsStr> =
        arguments.into_iter().chain(["--exact", "--ignored", "--nocapture"].map(OsStr::new)).collect();
    process::spawn(OsStr::new("env"), &arguments, false, Output::Null, Output::Inherit).expect("started")
}

/// Writes numbered lines to one log, and renames it now and then; some writes are in two halves.
fn write(path: &Path, seed: u64, written: &AtomicU64, stop: &AtomicBool) {
    let (folder, name) =
        (path.parent().expect("a folder"), path.file_name().expect("a name").to_string_lossy());
    let disk = OsDisk::open(folder).expect("opened");
    let mut rng = SeededRng::new(seed);
    let mut file = files::open_append(path).expect("opened");
    let mut rotations = 0;
    for n in 0..LINES {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let line = format!("{name}:{n}:{}\n", "x".repeat(rng.index(60)));
        let cut = rng.index(line.len());
        file.write_all(&line.as_bytes()[..cut]).expect("written");
        if rng.one_in(20) {
            pause(5);
        }
        file.write_all(&line.as_bytes()[cut..]).expect("written");
        written.fetch_add(1, Ordering::Relaxed);
        if rng.one_in(150) {
            rotations += 1;
            disk.rename(&name, &format!("{name}-{rotations:09}")).expect("renamed");
            file = files::open_append(path).expect("opened");
        }
        if rng.one_in(4) {
            pause(rng.below(15));
        }
    }
}

struct Bed {
    runtime: Runtime,
    broker: Option<Broker>,
    address: String,
    app: String,
    reader: KafkaReader,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn new(test: &str) -> Self {
        let runtime = spawn::runtime(2).expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, address) = match std::env::var(BROKER) {
            Ok(address) => (None, address),
            Err(_) => {
                let config = Config {
                    listen: "127.0.0.1:0".to_owned(),
                    dir: folder.path().display().to_string(),
                    ..Config::default()
                };
                let broker = runtime.block_on(Broker::start(config)).expect("started");
                let address = broker.local_addr().to_string();
                (Some(broker), address)
            }
        };
        let app = format!("{test}-{}", OsClock.wall_ms());
        let reader = KafkaReader::connect(runtime.handle(), &client(&address), 1 << 20).expect("connected");
        let topics = [NewTopic::new(lines_of(&app), 1)];
        for made in runtime.block_on(reader.admin().create_topics(&topics, false)).into_values() {
            made.expect("made");
        }
        Self { runtime, broker, address, app, reader, _folder: folder }
    }

    /// What a consumer that reads committed records sees.
    fn committed(&mut self) -> Vec<String> {
        let at = TopicPartition::new(lines_of(&self.app), 0);
        let end = self.reader.bounds(&at).expect("told").last_stable;
        let mut found = Vec::new();
        let mut from = 0;
        while from < end {
            let piece = self.reader.read(&at, from, 1 << 20, Duration::from_secs(1)).expect("read");
            let text = |bytes: bytes::Bytes| String::from_utf8(bytes.to_vec()).expect("text");
            found.extend(piece.records.into_iter().map(|record| text(record.value.expect("set"))));
            from = piece.next_offset.max(from);
        }
        found
    }

    fn end(self) {
        let Self { runtime, broker, reader, .. } = self;
        drop(reader);
        if let Some(broker) = broker {
            runtime.block_on(broker.shutdown());
        }
    }
}

/// The numbers in the lines of each log or writer, in the order in which they came.
fn numbers(lines: &[String]) -> BTreeMap<String, Vec<u64>> {
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in lines {
        let mut parts = line.split(':');
        let (name, number) = (parts.next().expect("a name"), parts.next().expect("a number"));
        found.entry(name.to_owned()).or_default().push(number.parse().expect("a number"));
    }
    found
}

/// Proves exactly once for log files with real processes: four logs that are written in halves and renamed, a process
/// that is killed with SIGKILL a dozen times, and a broker: every line once and in order.
#[test]
fn every_line_once_through_kills_and_rotations() {
    let mut bed = Bed::new("files");
    let logs = tempfile::tempdir().expect("a folder");
    let what = format!("files={}", logs.path().display());
    let (written, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..)
        .zip(paths(logs.path()))
        .map(|(seed, path)| {
            let (written, stop) = (Arc::clone(&written), Arc::clone(&stop));
            spawn::thread("writer", move || write(&path, seed, &written, &stop)).expect("started")
        })
        .collect();
    let total = LINES * LOGS as u64;
    let mut rng = SeededRng::new(3);
    let mut child = start_child(&bed, &what, "");
    let deadline = time::now() + Duration::from_secs(240);
    let mut kills = 0;
    let complete = loop {
        assert!(time::now() < deadline, "{written:?} lines written, {kills} kills");
        pause(100 + rng.below(400));
        assert!(child.try_wait().expect("asked").is_none(), "the child ended by itself");
        if kills < KILLS {
            child.kill().expect("killed");
            kills += 1;
            child = start_child(&bed, &what, "");
        } else if written.load(Ordering::Relaxed) >= total {
            let found = bed.committed();
            if found.len() as u64 >= total {
                pause(500); // whatever would come twice comes now
                break bed.committed();
            }
        }
    };
    child.kill().expect("killed");
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    let by_log = numbers(&complete);
    assert_eq!(by_log.len(), LOGS);
    for (name, numbers) in by_log {
        assert_eq!(numbers, (0..LINES).collect::<Vec<_>>(), "{name}");
    }
    let rotated = files::list_folder(logs.path()).expect("listed").len() - LOGS;
    eprintln!("{total} lines in {LOGS} logs, {rotated} rotations, {kills} kills: each once and in order");
    assert!(rotated > 5);
    bed.end();
}

/// Proves that two processes share log files: each is read by one of them at a time, and by the other when that is dead;
/// both are killed with SIGKILL a dozen times, one of them stays away until the other has taken over; every line once and
/// in order.
#[test]
fn two_processes_share_files_through_kills() {
    let mut bed = Bed::new("shared");
    let logs = tempfile::tempdir().expect("a folder");
    let states = tempfile::tempdir().expect("a folder");
    let what = format!("files={}", logs.path().display());
    let state = |index: usize| states.path().join(index.to_string()).display().to_string();
    let (written, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (10..)
        .zip(paths(logs.path()))
        .map(|(seed, path)| {
            let (written, stop) = (Arc::clone(&written), Arc::clone(&stop));
            spawn::thread("writer", move || write(&path, seed, &written, &stop)).expect("started")
        })
        .collect();
    let total = LINES * LOGS as u64;
    let mut rng = SeededRng::new(4);
    let mut children: Vec<Child> = (0..2).map(|index| start_child(&bed, &what, &state(index))).collect();
    let deadline = time::now() + Duration::from_secs(240);
    let mut kills = 0;
    while kills < KILLS {
        assert!(time::now() < deadline, "{written:?} lines written, {kills} kills");
        pause(300 + rng.below(700));
        let victim = rng.index(2);
        assert!(children[victim].try_wait().expect("asked").is_none(), "a child ended by itself");
        children[victim].kill().expect("killed");
        kills += 1;
        if kills == KILLS / 2 {
            // the other takes over all that is written by now
            let so_far = written.load(Ordering::Relaxed) as usize;
            while bed.committed().len() < so_far {
                assert!(
                    time::now() < deadline,
                    "{} of {so_far} lines: nobody took over",
                    bed.committed().len()
                );
                pause(200);
            }
        }
        children[victim] = start_child(&bed, &what, &state(victim));
    }
    while written.load(Ordering::Relaxed) < total || (bed.committed().len() as u64) < total {
        assert!(time::now() < deadline, "{written:?} written, {} came", bed.committed().len());
        pause(200);
    }
    pause(500); // whatever would come twice comes now
    for child in &mut children {
        child.kill().expect("killed");
    }
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    let by_log = numbers(&bed.committed());
    assert_eq!(by_log.len(), LOGS);
    for (name, numbers) in by_log {
        assert_eq!(numbers, (0..LINES).collect::<Vec<_>>(), "{name}");
    }
    eprintln!("{total} lines in {LOGS} logs, two processes, {kills} kills: each once and in order");
    bed.end();
}

/// Proves that the number of lanes cannot change: sources would move to lanes that do not know their positions.
#[test]
fn other_lanes_are_refused() {
    let bed = Bed::new("lanes");
    let start = |lanes: i32| {
        let settings = RunnerSettings::new(&bed.app, &lines_of(&bed.app), lanes, "p/0");
        let source = Box::new(LogFiles::new(LogFilesSettings::new(Vec::new())));
        SourceThread::start(bed.runtime.handle(), &client(&bed.address), settings, "test", source)
    };
    start(3).expect("started").stop().expect("stopped");
    let error = start(4).expect_err("other lanes");
    assert!(error.to_string().contains("Set lanes to 3"), "{error}");
    start(3).expect("started").stop().expect("stopped");
    bed.end();
}

/// Proves exactly once for an outbox with real processes: eight writers with delays before their commits and rollbacks,
/// our process killed a dozen times, PostgreSQL three times: every committed row once, each writer's in order.
#[cfg(feature = "postgres")]
#[test]
fn every_row_once_through_kills_of_both() {
    use server::{Server, TRANSACTIONS, WRITERS};

    let Some(mut server) = Server::start() else { return };
    let mut database = postgres::Client::connect(&server.connection(), postgres::NoTls).expect("connected");
    let table = ottla_streams::source::outbox::Outbox::ddl("outbox");
    database.batch_execute(&format!("{table}; create table truth (value text)")).expect("made");
    drop(database);
    let mut bed = Bed::new("outbox");
    let states = tempfile::tempdir().expect("a folder");
    let what = format!("outbox={}", server.connection());
    let (written, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (connection, written, stop) = (server.connection(), Arc::clone(&written), Arc::clone(&stop));
            let body = move || server::write(&connection, writer, &stop, &written);
            spawn::thread("writer", body).expect("started")
        })
        .collect();
    let (total, mut rng) = (WRITERS * TRANSACTIONS, SeededRng::new(5));
    let state = |index: usize| states.path().join(index.to_string()).display().to_string();
    // the table is one source: one process reads it, the other takes over when that stays away
    let mut children: Vec<Child> = (0..2).map(|index| start_child(&bed, &what, &state(index))).collect();
    let deadline = time::now() + Duration::from_secs(240);
    let (mut kills, mut server_kills) = (0, 0);
    loop {
        assert!(time::now() < deadline, "{written:?} transactions, {kills} and {server_kills} kills");
        pause(100 + rng.below(400));
        for child in &mut children {
            assert!(child.try_wait().expect("asked").is_none(), "a child ended by itself");
        }
        if kills < KILLS {
            let victim = rng.index(2);
            children[victim].kill().expect("killed");
            kills += 1;
            if kills.is_multiple_of(KILLS / 3) {
                pause(SESSION.as_millis() as u64 + 1500); // given up: its lanes go to the other
            }
            children[victim] = start_child(&bed, &what, &state(victim));
        }
        if server_kills < 3 && written.load(Ordering::Relaxed) > (server_kills + 1) * total / 5 {
            server.kill();
            server_kills += 1;
            server.restart();
        }
        if kills == KILLS && server_kills == 3 && written.load(Ordering::Relaxed) >= total {
            break;
        }
    }
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    let mut database = postgres::Client::connect(&server.connection(), postgres::NoTls).expect("connected");
    let rows = database.query("select value from truth", &[]).expect("read");
    let mut truth: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    truth.sort();
    while bed.committed().len() < truth.len() {
        assert!(time::now() < deadline, "rows are missing");
        pause(100);
    }
    pause(500); // whatever would come twice comes now
    for child in &mut children {
        child.kill().expect("killed");
    }
    let mut found = bed.committed();
    assert!(numbers(&found).values().all(|numbers| numbers.is_sorted()), "each writer's rows are in order");
    found.sort();
    let more_than_once = found.windows(2).filter(|pair| pair[0] == pair[1]).count();
    let lost = truth.iter().filter(|row| found.binary_search(row).is_err()).count();
    assert_eq!((more_than_once, lost, found.len()), (0, 0, truth.len()));
    eprintln!("{} rows, {kills} kills of ours and {server_kills} of the server: each once", truth.len());
    bed.end();
}
