//! Positions and names, and the outbox against a real server that is killed.
//!
//! The server comes from the system's packages and is started here, in a temporary folder, on a free loopback port. It
//! does not run as root, so it gets another user when the test is root. Without its programs the test says so and ends.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ottla_client::GroupMetadata;
use ottla_env::process::{self, Child, Output};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::{files, spawn, time};

use super::*;
use crate::source::runner::testing::{Failure, Port, Shared};
use crate::source::runner::{Runner, RunnerSettings};

/// Proves that positions come back as they were written, and that others are refused.
#[test]
fn positions_round_trip() {
    let position = OutboxPosition { system: u64::MAX, timeline: 3, xid: 1 << 40, id: -7 };
    let bytes = position.encode().0;
    assert_eq!(OutboxPosition::decode(&bytes), Ok(position));
    for at in 0..bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 1;
        assert!(OutboxPosition::decode(&damaged).is_err() && OutboxPosition::decode(&bytes[..at]).is_err());
    }
}

/// Proves that a table's name cannot carry a statement, and that wrong parameters are told at once.
#[test]
fn names_are_names() {
    for bad in ["", "a;drop table b", "a b", "a.b.c", "\"a\"", "a.", &"x".repeat(64)] {
        let error = Outbox::new(OutboxSettings::new("host=localhost", bad)).expect_err("no name");
        assert!(matches!(error, SourceError::Setup { .. }), "{bad}");
    }
    assert!(Outbox::new(OutboxSettings::new("host=localhost user=me", "public.outbox")).is_ok());
    assert!(Outbox::new(OutboxSettings::new("no parameters", "outbox")).is_err());
}

const WRITERS: u64 = 8;
const TRANSACTIONS: u64 = 60;

/// Where `initdb` is, if anywhere.
fn programs() -> Option<PathBuf> {
    let mut found = Vec::new();
    for version in files::list_folder(Path::new("/usr/lib/postgresql")).unwrap_or_default() {
        found.push(version.join("bin"));
    }
    let path = std::env::var("PATH").unwrap_or_default();
    found.extend(path.split(':').map(PathBuf::from));
    found.into_iter().find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
}

fn is_root() -> bool {
    files::read_text(Path::new("/proc/self/status"), 9_999).is_ok_and(|text| text.contains("\nUid:\t0\t"))
}

fn run(program: &OsStr, arguments: &[&OsStr]) -> Child {
    // What a server says matters only when it does not start; then it is started by hand.
    process::spawn(program, arguments, false, Output::Null, Output::Null).expect("started")
}

/// As another user when we are root: the same process, not a child of it.
fn run_plain(program: &Path, arguments: &[&str]) -> Child {
    let user = ["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"];
    let arguments = arguments.iter().map(OsStr::new);
    if !is_root() {
        return run(program.as_os_str(), &arguments.collect::<Vec<_>>());
    }
    let all: Vec<&OsStr> =
        user.iter().map(OsStr::new).chain([program.as_os_str()]).chain(arguments).collect();
    run(OsStr::new("setpriv"), &all)
}

