//! The input buffers of a task: records to take, and records taken since the boundary.
//!
//! A record stays where it is when it is taken; only a mark moves over it. A commit drops what is before the mark,
//! a rollback sets the mark back, so that nothing is fetched again. Contents are shared bytes, a copy costs counts.
//!
//! While an input has nothing that waits, the others may have to wait for it (KIP-353, KIP-695), or the order between
//! them is by chance: always until what its partition holds was fetched, and as long as is asked for after that.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ottla_client::TopicPartition;

use super::RecordPosition;
use crate::record::{InputRecord, RawRecord};
use crate::topology::graph::Timestamps;

/// A record that waits or was taken.
#[derive(Clone, Debug)]
struct Entry {
    offset: i64,
    /// Event time.
    timestamp: i64,
    record: RawRecord,
    size: usize,
}

/// One input partition.
struct Input {
    at: TopicPartition,
    /// Place of the source node in the task.
    source: usize,
    timestamps: Option<Timestamps>,
    entries: VecDeque<Entry>,
    /// Entries before it were taken since the boundary.
    taken: usize,
    /// Bytes of entries that wait.
    waiting_bytes: usize,
    /// Offset of the next record to take.
    next: i64,
    /// The same, at the boundary.
    next_at_boundary: i64,
    /// Offset after the last record that was pushed.
    pushed: i64,
    /// Everything below it was fetched.
    fetched: i64,
    /// End of what can be read, as far as known.
    log_end: Option<i64>,
    /// Wall clock when it was first seen without a record and without one that could be fetched, ms.
    idle_since: Option<i64>,
}

/// A record that was taken.
pub(super) struct Taken {
    pub(super) source: usize,
    pub(super) at: TopicPartition,
    pub(super) offset: i64,
    pub(super) timestamp: i64,
    pub(super) record: RawRecord,
}

/// All inputs of a task, sorted by partition.
pub(super) struct Inputs {
    inputs: Vec<Input>,
    partitions: Vec<TopicPartition>,
    kept_bytes: usize,
    /// How long the others wait for an input that has nothing; `None` = not even for what can be fetched.
    idle_max: Option<Duration>,
}

/// Whether a record may be taken, as far as silent inputs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Yes,
    /// What an input's partition holds is to be fetched first.
    WhenFetched,
    /// Nothing can be fetched; at this wall clock it has waited long enough, ms.
    At(i64),
}

impl Inputs {
    /// Inputs with the places of their source nodes; sorted by the caller.
    pub(super) fn new(sources: Vec<(TopicPartition, usize, Option<Timestamps>)>) -> Self {
        let partitions = sources.iter().map(|(at, _, _)| at.clone()).collect();
        let inputs = sources.into_iter().map(|(at, source, timestamps)| Input {
            at,
            source,
            timestamps,
            entries: VecDeque::new(),
            taken: 0,
            waiting_bytes: 0,
            next: 0,
            next_at_boundary: 0,
            pushed: 0,
            fetched: 0,
            log_end: None,
            idle_since: None,
        });
        Self { inputs: inputs.collect(), partitions, kept_bytes: 0, idle_max: None }
    }

    /// How long the others wait for an input that has nothing, once everything that its partition holds was taken;
    /// `None` = not at all.
    pub(super) fn set_idle_max(&mut self, idle_max: Option<Duration>) {
        self.idle_max = idle_max;
    }

    pub(super) fn idle_max(&self) -> Option<Duration> {
        self.idle_max
    }

    /// Tells where what can be read of a partition ends now.
    pub(super) fn set_log_end(&mut self, at: &TopicPartition, log_end: i64) {
        if let Some(input) = self.find(at) {
            input.log_end = Some(log_end);
        }
    }

    /// Whether a record may be taken now. An input that gets records begins to be waited for anew.
    pub(super) fn ready(&mut self, wall_ms: i64) -> Ready {
        let Some(idle_max) = self.idle_max.filter(|_| self.inputs.len() > 1) else { return Ready::Yes };
        let idle_ms = i64::try_from(idle_max.as_millis()).unwrap_or(i64::MAX);
        let mut ready = Ready::Yes;
        for input in &mut self.inputs {
            if input.taken < input.entries.len() {
                input.idle_since = None;
                continue;
            }
            if input.log_end.is_none_or(|end| end > input.fetched.max(input.pushed)) {
                input.idle_since = None;
                ready = Ready::WhenFetched;
                continue;
            }
            // a clock that was set back begins the wait anew
            let since = input.idle_since.filter(|since| *since <= wall_ms).unwrap_or(wall_ms);
            input.idle_since = Some(since);
            let due = since.saturating_add(idle_ms);
            ready = match ready {
                Ready::Yes if due > wall_ms => Ready::At(due),
                Ready::At(before) => Ready::At(before.max(due)),
                Ready::Yes | Ready::WhenFetched => ready,
            };
        }
        ready
    }

