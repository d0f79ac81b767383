//! The overlay, the merge and the spill against a model: two maps, of which one is forgotten or kept at a boundary.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::engine::conformance::beds;
use crate::engine::mem::{MemDisk, MemEngine};

const STORES: usize = 2;

fn specs() -> Vec<StoreSpec> {
    ["a", "b"]
        .map(|name| StoreSpec {
            name: name.to_owned(),
            kind: StoreKind::KeyValue,
            changelog: Some(format!("app.{name}.changelog")),
        })
        .to_vec()
}

fn scratch() -> ScratchFactory {
    Box::new(|| Ok(Box::new(MemEngine::alone(&["a", "b"]))))
}

fn opened(engine: Box<dyn Engine>) -> TaskState {
    TaskState::open(engine, &specs(), 1).expect("ours")
}

fn moved(state: &TaskState, by: i64) -> Meta {
    let mut meta = state.meta().clone();
    meta.seq += 1;
    meta.stores.iter_mut().for_each(|store| store.position += by);
    meta
}

#[derive(Clone, Debug)]
enum Op {
    Put(u16, u8, u8),
    Delete(u16, u8),
    DeleteRange(u16, u8, u8),
    Restore(u16, u8, u8),
    Commit,
    Abort,
    Reopen,
    Flush,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let store = 0..STORES as u16;
    let op = prop_oneof![
        8 => (store.clone(), 0..24u8, any::<u8>()).prop_map(|(s, k, v)| Op::Put(s, k, v)),
        4 => (store.clone(), 0..24u8).prop_map(|(s, k)| Op::Delete(s, k)),
        2 => (store.clone(), 0..24u8, 0..24u8).prop_map(|(s, from, to)| Op::DeleteRange(s, from, to)),
        1 => (store, 0..24u8, any::<u8>()).prop_map(|(s, k, v)| Op::Restore(s, k, v)),
        2 => Just(Op::Commit),
        1 => Just(Op::Abort),
        1 => Just(Op::Reopen),
        1 => Just(Op::Flush),
    ];
    proptest::collection::vec(op, 1..60)
}

type Model = Vec<BTreeMap<Bytes, Bytes>>;

fn key(number: u8) -> Bytes {
    // Keys of several lengths, some the beginning of others.
    Bytes::from(vec![number / 3 + 1; usize::from(number % 3) + 1])
}

fn value(number: u8) -> Bytes {
    Bytes::from(vec![number; usize::from(number % 7)])
}

fn compare_scans(
    name: &str,
    model: &BTreeMap<Bytes, Bytes>,
    mut scan: impl FnMut(&KeyRange, Direction) -> Vec<(Bytes, Bytes)>,
) {
    let ranges = [
        KeyRange::ALL,
        KeyRange { start: Bound::Included(key(4)), end: Bound::Excluded(key(17)) },
        KeyRange { start: Bound::Excluded(key(7)), end: Bound::Included(key(9)) },
        KeyRange { start: Bound::Included(key(20)), end: Bound::Included(key(2)) },
    ];
    for range in ranges {
        let mut wanted: Vec<(Bytes, Bytes)> = if range.is_empty() {
            Vec::new()
        } else {
            model
                .range((range.start.clone(), range.end.clone()))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        };
        assert_eq!(scan(&range, Direction::Forward), wanted, "{name} {range:?}");
        wanted.reverse();
        assert_eq!(scan(&range, Direction::Reverse), wanted, "{name} {range:?}");
    }
}

fn compare(name: &str, state: &TaskState, live: &Model, committed: &Model) {
    let snapshot = state.snapshot();
    for store in 0..STORES as u16 {
        let (id, at) = (StoreId(store), usize::from(store));
        for number in 0..24 {
            let key = key(number);
            assert_eq!(state.get(id, &key).expect("read").as_ref(), live[at].get(&key), "{name} {key:?}");
            assert_eq!(
                snapshot.get(id, &key).expect("read").as_ref(),
                committed[at].get(&key),
                "{name} {key:?}"
            );
        }
        compare_scans(name, &live[at], |range, direction| {
            state.scan(id, range, direction).map(|found| found.expect("read")).collect()
        });
        compare_scans(name, &committed[at], |range, direction| {
            snapshot.scan(id, range, direction).map(|found| found.expect("read")).collect()
        });
    }
    assert_eq!(state.overlay.bytes(), state.overlay.recounted(), "{name}: the running count");
    assert_eq!(snapshot.meta(), state.meta(), "{name}");
}

fn run(ops: &[Op], spill_bytes: Option<usize>) {
    for mut bed in beds() {
        let name = bed.name();
        let mut open = || {
            let state = opened(bed.open().expect("opened"));
            match spill_bytes {
                Some(bytes) => state.with_spill(bytes, scratch()),
                None => state,
            }
        };
        let mut state = open();
        let empty: Model = vec![BTreeMap::new(); STORES];
        let (mut live, mut committed) = (empty.clone(), empty);
        for op in ops {
            apply_op(op, &mut state, &mut live, &mut committed);
            if matches!(op, Op::Reopen) {
                let meta = state.meta().clone();
                drop(state);
                state = open();
                assert_eq!(state.meta(), &meta, "{name}: the boundary of the last commit");
            }
            compare(name, &state, &live, &committed);
        }
    }
}

