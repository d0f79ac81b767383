//! What the clients have sent and what they were told: the only thing the checker believes.
//!
//! Every batch, transaction and offset commit has a number; the number is inside the bytes that are sent, so that
//! whatever is found in the log can be traced back to who sent it. Broken promises that show at once (an answer
//! that differs from an earlier one, bounds that go back) are noted here as they happen.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ottla_protocol::batch::BatchHeader;
use ottla_protocol::entry::Entry;
use ottla_protocol::types::{TopicIdPartition, Uuid};

use crate::checker::compacted::WholeLogs;

/// Whether a topic of this name is compacted.
pub(crate) fn is_compacted(topic: &str) -> bool {
    topic.starts_with('k')
}

/// A batch, sent once or more.
#[derive(Debug)]
pub(crate) struct SentBatch {
    pub(crate) partition: TopicIdPartition,
    pub(crate) topic: String,
    pub(crate) header: BatchHeader,
    /// From byte 21 on, exactly as sent.
    pub(crate) tail: Bytes,
    /// Base offsets that answers named; more than one is a broken promise.
    pub(crate) offsets: BTreeSet<i64>,
    /// Whether an attempt ended without an answer.
    pub(crate) unknown: bool,
    /// Whether an answer refused it.
    pub(crate) refused: bool,
}

/// A transaction as its client sees it.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) transactional_id: String,
    pub(crate) batches: Vec<usize>,
    /// Index into `History::commits`.
    pub(crate) commits: Vec<usize>,
    pub(crate) commit_sent: bool,
    pub(crate) commit_acked: bool,
    pub(crate) abort_acked: bool,
}

/// A committed offset. The value committed is its index in `History::commits`.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) group: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) acked: bool,
}

/// A topic as its creator sees it.
#[derive(Debug, Default)]
pub(crate) struct Topic {
    /// From the answer, or from the published image.
    pub(crate) id: Option<Uuid>,
    pub(crate) create_acked: bool,
    pub(crate) partitions: i32,
    pub(crate) delete_sent: bool,
    pub(crate) delete_acked: bool,
}

/// Records of a partition that were asked to be deleted.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    pub(crate) asked: BTreeSet<i64>,
    pub(crate) acked: i64,
}

/// How much happened, to show that a run was not empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches acknowledged to their producer.
    pub batches_acked: u64,
    /// Acknowledgements of a batch that was acknowledged before or tried before.
    pub repeats_acked: u64,
    /// Transactions whose commit was acknowledged.
    pub commits_acked: u64,
    /// Transactions whose abort was acknowledged.
    pub aborts_acked: u64,
    /// Transactional producers that were fenced or timed out.
    pub fenced: u64,
    /// Offset commits acknowledged.
    pub offsets_acked: u64,
    /// Restarts after a crash.
    pub restarts: u64,
    /// Reloads after a failed write.
    pub reloads: u64,
    /// Recoveries that were cut off or failed and were tried again.
    pub recoveries_repeated: u64,
    /// Crashes in the middle of a disk operation.
    pub stops_in_operation: u64,
    /// Loads that found a frame whose append nobody had heard of.
    pub unacknowledged_survived: u64,
    /// Snapshots finished.
    pub snapshots: u64,
    /// Recoveries that began from a snapshot.
    pub snapshot_loads: u64,
    /// Frames written.
    pub frames: u64,
    /// Connections cut.
    pub cuts: u64,
    /// Requests that arrived after their connection was cut.
    pub late_requests: u64,
    /// Pauses of the broker over a second.
    pub pauses: u64,
    /// Steps of the wall clock.
    pub clock_steps: u64,
    /// Clients that crashed.
    pub client_crashes: u64,
    /// Of those, clients that went on as zombies.
    pub zombies: u64,
    /// States that were compared with a reloaded or replayed one.
    pub states_compared: u64,
    /// Batches that readers checked.
    pub batches_read: u64,
    /// Changes of the log's files that became durable.
    pub files_changed: u64,
    /// Files that were dropped or rewritten.
    pub files_removed: u64,
    /// Changes that wrote new files.
    pub rewrites: u64,
    /// Log starts that retention asked to move.
    pub log_starts_moved: u64,
    /// Passes of the cleaner whose files were written.
    pub passes: u64,
    /// Passes that were written down, made together counted once.
    pub passes_finished: u64,
    /// Records that passes left out.
    pub records_compacted: u64,
    /// Judgements of partitions that lack what was written to them.
    pub compacted_judged: u64,
}

