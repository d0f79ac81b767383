//! Dropping and rewriting files: retention and deletes give their space back, and a cold reader finds what it needs
//! close together.
//!
//! Level 0 are the files of the log as they were written, all partitions interleaved. Once a run of them is large or
//! old enough it is looked at: where what lies together of a partition is short, or retention is mixed, the run is
//! rewritten once into files grouped by retention class, then partition; else it is taken as it is ("settled"). What
//! holds nothing alive is dropped. When garbage has grown, the files with the most of it are rewritten without it.
//!
//! A change happens in this order: new files are durable; one entry in the log makes the change true
//! (`LogWriter::append_files`); readers see it; the old files are unlinked ([`Levels::unlink`]). A crash in front of
//! the entry leaves new files that nobody knows, behind it old ones; both are removed by the next opening.
//!
//! Invariants: what is dropped or rewritten is needed by no replay (see [`SnapshotStore::horizon`]) and what is
//! alive is asked of *published* bounds only, so nothing rests on what is not durable.
//!
//! [`SnapshotStore::horizon`]: crate::SnapshotStore::horizon

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use ottla_protocol::types::TopicIdPartition;

use crate::catalogue::{Compacted, CompactedPart, EDIT_FILES_MAX, FilesEdit, LiveFile};
use crate::index::FileRange;
use crate::options::{FileId, FrameSequence};
use crate::reader::LogReader;
use crate::rewrite::{self, RewriteFault, Rewritten, Source};
use crate::shared::Shared;
use crate::survey::{self, Account, Part};
use crate::writer::FilesChange;

/// So many small files are put together.
const SMALL_FILES: usize = 16;

/// What is alive, by published bounds.
pub trait Alive {
    /// The partition's log start offset; none when it was deleted.
    fn log_start_offset(&self, partition: &TopicIdPartition) -> Option<i64>;
    /// Partitions of one class are kept for about the same time.
    fn class(&self, partition: &TopicIdPartition) -> u64;
}

/// Why nothing was done. Trying again later may help.
#[derive(Debug, thiserror::Error)]
pub enum LevelsError {
    /// The log was reopened or its writer died.
    #[error("the log has ended")]
    Ended,
    /// The disk failed.
    #[error("{name}: {source}")]
    Io {
        /// The file, or what was done to the folder.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// What the last look found. Bytes are those of files that may be dropped or rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelsFigures {
    /// Such files.
    pub files: u64,
    /// Rewritten ones among them.
    pub data_files: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes of them that nobody needs.
    pub garbage_bytes: u64,
    /// Bytes that this opening has written to new files.
    pub bytes_rewritten: u64,
    /// Files that hold nothing alive and must stay, since a start may replay them: a snapshot lets them go.
    pub waiting_files: u64,
    /// Bytes of them.
    pub waiting_bytes: u64,
}

/// Drops and rewrites files. One per opening; driven by one thread, which appends each change before it asks for the
/// next.
pub struct Levels {
    pub(crate) shared: Arc<Shared>,
    /// Damaged files: their bytes are kept as they are.
    pub(crate) untouched: BTreeSet<FileId>,
    /// Files that this opening has written, and what of them seemed to be garbage at once: a log start inside a batch
    /// leaves the whole batch, and writing it anew would not help.
    pub(crate) kept_garbage: BTreeMap<FileId, Option<u64>>,
    pub(crate) figures: LevelsFigures,
}

impl Levels {
    pub(crate) fn new(shared: Arc<Shared>, untouched: BTreeSet<FileId>) -> Self {
        Self { shared, untouched, kept_garbage: BTreeMap::new(), figures: LevelsFigures::default() }
    }

