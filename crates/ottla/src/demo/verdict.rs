//! The verdict: what must be in the topics, and what is.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::Options;
use super::display::Display;
use super::lines::{Input, fingerprint, transform};
use super::plan::Victim;
use super::scan::{Scan, Scans};
use super::stage::Kill;
use crate::text;

/// What the logs say.
#[derive(Debug)]
pub(super) struct Verdict {
    at_least_once: bool,
    seed: u64,
    keys: u64,
    records_in: u64,
    records_out: u64,
    lost: u64,
    duplicated: u64,
    torn: u64,
    reordered: u64,
    changed: u64,
    committed: usize,
    aborted: usize,
    kills: Vec<Kill>,
    slowest_recovery: Option<(Duration, Victim)>,
    /// Key, records in, records out.
    per_key: Vec<(u64, u64, u64)>,
    elapsed: Duration,
}

/// Keys with other numbers than they must have that are named to people.
const BAD_KEYS_MAX: usize = 10;
/// Keys that are listed for machines.
const LISTED_KEYS_MAX: usize = 1000;

impl Verdict {
    /// Compares lines, input topic and output topic.
    pub(super) fn of(
        options: &Options,
        seed: u64,
        input: &Input,
        scans: &Scans,
        kills: &[Kill],
        elapsed: Duration,
    ) -> Self {
        let (orders, results) = (&scans.input, &scans.output);
        let missing = |scan: &Scan| scan.lines.iter().filter(|(count, _)| *count == 0).count() as u64;
        let extra =
            |scan: &Scan| scan.lines.iter().map(|(count, _)| u64::from(count.saturating_sub(1))).sum::<u64>();
        let torn =
            |scan: &Scan| scan.transactions.values().filter(|(found, size)| found != size).count() as u64;
        let lost =
            orders.lines.iter().zip(&results.lines).filter(|(order, result)| order.0 == 0 || result.0 == 0);
        Self {
            at_least_once: options.at_least_once,
            seed,
            keys: input.keys().min(input.records()),
            records_in: input.records() - missing(orders),
            records_out: results.records,
            lost: lost.count() as u64,
            duplicated: extra(orders) + extra(results),
            torn: torn(orders) + torn(results),
            reordered: orders.reordered + results.reordered,
            changed: orders.foreign + results.foreign + changed(input, scans).unwrap_or(input.records()),
            committed: orders.transactions.len() + results.transactions.len(),
            aborted: orders.uncommitted.len() + results.uncommitted.len(),
            kills: kills.to_vec(),
            slowest_recovery: slowest_recovery(kills, scans),
            per_key: per_key(input, orders, results),
            elapsed,
        }
    }

    /// Whether the promise was kept.
    pub(super) fn passed(&self) -> bool {
        let kept = self.lost == 0 && self.changed == 0;
        kept && (self.at_least_once || self.duplicated + self.torn + self.reordered == 0)
    }

    /// For people.
    pub(super) fn show(&self, display: &mut Display) {
        display.line("verdict, from the logs alone:");
        let mut row = |what: &str, value: String| display.line(&format!("  {what:<22} {value}"));
        row("records in", format!("{} ({} keys)", self.records_in, self.keys));
        row("records out", self.records_out.to_string());
        row("lost", self.lost.to_string());
        row("duplicated", self.duplicated.to_string());
        if !self.at_least_once {
            row("torn transactions", self.torn.to_string());
        }
        row("out of order", self.reordered.to_string());
        row("changed", self.changed.to_string());
        if !self.at_least_once {
            row("transactions", format!("{} committed, {} aborted", self.committed, self.aborted));
        }
        row("kills", format!("{}{}", self.kills.len(), self.kills_by_victim()));
        if let Some((took, victim)) = self.slowest_recovery {
            row("slowest recovery", format!("{} ({victim})", text::duration(took)));
        }
        let bad: Vec<_> =
            self.per_key.iter().filter(|(_, records_in, records_out)| records_in != records_out).collect();
        row(
            "keys",
            match bad.len() {
                0 => "every one has as many records out as in".to_owned(),
                bad => format!("{bad} have other numbers of records out than in:"),
            },
        );
        for (key, records_in, records_out) in bad.into_iter().take(BAD_KEYS_MAX) {
            row(&format!("  customer-{key}"), format!("{records_in} in, {records_out} out"));
        }
        let verdict = match (self.passed(), self.at_least_once) {
            (true, false) => {
                "exactly once: every record of every key arrived once, in order, with its transaction"
                    .to_owned()
            }
            (true, true) => format!(
                "at least once: nothing is lost, {} records are there twice or more; `ottla demo` without \
                 --at-least-once has none",
                self.duplicated
            ),
            (false, _) => "BROKEN: the promise was not kept".to_owned(),
        };
        display.line(&format!("{verdict} ({})", text::duration(self.elapsed)));
    }

