//! The machine against a log in memory: every row of the crash matrix that is decided at recovery, and random kills.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::engine::mem::{MemDisk, MemEngine};
use crate::engine::{Direction, KeyRange};
use crate::meta::Meta;
use crate::port::{ChangelogPiece, ChangelogRecord};
use crate::state::{StateError, StoreKind, StoreSpec, window_prefix};

const NOW: i64 = 1_000_000_000;
const DAY_MS: i64 = 86_400_000;

/// One partition: committed records, `None` where an aborted, control or compacted record was.
#[derive(Clone, Debug, Default)]
struct Partition {
    records: Vec<Option<ChangelogRecord>>,
    log_start: i64,
    last_stable: Option<i64>,
    topic_id: String,
    /// Epoch to where its log ends.
    epoch_ends: BTreeMap<i32, i64>,
    horizon: Option<i64>,
}

impl Partition {
    fn end(&self) -> i64 {
        i64::try_from(self.records.len()).expect("small")
    }

    fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let (key, value) = (Some(Bytes::copy_from_slice(key)), value.map(Bytes::copy_from_slice));
        self.records.push(Some(ChangelogRecord { offset: self.end(), timestamp: 0, key, value }));
    }

    fn hole(&mut self) {
        self.records.push(None);
    }
}

#[derive(Clone, Debug, Default)]
struct Log {
    partitions: BTreeMap<TopicPartition, Partition>,
    committed: Vec<CommittedOffset>,
}

