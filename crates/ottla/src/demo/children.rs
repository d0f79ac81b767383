//! What the demonstration's source and workers share: their command line, their settings, the headers that let
//! the verdict tell transactions apart.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use ottla_client::{
    Consumer, ConsumerSettings, ProducerSettings, Record, SettingError, TopicPartition, TransactionalSettings,
};
use ottla_protocol::types::Text;

use super::lines::Input;
use crate::broker_process::client;

/// Header with the line's number.
pub(super) const LINE: &str = "line";
/// Header with the transaction's name, unique in a run.
pub(super) const TRANSACTION: &str = "transaction";
/// Header with the number of records of the transaction in this topic.
pub(super) const TRANSACTION_RECORDS: &str = "transaction-records";

/// How often positions are committed without transactions.
pub(super) const COMMIT_EVERY: Duration = Duration::from_millis(400);

/// What a child is told.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChildOptions {
    #[arg(long)]
    pub(super) bootstrap: String,
    /// `source`, `worker-0`, ...: its transactional id
    #[arg(long)]
    pub(super) name: String,
    /// How often it has been started before
    #[arg(long)]
    pub(super) incarnation: u64,
    #[arg(long)]
    pub(super) seed: u64,
    #[arg(long)]
    pub(super) at_least_once: bool,
    #[arg(long)]
    pub(super) input: Option<PathBuf>,
    #[arg(long)]
    pub(super) records: u64,
    #[arg(long)]
    pub(super) keys: u64,
    /// Records per second that the source writes
    #[arg(long)]
    pub(super) rate: u64,
    #[arg(long)]
    pub(super) workers: i32,
}

impl ChildOptions {
    /// The options of all children; `name` and `incarnation` are set for each start.
    pub(super) fn new(
        bootstrap: &str,
        input: &Input,
        seed: u64,
        at_least_once: bool,
        rate: u64,
        workers: i32,
    ) -> Self {
        Self {
            bootstrap: bootstrap.to_owned(),
            name: String::new(),
            incarnation: 0,
            seed,
            at_least_once,
            input: input.file().map(PathBuf::from),
            records: input.records(),
            keys: input.keys(),
            rate,
            workers,
        }
    }

    /// As arguments of our own binary.
    pub(super) fn arguments(&self, command: &str) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![command.into()];
        let mut option = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        option("--bootstrap", self.bootstrap.clone().into());
        option("--name", self.name.clone().into());
        option("--incarnation", self.incarnation.to_string().into());
        option("--seed", self.seed.to_string().into());
        option("--records", self.records.to_string().into());
        option("--keys", self.keys.to_string().into());
        option("--rate", self.rate.to_string().into());
        option("--workers", self.workers.to_string().into());
        if let Some(input) = &self.input {
            option("--input", input.into());
        }
        if self.at_least_once {
            arguments.push("--at-least-once".into());
        }
        arguments
    }

    pub(super) fn input(&self) -> Result<Input> {
        Input::open(self.input.as_deref(), self.records, self.keys, self.seed)
    }

    pub(super) fn producer(&self) -> Result<ProducerSettings, SettingError> {
        Ok(ProducerSettings::new(client(&self.bootstrap, &self.name)?).linger(Duration::from_millis(2)))
    }

    pub(super) fn transactional(&self) -> Result<TransactionalSettings, SettingError> {
        let settings = TransactionalSettings::new(client(&self.bootstrap, &self.name)?, self.name.as_str());
        Ok(settings.transaction_timeout(Duration::from_secs(10)).producer(self.producer()?))
    }

    pub(super) fn consumer(&self) -> Result<ConsumerSettings, SettingError> {
        let settings = ConsumerSettings::new(client(&self.bootstrap, &self.name)?);
        Ok(settings.fetch_max_wait(Duration::from_millis(200)).max_poll_records(250))
    }
}

/// Adds the headers of a transaction.
pub(super) fn in_transaction(record: Record, line: u64, transaction: &str, records: usize) -> Record {
    record
        .header(LINE, line.to_string())
        .header(TRANSACTION, transaction.to_owned())
        .header(TRANSACTION_RECORDS, records.to_string())
}

/// The committed positions of a group on these partitions; 0 where there is none.
pub(super) async fn positions(
    consumer: &Consumer,
    group: &str,
    partitions: &[TopicPartition],
) -> Result<Vec<(TopicPartition, i64)>> {
    let committed = consumer.committed(&Text::from(group), partitions).await?;
    let position = |at: &TopicPartition| {
        committed
            .iter()
            .find(|offset| offset.topic_partition == *at)
            .and_then(|offset| offset.offset)
            .unwrap_or(0)
    };
    Ok(partitions.iter().map(|at| (at.clone(), position(at))).collect())
}
