//! What the core says has happened: one line of the log each, and a count.
//!
//! Place: the owner tells it with each decision; most decisions have nothing to tell. Lines about what strangers can
//! bring about at will are of level debug. What clients named is recorded as text and never as `Display`: text is
//! escaped on its way into the log, so that no name can begin a line of its own.

use ottla_core::command::{Command, CommandBody};
use ottla_core::event::Event;

use crate::metrics::OwnerCells;

/// Writes an event down.
pub fn tell(event: &Event, cells: &OwnerCells) {
    match event {
        Event::TransactionTimedOut { transactional_id, producer_id, producer_epoch } => {
            cells.transactions_timed_out.add(1);
            tracing::warn!(
                transactional_id = transactional_id.as_str(),
                producer_id,
                producer_epoch,
                "a transaction was open for longer than its timeout and was aborted"
            );
        }
        Event::ProducerFenced { transactional_id, producer_id, producer_epoch, aborted: true } => {
            cells.producers_fenced.add(1);
            tracing::info!(
                transactional_id = transactional_id.as_str(),
                producer_id,
                producer_epoch,
                "a new producer took over; the open transaction of the former was aborted"
            );
        }
        Event::ProducerFenced { transactional_id, producer_id, producer_epoch, aborted: false } => {
            cells.producers_fenced.add(1);
            let transactional_id = transactional_id.as_str();
            tracing::debug!(transactional_id, producer_id, producer_epoch, "a new producer took over");
        }
        Event::Rebalanced { group, kind, generation, members } => {
            let count =
                if *kind == "classic" { &cells.classic_rebalances } else { &cells.consumer_rebalances };
            count.add(1);
            tracing::debug!(group = group.as_str(), kind, generation, members, "a group was rebalanced");
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
    let (client_id, host) = (command.context.client_id.as_str(), command.context.client_host.as_str());
    tracing::info!(client_id, host, ?names, count, what, "the cluster was changed");
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write};
    use std::sync::{Arc, Mutex};

    use ottla_protocol::messages as m;
    use ottla_protocol::types::Text;
    use tracing::field::{Field, Visit};
    use tracing::span;

    use super::*;
    use crate::metrics::Metrics;

    /// Writes the fields of each line as the log does.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<String>>);

    impl tracing::Subscriber for Lines {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut self.clone());
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    impl Visit for Lines {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let mut lines = self.0.lock().expect("nobody panics");
            write!(lines, "{}={value:?} ", field.name()).expect("writing to a string does not fail");
        }
    }

    /// Proves: names that clients choose cannot begin a line of the log.
    #[test]
    fn names_are_escaped() {
        let (lines, bad) = (Lines::default(), Text::from_static("x\nERROR the disk is gone\x1b[0m"));
        let metrics = Metrics::new(std::time::Duration::ZERO);
        let (producer_id, producer_epoch) = (1, 2);
        let fenced = |aborted| Event::ProducerFenced {
            transactional_id: bad.clone(),
            producer_id,
            producer_epoch,
            aborted,
        };
        let events = [
            Event::TransactionTimedOut { transactional_id: bad.clone(), producer_id, producer_epoch },
            fenced(true),
            fenced(false),
            Event::Rebalanced { group: bad.clone(), kind: "classic", generation: 1, members: 1 },
        ];
        let mut command = Command {
            context: Default::default(),
            body: CommandBody::DeleteTopics(m::DeleteTopicsRequest {
                topic_names: vec![bad.clone()],
                ..Default::default()
            }),
        };
        command.context.client_id = bad.clone();
        tracing::subscriber::with_default(lines.clone(), || {
            events.iter().for_each(|event| tell(event, &metrics.owner));
            tell_change(&command);
        });
        let lines = lines.0.lock().expect("nobody panics");
        assert_eq!(lines.matches("the disk is gone").count(), 6, "{lines}");
        assert!(!lines.contains(['\n', '\x1b']), "{lines}");
    }
}