macro_rules! for_each_count {
    ($self:ident, $other:ident, $($field:ident),*) => { $($self.$field += $other.$field;)* };
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        for_each_count!(
            self,
            other,
            batches_acked,
            repeats_acked,
            commits_acked,
            aborts_acked,
            fenced,
            offsets_acked,
            restarts,
            reloads,
            recoveries_repeated,
            stops_in_operation,
            unacknowledged_survived,
            snapshots,
            snapshot_loads,
            frames,
            cuts,
            late_requests,
            pauses,
            clock_steps,
            client_crashes,
            zombies,
            states_compared,
            batches_read,
            files_changed,
            files_removed,
            rewrites,
            log_starts_moved,
            passes,
            passes_finished,
            records_compacted,
            compacted_judged
        );
    }

    /// Every count with its name.
    pub fn named(&self) -> [(&'static str, u64); 30] {
        [
            ("batches acknowledged", self.batches_acked),
            ("repeats acknowledged", self.repeats_acked),
            ("commits acknowledged", self.commits_acked),
            ("aborts acknowledged", self.aborts_acked),
            ("producers fenced", self.fenced),
            ("offset commits acknowledged", self.offsets_acked),
            ("restarts", self.restarts),
            ("reloads", self.reloads),
            ("recoveries repeated", self.recoveries_repeated),
            ("stops inside a disk operation", self.stops_in_operation),
            ("unacknowledged frames that survived", self.unacknowledged_survived),
            ("snapshots", self.snapshots),
            ("recoveries from a snapshot", self.snapshot_loads),
            ("frames", self.frames),
            ("connections cut", self.cuts),
            ("late requests", self.late_requests),
            ("pauses", self.pauses),
            ("clock steps", self.clock_steps),
            ("client crashes", self.client_crashes),
            ("zombies", self.zombies),
            ("states compared", self.states_compared),
            ("batches read", self.batches_read),
            ("changes of the log's files", self.files_changed),
            ("files dropped or rewritten", self.files_removed),
            ("rewritings", self.rewrites),
            ("log starts moved by retention", self.log_starts_moved),
            ("passes of the cleaner", self.passes),
            ("passes written down", self.passes_finished),
            ("records left out by compaction", self.records_compacted),
            ("compacted partitions judged", self.compacted_judged),
        ]
    }
}

/// Bounds as last published; none of them ever goes back.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    log_start_offset: i64,
    high_watermark: i64,
    last_stable_offset: i64,
    leader_epoch: i32,
}

/// Everything that was sent and answered.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) batches: Vec<SentBatch>,
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) commits: Vec<Commit>,
    pub(crate) topics: BTreeMap<String, Topic>,
    pub(crate) deletions: BTreeMap<TopicIdPartition, Deletions>,
    /// Newest instance of each transactional id that has asked for a producer id.
    pub(crate) instances: BTreeMap<String, u32>,
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<String>,
    /// Requests and answers in words, with `Options::journal`.
    pub(crate) journal: Vec<String>,
    /// What became durable in partitions that may be compacted.
    pub(crate) whole_logs: WholeLogs,
    last_frame_ms: i64,
    handed_out: BTreeMap<(i64, i16), String>,
    seen_bounds: BTreeMap<TopicIdPartition, Seen>,
    /// Hash of each batch that a reader has seen, by place.
    pub(crate) seen_batches: BTreeMap<(TopicIdPartition, i64), u64>,
    /// Batches that a read_committed reader has seen.
    pub(crate) seen_committed: BTreeSet<usize>,
    /// The offset of each group, topic and partition, recomputed from the log at the end.
    pub(crate) expected_offsets: BTreeMap<(String, String, i32), i64>,
}

impl History {
    /// Notes a broken promise.
    pub(crate) fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    /// A frame is durable; shard time never goes back.
    pub(crate) fn frame_written(&mut self, shard_ms: i64) {
        if shard_ms < self.last_frame_ms {
            self.violation(format!("shard time went back from {} to {shard_ms}", self.last_frame_ms));
        }
        self.last_frame_ms = self.last_frame_ms.max(shard_ms);
    }

    /// A frame's entries are durable.
    pub(crate) fn entries_durable(&mut self, entries: &[Entry], time_ms: i64) {
        let mut logs = std::mem::take(&mut self.whole_logs);
        logs.add(entries, time_ms, |partition| self.may_be_compacted(partition));
        self.whole_logs = logs;
    }

