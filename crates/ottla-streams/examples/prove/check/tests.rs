//! The check is checked: faults are planted, and each must be found and called by its name.

use super::*;

/// A run that went well, with two keys in two partitions and two processes.
struct Run {
    input: Input,
    output: Vec<Total>,
    changelogs: Changelogs,
    found: Vec<Found>,
    recoveries: Vec<Recovery>,
}

fn recovery(process: usize, replayed: u64, from: i64, to: i64) -> Recovery {
    let (from, to) = (vec![from, from], vec![to, to]);
    Recovery { process, task: "1_0".to_owned(), replayed, from, to }
}

fn bytes(text: impl ToString) -> Bytes {
    text.to_string().into()
}

/// Each key has the numbers 1 to 6, in transactions of two records; offsets 0 1 _ 3 4 _ 6 7 _.
fn good() -> Run {
    let (mut output, mut changelogs, mut found) = (Vec::new(), Changelogs::new(), Vec::new());
    let mut input = Input::new();
    for (partition, key) in [(0, "a"), (1, "b")] {
        input.insert(key.to_owned(), (1..=6).collect());
        for count in 1..=6 {
            let sum = count * (count + 1) / 2;
            output.push(Total { key: key.to_owned(), count, sum });
            for (store, value) in [(COUNTS, count.to_string()), (TOTALS, format!("{count} {sum}"))] {
                let offset = count - 1 + (count - 1) / 2;
                let change = Change { offset, key: bytes(key), value: Some(bytes(value)) };
                changelogs.entry((store.to_owned(), partition)).or_default().push(change);
            }
        }
        for (store, value, sum) in [(COUNTS, "6", None), (TOTALS, "6 21", Some(21))] {
            found.push(Found {
                store: store.to_owned(),
                partition,
                position: 8,
                entries: Entries::from([(bytes(key), bytes(value))]),
                totals: vec![Some((key.to_owned(), 6, sum))],
            });
        }
    }
    // process 0 is killed behind its second commit; process 1 takes over; process 0 takes it back
    let recoveries =
        vec![recovery(0, 0, 0, 0), recovery(0, 4, 2, 5), recovery(1, 8, 0, 5), recovery(0, 4, 5, 8)];
    Run { input, output, changelogs, found, recoveries }
}

/// What the check says of a good run that `plant` has spoilt, without the figures that are no faults.
fn judged(plant: impl FnOnce(&mut Run)) -> Judgement {
    let mut run = good();
    plant(&mut run);
    let stores = [COUNTS.to_owned(), TOTALS.to_owned()];
    let Run { input, output, changelogs, found, recoveries } = &run;
    let judgement = Judgement::of(input, output, changelogs, found, recoveries, &stores);
    let faults = Judgement {
        stores: 0,
        recoveries: 0,
        recoveries_of_own: 0,
        replayed: 0,
        replayed_of_own_max: 0,
        transaction_max: 0,
        ..judgement.clone()
    };
    assert_eq!(judgement.is_exact(), faults == Judgement::default());
    faults
}

/// Proves that a good run is exact, and that its figures are right.
#[test]
fn a_good_run_is_exact() {
    assert_eq!(judged(|_| ()), Judgement::default());
    let Run { input, output, changelogs, found, recoveries } = good();
    let stores = [COUNTS.to_owned(), TOTALS.to_owned()];
    let judgement = Judgement::of(&input, &output, &changelogs, &found, &recoveries, &stores);
    assert_eq!((judgement.stores, judgement.recoveries, judgement.recoveries_of_own), (4, 4, 2));
    assert_eq!((judgement.replayed, judgement.replayed_of_own_max, judgement.transaction_max), (16, 4, 4));
}

