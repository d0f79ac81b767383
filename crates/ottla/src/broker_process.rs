//! A broker as a process of its own, to be killed and started again on the same folder and port.
//!
//! Used by the demonstration and by the crash harness. The child is our own binary; it ends when our end of its
//! standard input closes, so that nothing stays behind when we are killed ourselves.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ottla_client::{ClientSettings, SettingError};
use ottla_env::process::{Child, Output};
use ottla_env::{files, process, spawn, time};
use tokio::sync::oneshot;

/// Longest that a broker may take to be ready.
const READY_MAX: Duration = Duration::from_secs(30);
/// Longest line that is read while waiting for it.
const LINE_BYTES_MAX: u64 = 4096;

/// A child of ours that ends with us.
pub(crate) struct OwnChild {
    child: Child,
    /// Closed when this is dropped: the child ends.
    _stdin: Option<ChildStdin>,
}

impl OwnChild {
    /// Starts our own binary with these arguments; its standard error is appended to a file.
    pub(crate) fn start(arguments: &[OsString], log: &Path, stdout: Output) -> Result<Self> {
        let program = process::current_program().context("cannot find the running program")?;
        let log = files::open_append(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = process::spawn(program.as_os_str(), arguments, true, stdout, Output::File(log))
            .with_context(|| format!("cannot start {}", program.display()))?;
        let stdin = child.take_stdin();
        Ok(Self { child, _stdin: stdin })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// SIGKILL, and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().map(|_| ()).context("cannot kill a child")
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<String>> {
        Ok(self.child.try_wait()?.map(|status| status.to_string()))
    }
}

/// A child is never left behind.
impl Drop for OwnChild {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill(); // it has ended meanwhile: fine
        }
    }
}

/// A broker that can be killed.
pub(crate) struct BrokerProcess {
    dir: PathBuf,
    log: PathBuf,
    /// `HOST:PORT`; the same after each start.
    address: String,
    settings: Vec<String>,
    child: OwnChild,
}

impl BrokerProcess {
    /// Starts a broker on a free port and waits until it answers. `folder` gets its data and its log file;
    /// `settings` are `NAME=VALUE`.
    pub(crate) async fn start(folder: &Path, settings: &[&str]) -> Result<Self> {
        Self::start_in(&folder.join("data"), &folder.join("broker.log"), settings).await
    }

    /// The same, with its data and its log file at places of their own.
    pub(crate) async fn start_in(dir: &Path, log: &Path, settings: &[&str]) -> Result<Self> {
        let (dir, log) = (dir.to_owned(), log.to_owned());
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let (child, address) = launch(&dir, &log, "127.0.0.1:0", &settings).await?;
        Ok(Self { dir, log, address, settings, child })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<String>> {
        self.child.ended()
    }

    /// Starts it again on the same folder and port and waits until it answers.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        let (child, _) = launch(&self.dir, &self.log, &self.address, &self.settings).await?;
        self.child = child;
        Ok(())
    }

    /// Starts it again and kills it after a moment, before or after it is ready.
    pub(crate) async fn start_briefly(&mut self, moment: Duration) -> Result<()> {
        let arguments = arguments(&self.dir, &self.address, &self.settings);
        self.child = OwnChild::start(&arguments, &self.log, Output::Null)?;
        time::sleep(moment).await;
        self.child.kill()
    }

    /// Its log file, for messages.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }
}

fn arguments(dir: &Path, listen: &str, settings: &[String]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["demo-broker".into(), "--data".into(), dir.into()];
    arguments.extend(["--listen".into(), listen.into()]);
    for setting in settings {
        arguments.extend(["--set".into(), setting.into()]);
    }
    arguments
}

async fn launch(dir: &Path, log: &Path, listen: &str, settings: &[String]) -> Result<(OwnChild, String)> {
    let mut child = OwnChild::start(&arguments(dir, listen, settings), log, Output::Piped)?;
    let stdout = child.child.take_stdout().context("the child's output was asked for")?;
    let ready = spawn::blocking("wait-ready", move || {
        let mut line = String::new();
        BufReader::new(stdout).take(LINE_BYTES_MAX).read_line(&mut line).map(|_| line)
    });
    let line = match time::timeout(READY_MAX, ready).await {
        Ok(line) => line.context("the reading thread failed")??,
        Err(_) => bail!("the broker was not ready within {} s; see {}", READY_MAX.as_secs(), log.display()),
    };
    match line.trim().strip_prefix("ready ") {
        Some(address) => Ok((child, address.to_owned())),
        None => bail!("the broker did not start; see {}: {}", log.display(), tail(log)),
    }
}

/// Settings that find a restarted broker quickly.
pub(crate) fn client(bootstrap: &str, name: &str) -> Result<ClientSettings, SettingError> {
    Ok(ClientSettings::new(bootstrap)?
        .client_id(name)
        .request_timeout(Duration::from_secs(10))
        .reconnect_backoff(Duration::from_millis(20))
        .reconnect_backoff_max(Duration::from_millis(100))
        .retry_backoff(Duration::from_millis(20))
        .retry_backoff_max(Duration::from_millis(100)))
}

/// The last line of a log file.
pub(crate) fn tail(log: &Path) -> String {
    let text = files::read_text(log, 64 << 20).unwrap_or_default();
    text.lines().last().unwrap_or("it is empty").to_owned()
}

/// Resolves when our standard input is closed: the parent has ended.
pub(crate) fn parent_gone() -> Result<impl Future<Output = ()>> {
    let (sender, gone) = oneshot::channel::<()>();
    spawn::thread("ottla-parent", move || {
        let mut rest = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut rest); // closed or broken: either way nobody is there
        drop(sender);
    })
    .context("cannot start a thread")?;
    Ok(async move {
        let _ = gone.await; // only ever dropped
    })
}
