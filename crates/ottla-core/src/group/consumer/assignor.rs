//! Who shall have what: the assignors that run in the coordinator.
//!
//! Place in the walk: when a group's epoch has passed its target's, the heartbeat asks [`assign`] for a new
//! target and writes what changed. Pure: the same members, topics and old target give the same new target.
//!
//! - `uniform` ([`uniform`]): as even as the subscriptions allow, and as little moved as that allows.
//! - `range` ([`range`]): per topic, neighbouring partitions to members in the order of their ids, so that
//!   partitions of the same number of topics with the same subscribers meet in one member.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::{Text, Uuid};

use super::assignment::Assignment;

mod range;
#[cfg(test)]
mod tests;
mod uniform;

/// Names of the assignors, the default one first.
pub(super) const ASSIGNORS: [&str; 2] = ["uniform", "range"];

/// What an assignor is told about a member.
#[derive(Clone, Debug, Default)]
pub(super) struct Subscriber {
    pub(super) member_id: Text,
    pub(super) instance_id: Option<Text>,
    /// Topics that exist and that it subscribes to.
    pub(super) topics: BTreeSet<Uuid>,
    /// What the last target gave it.
    pub(super) previous: Assignment,
}

/// The target of every subscriber, in the order of `subscribers`. `topics` names all of their topics with their
/// number of partitions. Any name but those of [`ASSIGNORS`] is taken for the default.
pub(super) fn assign(
    assignor: &str,
    subscribers: &[Subscriber],
    topics: &BTreeMap<Uuid, i32>,
) -> Vec<Assignment> {
    match assignor {
        "range" => range::assign(subscribers, topics),
        _ => uniform::assign(subscribers, topics),
    }
}
