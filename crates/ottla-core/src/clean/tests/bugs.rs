//! Public bugs of other cleaners, each as the history that shows it.

use bytes::Bytes;
use ottla_protocol::batch::{BatchBuilder, BatchHeader};
use ottla_protocol::compression::Codec;
use ottla_protocol::record::{NewRecord, records_of};

use super::model::{Bench, RETENTION_MS, Step};
use super::{Input, input};
use crate::clean::{KeyMap, Pass, Verdict};

const A: i64 = 1;
const B: i64 = 2;

/// Proves (KAFKA-8351, KAFKA-13727): a transaction that lies over several partial passes, whose table was full in
/// the middle of it, never becomes visible when it was aborted, and stays when it was committed.
#[test]
fn aborted_transaction_over_partial_passes() {
    for commit in [false, true] {
        let mut bench = Bench::new();
        bench.map_bytes = 0;
        let keys =
            |from: i64| -> Vec<(i64, Option<i64>)> { (from..from + 40).map(|key| (key, Some(1))).collect() };
        for part in 0..4 {
            assert!(bench.send_as(A, true, &keys(part * 40)));
            bench.send_keys(&keys(1000 + part * 40));
        }
        bench.end(A, commit);
        let end = bench.shard.bounds(0).high_watermark;
        let mut passes = 0;
        while bench.input().cleaned.cleaned_to < end {
            bench.pass_all();
            bench.check();
            passes += 1;
            assert!(passes < 20, "passes go on");
        }
        assert!(passes > 2, "the table was full");
        let visible = bench.committed().iter().filter(|(key, _)| *key < 1000).count();
        assert_eq!(visible, if commit { 160 } else { 0 });
        assert_eq!(bench.markers().len(), 1);
    }
}

/// Proves (KAFKA-13194): what an open transaction writes takes nothing away, however much of the log it covers.
#[test]
fn uncommitted_overwrites_nothing() {
    let mut bench = Bench::new();
    bench.send_keys(&[(1, Some(10)), (2, Some(20))]);
    assert!(bench.send_as(A, true, &[(1, Some(11)), (2, None)]));
    bench.send_keys(&[(1, Some(12))]);
    bench.pass_all();
    bench.check();
    assert_eq!(bench.committed(), [(1, Some(10)), (2, Some(20))]);
    bench.end(A, false);
    bench.pass_all();
    bench.check();
    assert_eq!(bench.committed(), [(2, Some(20)), (1, Some(12))]);
}

/// Proves (KAFKA-17076): when everything goes, the end of the log is still there to be found.
#[test]
fn end_of_the_log_stays() {
    let mut bench = Bench::new();
    bench.send_keys(&[(1, Some(1))]);
    bench.send_keys(&[(1, None)]);
    for _ in 0..4 {
        bench.pass_all();
        bench.shard.now_ms += RETENTION_MS;
    }
    assert!(bench.committed().is_empty());
    let last: Vec<i64> = bench.disk.iter().map(|(header, _)| header.last_offset()).collect();
    assert_eq!(last, [1], "an empty batch holds the place");
    bench.shard.reload();
    assert_eq!(bench.shard.offsets(0), (0, 2, 2));
    bench.send_keys(&[(1, Some(2))]);
    assert_eq!(bench.disk.last().map(|(header, _)| header.base_offset), Some(2));
}

/// Proves (RP#16295, RP#15672): with two aborted transactions of one producer and a pass between them, neither comes
/// back, whatever markers have gone; and what the producer commits afterwards is seen by readers from everywhere.
#[test]
fn markers_of_two_aborts() {
    let mut bench = Bench::new();
    for _ in 0..2 {
        assert!(bench.send_as(A, true, &[(1, Some(-1))]));
        bench.end(A, false);
        bench.pass_all();
        bench.check();
    }
    assert!(bench.send_as(A, true, &[(1, Some(5))]));
    bench.end(A, true);
    assert_eq!(bench.markers().len(), 3);
    for _ in 0..3 {
        bench.pass_all();
        bench.check();
        bench.shard.now_ms += RETENTION_MS;
    }
    assert!(bench.shard.bounds(0).aborted.is_empty(), "the index forgot both");
    assert_eq!(bench.markers(), [5], "the data of the committed one is there, and so is its marker");
    assert_eq!(bench.committed(), [(1, Some(5))]);
}

