//! What every engine must do, as one suite; each test runs over both.

use std::ops::Bound;

use bytes::Bytes;

use super::mem::{MemDisk, MemEngine};
use super::{Batch, Direction, Engine, EngineError, KeyRange, StoreId, Update, View};

const A: StoreId = StoreId(0);
const B: StoreId = StoreId(1);

/// Something that opens the same place again and again.
pub(crate) trait Bed {
    /// Opens it for stores `a` and `b`.
    fn open(&mut self) -> Result<Box<dyn Engine>, EngineError>;
    /// What to call it in messages.
    fn name(&self) -> &'static str;
}

#[derive(Default)]
struct MemBed(MemDisk);

impl Bed for MemBed {
    fn open(&mut self) -> Result<Box<dyn Engine>, EngineError> {
        Ok(Box::new(MemEngine::open(&self.0, &["a", "b"])?))
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}

#[cfg(feature = "rocksdb")]
struct RocksBed(tempfile::TempDir, super::rocks::RocksShared);

#[cfg(feature = "rocksdb")]
impl Bed for RocksBed {
    fn open(&mut self) -> Result<Box<dyn Engine>, EngineError> {
        Ok(Box::new(super::rocks::RocksEngine::open(&self.0.path().join("db"), &["a", "b"], &self.1)?))
    }

    fn name(&self) -> &'static str {
        "rocksdb"
    }
}

/// One bed of each kind.
pub(crate) fn beds() -> Vec<Box<dyn Bed>> {
    let memory: Box<dyn Bed> = Box::new(MemBed::default());
    std::iter::once(memory).chain(disk_beds()).collect()
}

#[cfg(feature = "rocksdb")]
fn disk_beds() -> Vec<Box<dyn Bed>> {
    use super::rocks::{RocksSettings, RocksShared};
    let bed = |wal| -> Box<dyn Bed> {
        let folder = tempfile::tempdir().expect("a folder");
        Box::new(RocksBed(folder, RocksShared::new(RocksSettings { wal, ..RocksSettings::default() })))
    };
    vec![bed(true), bed(false)]
}

#[cfg(not(feature = "rocksdb"))]
fn disk_beds() -> Vec<Box<dyn Bed>> {
    Vec::new()
}

