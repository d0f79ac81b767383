//! The check is checked: faults are planted, and each must be found and called by its name.

use super::*;

/// What the chain's end has, record by record: partition, key and number.
type Records = Vec<Option<(i32, usize, u64)>>;

/// The records of a chain that went well: every key up to 20, partition by partition, keys interleaved.
fn good() -> (Records, Vec<u64>) {
    let mut records = Vec::new();
    for partition in 0..PARTITIONS {
        for number in 0..20 {
            let keys = (0..KEYS).filter(|key| i32::try_from(*key).expect("few") % PARTITIONS == partition);
            records.extend(keys.map(|key| Some((partition, key, number))));
        }
    }
    (records, vec![20; KEYS])
}

/// Lost, twice, out of order and invented, of a good run that `plant` has spoilt.
fn found(plant: impl FnOnce(&mut Records, &mut Vec<u64>)) -> (u64, u64, u64, u64) {
    let (mut records, mut sent) = good();
    plant(&mut records, &mut sent);
    let judgement = Judgement::judge(records.into_iter(), &sent);
    let Judgement { lost, twice, out_of_order, invented, .. } = judgement;
    assert_eq!(judgement.is_exact(), (lost, twice, out_of_order, invented) == (0, 0, 0, 0));
    for (name, count) in
        [("lost", lost), ("twice", twice), ("out_of_order", out_of_order), ("invented", invented)]
    {
        assert!(judgement.counts().contains(&format!("\"{name}\": {count}")), "{}", judgement.counts());
    }
    (lost, twice, out_of_order, invented)
}

/// Place of number `number` of key 5.
fn place(records: &[Option<(i32, usize, u64)>], number: u64) -> usize {
    records.iter().position(|record| *record == Some((1, 5, number))).expect("it is there")
}

/// Proves that a run without faults is exact, and that an empty one is when nothing was sent.
#[test]
fn a_good_run_is_exact() {
    assert_eq!(found(|_, _| ()), (0, 0, 0, 0));
    let empty = |records: &mut Vec<_>, sent: &mut Vec<u64>| {
        records.clear();
        sent.fill(0);
    };
    assert_eq!(found(empty), (0, 0, 0, 0));
}

/// Proves that a lost record is found: in the middle, at the end, and when a whole key is missing.
#[test]
fn a_lost_record_is_found() {
    for number in [0, 7, 19] {
        let lose = |records: &mut Vec<_>, _: &mut Vec<u64>| {
            records.remove(place(records, number));
        };
        assert_eq!(found(lose), (1, 0, 0, 0), "number {number}");
    }
    let lose = |records: &mut Records, _: &mut Vec<u64>| {
        records.retain(|record| record.is_some_and(|(_, key, _)| key != 5));
    };
    assert_eq!(found(lose), (20, 0, 0, 0));
    assert_eq!(found(|_, sent| sent[5] += 1), (1, 0, 0, 0), "the last one that was fed");
}

/// Proves that a record that is there twice is found, wherever its second copy stands.
#[test]
fn a_doubled_record_is_found() {
    for behind in [0, 3, 19] {
        let double = |records: &mut Vec<_>, _: &mut Vec<u64>| {
            let at = place(records, behind);
            records.insert(at + 1, Some((1, 5, 0)));
        };
        assert_eq!(found(double), (0, 1, 0, 0), "behind number {behind}");
    }
}

/// Proves that two records of a key that stand in each other's places are found, and that two of different keys, which
/// have no order, are not.
#[test]
fn a_swapped_record_is_found() {
    let swap = |records: &mut Vec<_>, _: &mut Vec<u64>| {
        let (one, other) = (place(records, 7), place(records, 8));
        records.swap(one, other);
    };
    assert_eq!(found(swap), (0, 0, 1, 0));
    let swap = |records: &mut Vec<_>, _: &mut Vec<u64>| {
        let at = place(records, 7);
        records.swap(at, at + 1);
    };
    assert_eq!(found(swap), (0, 0, 0, 0));
}

/// Proves that records of an aborted transaction are found when a reader shows them: the attempt was made again, so
/// that they are there twice; and so is an aborted attempt at what was never fed.
#[test]
fn a_record_of_an_aborted_transaction_is_found() {
    let abort = |records: &mut Vec<_>, _: &mut Vec<u64>| {
        let at = place(records, 10);
        // a batch of three that was aborted, then written again
        for (index, number) in (10..13).enumerate() {
            records.insert(at + index, Some((1, 5, number)));
        }
    };
    let (lost, twice, _, invented) = found(abort);
    assert_eq!((lost, twice, invented), (0, 3, 0));
    assert_eq!(found(|records, _| records.push(Some((1, 5, 20)))), (0, 0, 0, 1));
}

/// Proves that what nobody wrote is found: no numbers, an unknown key, a key in another's partition.
#[test]
fn an_invented_record_is_found() {
    for stranger in [None, Some((1, KEYS + 1, 0)), Some((2, 5, 3)), Some((-1, 5, 3)), Some((1, 5, u64::MAX))]
    {
        assert_eq!(found(|records, _| records.push(stranger)), (0, 0, 0, 1), "{stranger:?}");
    }
}