/// Proves that a lost, a doubled, a swapped and an invented change and a wrong sum are found.
#[test]
fn faults_of_the_output() {
    let none = Judgement::default;
    assert_eq!(judged(|run| drop(run.output.remove(3))), Judgement { lost: 1, ..none() });
    let twice = judged(|run| run.output.insert(3, run.output[2].clone()));
    assert_eq!(twice, Judgement { twice: 1, ..none() });
    assert_eq!(judged(|run| run.output.swap(2, 3)), Judgement { out_of_order: 1, ..none() });
    assert_eq!(judged(|run| run.output[2].sum += 1), Judgement { wrong_sums: 1, ..none() });
    for (key, count) in [("a", 7), ("a", 0), ("a", i64::MIN + 1), ("c", 1)] {
        let total = Total { key: key.to_owned(), count, sum: 1 };
        assert_eq!(judged(|run| run.output.push(total)), Judgement { invented: 1, ..none() });
    }
}

/// Proves that a store that is not its changelog's fold is found, be it at the end or behind it; a store that is an
/// older fold is right.
#[test]
fn faults_of_stores() {
    let none = Judgement::default;
    let older = |value: &str, position| {
        let entries = Entries::from([(bytes("a"), bytes(value))]);
        Found { store: COUNTS.to_owned(), partition: 0, position, entries, totals: Vec::new() }
    };
    assert_eq!(judged(|run| run.found.push(older("2", 2))), none());
    let ahead = judged(|run| run.found.push(older("3", 2)));
    assert_eq!(ahead, Judgement { stores_differ_from_changelog: 1, ..none() });
    let differs = judged(|run| drop(run.found[0].entries.insert(bytes("a"), bytes("5"))));
    assert_eq!(differs, Judgement { stores_differ_from_changelog: 1, ..none() });
    let strange = judged(|run| drop(run.found[0].entries.insert(bytes("z"), bytes("1"))));
    assert_eq!(strange, Judgement { stores_differ_from_changelog: 1, ..none() });
}

/// Proves that state which fits its changelog but not the input is found, and so is a store that nobody has whole.
#[test]
fn faults_against_the_input() {
    let none = Judgement::default;
    let wrong = judged(|run| run.found[1].totals = vec![Some(("a".to_owned(), 6, Some(20)))]);
    assert_eq!(wrong, Judgement { entries_differ_from_input: 1, ..none() });
    let undecodable = judged(|run| run.found[1].totals.push(None));
    assert_eq!(undecodable, Judgement { entries_differ_from_input: 1, ..none() });
    let missing = judged(|run| run.found[3].totals.clear());
    assert_eq!(missing, Judgement { entries_differ_from_input: 1, ..none() });
    let nobody = judged(|run| drop(run.found.remove(0)));
    assert_eq!(nobody, Judgement { stores_incomplete: 1, entries_differ_from_input: 1, ..none() });
}

/// Proves that a replay of more than one transaction of the process's own is found, but not one of what another
/// process has written; that a store which has gone back is found, as a wiped one has; and a replay of a wrong length.
#[test]
fn faults_of_recoveries() {
    let none = Judgement::default;
    let too_much = judged(|run| run.recoveries[1] = recovery(0, 8, 0, 5));
    assert_eq!(too_much, Judgement { replayed_too_much: 1, ..none() });
    let others = judged(|run| run.recoveries[3] = recovery(0, 8, 2, 8));
    assert_eq!(others, Judgement { went_back: 1, ..none() });
    let others = judged(|run| run.recoveries.push(recovery(1, 4, 5, 8)));
    assert_eq!(others, none());
    let wiped = judged(|run| run.recoveries.push(recovery(0, 12, 0, 8)));
    assert_eq!(wiped, Judgement { went_back: 1, replayed_too_much: 1, ..none() });
    let wrong = judged(|run| run.recoveries[1].replayed = 3);
    assert_eq!(wrong, Judgement { replayed_wrongly: 1, ..none() });
}

/// Proves that what a process tells is understood, and that anything else is no recovery.
#[test]
fn what_is_told() {
    let told = serde_json::json!({"task": "1_0", "replayed": 4, "from": [2, 2], "to": [5, 5]});
    assert_eq!(Recovery::read(0, &told), Some(recovery(0, 4, 2, 5)));
    for other in
        [serde_json::json!({"running": 4}), serde_json::json!(null), serde_json::json!({"task": "1_0"})]
    {
        assert_eq!(Recovery::read(0, &other), None);
    }
}
