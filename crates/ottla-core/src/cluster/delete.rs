//! DeleteTopics, versions 1 to 6 (by id since version 6, KIP-516).
//!
//! Errors per topic: 3 unknown name, 100 unknown id, 42 an internal topic, both or neither of name and id, or named
//! twice, 73 (before version 3 as 42) where `delete.topic.enable` is off. All topics that pass are deleted in one
//! decision.

use std::collections::BTreeMap;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::delete_topics_response::DeletableTopicResult;
use ottla_protocol::types::{Text, Uuid};

use super::{Topic, records};
use crate::command::Context;
use crate::decision::Reply;
use crate::group;
use crate::shard::{ShardState, Step};

/// First version that names topics by id as well.
const TOPIC_IDS: i16 = 6;

/// Answers DeleteTopics.
pub(crate) fn delete_topics(step: &mut Step<'_>, context: &Context, request: m::DeleteTopicsRequest) {
    let wanted: Vec<(Option<Text>, Uuid)> = if context.version >= TOPIC_IDS {
        request.topics.into_iter().map(|topic| (topic.name, topic.topic_id)).collect()
    } else {
        request.topic_names.into_iter().map(|name| (Some(name), Uuid::ZERO)).collect()
    };
    let mut deleted = BTreeMap::new();
    let mut new_records = Vec::new();
    let mut responses = Vec::with_capacity(wanted.len());
    let disabled = match context.version {
        ..=2 => ErrorCode::InvalidRequest,
        _ => ErrorCode::TopicDeletionDisabled,
    };
    for (name, topic_id) in wanted {
        let found = find(step.state, name.as_ref(), topic_id).and_then(|topic| {
            if deleted.insert(topic.id, topic.name.clone()).is_some() {
                return Err((ErrorCode::InvalidRequest, "the topic is named twice in the request"));
            }
            if !step.state.config.delete_topic_enable {
                return Err((disabled, "delete.topic.enable is off"));
            }
            Ok(topic)
        });
        responses.push(match found {
            Ok(topic) => {
                new_records.push(records::topic_deleted(topic.id));
                DeletableTopicResult {
                    name: Some(topic.name.clone()),
                    topic_id: topic.id,
                    ..Default::default()
                }
            }
            Err((code, message)) => DeletableTopicResult {
                name,
                topic_id,
                error_code: code.code(),
                error_message: Some(message.into()),
                ..Default::default()
            },
        });
    }
    if !new_records.is_empty() {
        for (topic_id, name) in &deleted {
            group::topic_deleted(step, *topic_id, name);
        }
        step.append_control(&new_records);
    }
    let rests_on = if step.has_entries() { step.position() } else { step.state.topics.rests_on() };
    let reply = m::DeleteTopicsResponse { responses, ..Default::default() };
    step.answer(context.token, Reply::DeleteTopics(reply), rests_on);
}

fn find<'a>(
    state: &'a ShardState,
    name: Option<&Text>,
    topic_id: Uuid,
) -> Result<&'a Topic, (ErrorCode, &'static str)> {
    let topic = match (name, topic_id.is_zero()) {
        (Some(_), false) => {
            return Err((ErrorCode::InvalidRequest, "a topic is named by its name or its id, not both"));
        }
        (None, true) => return Err((ErrorCode::InvalidRequest, "a topic is named by its name or its id")),
        (Some(name), true) => state
            .topics
            .by_name(name)
            .ok_or((ErrorCode::UnknownTopicOrPartition, "there is no topic of this name"))?,
        (None, false) => {
            state.topics.by_id(topic_id).ok_or((ErrorCode::UnknownTopicId, "there is no topic of this id"))?
        }
    };
    if topic.is_internal() {
        return Err((ErrorCode::InvalidRequest, "internal topics cannot be deleted"));
    }
    Ok(topic)
}
