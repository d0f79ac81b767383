//! `ottla backup`, and copies by `cp`, of the folder of a broker under load.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ottla_broker::{Broker as InProcess, Config};
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, Consumer, ConsumerSettings, IsolationLevel, Producer, ProducerSettings, Record, StartAt,
};
use ottla_env::{files, spawn, time};
use ottla_protocol::types::Text;

use crate::support::{Broker, block_on, run};

/// Small files, so that they are sealed, rewritten and dropped all the time.
const SMALL: &[&str] = &[
    "log.file.bytes=1048576",
    "snapshot.log.bytes=1048576",
    "log.rewrite.enable=true",
    "log.rewrite.file.bytes=1048576",
    "log.rewrite.run.bytes=1048576",
    "log.rewrite.run.age.ms=300",
    "log.rewrite.extent.bytes=65536",
    "log.rewrite.garbage.percent=5",
    "log.retention.check.interval.ms=200",
];

/// Writes numbers to both partitions of `t`, and bulk to `gone`, of which little is kept, until it is told to stop.
/// `acknowledged` is how many of the numbers are.
async fn load(address: String, stop: Arc<AtomicBool>, acknowledged: Arc<AtomicU64>) {
    let settings = ottla_client::ClientSettings::new(&address).expect("an address");
    let producer =
        Producer::connect(ProducerSettings::new(settings).linger(Duration::ZERO)).await.expect("connected");
    let mut number = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        let mut sent = Vec::new();
        for _ in 0..20 {
            let record = Record::to("t")
                .partition((number % 2) as i32)
                .value(format!("{number:08} {}", "x".repeat(900)));
            sent.push(producer.send(record).await.expect("taken"));
            number += 1;
        }
        let bulk = Record::to("gone").partition((number % 4) as i32).value("y".repeat(20_000));
        sent.push(producer.send(bulk).await.expect("taken"));
        for delivery in sent {
            delivery.wait().await.expect("acknowledged");
        }
        acknowledged.store(number, Ordering::SeqCst);
    }
}

/// The numbers in `t` of a broker on a folder; an error when it does not start.
async fn numbers(folder: &Path) -> Result<Vec<u64>, String> {
    let config =
        Config { dir: folder.display().to_string(), listen: "127.0.0.1:0".to_owned(), ..Config::default() };
    let broker = InProcess::start(config).await.map_err(|error| error.to_string())?;
    let settings = ottla_client::ClientSettings::new(&broker.local_addr().to_string()).expect("an address");
    let settings = ConsumerSettings::new(settings).isolation(IsolationLevel::ReadCommitted);
    let mut consumer = Consumer::connect(settings).await.expect("connected");
    consumer.assign_topic(&Text::from("t"), StartAt::Beginning).await.expect("assigned");
    let ends = consumer.end_offsets(&consumer.assignment()).await.expect("ends");
    let mut numbers = Vec::new();
    let deadline = time::now() + Duration::from_secs(60);
    while ends.iter().any(|(at, end)| consumer.position(at).is_none_or(|position| position < *end)) {
        assert!(time::now() < deadline, "the copy is read to its end");
        for record in consumer.poll(Duration::from_millis(200)).await.expect("every record can be read") {
            let value = record.value.expect("a value");
            numbers.push(std::str::from_utf8(&value[..8]).expect("text").parse().expect("a number"));
        }
    }
    drop(consumer);
    broker.shutdown().await;
    numbers.sort_unstable();
    Ok(numbers)
}

/// Everything below `least` is there, once, and nothing is missing below the last that is there but in flight.
fn check(found: &[u64], least: u64, what: &str) {
    let begin: Vec<u64> = (0..least).collect();
    assert!(found.starts_with(&begin), "{what}: of {least} acknowledged records some are missing");
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{what}: a record is there twice");
}

async fn start_load(broker: &Broker) -> (Arc<AtomicBool>, Arc<AtomicU64>, spawn::TaskHandle<()>) {
    let admin = Admin::connect(broker.client()).await.expect("connected");
    admin.create_topic(&NewTopic::new("t", 2)).await.expect("created");
    let gone = NewTopic::new("gone", 4).config("retention.bytes", "100000");
    admin.create_topic(&gone).await.expect("created");
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let task = spawn::task("load", load(broker.address.clone(), stop.clone(), acknowledged.clone()));
    (stop, acknowledged, task)
}