impl ReadPort for Log {
    fn committed(
        &mut self,
        _: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, PortError> {
        let none = |at: &TopicPartition| CommittedOffset {
            topic_partition: at.clone(),
            offset: None,
            leader_epoch: -1,
            metadata: "".into(),
        };
        let of =
            |at: &TopicPartition| self.committed.iter().find(|found| found.topic_partition == *at).cloned();
        Ok(partitions.iter().map(|at| of(at).unwrap_or_else(|| none(at))).collect())
    }

    fn bounds(&mut self, at: &TopicPartition) -> Result<LogBounds, PortError> {
        let partition = &self.partitions[at];
        Ok(LogBounds {
            log_start: partition.log_start,
            last_stable: partition.last_stable.unwrap_or(partition.end()),
            log_end: partition.end(),
            topic_id: partition.topic_id.clone(),
        })
    }

    fn read(
        &mut self,
        at: &TopicPartition,
        from: i64,
        bytes_max: usize,
        _: Duration,
    ) -> Result<ChangelogPiece, PortError> {
        let bounds = self.bounds(at)?;
        if !(bounds.log_start..=bounds.log_end).contains(&from) {
            let (log_start, log_end) = (bounds.log_start, bounds.log_end);
            return Err(PortError::OutOfRange { at: at.clone(), offset: from, log_start, log_end });
        }
        let partition = &self.partitions[at];
        let count = i64::try_from(bytes_max).expect("small"); // here: so many offsets
        let next_offset = (from + count).min(bounds.last_stable).max(from);
        let indexes =
            usize::try_from(from).expect("positive")..usize::try_from(next_offset).expect("positive");
        let records = partition.records[indexes].iter().flatten().cloned().collect();
        Ok(ChangelogPiece { records, next_offset, last_stable: bounds.last_stable, leader_epoch: -1 })
    }

    fn epoch_end(&mut self, at: &TopicPartition, leader_epoch: i32) -> Result<Option<i64>, PortError> {
        Ok(self.partitions[at].epoch_ends.get(&leader_epoch).copied())
    }

    fn tombstone_horizon(&mut self, at: &TopicPartition) -> Result<Option<i64>, PortError> {
        Ok(self.partitions[at].horizon)
    }

    fn delete_retention(&mut self, _: &str) -> Result<Duration, PortError> {
        Ok(Duration::from_secs(86_400))
    }
}

fn input(partition: i32) -> TopicPartition {
    TopicPartition::new("in", partition)
}

fn changelog() -> TopicPartition {
    TopicPartition::new("app.s.changelog", 0)
}

fn anchor(seq: u64, target: i64) -> Anchor {
    let targets = vec![Target { offset: target, leader_epoch: -1 }];
    Anchor { writer: "p/0".into(), seq, targets, stream_time: 500, timers: vec![("tick".into(), 7)] }
}

fn commit(log: &mut Log, at: TopicPartition, offset: i64, metadata: &str) {
    log.committed.retain(|found| found.topic_partition != at);
    log.committed.push(CommittedOffset {
        topic_partition: at,
        offset: Some(offset),
        leader_epoch: -1,
        metadata: metadata.into(),
    });
}

/// Ten changelog records (keys 0 to 4, twice) and a marker; input at 6; the target behind them.
fn log() -> Log {
    let mut log = Log::default();
    let partition = log.partitions.entry(changelog()).or_default();
    partition.topic_id = "id-1".into();
    for n in 0..10u8 {
        partition.push(&[n % 5], Some(&[n]));
    }
    partition.hole();
    log.partitions.insert(input(0), Partition { records: vec![None; 8], ..Partition::default() });
    log.partitions.insert(input(1), Partition { records: vec![None; 8], ..Partition::default() });
    commit(&mut log, input(0), 6, &anchor(3, 10).encode());
    log
}

fn plan() -> RecoveryPlan {
    RecoveryPlan {
        batch_bytes: 3,
        ..RecoveryPlan::new(
            TaskId { sub_topology: 0, partition: 0 },
            "app",
            vec![input(0), input(1)],
            vec![ChangeSource::Changelog(changelog())],
        )
    }
}

fn state_on(disk: &MemDisk, kind: StoreKind) -> TaskState {
    let engine = MemEngine::open(disk, &["s"]).expect("opened");
    let spec = StoreSpec { name: "s".into(), kind, changelog: Some("app.s.changelog".into()) };
    TaskState::open(Box::new(engine), &[spec], 1).expect("ours")
}

/// A store that is at a position, with a content that tells what it is.
fn state_at(position: i64, seq: u64) -> TaskState {
    let mut state = state_on(&MemDisk::new(), StoreKind::KeyValue);
    let mut meta = Meta::new(1, 1);
    meta.seq = seq;
    meta.stores[0] =
        StorePosition { topic_id: "id-1".into(), position, leader_epoch: 1, time_ms: NOW - 1_000 };
    state.put(StoreId(0), Bytes::from_static(b"old"), Some(Bytes::new())).expect("written");
    state.apply(meta).expect("written");
    state
}

/// Steps until something other than progress comes.
fn drive(
    recovery: &mut Recovery,
    log: &mut Log,
    state: &mut TaskState,
) -> Result<RecoveryStep, RecoveryError> {
    for _ in 0..1_000 {
        match recovery.step(log, state, NOW)? {
            RecoveryStep::Progress { .. } => {}
            other => return Ok(other),
        }
    }
    panic!("no end of steps");
}

fn recover(plan: RecoveryPlan, log: &mut Log, state: &mut TaskState) -> Result<RecoveryStep, RecoveryError> {
    drive(&mut Recovery::new(plan, NOW), log, state)
}

fn with(on_mismatch: OnMismatch) -> RecoveryPlan {
    RecoveryPlan { on_mismatch, ..plan() }
}

fn content(state: &TaskState) -> Vec<(Vec<u8>, Vec<u8>)> {
    let all = state.scan(StoreId(0), &KeyRange::ALL, Direction::Forward);
    all.map(|found| found.map(|(key, value)| (key.to_vec(), value.to_vec())).expect("read")).collect()
}

fn fold() -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..5u8).map(|key| (vec![key], vec![key + 5])).collect()
}

/// Proves C15 (and C3, C4): an empty or an older store is brought to exactly the target, settles with offsets, time,
/// timers and sequence number of the anchor, and replays nothing the second time.
#[test]
fn c15_replays_to_the_target_and_no_further() {
    let mut log = log();
    let partition = log.partitions.get_mut(&changelog()).expect("there");
    partition.push(b"loser", Some(b"above the target"));
    let mut state = state_on(&MemDisk::new(), StoreKind::KeyValue);
    let step = recover(plan(), &mut log, &mut state).expect("recovered");
    let RecoveryStep::Ready(start) = step else { panic!("{step:?}") };
    assert_eq!(
        start.offsets,
        BTreeMap::from([(input(0), 6)]),
        "an input without offset begins by the reset policy"
    );
    assert_eq!((start.seq, start.stream_time, start.replayed), (3, 500, 10));
    assert_eq!(start.timers, vec![("tick".to_owned(), 7)]);
    assert_eq!(content(&state), fold());
    let position = &state.meta().stores[0];
    assert_eq!((position.position, position.time_ms, &position.topic_id[..]), (10, NOW, "id-1"));
    assert_eq!((state.meta().seq, &state.meta().writer[..]), (3, "p/0"));
    let again = recover(plan(), &mut log, &mut state).expect("recovered");
    assert!(matches!(again, RecoveryStep::Ready(Start { replayed: 0, .. })));
}

