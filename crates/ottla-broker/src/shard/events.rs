//! What the core says has happened: one line of the log each, and a count.
//!
//! Place: the owner tells it with each decision; most decisions have nothing to tell. Lines about what strangers can
//! bring about at will are of level debug.

use ottla_core::command::{Command, CommandBody};
use ottla_core::event::Event;

use crate::metrics::OwnerCells;

/// Writes an event down.
pub fn tell(event: &Event, cells: &OwnerCells) {
    match event {
        Event::TransactionTimedOut { transactional_id, producer_id, producer_epoch } => {
            cells.transactions_timed_out.add(1);
            tracing::warn!(
                %transactional_id,
                producer_id,
                producer_epoch,
                "a transaction was open for longer than its timeout and was aborted"
            );
        }
        Event::ProducerFenced { transactional_id, producer_id, producer_epoch, aborted: true } => {
            cells.producers_fenced.add(1);
            tracing::info!(
                %transactional_id,
                producer_id,
                producer_epoch,
                "a new producer took over; the open transaction of the former was aborted"
            );
        }
        Event::ProducerFenced { transactional_id, producer_id, producer_epoch, aborted: false } => {
            cells.producers_fenced.add(1);
            tracing::debug!(%transactional_id, producer_id, producer_epoch, "a new producer took over");
        }
        Event::Rebalanced { group, kind, generation, members } => {
            let count =
                if *kind == "classic" { &cells.classic_rebalances } else { &cells.consumer_rebalances };
            count.add(1);
            tracing::debug!(%group, kind, generation, members, "a group was rebalanced");
        }
    }
}

/// Names that one line holds.
const NAMES_MAX: usize = 10;

/// Writes down who changed topics, settings or features. Settings are named; their values are not told.
pub fn tell_change(command: &Command) {
    let (what, names): (&str, Vec<&str>) = match &command.body {
        CommandBody::CreateTopics(request) => {
            ("topics created", request.topics.iter().map(|topic| &*topic.name).collect())
        }
        CommandBody::AutoCreateTopics(names) => {
            ("topics created by being asked for", names.iter().map(|name| &**name).collect())
        }
        CommandBody::DeleteTopics(request) => {
            let by_name = request.topic_names.iter().map(|name| &**name);
            let either = request.topics.iter().map(|topic| topic.name.as_deref().unwrap_or("(by id)"));
            ("topics deleted", by_name.chain(either).collect())
        }
        CommandBody::CreatePartitions(request) => {
            ("partitions added", request.topics.iter().map(|topic| &*topic.name).collect())
        }
        CommandBody::IncrementalAlterConfigs(request) => {
            let resources = request.resources.iter();
            let named = resources.flat_map(|of| {
                std::iter::once(&*of.resource_name).chain(of.configs.iter().map(|config| &*config.name))
            });
            ("settings changed", named.collect())
        }
        CommandBody::AlterConfigs(request) => {
            let resources = request.resources.iter();
            let named = resources.flat_map(|of| {
                std::iter::once(&*of.resource_name).chain(of.configs.iter().map(|config| &*config.name))
            });
            ("settings replaced", named.collect())
        }
        CommandBody::UpdateFeatures(_) => ("features changed", Vec::new()),
        _ => return,
    };
    let (count, names) = (names.len(), names.into_iter().take(NAMES_MAX).collect::<Vec<_>>());
    let (client_id, host) = (&command.context.client_id, &command.context.client_host);
    tracing::info!(%client_id, %host, ?names, count, what, "the cluster was changed");
}
