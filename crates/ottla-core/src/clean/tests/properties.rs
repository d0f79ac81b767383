//! Random histories and passes against the model.

use ottla_protocol::compression::Codec;
use proptest::prelude::*;

use super::model::{Bench, RETENTION_MS, Step};

/// What happens next.
#[derive(Clone, Debug)]
enum Happening {
    /// A batch: by nobody (0) or a producer, of a transaction or not.
    Batch(i64, bool, Vec<(i64, Option<i64>)>),
    /// A marker.
    End(i64, bool),
    /// Time passes.
    Wait(i64),
    /// A pass, up to this share of the log in percent, with a table of one of three sizes, and how far its end comes.
    Pass(i64, usize, Step),
    /// A crash.
    Reload,
    /// Later batches are compressed so.
    Codec(usize),
}

fn happening() -> impl Strategy<Value = Happening> {
    let value = prop_oneof![3 => (0i64..1000).prop_map(Some), 1 => Just(None)];
    let record = (-1i64..8, value);
    let step = prop_oneof![1 => Just(Step::Announced), 1 => Just(Step::Live), 3 => Just(Step::Recorded)];
    prop_oneof![
        12 => (0i64..4, any::<bool>(), prop::collection::vec(record, 1..6))
            .prop_map(|(who, transactional, records)| Happening::Batch(who, transactional, records)),
        5 => (1i64..4, any::<bool>()).prop_map(|(who, commit)| Happening::End(who, commit)),
        2 => (0i64..2 * RETENTION_MS).prop_map(Happening::Wait),
        4 => (0i64..150, 0usize..3, step).prop_map(|(share, size, last)| Happening::Pass(share, size, last)),
        1 => Just(Happening::Reload),
        1 => (0usize..5).prop_map(Happening::Codec),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Proves, for any history of batches, transactions, aborts, tombstones, passes (whole, partial, with a table
    /// that is too small), waits and crashes: readers of both isolation levels see from every offset what the naive
    /// model keeps; offsets, sequences and the last batches of producers stay; nothing at or behind the last stable
    /// offset changes; the last value of every key is there; the tombstone horizon is true; and passes that follow
    /// one another at one time come to rest.
    #[test]
    fn passes_equal_the_model(history in prop::collection::vec(happening(), 1..70)) {
        let mut bench = Bench::new();
        for happening in history {
            match happening {
                Happening::Batch(0, _, records) => bench.send_keys(&records),
                Happening::Batch(who, transactional, records) => {
                    bench.send_as(who, transactional, &records);
                }
                Happening::End(who, commit) => bench.end(who, commit),
                Happening::Wait(ms) => bench.shard.now_ms += ms,
                Happening::Pass(share, size, last) => {
                    bench.map_bytes = [1 << 20, 64 * 24, 0][size];
                    let end = bench.shard.bounds(0).high_watermark;
                    bench.pass_until(end * share / 100, last);
                    bench.check();
                }
                Happening::Reload => bench.shard.reload(),
                Happening::Codec(number) => bench.codec = Codec::ALL[number],
            }
        }
        bench.map_bytes = 1 << 20;
        for _ in 0..3 {
            bench.pass_all();
            bench.check();
        }
        let before = bench.disk.clone();
        bench.pass_all();
        prop_assert!(bench.disk == before, "a further pass at the same time changes nothing");
        bench.shard.assert_loads();
    }
}
