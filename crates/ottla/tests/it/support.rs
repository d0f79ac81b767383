//! A started `ottla serve`, and one run of any other command.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use ottla_client::ClientSettings;
use ottla_env::process::{self, Child, Output};
use ottla_env::spawn;

/// The binary under test.
pub(crate) const OTTLA: &str = env!("CARGO_BIN_EXE_ottla");

/// A broker process on a folder of its own; both go when this is dropped.
pub(crate) struct Broker {
    child: Child,
    pub(crate) address: String,
    folder: tempfile::TempDir,
}

impl Broker {
    /// Starts one on a free port.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with settings as `NAME=VALUE`.
    pub(crate) fn start_with(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (child, address) = launch(folder.path(), "127.0.0.1:0", settings);
        Self { child, address, folder }
    }

    /// Starts one on a copy of a folder.
    pub(crate) fn start_on(data: &std::path::Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let copied = Command::new("cp").arg("-r").args([data, &folder.path().join("data")]).status();
        assert!(copied.expect("cp runs").success());
        let (child, address) = launch(folder.path(), "127.0.0.1:0", &[]);
        Self { child, address, folder }
    }

    /// Its data.
    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    /// SIGKILL, and a new start on the same folder and port.
    pub(crate) fn kill_and_restart(&mut self) {
        self.child.kill().expect("killed");
        self.child = launch(self.folder.path(), &self.address, &[]).0;
    }

    /// A new start on the same folder and port, once it has ended.
    pub(crate) fn restart(&mut self) {
        self.child = launch(self.folder.path(), &self.address, &[]).0;
    }

    /// Asks it to end, and says whether it did so in order.
    pub(crate) fn terminate(&mut self) -> bool {
        self.child.signal(process::Signal::Terminate).expect("signalled");
        self.child.wait().expect("ended").success()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Runs `ottla` against it.
    pub(crate) fn ottla(&self, arguments: &[&str], input: &str) -> Ran {
        run_with(arguments, input, &[("OTTLA_BOOTSTRAP", &self.address)])
    }

    /// The same, and it must succeed; its standard output.
    pub(crate) fn ok(&self, arguments: &[&str], input: &str) -> String {
        let ran = self.ottla(arguments, input);
        assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// Settings of a client that finds a restarted broker quickly.
    pub(crate) fn client(&self) -> ClientSettings {
        let quick = Duration::from_millis(20);
        ClientSettings::new(&self.address)
            .expect("an address")
            .retry_backoff(quick)
            .retry_backoff_max(quick)
            .reconnect_backoff(quick)
            .reconnect_backoff_max(quick)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
    }
}

fn launch(folder: &std::path::Path, listen: &str, settings: &[&str]) -> (Child, String) {
    let data = folder.join("data");
    let mut arguments = vec![
        OsStr::new("serve"),
        OsStr::new("--data"),
        data.as_os_str(),
        OsStr::new("--listen"),
        OsStr::new(listen),
    ];
    arguments.extend(settings.iter().flat_map(|setting| [OsStr::new("--set"), OsStr::new(*setting)]));
    let log = ottla_env::files::open_append(&folder.join("log")).expect("a log file");
    let mut child = process::spawn(OsStr::new(OTTLA), &arguments, false, Output::Piped, Output::File(log))
        .expect("started");
    let mut line = String::new();
    BufReader::new(child.take_stdout().expect("piped")).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("ready ").map(str::to_owned);
    let address = address.unwrap_or_else(|| {
        panic!(
            "not ready: {line}{}",
            ottla_env::files::read_text(&folder.join("log"), 1 << 20).unwrap_or_default()
        )
    });
    (child, address)
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `ottla` to its end.
pub(crate) fn run(arguments: &[&str]) -> Ran {
    run_with(arguments, "", &[])
}

/// Runs `ottla` with input and variables of the environment.
pub(crate) fn run_with(arguments: &[&str], input: &str, environment: &[(&str, &str)]) -> Ran {
    let mut child = Command::new(OTTLA)
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stderr = child.stderr.take().expect("piped");
    let input = input.to_owned();
    let write = spawn::thread("input", move || drop(stdin.write_all(input.as_bytes()))).expect("a thread");
    let errors = spawn::thread("errors", move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    })
    .expect("a thread");
    let mut stdout = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("text");
    let status = child.wait().expect("ended");
    write.join().expect("written");
    let stderr = errors.join().expect("read").expect("text");
    Ran { code: status.code().unwrap_or(-1), stdout, stderr }
}

/// Runs a test's asynchronous part.
pub(crate) fn block_on<F: Future>(test: F) -> F::Output {
    spawn::runtime(2).expect("a runtime").block_on(test)
}
