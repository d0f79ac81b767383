//! What a start costs: after kills in the middle of everything, and with many producers. Starts brokers of its own.
//!
//! `recovery` fills a folder over many partitions and kills the broker under load, while it writes a snapshot, and
//! while it rewrites files; each time it is started again, and the time to its first acknowledgement counts. `producers`
//! gives it so many (partition, producer) entries and open transactions, and measures memory, the longest step of its
//! owner while a snapshot is written under load, and the start after a kill.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::Args;
use ottla_env::spawn::TaskGroup;
use ottla_env::{files, net, process, time};
use ottla_protocol::batch::{BatchBuilder, Producer};
use ottla_protocol::compression::Codec;
use ottla_protocol::messages as m;
use ottla_protocol::record::NewRecord;
use ottla_protocol::types::Text;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::wire::Wire;
use crate::broker_process::BrokerProcess;
use crate::output;

/// Connections that load.
const CONNECTIONS: usize = 4;
/// Requests in flight on each.
const PIPELINE: usize = 4;
/// Bytes of one record of the bulk load, and partitions that one request writes to.
const RECORD_BYTES: usize = 10 << 10;
const PARTITIONS_PER_REQUEST: i32 = 100;
/// Producer ids that one connection asks for at once.
const IDS_AT_ONCE: usize = 500;
/// Partitions of each open transaction.
const TRANSACTION_PARTITIONS: i32 = 3;
/// Longest that any phase may take.
const PATIENCE: Duration = Duration::from_secs(1800);
/// The topic.
const TOPIC: &str = "bench-recovery";
/// Versions of the requests.
const PRODUCE: i16 = 12;
const INIT_PRODUCER_ID: i16 = 5;

/// Kills and starts.
#[derive(Clone, Debug, Args)]
pub(super) struct Recovery {
    /// Folder for data and log; must be absent or empty
    #[arg(long)]
    folder: PathBuf,
    /// Bytes to write before the first kill, GiB
    #[arg(long, default_value_t = 10.0)]
    gib: f64,
    /// Partitions they are spread over
    #[arg(long, default_value_t = 1000)]
    partitions: i32,
    /// Kills of each kind
    #[arg(long, default_value_t = 3)]
    kills: usize,
}

/// Many producers.
#[derive(Clone, Debug, Args)]
pub(super) struct Producers {
    /// Folder for data and log; must be absent or empty
    #[arg(long)]
    folder: PathBuf,
    /// (partition, producer) entries, each of a producer of its own
    #[arg(long, default_value_t = 1_000_000)]
    count: usize,
    /// Partitions they are spread over
    #[arg(long, default_value_t = 1000)]
    partitions: i32,
    /// Transactions that stay open
    #[arg(long, default_value_t = 10_000)]
    transactions: usize,
    /// Seconds that the broker rests before its memory is read
    #[arg(long, default_value_t = 150)]
    rest: u64,
}

/// A batch of one record.
fn batch(bytes: usize, producer: Option<Producer>, transactional: bool) -> Result<Bytes> {
    let mut builder = BatchBuilder::new(Codec::None);
    if let Some(producer) = producer {
        builder.set_producer(Producer { transactional, ..producer });
    }
    let value = vec![b'r'; bytes];
    builder.append(&NewRecord { timestamp: 1_000, value: Some(&value), ..NewRecord::default() })?;
    Ok(builder.build())
}

fn request(batches: impl Iterator<Item = (i32, Bytes)>, transactional_id: Option<Text>) -> m::ProduceRequest {
    let data = batches.map(|(index, records)| m::produce_request::PartitionProduceData {
        index,
        records: Some(records.into()),
        ..Default::default()
    });
    let topic = m::produce_request::TopicProduceData {
        name: Text::from(TOPIC),
        partition_data: data.collect(),
        ..Default::default()
    };
    m::ProduceRequest {
        transactional_id,
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![topic],
        ..Default::default()
    }
}

fn acknowledged(response: &m::ProduceResponse) -> Result<()> {
    let answers = response.responses.iter().flat_map(|topic| &topic.partition_responses);
    let refused = answers.map(|partition| partition.error_code).find(|code| *code != 0);
    ensure!(refused.is_none(), "a batch was refused: {refused:?}");
    Ok(())
}

