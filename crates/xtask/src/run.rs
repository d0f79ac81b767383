//! Starting programs, and where things are: the root of the workspace and the target folder.
//!
//! Every command of this crate goes through here, so that each says what it runs and each failure names the
//! program that failed.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Where the workspace is and where it is built.
pub(crate) struct Workspace {
    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target folder (`CARGO_TARGET_DIR` is honoured).
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Asks cargo.
    pub(crate) fn find() -> Result<Self> {
        let text = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
        let metadata: Value = serde_json::from_str(&text).context("cargo metadata gave no JSON")?;
        let folder = |name: &str| -> Result<PathBuf> {
            Ok(metadata[name].as_str().with_context(|| format!("cargo metadata names no {name}"))?.into())
        };
        Ok(Self { root: folder("workspace_root")?, target: folder("target_directory")? })
    }

    /// A path below the root.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// Builds a binary for release and returns its path.
    pub(crate) fn release_binary(&self, package: &str, binary: &str) -> Result<PathBuf> {
        step(&format!("building {binary} for release"));
        check(cargo().current_dir(&self.root).args([
            "build",
            "--release",
            "--package",
            package,
            "--bin",
            binary,
        ]))?;
        Ok(self.target.join("release").join(binary))
    }

    /// Builds an example for release and returns its path.
    pub(crate) fn release_example(&self, package: &str, example: &str) -> Result<PathBuf> {
        step(&format!("building the example {example} of {package} for release"));
        let arguments = ["build", "--release", "--package", package, "--example", example];
        check(cargo().current_dir(&self.root).args(arguments))?;
        Ok(self.target.join("release").join("examples").join(example))
    }

    /// Builds an example for development and returns its path.
    pub(crate) fn example(&self, package: &str, example: &str) -> Result<PathBuf> {
        step(&format!("building the example {example} of {package}"));
        check(cargo().current_dir(&self.root).args(["build", "--package", package, "--example", example]))?;
        Ok(self.target.join("debug").join("examples").join(example))
    }
}

/// The cargo that started us, or the one on the path. C++ goes through ccache where that is, so that RocksDB is
/// compiled once on a machine, whatever becomes of target folders.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if std::env::var_os("CXX").is_none() && on_path("ccache") {
        command.env("CXX", "ccache c++").env("CCACHE_NOHASHDIR", "1");
    }
    command
}

/// Announces a step on standard error.
pub(crate) fn step(text: &str) {
    eprintln!("==> {text}");
}

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Runs to the end with inherited output; a failure is an error.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    let status =
        command.stdin(Stdio::null()).status().with_context(|| format!("cannot run {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs to the end and returns its standard output; a failure is an error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let done = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    if !done.status.success() {
        bail!("{} failed: {}", shown(command), done.status);
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Whether a program is on the path.
pub(crate) fn on_path(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// The commit that is checked out, short, with `+` when the tree differs from it.
pub(crate) fn commit() -> String {
    output(Command::new("git").args(["describe", "--always", "--dirty=+", "--abbrev=10"]))
        .map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// Today, in UTC.
pub(crate) fn date() -> String {
    output(Command::new("date").args(["-u", "+%Y-%m-%d"]))
        .map_or_else(|_| "unknown".into(), |t| t.trim().to_owned())
}

/// A program whose standard output and error arrive line by line, in their order, with a time limit.
pub(crate) struct Lines {
    child: Child,
    lines: Receiver<String>,
    deadline: Instant,
}

/// What `Lines::next` saw.
pub(crate) enum Next {
    /// A line, without its end.
    Line(String),
    /// Nothing for ten seconds.
    Quiet,
    /// The program ended, or was ended at its limit (then `None`).
    End(Option<ExitStatus>),
}

impl Lines {
    /// Starts the program.
    pub(crate) fn start(mut command: Command, limit: Duration) -> Result<Self> {
        let (reader, writer) = std::io::pipe().context("no pipe")?;
        let name = shown(&command);
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let child = command.spawn().with_context(|| format!("cannot run {name}"))?;
        drop(command); // it holds the writing ends, and we wait for the last of them to close
        let (sender, lines) = sync_channel(1024);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut bytes = Vec::new();
            while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
                let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
                bytes.clear();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, lines, deadline: Instant::now() + limit })
    }

    /// Waits for the next line or the end.
    pub(crate) fn next(&mut self) -> Result<Next> {
        for _ in 0..100 {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => return Ok(Next::Line(line)),
                Err(RecvTimeoutError::Disconnected) => return self.end(),
                // A child of the program may keep the pipe open after the program has ended.
                Err(RecvTimeoutError::Timeout) if self.child.try_wait()?.is_some() => {
                    let last = self.lines.recv_timeout(Duration::from_millis(500));
                    return last.map_or_else(|_| self.end(), |line| Ok(Next::Line(line)));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= self.deadline => {
                    self.child.kill()?;
                    self.child.wait()?;
                    return Ok(Next::End(None));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Ok(Next::Quiet)
    }

    fn end(&mut self) -> Result<Next> {
        Ok(Next::End(Some(self.child.wait()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Lines {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Lines::start(command, limit).expect("a shell is there")
    }

    /// Lines until the end, and the end.
    fn drain(lines: &mut Lines) -> (Vec<String>, Option<ExitStatus>) {
        let mut seen = Vec::new();
        loop {
            match lines.next().expect("the child is ours") {
                Next::Line(line) => seen.push(line),
                Next::Quiet => {}
                Next::End(status) => return (seen, status),
            }
        }
    }

    /// Proves that both outputs arrive in their order, a last line without its end too, with the exit code.
    #[test]
    fn lines_arrive_in_order() {
        let (seen, status) =
            drain(&mut shell("echo a; echo b >&2; printf c; exit 3", Duration::from_secs(60)));
        assert_eq!(seen, ["a", "b", "c"]);
        assert_eq!(status.and_then(|status| status.code()), Some(3));
    }

    /// Proves that a program which does not end is ended at its limit.
    #[test]
    fn a_limit_ends_a_program() {
        let (_, status) = drain(&mut shell("exec tail -f /dev/null", Duration::from_millis(200)));
        assert_eq!(status, None);
    }

    /// Proves that a child left behind, which holds the pipe open, does not keep us waiting.
    #[test]
    fn a_child_left_behind_is_not_waited_for() {
        let (seen, status) = drain(&mut shell("tail -f /dev/null & echo $!", Duration::from_secs(60)));
        check(Command::new("kill").args(&seen)).expect("the child left behind is still there");
        assert!(status.is_some_and(|status| status.success()));
    }
}
