//! How far the results are, while they are written: drives kills and display. The verdict does not use it.

use std::time::Duration;

use anyhow::Result;
use ottla_client::{Consumer, ConsumerRecord, ConsumerSettings, StartAt};
use ottla_env::time::{self, Instant};
use ottla_protocol::types::Text;

use super::OUTPUT_TOPIC;
use super::children::LINE;
use crate::broker_process::client;

/// Reads the output topic along.
pub(super) struct Live {
    consumer: Consumer,
    /// One bit per line.
    lines: Vec<u64>,
    seen: u64,
    repeated: u64,
    last_at: Instant,
}

impl Live {
    pub(super) async fn start(bootstrap: &str, records: u64) -> Result<Self> {
        let settings = ConsumerSettings::new(client(bootstrap, "demo-live")?)
            .fetch_max_wait(Duration::from_millis(100))
            .max_poll_records(10_000);
        let mut consumer = Consumer::connect(settings).await?;
        consumer.assign_topic(&Text::from(OUTPUT_TOPIC), StartAt::Beginning).await?;
        let words = usize::try_from(records.div_ceil(64))?;
        Ok(Self { consumer, lines: vec![0; words], seen: 0, repeated: 0, last_at: time::now() })
    }

    /// Lines with a result.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Results beyond the first of their line.
    pub(super) fn repeated(&self) -> u64 {
        self.repeated
    }

    /// When the last result came.
    pub(super) fn last_at(&self) -> Instant {
        self.last_at
    }

    /// Reads on for at most `wait`; a broker that is away is waited for.
    pub(super) async fn advance(&mut self, wait: Duration) -> Result<()> {
        let records = self.consumer.poll(wait).await?;
        if !records.is_empty() {
            self.last_at = time::now();
        }
        for line in records.iter().filter_map(line) {
            let Some(word) = usize::try_from(line / 64).ok().and_then(|index| self.lines.get_mut(index))
            else {
                continue;
            };
            let bit = 1 << (line % 64);
            if *word & bit == 0 {
                *word |= bit;
                self.seen += 1;
            } else {
                self.repeated += 1;
            }
        }
        Ok(())
    }
}

/// The number of the line that a record came from.
pub(super) fn line(record: &ConsumerRecord) -> Option<u64> {
    number(record, LINE)
}

/// A header's value as a number.
pub(super) fn number(record: &ConsumerRecord, header: &str) -> Option<u64> {
    text(record, header)?.parse().ok()
}

/// A header's value as text.
pub(super) fn text<'a>(record: &'a ConsumerRecord, header: &str) -> Option<&'a str> {
    let value = record.headers.iter().find(|found| found.key == header)?.value.as_ref()?;
    std::str::from_utf8(value).ok()
}