    fn kills_by_victim(&self) -> String {
        let mut counts = std::collections::BTreeMap::new();
        self.kills.iter().for_each(|kill| *counts.entry(kill.victim).or_insert(0) += 1);
        let shown: Vec<_> = counts.iter().map(|(victim, count)| format!("{victim} {count}")).collect();
        if shown.is_empty() { String::new() } else { format!(" ({})", shown.join(", ")) }
    }

    /// For machines.
    pub(super) fn json(&self) -> Value {
        json!({
            "mode": if self.at_least_once { "at-least-once" } else { "exactly-once" },
            "passed": self.passed(),
            "records_in": self.records_in,
            "records_out": self.records_out,
            "keys": self.keys,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "torn": if self.at_least_once { 0 } else { self.torn },
            "reordered": self.reordered,
            "changed": self.changed,
            "kills": self.kills.len(),
            "committed": if self.at_least_once { 0 } else { self.committed },
            "aborted": if self.at_least_once { 0 } else { self.aborted },
            "slowest_recovery_ms": self.slowest_recovery.map(|(took, _)| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
            "seconds": self.elapsed.as_secs_f64(),
            "seed": self.seed,
            "per_key": self.per_key.iter().take(LISTED_KEYS_MAX).map(|(key, records_in, records_out)| {
                (format!("customer-{key}"), json!({ "in": records_in, "out": records_out }))
            }).collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// Lines whose value in either topic is not what it must be.
fn changed(input: &Input, scans: &Scans) -> Result<u64> {
    let mut lines = input.lines(0)?;
    let mut changed = 0;
    for (order, result) in scans.input.lines.iter().zip(&scans.output.lines) {
        let Some((_, line)) = lines.next()? else { break };
        let order_differs = order.0 > 0 && order.1 != fingerprint(&line);
        let result_differs = result.0 > 0 && result.1 != fingerprint(&transform(&line));
        changed += u64::from(order_differs || result_differs);
    }
    Ok(changed)
}

/// Per key: lines in the input topic, records in the output topic.
fn per_key(input: &Input, orders: &Scan, results: &Scan) -> Vec<(u64, u64, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    for (line, (order, result)) in orders.lines.iter().zip(&results.lines).enumerate() {
        let entry = counts.entry(line as u64 % input.keys()).or_insert((0, 0));
        entry.0 += u64::from(order.0.min(1));
        entry.1 += u64::from(result.0);
    }
    counts.into_iter().map(|(key, (records_in, records_out))| (key, records_in, records_out)).collect()
}

/// The longest time from a kill to the next append of the one that was hit; of anybody, when that was the broker.
fn slowest_recovery(kills: &[Kill], scans: &Scans) -> Option<(Duration, Victim)> {
    let recovery = |kill: &Kill| {
        let topic = if kill.victim == Victim::Source { &scans.input } else { &scans.output };
        let writer = kill.victim.to_string();
        let appends = topic.appends.iter().filter(|(_, by)| match kill.victim {
            Victim::Broker => true,
            Victim::Source => by.starts_with("source"),
            Victim::Worker(_) => *by == writer,
        });
        let next = appends.map(|(at, _)| *at).filter(|at| *at > kill.at_ms).min()?;
        let took = u64::try_from(next - kill.at_ms).ok()?;
        Some((Duration::from_millis(took), kill.victim))
    };
    kills.iter().filter_map(recovery).max()
}
