//! Transactions: whole or not at all, and as their producer was told.

use std::collections::BTreeMap;

use ottla_core::command::CommandBody;
use ottla_core::decision::Reply;
use ottla_protocol::messages as m;
use ottla_protocol::types::{Text, TopicIdPartition};

use super::offsets::Commits;
use super::{Fate, Found};
use crate::history::History;
use crate::shell::Shell;

/// Judges every transaction by the fates of its batches and offset commits.
pub(super) fn judge(
    found: &Found,
    fates: &BTreeMap<TopicIdPartition, Vec<Fate>>,
    commits: &Commits,
    history: &mut History,
) {
    let mut by_number: BTreeMap<usize, Fate> = BTreeMap::new();
    for (partition, batches) in found {
        for (batch, fate) in batches.iter().zip(&fates[partition]) {
            if let Some(number) = batch.number {
                by_number.insert(number, *fate);
            }
        }
    }
    let mut violations = Vec::new();
    for (number, transaction) in history.transactions.iter().enumerate() {
        let batches =
            transaction.batches.iter().map(|batch| (format!("batch {batch}"), by_number.get(batch)));
        let offsets = transaction
            .commits
            .iter()
            .map(|commit| (format!("offset commit {commit}"), commits.fates.get(commit)));
        let parts: Vec<(String, Fate)> =
            batches.chain(offsets).filter_map(|(name, fate)| Some((name, *fate?))).collect();
        let committed = parts.iter().filter(|(_, fate)| *fate == Fate::Committed).count();
        let id = &transaction.transactional_id;
        let is_torn = committed != 0 && committed != parts.len();
        if is_torn {
            violations.push(format!("transaction {number} of {id} is torn: {parts:?}"));
        }
        if parts.iter().any(|(_, fate)| *fate == Fate::Open) {
            violations.push(format!("transaction {number} of {id} hangs: {parts:?}"));
        }
        if transaction.commit_acked && committed != parts.len() {
            violations.push(format!("transaction {number} of {id} was committed and is not: {parts:?}"));
        }
        if committed != 0 && transaction.abort_acked {
            violations.push(format!("transaction {number} of {id} was aborted and is committed: {parts:?}"));
        }
        if committed != 0 && !transaction.commit_sent {
            violations.push(format!("nobody committed transaction {number} of {id}: {parts:?}"));
        }
    }
    violations.into_iter().for_each(|text| history.violation(text));
}

/// At rest the coordinator knows of no transaction that has not ended.
pub(crate) fn judge_answers(shell: &mut Shell, history: &mut History) {
    let states = ["Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"];
    let body = CommandBody::ListTransactions(m::ListTransactionsRequest {
        state_filters: states.into_iter().map(Text::from_static).collect(),
        ..Default::default()
    });
    match shell.ask(1, body, history) {
        Some(Reply::ListTransactions(response)) if response.error_code == 0 => {
            if !response.transaction_states.is_empty() {
                history.violation(format!("transactions hang: {:?}", response.transaction_states));
            }
        }
        other => history.violation(format!("ListTransactions got {other:?}")),
    }
}
