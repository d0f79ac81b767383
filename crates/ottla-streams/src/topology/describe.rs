//! A topology as text, for people and for comparing two versions by eye.

use std::fmt::Write as _;

use super::graph::NodeKind;
use super::{InternalKind, Parts, SubTopology};

/// The text.
pub(super) fn describe(parts: &Parts) -> String {
    let mut out = format!("topology {} (fingerprint {:016x})\n", parts.name, parts.fingerprint);
    for sub in &parts.sub_topologies {
        describe_sub(parts, sub, &mut out);
    }
    if !parts.internal.is_empty() {
        out.push_str("internal topics\n");
    }
    for topic in &parts.internal {
        let kind = match &topic.kind {
            InternalKind::Repartition => "repartition".to_owned(),
            InternalKind::Changelog { delete: false, .. } => "changelog, compact".to_owned(),
            InternalKind::Changelog { retention_ms, .. } => {
                format!("changelog, compact,delete after {} ms", retention_ms.unwrap_or(0))
            }
        };
        line(
            &mut out,
            format_args!("  {} ({kind}), partitions as sub-topology {}", topic.name, topic.partitions_from),
        );
    }
    out
}

fn describe_sub(parts: &Parts, sub: &SubTopology, out: &mut String) {
    line(out, format_args!("sub-topology {}", sub.id));
    for place in &sub.nodes {
        let node = &parts.nodes[*place];
        let what = match &node.kind {
            NodeKind::Source { topic, .. } => format!("source {topic}"),
            NodeKind::Sink { topic } => format!("sink {topic}"),
            NodeKind::Operator => format!("{} {}", node.label, node.name),
        };
        let stores: Vec<&str> = node.stores.iter().map(|store| parts.stores[*store].name.as_str()).collect();
        let children: Vec<&str> = parts.children[*place]
            .iter()
            .flatten()
            .map(|(child, _)| match &parts.nodes[*child].kind {
                NodeKind::Sink { topic } => topic.as_str(),
                NodeKind::Source { .. } | NodeKind::Operator => parts.nodes[*child].name.as_str(),
            })
            .collect();
        let mut text = format!("  {what}");
        if !stores.is_empty() {
            text.push_str(&format!(" [{}]", stores.join(", ")));
        }
        if !children.is_empty() {
            text.push_str(&format!(" -> {}", children.join(", ")));
        }
        line(out, format_args!("{text}"));
    }
    for place in &sub.store_places {
        let store = &parts.stores[*place];
        let log = match &store.source_topic {
            Some(topic) => format!("table of {topic}, no changelog"),
            None => format!("changelog {}.{}.changelog", parts.name, store.name),
        };
        line(out, format_args!("  store {} ({}), {log}", store.name, store.format));
    }
    for group in sub.copartitioned.iter().filter(|group| group.len() > 1) {
        let topics: Vec<&str> = group.iter().map(String::as_str).collect();
        line(out, format_args!("  same number of partitions: {}", topics.join(", ")));
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String takes everything");
}