fn apply_op(op: &Op, state: &mut TaskState, live: &mut Model, committed: &mut Model) {
    match *op {
        Op::Put(store, k, v) => {
            state.put(StoreId(store), key(k), Some(value(v))).expect("written");
            live[usize::from(store)].insert(key(k), value(v));
        }
        Op::Delete(store, k) => {
            state.put(StoreId(store), key(k), None).expect("written");
            live[usize::from(store)].remove(&key(k));
        }
        Op::DeleteRange(store, from, to) => {
            state.delete_range(StoreId(store), key(from), key(to)).expect("written");
            live[usize::from(store)].retain(|k, _| !(*k >= key(from) && *k < key(to)));
        }
        Op::Restore(store, k, v) if !state.is_dirty() => {
            let mut position = state.meta().stores[usize::from(store)].clone();
            position.position += 1;
            let (key, value) = (Some(key(k)), (v > 9).then(|| value(v)));
            let change = ChangelogRecord { offset: 0, timestamp: 0, key: key.clone(), value: value.clone() };
            state.restore(StoreId(store), &[change], position).expect("written");
            match value {
                Some(value) => live[usize::from(store)].insert(key.expect("set"), value),
                None => live[usize::from(store)].remove(&key.expect("set")),
            };
            *committed = live.clone();
        }
        Op::Restore(..) => {}
        Op::Commit => {
            state.apply(moved(state, 1)).expect("written");
            assert!(!state.is_dirty() && state.uncommitted_bytes() == 0);
            *committed = live.clone();
        }
        Op::Abort | Op::Reopen => {
            state.rollback();
            assert!(!state.is_dirty() && state.uncommitted_bytes() == 0);
            *live = committed.clone();
        }
        Op::Flush => state.flush().expect("flushed"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Proves, on every engine, that reads and scans see the newest writes, snapshots the last boundary, that an abort
    /// leaves no trace, and that a commit and nothing else is there after a reopen.
    #[test]
    fn like_two_maps(ops in ops()) {
        run(&ops, None);
    }

    /// Proves the same when nearly every write goes beyond memory.
    #[test]
    fn like_two_maps_when_spilled(ops in ops(), bytes in 0..600usize) {
        run(&ops, Some(bytes));
    }
}

fn disk_with(specs: &[StoreSpec]) -> (MemDisk, TaskState) {
    let disk = MemDisk::new();
    let engine = MemEngine::open(&disk, &["a", "b"]).expect("opened");
    let state = TaskState::open(Box::new(engine), specs, 1).expect("ours");
    (disk, state)
}

/// Proves that a boundary cannot go back (I2), by a commit or by a restore.
#[test]
fn positions_never_go_back() {
    let (_disk, mut state) = disk_with(&specs());
    state.apply(moved(&state, 5)).expect("written");
    let mut back = moved(&state, 0);
    back.stores[1].position = 4;
    assert!(matches!(state.apply(back), Err(StateError::Backwards { store: 1, position: 5, wanted: 4 })));
    let position = StorePosition { position: 3, ..StorePosition::default() };
    assert!(matches!(state.restore(StoreId(0), &[], position), Err(StateError::Backwards { store: 0, .. })));
    assert_eq!(state.meta().stores[1].position, 5);
}

/// Proves that state of another topology is refused by name and not touched.
#[test]
fn another_topology_is_refused() {
    let (disk, mut state) = disk_with(&specs());
    state.apply(moved(&state, 1)).expect("written");
    drop(state);
    let engine = || Box::new(MemEngine::open(&disk, &["a", "b"]).expect("opened"));
    let error = TaskState::open(engine(), &specs(), 2).expect_err("another fingerprint");
    assert!(matches!(error, StateError::TopologyChanged { found: 1, wanted: 2, .. }));
    assert!(error.to_string().contains("application id"), "it says what to do: {error}");
    let error = TaskState::open(engine(), &specs()[..1], 1).expect_err("another number of stores");
    assert!(matches!(error, StateError::TopologyChanged { stores_found: 2, stores_wanted: 1, .. }));
    assert_eq!(TaskState::open(engine(), &specs(), 1).expect("ours").meta().seq, 1);
}

/// Proves C14: a disk that refuses a batch leaves the boundary and the overlay as they were, and the same commit goes
/// through later.
#[test]
fn c14_refused_batch_is_retried() {
    let (disk, mut state) = disk_with(&specs());
    state.put(StoreId(0), key(1), Some(value(1))).expect("written");
    let meta = moved(&state, 1);
    disk.fail_writes(1);
    assert!(matches!(state.apply(meta.clone()), Err(StateError::Engine(EngineError::Io { .. }))));
    assert!(state.is_dirty() && state.meta().seq == 0 && state.snapshot().meta().seq == 0);
    assert_eq!(state.snapshot().get(StoreId(0), &key(1)).expect("read"), None);
    state.apply(meta).expect("written");
    assert_eq!(state.snapshot().get(StoreId(0), &key(1)).expect("read"), Some(value(1)));
}

/// Lets so many batches through, and refuses all after them.
#[derive(Debug)]
struct Refusing(Box<dyn Engine>, u32);

impl View for Refusing {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.0.get(store, key)
    }

    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        self.0.scan(store, range, direction)
    }

    fn meta(&self) -> Result<Option<Bytes>, EngineError> {
        self.0.meta()
    }
}

