//! Reads the two topics from end to end, as a reader of committed records and as one of all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ottla_client::{Consumer, ConsumerRecord, ConsumerSettings, IsolationLevel, StartAt};
use ottla_env::time;
use ottla_protocol::types::Text;

use super::children::{TRANSACTION, TRANSACTION_RECORDS};
use super::lines::{Input, fingerprint, key};
use super::live::{line, number, text};
use super::{INPUT_TOPIC, OUTPUT_TOPIC};
use crate::broker_process::client;

/// Longest that a scan may go without a record: an open transaction in the way has timed out long before.
const QUIET_MAX: Duration = Duration::from_secs(45);

/// What a topic holds.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Per line: how often it is there, and the fingerprint of its first value.
    pub(super) lines: Vec<(u32, u64)>,
    /// Records in all.
    pub(super) records: u64,
    /// Records that stand behind a later one of their key.
    pub(super) reordered: u64,
    /// Records without the headers or the key that they must have, or of a line that does not exist.
    pub(super) foreign: u64,
    /// Per transaction: records found, and records that it says it has.
    pub(super) transactions: BTreeMap<String, (u64, u64)>,
    /// Transactions with a record that only readers of everything see.
    pub(super) uncommitted: BTreeSet<String>,
    /// Append times in ms with the process that wrote, in order of partition and offset.
    pub(super) appends: Vec<(i64, String)>,
}

/// Both topics.
pub(super) struct Scans {
    pub(super) input: Scan,
    pub(super) output: Scan,
}

/// Scans both topics.
pub(super) async fn both(bootstrap: &str, input: &Input) -> Result<Scans> {
    Ok(Scans {
        input: scan(bootstrap, INPUT_TOPIC, input).await?,
        output: scan(bootstrap, OUTPUT_TOPIC, input).await?,
    })
}

async fn scan(bootstrap: &str, topic: &str, input: &Input) -> Result<Scan> {
    let mut scan = Scan { lines: vec![(0, 0); usize::try_from(input.records())?], ..Scan::default() };
    let mut last_of_key: BTreeMap<u64, u64> = BTreeMap::new();
    read(bootstrap, topic, IsolationLevel::ReadCommitted, |record| {
        scan.take(record, input, &mut last_of_key)
    })
    .await?;
    let mut all = BTreeSet::new();
    read(bootstrap, topic, IsolationLevel::ReadUncommitted, |record| {
        all.extend(text(record, TRANSACTION).map(str::to_owned));
    })
    .await?;
    scan.uncommitted = all.into_iter().filter(|name| !scan.transactions.contains_key(name)).collect();
    Ok(scan)
}

async fn read(
    bootstrap: &str,
    topic: &str,
    isolation: IsolationLevel,
    mut take: impl FnMut(&ConsumerRecord),
) -> Result<()> {
    let settings = ConsumerSettings::new(client(bootstrap, "demo-verdict")?)
        .isolation(isolation)
        .max_poll_records(10_000)
        .fetch_max_wait(Duration::from_millis(100));
    let mut consumer = Consumer::connect(settings).await?;
    consumer.assign_topic(&Text::from(topic), StartAt::Beginning).await?;
    // the ends of everything, so that a reader of committed records waits for what is still open
    let all =
        ConsumerSettings::new(client(bootstrap, "demo-verdict")?).isolation(IsolationLevel::ReadUncommitted);
    let ends = Consumer::connect(all).await?.end_offsets(&consumer.assignment()).await?;
    let mut progress_at = time::now();
    while ends.iter().any(|(at, end)| consumer.position(at).is_some_and(|position| position < *end)) {
        let records = consumer.poll(Duration::from_millis(200)).await.context("reading for the verdict")?;
        if !records.is_empty() {
            progress_at = time::now();
        }
        records.iter().for_each(&mut take);
        if progress_at.elapsed() > QUIET_MAX {
            bail!("readers of `{topic}` are held back by an open transaction");
        }
    }
    Ok(())
}

impl Scan {
    fn take(&mut self, record: &ConsumerRecord, input: &Input, last_of_key: &mut BTreeMap<u64, u64>) {
        self.records += 1;
        let found = (line(record), text(record, TRANSACTION), number(record, TRANSACTION_RECORDS));
        let (Some(line), Some(transaction), Some(size)) = found else {
            self.foreign += 1;
            return;
        };
        let slot = usize::try_from(line).ok().and_then(|index| self.lines.get_mut(index));
        let is_keyed = record.key.as_deref() == Some(key(line, input.keys()).as_bytes());
        let (Some(slot), true) = (slot, is_keyed) else {
            self.foreign += 1;
            return;
        };
        if slot.0 == 0 {
            slot.1 = fingerprint(record.value.as_deref().unwrap_or_default());
        }
        slot.0 += 1;
        let last = last_of_key.entry(line % input.keys()).or_insert(0);
        if line < *last {
            self.reordered += 1;
        }
        *last = (*last).max(line);
        let counted = self.transactions.entry(transaction.to_owned()).or_insert((0, size));
        counted.0 += 1;
        let writer = transaction.splitn(3, '-').take(2).collect::<Vec<_>>().join("-");
        self.appends.push((record.timestamp, writer));
    }
}
