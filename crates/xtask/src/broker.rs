//! A started broker under test: Ottla or Apache Kafka, behind the same verbs.
//!
//! The scripts `compat/ottla-broker` and `compat/kafka-oracle` start, kill and remember; this module picks a
//! free port, names the instance after our process, and wipes it at the end.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::run::{self, Workspace};

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The release build of this workspace.
    Ottla,
    /// The reference, fetched once as published jars.
    Kafka,
}

/// A running broker; dropping it ends it and removes its data.
pub(crate) struct Broker {
    script: PathBuf,
    environment: Vec<(&'static str, String)>,
    name: String,
    pid: u32,
    /// `HOST:PORT` for clients.
    pub(crate) bootstrap: String,
    /// From the start of the process to its first answer.
    pub(crate) started_in: Duration,
}

impl Broker {
    /// Starts a broker on an empty folder and waits until it answers.
    ///
    /// `config` is a file in the broker's own notation; `environment` is for the script.
    pub(crate) fn start(
        workspace: &Workspace,
        kind: Kind,
        config: Option<PathBuf>,
        environment: &[(&'static str, &str)],
    ) -> Result<Self> {
        let binary = match kind {
            Kind::Ottla => Some(workspace.release_binary("ottla", "ottla")?),
            Kind::Kafka => None,
        };
        Self::start_with(workspace, kind, binary, config, environment)
    }

    /// Starts an Ottla that was built elsewhere, with its defaults.
    pub(crate) fn start_binary(workspace: &Workspace, binary: PathBuf) -> Result<Self> {
        let binary = binary.canonicalize().with_context(|| format!("no {}", binary.display()))?;
        Self::start_with(workspace, Kind::Ottla, Some(binary), None, &[])
    }

    /// Starts an Ottla with settings: one that was built elsewhere, or the release build.
    pub(crate) fn start_release(
        workspace: &Workspace,
        binary: Option<PathBuf>,
        config: Option<PathBuf>,
    ) -> Result<Self> {
        let binary = match binary {
            Some(binary) => binary.canonicalize().with_context(|| format!("no {}", binary.display()))?,
            None => workspace.release_binary("ottla", "ottla")?,
        };
        Self::start_with(workspace, Kind::Ottla, Some(binary), config, &[])
    }

    fn start_with(
        workspace: &Workspace,
        kind: Kind,
        binary: Option<PathBuf>,
        config: Option<PathBuf>,
        environment: &[(&'static str, &str)],
    ) -> Result<Self> {
        let script = match kind {
            Kind::Ottla => "compat/ottla-broker",
            Kind::Kafka => "compat/kafka-oracle",
        };
        let mut environment: Vec<_> =
            environment.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        environment.extend(binary.map(|path| ("BROKER_BIN", path.display().to_string())));
        let port = free_ports()?;
        let mut broker = Self {
            script: workspace.path(script),
            environment,
            name: format!("xtask-{}-{port}", std::process::id()),
            pid: 0,
            bootstrap: format!("127.0.0.1:{port}"),
            started_in: Duration::ZERO,
        };
        if kind == Kind::Kafka {
            run::check(&mut broker.command("install"))?; // not part of the time to start
        }
        run::step(&format!("starting {kind:?} on {}", broker.bootstrap));
        let began = Instant::now();
        let name = broker.name.clone();
        let pid = run::output(broker.command("start").arg(name).arg(port.to_string()).args(config))?;
        broker.started_in = began.elapsed();
        broker.pid = pid.trim().parse().context("the start script printed no pid")?;
        Ok(broker)
    }

    /// The script with one of its verbs.
    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.script);
        command.arg(verb).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// A shell command that kills the broker with SIGKILL and starts it on the same data and port.
    pub(crate) fn restart_command(&self) -> String {
        self.outage_command(0)
    }

    /// The same, with so many seconds between kill and start.
    pub(crate) fn outage_command(&self, seconds: u32) -> String {
        let port = self.bootstrap.rsplit(':').next().expect("bootstrap is HOST:PORT");
        let (script, name) = (self.script.display(), &self.name);
        let pause = if seconds == 0 { String::new() } else { format!(" && sleep {seconds}") };
        let environment = self.exports();
        format!("{environment}'{script}' kill {name}{pause} && '{script}' start {name} {port}")
    }

    /// A shell command that makes the broker stand still for so many seconds (SIGSTOP), and go on then.
    pub(crate) fn pause_command(&self, seconds: u32) -> String {
        format!("{}'{}' pause {} {seconds}", self.exports(), self.script.display(), self.name)
    }

    /// The environment of the script, as shell text.
    fn exports(&self) -> String {
        let variables: Vec<String> =
            self.environment.iter().map(|(name, value)| format!("{name}='{value}'")).collect();
        if variables.is_empty() { String::new() } else { format!("export {}; ", variables.join(" ")) }
    }

    /// Kills it with SIGKILL and starts it on the same data and port; how long the start took.
    pub(crate) fn kill_and_start(&mut self) -> Result<Duration> {
        self.start_again("kill", None)
    }

    /// Stops it in order and starts it on the same data and port, with other settings if they are given; how long the
    /// start took.
    pub(crate) fn restart(&mut self, config: Option<PathBuf>) -> Result<Duration> {
        self.start_again("stop", config)
    }

    fn start_again(&mut self, verb: &str, config: Option<PathBuf>) -> Result<Duration> {
        let name = self.name.clone();
        run::check(self.command(verb).arg(&name))?;
        let port = self.bootstrap.rsplit(':').next().expect("bootstrap is HOST:PORT").to_owned();
        let began = Instant::now();
        let pid = run::output(self.command("start").arg(&name).arg(port).args(config))?;
        self.pid = pid.trim().parse().context("the start script printed no pid")?;
        Ok(began.elapsed())
    }

    /// The folder of its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// What an Ottla has logged.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder().join("server.log")
    }

    /// Where the script keeps what belongs to it.
    fn folder(&self) -> PathBuf {
        let home = std::env::var_os("HOME").map_or_else(PathBuf::new, PathBuf::from);
        let root =
            std::env::var_os("COMPAT_DIR").map_or_else(|| home.join(".cache/ottla-compat"), PathBuf::from);
        let kind = if self.script.ends_with("kafka-oracle") { "oracle" } else { "ottla" };
        root.join(kind).join(&self.name)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Resident memory in bytes (of the process that was started first).
    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        let text =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid)).context("the broker has ended")?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }

    /// Processor seconds used so far.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        let text =
            std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).context("the broker has ended")?;
        // The second field is the program's name in parentheses and may hold spaces.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks =
            |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        Ok((ticks(11) + ticks(12)) / 100.0)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let name = self.name.clone();
        if let Err(error) = run::check(self.command("wipe").arg(name)) {
            eprintln!("xtask: {error:#}");
        }
    }
}

/// A port that is free now.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// A port that is free now, and so is the next one (Kafka's controller takes it).
fn free_ports() -> Result<u16> {
    for _ in 0..100 {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return Ok(port);
        }
    }
    anyhow::bail!("no two free ports in a row")
}
