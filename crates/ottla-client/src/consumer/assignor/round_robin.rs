//! Round robin: all partitions of all topics in order, to the members in order, in turn; who does not subscribe
//! to the topic is passed over.

use super::{Assignments, MemberSubscription, Topics, nothing, partitions_of};

pub(super) fn assign(topics: &Topics, members: &[MemberSubscription]) -> Assignments {
    let mut ordered: Vec<&MemberSubscription> = members.iter().collect();
    ordered.sort_by_key(|member| member.order());
    let mut assignments = nothing(members);
    let mut turn = ordered.iter().cycle();
    for at in partitions_of(topics, topics.keys()) {
        // every topic in here has a subscriber, so this ends
        let member = turn.by_ref().take(ordered.len()).find(|member| member.topics.contains(&at.topic));
        if let Some(member) = member {
            assignments.entry(member.member_id.clone()).or_default().push(at);
        }
    }
    assignments
}