/// Proves that the first start of all, with a changelog that holds nothing committed, is ready at once: an aborted
/// first transaction leaves records and markers behind.
#[test]
fn first_start_is_ready() {
    let mut log = log();
    log.committed.clear();
    let partition = log.partitions.get_mut(&changelog()).expect("there");
    partition.records = vec![None; 7];
    let mut state = state_on(&MemDisk::new(), StoreKind::KeyValue);
    let step = recover(plan(), &mut log, &mut state).expect("ready");
    assert_eq!(step, RecoveryStep::Ready(Start { stream_time: i64::MIN, ..Start::default() }));
}

/// Proves C13: below a target that is committed but not yet decided on the changelog, the machine replays what is
/// stable, waits, and goes on when it is decided.
#[test]
fn c13_waits_until_the_log_is_decided() {
    let mut log = log();
    log.partitions.get_mut(&changelog()).expect("there").last_stable = Some(4);
    let mut state = state_on(&MemDisk::new(), StoreKind::KeyValue);
    let mut recovery = Recovery::new(plan(), NOW);
    for _ in 0..3 {
        let step = drive(&mut recovery, &mut log, &mut state).expect("waits");
        assert_eq!(step, RecoveryStep::Wait { at: changelog(), target: 10, last_stable: 4 });
        assert_eq!(recovery.left(&state), 6);
    }
    log.partitions.get_mut(&changelog()).expect("there").last_stable = Some(11);
    assert!(matches!(drive(&mut recovery, &mut log, &mut state), Ok(RecoveryStep::Ready(_))));
    assert_eq!(content(&state), fold());
}

/// Proves the anchor rules of 3.13: it is found on whichever partition it stands, the highest sequence number wins,
/// and metadata of other tools beside it does not matter.
#[test]
fn anchor_may_move() {
    let mut log = log();
    commit(&mut log, input(0), 6, "some tool");
    commit(&mut log, input(1), 2, &anchor(4, 10).encode());
    let mut state = state_on(&MemDisk::new(), StoreKind::KeyValue);
    assert!(matches!(recover(plan(), &mut log, &mut state), Ok(RecoveryStep::Ready(Start { seq: 4, .. }))));
    // A lower partition is new and carries the newer anchor; the old one still stands on the other.
    commit(&mut log, input(0), 6, &anchor(5, 10).encode());
    assert!(matches!(recover(plan(), &mut log, &mut state), Ok(RecoveryStep::Ready(Start { seq: 5, .. }))));
}

/// Proves C17 for metadata of another writer: refused by name with what stands there, nothing changed; adopted once,
/// the ends of the changelogs count.
#[test]
fn c17_offsets_of_another_writer() {
    let mut log = log();
    commit(&mut log, input(0), 6, "set by hand");
    let mut state = state_at(4, 2);
    let error = recover(plan(), &mut log, &mut state).expect_err("refused");
    assert!(
        matches!(&error, RecoveryError::AnchorMissing { metadata, .. } if metadata == "set by hand"),
        "{error}"
    );
    assert!(error.to_string().contains("adopt") && !error.is_retriable());
    assert_eq!(state.meta().stores[0].position, 4);
    let step = recover(with(OnMismatch::Adopt), &mut log, &mut state).expect("adopted");
    assert!(matches!(step, RecoveryStep::Ready(Start { seq: 2, .. })));
    assert_eq!(state.meta().stores[0].position, 11);
}

