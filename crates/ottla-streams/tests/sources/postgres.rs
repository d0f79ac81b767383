//! A PostgreSQL server of the test's own, and writers to its outbox.
//!
//! The server comes from the system's packages and is started here, in a temporary folder, on a free loopback port. It
//! does not run as root, so it gets another user when the test is root. Without its programs the test says so and ends.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ottla_env::process::{self, Child, Output};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::{files, time};
use postgres::{Client, NoTls};

pub(crate) const WRITERS: u64 = 8;
pub(crate) const TRANSACTIONS: u64 = 60;

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

pub(crate) struct Server {
    bin: PathBuf,
    _folder: tempfile::TempDir,
    data: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn start() -> Option<Self> {
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

    pub(crate) fn connection(&self) -> String {
        format!("host=127.0.0.1 port={} user=ottla dbname=postgres", self.port)
    }

    /// Starts it until it answers: the memory of a killed one is in use until its last process has noticed.
    pub(crate) fn restart(&mut self) {
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

    pub(crate) fn kill(&mut self) {
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

pub(crate) fn pause(ms: u64) {
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(ms));
}

/// Writes transactions of one to three rows, with delays before the commit, some rolled back. Every row is noted in a
/// second table by the same transaction, which is the truth afterwards.
pub(crate) fn write(connection: &str, writer: u64, stop: &AtomicBool, written: &AtomicU64) {
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