/// Writes bulk to all partitions until told to stop or the broker is gone; counts bytes.
async fn bulk(address: String, partitions: i32, first: i32, stop: Arc<AtomicBool>, written: Arc<AtomicU64>) {
    let load = async {
        let mut wire = Wire::connect(&address).await?;
        let records = batch(RECORD_BYTES, None, false)?;
        let mut sent = std::collections::VecDeque::new();
        let mut at = first;
        while !stop.load(Ordering::Relaxed) {
            let each = (0..PARTITIONS_PER_REQUEST.min(partitions))
                .map(|offset| ((at + offset) % partitions, records.clone()));
            sent.push_back(wire.send(&request(each, None), PRODUCE).await?);
            at = (at + PARTITIONS_PER_REQUEST) % partitions;
            if sent.len() >= PIPELINE {
                let id = sent.pop_front().expect("it has some");
                acknowledged(&wire.receive::<m::ProduceRequest>(id, PRODUCE).await?)?;
                let bytes =
                    records.len() as u64 * u64::from(PARTITIONS_PER_REQUEST.min(partitions).unsigned_abs());
                written.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        anyhow::Ok(())
    };
    if let Err(error) = load.await {
        tracing::debug!(%error, "the load of a connection has ended"); // the broker was killed
    }
}

/// A load that runs until it is dropped or stopped.
struct Load {
    tasks: TaskGroup,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
}

impl Load {
    fn start(address: &str, partitions: i32) -> Self {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = TaskGroup::new();
        for number in 0..CONNECTIONS {
            let first = partitions * number as i32 / CONNECTIONS as i32;
            tasks.spawn("bulk", bulk(address.to_owned(), partitions, first, stop.clone(), written.clone()));
        }
        Self { tasks, stop, written }
    }

    async fn until_written(&self, bytes: u64) -> Result<()> {
        let began = time::now();
        while self.written.load(Ordering::Relaxed) < bytes {
            ensure!(began.elapsed() < PATIENCE, "the load does not get on");
            time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.abort_all().await;
    }
}

/// Kills the broker, starts it again; seconds until it was ready, and until it had acknowledged a record.
async fn kill_and_start(broker: &mut BrokerProcess) -> Result<(f64, f64)> {
    broker.kill()?;
    let began = time::now();
    broker.start_again().await?;
    let ready = began.elapsed();
    let mut wire = Wire::connect(broker.address()).await?;
    let response = wire.call(&request([(0, batch(100, None, false)?)].into_iter(), None), PRODUCE).await?;
    acknowledged(&response)?;
    Ok((ready.as_secs_f64(), began.elapsed().as_secs_f64()))
}

/// Waits until a file whose name fits is there.
async fn until_file(dir: &Path, fits: impl Fn(&str) -> bool) -> Result<()> {
    let began = time::now();
    loop {
        let names = files::list_folder(dir)?;
        if names.iter().filter_map(|path| path.file_name()?.to_str()).any(&fits) {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "no such file came up");
        time::sleep(Duration::from_millis(1)).await;
    }
}

/// Whether a file's name is that of the moment that is waited for.
type Fits = fn(&str) -> bool;

/// Kills under load, in a snapshot, in a rewrite.
pub(super) async fn recovery(options: &Recovery) -> Result<Value> {
    files::create_folders(&options.folder)?;
    let mut broker = BrokerProcess::start(&options.folder, &["log.rewrite.enable=true"]).await?;
    Wire::connect(broker.address()).await?.create_topic(TOPIC, options.partitions).await?;
    let data = options.folder.join("data");
    let began = time::now();
    let load = Load::start(broker.address(), options.partitions);
    load.until_written((options.gib * f64::from(1 << 30)) as u64).await?;
    let (written, took) = (load.written.load(Ordering::Relaxed), began.elapsed());
    output::note(&format!("{} MiB written in {took:?}", written >> 20));
    let mut load = load;
    let mut figures = serde_json::Map::new();
    let kinds: [(&str, Fits); 3] = [
        ("under load", |_| true),
        ("in a snapshot", |name| name.ends_with(".snapshot.tmp")),
        ("in a rewrite", |name| name.starts_with("data-") && name.ends_with(".tmp")),
    ];
    for (kind, fits) in kinds {
        let mut worst = (0.0_f64, 0.0_f64);
        for _ in 0..options.kills {
            load.until_written(load.written.load(Ordering::Relaxed) + (64 << 20)).await?;
            until_file(&data, fits).await?;
            let (ready, first) = kill_and_start(&mut broker).await?;
            output::note(&format!(
                "killed {kind}: ready after {ready:.2} s, first acknowledgement after {first:.2} s"
            ));
            worst = (worst.0.max(ready), worst.1.max(first));
            load.end().await;
            load = Load::start(broker.address(), options.partitions);
        }
        figures.insert(format!("killed {kind}, ready, s"), json!(worst.0));
        figures.insert(format!("killed {kind}, first acknowledgement, s"), json!(worst.1));
    }
    load.end().await;
    figures.insert("written before, MiB".to_owned(), json!(written >> 20));
    figures.insert("writing, MiB/s".to_owned(), json!((written >> 20) as f64 / took.as_secs_f64()));
    figures.insert("folder at the end, MiB".to_owned(), json!(files::tree_bytes(&data)? >> 20));
    figures.insert("memory at the end, MiB".to_owned(), json!(process::resident_bytes(broker.pid())? >> 20));
    broker.kill()?;
    Ok(Value::Object(figures))
}

/// Producer ids, pipelined.
async fn producer_ids(wire: &mut Wire, names: &[Option<Text>]) -> Result<Vec<Producer>> {
    let mut given = Vec::with_capacity(names.len());
    for names in names.chunks(IDS_AT_ONCE) {
        let mut sent = Vec::with_capacity(names.len());
        for name in names {
            let request = m::InitProducerIdRequest {
                transactional_id: name.clone(),
                transaction_timeout_ms: 900_000,
                ..Default::default()
            };
            sent.push(wire.send(&request, INIT_PRODUCER_ID).await?);
        }
        for id in sent {
            let answer = wire.receive::<m::InitProducerIdRequest>(id, INIT_PRODUCER_ID).await?;
            ensure!(answer.error_code == 0, "no producer id: error {}", answer.error_code);
            given.push(Producer {
                producer_id: answer.producer_id,
                producer_epoch: answer.producer_epoch,
                base_sequence: 0,
                transactional: false,
            });
        }
    }
    Ok(given)
}

/// So many rounds of one new producer for each partition.
async fn produce_rounds(address: String, partitions: i32, rounds: usize) -> Result<()> {
    let mut wire = Wire::connect(&address).await?;
    for _ in 0..rounds {
        let producers = producer_ids(&mut wire, &vec![None; partitions.unsigned_abs() as usize]).await?;
        let batches = producers
            .iter()
            .enumerate()
            .map(|(at, producer)| Ok((i32::try_from(at)?, batch(10, Some(*producer), false)?)));
        let batches: Vec<(i32, Bytes)> = batches.collect::<Result<_>>()?;
        acknowledged(&wire.call(&request(batches.into_iter(), None), PRODUCE).await?)?;
    }
    Ok(())
}

/// Opens transactions that stay open.
async fn open_transactions(address: String, partitions: i32, numbers: std::ops::Range<usize>) -> Result<()> {
    let mut wire = Wire::connect(&address).await?;
    let names: Vec<Option<Text>> =
        numbers.clone().map(|number| Some(Text::from(format!("open-{number}").as_str()))).collect();
    let producers = producer_ids(&mut wire, &names).await?;
    let mut sent = Vec::new();
    for ((number, name), producer) in numbers.zip(names).zip(producers) {
        let records = batch(10, Some(producer), true)?;
        let first = i32::try_from(number)? % partitions;
        let each = (0..TRANSACTION_PARTITIONS.min(partitions))
            .map(|offset| ((first + offset) % partitions, records.clone()));
        sent.push(wire.send(&request(each, name), PRODUCE).await?);
        if sent.len() == IDS_AT_ONCE {
            for id in sent.drain(..) {
                acknowledged(&wire.receive::<m::ProduceRequest>(id, PRODUCE).await?)?;
            }
        }
    }
    for id in sent {
        acknowledged(&wire.receive::<m::ProduceRequest>(id, PRODUCE).await?)?;
    }
    Ok(())
}

/// One number of the broker's metrics.
async fn metric(address: &str, name: &str) -> Result<f64> {
    let mut stream = net::connect(address, Duration::from_secs(10)).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let value = text
        .lines()
        .filter(|line| line.starts_with(name))
        .find_map(|line| line.rsplit(' ').next()?.parse().ok());
    value.with_context(|| format!("no metric {name}"))
}

/// Waits for all, and takes the first error.
async fn all(tasks: Vec<ottla_env::spawn::TaskHandle<Result<()>>>) -> Result<()> {
    for task in tasks {
        task.await.context("a task has panicked")??;
    }
    Ok(())
}

/// Many producers and open transactions: memory, pauses, start.
pub(super) async fn producers(options: &Producers) -> Result<Value> {
    files::create_folders(&options.folder)?;
    let free = net::bind("127.0.0.1:0").await?.local_addr()?;
    let http = format!("http.listen={free}");
    let most = format!("max.producers={}", (options.count * 2).clamp(2_000_000, 50_000_000));
    let mut broker = BrokerProcess::start(&options.folder, &[&http, &most]).await?;
    let address = broker.address().to_owned();
    Wire::connect(&address).await?.create_topic(TOPIC, options.partitions).await?;
    let idle = process::resident_bytes(broker.pid())?;
    let began = time::now();
    let rounds = options.count.div_ceil(options.partitions.unsigned_abs() as usize).div_ceil(CONNECTIONS);
    let spawn =
        |_| ottla_env::spawn::task("producers", produce_rounds(address.clone(), options.partitions, rounds));
    all((0..CONNECTIONS).map(spawn).collect()).await?;
    let share = options.transactions.div_ceil(CONNECTIONS);
    let spawn = |number: usize| {
        let numbers = number * share..((number + 1) * share).min(options.transactions);
        ottla_env::spawn::task(
            "transactions",
            open_transactions(address.clone(), options.partitions, numbers),
        )
    };
    all((0..CONNECTIONS).map(spawn).collect()).await?;
    let loading = began.elapsed();
    let loaded = process::resident_bytes(broker.pid())?;
    output::note(&format!("loaded in {loading:?}, {} MiB", loaded >> 20));
    time::sleep(Duration::from_secs(options.rest)).await;
    let rested = process::resident_bytes(broker.pid())?;
    let metrics = free.to_string();
    let before = metric(&metrics, "ottla_snapshots_total{").await.unwrap_or(0.0);
    let load = Load::start(&address, options.partitions);
    let began = time::now();
    while metric(&metrics, "ottla_snapshots_total{").await.unwrap_or(0.0) < before + 1.0 {
        if began.elapsed() > PATIENCE {
            bail!("no snapshot was written");
        }
        time::sleep(Duration::from_millis(500)).await;
    }
    load.end().await;
    let longest = metric(&metrics, "ottla_owner_step_longest_seconds").await?;
    let snapshot = metric(&metrics, "ottla_snapshot_seconds").await?;
    let snapshot_bytes = metric(&metrics, "ottla_snapshot_bytes").await?;
    let most = process::resident_bytes(broker.pid())?;
    let (ready, first) = kill_and_start(&mut broker).await?;
    let restarted = process::resident_bytes(broker.pid())?;
    broker.kill()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Ok(json!({
        "entries": rounds * CONNECTIONS * options.partitions.unsigned_abs() as usize,
        "open transactions": options.transactions,
        "loading, s": loading.as_secs_f64(),
        "memory before, MiB": mib(idle),
        "memory when loaded, MiB": mib(loaded),
        "memory at rest, MiB": mib(rested),
        "memory after a snapshot under load, MiB": mib(most),
        "longest step of the owner around a snapshot under load, ms": longest * 1000.0,
        "snapshot, s": snapshot,
        "snapshot, MiB": snapshot_bytes / f64::from(1 << 20),
        "killed, ready, s": ready,
        "killed, first acknowledgement, s": first,
        "memory after the start, MiB": mib(restarted),
    }))
}
