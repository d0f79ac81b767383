//! The end of a run: faults stop, clients finish, open transactions time out, everything comes to rest. Then the
//! log is judged, the broker is killed and loaded again, and judged again; at last every batch that an idempotent
//! producer may still repeat is repeated.

use std::collections::BTreeMap;

use ottla_protocol::types::TopicIdPartition;

use super::{REST_MS, Server, World, no_faults};
use crate::checker::{self, Found, offsets, transactions};
use crate::message;

/// How many batches per producer and partition are remembered.
const REMEMBERED: usize = 5;

impl World {
    pub(super) fn finish(&mut self) {
        self.draining = true;
        self.disk.set_plan(no_faults());
        self.disk.keep_running();
        self.run_until(self.now_ms + REST_MS, |world| world.clients_are_done() && world.is_settled());
        if self.history.violations.is_empty() && !(self.clients_are_done() && self.is_settled()) {
            let left =
                self.slots.iter().filter_map(|slot| Some(slot.client.as_ref()?.name())).collect::<Vec<_>>();
            self.history.violation(format!("does not come to rest: {left:?} settled: {}", self.is_settled()));
        }
        self.run_until(self.now_ms + REST_MS, |world| world.is_settled() && world.open_partition().is_none());
        if let Some(partition) = self.open_partition().filter(|_| self.history.violations.is_empty()) {
            self.history.violation(format!("a transaction hangs in {partition:?}"));
        }
        let Some(first) = self.judge() else { return };
        self.kill_next = true;
        self.crash();
        self.run_until(self.now_ms + REST_MS, Self::is_settled);
        let Some(second) = self.judge() else { return };
        if first != second {
            self.history.violation("a restart changed what the log shows".to_owned());
        }
        self.repeat_duplicates(&second);
    }

    fn clients_are_done(&self) -> bool {
        self.slots.iter().all(|slot| slot.client.is_none())
    }

    fn is_settled(&self) -> bool {
        matches!(&self.server, Server::Up(shell) if shell.is_settled())
    }

    /// A partition whose last stable offset is not its high watermark.
    fn open_partition(&self) -> Option<TopicIdPartition> {
        let Server::Up(shell) = &self.server else { return None };
        let open =
            shell.published.iter().find(|(_, bounds)| bounds.last_stable_offset != bounds.high_watermark);
        open.map(|(partition, _)| *partition)
    }

    fn judge(&mut self) -> Option<Found> {
        if !self.history.violations.is_empty() {
            return None;
        }
        let Server::Up(shell) = &mut self.server else {
            self.history.violation("the broker is down at the end".to_owned());
            return None;
        };
        let found = checker::judge(shell, &mut self.history);
        offsets::judge_answers(shell, &mut self.history);
        transactions::judge_answers(shell, &mut self.history);
        self.history.violations.is_empty().then_some(found)
    }

    /// The newest five batches of each idempotent producer are duplicates, also after a restart: they are
    /// answered with the offset they have, and nothing is appended.
    fn repeat_duplicates(&mut self, found: &Found) {
        let mut newest: BTreeMap<(TopicIdPartition, i64), Vec<(usize, i64)>> = BTreeMap::new();
        for (partition, batches) in found {
            for batch in batches {
                let header = &batch.header;
                if header.producer_id >= 0
                    && !header.is_transactional()
                    && let Some(number) = batch.number
                {
                    let of_producer = newest.entry((*partition, header.producer_id)).or_default();
                    of_producer.push((number, header.base_offset));
                }
            }
        }
        let Server::Up(shell) = &mut self.server else { return };
        for ((partition, producer_id), batches) in newest {
            for (number, offset) in batches.iter().rev().take(REMEMBERED) {
                let end = self.history.high_watermark(partition);
                let body = message::produce(&self.history, None, &[*number]);
                let reply = shell.ask(9, body, &mut self.history);
                let result =
                    reply.and_then(|reply| message::produce_results(&self.history, &[*number], &reply));
                let same_end = self.history.high_watermark(partition) == end;
                if result.as_deref() != Some(&[(0, *offset)]) || !same_end {
                    let text = format!(
                        "batch {number} of producer {producer_id} at {offset} was repeated after a restart: {result:?}"
                    );
                    self.history.violation(text);
                }
            }
        }
    }
}
