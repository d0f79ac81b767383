//! What a group is, who is in it, and how far behind it is.
//!
//! Lag is told in two parts that ask for different remedies: what a `read_committed` reader could have read by now
//! ("behind": the group is slow), and what lies behind an open transaction ("hidden": a producer is slow).

use std::collections::BTreeMap;

use anyhow::Result;
use ottla_client::admin::{GroupDescription, MemberDescription, OffsetSpec};
use ottla_client::{Admin, CommittedOffset, IsolationLevel, TopicPartition};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;
use serde_json::{Value, json};

use crate::output;
use crate::text::count;

/// A partition that the group reads or has read.
struct Read {
    at: TopicPartition,
    /// What it committed; absent when it has not.
    committed: Option<i64>,
    metadata: String,
    /// Absent when the partition does not exist any more.
    bounds: Option<Bounds>,
    /// Who has it now.
    member: Option<Text>,
}

#[derive(Clone, Copy)]
struct Bounds {
    last_stable_offset: i64,
    high_watermark: i64,
}

impl Read {
    /// Records that could have been read by now.
    fn behind(&self) -> Option<i64> {
        Some((self.bounds?.last_stable_offset - self.committed?).max(0))
    }

    /// Records that an open transaction hides.
    fn hidden(&self) -> Option<i64> {
        let bounds = self.bounds?;
        Some((bounds.high_watermark - bounds.last_stable_offset.max(self.committed?)).max(0))
    }

    fn json(&self) -> Value {
        json!({
            "topic": self.at.topic.as_str(),
            "partition": self.at.partition,
            "offset": self.committed,
            "last_stable_offset": self.bounds.map(|bounds| bounds.last_stable_offset),
            "high_watermark": self.bounds.map(|bounds| bounds.high_watermark),
            "lag": self.behind(),
            "behind": self.behind(),
            "hidden": self.hidden(),
            "member": self.member.as_ref().map(|member| member.as_str().to_owned()),
            "metadata": self.metadata,
        })
    }

    fn row(&self) -> Vec<String> {
        let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        vec![
            self.at.topic.to_string(),
            self.at.partition.to_string(),
            number(self.committed),
            number(self.bounds.map(|bounds| bounds.last_stable_offset)),
            number(self.bounds.map(|bounds| bounds.high_watermark)),
            number(self.behind()),
            number(self.hidden()),
            self.member.as_ref().map_or_else(|| "-".to_owned(), Text::to_string),
        ]
    }
}

const READ_HEAD: [&str; 8] =
    ["TOPIC", "PARTITION", "OFFSET", "LAST STABLE", "HIGH WATERMARK", "BEHIND", "HIDDEN", "MEMBER"];

/// Shows offsets alone.
pub(super) async fn offsets(admin: &Admin, group: &Text, json: bool) -> Result<()> {
    let reads = reads(admin, admin.group_offsets(group).await?, &[]).await?;
    if json {
        return reads.iter().try_for_each(|read| output::json(&read.json()));
    }
    if reads.is_empty() {
        return output::line("nothing was committed");
    }
    let rows: Vec<_> = reads.iter().map(Read::row).collect();
    output::table(&READ_HEAD, &rows)
}

/// Shows the group with everything.
pub(super) async fn group(admin: &Admin, group: &Text, json: bool) -> Result<()> {
    let description = admin.describe_group(group).await?;
    // an open transaction of the group itself must not keep us waiting
    let mut committed = admin.offsets_of_groups(std::slice::from_ref(group), false).await;
    let committed = committed.pop_first().expect("one group has one result").1?;
    let reads = reads(admin, committed, &description.members).await?;
    if json {
        return output::json(&description_json(&description, &reads));
    }
    let GroupDescription { group_type, state, assignor, members, .. } = &description;
    let assignor =
        if assignor.as_str().is_empty() { String::new() } else { format!(", assignor {assignor}") };
    let members_count = count(members.len(), "member");
    output::line(&format!("group {group}, {}, {state}{assignor}, {members_count}", group_type.name()))?;
    if !members.is_empty() {
        let rows: Vec<_> = members.iter().map(member_row).collect();
        output::table(&["MEMBER", "CLIENT", "HOST", "INSTANCE", "PARTITIONS"], &rows)?;
    }
    if reads.is_empty() {
        return output::line("nothing was committed");
    }
    output::line("")?;
    let rows: Vec<_> = reads.iter().map(Read::row).collect();
    output::table(&READ_HEAD, &rows)?;
    let (behind, hidden): (i64, i64) =
        (reads.iter().filter_map(Read::behind).sum(), reads.iter().filter_map(Read::hidden).sum());
    output::line(&format!("{} behind, {hidden} hidden by open transactions", count(behind, "record")))
}

