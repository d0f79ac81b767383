//! Positions and names, and the outbox against a real server that is killed.
//!
//! With a cluster in memory; `tests/sources.rs` does the same with a broker and processes.

#[path = "../../../tests/sources/postgres.rs"]
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ottla_client::GroupMetadata;
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::{spawn, time};

use super::*;
use crate::source::runner::testing::{Failure, Port, Shared};
use crate::source::runner::{Runner, RunnerSettings};
use server::{Server, TRANSACTIONS, WRITERS, pause, write};

/// Proves that positions come back as they were written, and that others are refused.
#[test]
fn positions_round_trip() {
    let position = OutboxPosition { system: u64::MAX, timeline: 3, xid: 1 << 40, id: -7 };
    let bytes = position.encode().0;
    assert_eq!(OutboxPosition::decode(&bytes), Ok(position));
    for at in 0..bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 1;
        assert!(OutboxPosition::decode(&damaged).is_err() && OutboxPosition::decode(&bytes[..at]).is_err());
    }
}

/// Proves that a table's name cannot carry a statement, and that wrong parameters are told at once.
#[test]
fn names_are_names() {
    for bad in ["", "a;drop table b", "a b", "a.b.c", "\"a\"", "a.", &"x".repeat(64)] {
        let error = Outbox::new(OutboxSettings::new("host=localhost", bad)).expect_err("no name");
        assert!(matches!(error, SourceError::Setup { .. }), "{bad}");
    }
    assert!(Outbox::new(OutboxSettings::new("host=localhost user=me", "public.outbox")).is_ok());
    assert!(Outbox::new(OutboxSettings::new("no parameters", "outbox")).is_err());
}

fn runner(cluster: &Shared, outbox: OutboxSettings, number: u64) -> Runner<Port> {
    let settings = RunnerSettings {
        retry_pause: Duration::from_millis(20),
        commit_interval: Duration::from_millis(10),
        ..RunnerSettings::new("app", "out", 1, &format!("p{number}/0"))
    };
    let source = Box::new(Outbox::new(outbox).expect("settings"));
    let mut runner = Runner::new(settings, source, Port::take(cluster), Box::new(cluster.clone()));
    runner.assign(0, 1).expect("assigned");
    runner
}

fn settings(server: &Server) -> OutboxSettings {
    OutboxSettings { rows_max: 7, ..OutboxSettings::new(&server.connection(), "outbox") }
}

/// Every row of the truth once in Kafka, in the order of its writer, and none left in the table. Gives how many.
fn compare(server: &Server, cluster: &Shared) -> usize {
    let mut client = Client::connect(&server.connection(), NoTls).expect("connected");
    let rows = client.query("select value from truth", &[]).expect("read");
    let mut truth: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    truth.sort();
    let mut found = cluster.lock().committed_values("out");
    let mut per_writer: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for value in &found {
        let mut parts = value.split(':');
        let writer = parts.next().expect("a writer").to_owned();
        per_writer
            .entry(writer)
            .or_default()
            .push(parts.next().expect("a number").parse().expect("a number"));
    }
    assert!(per_writer.values().all(|numbers| numbers.is_sorted()), "each writer's rows are in order");
    found.sort();
    let more_than_once = found.windows(2).filter(|pair| pair[0] == pair[1]).count();
    let lost = truth.iter().filter(|row| found.binary_search(row).is_err()).count();
    assert_eq!((more_than_once, lost, found.len()), (0, 0, truth.len()));
    let left: i64 = client.query_one("select count(*) from outbox", &[]).expect("read").get(0);
    assert_eq!(left, 0, "rows behind the committed position are deleted");
    truth.len()
}

