//! What readers see of a stretch of batches. The way there is tested against brokers, in crate `ottla`.

mod scripted;

use bytes::{Bytes, BytesMut};
use ottla_protocol::batch::{BatchBuilder, BatchHeader, Producer, build_marker};
use ottla_protocol::compression::Codec;
use ottla_protocol::record::NewRecord;

use super::assignor::Assignor;
use super::isolation::Isolation;
use super::reader::PartitionReader;
use super::*;
use crate::settings::ClientSettings;

/// A batch of records `base..base + count` of a producer; -1 is none.
fn data(base_offset: i64, count: i64, producer_id: i64, codec: Codec) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    let transactional = producer_id >= 0;
    builder.set_base_offset(base_offset);
    builder.set_producer(Producer { producer_id, producer_epoch: 0, base_sequence: 0, transactional });
    for offset in base_offset..base_offset + count {
        let value = offset.to_string();
        builder
            .append(&NewRecord { timestamp: offset, value: Some(value.as_bytes()), ..NewRecord::default() })
            .expect("small");
    }
    builder.build()
}

fn marker(base_offset: i64, producer_id: i64, commit: bool) -> Bytes {
    let (header, tail) = build_marker(producer_id, 0, commit, 0, 0);
    let header = BatchHeader { base_offset, ..header };
    [&header.head()[..], &tail].concat().into()
}

fn joined(batches: &[Bytes]) -> Bytes {
    let mut all = BytesMut::new();
    batches.iter().for_each(|batch| all.extend_from_slice(batch));
    all.freeze()
}

/// Offsets shown from `position` on, and the position behind them.
fn read(level: IsolationLevel, aborted: &[(i64, i64)], position: i64, bytes: Bytes) -> (Vec<i64>, i64) {
    let isolation = Isolation::new(level, aborted.iter().copied());
    let mut reader =
        PartitionReader::new(TopicPartition::new("t", 0), 0, position, bytes, isolation, 1 << 20);
    let mut records = Vec::new();
    // one at a time: a batch may be left in the middle
    while !reader.read(records.len() + 1, &mut records).expect("intact") {}
    (records.iter().map(|record| record.offset).collect(), reader.position().offset)
}

/// Two producers, interleaved: 7 aborts, then commits; 8 commits; plain records between.
fn mixed() -> Bytes {
    joined(&[
        data(0, 2, 7, Codec::None),
        data(2, 1, -1, Codec::Lz4),
        data(3, 2, 8, Codec::Zstd),
        data(5, 1, 7, Codec::None),
        marker(6, 7, false),
        data(7, 1, 7, Codec::Snappy),
        marker(8, 8, true),
        marker(9, 7, true),
        data(10, 1, -1, Codec::Gzip),
    ])
}

/// Proves that committed readers see neither aborted data nor markers, that others see all data, and that both
/// end behind the last batch.
#[test]
fn isolation() {
    let committed = read(IsolationLevel::ReadCommitted, &[(7, 0)], 0, mixed());
    assert_eq!(committed, (vec![2, 3, 4, 7, 10], 11));
    let all = read(IsolationLevel::ReadUncommitted, &[], 0, mixed());
    assert_eq!(all, (vec![0, 1, 2, 3, 4, 5, 7, 10], 11));
}

/// Proves that an entry with a high first offset hides nothing before it, and that entries come in any order.
#[test]
fn aborted_entries_wait_for_their_offset() {
    let log = joined(&[
        data(0, 1, 7, Codec::None),
        marker(1, 7, true),
        data(2, 1, 7, Codec::None),
        data(3, 1, 8, Codec::None),
        marker(4, 8, false),
        marker(5, 7, false),
    ]);
    assert_eq!(read(IsolationLevel::ReadCommitted, &[(8, 3), (7, 2)], 0, log), (vec![0], 6));
}

/// Proves that reading from inside a batch shows nothing before the position.
#[test]
fn positions_inside_batches() {
    let log = joined(&[data(0, 5, -1, Codec::None), data(5, 2, -1, Codec::None)]);
    assert_eq!(read(IsolationLevel::ReadCommitted, &[], 3, log.clone()), (vec![3, 4, 5, 6], 7));
    assert_eq!(read(IsolationLevel::ReadCommitted, &[], 6, log), (vec![6], 7));
}