fn member_row(member: &MemberDescription) -> Vec<String> {
    let assigned = member.assignment.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    vec![
        member.member_id.to_string(),
        member.client_id.to_string(),
        member.client_host.to_string(),
        member.group_instance_id.as_ref().map_or_else(|| "-".to_owned(), Text::to_string),
        if assigned.is_empty() { "-".to_owned() } else { assigned },
    ]
}

fn description_json(group: &GroupDescription, reads: &[Read]) -> Value {
    let places = |places: &[TopicPartition]| places.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "group": group.group_id.as_str(),
        "type": group.group_type.name(),
        "state": group.state.as_str(),
        "protocol_type": group.protocol_type.as_str(),
        "assignor": group.assignor.as_str(),
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "members": group.members.iter().map(|member| json!({
            "member": member.member_id.as_str(),
            "instance": member.group_instance_id.as_ref().map(|id| id.as_str().to_owned()),
            "client_id": member.client_id.as_str(),
            "host": member.client_host.as_str(),
            "member_epoch": member.member_epoch,
            "assignment": places(&member.assignment),
            "target": places(&member.target),
            "subscribed_topics": member.subscribed_topics.iter().map(Text::to_string).collect::<Vec<_>>(),
            "subscribed_regex": member.subscribed_regex.as_ref().map(|regex| regex.as_str().to_owned()),
        })).collect::<Vec<_>>(),
        "partitions": reads.iter().map(Read::json).collect::<Vec<_>>(),
        "behind": reads.iter().filter_map(Read::behind).sum::<i64>(),
        "hidden": reads.iter().filter_map(Read::hidden).sum::<i64>(),
    })
}

/// What was committed and what members have, by partition, with the partitions' bounds.
async fn reads(
    admin: &Admin,
    committed: Vec<CommittedOffset>,
    members: &[MemberDescription],
) -> Result<Vec<Read>> {
    let mut owners: BTreeMap<TopicPartition, Text> = BTreeMap::new();
    for member in members {
        owners.extend(member.assignment.iter().map(|at| (at.clone(), member.member_id.clone())));
    }
    let mut reads: BTreeMap<TopicPartition, Read> = BTreeMap::new();
    let new = |at: &TopicPartition| Read {
        at: at.clone(),
        committed: None,
        metadata: String::new(),
        bounds: None,
        member: owners.get(at).cloned(),
    };
    for offset in committed {
        let at = &offset.topic_partition;
        let read = reads.entry(at.clone()).or_insert_with(|| new(at));
        (read.committed, read.metadata) = (offset.offset, offset.metadata.to_string());
    }
    for at in owners.keys() {
        reads.entry(at.clone()).or_insert_with(|| new(at));
    }
    let ends: BTreeMap<_, _> = reads.keys().map(|at| (at.clone(), OffsetSpec::Latest)).collect();
    let mut stable = admin.list_offsets(&ends, IsolationLevel::ReadCommitted).await;
    let mut all = admin.list_offsets(&ends, IsolationLevel::ReadUncommitted).await;
    for (at, read) in &mut reads {
        let (Some(stable), Some(all)) = (stable.remove(at), all.remove(at)) else { continue };
        match (stable, all) {
            (Ok(stable), Ok(all)) => {
                let offset = |found: Option<ottla_client::OffsetAndTimestamp>| found.map_or(0, |f| f.offset);
                let (last_stable_offset, high_watermark) = (offset(stable), offset(all));
                read.bounds = Some(Bounds { last_stable_offset, high_watermark });
            }
            (Err(error), _) | (_, Err(error)) if !is_gone(&error) => return Err(error.into()),
            _ => {} // the topic was deleted: what was committed is shown all the same
        }
    }
    Ok(reads.into_values().collect())
}

fn is_gone(error: &ottla_client::admin::AdminError) -> bool {
    use ottla_client::ClusterError;
    use ottla_client::admin::AdminError;
    matches!(error, AdminError::Cluster(ClusterError::NoSuchTopic { .. }))
        || error.code() == Some(ErrorCode::UnknownTopicOrPartition)
}