/// Proves that damaged anchors of ours and those of a later version stop the start by name.
#[test]
fn unreadable_anchor_is_named() {
    let mut log = log();
    let text = anchor(3, 10).encode();
    commit(&mut log, input(0), 6, &text[..text.len() - 3]);
    let mut state = state_at(4, 2);
    let error = recover(plan(), &mut log, &mut state).expect_err("refused");
    assert!(matches!(error, RecoveryError::AnchorUnreadable { .. }), "{error}");
    assert!(matches!(recover(with(OnMismatch::Adopt), &mut log, &mut state), Ok(RecoveryStep::Ready(_))));
}

/// Proves that an anchor for another number of stores is another topology's, by name.
#[test]
fn anchor_of_another_topology() {
    let mut log = log();
    let targets = vec![Target { offset: 1, leader_epoch: -1 }; 2];
    commit(&mut log, input(0), 6, &Anchor { targets, ..anchor(3, 10) }.encode());
    let error = recover(plan(), &mut log, &mut state_at(0, 0)).expect_err("refused");
    assert!(matches!(error, RecoveryError::AnchorOfAnotherTopology { targets: 2, stores: 1, .. }));
}

/// Proves C17 for offsets that expired: with state, or with a changelog that holds committed records, a missing offset
/// is never taken for a first start.
#[test]
fn c17_expired_offsets() {
    let mut log = log();
    log.committed.clear();
    let error = recover(plan(), &mut log, &mut state_at(0, 0)).expect_err("the changelog holds records");
    assert!(matches!(error, RecoveryError::OffsetsGone { .. }), "{error}");
    assert!(error.to_string().contains("expired") && error.to_string().contains("offsets.retention.minutes"));
    log.partitions.get_mut(&changelog()).expect("there").records = vec![None; 11];
    let error = recover(plan(), &mut log, &mut state_at(4, 2)).expect_err("the state holds records");
    assert!(matches!(error, RecoveryError::OffsetsGone { .. }), "{error}");
    let mut state = state_at(4, 2);
    let step = recover(with(OnMismatch::Adopt), &mut log, &mut state).expect("adopted");
    assert_eq!(step, RecoveryStep::Ready(Start { seq: 2, stream_time: i64::MIN, ..Start::default() }));
    assert_eq!(state.meta().stores[0].position, 11, "its own data, and the end of the changelog");
}

/// Proves C17 for a state ahead of the committed target, and for one of a later transaction: refused by name; rebuilt
/// beside or kept when told so.
#[test]
fn c17_state_ahead() {
    let mut log = log();
    commit(&mut log, input(0), 5, &anchor(3, 7).encode());
    let error = recover(plan(), &mut log, &mut state_at(9, 3)).expect_err("refused");
    assert!(matches!(error, RecoveryError::StateAhead { position: 9, target: 7, .. }), "{error}");
    let error = recover(plan(), &mut log, &mut state_at(7, 8)).expect_err("refused");
    assert!(matches!(error, RecoveryError::StateNewer { state: 8, committed: 3, .. }), "{error}");
    let mut state = state_at(9, 4);
    let step = recover(with(OnMismatch::Rebuild), &mut log, &mut state).expect("rebuilt");
    assert_eq!(step, RecoveryStep::RebuildBeside(RebuildReason::Ahead { position: 9, target: 7 }));
    assert_eq!(state.meta().stores[0].position, 9, "the copy is not touched");
    let mut beside = state_on(&MemDisk::new(), StoreKind::KeyValue);
    assert!(matches!(recover(with(OnMismatch::Rebuild), &mut log, &mut beside), Ok(RecoveryStep::Ready(_))));
    assert_eq!(content(&beside)[0], (vec![0], vec![5]));
    assert_eq!(content(&beside)[4], (vec![4], vec![4]), "as of the committed target");
    assert!(matches!(recover(with(OnMismatch::Adopt), &mut log, &mut state), Ok(RecoveryStep::Ready(_))));
    assert_eq!(state.meta().stores[0].position, 7);
}

/// Proves C17 for an input that does not hold the committed offset, on both sides.
#[test]
fn c17_input_out_of_range() {
    for (log_start, length) in [(7, 8), (0, 5)] {
        let mut log = log();
        let partition = log.partitions.get_mut(&input(0)).expect("there");
        (partition.log_start, partition.records) = (log_start, vec![None; length]);
        let mut state = state_at(10, 3);
        let error = recover(plan(), &mut log, &mut state).expect_err("refused");
        assert!(matches!(error, RecoveryError::InputOutOfRange { offset: 6, .. }), "{error}");
        let step = recover(with(OnMismatch::Adopt), &mut log, &mut state).expect("adopted");
        let RecoveryStep::Ready(start) = step else { panic!("{step:?}") };
        assert_eq!(start.offsets[&input(0)], if log_start == 7 { 7 } else { 5 });
    }
}

