//! Rows about the log: C17 to C20, and poison: C23.

use std::time::Duration;

use bytes::Bytes;
use ottla_streams::codec::{I64, Utf8};
use ottla_streams::driver::Driver;
use ottla_streams::record::RawRecord;
use ottla_streams::recovery::OnMismatch;
use ottla_streams::task::{Policies, Policy};
use ottla_streams::topology::Topology;
use ottla_streams::worker::Step;

use crate::ledger::{Ledger, PARTITIONS};

/// A ledger with work behind it.
fn worked(seed: u64, set_up: impl FnOnce(Driver) -> Driver) -> Ledger {
    let mut ledger = Ledger::new(seed, set_up);
    ledger.feed(80);
    ledger.driver.run().unwrap();
    ledger
}

/// Committed offsets and metadata of all partitions of the input.
fn offsets(ledger: &mut Ledger) -> Vec<Option<(i64, String)>> {
    let of = |partition| ledger.driver.committed("in", partition).unwrap();
    let found: Vec<_> = (0..PARTITIONS).map(of).map(|(offset, metadata)| Some((offset?, metadata))).collect();
    assert!(found.iter().any(Option::is_some), "nothing was committed");
    found
}

/// An operator's tool writes them.
fn put_back(ledger: &mut Ledger, offsets: &[Option<(i64, String)>]) {
    for (partition, found) in (0..).zip(offsets) {
        let found = found.as_ref().map(|(offset, metadata)| (*offset, metadata.as_str()));
        ledger.driver.reset_offset("in", partition, found).unwrap();
    }
}

fn refused_with(ledger: &mut Ledger, words: &[&str]) {
    ledger.driver.advance(Duration::from_secs(1)).unwrap();
    let refused = ledger.driver.refused();
    assert!(!refused.is_empty(), "nothing was refused");
    for word in words {
        assert!(refused.iter().any(|reason| reason.contains(word)), "{word:?} is not in {refused:?}");
    }
}

/// C17: somebody has put old offsets back: the stores are ahead of them. That is refused by name, and once the right
/// offsets are there again, everything goes on as if nothing had been.
#[test]
fn c17_the_offsets_are_older_than_the_stores() {
    let mut ledger = worked(1, |driver| driver);
    let old = offsets(&mut ledger);
    ledger.feed(80);
    ledger.driver.advance(Duration::from_secs(1)).unwrap(); // every task commits something
    ledger.driver.run().unwrap();
    let new = offsets(&mut ledger);
    ledger.driver.kill(0, false).unwrap();
    put_back(&mut ledger, &old);
    refused_with(&mut ledger, &[]);
    ledger.driver.kill(0, false).unwrap();
    put_back(&mut ledger, &new);
    ledger.feed(10);
    ledger.prove();
}

/// C17: the committed offset is below the input's first offset, since retention went over it while nobody ran.
#[test]
fn c17_the_input_is_gone() {
    let mut ledger = worked(2, |driver| driver);
    ledger.driver.set_restarts(false).unwrap();
    ledger.driver.kill(0, false).unwrap();
    ledger.feed(40);
    for partition in 0..PARTITIONS {
        let (.., end) = ledger.driver.bounds("in", partition).unwrap();
        ledger.driver.trim("in", partition, end).unwrap();
    }
    ledger.driver.set_restarts(true).unwrap();
    refused_with(&mut ledger, &["out of range"]);
}

/// C17: the group's offsets have expired: the changelogs hold records, and nobody says up to where they count.
#[test]
fn c17_the_offsets_are_gone() {
    let mut ledger = worked(3, |driver| driver);
    ledger.driver.kill(0, false).unwrap();
    for partition in 0..PARTITIONS {
        ledger.driver.reset_offset("in", partition, None).unwrap();
    }
    refused_with(&mut ledger, &["offsets"]);
}

/// C17: a tool of somebody else has written the offsets: they have no anchor.
#[test]
fn c17_the_offsets_are_somebody_elses() {
    let mut ledger = worked(4, |driver| driver);
    ledger.driver.kill(0, false).unwrap();
    let copied =
        offsets(&mut ledger).into_iter().map(|found| Some((found?.0, "copied by a tool".to_owned())));
    let copied: Vec<_> = copied.collect();
    put_back(&mut ledger, &copied);
    refused_with(&mut ledger, &[]);
}