fn folder(at: &tempfile::TempDir, name: &str, round: usize) -> PathBuf {
    at.path().join(format!("{name}-{round}"))
}

/// Proves that copies of a folder whose broker writes, rolls, rewrites and drops files all the while are whole: every
/// record that was acknowledged before the command began is there, and the copy can be written to; with and without
/// hard links, and when the backup is itself copied with `cp`.
#[test]
fn a_backup_under_load() {
    let broker = Broker::start_with(SMALL);
    let at = tempfile::tempdir().expect("a folder");
    block_on(async {
        let (stop, acknowledged, task) = start_load(&broker).await;
        for round in 0..6 {
            time::sleep(Duration::from_millis(400)).await;
            let least = acknowledged.load(Ordering::SeqCst);
            let to = folder(&at, "backup", round);
            let (data, target) = (broker.data(), to.clone());
            let ran = spawn::blocking("backup", move || {
                let mut arguments = vec!["backup", target.to_str().expect("text"), "--data"];
                arguments.push(data.to_str().expect("text"));
                arguments.extend((round % 2 == 0).then_some("--no-links"));
                run(&arguments)
            });
            let ran = ran.await.expect("it ran");
            assert_eq!(ran.code, 0, "{ran:?}");
            let again = folder(&at, "again", round);
            assert!(Command::new("cp").arg("-r").args([&to, &again]).status().expect("cp runs").success());
            for copy in [&to, &again] {
                let found = numbers(copy).await.unwrap_or_else(|error| panic!("{ran:?}: {error}"));
                check(&found, least, &format!("round {round}, {}", copy.display()));
                assert_eq!(numbers(copy).await.expect("it starts again").len(), found.len());
            }
        }
        stop.store(true, Ordering::SeqCst);
        task.await.expect("the load ended");
        assert!(acknowledged.load(Ordering::SeqCst) > 500, "there was load");
    });
    let full =
        run(&["backup", at.path().to_str().expect("text"), "--data", broker.data().to_str().expect("text")]);
    assert!(full.code == 3 && full.stderr.contains("not empty"), "{full:?}");
}

/// Proves that `cp -r` of a folder whose broker writes, rolls, rewrites and drops files gives a copy that is whole, or
/// one that is refused as a copy; and that the refusal says what to do.
#[test]
fn a_copy_by_cp_is_whole_or_refused() {
    let broker = Broker::start_with(SMALL);
    let at = tempfile::tempdir().expect("a folder");
    let (mut restored, mut refused) = (0, 0);
    block_on(async {
        let (stop, acknowledged, task) = start_load(&broker).await;
        for round in 0..12 {
            time::sleep(Duration::from_millis(300)).await;
            let least = acknowledged.load(Ordering::SeqCst);
            let to = folder(&at, "copy", round);
            let (data, target) = (broker.data(), to.clone());
            // a file that goes while it is copied is a complaint of cp, and no matter here
            let copied = spawn::blocking("cp", move || {
                Command::new("cp")
                    .arg("-r")
                    .args([&data, &target])
                    .stderr(std::process::Stdio::null())
                    .status()
            });
            copied.await.expect("it ran").expect("cp runs");
            match numbers(&to).await {
                Ok(found) => {
                    restored += 1;
                    check(&found, least, &format!("round {round}"));
                }
                Err(why) => {
                    refused += 1;
                    assert!(why.contains("is a copy") && why.contains("ottla backup"), "{why}");
                    let told = run(&["doctor", to.to_str().expect("text")]);
                    assert!(told.code == 4 && told.stdout.contains("ottla backup"), "{told:?}");
                }
            }
            files::remove_tree(&to).expect("removed");
        }
        stop.store(true, Ordering::SeqCst);
        task.await.expect("the load ended");
    });
    println!("{restored} copies were whole, {refused} were refused");
    assert_eq!(restored + refused, 12);
}
