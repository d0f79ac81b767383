//! `ottla prove-kill --full-disk FOLDER`: the same promises on a file system that is filled and freed under load.
//!
//! FOLDER is the root of a small file system of its own. A round: writers work; a ballast file takes all room that is
//! left, and what becomes free; an open transaction is committed in the middle of that, and the commit has to be
//! answered while the disk is full; in some rounds somebody commits offsets until mark 2, in some the broker is killed
//! on the full disk and has to start on it; then the ballast goes, the writers go on and finish without help, and the
//! round is judged. What was judged is deleted, so that the next round has room.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, GroupMetadata, OffsetToCommit, ProducerSettings, Record, TopicPartition, TransactionalProducer,
    TransactionalSettings,
};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn::{self, TaskHandle};
use ottla_env::{files, time};
use tokio::sync::watch;

use super::check::Checker;
use super::history::Id;
use super::load::Load;
use super::{NAMED_MAX, PARTITIONS, PLAIN, TRANSACTED, Totals};
use crate::broker_process::{BrokerProcess, client};
use crate::output;

/// Small files: a disk of a few hundred MiB is large.
const SETTINGS: [&str; 6] = [
    "log.file.bytes=1048576",
    "snapshot.log.bytes=4194304",
    "log.rewrite.enable=true",
    "log.rewrite.run.age.ms=20000",
    "log.rewrite.file.bytes=16777216",
    "log.rewrite.garbage.percent=10",
];
/// An answer to a commit on a full disk must come in this time.
const COMMIT_MAX: Duration = Duration::from_secs(20);
/// The topic of the transaction that is committed on a full disk; nobody else writes to it.
const WITNESS: &str = "witness";

/// What happened beside the load.
#[derive(Debug, Default)]
pub(super) struct Fills {
    pub(super) fills: u64,
    pub(super) ballast_bytes: u64,
    pub(super) commits_on_full_disk: u64,
    pub(super) starts_on_full_disk: u64,
    pub(super) starts_refused: u64,
    pub(super) commit_ms_max: u64,
    pub(super) mark_1: u64,
    pub(super) mark_2: u64,
    pub(super) room_again: u64,
}

/// Fills and frees `rounds` times.
pub(super) async fn prove(rounds: u64, seed: u64, folder: &Path) -> Result<(Totals, Fills)> {
    let mut rng = SeededRng::new(seed);
    let ballast = folder.join("ballast");
    if ballast.exists() {
        files::remove(&ballast).context("cannot remove the ballast of before")?;
    }
    let logs = files::create_scratch_folder("ottla-prove-full").context("cannot make a folder")?;
    let mut broker =
        BrokerProcess::start_in(&folder.join("data"), &logs.join("broker.log"), &SETTINGS).await?;
    let admin = Admin::connect(client(broker.address(), "prove-full")?).await?;
    for topic in TRANSACTED.iter().chain([&PLAIN, &WITNESS]) {
        admin.create_topic(&NewTopic::new(*topic, PARTITIONS)).await?;
    }
    let mut checker = Checker::connect(broker.address()).await?;
    let (mut totals, mut fills) = (Totals::default(), Fills::default());
    for round in 1..=rounds {
        let load = Load::start(broker.address(), round, &mut rng)?;
        let played = play(round, &mut broker, &ballast, &mut rng, &mut totals, &mut fills).await;
        if ballast.exists() {
            files::remove(&ballast).context("cannot remove the ballast")?;
        }
        if let Err(error) = played {
            totals.violations.push(format!("round {round}: {error:#}"));
        }
        let history = load.stop().await;
        totals.count(&history);
        totals.violations.extend(history.failures.iter().cloned());
        let found = checker.check(&history).await?;
        totals.violations.extend(found.into_iter().map(|violation| format!("round {round}: {violation}")));
        for (at, end) in checker.read_to() {
            admin.delete_records(&at, end).await.with_context(|| format!("cannot delete records of {at}"))?;
        }
        if round == rounds || round % 10 == 0 || !totals.violations.is_empty() {
            output::note(&format!(
                "round {round} of {rounds}: {} records, {} transactions, {} commits on a full disk (slowest {} ms), {} violations",
                totals.records,
                totals.transactions,
                fills.commits_on_full_disk,
                fills.commit_ms_max,
                totals.violations.len()
            ));
        }
        if totals.violations.len() >= NAMED_MAX {
            break;
        }
    }
    broker.kill()?;
    fills.read_log(&logs.join("broker.log"))?;
    files::remove_tree(&logs).context("cannot remove the logs")?;
    Ok((totals, fills))
}

