//! The sweep of flipped bytes: a folder that clients have worked on, every byte of every file changed or cut off, and
//! after each change an opening and a reading of everything.
//!
//! What may happen: the log is as it was; or the opening refuses, or reports the damage; or a read of the damaged range
//! is refused. What may not: a byte that nobody wrote is served, a record, an offset, a producer or a transaction is
//! gone or other than it was without a word, or something panics. With some changes the log goes on afterwards: it
//! writes footers, rewrites files, appends, is opened again, and is judged again.
//!
//! `folder` makes the folder, `regions` says what each byte is, `judge` opens and reads.
//! Not here: damage by the disk while the broker runs (`power_cut` has it).

mod folder;
mod judge;
mod regions;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use ottla_env::spawn;

pub use folder::Folder;
pub use judge::Verdict;

use regions::Region;

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of the clients whose folder it is.
    pub seed: u64,
    /// Of headers, directories and other small structures every so many-th byte is changed.
    pub structure_stride: usize,
    /// Of bodies, lists, state in snapshots and what fills up blocks.
    pub body_stride: usize,
    /// Files are cut at every so many-th length.
    pub cut_stride: usize,
    /// With every so many-th change the log goes on afterwards.
    pub go_on_stride: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, structure_stride: 1, body_stride: 7, cut_stride: 61, go_on_stride: 31 }
    }
}

/// One change of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bits of one byte are turned over.
    Flip {
        /// Which byte.
        at: usize,
        /// Which bits.
        mask: u8,
    },
    /// The file ends here.
    Cut {
        /// Its bytes from now on.
        length: usize,
    },
    /// The file is gone.
    Remove,
}

/// What became of the changes of one kind of place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Changes.
    pub tried: u64,
    /// The opening was refused.
    pub refused: u64,
    /// The opening reported the damage; all that was served was right.
    pub reported: u64,
    /// A read of the damaged range was refused; all that was served was right.
    pub read_refused: u64,
    /// All is as it was.
    pub harmless: u64,
    /// The newest file was cut off or is gone, and the log ends earlier.
    pub shorter: u64,
    /// A broken promise.
    pub wrong: u64,
    /// The log went on afterwards.
    pub went_on: u64,
}

/// What came out of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Files of the folder.
    pub files: usize,
    /// Their bytes.
    pub bytes: usize,
    /// By kind of file and kind of place.
    pub rows: BTreeMap<String, Row>,
    /// Broken promises, with the change that showed each.
    pub wrong: Vec<String>,
}

impl Report {
    /// Changes tried.
    pub fn tried(&self) -> u64 {
        self.rows.values().map(|row| row.tried).sum()
    }

    fn count(&mut self, attempt: &Attempt, verdict: &Verdict, went_on: bool) {
        let row = self.rows.entry(attempt.place.clone()).or_default();
        row.tried += 1;
        row.went_on += u64::from(went_on);
        match verdict {
            Verdict::Refused => row.refused += 1,
            Verdict::Reported => row.reported += 1,
            Verdict::ReadRefused => row.read_refused += 1,
            Verdict::Harmless => row.harmless += 1,
            Verdict::Shorter => row.shorter += 1,
            Verdict::Wrong(text) => {
                row.wrong += 1;
                self.wrong.push(format!("{} {:?} ({}): {text}", attempt.name, attempt.change, attempt.place));
            }
        }
    }
}

/// A change to be tried.
struct Attempt {
    name: String,
    place: String,
    change: Change,
}

/// Tries every change of a folder that the options ask for; `progress` hears of every 10,000th.
pub fn sweep(folder: &Arc<Folder>, options: &Options, progress: &mut dyn FnMut(u64, u64)) -> Report {
    let attempts = attempts(folder, options);
    let total = attempts.len() as u64;
    let attempts = Arc::new(attempts);
    let mut report = Report { files: folder.files.len(), bytes: folder.bytes(), ..Report::default() };
    let threads = spawn::parallelism();
    let group = threads * 5_000;
    for begin in (0..attempts.len()).step_by(group) {
        let end = (begin + group).min(attempts.len());
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let (folder, attempts, stride) = (folder.clone(), attempts.clone(), options.go_on_stride);
                let work = move || {
                    let mine = (begin + thread..end).step_by(threads);
                    mine.map(|at| {
                        let goes_on = at % stride == 0;
                        (
                            at,
                            goes_on,
                            judge::judge(&folder, &attempts[at].name, &attempts[at].change, goes_on),
                        )
                    })
                    .collect::<Vec<_>>()
                };
                spawn::thread("flips", work).expect("the machine has room for a thread")
            })
            .collect();
        for handle in handles {
            for (at, went_on, verdict) in handle.join().expect("an attempt catches its panics") {
                report.count(&attempts[at], &verdict, went_on);
            }
        }
        progress(end as u64, total);
    }
    report
}

/// Every change, file by file.
fn attempts(folder: &Folder, options: &Options) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for (name, bytes) in &folder.files {
        let kind = regions::kind_of(name);
        for (range, region) in regions::regions(name, bytes) {
            let stride = if region.is_structure() { options.structure_stride } else { options.body_stride };
            for at in range.step_by(stride) {
                let place = format!("{kind}: {region}");
                let mut try_mask = |mask| {
                    attempts.push(Attempt {
                        name: name.clone(),
                        place: place.clone(),
                        change: Change::Flip { at, mask },
                    })
                };
                try_mask(1 << (at % 8));
                if region.is_structure() {
                    try_mask(0xff);
                }
            }
        }
        let cut = |length| Attempt {
            name: name.clone(),
            place: format!("{kind}: cut"),
            change: Change::Cut { length },
        };
        attempts.extend((0..bytes.len()).step_by(options.cut_stride).map(cut));
        attempts.push(Attempt { name: name.clone(), place: format!("{kind}: gone"), change: Change::Remove });
    }
    attempts
}

impl Region {
    /// Whether few bytes say much: all of them are tried.
    fn is_structure(self) -> bool {
        !matches!(
            self,
            Self::Body
                | Self::Filling
                | Self::HeaderFilling
                | Self::Zeros
                | Self::List
                | Self::State
                | Self::Other
        )
    }
}