    /// Looks for what is to be done next and does it up to the change, which is to be appended. None when there is
    /// nothing to do. May write new files and takes as long as that takes; ends early when the log ends.
    ///
    /// `horizon`: of the snapshots; `now`: shard time, milliseconds; `pace` is told of bytes that rewriting reads and
    /// writes and takes the time that they may cost; false from it ends the rewriting.
    pub fn run_once(
        &mut self,
        horizon: Option<FrameSequence>,
        now: i64,
        alive: &dyn Alive,
        pace: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<FilesChange>, LevelsError> {
        if self.shared.has_ended() {
            return Err(LevelsError::Ended);
        }
        let (accounts, waiting) =
            survey::accounts(&self.shared, horizon.unwrap_or_default(), &self.untouched, alive);
        self.figures.waiting_files = waiting.len() as u64;
        self.figures.waiting_bytes = waiting.iter().map(|account| account.live.seal.length).sum();
        self.count(&accounts);
        let chain = self.shared.known().catalogue.chain();
        if let Some(last) = last_to_list(&accounts, chain, EDIT_FILES_MAX) {
            let listed = Rewritten { files: vec![last], ..Rewritten::default() };
            return Ok(Some(self.change(Vec::new(), &accounts, listed)));
        }
        let dead: Vec<&Account> = accounts.iter().filter(|account| !account.is_alive).collect();
        if !dead.is_empty() {
            let dead = dead.into_iter().take(EDIT_FILES_MAX).cloned().collect();
            return Ok(Some(self.change(dead, &accounts, Rewritten::default())));
        }
        if !self.shared.options.levels.rewrite {
            // What compaction has left behind goes in any case.
            let known = self.shared.known();
            let left = |account: &Account| known.superseded.contains_key(&account.live.seal.file);
            let left: Vec<Account> = accounts.iter().filter(|account| left(account)).cloned().collect();
            drop(known);
            return match self.dirty(&left) {
                Some(files) => self.rewrite(files, &accounts, alive, pace),
                None => Ok(None),
            };
        }
        if let Some(run) = self.run(&accounts, now) {
            if !self.is_to_be_rewritten(&run, alive)? {
                return Ok(Some(self.settle(run, &accounts)));
            }
            return self.rewrite(run, &accounts, alive, pace);
        }
        match self.dirty(&accounts).or_else(|| self.small(&accounts)) {
            Some(files) => self.rewrite(files, &accounts, alive, pace),
            None => Ok(None),
        }
    }

    /// Removes the files that a change has dropped; the change must be durable. What cannot be removed now is
    /// removed at the next start.
    pub fn unlink(&self, change: &FilesChange) {
        let removed = &change.edit.removed;
        self.shared.forget_files(removed);
        for file in removed {
            let name = file.file_name();
            if let Err(error) = self.shared.disk.remove(&name)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(name, %error, "could not remove a file that was dropped");
            }
        }
        if !removed.is_empty()
            && let Err(error) = self.shared.disk.sync_dir()
        {
            tracing::warn!(%error, "the removal of files may not be durable");
        }
        let mut known = self.shared.known();
        for file in removed {
            known.seals.remove(file);
            known.appended.remove(file);
            known.superseded.remove(file);
        }
    }

    /// What the last look found.
    pub fn figures(&self) -> LevelsFigures {
        self.figures
    }

    fn count(&mut self, accounts: &[Account]) {
        let there: BTreeMap<FileId, u64> =
            accounts.iter().map(|account| (account.live.seal.file, account.garbage_bytes())).collect();
        self.kept_garbage.retain(|file, _| there.contains_key(file));
        for (file, kept) in &mut self.kept_garbage {
            kept.get_or_insert(there[file]);
        }
        self.figures = LevelsFigures {
            files: accounts.len() as u64,
            data_files: accounts.iter().filter(|account| account.live.seal.file.is_data()).count() as u64,
            bytes: accounts.iter().map(|account| account.live.seal.length).sum(),
            garbage_bytes: accounts.iter().map(Account::garbage_bytes).sum(),
            ..self.figures
        };
    }