/// Proves exactly once for an outbox: eight writers with random delays before their commits and rollbacks, the server
/// killed with SIGKILL, our process ended at random calls, answers lost: every committed row once, no other row, and
/// the table empty behind what was committed. (A new server's transaction ids begin below 1,000 and pass it here, where
/// their order as text is another.)
#[test]
fn every_committed_row_once() {
    let Some(mut server) = Server::start() else { return };
    let mut client = Client::connect(&server.connection(), NoTls).expect("connected");
    client
        .batch_execute(&format!("{}; create table truth (value text)", Outbox::ddl("outbox")))
        .expect("made");
    drop(client);
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (connection, stop, written) = (server.connection(), Arc::clone(&stop), Arc::clone(&written));
            spawn::thread("writer", move || write(&connection, writer, &stop, &written)).expect("started")
        })
        .collect();
    let cluster = Shared::default();
    let (group, begin) = (GroupMetadata::without_members("app-sources"), time::now());
    let deadline = begin + Duration::from_secs(240);
    let mut rng = SeededRng::new(11);
    let (mut processes, mut kills, mut quiet) = (0, 0, 0);
    let mut runner_now = runner(&cluster, settings(&server), processes);
    while quiet < 40 {
        assert!(time::now() < deadline, "{written:?} transactions were written");
        let all_written = written.load(Ordering::Relaxed) >= WRITERS * TRANSACTIONS;
        if kills < 3 && written.load(Ordering::Relaxed) > (kills + 1) * WRITERS * TRANSACTIONS / 5 {
            kills += 1;
            server.kill();
            server.restart();
        }
        if !all_written && cluster.lock().fail_in.is_none() && rng.one_in(20) {
            let kind = [Failure::Gone, Failure::CommittedUnanswered, Failure::MustAbort, Failure::Gone]
                [rng.index(4)];
            cluster.lock().fail_in = Some((u32::try_from(rng.below(6)).expect("small"), kind));
        }
        if all_written {
            cluster.lock().fail_in = None;
        }
        match runner_now.run_once(time::now() - begin, 1, &group) {
            Ok(crate::source::runner::SourceRan::Worked) => quiet = 0,
            Ok(crate::source::runner::SourceRan::Idle) => {
                quiet += u32::from(all_written);
                pause(10);
            }
            Err(_) => {
                cluster.lock().fail_in = None;
                processes += 1;
                runner_now = runner(&cluster, settings(&server), processes);
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    let rows = compare(&server, &cluster);
    eprintln!("{rows} rows, {kills} kills of the server, {processes} of ours");
    assert!(kills == 3 && rows > 100);
}

/// Proves that another server is noticed, and that a server or table that cannot work is named.
#[test]
fn other_servers_are_refused() {
    let Some(server) = Server::start() else { return };
    let mut outbox = Outbox::new(settings(&server)).expect("settings");
    let id = outbox.partitions().expect("one").remove(0);
    let error = outbox.open(&id, None).err().expect("no table");
    assert!(matches!(&error, SourceError::Setup { reason, .. } if reason.contains("42P01")), "{error}");
    let mut client = Client::connect(&server.connection(), NoTls).expect("connected");
    client.batch_execute(&Outbox::ddl("outbox")).expect("made");
    client.execute("insert into outbox (value) values ($1)", &[&b"x".to_vec()]).expect("written");
    let piece =
        outbox.open(&id, None).expect("opened").read(Duration::ZERO, 1).expect("read").expect("a row");
    let position = OutboxPosition::decode(&piece.position.0).expect("ours");
    for other in [
        OutboxPosition { system: position.system + 1, ..position },
        OutboxPosition { timeline: position.timeline + 1, ..position },
    ] {
        let error = outbox.open(&id, Some(&other.encode())).err().expect("another server");
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
    }
    assert!(
        outbox
            .open(&id, Some(&piece.position))
            .expect("opened")
            .read(Duration::ZERO, 1)
            .expect("read")
            .is_none()
    );
    client.batch_execute("alter system set synchronous_commit = off").expect("set");
    client.query("select pg_reload_conf()", &[]).expect("told");
    let deadline = time::now() + Duration::from_secs(20);
    let error = loop {
        match outbox.open(&id, None) {
            Err(error) => break error,
            Ok(_) => assert!(time::now() < deadline, "the setting does not come through"),
        }
        pause(50);
    };
    assert!(
        matches!(&error, SourceError::Setup { reason, .. } if reason.contains("synchronous_commit")),
        "{error}"
    );
}