/// C17 with the policy to rebuild: stores that are ahead are built anew beside, up to the target that the old
/// offsets name; the invariants hold.
#[test]
fn c17_rebuilt_when_asked() {
    fn rebuild(plan: ottla_streams::recovery::RecoveryPlan) -> ottla_streams::recovery::RecoveryPlan {
        ottla_streams::recovery::RecoveryPlan { on_mismatch: OnMismatch::Rebuild, ..plan }
    }
    let mut ledger = worked(5, |driver| driver.tune_recovery(rebuild));
    let old = offsets(&mut ledger);
    ledger.feed(80);
    ledger.driver.run().unwrap();
    ledger.driver.kill(0, false).unwrap();
    put_back(&mut ledger, &old);
    ledger.driver.run().unwrap();
    assert_eq!(ledger.driver.refused(), Vec::<String>::new());
    assert!(ledger.rebuilds() > 0);
}

/// C18: an unclean election has cut a changelog below the position of a store. With and without a new record in
/// place of the lost ones, that is seen.
#[test]
fn c18_the_changelog_was_truncated() {
    for regrown in [false, true] {
        let mut ledger = worked(6, |driver| driver);
        ledger.driver.kill(0, false).unwrap();
        let changelog =
            ledger.driver.changelogs().unwrap().into_iter().find(|name| name.contains("counts")).unwrap();
        for partition in 0..PARTITIONS {
            let (.., end) = ledger.driver.bounds(&changelog, partition).unwrap();
            if end < 6 {
                continue;
            }
            ledger.driver.truncate(&changelog, partition, end - 4).unwrap();
            for _ in 0..if regrown { 10 } else { 0 } {
                let record = RawRecord { key: Some("x".into()), ..RawRecord::default() };
                ledger.driver.pipe_record(&changelog, Some(partition), record).unwrap();
            }
        }
        refused_with(&mut ledger, &[]);
    }
}

/// C19: an old copy of the disks is put back after the cleaner has removed tombstones that the copy never saw. Ottla
/// tells the horizon; on Kafka the age of the copy tells. Either way the stores are built anew beside the old ones,
/// and no deleted key comes back.
#[test]
fn c19_the_disk_is_older_than_the_tombstones() {
    for (seed, horizon) in [(7, true), (8, true), (9, false), (10, false)] {
        let mut ledger = worked(seed, |driver| if horizon { driver } else { driver.without_horizon() });
        let image = ledger.driver.image(0).unwrap().expect("disks in memory can be copied");
        ledger.feed(200);
        ledger.driver.run().unwrap();
        ledger.driver.skip(Duration::from_secs(25 * 3600)).unwrap();
        for changelog in ledger.driver.changelogs().unwrap() {
            ledger.driver.compact(&changelog).unwrap();
        }
        ledger.driver.replace_disks(0, Some(&image)).unwrap();
        ledger.feed(10);
        ledger.prove();
        assert!(ledger.rebuilds() > 0, "seed {seed}: the old copy cannot be brought forward");
    }
}

/// C19, the other side: an old copy over a log from which no tombstone was removed is brought forward, not rebuilt.
#[test]
fn c19_an_old_disk_is_no_harm_by_itself() {
    let mut ledger = worked(11, |driver| driver);
    let image = ledger.driver.image(0).unwrap().expect("disks in memory can be copied");
    ledger.feed(200);
    ledger.driver.run().unwrap();
    for changelog in ledger.driver.changelogs().unwrap() {
        ledger.driver.compact(&changelog).unwrap();
    }
    ledger.driver.replace_disks(0, Some(&image)).unwrap();
    ledger.prove();
    assert_eq!(ledger.rebuilds(), 0);
    assert!(ledger.replayed() > 0);
}

