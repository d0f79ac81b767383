//! The leader's share: everybody's subscription, the topics they name, and who gets what.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ottla_protocol::messages::JoinGroupResponse;
use ottla_protocol::types::Text;

use super::super::subscription;
use super::super::topics::Subscription;
use super::{Protocol, Trouble};
use crate::consumer::assignor::{self, Assignor, MemberSubscription, Topics};

impl Protocol {
    /// Shares the partitions of all topics of the group out.
    pub(super) async fn assign(
        &mut self,
        assignor: &Assignor,
        joined: &JoinGroupResponse,
    ) -> Result<Vec<(Text, Bytes)>, Trouble> {
        let members: Vec<MemberSubscription> = joined
            .members
            .iter()
            .map(|member| {
                let read = subscription::decode(&member.metadata);
                if read.is_none() {
                    tracing::warn!(member_id = %member.member_id, "subscription cannot be read; it gets nothing");
                }
                MemberSubscription {
                    member_id: member.member_id.detached(),
                    group_instance_id: member.group_instance_id.as_ref().map(Text::detached),
                    ..read.unwrap_or_default()
                }
            })
            .collect();
        let names: BTreeSet<Text> = members.iter().flat_map(|member| member.topics.iter().cloned()).collect();
        let names: Vec<Text> = names.into_iter().collect();
        self.member.cluster.refresh_topics(&names).await.map_err(|error| match error {
            error if error.is_retriable() => Trouble::Again,
            error => Trouble::Fatal(error.into()),
        })?;
        let topics = self.known_topics(&names);
        self.snapshot = Some(names.into_iter().map(|name| (name.clone(), count(&topics, &name))).collect());
        let assignments = assignor::assign(assignor, &topics, &members);
        let encode =
            |(member, partitions): (Text, Vec<_>)| (member, subscription::encode_assignment(&partitions));
        Ok(assignments.into_iter().map(encode).collect())
    }

    fn known_topics(&self, names: &[Text]) -> Topics {
        let known = names.iter().filter_map(|name| self.member.cluster.cached_topic(name));
        known.map(|topic| (topic.name.clone(), topic.racks.clone())).collect()
    }

    /// Whether some topic of the group, or of ours, did not exist.
    pub(super) fn misses_topics(&self) -> bool {
        match &self.snapshot {
            Some(snapshot) => snapshot.values().any(|count| *count == 0),
            None => false,
        }
    }

    /// Whether a rebalance is due: a pattern matches other topics than it did, or, for the leader, the number of
    /// partitions of a topic has changed. When the cluster cannot be asked, it is asked later.
    pub(super) async fn topics_changed(&mut self) -> bool {
        if matches!(self.member.subscription, Subscription::Pattern(..)) {
            match self.member.subscription.resolve(&self.member.cluster).await {
                Ok(names) if names != self.joined_topics => return true,
                Ok(_) | Err(_) => {}
            }
        }
        let Some(snapshot) = self.snapshot.clone() else { return false };
        let names: Vec<Text> = snapshot.keys().cloned().collect();
        if self.member.cluster.refresh_topics(&names).await.is_err() {
            return false;
        }
        let topics = self.known_topics(&names);
        let now: BTreeMap<Text, usize> =
            names.into_iter().map(|name| (name.clone(), count(&topics, &name))).collect();
        now != snapshot
    }
}

fn count(topics: &Topics, name: &Text) -> usize {
    topics.get(name).map_or(0, Vec::len)
}