    /// Whether clients write to the partition.
    pub(crate) fn is_of_clients(&self, partition: &TopicIdPartition) -> bool {
        self.topics.values().any(|topic| topic.id == Some(partition.topic_id))
    }

    /// Whether the cleaner may work on a partition: internal topics, the control log, and topics that say so.
    pub(crate) fn may_be_compacted(&self, partition: &TopicIdPartition) -> bool {
        let topic = self.topics.iter().find(|(_, topic)| topic.id == Some(partition.topic_id));
        topic.is_none_or(|(name, _)| is_compacted(name))
    }

    /// A producer id was handed out to somebody who asked for a new one.
    pub(crate) fn handed_out(&mut self, producer_id: i64, producer_epoch: i16, to: String) {
        if producer_id < 0 || producer_epoch < 0 {
            self.violation(format!("{to} got producer id {producer_id} epoch {producer_epoch}"));
        }
        if let Some(other) = self.handed_out.insert((producer_id, producer_epoch), to.clone()) {
            self.violation(format!("{producer_id}/{producer_epoch} was handed out to {other} and to {to}"));
        }
    }

    /// A batch was acknowledged at an offset.
    pub(crate) fn batch_acked(&mut self, batch: usize, base_offset: i64, repeated: bool) {
        let sent = &mut self.batches[batch];
        let again = !sent.offsets.is_empty();
        sent.offsets.insert(base_offset);
        self.counts.batches_acked += 1;
        self.counts.repeats_acked += u64::from(repeated || again);
        if sent.offsets.len() > 1 {
            let text = format!("batch {batch} was acknowledged at different offsets: {:?}", sent.offsets);
            self.violation(text);
            return;
        }
        let end = base_offset + i64::from(sent.header.records_count);
        let seen = self.seen_bounds.get(&sent.partition).map_or(0, |seen| seen.high_watermark);
        if seen < end {
            let text =
                format!("batch {batch} was acknowledged up to {end} before it was published (up to {seen})");
            self.violation(text);
        }
    }

    /// Bounds were published.
    pub(crate) fn bounds_published(
        &mut self,
        partition: TopicIdPartition,
        bounds: &ottla_core::decision::Bounds,
        new_epoch: bool,
    ) {
        let new = Seen {
            log_start_offset: bounds.log_start_offset,
            high_watermark: bounds.high_watermark,
            last_stable_offset: bounds.last_stable_offset,
            leader_epoch: bounds.leader_epoch,
        };
        let old =
            self.seen_bounds.insert(partition, new).unwrap_or(Seen { leader_epoch: -1, ..Seen::default() });
        let backwards = new.log_start_offset < old.log_start_offset
            || new.high_watermark < old.high_watermark
            || new.last_stable_offset < old.last_stable_offset
            || new.leader_epoch < old.leader_epoch;
        if backwards || (new_epoch && new.leader_epoch <= old.leader_epoch) {
            self.violation(format!(
                "bounds of {partition:?} went back (or kept their epoch): {old:?} to {new:?}"
            ));
        }
        let ordered =
            new.log_start_offset <= new.last_stable_offset && new.last_stable_offset <= new.high_watermark;
        if !ordered {
            self.violation(format!("bounds of {partition:?} are out of order: {new:?}"));
        }
        let deletions = self.deletions.get(&partition);
        let asked = deletions.is_some_and(|deletions| deletions.asked.contains(&new.log_start_offset));
        let acked = deletions.map_or(0, |deletions| deletions.acked);
        if new.log_start_offset != 0 && !asked {
            self.violation(format!("nobody asked to delete below {} of {partition:?}", new.log_start_offset));
        }
        if new.log_start_offset < acked {
            self.violation(format!("records below {acked} of {partition:?} were deleted and are back"));
        }
    }

    /// The published high watermark of a partition.
    pub(crate) fn high_watermark(&self, partition: TopicIdPartition) -> i64 {
        self.seen_bounds.get(&partition).map_or(0, |seen| seen.high_watermark)
    }

    /// Topics that exist and that nobody has asked to delete: name, id, partitions.
    pub(crate) fn targets(&self) -> Vec<(String, Uuid, i32)> {
        let alive = self.topics.iter().filter(|(_, topic)| topic.create_acked && !topic.delete_sent);
        alive.filter_map(|(name, topic)| Some((name.clone(), topic.id?, topic.partitions))).collect()
    }

    /// Whether a request that names this topic may be told that there is none.
    pub(crate) fn may_be_deleted(&self, topic: &str) -> bool {
        self.topics.get(topic).is_none_or(|topic| topic.delete_sent)
    }
}