/// Proves: the marker of an aborted transaction goes only after the index has forgotten it, also when its time came
/// earlier; in between a reader that is told of it meets the marker.
#[test]
fn marker_outlives_the_index() {
    let mut bench = Bench::new();
    assert!(bench.send_as(A, true, &[(1, Some(1))]));
    bench.end(A, false);
    assert!(bench.send_as(A, true, &[(2, Some(2))]));
    bench.end(A, true);
    assert!(bench.send_as(A, true, &[(3, Some(3))]));
    bench.end(A, true);
    bench.pass_all();
    assert_eq!(bench.shard.bounds(0).aborted.len(), 1, "its data was there until this pass");
    bench.shard.now_ms += 10 * RETENTION_MS;
    bench.pass_all();
    assert_eq!(bench.shard.bounds(0).aborted.len(), 0);
    assert_eq!(bench.markers(), [1, 3, 5]);
    bench.check();
    bench.shard.now_ms += RETENTION_MS;
    bench.pass_all();
    assert_eq!(bench.markers(), [3, 5]);
    bench.check();
}

/// Proves: a marker whose time has come stays while the index names its transaction, as after a crash in front of the
/// record of the pass that met nothing of it any more; readers are told of no end that is not there.
#[test]
fn marker_waits_for_the_record() {
    let mut bench = Bench::new();
    assert!(bench.send_as(A, true, &[(1, Some(1))]));
    bench.end(A, false);
    assert!(bench.send_as(A, true, &[(2, Some(2))]));
    bench.end(A, true);
    bench.pass_all();
    for _ in 0..2 {
        bench.pass_until(i64::MAX, Step::Live);
        bench.shard.reload();
        assert_eq!(bench.markers(), [1, 3]);
        bench.check();
        bench.shard.now_ms += RETENTION_MS;
    }
    for _ in 0..2 {
        bench.pass_all();
        bench.check();
    }
    assert_eq!(bench.markers(), [3]);
}

/// Proves (RP#4824, RP#6664, RP#10097): an aborted record of a key does not hide the committed one in front of it.
#[test]
fn aborted_record_hides_nothing() {
    let mut bench = Bench::new();
    bench.send_keys(&[(1, Some(1))]);
    assert!(bench.send_as(A, true, &[(1, Some(2))]));
    bench.end(A, false);
    assert!(bench.send_as(B, true, &[(1, None)]));
    bench.end(B, false);
    for _ in 0..3 {
        bench.pass_all();
        bench.check();
        bench.shard.now_ms += RETENTION_MS;
    }
    assert_eq!(bench.committed(), [(1, Some(1))]);
}

/// A batch of two records, at a place of its own.
fn sparse(base_offset: i64, last_offset_delta: i32, keys: [&[u8]; 2], codec: Codec) -> (BatchHeader, Bytes) {
    let mut builder = BatchBuilder::new(codec);
    for key in keys {
        let record = NewRecord { timestamp: 5, key: Some(key), value: Some(b"v"), headers: &[] };
        builder.append(&record).expect("small");
    }
    builder.set_base_offset(base_offset);
    let (mut header, tail) = builder.build_parts();
    let mut tail = tail.to_vec();
    header.last_offset_delta = last_offset_delta;
    tail[..40].copy_from_slice(&header.tail_header());
    (header, Bytes::from(tail))
}