/// Proves that a last batch that is cut is left for the next fetch, and that damage is named where it is.
#[test]
fn cut_and_damaged() {
    let log = mixed();
    let cut = read(IsolationLevel::ReadUncommitted, &[], 0, log.slice(..log.len() - 5));
    assert_eq!(cut.1, 10);
    let mut damaged = log.to_vec();
    damaged[70] ^= 1;
    let isolation = Isolation::new(IsolationLevel::ReadCommitted, []);
    let mut reader =
        PartitionReader::new(TopicPartition::new("t", 0), 0, 0, damaged.into(), isolation, 1 << 20);
    let problem = reader.read(10, &mut Vec::new()).expect_err("damaged");
    assert!(problem.contains("CRC"), "{problem}");
    let lone = log.slice(..30);
    let isolation = Isolation::new(IsolationLevel::ReadCommitted, []);
    let mut reader = PartitionReader::new(TopicPartition::new("t", 0), 0, 0, lone, isolation, 1 << 20);
    assert!(reader.read(10, &mut Vec::new()).is_err(), "no progress is an error, not a loop");
}

/// Proves that what counts as checked ends in front of the first damage or cut, and that damage behind it, or that
/// nobody has looked for, is found when reading comes to it.
#[test]
fn sound_bytes() {
    let (first, second) = (data(0, 2, -1, Codec::None), data(2, 3, -1, Codec::None));
    let log = joined(&[first.clone(), second]);
    assert_eq!(reader::sound_bytes(&log, true), log.len());
    assert_eq!(reader::sound_bytes(&log.slice(..log.len() - 1), true), first.len());
    assert_eq!(reader::sound_bytes(&Bytes::from_static(b"no batch at all"), true), 0);
    let mut damaged = log.to_vec();
    damaged[first.len() + 70] ^= 1;
    let damaged = Bytes::from(damaged);
    let sound = reader::sound_bytes(&damaged, true);
    assert_eq!(sound, first.len());
    assert_eq!(reader::sound_bytes(&damaged, false), log.len(), "CRCs are not looked at when not asked for");
    let cut = damaged.slice(..log.len() - 1);
    assert_eq!(reader::sound_bytes(&cut, false), first.len(), "but a cut batch is never a whole one");
    for sound in [0, sound] {
        let isolation = Isolation::new(IsolationLevel::ReadCommitted, []);
        let reader =
            PartitionReader::new(TopicPartition::new("t", 0), 0, 0, damaged.clone(), isolation, 1 << 20);
        let mut records = Vec::new();
        let problem = reader.with_sound_bytes(sound).read(10, &mut records).expect_err("damaged");
        assert!(problem.contains("CRC") && records.len() == 2, "{problem}");
    }
}

/// Proves that a compressed batch beyond the limit is refused, not decompressed.
#[test]
fn bombs() {
    let mut builder = BatchBuilder::new(Codec::Gzip);
    let zeros = vec![0; 4 << 20];
    builder.append(&NewRecord { value: Some(&zeros), ..NewRecord::default() }).expect("small enough");
    let isolation = Isolation::new(IsolationLevel::ReadCommitted, []);
    let mut reader =
        PartitionReader::new(TopicPartition::new("t", 0), 0, 0, builder.build(), isolation, 1 << 20);
    let problem = reader.read(10, &mut Vec::new()).expect_err("too large");
    assert!(problem.contains("1048576"), "{problem}");
}