    /// The oldest files of the log that nobody has looked at, when they are large or old enough for a run.
    fn run(&self, accounts: &[Account], now: i64) -> Option<Vec<Account>> {
        let options = &self.shared.options.levels;
        let fresh = accounts.iter().filter(|account| !account.live.is_settled);
        let mut bytes = 0;
        let mut run: Vec<Account> = Vec::new();
        for account in fresh {
            if bytes >= options.run_bytes || run.len() >= EDIT_FILES_MAX {
                break;
            }
            bytes += account.live.seal.length;
            run.push(account.clone());
        }
        let is_old = |account: &Account| {
            account.appended.is_none_or(|appended| now.saturating_sub(appended) >= options.run_age_ms)
        };
        let is_due = bytes >= options.run_bytes || run.first().is_some_and(is_old);
        is_due.then_some(run)
    }

    /// Whether what lies together in a run is short, or its retention is mixed.
    fn is_to_be_rewritten(&self, run: &[Account], alive: &dyn Alive) -> Result<bool, LevelsError> {
        let options = &self.shared.options.levels;
        let mut classes: BTreeMap<u64, u64> = BTreeMap::new();
        for (class, bytes) in run.iter().flat_map(|account| &account.classes) {
            *classes.entry(*class).or_default() += bytes;
        }
        let (all, length): (u64, u64) =
            (classes.values().sum(), run.iter().map(|account| account.live.seal.length).sum());
        let most = classes.values().copied().max().unwrap_or(0);
        // Small frames are mostly what fills up their last block.
        let is_mostly_filling = all > 0 && all * 2 < length;
        if (all - most) * 100 > all * options.mixed_percent || is_mostly_filling {
            return Ok(true);
        }
        let reader = LogReader { shared: self.shared.clone() };
        let files: BTreeSet<FileId> = run.iter().map(|account| account.live.seal.file).collect();
        let (mut bytes, mut stretches) = (0u64, 0u64);
        for part in survey::parts(&self.shared, &files) {
            let Some(log_start_offset) = alive.log_start_offset(&part.partition) else { continue };
            for range in &part.ranges {
                let extents = reader.range_extents(&part.partition, range).map_err(|error| {
                    LevelsError::Io { name: range.file.file_name(), source: io::Error::other(error) }
                })?;
                let alive = rewrite::alive(&extents, log_start_offset);
                bytes += alive.iter().map(|extent| u64::from(extent.bytes)).sum::<u64>();
                stretches += survey::stretches(alive);
            }
        }
        Ok(stretches > 0 && bytes / stretches < options.extent_bytes_min)
    }

    /// Garbage that goes when a file is rewritten.
    fn reclaimable(&self, account: &Account) -> u64 {
        let kept = self.kept_garbage.get(&account.live.seal.file).copied().flatten().unwrap_or(0);
        account.garbage_bytes().saturating_sub(kept)
    }

    /// When there is too much garbage: the file with the largest share of it, and its neighbours that are worth it.
    fn dirty(&self, accounts: &[Account]) -> Option<Vec<Account>> {
        let options = &self.shared.options.levels;
        let garbage: u64 = accounts.iter().map(|account| self.reclaimable(account)).sum();
        if garbage * 100 <= self.figures.bytes * options.garbage_percent {
            return None;
        }
        let share = |account: &Account| self.reclaimable(account) * 1000 / account.live.seal.length.max(1);
        let (worst, most) =
            accounts.iter().enumerate().max_by_key(|(at, account)| (share(account), usize::MAX - at))?;
        if share(most) * 10 < options.garbage_percent * 100 {
            return None;
        }
        let is_worth_it = |account: &Account| account.live.is_settled && share(account) >= 500;
        let mut bytes = most.live_bytes;
        let mut end = worst + 1;
        while let Some(next) = accounts.get(end).filter(|next| is_worth_it(next)) {
            bytes += next.live_bytes;
            if bytes > options.data_file_bytes {
                break;
            }
            end += 1;
        }
        Some(accounts[worst..end].to_vec())
    }

