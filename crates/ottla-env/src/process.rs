//! The door to processes: children that are started, stopped, killed and waited for.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal as OsSignal};

/// Where a child's output goes.
#[derive(Debug)]
pub enum Output {
    /// Thrown away.
    Null,
    /// Where ours goes.
    Inherit,
    /// To a pipe that the parent reads.
    Piped,
    /// To a file.
    File(File),
}

impl From<Output> for Stdio {
    fn from(output: Output) -> Self {
        match output {
            Output::Null => Self::null(),
            Output::Inherit => Self::inherit(),
            Output::Piped => Self::piped(),
            Output::File(file) => Self::from(file),
        }
    }
}

/// The signals that tests and the demo send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Asks it to end.
    Terminate,
    /// Ends it at once.
    Kill,
    /// Stops it until `Continue`.
    Stop,
    /// Lets it go on.
    Continue,
}

/// A started child. Dropping it neither kills nor waits.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
}

/// Starts a program; its standard input is a pipe when `stdin_piped`, else empty.
pub fn spawn<S: AsRef<OsStr>>(
    program: &OsStr,
    arguments: &[S],
    stdin_piped: bool,
    stdout: Output,
    stderr: Output,
) -> io::Result<Child> {
    let child = Command::new(program)
        .args(arguments)
        .stdin(if stdin_piped { Stdio::piped() } else { Stdio::null() })
        .stdout(stdout)
        .stderr(stderr)
        .spawn()?;
    Ok(Child { child })
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes the parent's end of its standard input, once.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Takes the parent's end of its standard output, once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Sends it a signal; fine when it has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        send_signal(self.pid(), signal)
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// How it ended, if it has.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

/// Sends a signal to a process by its id; fine when there is none. The caller knows that it is its own.
pub fn send_signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a process id"))?;
    let signal = match signal {
        Signal::Terminate => OsSignal::TERM,
        Signal::Kill => OsSignal::KILL,
        Signal::Stop => OsSignal::STOP,
        Signal::Continue => OsSignal::CONT,
    };
    match rustix::process::kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Our own process id.
pub fn id() -> u32 {
    std::process::id()
}

/// How many files and sockets we may have open at once.
pub fn open_files_max() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises that number as far as the system lets an ordinary user; gives what holds then.
pub fn raise_open_files_max() -> io::Result<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(open_files_max())
}

/// The program that is running.
pub fn current_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Bytes of memory a process has resident, by its id; `NotFound` when there is none.
#[allow(clippy::disallowed_methods)] // this is the seam that everybody else uses
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.unwrap_or(0).saturating_mul(1024))
}

/// Processor time that a process has used, of all its threads, by its id; `NotFound` when there is none.
#[allow(clippy::disallowed_methods)] // this is the seam that everybody else uses
pub fn cpu_time(pid: u32) -> io::Result<std::time::Duration> {
    /// Ticks of /proc a second: fixed by Linux for what it tells programs.
    const TICKS: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Behind the name in brackets, which may hold anything: state is field 3, user and system time 14 and 15.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(2));
    let ticks: u64 = fields.into_iter().flatten().filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(std::time::Duration::from_millis(ticks * 1000 / TICKS))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Proves that a child's output is read, that a stopped child is killed, and that ended ones are no error.
    #[test]
    fn children_are_started_and_killed() {
        let mut echo =
            spawn(OsStr::new("echo"), &["hello"], false, Output::Piped, Output::Null).expect("echo exists");
        let mut text = String::new();
        echo.take_stdout().expect("piped").read_to_string(&mut text).expect("read");
        assert_eq!(text, "hello\n");
        assert!(echo.wait().expect("ended").success());

        let mut cat =
            spawn::<&str>(OsStr::new("cat"), &[], true, Output::Null, Output::Null).expect("cat exists");
        assert!(resident_bytes(cat.pid()).is_ok() && cpu_time(cat.pid()).is_ok());
        assert!(open_files_max() > 0);
        cat.signal(Signal::Stop).expect("stopped");
        assert!(cat.try_wait().expect("asked").is_none());
        assert!(!cat.kill().expect("killed").success());
        assert!(send_signal(0, Signal::Kill).is_err(), "0 would mean our whole group");
    }
}