/// Proves C18: a log that ends below the target, or whose epoch of the target ended below it, is refused at once and
/// not waited for; a copy whose own epoch ended below its position is rebuilt beside.
#[test]
fn c18_truncated_log() {
    let mut log = log();
    commit(&mut log, input(0), 6, &anchor(3, 15).encode());
    let error = recover(plan(), &mut log, &mut state_at(4, 2)).expect_err("refused");
    assert!(matches!(error, RecoveryError::LogLostTail { target: 15, holds: 11, .. }), "{error}");
    assert!(error.to_string().contains("unclean leader election"));
    let mut fresh = state_on(&MemDisk::new(), StoreKind::KeyValue);
    assert!(matches!(recover(with(OnMismatch::Rebuild), &mut log, &mut fresh), Ok(RecoveryStep::Ready(_))));
    assert_eq!((content(&fresh), fresh.meta().stores[0].position), (fold(), 11));
    let mut ahead = state_at(15, 3);
    assert!(matches!(recover(with(OnMismatch::Adopt), &mut log, &mut ahead), Ok(RecoveryStep::Ready(_))));
    assert_eq!(ahead.meta().stores[0].position, 11);

    let targets = vec![Target { offset: 10, leader_epoch: 7 }];
    commit(&mut log, input(0), 6, &Anchor { targets, ..anchor(3, 10) }.encode());
    log.partitions.get_mut(&changelog()).expect("there").epoch_ends.insert(7, 8);
    let error = recover(plan(), &mut log, &mut state_at(4, 2)).expect_err("refused");
    assert!(matches!(error, RecoveryError::LogLostTail { target: 10, holds: 8, .. }), "{error}");

    commit(&mut log, input(0), 6, &anchor(3, 10).encode());
    log.partitions.get_mut(&changelog()).expect("there").epoch_ends.insert(1, 2);
    let step = recover(plan(), &mut log, &mut state_at(4, 2)).expect("rebuilt");
    assert_eq!(step, RecoveryStep::RebuildBeside(RebuildReason::Diverged { position: 4, epoch_end: 2 }));
}

/// Proves that a changelog that was deleted and created again is refused by name, though its offsets would fit.
#[test]
fn recreated_changelog_is_named() {
    let mut log = log();
    log.partitions.get_mut(&changelog()).expect("there").topic_id = "id-2".into();
    let error = recover(plan(), &mut log, &mut state_at(4, 2)).expect_err("refused");
    assert!(matches!(error, RecoveryError::ChangelogRecreated { .. }), "{error}");
    let step = recover(with(OnMismatch::Rebuild), &mut log, &mut state_at(4, 2)).expect("rebuilt");
    assert_eq!(step, RecoveryStep::RebuildBeside(RebuildReason::TopicRecreated));
}

/// Proves C19 on both kinds of broker: a copy below the tombstone horizon, or older than delete.retention.ms less the
/// margin, is rebuilt beside; one that is just young enough is replayed; an empty store always may be.
#[test]
fn c19_copy_older_than_its_deletes() {
    for (horizon, age_ms, sound) in [
        (Some(4), 100 * DAY_MS, true),
        (Some(5), 0, false),
        (None, DAY_MS - 3_600_001, true),
        (None, DAY_MS - 3_600_000, false),
        (None, NOW, false),
    ] {
        let mut log = log();
        log.partitions.get_mut(&changelog()).expect("there").horizon = horizon;
        let mut state = state_at(4, 2);
        let mut meta = state.meta().clone();
        meta.stores[0].time_ms = NOW - age_ms;
        state.apply(meta).expect("written");
        let step = recover(plan(), &mut log, &mut state).expect("decided");
        if sound {
            assert!(matches!(step, RecoveryStep::Ready(_)), "{horizon:?} {age_ms} {step:?}");
        } else {
            let reason = RebuildReason::TombstonesGone { position: 4, horizon };
            assert_eq!(step, RecoveryStep::RebuildBeside(reason), "{horizon:?} {age_ms}");
        }
        let mut beside = state_on(&MemDisk::new(), StoreKind::KeyValue);
        assert!(matches!(recover(plan(), &mut log, &mut beside), Ok(RecoveryStep::Ready(_))));
        assert_eq!(content(&beside), fold());
    }
    let mut log = log();
    log.partitions.get_mut(&changelog()).expect("there").horizon = Some(11);
    assert!(
        matches!(recover(plan(), &mut log, &mut state_at(10, 3)), Ok(RecoveryStep::Ready(_))),
        "nothing to replay"
    );
}