    /// The oldest small files, when they are many and can be put together.
    fn small(&self, accounts: &[Account]) -> Option<Vec<Account>> {
        let small = self.shared.options.levels.small_file_bytes();
        let is_small = |account: &&Account| account.live.is_settled && account.live.seal.length < small;
        let row: Vec<Account> = accounts.iter().filter(is_small).take(SMALL_FILES).cloned().collect();
        let files = row.iter().map(|account| account.live.seal.file).collect();
        let joins = row.len() == SMALL_FILES
            && survey::parts(&self.shared, &files).iter().all(|part| part.is_contiguous);
        joins.then_some(row)
    }

    fn rewrite(
        &mut self,
        mut files: Vec<Account>,
        accounts: &[Account],
        alive: &dyn Alive,
        pace: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<FilesChange>, LevelsError> {
        let ids = |files: &[Account]| files.iter().map(|account| account.live.seal.file).collect();
        let mut parts = survey::parts(&self.shared, &ids(&files));
        if parts.iter().any(|part| !part.is_contiguous) {
            files.truncate(1); // what one file holds of a partition is always in one piece
            parts = survey::parts(&self.shared, &ids(&files));
        }
        let sources = parts.into_iter().filter_map(|Part { partition, ranges, .. }| {
            let log_start_offset = alive.log_start_offset(&partition)?;
            Some(Source { class: alive.class(&partition), partition, log_start_offset, ranges, filter: None })
        });
        let newest = files.iter().map(|account| account.live.newest_source).max();
        let newest = newest.expect("something is rewritten");
        let appended = files.iter().filter_map(|account| account.appended).max().unwrap_or(0);
        match rewrite::rewrite(&self.shared, sources.collect(), (newest, appended), pace) {
            Ok(rewritten) => {
                self.figures.bytes_rewritten += rewritten.bytes;
                let written = rewritten.files.iter().map(|live| (live.seal.file, None));
                self.kept_garbage.extend(written);
                Ok(Some(self.change(files, accounts, rewritten)))
            }
            Err(RewriteFault::Damaged(file)) => {
                tracing::error!(file = %file.file_name(), "a damaged file is left as it is and not rewritten");
                self.untouched.insert(file);
                Ok(None)
            }
            Err(RewriteFault::Ended | RewriteFault::Stopped) => Err(LevelsError::Ended),
            Err(RewriteFault::Io(name, source)) => Err(LevelsError::Io { name, source }),
        }
    }

    /// A run that is good as it is.
    fn settle(&self, run: Vec<Account>, accounts: &[Account]) -> FilesChange {
        let settled = run.into_iter().map(|account| LiveFile { is_settled: true, ..account.live });
        self.change(Vec::new(), accounts, Rewritten { files: settled.collect(), ..Default::default() })
    }

    /// The change that drops files and adds those that were written, or settled, in their place.
    fn change(&self, removed: Vec<Account>, accounts: &[Account], new: Rewritten) -> FilesChange {
        let removed: Vec<FileId> = removed.iter().map(|account| account.live.seal.file).collect();
        let gone: BTreeSet<FileId> = removed.iter().copied().collect();
        let appended = accounts.iter().filter(|account| gone.contains(&account.live.seal.file));
        let newest = appended.filter_map(|account| account.appended).max().unwrap_or(0);
        let written =
            new.files.iter().map(|live| live.seal.file).filter(|file| file.is_data() && !gone.is_empty());
        let appended = written.map(|file| (file, newest)).collect();
        let compacted = self.moved(&gone, &new);
        let edit = FilesEdit { compacted, ..self.edit(removed, new.files) };
        let parts = survey::parts(&self.shared, &gone).into_iter();
        let ranges: BTreeMap<TopicIdPartition, Vec<FileRange>> = parts
            .map(|part| (part.partition, new.ranges.get(&part.partition).cloned().unwrap_or_default()))
            .collect();
        FilesChange { edit, ranges, appended, superseded: Vec::new(), bytes_written: new.bytes }
    }

    /// Compacted partitions that have parts in files that go: where they are then.
    fn moved(&self, gone: &BTreeSet<FileId>, new: &Rewritten) -> Vec<Compacted> {
        let known = self.shared.known();
        let is_gone = |part: &CompactedPart| gone.contains(&part.file);
        let moved = known.catalogue.compacted().filter(|compacted| compacted.parts.iter().any(is_gone));
        let moved = moved.map(|compacted| {
            let mut parts = compacted.parts.clone();
            parts.retain(|part| !is_gone(part));
            let written = new.ranges.get(&compacted.partition).into_iter().flatten();
            parts.extend(written.filter(|range| range.first_offset < compacted.below).map(compacted_part));
            parts.sort_unstable_by_key(|part| part.first_offset);
            Compacted { parts, ..*compacted }
        });
        moved.collect()
    }

    /// Files of the chain that are named leave it, and with them all in front of them, which are live as before.
    pub(crate) fn edit(&self, removed: Vec<FileId>, mut added: Vec<LiveFile>) -> FilesEdit {
        let named: BTreeSet<FileId> =
            removed.iter().copied().chain(added.iter().map(|live| live.seal.file)).collect();
        let last = named.iter().rev().find(|file| !file.is_data());
        let known = self.shared.known();
        let before = known.catalogue.chain();
        let chain = last.map_or(before, |last| before.max(FileId(last.0 + 1)));
        let leaving = known.seals.range(before..chain).filter(|(file, _)| !named.contains(file));
        added.extend(leaving.map(|(file, seal)| LiveFile {
            seal: *seal,
            is_settled: false,
            newest_source: *file,
        }));
        FilesEdit { chain, removed, added, compacted: Vec::new() }
    }
}

/// A change lists all files of the chain in front of those that it names. When these are very many they are listed in
/// steps, so that no change is too large to be written and read: up to which file next.
fn last_to_list(accounts: &[Account], chain: FileId, at_once: usize) -> Option<LiveFile> {
    let in_chain = |account: &&Account| !account.live.seal.file.is_data() && account.live.seal.file >= chain;
    let mut chained = accounts.iter().filter(in_chain).map(|account| account.live);
    let last = chained.nth(at_once - 1)?;
    chained.nth(at_once).map(|_| last)
}

/// What is said of a part of a compacted partition.
pub(crate) fn compacted_part(range: &FileRange) -> CompactedPart {
    CompactedPart {
        file: range.file,
        first_offset: range.first_offset,
        last_offset: range.last_offset,
        bytes: range.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_header::Seal;

    fn account(file: FileId) -> Account {
        let seal = Seal { file, nonce: 1, length: 8192, last_sequence: FrameSequence(1), last_header_crc: 2 };
        Account {
            live: LiveFile { seal, is_settled: false, newest_source: file },
            appended: None,
            batch_bytes: 1,
            live_bytes: 1,
            is_alive: true,
            classes: BTreeMap::new(),
        }
    }

    /// Proves: a chain that is long is listed a part at a time, the oldest first, until what is left fits one change;
    /// what is listed already, and rewritten files, do not count.
    #[test]
    fn long_chains_are_listed_in_steps() {
        let mut accounts: Vec<Account> = (1..=35).map(|number| account(FileId(number))).collect();
        accounts.extend((1..=50).map(|number| account(FileId::data(number))));
        let mut steps = Vec::new();
        let mut chain = FileId(3);
        while let Some(last) = last_to_list(&accounts, chain, 10) {
            steps.push(last.seal.file.0);
            chain = FileId(last.seal.file.0 + 1);
        }
        assert_eq!(steps, [12, 22]);
    }
}
