//! `ottla consume`: records to standard output.

mod show;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ottla_client::{Consumer, ConsumerSettings, IsolationLevel, StartAt, TopicPartition};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::time;
use ottla_protocol::types::Text;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Client, Place, place};
use crate::output;
use show::Shape;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla consume orders                                     what is written from now on
  ottla consume orders --from beginning --until-end --keys --headers
  ottla consume orders/0 --from 42 --count 1 --json
  ottla consume orders --from @1764400000000               records from that time on (ms since 1970)
  ottla consume orders --from -10m --until-end             the last ten minutes (s, m, h, d)
  ottla consume orders --from beginning --isolation uncommitted --until-end

--until-end stops at what could be read when the command began.")]
pub(crate) struct Options {
    /// Topic, or TOPIC/PARTITION
    #[arg(value_parser = place, value_name = "TOPIC[/PARTITION]")]
    topic: Place,
    #[command(flatten)]
    client: Client,
    /// Where to begin: beginning, end, an offset, @MILLISECONDS, or -10m for ten minutes ago
    #[arg(long, default_value = "end", value_parser = start, allow_hyphen_values = true)]
    from: Start,
    /// Stop after this many records
    #[arg(short = 'n', long)]
    count: Option<u64>,
    /// Stop at what could be read when the command began
    #[arg(short = 'e', long)]
    until_end: bool,
    /// Stop when nothing came for this long, in seconds
    #[arg(long, value_name = "SECONDS")]
    idle: Option<f64>,
    /// What of transactions is shown
    #[arg(long, value_enum, default_value_t = Isolation::Committed)]
    isolation: Isolation,
    /// One JSON object per record
    #[arg(long)]
    json: bool,
    /// Show keys in front of values
    #[arg(short, long)]
    keys: bool,
    /// What stands between what is shown of a record
    #[arg(long, default_value = "\t", value_name = "TEXT")]
    separator: String,
    /// Show headers
    #[arg(short = 'H', long)]
    headers: bool,
    /// Show partition and offset
    #[arg(short, long)]
    offsets: bool,
    /// Show timestamps
    #[arg(short, long)]
    timestamps: bool,
}

/// What of transactions is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Isolation {
    /// Only what is committed
    #[value(alias = "read_committed")]
    Committed,
    /// Everything that is written
    #[value(alias = "read_uncommitted")]
    Uncommitted,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    At(StartAt),
    Ago(Duration),
}

fn start(text: &str) -> Result<Start, String> {
    let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number >= 0);
    let help = || "is none of beginning, end, OFFSET, @MILLISECONDS, -10m".to_owned();
    if let Some(ago) = text.strip_prefix('-') {
        let (digits, unit) = ago.split_at_checked(ago.len().saturating_sub(1)).ok_or_else(help)?;
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(help()),
        };
        let count: u32 = digits.parse().map_err(|_| help())?;
        return Ok(Start::Ago(Duration::from_secs(u64::from(count) * seconds)));
    }
    let at = match text {
        "beginning" | "earliest" => StartAt::Beginning,
        "end" | "latest" => StartAt::End,
        _ => match text.strip_prefix('@') {
            Some(time) => StartAt::Timestamp(number(time).ok_or_else(help)?),
            None => StartAt::Offset(number(text).ok_or_else(help)?),
        },
    };
    Ok(Start::At(at))
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let mut consumer = connect(&options).await?;
    let mut left = options.count.unwrap_or(u64::MAX);
    let ends =
        if options.until_end { Some(consumer.end_offsets(&consumer.assignment()).await?) } else { None };
    let idle_max = options.idle.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let shape = Shape {
        json: options.json,
        keys: options.keys,
        separator: options.separator.clone(),
        headers: options.headers,
        offsets: options.offsets,
        timestamps: options.timestamps,
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut idle_since = time::now();
    while left > 0 && !ends.as_ref().is_some_and(|ends| reached(&consumer, ends)) {
        let records = tokio::select! {
            records = consumer.poll(Duration::from_millis(200)) => records?,
            _ = interrupt.recv() => break,
        };
        if records.is_empty() {
            if idle_max.is_some_and(|idle_max| idle_since.elapsed() >= idle_max) {
                break;
            }
            continue;
        }
        idle_since = time::now();
        let mut text = Vec::new();
        for record in records {
            let end = ends.as_ref().and_then(|ends| ends.get(&record.topic_partition));
            if left > 0 && end.is_none_or(|end| record.offset < *end) {
                shape.show(&record, &mut text)?;
                left -= 1;
            }
        }
        output::bytes(&text)?;
        output::flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn connect(options: &Options) -> Result<Consumer> {
    let isolation = match options.isolation {
        Isolation::Committed => IsolationLevel::ReadCommitted,
        Isolation::Uncommitted => IsolationLevel::ReadUncommitted,
    };
    let mut settings = ConsumerSettings::new(options.client.base()?).isolation(isolation);
    options.client.settings.iter().try_for_each(|(name, value)| settings.set(name, value))?;
    let mut consumer = options.client.first_answer(Consumer::connect(settings)).await?;
    let start = match options.from {
        Start::At(start) => start,
        Start::Ago(ago) => {
            let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
            StartAt::Timestamp(OsClock.wall_ms().saturating_sub(ago).max(0))
        }
    };
    let topic = Text::from(options.topic.topic.as_str());
    match options.topic.partition {
        Some(partition) => consumer.assign(&[(TopicPartition::new(topic, partition), start)]).await?,
        None => consumer.assign_topic(&topic, start).await?,
    }
    Ok(consumer)
}

/// Whether everything up to these ends has been read.
fn reached(consumer: &Consumer, ends: &BTreeMap<TopicPartition, i64>) -> bool {
    ends.iter().all(|(at, end)| consumer.position(at).is_none_or(|position| position >= *end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves every way to say where to begin, and that others are refused.
    #[test]
    fn starts() {
        assert_eq!(start("beginning"), Ok(Start::At(StartAt::Beginning)));
        assert_eq!(start("7"), Ok(Start::At(StartAt::Offset(7))));
        assert_eq!(start("@7"), Ok(Start::At(StartAt::Timestamp(7))));
        assert_eq!(start("-2h"), Ok(Start::Ago(Duration::from_secs(7200))));
        for bad in ["", "-", "-5", "-x", "-5y", "@", "@-1", "soon"] {
            assert!(start(bad).is_err(), "{bad}");
        }
    }
}