struct Server {
    bin: PathBuf,
    _folder: tempfile::TempDir,
    data: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Server {
    fn start() -> Option<Self> {
        let Some(bin) = programs() else {
            eprintln!("skipped: no PostgreSQL server programs (initdb, postgres) on this machine");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        if is_root() {
            let owned =
                run(OsStr::new("chown"), &[OsStr::new("nobody:nogroup"), folder.path().as_os_str()]).wait();
            assert!(owned.expect("ran").success());
        }
        let data = folder.path().join("data");
        let text = data.display().to_string();
        let arguments = ["-D", &text, "-U", "ottla", "-A", "trust", "-E", "UTF8", "--no-locale"];
        let made = run_plain(&bin.join("initdb"), &arguments).wait().expect("ran");
        assert!(made.success(), "initdb: {made}");
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let mut server = Self { bin, _folder: folder, data, port, child: None };
        server.restart();
        Some(server)
    }

    fn connection(&self) -> String {
        format!("host=127.0.0.1 port={} user=ottla dbname=postgres", self.port)
    }

    /// Starts it until it answers: the memory of a killed one is in use until its last process has noticed.
    fn restart(&mut self) {
        let (data, port) = (self.data.display().to_string(), self.port.to_string());
        let deadline = time::now() + Duration::from_secs(90);
        let mut child: Option<Child> = None;
        loop {
            assert!(time::now() < deadline, "the server does not start");
            let ended = child.as_mut().is_none_or(|child| child.try_wait().expect("asked").is_some());
            if ended {
                let set = "listen_addresses=127.0.0.1";
                let arguments = [
                    "-D",
                    &data,
                    "-p",
                    &port,
                    "-c",
                    set,
                    "-c",
                    "unix_socket_directories=",
                    "-c",
                    "max_connections=50",
                ];
                child = Some(run_plain(&self.bin.join("postgres"), &arguments));
            }
            if let Ok(mut client) = Client::connect(&self.connection(), NoTls)
                && client.simple_query("select 1").is_ok()
            {
                break;
            }
            pause(50);
        }
        self.child = child;
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn pause(ms: u64) {
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(ms));
}

/// Writes transactions of one to three rows, with delays before the commit, some rolled back. Every row is noted in a
/// second table by the same transaction, which is the truth afterwards.
fn write(connection: &str, writer: u64, stop: &AtomicBool, written: &AtomicU64) {
    let mut rng = SeededRng::new(writer);
    let mut client = None;
    let mut done = 0;
    while done < TRANSACTIONS && !stop.load(Ordering::Relaxed) {
        let Some(open) = client.as_mut() else {
            client = Client::connect(connection, NoTls).ok();
            pause(20);
            continue;
        };
        match transaction(open, writer, done, &mut rng) {
            Ok(()) => {
                done += 1;
                written.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => client = None, // the server was killed; whether it was committed stands in the tables
        }
    }
}

fn transaction(client: &mut Client, writer: u64, n: u64, rng: &mut SeededRng) -> Result<(), postgres::Error> {
    let mut transaction = client.transaction()?;
    for row in 0..=rng.below(3) {
        let value = format!("{writer}:{n}:{row}:{}", rng.next_u64());
        transaction.execute(
            "insert into outbox (key, value) values ($1, $2)",
            &[&b"k".to_vec(), &value.as_bytes()],
        )?;
        transaction.execute("insert into truth (value) values ($1)", &[&value])?;
    }
    pause(rng.below(25));
    if rng.one_in(4) { transaction.rollback() } else { transaction.commit() }
}

fn runner(cluster: &Shared, outbox: OutboxSettings, number: u64) -> Runner<Port> {
    let settings = RunnerSettings {
        retry_pause: Duration::from_millis(20),
        commit_interval: Duration::from_millis(10),
        ..RunnerSettings::new("app", "out", 1, &format!("p{number}/0"))
    };
    let source = Box::new(Outbox::new(outbox).expect("settings"));
    let mut runner = Runner::new(settings, source, Port::take(cluster), Box::new(cluster.clone()));
    runner.assign(0, 1).expect("assigned");
    runner
}

fn settings(server: &Server) -> OutboxSettings {
    OutboxSettings { rows_max: 7, ..OutboxSettings::new(&server.connection(), "outbox") }
}

/// Every row of the truth once in Kafka, in the order of its writer, and none left in the table. Gives how many.
fn compare(server: &Server, cluster: &Shared) -> usize {
    let mut client = Client::connect(&server.connection(), NoTls).expect("connected");
    let rows = client.query("select value from truth", &[]).expect("read");
    let mut truth: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    truth.sort();
    let mut found = cluster.lock().committed_values("out");
    let mut per_writer: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for value in &found {
        let mut parts = value.split(':');
        let writer = parts.next().expect("a writer").to_owned();
        per_writer
            .entry(writer)
            .or_default()
            .push(parts.next().expect("a number").parse().expect("a number"));
    }
    assert!(per_writer.values().all(|numbers| numbers.is_sorted()), "each writer's rows are in order");
    found.sort();
    let more_than_once = found.windows(2).filter(|pair| pair[0] == pair[1]).count();
    let lost = truth.iter().filter(|row| found.binary_search(row).is_err()).count();
    assert_eq!((more_than_once, lost, found.len()), (0, 0, truth.len()));
    let left: i64 = client.query_one("select count(*) from outbox", &[]).expect("read").get(0);
    assert_eq!(left, 0, "rows behind the committed position are deleted");
    truth.len()
}

/// Proves exactly once for an outbox: eight writers with random delays before their commits and rollbacks, the server
/// killed with SIGKILL, our process ended at random calls, answers lost: every committed row once, no other row, and
/// the table empty behind what was committed. (A new server's transaction ids begin below 1,000 and pass it here, where
/// their order as text is another.)
#[test]
fn every_committed_row_once() {
    let Some(mut server) = Server::start() else { return };
    let mut client = Client::connect(&server.connection(), NoTls).expect("connected");
    client
        .batch_execute(&format!("{}; create table truth (value text)", Outbox::ddl("outbox")))
        .expect("made");
    drop(client);
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (connection, stop, written) = (server.connection(), Arc::clone(&stop), Arc::clone(&written));
            spawn::thread("writer", move || write(&connection, writer, &stop, &written)).expect("started")
        })
        .collect();
    let cluster = Shared::default();
    let (group, begin) = (GroupMetadata::without_members("app-sources"), time::now());
    let deadline = begin + Duration::from_secs(240);
    let mut rng = SeededRng::new(11);
    let (mut processes, mut kills, mut quiet) = (0, 0, 0);
    let mut runner_now = runner(&cluster, settings(&server), processes);
    while quiet < 40 {
        assert!(time::now() < deadline, "{written:?} transactions were written");
        let all_written = written.load(Ordering::Relaxed) >= WRITERS * TRANSACTIONS;
        if kills < 3 && written.load(Ordering::Relaxed) > (kills + 1) * WRITERS * TRANSACTIONS / 5 {
            kills += 1;
            server.kill();
            server.restart();
        }
        if !all_written && cluster.lock().fail_in.is_none() && rng.one_in(20) {
            let kind = [Failure::Gone, Failure::CommittedUnanswered, Failure::MustAbort, Failure::Gone]
                [rng.index(4)];
            cluster.lock().fail_in = Some((u32::try_from(rng.below(6)).expect("small"), kind));
        }
        if all_written {
            cluster.lock().fail_in = None;
        }
        match runner_now.run_once(time::now() - begin, 1, &group) {
            Ok(crate::source::runner::SourceRan::Worked) => quiet = 0,
            Ok(crate::source::runner::SourceRan::Idle) => {
                quiet += u32::from(all_written);
                pause(10);
            }
            Err(_) => {
                cluster.lock().fail_in = None;
                processes += 1;
                runner_now = runner(&cluster, settings(&server), processes);
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    let rows = compare(&server, &cluster);
    eprintln!("{rows} rows, {kills} kills of the server, {processes} of ours");
    assert!(kills == 3 && rows > 100);
}

/// Proves that another server is noticed, and that a server or table that cannot work is named.
#[test]
fn other_servers_are_refused() {
    let Some(server) = Server::start() else { return };
    let mut outbox = Outbox::new(settings(&server)).expect("settings");
    let id = outbox.partitions().expect("one").remove(0);
    let error = outbox.open(&id, None).err().expect("no table");
    assert!(matches!(&error, SourceError::Setup { reason, .. } if reason.contains("42P01")), "{error}");
    let mut client = Client::connect(&server.connection(), NoTls).expect("connected");
    client.batch_execute(&Outbox::ddl("outbox")).expect("made");
    client.execute("insert into outbox (value) values ($1)", &[&b"x".to_vec()]).expect("written");
    let piece =
        outbox.open(&id, None).expect("opened").read(Duration::ZERO, 1).expect("read").expect("a row");
    let position = OutboxPosition::decode(&piece.position.0).expect("ours");
    for other in [
        OutboxPosition { system: position.system + 1, ..position },
        OutboxPosition { timeline: position.timeline + 1, ..position },
    ] {
        let error = outbox.open(&id, Some(&other.encode())).err().expect("another server");
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
    }
    assert!(
        outbox
            .open(&id, Some(&piece.position))
            .expect("opened")
            .read(Duration::ZERO, 1)
            .expect("read")
            .is_none()
    );
    client.batch_execute("alter system set synchronous_commit = off").expect("set");
    client.query("select pg_reload_conf()", &[]).expect("told");
    let deadline = time::now() + Duration::from_secs(20);
    let error = loop {
        match outbox.open(&id, None) {
            Err(error) => break error,
            Ok(_) => assert!(time::now() < deadline, "the setting does not come through"),
        }
        pause(50);
    };
    assert!(
        matches!(&error, SourceError::Setup { reason, .. } if reason.contains("synchronous_commit")),
        "{error}"
    );
}
