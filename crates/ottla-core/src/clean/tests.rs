//! The cleaner against a naive model, through the real state (aborted index, producers, the records of passes), and
//! the public bugs of other cleaners as named cases. Readers here do what Kafka's consumers do.

mod bugs;
mod model;
mod properties;

use super::*;
use model::Bench;

/// Proves: a topic that is not compacted has no rules, and the settings arrive.
#[test]
fn rules_are_those_of_the_topic() {
    let config = |settings: &[(&str, &str)]| {
        let settings = settings.iter().map(|(name, value)| (*name, (*value).into()));
        TopicConfig::new(settings, 4096, &crate::cluster::config::Kept::default()).expect("valid settings")
    };
    assert_eq!(Rules::of(&config(&[]), 1), None);
    let rules = Rules::of(
        &config(&[
            ("cleanup.policy", "compact,delete"),
            ("min.cleanable.dirty.ratio", "0.25"),
            ("delete.retention.ms", "7"),
            ("min.compaction.lag.ms", "8"),
            ("max.compaction.lag.ms", "9"),
        ]),
        10,
    );
    let wanted = Rules {
        delete_retention_ms: 7,
        min_compaction_lag_ms: 8,
        max_compaction_lag_ms: 9,
        min_cleanable_dirty_ratio: 0.25,
        decompressed_bytes_max: 10,
    };
    assert_eq!(rules, Some(wanted));
}

fn extent(first_offset: i64, last_offset: i64, bytes: u64, max_timestamp: i64) -> Extent {
    Extent { first_offset, last_offset, bytes, max_timestamp }
}

fn input(cleaned_to: i64, last_stable_offset: i64, delete_horizon_ms: i64) -> Input {
    Input {
        log_start_offset: 0,
        last_stable_offset,
        cleaned: CleanedState { cleaned_to, tombstone_horizon: 0, delete_horizon_ms },
        aborted: Arc::default(),
        last_batches: BTreeMap::new(),
    }
}

/// Proves: a pass is made when more than the ratio is uncleaned, when something is uncleaned for too long, or when
/// what waits for its time is past it; never for what is young, unstable or behind the files' end.
#[test]
fn worth_of_a_pass() {
    let now = 1_000_000;
    let rules = Rules {
        delete_retention_ms: 1000,
        min_compaction_lag_ms: 0,
        max_compaction_lag_ms: i64::MAX,
        min_cleanable_dirty_ratio: 0.5,
        decompressed_bytes_max: 1 << 20,
    };
    let extents =
        [extent(0, 9, 100, now - 500), extent(10, 19, 90, now - 300), extent(20, 29, 20, now - 100)];
    let planned = |rules: &Rules, input: &Input, limit| plan(rules, input, limit, extents, now);
    let never = input(0, 30, -1);
    assert_eq!(
        planned(&rules, &never, 30),
        Some(Plan { from: 0, limit: 30, why: Why::DirtyRatio, dirty_ratio: 1.0 })
    );
    assert_eq!(planned(&rules, &never, 10).map(|plan| plan.limit), Some(10), "where the files end");
    assert_eq!(
        planned(&rules, &input(0, 20, -1), 30).map(|plan| plan.limit),
        Some(20),
        "the last stable offset"
    );
    assert_eq!(planned(&rules, &input(0, 0, -1), 30), None, "nothing is stable");
    assert_eq!(planned(&rules, &input(20, 30, -1), 30), None, "a tenth is uncleaned");
    assert_eq!(
        planned(&rules, &input(10, 30, -1), 30).map(|plan| plan.from),
        Some(10),
        "more than a half is"
    );
    assert_eq!(planned(&rules, &input(30, 30, -1), 30), None, "all is clean");
    let lag = Rules { max_compaction_lag_ms: 99, ..rules };
    assert_eq!(planned(&lag, &input(20, 30, -1), 30).map(|plan| plan.why), Some(Why::CompactionLag));
    let lag = Rules { max_compaction_lag_ms: 100, ..rules };
    assert_eq!(planned(&lag, &input(20, 30, -1), 30), None, "not longer than the lag");
    let young = Rules { min_compaction_lag_ms: 200, ..rules };
    assert_eq!(planned(&young, &never, 30).map(|plan| plan.limit), Some(20), "the last extent is young");
    let young = Rules { min_compaction_lag_ms: 501, ..rules };
    assert_eq!(planned(&young, &never, 30), None, "all of it is young");
    let late = planned(&rules, &input(30, 30, now), 30);
    assert_eq!(late.map(|plan| (plan.why, plan.from, plan.limit)), Some((Why::DeleteHorizon, 30, 30)));
    assert_eq!(planned(&rules, &input(30, 30, now + 1), 30), None, "its time has not come");
    assert_eq!(plan(&rules, &never, 30, [], now), None, "an empty partition");
}

/// Proves: the table keeps to its bytes, finds what is in it, knows when it is full, and then still takes later
/// records of keys that it has.
#[test]
fn table_of_keys_is_bounded() {
    let mut map = KeyMap::new([3; 16], 24 * 1000, u64::MAX);
    assert!(map.table_bytes() <= 24 * 1000);
    assert!(map.is_empty());
    let mut inserted = 0;
    while map.insert(format!("key-{inserted}").as_bytes(), inserted) {
        inserted += 1;
    }
    assert_eq!(inserted, 900, "nine tenths of the places");
    assert_eq!((map.len(), map.len_max()), (900, 900));
    assert!(map.insert(b"key-5", 5000), "no new key");
    assert!(map.insert(b"key-6", 1), "an older record changes nothing");
    assert_eq!(map.get(b"key-5"), Some(5000));
    for key in 6..900 {
        assert_eq!(map.get(format!("key-{key}").as_bytes()), Some(key));
    }
    assert_eq!(map.get(b"key-900"), None);
    assert!(map.is_superseded(b"key-7", 6) && !map.is_superseded(b"key-7", 7));
    let small = KeyMap::new([3; 16], 1 << 30, 10);
    assert!(small.table_bytes() <= 64 * 24, "no larger than the keys need");
}

/// Proves: what a pass found survives a reload, from a snapshot and from the log; the horizon is shown to readers;
/// it never goes back, and a pass through a partition that is gone is passed over.
#[test]
fn a_pass_is_durable_state() {
    let mut bench = Bench::new();
    for round in 0..4 {
        bench.send_keys(&[(round % 2, Some(round))]);
    }
    bench.send_keys(&[(0, None)]);
    bench.send_keys(&[(9, Some(9))]);
    bench.pass_all();
    assert_eq!(bench.shard.bounds(0).cleaned.tombstone_horizon, 0, "the tombstone waits for its time");
    bench.shard.now_ms += model::RETENTION_MS;
    bench.pass_all();
    assert_eq!(bench.shard.bounds(0).cleaned.tombstone_horizon, 5);
    let gone = ottla_protocol::types::TopicIdPartition { partition: 99, ..bench.partition() };
    let stale = Cleaned { state: CleanedState::NONE, spent: Vec::new() };
    let passes = vec![(gone, stale.clone()), (bench.partition(), stale)];
    bench.shard.ask(0, crate::command::CommandBody::Cleaned(passes));
    assert_eq!(bench.shard.bounds(0).cleaned.tombstone_horizon, 5);
    bench.shard.reload();
    assert_eq!(bench.shard.bounds(0).cleaned.tombstone_horizon, 5);
    assert_eq!(bench.input().cleaned.cleaned_to, 6);
}