/// One filling, up to the moment before the ballast goes.
async fn play(
    round: u64,
    broker: &mut BrokerProcess,
    ballast: &Path,
    rng: &mut SeededRng,
    totals: &mut Totals,
    fills: &mut Fills,
) -> Result<()> {
    let client_settings = client(broker.address(), "witness")?;
    let settings = TransactionalSettings::new(client_settings.clone(), "witness")
        .producer(ProducerSettings::new(client_settings).linger(Duration::ZERO));
    let mut witness =
        TransactionalProducer::init(settings).await.context("the witness has no producer id")?;
    let transaction = witness.begin().await?;
    let id = Id { writer: "witness".to_owned(), number: round, index: 0 };
    let sent = transaction.send(Record::to(WITNESS).partition(0).value(id.value())).await?;
    sent.wait().await.context("the witness's record")?;
    let offset = OffsetToCommit::new(TopicPartition::new(WITNESS, 0), i64::try_from(round)?);
    transaction.send_offsets(&[offset], &GroupMetadata::without_members("witness")).await?;
    time::sleep(Duration::from_millis(rng.between(5, 150))).await;

    let stop = watch::Sender::new(false);
    let filler = fill(ballast.to_owned(), stop.subscribe());
    let committer = rng.one_in(4).then(|| commit_offsets(broker.address(), stop.subscribe())).transpose()?;
    time::sleep(Duration::from_millis(rng.between(100, 800))).await;
    if rng.one_in(5) {
        broker.kill()?;
        totals.kills += 1;
        if rng.one_in(3) {
            broker.start_briefly(Duration::from_millis(rng.below(60))).await?;
            totals.kills += 1;
        }
        match broker.start_again().await {
            Ok(()) => fills.starts_on_full_disk += 1,
            Err(_) => {
                // Who starts again and again while somebody else takes each byte that becomes free runs out of room.
                fills.starts_refused += 1;
                stop.send_replace(true);
                fills.ballast_bytes += filler.await.context("the filler panicked")??;
                files::remove(ballast).context("cannot remove the ballast")?;
                broker.start_again().await.context("no start when there is room again")?;
                return transaction.commit().await.context("a commit behind the full disk");
            }
        }
    }
    let began = time::now();
    let committed = time::timeout(COMMIT_MAX, transaction.commit()).await;
    let took = began.elapsed();
    stop.send_replace(true);
    if let Some(committer) = committer {
        committer.await.context("the committer panicked")?;
    }
    fills.ballast_bytes += filler.await.context("the filler panicked")??;
    fills.fills += 1;
    match committed {
        Ok(Ok(())) => fills.commits_on_full_disk += 1,
        Ok(Err(error)) => bail!("a commit on a full disk was refused: {error}"),
        Err(_) => bail!("a commit on a full disk was not answered within {} s", COMMIT_MAX.as_secs()),
    }
    fills.commit_ms_max = fills.commit_ms_max.max(u64::try_from(took.as_millis())?);
    Ok(())
}

/// Takes all room, and what becomes free, until it is told to stop; then how many bytes it took.
fn fill(path: PathBuf, stop: watch::Receiver<bool>) -> TaskHandle<Result<u64>> {
    spawn::task("prove-fill", async move {
        let mut file = files::create(&path).context("cannot make the ballast")?;
        let mut bytes = 0;
        while !*stop.borrow() {
            bytes += take_all(&mut file)?;
            time::sleep(Duration::from_millis(2)).await;
        }
        Ok(bytes)
    })
}

fn take_all(file: &mut File) -> Result<u64> {
    let (block, mut bytes) = (vec![0x5a; 1 << 20], 0);
    let mut size = block.len();
    while size >= 4096 {
        match file.write(&block[..size]) {
            Ok(written) => bytes += written as u64,
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => size /= 4,
            Err(error) => return Err(error).context("cannot write the ballast"),
        }
    }
    Ok(bytes)
}

/// Commits offsets as fast as it can: what fills the log up to mark 2. Being refused is fine.
fn commit_offsets(bootstrap: &str, stop: watch::Receiver<bool>) -> Result<TaskHandle<()>> {
    let settings = client(bootstrap, "committer")?;
    Ok(spawn::task("prove-commit", async move {
        let Ok(admin) = Admin::connect(settings).await else { return };
        let at = TopicPartition::new(WITNESS, 1);
        let mut offset = 0;
        while !*stop.borrow() {
            offset += 1;
            let commit = [OffsetToCommit::new(at.clone(), offset)];
            let group = "committer".into();
            let _ =
                time::timeout(Duration::from_millis(500), admin.alter_group_offsets(&group, &commit)).await;
        }
    }))
}

impl Fills {
    /// What the broker said.
    fn read_log(&mut self, log: &Path) -> Result<()> {
        let text = files::read_text(log, 1 << 30).context("cannot read the broker's log")?;
        self.mark_1 = text.matches("only the log's reserve is left").count() as u64;
        self.mark_2 = text.matches("half of the log's reserve is gone").count() as u64;
        self.room_again = text.matches("the disk has room again").count() as u64;
        Ok(())
    }
}
