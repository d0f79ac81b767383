//! `cargo xtask bench --parts cold`: many partitions written side by side, then read when nothing of them is in memory.
//!
//! Ottla without and with rewriting, and Apache Kafka, one after the other, by the same client (`ottla bench-cold`). What
//! is read from and written to the disk is what the system counts for the broker's process (`/proc/PID/io`). Before each
//! reading the broker is restarted in order and the page cache dropped: for the whole machine through
//! `/proc/sys/vm/drop_caches` where that may be written, else file by file (`dd oflag=nocache`, which is
//! posix_fadvise). The folder's index are Ottla's footers and Kafka's `.index` and `.timeindex` files.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::broker::{Broker, Kind, free_port};
use crate::run::{self, Workspace};
use crate::soak::sample::{page, sum};

/// Figures by name.
type Figures = BTreeMap<String, f64>;

/// What to write and read.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Load {
    /// cold: partitions
    #[arg(long, default_value_t = 1_000)]
    partitions: u32,
    /// cold: MiB of values
    #[arg(long, default_value_t = 2_048)]
    mib: u64,
    /// cold: records of 1,000 bytes in one batch of a partition
    #[arg(long, default_value_t = 4)]
    batch: u64,
}

/// Nothing is rewritten any more when so long nothing was.
const QUIET: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(600);
/// `log.rewrite.run.age.ms` while it is written: its default.
const RUN_AGE_MS: u64 = 600_000;
/// The end of a footer: see docs/format.md.
const FOOTER_TRAILER_BYTES: i64 = 64;

impl Load {
    /// As arguments of the command.
    pub(crate) fn shown(&self) -> String {
        format!("--partitions {} --mib {} --batch {}", self.partitions, self.mib, self.batch)
    }

    /// The section of the document, which is the load's own, and its title.
    pub(crate) fn section(&self) -> (String, String) {
        let partitions = self.partitions;
        (format!("cold-{partitions}"), format!("Cold reads of {partitions} partitions"))
    }
}

/// A broker in a column of its own.
pub(crate) fn columns(brokers: &[String]) -> Vec<&'static str> {
    let all = ["ottla, not rewritten", "ottla, rewritten", "kafka"];
    let wanted = |column: &&str| brokers.iter().any(|broker| column.split(',').next() == Some(broker));
    all.into_iter().filter(wanted).collect()
}

/// All figures of one column.
pub(crate) fn measure(
    workspace: &Workspace,
    column: &str,
    load: &Load,
    binary: Option<&Path>,
) -> Result<Figures> {
    let client = match binary {
        Some(binary) => binary.to_path_buf(),
        None => workspace.release_binary("ottla", "ottla")?,
    };
    let http = free_port()?;
    let mut broker = start(workspace, column, load, binary, http)?;
    let ask = |broker: &Broker, step: &[String]| -> Result<Value> {
        let mut command = Command::new(&client);
        command.args(["bench-cold", "--bootstrap", &broker.bootstrap, "--partitions"]);
        command.arg(load.partitions.to_string()).args(step);
        super::bench::object(&mut command)
    };
    let mut figures = Figures::new();
    let before = Traffic::of(&broker)?;
    let fill =
        ["fill", "--mib", &load.mib.to_string(), "--batch", &load.batch.to_string()].map(str::to_owned);
    let filled = ask(&broker, &fill)?;
    let bytes = number(&filled, "value_bytes");
    figures.insert("write: MB/s".into(), number(&filled, "mb_s"));
    let written = Traffic::of(&broker)?.written - before.written;
    figures.insert("write: bytes to the disk per byte, when acknowledged".into(), written / bytes);
    let is_ottla = column != "kafka";
    let mut pages = if is_ottla { vec![rest(http)?] } else { Vec::new() };
    let written = Traffic::of(&broker)?.written - before.written;
    if !is_ottla {
        broker.restart(None)?;
    } else {
        // what is left is no whole run; it is rewritten once it is old enough, which is now
        let config = settings(workspace, http, column == "ottla, rewritten", load, 1_000)?;
        broker.restart(Some(config.clone()))?;
        std::fs::remove_file(config)?;
        pages.push(rest(http)?);
        let written = written + Traffic::of(&broker)?.written;
        figures.insert("write: bytes to the disk per byte, all in".into(), written / bytes);
        for (name, metric) in
            [("frames", "ottla_log_written_bytes_total"), ("rewritten", "ottla_log_rewritten_bytes_total")]
        {
            let counted: f64 = pages.iter().map(|page| sum(page, metric)).sum();
            figures.insert(format!("write: of these {name}"), counted / bytes);
        }
    }
    let folder = Folder::look(&broker.data())?;
    figures.insert("folder: files".into(), folder.files as f64);
    figures.insert("folder: bytes per byte".into(), folder.bytes as f64 / bytes);
    figures.insert("folder: index, MiB".into(), folder.index as f64 / f64::from(1 << 20));
    figures.insert("folder: index, bytes per MiB".into(), folder.index as f64 * f64::from(1 << 20) / bytes);
    for (name, step) in [("one", ["one", "--count", "20"]), ("all", ["all", "--readers", "4"])] {
        let how = drop_cache(&broker.data())?;
        run::step(&format!("the page cache was dropped through {how}"));
        let before = Traffic::of(&broker)?;
        let read = ask(&broker, &step.map(str::to_owned))?;
        let after = Traffic::of(&broker)?;
        figures.insert(format!("read {name}: MB/s"), number(&read, "mb_s"));
        let read_bytes = after.read - before.read;
        figures.insert(
            format!("read {name}: bytes from the disk per byte"),
            read_bytes / number(&read, "value_bytes"),
        );
        if let Some(longest) = read.get("longest_ms").and_then(Value::as_f64) {
            figures.insert(format!("read {name}: longest of 20, ms"), longest);
        }
    }
    figures.insert("memory after the run, MiB".into(), broker.resident_bytes()? as f64 / f64::from(1 << 20));
    Ok(figures)
}