/// C20: the changelog of a window store begins behind the store's position: the records between are older than any
/// window that is kept. The store goes on from the log's start, and windows that are kept are all there.
#[test]
fn c20_the_changelog_of_windows_begins_later() {
    use ottla_streams::dsl::Tumbling;
    let minute = Duration::from_secs(60);
    let topology = Topology::new("windows", |b| {
        b.stream("in", Utf8, I64).window(Tumbling::of(minute)).count("per-minute").changes().to("out");
    })
    .unwrap();
    let mut driver = Driver::new(topology).seed(12);
    let pipe = |driver: &mut Driver, minute: i64, records: i64| {
        for second in 0..records {
            let timestamp = 1_700_000_000_000 + minute * 60_000 + second * 1000;
            let value = Bytes::copy_from_slice(&1i64.to_be_bytes());
            let record =
                RawRecord { key: Some("k".into()), value: Some(value), timestamp, headers: Vec::new() };
            driver.pipe_record("in", None, record).unwrap();
        }
        driver.run().unwrap();
    };
    pipe(&mut driver, 0, 5);
    let image = driver.image(0).unwrap().expect("disks in memory can be copied");
    pipe(&mut driver, 1, 5);
    let changelog = driver.changelogs().unwrap().remove(0);
    let (.., first_kept) = driver.bounds(&changelog, 0).unwrap();
    for later in 0..10 {
        pipe(&mut driver, 100_000 + later, 4); // far later than any retention
    }
    driver.trim(&changelog, 0, first_kept).unwrap();
    let before = driver.store_bytes("per-minute").unwrap();
    driver.replace_disks(0, Some(&image)).unwrap();
    driver.run().unwrap();
    assert_eq!(driver.refused(), Vec::<String>::new());
    let after = driver.store_bytes("per-minute").unwrap();
    let newest = before.iter().next_back().expect("there are windows");
    assert_eq!(after.iter().next_back(), Some(newest));
    driver.check().unwrap();
}

/// A topology that refuses negative numbers and panics at 666.
fn picky(policy: Policy) -> Topology {
    Topology::new("picky", |b| {
        b.policies(Policies {
            on_process_error: policy.clone(),
            on_decode_error: policy.clone(),
            ..Policies::default()
        });
        let checked = b.stream("in", Utf8, I64).map_values(|_, number: i64| {
            assert!(number != 666, "a number of ill omen");
            number
        });
        checked.values_as(I64).group().count("counts").changes().to("out");
    })
    .unwrap()
}

/// C23: a record that cannot be decoded and one that makes the user's code panic: each becomes a dead letter in the
/// same transaction, once, also when the process is killed around it; what is behind them is processed.
#[test]
fn c23_poison_becomes_a_dead_letter() {
    for step in [Step::AfterSend, Step::AfterOffsets, Step::AfterEndTxn, Step::InApply, Step::AfterAbort] {
        let mut driver = Driver::new(picky(Policy::DeadLetter("dead".to_owned()))).seed(13);
        driver.pipe_as("in", (&Utf8, &"a".to_owned()), (&I64, &1)).unwrap();
        driver.run().unwrap();
        driver.crash_at(step);
        driver.pipe_as("in", (&Utf8, &"a".to_owned()), (&I64, &666)).unwrap();
        driver.pipe("in", "a", "three").unwrap();
        driver.pipe_as("in", (&Utf8, &"a".to_owned()), (&I64, &2)).unwrap();
        driver.run().unwrap();
        assert_eq!(driver.read_all("dead").unwrap().len(), 2, "crash at {step}");
        let counts: Vec<i64> =
            driver.read_as("out", &Utf8, &I64).unwrap().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [1, 2], "crash at {step}");
        driver.check().unwrap();
    }
}