impl Engine for Refusing {
    fn write(&mut self, batch: Batch) -> Result<(), EngineError> {
        let Some(left) = self.1.checked_sub(1) else {
            let (folder, reason) = ("test".to_owned(), "full".to_owned());
            return Err(EngineError::Io { folder, during: "written", reason });
        };
        self.1 = left;
        self.0.write(batch)
    }

    fn snapshot(&self) -> Box<dyn View + Send + Sync> {
        self.0.snapshot()
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        self.0.flush()
    }

    fn checkpoint(&self, folder: &std::path::Path) -> Result<(), EngineError> {
        self.0.checkpoint(folder)
    }

    fn stats(&self) -> EngineStats {
        self.0.stats()
    }
}

/// Proves that a spilled commit that breaks off between its batches shows readers the boundary before it, keeps that
/// position on disk, and that replaying the changelog from there gives exactly what the commit would have given.
#[test]
fn spilled_commit_that_breaks_off_is_replayed() {
    for fail_at in 0..4 {
        let (disk, state) = disk_with(&specs());
        let mut state = state.with_spill(0, scratch());
        state.put(StoreId(0), key(1), Some(value(1))).expect("written");
        state.put(StoreId(0), key(2), Some(value(2))).expect("written");
        state.apply(moved(&state, 2)).expect("written");
        // The next transaction, as its changelog has it.
        let big = Bytes::from(vec![7; 3 << 20]);
        let changes: Vec<(Bytes, Option<Bytes>)> = vec![
            (key(1), None),
            (key(3), Some(big.clone())),
            (key(4), Some(big)),
            (key(2), Some(value(6))),
            (key(5), Some(value(5))),
        ];
        for (key, value) in &changes {
            state.put(StoreId(0), key.clone(), value.clone()).expect("written");
        }
        let engine = std::mem::replace(&mut state.engine, Box::new(MemEngine::alone(&["a", "b"])));
        state.engine = Box::new(Refusing(engine, fail_at));
        let meta = moved(&state, 5);
        let broke_off = state.apply(meta.clone()).is_err();
        assert_eq!(broke_off, fail_at < 3, "two batches from scratch, and the last one");
        if broke_off {
            let snapshot = state.snapshot();
            assert_eq!(
                snapshot.get(StoreId(0), &key(1)).expect("read"),
                Some(value(1)),
                "readers see the old boundary"
            );
            assert_eq!(snapshot.get(StoreId(0), &key(3)).expect("read"), None);
        }
        drop(state); // killed
        let engine = MemEngine::open(&disk, &["a", "b"]).expect("opened");
        let mut state = opened(Box::new(engine));
        if broke_off {
            assert_eq!(state.meta().stores[0].position, 2);
            let records: Vec<ChangelogRecord> = (2..)
                .zip(&changes)
                .map(|(offset, (key, value))| ChangelogRecord {
                    offset,
                    timestamp: 0,
                    key: Some(key.clone()),
                    value: value.clone(),
                })
                .collect();
            state.restore(StoreId(0), &records, meta.stores[0].clone()).expect("written");
        }
        assert_eq!(state.meta().stores[0].position, 7);
        let found: Vec<Bytes> = state
            .scan(StoreId(0), &KeyRange::ALL, Direction::Forward)
            .map(|found| found.expect("read").0)
            .collect();
        assert_eq!(found, vec![key(2), key(3), key(4), key(5)]);
        assert_eq!(state.get(StoreId(0), &key(2)).expect("read"), Some(value(6)));
    }
}

/// Proves that times order like their prefixes, negative ones too, and that a jump drops what expired and no more.
#[test]
fn jump_drops_what_expired() {
    let times = [i64::MIN, -5, -1, 0, 1, 255, 256, i64::MAX];
    assert!(times.windows(2).all(|pair| window_prefix(pair[0]) < window_prefix(pair[1])));
    let (_disk, mut state) = disk_with(&specs());
    for time in [-5, 99, 100, 101] {
        let key = Bytes::from([&window_prefix(time)[..], b"|k"].concat());
        state.put(StoreId(0), key, Some(value(1))).expect("written");
    }
    state.apply(moved(&state, 1)).expect("written");
    let position = StorePosition { position: 50, ..StorePosition::default() };
    state.jump(StoreId(0), 100, position).expect("written");
    assert_eq!(state.scan(StoreId(0), &KeyRange::ALL, Direction::Forward).count(), 2);
    assert_eq!(state.meta().stores[0].position, 50);
}