/// Proves that names of settings and their values are checked.
#[test]
fn settings() {
    let mut settings = ConsumerSettings::new(ClientSettings::new("a:1").expect("an address"));
    settings.set("isolation.level", "read_uncommitted").expect("known");
    assert_eq!(settings.isolation, IsolationLevel::ReadUncommitted);
    settings.set("auto.offset.reset", "earliest").expect("known");
    assert!(settings.set("isolation.level", "serializable").is_err());
    settings.set("auto.offset.reset", "by_duration:PT1H").expect("known");
    assert_eq!(settings.offset_reset, OffsetReset::ByDuration(Duration::from_secs(3600)));
    assert!(settings.set("enable.auto.commit", "true").is_err(), "whose offsets?");
    settings.auto_commit = false;
    settings.set("group.id", "g").expect("known");
    settings
        .set("partition.assignment.strategy", "sticky, org.apache.kafka.clients.consumer.RangeAssignor")
        .expect("known");
    assert_eq!(settings.assignors, [Assignor::Sticky, Assignor::Range]);
    assert!(settings.set("partition.assignment.strategy", "fair").is_err());
    settings.set("partition.assignment.strategy", "cooperative-sticky").expect("known");
    assert!(settings.is_cooperative());
    settings.set("heartbeat.interval.ms", "50000").expect_err("longer than the session");
    settings.heartbeat_interval = Duration::from_secs(3);
    settings.set("group.protocol", "consumer").expect("known");
    assert!(settings.check_crcs, "unless somebody says otherwise");
    settings.set("check.crcs", "false").expect("known");
    assert!(!settings.check_crcs);
    assert!(settings.set("check.crcs", "no").is_err());
    assert!(settings.set("max.poll.records", "0").is_err());
}

/// Proves that offsets which no log can have are refused instead of computed with.
#[test]
fn impossible_offsets() {
    let read = |bytes: Bytes| {
        let isolation = Isolation::new(IsolationLevel::ReadCommitted, []);
        let mut reader = PartitionReader::new(TopicPartition::new("t", 0), 0, 0, bytes, isolation, 1 << 20);
        reader.read(10, &mut Vec::new()).expect_err("refused")
    };
    for base_offset in [i64::MAX, i64::MIN, -1] {
        let mut batch = data(0, 2, -1, Codec::None).to_vec();
        batch[..8].copy_from_slice(&base_offset.to_be_bytes());
        assert!(read(batch.into()).contains("impossible"), "{base_offset}");
    }
}

/// Proves that aborted transactions may be listed in any order (franz-go 1.21.4 showed aborted data).
#[test]
fn franz_go_1_21_4_unordered_aborted_list() {
    let log = joined(&[
        data(0, 1, 7, Codec::None),
        data(1, 1, 8, Codec::None),
        marker(2, 8, false),
        data(3, 1, 8, Codec::None),
        marker(4, 7, false),
        marker(5, 8, false),
        data(6, 1, 7, Codec::None),
        marker(7, 7, true),
    ]);
    for aborted in [[(7, 0), (8, 1), (8, 3)], [(8, 3), (7, 0), (8, 1)], [(8, 1), (8, 3), (7, 0)]] {
        assert_eq!(read(IsolationLevel::ReadCommitted, &aborted, 0, log.clone()), (vec![6], 8));
    }
}

/// Proves that reading goes on behind the last control batch of a log, and does not meet it for ever
/// (redpanda#17966).
#[test]
fn redpanda_17966_position_at_the_last_marker() {
    let log = joined(&[marker(9, 7, true)]);
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::ReadUncommitted] {
        assert_eq!(read(level, &[], 9, log.clone()), (vec![], 10));
    }
}

/// Proves that a fetch may begin at an abort marker, with and without the transaction among the aborted ones: what
/// the producer wrote later is shown (aiokafka#781, platformatic/kafka#391).
#[test]
fn aiokafka_781_fetch_starts_at_an_abort_marker() {
    let log = joined(&[marker(3, 7, false), data(4, 2, 7, Codec::None), marker(6, 7, true)]);
    for aborted in [&[][..], &[(7, 0)]] {
        assert_eq!(read(IsolationLevel::ReadCommitted, aborted, 3, log.clone()), (vec![4, 5], 7));
    }
}

/// Proves that an aborted transaction without records hides nothing of the next one (librdkafka 1.7.0).
#[test]
fn librdkafka_1_7_0_abort_without_records() {
    let log = joined(&[
        data(0, 1, 7, Codec::None),
        marker(1, 7, true),
        marker(2, 7, false),
        data(3, 2, 7, Codec::None),
        marker(5, 7, true),
    ]);
    assert_eq!(read(IsolationLevel::ReadCommitted, &[], 0, log), (vec![0, 3, 4], 6));
}
