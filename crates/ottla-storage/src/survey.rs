//! What the live files hold: how much of each is alive, and how the alive lies.
//!
//! Looks into the index alone, a part of it at a time, so that the writer never waits long. Only files that may be
//! dropped or rewritten are counted: all of their frames are in the second newest verified snapshot, so no start needs
//! them for replay; and they are not damaged, since damaged bytes are kept as they are.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::TopicIdPartition;

use crate::catalogue::LiveFile;
use crate::index::{Extent, FileRange};
use crate::levels::Alive;
use crate::options::{FileId, FrameSequence};
use crate::shared::Shared;

/// Partitions that are looked at in one hold of the index.
const PARTITIONS_PER_LOCK: usize = 1024;

/// Extents with at most this between them (headers and what fills up a block) lie together.
const TOGETHER_BYTES: u64 = 8 << 10;

/// One file.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) live: LiveFile,
    /// Shard time of its newest batch, milliseconds; none if unknown.
    pub(crate) appended: Option<i64>,
    /// Bytes of all batches; 0 where a file of version 1 does not say.
    pub(crate) batch_bytes: u64,
    /// Bytes of batches that are alive.
    pub(crate) live_bytes: u64,
    /// Whether any batch is alive.
    pub(crate) is_alive: bool,
    /// Alive bytes by retention class.
    pub(crate) classes: BTreeMap<u64, u64>,
}

impl Account {
    /// Bytes of the file that nobody needs, headers of what is dead included. 0 where that cannot be said.
    pub(crate) fn garbage_bytes(&self) -> u64 {
        let length = self.live.seal.length;
        match self.batch_bytes {
            0 if self.is_alive => 0,
            0 => length,
            all => {
                let dead = all.saturating_sub(self.live_bytes);
                (u128::from(length) * u128::from(dead) / u128::from(all)) as u64
            }
        }
    }
}

/// The files that may be dropped or rewritten, in the order of the log, and those that nobody but a replay needs.
/// `horizon` as of [`SnapshotStore::horizon`](crate::SnapshotStore::horizon).
pub(crate) fn accounts(
    shared: &Shared,
    horizon: FrameSequence,
    untouched: &BTreeSet<FileId>,
    alive: &dyn Alive,
) -> (Vec<Account>, Vec<Account>) {
    let mut accounts = candidates(shared, untouched);
    let mut after = None;
    loop {
        let lines = shared.index().sealed_behind(after, PARTITIONS_PER_LOCK);
        let Some((last, _)) = lines.last() else { break };
        after = Some(*last);
        for (partition, ranges) in &lines {
            let log_start_offset = alive.log_start_offset(partition);
            for range in ranges {
                let Some(account) = accounts.get_mut(&range.file) else { continue };
                account.batch_bytes += range.bytes;
                let Some(log_start_offset) = log_start_offset.filter(|start| *start <= range.last_offset)
                else {
                    continue;
                };
                let class = alive.class(partition);
                let bytes = live_bytes(range, log_start_offset);
                account.is_alive = true;
                account.live_bytes += bytes;
                *account.classes.entry(class).or_default() += bytes;
            }
        }
    }
    let mut accounts: Vec<Account> = accounts.into_values().collect();
    accounts.sort_by_key(|account| (account.live.newest_source, account.live.seal.file));
    let is_replayed = |account: &mut Account| {
        let seal = account.live.seal;
        !seal.file.is_data() && seal.last_sequence > horizon
    };
    let mut waiting: Vec<Account> = accounts.extract_if(.., is_replayed).collect();
    waiting.retain(|account| !account.is_alive);
    (accounts, waiting)
}

/// Bytes of a range that lie at the log start or behind it, about.
fn live_bytes(range: &FileRange, log_start_offset: i64) -> u64 {
    let offsets = (range.last_offset - range.first_offset).unsigned_abs() + 1;
    let live = (range.last_offset - log_start_offset.max(range.first_offset)).unsigned_abs() + 1;
    (u128::from(range.bytes) * u128::from(live) / u128::from(offsets)) as u64
}

fn candidates(shared: &Shared, untouched: &BTreeSet<FileId>) -> BTreeMap<FileId, Account> {
    let in_use = shared.index().open_file();
    let known = shared.known();
    let chain = known.catalogue.chain();
    let chained = known.seals.range(chain..in_use).map(|(file, seal)| LiveFile {
        seal: *seal,
        is_settled: false,
        newest_source: *file,
    });
    let listed = known.catalogue.listed().copied();
    let may = |live: &LiveFile| !untouched.contains(&live.seal.file);
    let accounts = chained.chain(listed).filter(may).map(|live| {
        let file = live.seal.file;
        let appended = known.appended.get(&file).copied();
        let account = Account {
            live,
            appended,
            batch_bytes: known.superseded.get(&file).copied().unwrap_or(0),
            live_bytes: 0,
            is_alive: false,
            classes: BTreeMap::new(),
        };
        (file, account)
    });
    accounts.collect()
}

/// One partition in the files that are to go: what they hold of it, oldest first.
pub(crate) struct Part {
    pub(crate) partition: TopicIdPartition,
    pub(crate) ranges: Vec<FileRange>,
    /// Whether nothing of the partition lies between these ranges elsewhere.
    pub(crate) is_contiguous: bool,
}

/// What some files hold, by partition.
pub(crate) fn parts(shared: &Shared, files: &BTreeSet<FileId>) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut after = None;
    loop {
        let lines = shared.index().sealed_behind(after, PARTITIONS_PER_LOCK);
        let Some((last, _)) = lines.last() else { return parts };
        after = Some(*last);
        for (partition, all) in lines {
            let inside = |range: &FileRange| files.contains(&range.file);
            let Some(first) = all.iter().position(inside) else { continue };
            let ranges: Vec<FileRange> = all.iter().copied().filter(inside).collect();
            let is_contiguous = all[first..first + ranges.len()].iter().all(inside);
            parts.push(Part { partition, ranges, is_contiguous });
        }
    }
}

/// How many stretches a partition's extents in one file lie in.
pub(crate) fn stretches(extents: &[Extent]) -> u64 {
    let apart = extents.windows(2).filter(|pair| {
        let end = pair[0].position + u64::from(pair[0].bytes);
        pair[1].position < end || pair[1].position - end > TOGETHER_BYTES
    });
    u64::from(!extents.is_empty()) + apart.count() as u64
}
