//! The records of a run: lines of a file, or orders made up from the seed.
//!
//! Line `n` has key `n % keys` and is number `n / keys` of its key, so that everybody can tell from a line's
//! number alone what it must be.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ottla_env::files;
use ottla_env::rng::{Rng, SeededRng};

/// Longest line in bytes: with its headers it must fit a broker's default `max.message.bytes`.
const LINE_BYTES_MAX: usize = 1_000_000;

/// Where lines come from.
#[derive(Clone, Debug)]
pub(super) struct Input {
    source: Source,
    records: u64,
    keys: u64,
}

#[derive(Clone, Debug)]
enum Source {
    File(PathBuf),
    MadeUp { seed: u64 },
}

impl Input {
    /// Counts the lines of the file, if there is one, and checks that each can be a record.
    pub(super) fn open(file: Option<&Path>, records: u64, keys: u64, seed: u64) -> Result<Self> {
        let Some(path) = file else { return Ok(Self { source: Source::MadeUp { seed }, records, keys }) };
        let mut input = Self { source: Source::File(path.to_owned()), records: 0, keys };
        let mut lines = input.lines(0)?;
        while lines.next()?.is_some() {
            input.records += 1;
        }
        if input.records == 0 {
            bail!("{} has no lines", path.display());
        }
        Ok(input)
    }

    /// How many lines there are.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// How many keys there are.
    pub(super) fn keys(&self) -> u64 {
        self.keys
    }

    /// The file, for a child's command line.
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.source {
            Source::File(path) => Some(path),
            Source::MadeUp { .. } => None,
        }
    }

    /// The lines from number `from` on.
    pub(super) fn lines(&self, from: u64) -> Result<Lines> {
        let kind = match &self.source {
            Source::File(path) => {
                let file =
                    files::open_read(path).with_context(|| format!("cannot read {}", path.display()))?;
                Kind::File(BufReader::with_capacity(256 << 10, file))
            }
            Source::MadeUp { seed } => Kind::MadeUp { seed: *seed, records: self.records },
        };
        let mut lines = Lines { kind, number: 0 };
        if let Kind::MadeUp { .. } = lines.kind {
            lines.number = from;
        }
        while lines.number < from && lines.next()?.is_some() {}
        Ok(lines)
    }
}

/// Lines in order.
pub(super) struct Lines {
    kind: Kind,
    number: u64,
}

enum Kind {
    File(BufReader<std::fs::File>),
    MadeUp { seed: u64, records: u64 },
}

impl Lines {
    /// The next line and its number.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        let number = self.number;
        let line = match &mut self.kind {
            Kind::MadeUp { seed, records } => (number < *records).then(|| order(*seed, number)),
            Kind::File(file) => {
                let mut line = Vec::new();
                let limit = LINE_BYTES_MAX as u64 + 2;
                let read = file.take(limit).read_until(b'\n', &mut line).context("cannot read the input")?;
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                if line.len() > LINE_BYTES_MAX {
                    bail!("line {} of the input is longer than {LINE_BYTES_MAX} bytes", number + 1);
                }
                (read > 0).then_some(line)
            }
        };
        self.number += u64::from(line.is_some());
        Ok(line.map(|line| (number, line)))
    }
}

/// An order made up from the seed.
fn order(seed: u64, number: u64) -> Vec<u8> {
    const GOODS: [&str; 8] =
        ["lamp", "chair", "kettle", "atlas", "bicycle", "violin", "telescope", "umbrella"];
    let mut rng = SeededRng::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let good = GOODS[rng.index(GOODS.len())];
    format!("order {number}: {} x {good} at {} cents", rng.between(1, 9), rng.between(99, 99_999))
        .into_bytes()
}

/// The key of a line.
pub(super) fn key(number: u64, keys: u64) -> String {
    format!("customer-{}", number % keys)
}

/// What a worker makes of a line: its upper case, behind its length.
pub(super) fn transform(line: &[u8]) -> Vec<u8> {
    let mut out = format!("{} bytes: ", line.len()).into_bytes();
    out.extend(line.iter().map(u8::to_ascii_uppercase));
    out
}

/// FNV-1a, 64 bit: to remember what a line was without keeping it.
pub(super) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &Input, from: u64) -> Vec<(u64, Vec<u8>)> {
        let mut lines = input.lines(from).expect("can be read");
        std::iter::from_fn(|| lines.next().expect("can be read")).collect()
    }

    /// Proves that a file's lines are counted and can be entered anywhere, the last without an end included.
    #[test]
    fn lines_of_a_file() {
        let folder = files::create_scratch_folder("ottla-lines").expect("a folder");
        let path = folder.join("lines");
        files::write(&path, b"one\n\nthree").expect("written");
        let input = Input::open(Some(&path), 0, 2, 0).expect("three lines");
        assert_eq!(input.records(), 3);
        assert_eq!(all(&input, 1), [(1, vec![]), (2, b"three".to_vec())]);
        files::write(&path, b"").expect("written");
        assert!(Input::open(Some(&path), 0, 2, 0).is_err());
        files::write(&path, &vec![b'x'; LINE_BYTES_MAX + 1]).expect("written");
        assert!(Input::open(Some(&path), 0, 2, 0).is_err());
        files::remove_tree(&folder).expect("removed");
    }

    /// Proves that made-up orders depend on seed and number alone.
    #[test]
    fn made_up_orders() {
        let input = Input::open(None, 5, 2, 9).expect("nothing to read");
        assert_eq!(all(&input, 3), all(&input, 0)[3..]);
        assert_ne!(order(1, 0), order(2, 0));
        assert_eq!((key(5, 2), transform(b"ab")), ("customer-1".to_owned(), b"2 bytes: AB".to_vec()));
        assert_ne!(fingerprint(b"a"), fingerprint(b"b"));
    }
}