/// C23 without a policy: the task fails again and again, is set apart so that the others do not suffer, and is given
/// up with a text that names the record. The other partitions are processed.
#[test]
fn c23_a_poisoned_task_is_set_apart() {
    let mut driver = Driver::new(picky(Policy::Fail)).partitions("in", 4).seed(14);
    let number = |n: i64| Bytes::copy_from_slice(&n.to_be_bytes());
    for partition in 0..4 {
        for n in [1, if partition == 2 { 666 } else { 2 }, 3] {
            let key = Some(Bytes::from(format!("k{partition}")));
            let record = RawRecord { key, value: Some(number(n)), timestamp: n, headers: Vec::new() };
            driver.pipe_record("in", Some(partition), record).unwrap();
        }
    }
    driver.run().unwrap();
    let refused = driver.refused();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains("offset 1 of in/2") && refused[0].contains("ill omen"), "{refused:?}");
    assert_eq!(driver.counts()[0].set_apart, 1);
    let out = driver.read_all("out").unwrap();
    assert_eq!(out.iter().filter(|found| found.record.key.as_deref() != Some(b"k2")).count(), 9);
    driver.check().unwrap();
}

/// Echoes, through two partitions in one process.
fn echo(policy: Policy) -> Topology {
    Topology::new("echo", |b| {
        b.policies(Policies { on_produce_error: policy, ..Policies::default() });
        b.stream("in", Utf8, Utf8).to("out");
    })
    .unwrap()
}

/// C23 for a result that the cluster refuses only when the transaction is flushed, without saying which: the record
/// that it came of is found and named, it alone becomes a dead letter, and no record of the others in the same
/// transaction is lost or doubled.
#[test]
fn c23_a_result_that_is_refused_late_is_named() {
    for seed in 0..12 {
        let topology = echo(Policy::DeadLetter("dead".to_owned()));
        let mut driver = Driver::new(topology).partitions("in", 2).seed(seed);
        driver.poison("17", "dead").unwrap();
        for n in 0..40 {
            driver.pipe("in", format!("k{n}"), format!("{n}")).unwrap();
        }
        let mut wanted: Vec<String> = (0..40).filter(|n| *n != 17).map(|n| n.to_string()).collect();
        wanted.sort();
        driver.run().unwrap();
        let mut out: Vec<String> =
            driver.read_as("out", &Utf8, &Utf8).unwrap().into_iter().map(|(_, value)| value).collect();
        out.sort();
        assert_eq!(out, wanted, "seed {seed}");
        let dead = driver.read_all("dead").unwrap();
        assert_eq!(dead.len(), 1, "seed {seed}");
        assert_eq!(dead[0].record.value.as_deref(), Some(&b"17"[..]));
        let header = |name: &str| {
            let header =
                dead[0].record.headers.iter().find(|header| &header.key[..] == name).expect("a header");
            String::from_utf8(header.value.clone().expect("a value").to_vec()).expect("text")
        };
        assert_eq!(header("ottla.topic"), "in");
        assert!(header("ottla.error").contains("INVALID_RECORD") && !header("ottla.offset").is_empty());
        assert_eq!(driver.counts()[0].set_apart, 0);
        driver.check().unwrap();
    }
}

/// The same without a policy: the application stops, and the error says topic, partition and offset.
#[test]
fn c23_a_result_that_is_refused_late_stops_by_name() {
    let mut driver = Driver::new(echo(Policy::Fail)).partitions("in", 2).seed(3);
    for n in 0..4 {
        let (key, value) = (Some("k".into()), Some(format!("{n}").into()));
        let record = RawRecord { key, value, ..RawRecord::default() };
        driver.pipe_record("in", Some(1), record).unwrap();
    }
    driver.poison("2", "").unwrap();
    driver.run().unwrap();
    let refused = driver.refused();
    assert!(refused.len() == 1 && refused[0].contains("offset 2 of in/1"), "{refused:?}");
}

/// C23 for results: a topic that the cluster refuses stops the task by name, and nothing of its transaction shows.
#[test]
fn c23_a_result_that_is_refused() {
    let mut driver = Driver::new(picky(Policy::Fail)).seed(15);
    driver.refuse(Some("out")).unwrap();
    driver.pipe_as("in", (&Utf8, &"a".to_owned()), (&I64, &1)).unwrap();
    driver.run().unwrap();
    let refused = driver.refused();
    assert!(refused.len() == 1 && refused[0].contains("out"), "{refused:?}");
    let changelog = driver.changelogs().unwrap().remove(0);
    assert_eq!(driver.read_all(&changelog).unwrap(), []);
    driver.check().unwrap();
}