/// Proves that a restore that was broken off counts as old as its begin, so that deletes which go while it stands
/// still are not missed.
#[test]
fn broken_off_restore_keeps_its_age() {
    let mut log = log();
    log.partitions.get_mut(&changelog()).expect("there").last_stable = Some(4);
    let mut state = state_on(&MemDisk::new(), StoreKind::KeyValue);
    let step = recover(plan(), &mut log, &mut state).expect("waits");
    assert!(matches!(step, RecoveryStep::Wait { .. }));
    assert_eq!(state.meta().stores[0].time_ms, NOW);
    let mut later = Recovery::new(plan(), NOW + DAY_MS);
    let step = loop {
        match later.step(&mut log, &mut state, NOW + DAY_MS).expect("decided") {
            RecoveryStep::Progress { .. } => {}
            other => break other,
        }
    };
    assert!(matches!(step, RecoveryStep::RebuildBeside(RebuildReason::TombstonesGone { position: 4, .. })));
}

/// Proves C20: a window store whose changelog begins above its position jumps there, loses what has expired and keeps
/// the rest; a store of keys and values is refused by name instead.
#[test]
fn c20_changelog_start_passed_the_position() {
    let mut log = log();
    log.partitions.get_mut(&changelog()).expect("there").log_start = 7;
    let mut state = state_on(&MemDisk::new(), StoreKind::Window { retention_ms: 100 });
    for time in [399, 400] {
        let key = Bytes::copy_from_slice(&window_prefix(time));
        state.put(StoreId(0), key, Some(Bytes::new())).expect("written");
    }
    let mut meta = state.meta().clone();
    meta.stores[0] = StorePosition { position: 2, time_ms: 1, ..StorePosition::default() };
    state.apply(meta).expect("written");
    // Stream time 500: windows that began before 400 have expired.
    let step = recover(plan(), &mut log, &mut state).expect("recovered");
    assert!(matches!(step, RecoveryStep::Ready(Start { replayed: 3, .. })), "{step:?}");
    let keys: Vec<Vec<u8>> = content(&state).into_iter().map(|(key, _)| key).collect();
    assert!(!keys.contains(&window_prefix(399).to_vec()) && keys.contains(&window_prefix(400).to_vec()));
    assert_eq!(state.meta().stores[0].position, 10);

    for position in [2, 0] {
        let error = recover(plan(), &mut log, &mut state_at(position, 2)).expect_err("refused");
        assert!(matches!(error, RecoveryError::ChangelogTrimmed { log_start: 7, .. }), "{error}");
    }
    assert!(matches!(
        recover(with(OnMismatch::Adopt), &mut log, &mut state_at(2, 2)),
        Ok(RecoveryStep::Ready(_))
    ));
}

/// Proves that the log start may pass a window store while it is replayed: it jumps instead of failing.
#[test]
fn c20_while_replaying() {
    let mut log = log();
    let mut state = state_on(&MemDisk::new(), StoreKind::Window { retention_ms: 100 });
    let mut recovery = Recovery::new(plan(), NOW);
    while state.meta().stores[0].position < 3 {
        recovery.step(&mut log, &mut state, NOW).expect("progress");
    }
    log.partitions.get_mut(&changelog()).expect("there").log_start = 8;
    assert!(matches!(drive(&mut recovery, &mut log, &mut state), Ok(RecoveryStep::Ready(_))));
    assert_eq!(state.meta().stores[0].position, 10);
}