    pub(super) fn partitions(&self) -> &[TopicPartition] {
        &self.partitions
    }

    fn find(&mut self, at: &TopicPartition) -> Option<&mut Input> {
        self.partitions.binary_search(at).ok().map(|place| &mut self.inputs[place])
    }

    /// Begins at these offsets, with empty buffers.
    pub(super) fn resume_at(&mut self, offsets: &BTreeMap<TopicPartition, i64>) {
        self.kept_bytes = 0;
        for input in &mut self.inputs {
            let next = offsets.get(&input.at).copied().unwrap_or(0);
            (input.next, input.next_at_boundary, input.pushed) = (next, next, next);
            (input.fetched, input.log_end, input.idle_since) = (next, None, None);
            input.entries.clear();
            (input.taken, input.waiting_bytes) = (0, 0);
        }
    }

    /// Adds records at the end; those that are there already or lie before the start are left out, as are those of
    /// other partitions.
    pub(super) fn push(&mut self, records: Vec<InputRecord>) {
        for InputRecord { topic_partition, offset, record } in records {
            let Some(input) = self.find(&topic_partition) else { continue };
            if offset < input.pushed {
                continue;
            }
            input.pushed = offset + 1;
            // A record whose time cannot be read keeps its own; it fails when it is taken.
            let extracted = input.timestamps.as_ref().and_then(|timestamps| timestamps(&record).ok());
            let timestamp = extracted.unwrap_or(record.timestamp);
            let size = record.size();
            input.waiting_bytes += size;
            input.entries.push_back(Entry { offset, timestamp, record, size });
        }
    }

    /// The input with the lowest timestamp at its head.
    fn lowest(&self) -> Option<usize> {
        let heads = self.inputs.iter().enumerate();
        heads
            .filter_map(|(place, input)| input.entries.get(input.taken).map(|entry| (entry.timestamp, place)))
            .min()
            .map(|(_, place)| place)
    }

    /// Timestamp of the record that [`Inputs::take`] would give.
    pub(super) fn next_timestamp(&self) -> Option<i64> {
        let input = &self.inputs[self.lowest()?];
        Some(input.entries[input.taken].timestamp)
    }