/// Proves (automq#3339): offsets far apart, above 2^31 and with the largest delta a batch can have, keep their places.
#[test]
fn sparse_offsets_beyond_32_bits() {
    for codec in Codec::ALL {
        let first = sparse(7, i32::MAX, [b"a", b"b"], codec);
        let second = sparse(1 << 40, 1, [b"b", b"c"], codec);
        let mut map = KeyMap::new([1; 16], 1 << 16, 100);
        for (key, offset) in [("a", 7), ("b", 1 << 40), ("c", (1 << 40) + 1)] {
            assert!(map.insert(key.as_bytes(), offset));
        }
        let bench = Bench::new();
        let all: Input = input(0, i64::MAX, -1);
        let mut pass = Pass::new(bench.rules(), all, (1 << 40) + 2, map, 100);
        let Verdict::Replace(header, tail) = pass.filter(&first.0, &first.1) else { panic!("b goes") };
        assert_eq!((header.base_offset, header.last_offset()), (7, 7 + i64::from(i32::MAX)));
        let offsets: Vec<i64> = records_of(&header, &tail, 1 << 20)
            .expect("known codec")
            .map(|record| record.expect("sound").offset)
            .collect();
        assert_eq!(offsets, [7]);
        assert_eq!(pass.filter(&second.0, &second.1), Verdict::Keep);
        assert_eq!(pass.finish().0.state.cleaned_to, (1 << 40) + 2);
    }
}

/// Proves (KAFKA-7298, KAFKA-7190): after passes that took all of a producer's records, its next batch is accepted
/// and a resend of its last one is recognised, live and after a reload.
#[test]
fn producer_goes_on_after_its_records_went() {
    let mut bench = Bench::new();
    assert!(bench.send_as(A, false, &[(1, Some(1)), (2, Some(2))]));
    bench.send_keys(&[(1, Some(3)), (2, Some(4)), (9, Some(9))]);
    bench.pass_all();
    bench.check();
    let emptied = &bench.disk[0].0;
    assert_eq!((emptied.records_count, emptied.last_sequence(), emptied.producer_id), (0, 1, A));
    bench.shard.reload();
    assert!(bench.send_as(A, false, &[(3, Some(5))]));
    bench.pass_all();
    assert!(bench.disk.iter().all(|(header, _)| header.base_offset != 0), "it is not the last one any more");
    bench.check();
}

/// Proves: a crash between a pass's files and its record brings no deleted key back. (Were the part counted as clean
/// without having been cleaned, the tombstone would go at its time and leave the value.)
#[test]
fn pass_that_was_not_written_down() {
    for last in [Step::Announced, Step::Live] {
        let mut bench = Bench::new();
        bench.send_keys(&[(1, Some(1))]);
        bench.send_keys(&[(1, None)]);
        bench.send_keys(&[(2, Some(2))]);
        for _ in 0..3 {
            bench.pass_until(i64::MAX, last);
            bench.shard.reload();
            bench.check();
            bench.shard.now_ms += RETENTION_MS;
        }
        bench.pass_all();
        bench.check();
        assert_eq!(bench.committed().last(), Some(&(2, Some(2))));
        assert!(!bench.committed().contains(&(1, Some(1))));
    }
}

/// Proves: a batch that cannot be read stays as it is, and its neighbours are cleaned.
#[test]
fn unreadable_batches_stay() {
    let broken = {
        let (header, tail) = sparse(0, 1, [b"a", b"b"], Codec::Zstd);
        let mut tail = tail.to_vec();
        tail.truncate(45);
        (header, Bytes::from(tail))
    };
    let mut map = KeyMap::new([1; 16], 1 << 16, 100);
    assert!(map.insert(b"a", 10) && map.insert(b"b", 11));
    let bench = Bench::new();
    let mut pass = Pass::new(bench.rules(), input(0, 100, -1), 13, map, 100);
    assert_eq!(pass.filter(&broken.0, &broken.1), Verdict::Keep);
    let old = sparse(2, 1, [b"a", b"b"], Codec::Gzip);
    assert_eq!(pass.filter(&old.0, &old.1), Verdict::Drop);
    let report = pass.finish().1;
    assert_eq!((report.unreadable, report.batches, report.records_removed), (1, 2, 2));
}