/// The broker of a column.
fn start(
    workspace: &Workspace,
    column: &str,
    load: &Load,
    binary: Option<&Path>,
    http: u16,
) -> Result<Broker> {
    if column == "kafka" {
        return Broker::start(workspace, Kind::Kafka, None, &[("ORACLE_JVM", super::bench::KAFKA_JVM)]);
    }
    let config = settings(workspace, http, column == "ottla, rewritten", load, RUN_AGE_MS)?;
    let broker = Broker::start_release(workspace, binary.map(Path::to_path_buf), Some(config.clone()));
    std::fs::remove_file(config)?;
    broker
}

fn number(object: &Value, name: &str) -> f64 {
    object.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Runs of half of what is written, looked at soon: else all of this would take hours.
fn settings(workspace: &Workspace, http: u16, rewrites: bool, load: &Load, age_ms: u64) -> Result<PathBuf> {
    let path = workspace.target.join(format!("cold-{}.toml", std::process::id()));
    let run_bytes = (load.mib << 20).div_ceil(2);
    let text = format!(
        "\"http.listen\" = \"127.0.0.1:{http}\"\n\"snapshot.log.bytes\" = 67108864\n\"log.rewrite.enable\" = {rewrites}\n\
         \"log.rewrite.run.bytes\" = {run_bytes}\n\"log.rewrite.run.age.ms\" = {age_ms}\n"
    );
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Waits until nothing is rewritten any more; the metrics then.
fn rest(http: u16) -> Result<String> {
    let (begun, mut changed, mut last) = (Instant::now(), Instant::now(), -1.0);
    loop {
        let page = page(http)?;
        let now =
            sum(&page, "ottla_log_rewritten_bytes_total") + sum(&page, "ottla_disk_written_bytes_total");
        if now != last {
            (changed, last) = (Instant::now(), now);
        }
        if changed.elapsed() >= QUIET || begun.elapsed() >= PATIENCE {
            return Ok(page);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// What a process has read from the disk and written to it.
struct Traffic {
    read: f64,
    written: f64,
}

impl Traffic {
    fn of(broker: &Broker) -> Result<Self> {
        let text =
            std::fs::read_to_string(format!("/proc/{}/io", broker.pid())).context("the broker has ended")?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
            line.trim().parse::<f64>().unwrap_or(0.0)
        };
        Ok(Self {
            read: value("read_bytes:"),
            written: value("write_bytes:") - value("cancelled_write_bytes:"),
        })
    }
}

/// What lies in a folder.
#[derive(Default)]
struct Folder {
    files: u64,
    bytes: u64,
    index: u64,
}

impl Folder {
    fn look(path: &Path) -> Result<Self> {
        let mut found = Self::default();
        for file in files(path)? {
            use std::os::unix::fs::MetadataExt;
            let metadata = std::fs::metadata(&file)?;
            let on_disk = metadata.blocks() * 512;
            found.files += 1;
            found.bytes += on_disk;
            found.index += match file.extension().and_then(|extension| extension.to_str()) {
                Some("index" | "timeindex") => on_disk,
                Some("log" | "data") => footer_bytes(&file)?,
                _ => 0,
            };
        }
        Ok(found)
    }
}

/// Bytes of an Ottla file's footer; 0 when it has none, or is another broker's.
fn footer_bytes(path: &Path) -> Result<u64> {
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    let mut trailer = [0; FOOTER_TRAILER_BYTES as usize];
    if length < trailer.len() as u64 {
        return Ok(0);
    }
    file.seek(SeekFrom::End(-FOOTER_TRAILER_BYTES))?;
    file.read_exact(&mut trailer)?;
    let sealed = u64::from_be_bytes(trailer[24..32].try_into().expect("eight bytes"));
    Ok(if trailer.starts_with(b"OTFT") { length.saturating_sub(sealed) } else { 0 })
}

/// All files below a folder.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![path.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    Ok(found)
}

/// Drops what the page cache has of the folder; says how.
fn drop_cache(path: &Path) -> Result<&'static str> {
    run::check(&mut Command::new("sync"))?;
    if std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        return Ok("/proc/sys/vm/drop_caches");
    }
    for file in files(path)? {
        let mut command = Command::new("dd");
        command.arg(format!("of={}", file.display()));
        command.args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none", "if=/dev/null"]);
        run::check(&mut command)?;
    }
    Ok("posix_fadvise")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a footer is what lies behind the sealed length that the file's last bytes tell.
    #[test]
    fn footers_are_measured() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("00000000000000000001.log");
        let mut bytes = vec![0x5a; 4096 + 200];
        let at = bytes.len() - 64;
        bytes[at..at + 4].copy_from_slice(b"OTFT");
        bytes[at + 24..at + 32].copy_from_slice(&4096u64.to_be_bytes());
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(footer_bytes(&path).expect("readable"), 200);
        std::fs::write(&path, [0; 5000]).expect("written");
        assert_eq!(footer_bytes(&path).expect("readable"), 0);
        assert_eq!(Folder::look(folder.path()).expect("readable").files, 1);
    }

    /// Proves: Ottla stands in two columns, and brokers that cannot be asked this are left out.
    #[test]
    fn ottla_has_two_columns() {
        let brokers = ["ottla", "kafka-flush"].map(str::to_owned);
        assert_eq!(columns(&brokers), ["ottla, not rewritten", "ottla, rewritten"]);
    }
}