fn each(test: impl Fn(&str, &mut dyn Bed)) {
    for mut bed in beds() {
        let name = bed.name();
        test(name, &mut *bed);
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(store: StoreId, key: &str, value: &str) -> Update {
    Update::Put(store, bytes(key), bytes(value))
}

fn batch(updates: Vec<Update>, meta: &str) -> Batch {
    Batch { updates, meta: Some(bytes(meta)) }
}

fn keys(view: &(impl View + ?Sized), store: StoreId, range: &KeyRange, direction: Direction) -> String {
    let found = view.scan(store, range, direction).map(|found| found.expect("read").0);
    found.map(|key| String::from_utf8(key.to_vec()).expect("text")).collect::<Vec<_>>().join("")
}

fn filled(bed: &mut dyn Bed) -> Box<dyn Engine> {
    let mut engine = bed.open().expect("opened");
    let updates = "acegik".chars().map(|key| put(A, &key.to_string(), "1")).collect();
    engine.write(batch(updates, "m1")).expect("written");
    engine
}

/// Proves that stores have name spaces of their own, that meta is no key of any store, and that a batch without meta
/// leaves it.
#[test]
fn stores_are_apart() {
    each(|name, bed| {
        let mut engine = bed.open().expect("opened");
        assert_eq!(engine.meta().expect("read"), None, "{name}");
        engine
            .write(batch(vec![put(A, "k", "1"), put(B, "k", "2"), put(B, "meta", "3")], "m1"))
            .expect("written");
        assert_eq!(engine.get(A, b"k").expect("read"), Some(bytes("1")), "{name}");
        assert_eq!(engine.get(B, b"k").expect("read"), Some(bytes("2")), "{name}");
        assert_eq!(engine.get(A, b"meta").expect("read"), None, "{name}");
        assert_eq!(engine.meta().expect("read"), Some(bytes("m1")), "{name}");
        assert_eq!(keys(&*engine, A, &KeyRange::ALL, Direction::Forward), "k", "{name}");
        engine.write(Batch { updates: vec![Update::Delete(A, bytes("k"))], meta: None }).expect("written");
        assert_eq!(engine.get(A, b"k").expect("read"), None, "{name}");
        assert_eq!(engine.meta().expect("read"), Some(bytes("m1")), "{name}");
    });
}

/// Proves that every kind of bound is kept, both ways, and that an empty range is no key and no panic.
#[test]
fn scans_keep_their_bounds() {
    each(|name, bed| {
        let engine = filled(bed);
        let key = |text: &str| bytes(text);
        let cases = [
            (Bound::Unbounded, Bound::Unbounded, "acegik"),
            (Bound::Included(key("c")), Bound::Included(key("i")), "cegi"),
            (Bound::Excluded(key("c")), Bound::Excluded(key("i")), "eg"),
            (Bound::Included(key("b")), Bound::Included(key("h")), "ceg"),
            (Bound::Excluded(key("b")), Bound::Unbounded, "cegik"),
            (Bound::Unbounded, Bound::Included(key("c")), "ac"),
            (Bound::Included(key("e")), Bound::Included(key("e")), "e"),
            (Bound::Included(key("e")), Bound::Excluded(key("e")), ""),
            (Bound::Excluded(key("e")), Bound::Excluded(key("e")), ""),
            (Bound::Included(key("z")), Bound::Included(key("b")), ""),
            (Bound::Included(Bytes::new()), Bound::Excluded(Bytes::new()), ""),
            (Bound::Included(Bytes::new()), Bound::Excluded(key("c\0")), "ac"),
        ];
        for (start, end, found) in cases {
            let range = KeyRange { start, end };
            assert_eq!(keys(&*engine, A, &range, Direction::Forward), found, "{name} {range:?}");
            let back: String = found.chars().rev().collect();
            assert_eq!(keys(&*engine, A, &range, Direction::Reverse), back, "{name} {range:?}");
            assert_eq!(keys(&*engine.snapshot(), A, &range, Direction::Reverse), back, "{name} {range:?}");
            assert_eq!(keys(&*engine, B, &range, Direction::Forward), "", "{name} {range:?}");
        }
    });
}

/// Proves the order inside a batch, that a range is deleted without its end and in its store only, and that an empty
/// range is nothing.
#[test]
fn order_in_a_batch_and_ranges() {
    each(|name, bed| {
        let mut engine = filled(bed);
        let range = |from: &str, to: &str| Update::DeleteRange(A, bytes(from), bytes(to));
        let updates = vec![
            put(B, "e", "1"),
            put(A, "d", "gone"),
            range("c", "i"),
            put(A, "e", "after"),
            Update::Delete(A, bytes("k")),
            put(A, "k", "back"),
            put(A, "l", "gone"),
            Update::Delete(A, bytes("l")),
            range("z", "a"),
            range("a", "a"),
        ];
        engine.write(batch(updates, "m2")).expect("written");
        assert_eq!(keys(&*engine, A, &KeyRange::ALL, Direction::Forward), "aeik", "{name}");
        assert_eq!(keys(&*engine, A, &KeyRange::ALL, Direction::Reverse), "kiea", "{name}");
        assert_eq!(engine.get(A, b"e").expect("read"), Some(bytes("after")), "{name}");
        assert_eq!(engine.get(A, b"k").expect("read"), Some(bytes("back")), "{name}");
        assert_eq!(keys(&*engine, B, &KeyRange::ALL, Direction::Forward), "e", "{name}");
        engine.flush().expect("flushed");
        assert_eq!(keys(&*engine, A, &KeyRange::ALL, Direction::Forward), "aeik", "{name}, from files");
    });
}

/// Proves that a snapshot shows all stores and the meta of its moment, whatever is written, deleted and flushed
/// later, from another thread, and after its engine is gone.
#[test]
fn snapshots_stand_still() {
    each(|name, bed| {
        let mut engine = filled(bed);
        engine.write(batch(vec![put(B, "x", "1")], "m2")).expect("written");
        let snapshot = engine.snapshot();
        let updates =
            vec![put(A, "b", "2"), Update::DeleteRange(A, bytes("e"), bytes("z")), put(B, "x", "2")];
        engine.write(batch(updates, "m3")).expect("written");
        engine.flush().expect("flushed");
        assert_eq!(keys(&*engine, A, &KeyRange::ALL, Direction::Forward), "abc", "{name}");
        drop(engine);
        let reader = ottla_env::spawn::thread("reader", move || {
            (
                keys(&*snapshot, A, &KeyRange::ALL, Direction::Forward),
                snapshot.get(B, b"x").expect("read"),
                snapshot.meta().expect("read"),
            )
        });
        let read = reader.expect("started").join().expect("no panic");
        assert_eq!(read, ("acegik".to_owned(), Some(bytes("1")), Some(bytes("m2"))), "{name}");
    });
}

/// Proves that an engine that was dropped and opened again has everything, without a flush where there is a log, and
/// that it cannot be opened twice meanwhile.
#[test]
fn reopened_after_drop() {
    each(|name, bed| {
        let mut engine = filled(bed);
        assert!(matches!(bed.open(), Err(EngineError::Locked { .. })), "{name}");
        for round in 0..5 {
            engine
                .write(batch(vec![put(B, "n", &round.to_string())], &format!("round {round}")))
                .expect("written");
            drop(engine);
            engine = bed.open().expect("opened");
            assert_eq!(engine.get(B, b"n").expect("read"), Some(bytes(&round.to_string())), "{name}");
            assert_eq!(engine.meta().expect("read"), Some(bytes(&format!("round {round}"))), "{name}");
            assert_eq!(keys(&*engine, A, &KeyRange::ALL, Direction::Forward), "acegik", "{name}");
        }
    });
}

/// Proves that empty keys and values, and keys with all bytes, are keys and values like others, in byte order.
#[test]
fn any_bytes_are_keys() {
    each(|name, bed| {
        let mut engine = bed.open().expect("opened");
        let all: Vec<Bytes> = (0..=255u8).map(|byte| Bytes::from(vec![byte])).chain([Bytes::new()]).collect();
        let updates = all.iter().map(|key| Update::Put(A, key.clone(), Bytes::new())).collect();
        engine.write(batch(updates, "m")).expect("written");
        let found: Vec<Bytes> =
            engine.scan(A, &KeyRange::ALL, Direction::Forward).map(|found| found.expect("read").0).collect();
        let mut sorted = all.clone();
        sorted.sort();
        assert_eq!(found, sorted, "{name}");
        assert_eq!(engine.get(A, b"").expect("read"), Some(Bytes::new()), "{name}");
        engine
            .write(batch(vec![Update::DeleteRange(A, Bytes::new(), Bytes::from_static(&[255]))], "m"))
            .expect("written");
        assert_eq!(engine.scan(A, &KeyRange::ALL, Direction::Forward).count(), 1, "{name}");
    });
}