/// Proves that the table of an input topic is brought to the committed input offset and no further, begins at the
/// topic's start, and is rebuilt when that start passed it.
#[test]
fn table_of_an_input() {
    let mut log = log();
    let partition = log.partitions.get_mut(&input(0)).expect("there");
    *partition = Partition::default();
    for n in 0..8u8 {
        partition.push(&[n], Some(&[n]));
    }
    partition.log_start = 2;
    let anchor = Anchor { targets: vec![Target { offset: 0, leader_epoch: -1 }], ..anchor(3, 0) };
    commit(&mut log, input(0), 6, &anchor.encode());
    let plan = || RecoveryPlan { stores: vec![ChangeSource::Input(input(0))], ..plan() };
    let mut state = state_on(&MemDisk::new(), StoreKind::KeyValue);
    assert!(matches!(recover(plan(), &mut log, &mut state), Ok(RecoveryStep::Ready(_))));
    let keys: Vec<u8> = content(&state).into_iter().map(|(key, _)| key[0]).collect();
    assert_eq!(keys, vec![2, 3, 4, 5]);
    let mut old = state_at(1, 2);
    let mut meta = old.meta().clone();
    meta.stores[0].topic_id.clear();
    old.apply(meta).expect("written");
    let step = recover(plan(), &mut log, &mut old).expect("rebuilt");
    let reason = RebuildReason::TableTrimmed { position: 1, log_start: 2 };
    assert_eq!(step, RecoveryStep::RebuildBeside(reason));
}

/// Proves that a disk that refuses for a moment, and a log that does not answer, are errors after which the same
/// machine goes on.
#[test]
fn goes_on_after_errors_that_pass() {
    let mut log = log();
    let disk = MemDisk::new();
    let mut state = state_on(&disk, StoreKind::KeyValue);
    let mut recovery = Recovery::new(plan(), NOW);
    disk.fail_writes(2);
    let mut failed = 0;
    for _ in 0..100 {
        match recovery.step(&mut log, &mut state, NOW) {
            Ok(RecoveryStep::Ready(_)) => break,
            Ok(_) => {}
            Err(error) => {
                assert!(error.is_retriable() && matches!(error, RecoveryError::State(StateError::Engine(_))));
                failed += 1;
            }
        }
    }
    assert_eq!((failed, content(&state)), (2, fold()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Proves I1 over random logs with holes, compaction, kills after any step and lost batches: whatever happens, the
    /// store ends as the fold of the committed records below the target.
    #[test]
    fn any_kills_end_in_the_fold(
        changes in proptest::collection::vec((0..6u8, proptest::option::weighted(0.7, any::<u8>()), any::<bool>()), 1..60),
        kills in proptest::collection::vec((0..12usize, 0..4usize), 0..8),
        batch in 1..9usize,
        target in any::<prop::sample::Index>(),
    ) {
        let mut log = log();
        let mut partition = Partition { topic_id: "id-1".into(), ..Partition::default() };
        let mut model = BTreeMap::new();
        let target = target.index(changes.len() + 1);
        for (index, (key, value, hole)) in changes.iter().enumerate() {
            if *hole {
                partition.hole();
                continue;
            }
            partition.push(&[*key], value.as_ref().map(std::slice::from_ref));
            if index < target {
                match value {
                    Some(value) => model.insert(vec![*key], vec![*value]),
                    None => model.remove(&vec![*key]),
                };
            }
        }
        log.partitions.insert(changelog(), partition);
        let target = i64::try_from(target).expect("small");
        commit(&mut log, input(0), 6, &anchor(3, target).encode());
        let disk = MemDisk::new();
        disk.remember(8);
        let plan = || RecoveryPlan { batch_bytes: batch, ..plan() };
        for (steps, lost) in kills {
            let mut state = state_on(&disk, StoreKind::KeyValue);
            let mut recovery = Recovery::new(plan(), NOW);
            for _ in 0..steps {
                recovery.step(&mut log, &mut state, NOW).expect("progress");
            }
            drop(state);
            disk.power_cut(lost);
        }
        let mut state = state_on(&disk, StoreKind::KeyValue);
        prop_assert!(matches!(recover(plan(), &mut log, &mut state), Ok(RecoveryStep::Ready(_))));
        prop_assert_eq!(content(&state), model.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(state.meta().stores[0].position, target);
    }
}