    /// Takes the record with the lowest timestamp; at equal ones that of the first partition.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let place = self.lowest()?;
        let input = &mut self.inputs[place];
        let entry = &input.entries[input.taken];
        input.taken += 1;
        input.next = entry.offset + 1;
        input.waiting_bytes -= entry.size;
        self.kept_bytes += entry.size;
        Some(Taken {
            source: input.source,
            at: input.at.clone(),
            offset: entry.offset,
            timestamp: entry.timestamp,
            record: entry.record.clone(),
        })
    }

    /// The record that was taken last at a partition, when it is the one of that position.
    pub(super) fn last_taken(&self, position: &RecordPosition) -> Option<RawRecord> {
        let input = &self.inputs[self.partitions.binary_search(&position.topic_partition).ok()?];
        let last = input.entries.get(input.taken.checked_sub(1)?)?;
        (last.offset == position.offset).then(|| last.record.clone())
    }

    /// Offsets of the next records to take.
    pub(super) fn offsets(&self) -> BTreeMap<TopicPartition, i64> {
        self.inputs.iter().map(|input| (input.at.clone(), input.next)).collect()
    }

    /// Everything below that offset was fetched: when no record waits, the next one to take is at or above it.
    pub(super) fn fetched_to(&mut self, at: &TopicPartition, offset: i64) {
        let Some(input) = self.find(at) else { return };
        input.fetched = input.fetched.max(offset);
        if input.taken == input.entries.len() && offset > input.next {
            (input.next, input.pushed) = (offset, offset.max(input.pushed));
        }
    }

    /// Drops what was taken.
    pub(super) fn committed(&mut self) {
        self.kept_bytes = 0;
        for input in &mut self.inputs {
            input.entries.drain(..input.taken);
            input.taken = 0;
            input.next_at_boundary = input.next;
        }
    }

    /// Puts back what was taken.
    pub(super) fn rollback(&mut self) {
        self.kept_bytes = 0;
        for input in &mut self.inputs {
            input.waiting_bytes +=
                input.entries.iter().take(input.taken).map(|entry| entry.size).sum::<usize>();
            input.taken = 0;
            input.next = input.next_at_boundary;
        }
    }

    /// Bytes of records that wait.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.inputs.iter().map(|input| input.waiting_bytes).sum()
    }

    /// Bytes of records that wait at one input.
    pub(super) fn waiting_bytes_of(&self, at: &TopicPartition) -> usize {
        self.partitions.binary_search(at).map_or(0, |place| self.inputs[place].waiting_bytes)
    }

    /// Bytes of records that were taken since the boundary.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(topic: &str, offset: i64, timestamp: i64) -> InputRecord {
        let record = RawRecord { timestamp, ..RawRecord::default() };
        InputRecord { topic_partition: TopicPartition::new(topic, 0), offset, record }
    }

    fn inputs() -> Inputs {
        Inputs::new(vec![(TopicPartition::new("a", 0), 0, None), (TopicPartition::new("b", 0), 1, None)])
    }

    fn all(inputs: &mut Inputs) -> Vec<(String, i64)> {
        std::iter::from_fn(|| inputs.take()).map(|taken| (taken.at.topic.to_string(), taken.offset)).collect()
    }

    /// Proves that the lowest timestamp goes first, order within a partition is kept, and that a rollback gives the
    /// same records in the same order again while a commit forgets them.
    #[test]
    fn lowest_first_and_again_after_a_rollback() {
        let mut inputs = inputs();
        inputs.push(vec![record("a", 5, 10), record("a", 7, 3), record("b", 1, 4), record("b", 2, 10)]);
        let bytes = inputs.waiting_bytes();
        let order = all(&mut inputs);
        let expected =
            [("b", 1), ("a", 5), ("a", 7), ("b", 2)].map(|(topic, offset)| (topic.to_string(), offset));
        assert_eq!(order, expected);
        assert_eq!((inputs.waiting_bytes(), inputs.kept_bytes()), (0, bytes));
        inputs.rollback();
        assert_eq!((inputs.waiting_bytes(), inputs.kept_bytes()), (bytes, 0));
        assert_eq!(all(&mut inputs), expected);
        inputs.committed();
        inputs.rollback();
        assert!(all(&mut inputs).is_empty());
        assert_eq!(inputs.offsets()[&TopicPartition::new("a", 0)], 8);
    }

    /// Proves the waiting for silent inputs: until it is known what a partition holds, until that was fetched, and then
    /// as long as was asked for; that a record of it ends the wait and begins the next one anew; that who asks for no
    /// waiting, and a single input, never wait; and that a clock that goes back makes nobody wait for ever.
    #[test]
    fn waits_for_silent_inputs() {
        let (a, b) = (TopicPartition::new("a", 0), TopicPartition::new("b", 0));
        let mut inputs = inputs();
        inputs.push(vec![record("a", 0, 1)]);
        assert_eq!(inputs.ready(100), Ready::Yes, "not asked for");
        inputs.set_idle_max(Some(Duration::from_millis(50)));
        assert_eq!(inputs.ready(100), Ready::WhenFetched, "nothing is known of b");
        inputs.set_log_end(&b, 3);
        assert_eq!(inputs.ready(100), Ready::WhenFetched, "b has three records");
        inputs.fetched_to(&b, 3); // aborted ones
        assert_eq!(inputs.ready(100), Ready::At(150));
        assert_eq!(inputs.ready(149), Ready::At(150));
        assert_eq!(inputs.ready(150), Ready::Yes);
        inputs.push(vec![record("b", 3, 5)]);
        inputs.set_log_end(&b, 4);
        assert_eq!(inputs.ready(160), Ready::Yes);
        assert_eq!(inputs.take().expect("waits").at, a);
        assert_eq!(inputs.take().expect("waits").at, b);
        inputs.push(vec![record("a", 1, 9)]);
        inputs.set_log_end(&a, 2);
        assert_eq!(inputs.ready(170), Ready::At(220), "anew");
        assert_eq!(inputs.ready(20), Ready::At(70), "the clock went back");
        inputs.set_idle_max(Some(Duration::ZERO));
        assert_eq!(inputs.ready(21), Ready::Yes);
        inputs.resume_at(&BTreeMap::new());
        assert_eq!(inputs.ready(22), Ready::WhenFetched, "what was known is forgotten");
        let mut single = Inputs::new(vec![(a, 0, None)]);
        single.set_idle_max(Some(Duration::from_secs(1)));
        assert_eq!(single.ready(0), Ready::Yes);
    }

    /// Proves that records below the start, seen twice or of strange partitions are left out.
    #[test]
    fn what_is_not_new_is_left_out() {
        let mut inputs = inputs();
        inputs.resume_at(&BTreeMap::from([(TopicPartition::new("a", 0), 5)]));
        inputs.push(vec![record("a", 4, 1), record("a", 5, 1), record("a", 5, 1), record("c", 0, 1)]);
        assert_eq!(all(&mut inputs), [("a".to_string(), 5)]);
    }

    /// Proves that the position moves over a gap at the end, goes back in a rollback, and not while records wait.
    #[test]
    fn gaps_at_the_end() {
        let at = TopicPartition::new("a", 0);
        let mut inputs = inputs();
        inputs.push(vec![record("a", 0, 1)]);
        inputs.fetched_to(&at, 9);
        assert_eq!(inputs.offsets()[&at], 0);
        inputs.take();
        inputs.fetched_to(&at, 9);
        assert_eq!(inputs.offsets()[&at], 9);
        inputs.rollback();
        assert_eq!(inputs.offsets()[&at], 0);
    }
}
