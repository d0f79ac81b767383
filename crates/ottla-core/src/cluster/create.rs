//! CreateTopics, versions 2 to 7, and topics that are made because a client asked for them (KIP-4, KIP-464,
//! KIP-525).
//!
//! Errors per topic: 17 name, 36 exists, 37 partitions, 38 replication factor, 39 assignment, 40 settings, 42
//! contradictory request, 44 more than the limits allow. All topics of a request that pass become one decision.

use std::collections::BTreeSet;
use std::sync::Arc;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use ottla_protocol::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use ottla_protocol::types::{Text, Uuid};

use super::config::{ConfigError, TopicConfig};
use super::{Topic, records, validate_name};
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::partition::Role;
use crate::shard::{ShardState, Step};

/// Kafka's name of the control log; no topic may be taken for it.
const CLUSTER_METADATA: &str = "__cluster_metadata";

/// Code and text of a refusal.
type Refused = (ErrorCode, String);

/// Topics that are about to be created in one request: what they use up together.
#[derive(Default)]
struct Planned {
    topics: Vec<Topic>,
    partitions: usize,
}

/// Answers CreateTopics.
pub(crate) fn create_topics(step: &mut Step<'_>, context: &Context, request: m::CreateTopicsRequest) {
    let mut names = BTreeSet::new();
    let duplicates: BTreeSet<Text> = request
        .topics
        .iter()
        .filter(|topic| !names.insert(topic.name.clone()))
        .map(|topic| topic.name.clone())
        .collect();
    let mut answered = BTreeSet::new();
    let mut planned = Planned::default();
    let mut results = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let is_duplicate = duplicates.contains(&topic.name);
        if is_duplicate && !answered.insert(topic.name.clone()) {
            continue;
        }
        let plan = if is_duplicate {
            Err((ErrorCode::InvalidRequest, "the topic is named twice in the request".into()))
        } else {
            plan_topic(step.state, topic, &planned)
        };
        results.push(match plan {
            Ok(topic) => {
                let result = created(step.state, &topic, request.validate_only);
                planned.partitions += topic.partition_count as usize;
                planned.topics.push(topic);
                result
            }
            Err((code, message)) => CreatableTopicResult {
                name: topic.name.clone(),
                error_code: code.code(),
                error_message: Some(message.into()),
                ..Default::default()
            },
        });
    }
    if !request.validate_only {
        append(step, &planned.topics);
    }
    let rests_on = if step.has_entries() { step.position() } else { step.state.topics.rests_on() };
    let reply = m::CreateTopicsResponse { topics: results, ..Default::default() };
    step.answer(context.token, Reply::CreateTopics(reply), rests_on);
}

/// Creates topics that Metadata was asked for, with the default number of partitions. Names that no topic may
/// have, or for which there is no room, are passed over.
pub(crate) fn auto_create_topics(step: &mut Step<'_>, context: &Context, names: Vec<Text>) {
    let mut planned = Planned::default();
    if step.state.config.auto_create_topics_enable {
        for name in names.into_iter().collect::<BTreeSet<_>>() {
            let topic =
                CreatableTopic { name, num_partitions: -1, replication_factor: -1, ..Default::default() };
            if let Ok(topic) = plan_topic(step.state, &topic, &planned) {
                planned.partitions += topic.partition_count as usize;
                planned.topics.push(topic);
            }
        }
        append(step, &planned.topics);
    }
    let rests_on = if step.has_entries() { step.position() } else { step.state.topics.rests_on() };
    step.answer(context.token, Reply::Done, rests_on);
}

fn append(step: &mut Step<'_>, topics: &[Topic]) {
    if !topics.is_empty() {
        let new_records: Vec<_> = topics.iter().map(records::topic).collect();
        step.append_control(&new_records);
    }
}

/// The topic as it would be created.
fn plan_topic(state: &ShardState, topic: &CreatableTopic, planned: &Planned) -> Result<Topic, Refused> {
    validate_name(&topic.name).map_err(|reason| (ErrorCode::InvalidTopicException, reason.into()))?;
    if *topic.name == *CLUSTER_METADATA {
        let reason = "topic __cluster_metadata is the log of the cluster's metadata";
        return Err((ErrorCode::InvalidRequest, reason.into()));
    }
    if state.topics.by_name(&topic.name).is_some() {
        return Err((ErrorCode::TopicAlreadyExists, format!("topic {} exists", topic.name)));
    }
    let in_request = || {
        let key = super::names::collision_key(&topic.name)?;
        planned.topics.iter().find(|other| super::names::collision_key(&other.name).as_ref() == Some(&key))
    };
    let other = state.topics.collides_with(&topic.name).or_else(|| in_request().map(|other| &other.name));
    if let Some(other) = other {
        let reason =
            format!("topic {} differs from the existing topic {other} only in '.' and '_'", topic.name);
        return Err((ErrorCode::InvalidTopicException, reason));
    }
    let partition_count = partition_count(state, topic)?;
    let config = topic_config(state, topic).map_err(|error| (ErrorCode::InvalidConfig, error.to_string()))?;
    let limits = &state.config.limits;
    if state.topics.len() + planned.topics.len() >= limits.topics_max
        || planned.topics.len() >= limits.topics_per_request_max
        || partition_count > limits.topic_partitions_max
        || state.partitions.partition_count() + planned.partitions + partition_count as usize
            > limits.partitions_max
    {
        return Err((
            ErrorCode::PolicyViolation,
            "more topics or partitions than the broker's limits allow".into(),
        ));
    }
    Ok(Topic {
        name: topic.name.detached(),
        id: new_topic_id(state, planned.topics.len()),
        partition_count,
        role: Role::Data,
        // Leader epochs of a topic begin at 0, whatever the shard's epoch.
        base_leader_epoch: state.shard_epoch.saturating_neg(),
        config: Arc::new(config),
        last_position: Position::default(),
    })
}

