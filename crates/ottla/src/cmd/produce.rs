//! `ottla produce`: records from lines, idempotent or in transactions.

mod line;

use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ottla_client::{Producer, ProducerSettings, Record, TransactionalProducer, TransactionalSettings};
use ottla_env::{files, spawn};
use serde_json::json;
use tokio::sync::mpsc;

use crate::cli::{Client, Place, place};
use crate::output;
use crate::text::count;
use line::Parser;

/// Lines read ahead of the producer.
const LINES_AHEAD_MAX: usize = 1024;
/// Longest line in bytes.
const LINE_BYTES_MAX: u64 = 100 << 20;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  seq 1000 | ottla produce numbers
  printf 'alice:one lamp\\n' | ottla produce orders --key-separator :
  ottla produce orders --file orders.jsonl --format json
  ottla produce orders --file day.txt --transactional-id import       all lines or none
  ottla produce orders --file day.txt --transactional-id import --transaction-records 1000

A JSON line is an object with any of key, value, headers (object or list of [name, value]),
partition, timestamp; key_base64 and value_base64 for bytes that are no text.
A topic that is not there has to be made first: `ottla topic create`.
Every record is confirmed by the broker before the command ends with 0.")]
pub(crate) struct Options {
    /// Topic, or TOPIC/PARTITION
    #[arg(value_parser = place, value_name = "TOPIC[/PARTITION]")]
    topic: Place,
    #[command(flatten)]
    client: Client,
    /// Read lines from this file instead of standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// What a line is
    #[arg(long, value_enum, default_value_t = Format::Line)]
    format: Format,
    /// What stands between key and value in a line; without it a line is a value
    #[arg(short, long, value_name = "TEXT")]
    key_separator: Option<String>,
    /// A header for every record, e.g. -H source=import; repeatable
    #[arg(short = 'H', long = "header", value_name = "NAME=VALUE", value_parser = crate::cli::name_and_value)]
    headers: Vec<(String, String)>,
    /// Write in transactions under this name
    #[arg(short, long, value_name = "ID")]
    transactional_id: Option<String>,
    /// Records of a transaction; all in one when not given
    #[arg(long, value_name = "N", requires = "transactional_id", value_parser = clap::value_parser!(u64).range(1..))]
    transaction_records: Option<u64>,
    /// Abort instead of commit at the end: to see what readers do with it
    #[arg(long, requires = "transactional_id")]
    abort: bool,
    /// Say at the end, as a JSON object, how many records were written
    #[arg(long)]
    json: bool,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A value, or key, separator and value
    Line,
    /// A JSON object
    Json,
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let parser = Parser {
        topic: options.topic.topic.as_str().into(),
        partition: options.topic.partition,
        json: options.format == Format::Json,
        separator: options.key_separator.clone(),
        headers: options.headers.clone(),
    };
    let lines = read_lines(&options)?;
    let written = match &options.transactional_id {
        None => write(&options, &parser, lines).await?,
        Some(id) => write_transactions(&options, id, &parser, lines).await?,
    };
    if options.json {
        output::json(&json!({ "records": written.records, "transactions": written.transactions }))?;
    } else {
        let what = if options.abort { "aborted" } else { "written" };
        output::note(&format!("{} {what}", count(written.records, "record")));
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Default)]
struct Written {
    records: u64,
    transactions: u64,
}

type Lines = mpsc::Receiver<std::io::Result<Vec<u8>>>;

/// Reads lines on a thread of its own.
fn read_lines(options: &Options) -> Result<Lines> {
    let mut input: Box<dyn BufRead + Send> = match &options.file {
        Some(path) => {
            let file = files::open_read(path).with_context(|| format!("cannot read {}", path.display()))?;
            Box::new(std::io::BufReader::with_capacity(256 << 10, file))
        }
        None => Box::new(std::io::BufReader::new(std::io::stdin())),
    };
    let (sender, lines) = mpsc::channel(LINES_AHEAD_MAX);
    spawn::thread("ottla-lines", move || {
        loop {
            let line = line::read_line(&mut input, LINE_BYTES_MAX).transpose();
            let Some(line) = line else { return };
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                return;
            }
        }
    })
    .context("cannot start a thread")?;
    Ok(lines)
}

async fn write(options: &Options, parser: &Parser, mut lines: Lines) -> Result<Written> {
    let mut settings = ProducerSettings::new(options.client.base()?);
    options.client.settings.iter().try_for_each(|(name, value)| settings.set(name, value))?;
    let producer = options.client.first_answer(Producer::connect(settings)).await?;
    let mut written = Written::default();
    while let Some(line) = lines.recv().await {
        producer.send(record(parser, line, written.records)?).await?;
        written.records += 1;
    }
    producer.flush().await?;
    Ok(written)
}

async fn write_transactions(
    options: &Options,
    id: &str,
    parser: &Parser,
    mut lines: Lines,
) -> Result<Written> {
    let mut settings = TransactionalSettings::new(options.client.base()?, id);
    options.client.settings.iter().try_for_each(|(name, value)| settings.set(name, value))?;
    let mut producer = options.client.first_answer(TransactionalProducer::init(settings)).await?;
    let mut written = Written::default();
    let per_transaction = options.transaction_records.unwrap_or(u64::MAX);
    let mut line = lines.recv().await;
    while line.is_some() {
        let transaction = producer.begin().await?;
        let mut records = 0;
        while let Some(read) = line.take() {
            transaction.send(record(parser, read, written.records + records)?).await?;
            records += 1;
            line = lines.recv().await;
            if records >= per_transaction {
                break;
            }
        }
        if options.abort {
            transaction.flush().await?;
            transaction.abort().await?;
        } else {
            transaction.commit().await?;
        }
        written.records += records;
        written.transactions += 1;
    }
    Ok(written)
}

fn record(parser: &Parser, line: std::io::Result<Vec<u8>>, before: u64) -> Result<Record> {
    let line = line.context("cannot read the input")?;
    match parser.record(line) {
        Ok(record) => Ok(record),
        Err(problem) => bail!("line {}: {problem}", before + 1),
    }
}
