//! DescribeTransactions and ListTransactions: what tools see (KIP-664, KIP-994, KIP-1152).
//!
//! Place in the walk: handlers that only read. Ids are listed in the order of the table. An answer is never larger
//! than the state: what is asked twice is answered once, and patterns are small and matched in linear time.

use std::collections::BTreeSet;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::describe_transactions_response::{TopicData, TransactionState as Description};
use ottla_protocol::messages::list_transactions_response::TransactionState as Listing;
use ottla_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, ListTransactionsRequest,
    ListTransactionsResponse,
};
use ottla_protocol::types::Text;
use regex::{Regex, RegexBuilder};

use super::state::{State, Transaction};
use crate::command::Context;
use crate::decision::{Position, Reply, ShardTime};
use crate::shard::{ShardState, Step};

/// Longest pattern of ids, and the memory that it may take compiled.
const PATTERN_BYTES_MAX: usize = 4096;
const PATTERN_COMPILED_BYTES_MAX: usize = 1 << 16;

/// Handles DescribeTransactions.
pub(crate) fn describe_transactions(
    step: &mut Step<'_>,
    context: &Context,
    request: DescribeTransactionsRequest,
) {
    let state = &*step.state;
    let rests_on = request.transactional_ids.iter().map(|id| state.transactions.rests_on(id)).max();
    let mut seen = BTreeSet::new();
    let ids = request.transactional_ids.iter().filter(|id| seen.insert(*id));
    let response = DescribeTransactionsResponse {
        transaction_states: ids.map(|id| describe(state, id)).collect(),
        ..DescribeTransactionsResponse::default()
    };
    step.answer(context.token, Reply::DescribeTransactions(response), rests_on.unwrap_or_default());
}

fn describe(state: &ShardState, id: &Text) -> Description {
    let refused = |code: ErrorCode| Description {
        error_code: code.code(),
        transactional_id: id.clone(),
        ..Description::default()
    };
    if id.is_empty() {
        return refused(ErrorCode::InvalidRequest);
    }
    let Some(transaction) = state.transactions.get(id) else {
        return refused(ErrorCode::TransactionalIdNotFound);
    };
    Description {
        transactional_id: id.clone(),
        transaction_state: Text::from_static(transaction.state.name()),
        transaction_timeout_ms: transaction.timeout_ms,
        transaction_start_time_ms: transaction.start_timestamp,
        producer_id: transaction.producer_id,
        producer_epoch: transaction.producer_epoch,
        topics: topics(state, transaction),
        ..Description::default()
    }
}

/// The partitions without a marker, those of deleted topics left out.
fn topics(state: &ShardState, transaction: &Transaction) -> Vec<TopicData> {
    transaction
        .partitions
        .chunk_by(|a, b| a.topic_id == b.topic_id)
        .filter_map(|of_topic| {
            let topic = state.topics.by_id(of_topic.first()?.topic_id)?;
            Some(TopicData {
                topic: topic.name.clone(),
                partitions: of_topic.iter().map(|partition| partition.partition).collect(),
                ..TopicData::default()
            })
        })
        .collect()
}

/// What ListTransactions keeps.
struct Filter {
    states: Option<Vec<State>>,
    producer_ids: BTreeSet<i64>,
    older_than_ms: Option<i64>,
    pattern: Option<Regex>,
}

impl Filter {
    fn keeps(&self, transaction: &Transaction, now: ShardTime) -> bool {
        let age_ms = now.0.saturating_sub(transaction.start_timestamp);
        self.states.as_ref().is_none_or(|states| states.contains(&transaction.state))
            && (self.producer_ids.is_empty() || self.producer_ids.contains(&transaction.producer_id))
            // An id that has no transaction is not older than anything.
            && self.older_than_ms.is_none_or(|limit| transaction.start_timestamp >= 0 && age_ms > limit)
            && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(&transaction.transactional_id))
    }
}

/// The pattern, to be matched with the whole id; `None` filters nothing.
fn compile(pattern: Option<&Text>) -> Result<Option<Regex>, ErrorCode> {
    let Some(pattern) = pattern.filter(|pattern| !pattern.is_empty()) else { return Ok(None) };
    let build = |pattern: &str| {
        RegexBuilder::new(pattern)
            .size_limit(PATTERN_COMPILED_BYTES_MAX)
            .dfa_size_limit(PATTERN_COMPILED_BYTES_MAX)
            .build()
    };
    if pattern.len() > PATTERN_BYTES_MAX || build(pattern).is_err() {
        return Err(ErrorCode::InvalidRegularExpression);
    }
    build(&format!(r"\A(?:{pattern})\z")).map(Some).map_err(|_| ErrorCode::InvalidRegularExpression)
}

/// Handles ListTransactions.
pub(crate) fn list_transactions(step: &mut Step<'_>, context: &Context, request: ListTransactionsRequest) {
    let response = list(step.state, step.now, &request);
    // A list speaks about every id.
    let rests_on: Position = step.position();
    step.answer(context.token, Reply::ListTransactions(response), rests_on);
}

fn list(state: &ShardState, now: ShardTime, request: &ListTransactionsRequest) -> ListTransactionsResponse {
    let pattern = match compile(request.transactional_id_pattern.as_ref()) {
        Ok(pattern) => pattern,
        Err(code) => {
            return ListTransactionsResponse {
                error_code: code.code(),
                ..ListTransactionsResponse::default()
            };
        }
    };
    let (known, unknown): (Vec<&Text>, Vec<&Text>) =
        request.state_filters.iter().partition(|name| State::is_name(name));
    let states = State::ALL.into_iter().filter(|state| known.iter().any(|name| **name == state.name()));
    let filter = Filter {
        states: (!request.state_filters.is_empty()).then(|| states.collect()),
        producer_ids: request.producer_id_filters.iter().copied().collect(),
        older_than_ms: (request.duration_filter >= 0).then_some(request.duration_filter),
        pattern,
    };
    ListTransactionsResponse {
        unknown_state_filters: unknown.into_iter().cloned().collect(),
        transaction_states: state
            .transactions
            .iter()
            .filter(|transaction| filter.keeps(transaction, now))
            .map(|transaction| Listing {
                transactional_id: transaction.transactional_id.clone(),
                producer_id: transaction.producer_id,
                transaction_state: Text::from_static(transaction.state.name()),
                ..Listing::default()
            })
            .collect(),
        ..ListTransactionsResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario 52: a pattern matches the whole id, also when an alternative is shorter; a bad, a huge and an
    /// escaping pattern is refused; none and an empty one filter nothing.
    #[test]
    fn patterns() {
        let matches = |pattern: &str, id: &str| {
            compile(Some(&Text::from(pattern))).expect("valid").expect("filters").is_match(id)
        };
        assert!(matches("order-.", "order-1"));
        assert!(!matches("rder-.", "order-1"));
        assert!(!matches("order", "order-1"));
        assert!(matches("a|ab", "ab"));
        for bad in ["([", "a)(b", "(?P<a", "(a{1000}){1000}", &"a".repeat(PATTERN_BYTES_MAX + 1)] {
            assert_eq!(
                compile(Some(&Text::from(bad))).err(),
                Some(ErrorCode::InvalidRegularExpression),
                "{bad}"
            );
        }
        assert!(matches!(compile(None), Ok(None)));
        assert!(matches!(compile(Some(&Text::EMPTY)), Ok(None)));
    }
}