fn partition_count(state: &ShardState, topic: &CreatableTopic) -> Result<i32, Refused> {
    if !topic.assignments.is_empty() {
        if topic.replication_factor != -1 || topic.num_partitions != -1 {
            let reason = "with a manual assignment, the partition count and the replication factor are -1";
            return Err((ErrorCode::InvalidRequest, reason.into()));
        }
        return assigned_partitions(state.config.node_id, &topic.assignments)
            .map_err(|reason| (ErrorCode::InvalidReplicaAssignment, reason));
    }
    match topic.replication_factor {
        -1 | 1 => {}
        ..=0 => {
            let reason = "the replication factor is positive, or -1 for the default";
            return Err((ErrorCode::InvalidReplicationFactor, reason.into()));
        }
        wanted => {
            let reason = format!("replication factor {wanted}: there is one broker");
            return Err((ErrorCode::InvalidReplicationFactor, reason));
        }
    }
    match topic.num_partitions {
        -1 => Ok(state.config.num_partitions),
        count @ 1.. => Ok(count),
        _ => Err((
            ErrorCode::InvalidPartitions,
            "the partition count is positive, or -1 for the default".into(),
        )),
    }
}

/// The count of a manual assignment: partitions 0 to n-1, each on this node alone.
fn assigned_partitions(node_id: i32, assignments: &[CreatableReplicaAssignment]) -> Result<i32, String> {
    let mut partitions = BTreeSet::new();
    for assignment in assignments {
        let partition = assignment.partition_index;
        if !partitions.insert(partition) {
            return Err(format!("partition {partition} is assigned twice"));
        }
        super::check_replicas(node_id, &assignment.broker_ids)
            .map_err(|reason| format!("partition {partition}: {reason}"))?;
    }
    let count = i32::try_from(partitions.len()).map_err(|_| "too many partitions".to_string())?;
    if partitions.first() != Some(&0) || partitions.last() != Some(&(count - 1)) {
        return Err("assigned partitions are numbered from 0, without a gap".into());
    }
    Ok(count)
}

fn topic_config(state: &ShardState, topic: &CreatableTopic) -> Result<TopicConfig, ConfigError> {
    let mut overrides = Vec::with_capacity(topic.configs.len());
    for config in &topic.configs {
        let value = config.value.clone().ok_or_else(|| ConfigError::Null { name: config.name.clone() })?;
        overrides.push((config.name.as_str(), value));
    }
    TopicConfig::new(overrides, state.config.limits.config_value_bytes_max, &state.config.kept)
}

fn created(state: &ShardState, topic: &Topic, validate_only: bool) -> CreatableTopicResult {
    let settings = state.cluster.sources().of_topic(&topic.config);
    let configs = settings.into_iter().map(|setting| CreatableTopicConfigs {
        name: Text::from_static(setting.definition.name),
        value: setting.value.map(Text::from),
        config_source: setting.source as i8,
        ..Default::default()
    });
    CreatableTopicResult {
        name: topic.name.clone(),
        topic_id: if validate_only { Uuid::ZERO } else { topic.id },
        num_partitions: topic.partition_count,
        replication_factor: Topic::REPLICATION_FACTOR,
        configs: Some(configs.collect()),
        ..Default::default()
    }
}

/// An id that no topic of this cluster ever had: the offset of the topic's control record, which is never given
/// twice, through a bijection that the cluster's random id chooses. Ids that Kafka keeps for itself are avoided,
/// and those that print with a '-' in front, as Kafka's tools take that for a flag.
fn new_topic_id(state: &ShardState, index: usize) -> Uuid {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let slot = state.partitions.slot(super::CONTROL_PARTITION).expect("the control log is always there");
    let offset = state.partitions.get(slot).log_end_offset() as u128 + index as u128;
    let key = u128::from_be_bytes(state.cluster.cluster_id().0);
    for attempt in 0..1u128 << 16 {
        let mut id = ((offset << 16) | attempt) ^ key;
        for _ in 0..3 {
            id = (id ^ (id >> 67)).wrapping_mul(ODD);
        }
        let id = Uuid((id ^ (id >> 61)).to_be_bytes());
        let is_reserved = u128::from_be_bytes(id.0) <= u128::from(u8::MAX) || id == super::CONTROL_TOPIC_ID;
        let prints_as_flag = id.0[0] >> 2 == 62;
        if !is_reserved && !prints_as_flag && state.topics.by_id(id).is_none() {
            return id;
        }
    }
    unreachable!("one id in sixty is avoided, not all of 65,536")
}
