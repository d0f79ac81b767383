//! What is answered when a reload takes longer than a request may wait, or when the disk has no room.
//!
//! A Produce whose outcome is unknown gets NOT_ENOUGH_REPLICAS_AFTER_APPEND (20), one that was not attempted
//! NOT_ENOUGH_REPLICAS (19): every client retries both. Coordinators answer COORDINATOR_LOAD_IN_PROGRESS (14)
//! while nothing happened and NOT_COORDINATOR (16) when it may have; admin calls REQUEST_TIMED_OUT (7).

use ottla_core::command::{Command, CommandBody, ProduceCommand};
use ottla_core::decision::Reply;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::offset_fetch_response::OffsetFetchResponseGroup;
use ottla_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use ottla_protocol::types::Text;

/// The codes of an answer, by who asks.
struct Codes {
    produce: ErrorCode,
    coordinator: ErrorCode,
    admin: ErrorCode,
}

/// The answer to a command that cannot be decided now; `attempted` says that it may have happened.
pub fn unavailable(command: &Command, attempted: bool) -> Reply {
    let codes = if attempted {
        Codes {
            produce: ErrorCode::NotEnoughReplicasAfterAppend,
            coordinator: ErrorCode::NotCoordinator,
            admin: ErrorCode::RequestTimedOut,
        }
    } else {
        Codes {
            produce: ErrorCode::NotEnoughReplicas,
            coordinator: ErrorCode::CoordinatorLoadInProgress,
            admin: ErrorCode::RequestTimedOut,
        }
    };
    refusal(command, &codes)
}

/// The answer to a command for which the disk has no room: KAFKA_STORAGE_ERROR (56), COORDINATOR_NOT_AVAILABLE (15) or
/// REQUEST_TIMED_OUT (7), all of which clients retry. Nothing of it has happened.
pub fn no_room(command: &Command) -> Reply {
    let codes = Codes {
        produce: ErrorCode::KafkaStorageError,
        coordinator: ErrorCode::CoordinatorNotAvailable,
        admin: ErrorCode::RequestTimedOut,
    };
    refusal(command, &codes)
}

fn refusal(command: &Command, codes: &Codes) -> Reply {
    let code = codes.coordinator.code();
    match &command.body {
        CommandBody::Produce(produce) => produce_reply(produce, codes.produce),
        CommandBody::InitProducerId(_) => Reply::InitProducerId(m::InitProducerIdResponse {
            error_code: code,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        }),
        CommandBody::AddPartitionsToTxn(request) => add_partitions(request, command.context.version, code),
        CommandBody::AddOffsetsToTxn(_) => {
            Reply::AddOffsetsToTxn(m::AddOffsetsToTxnResponse { error_code: code, ..Default::default() })
        }
        CommandBody::EndTxn(_) => Reply::EndTxn(m::EndTxnResponse { error_code: code, ..Default::default() }),
        CommandBody::TxnOffsetCommit(request) => txn_offset_commit(request, code),
        CommandBody::OffsetCommit(request) => offset_commit(request, code),
        CommandBody::OffsetFetch(request) => offset_fetch(request, code),
        CommandBody::JoinGroup(_)
        | CommandBody::SyncGroup(_)
        | CommandBody::Heartbeat(_)
        | CommandBody::LeaveGroup(_)
        | CommandBody::DescribeGroups(_)
        | CommandBody::ListGroups(_)
        | CommandBody::DeleteGroups(_)
        | CommandBody::OffsetDelete(_)
        | CommandBody::ConsumerGroupHeartbeat(_)
        | CommandBody::ConsumerGroupDescribe(_) => groups(&command.body, command.context.version, code),
        CommandBody::DescribeTransactions(request) => describe_transactions(request, code),
        CommandBody::ListTransactions(_) => {
            Reply::ListTransactions(m::ListTransactionsResponse { error_code: code, ..Default::default() })
        }
        CommandBody::WriteTxnMarkers(_)
        | CommandBody::DescribeProducers(_)
        | CommandBody::CreateTopics(_)
        | CommandBody::DeleteTopics(_)
        | CommandBody::DeleteRecords(_)
        | CommandBody::IncrementalAlterConfigs(_)
        | CommandBody::AlterConfigs(_)
        | CommandBody::CreatePartitions(_)
        | CommandBody::UpdateFeatures(_) => admin(&command.body, codes.admin),
        CommandBody::AutoCreateTopics(_)
        | CommandBody::Bootstrap { .. }
        | CommandBody::Cleaned(_)
        | CommandBody::MoveLogStarts(_)
        | CommandBody::Tick
        | CommandBody::ConnectionClosed(_) => Reply::Done,
    }
}

fn produce_reply(produce: &ProduceCommand, code: ErrorCode) -> Reply {
    if produce.acks == 0 {
        return Reply::Close("nothing can be appended now, and acks=0 has no answer");
    }
    let code = code.code();
    let responses = produce.topics.iter().map(|topic| TopicProduceResponse {
        name: topic.name.clone(),
        topic_id: topic.topic_id,
        partition_responses: topic
            .partitions
            .iter()
            .map(|partition| PartitionProduceResponse {
                index: partition.partition,
                error_code: code,
                base_offset: -1,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    });
    Reply::Produce(m::ProduceResponse { responses: responses.collect(), ..Default::default() })
}

fn add_partitions(request: &m::AddPartitionsToTxnRequest, version: i16, code: i16) -> Reply {
    use m::add_partitions_to_txn_response::{
        AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
    };
    let topic =
        |topic: &m::add_partitions_to_txn_request::AddPartitionsToTxnTopic| AddPartitionsToTxnTopicResult {
            name: topic.name.clone(),
            results_by_partition: topic
                .partitions
                .iter()
                .map(|partition| AddPartitionsToTxnPartitionResult {
                    partition_index: *partition,
                    partition_error_code: code,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
    let mut response = m::AddPartitionsToTxnResponse::default();
    if version < 4 {
        response.results_by_topic_v3_and_below = request.v3_and_below_topics.iter().map(topic).collect();
    } else {
        response.results_by_transaction = request
            .transactions
            .iter()
            .map(|transaction| AddPartitionsToTxnResult {
                transactional_id: transaction.transactional_id.clone(),
                topic_results: transaction.topics.iter().map(topic).collect(),
                ..Default::default()
            })
            .collect();
    }
    Reply::AddPartitionsToTxn(response)
}

fn txn_offset_commit(request: &m::TxnOffsetCommitRequest, code: i16) -> Reply {
    use m::txn_offset_commit_response::{TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic};
    let topics = request.topics.iter().map(|topic| TxnOffsetCommitResponseTopic {
        name: topic.name.clone(),
        topic_id: topic.topic_id,
        partitions: topic
            .partitions
            .iter()
            .map(|partition| TxnOffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code: code,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    });
    Reply::TxnOffsetCommit(m::TxnOffsetCommitResponse { topics: topics.collect(), ..Default::default() })
}

fn offset_commit(request: &m::OffsetCommitRequest, code: i16) -> Reply {
    use m::offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
    let topics = request.topics.iter().map(|topic| OffsetCommitResponseTopic {
        name: topic.name.clone(),
        topic_id: topic.topic_id,
        partitions: topic
            .partitions
            .iter()
            .map(|partition| OffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code: code,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    });
    Reply::OffsetCommit(m::OffsetCommitResponse { topics: topics.collect(), ..Default::default() })
}

fn offset_fetch(request: &m::OffsetFetchRequest, code: i16) -> Reply {
    let groups = request.groups.iter().map(|group| OffsetFetchResponseGroup {
        group_id: group.group_id.clone(),
        error_code: code,
        ..Default::default()
    });
    let groups = groups.collect();
    Reply::OffsetFetch(m::OffsetFetchResponse { error_code: code, groups, ..Default::default() })
}

/// The calls of groups: one code for the whole, or for each group named.
fn groups(body: &CommandBody, version: i16, error_code: i16) -> Reply {
    match body {
        CommandBody::JoinGroup(request) => Reply::JoinGroup(m::JoinGroupResponse {
            error_code,
            member_id: request.member_id.clone(),
            protocol_name: (version < 7).then(Default::default),
            ..Default::default()
        }),
        CommandBody::SyncGroup(_) => {
            Reply::SyncGroup(m::SyncGroupResponse { error_code, ..Default::default() })
        }
        CommandBody::LeaveGroup(_) => {
            Reply::LeaveGroup(m::LeaveGroupResponse { error_code, ..Default::default() })
        }
        CommandBody::ListGroups(_) => {
            Reply::ListGroups(m::ListGroupsResponse { error_code, ..Default::default() })
        }
        CommandBody::OffsetDelete(_) => {
            Reply::OffsetDelete(m::OffsetDeleteResponse { error_code, ..Default::default() })
        }
        CommandBody::ConsumerGroupHeartbeat(_) => {
            Reply::ConsumerGroupHeartbeat(m::ConsumerGroupHeartbeatResponse {
                error_code,
                ..Default::default()
            })
        }
        CommandBody::DescribeGroups(request) => {
            use m::describe_groups_response::DescribedGroup;
            let group = |id: &Text| DescribedGroup { group_id: id.clone(), error_code, ..Default::default() };
            let groups = request.groups.iter().map(group).collect();
            Reply::DescribeGroups(m::DescribeGroupsResponse { groups, ..Default::default() })
        }
        CommandBody::DeleteGroups(request) => {
            use m::delete_groups_response::DeletableGroupResult as Result;
            let result = |id: &Text| Result { group_id: id.clone(), error_code, ..Default::default() };
            let results = request.groups_names.iter().map(result).collect();
            Reply::DeleteGroups(m::DeleteGroupsResponse { results, ..Default::default() })
        }
        CommandBody::ConsumerGroupDescribe(request) => {
            use m::consumer_group_describe_response::DescribedGroup;
            let group = |id: &Text| DescribedGroup { group_id: id.clone(), error_code, ..Default::default() };
            let groups = request.group_ids.iter().map(group).collect();
            Reply::ConsumerGroupDescribe(m::ConsumerGroupDescribeResponse { groups, ..Default::default() })
        }
        _ => Reply::Heartbeat(m::HeartbeatResponse { error_code, ..Default::default() }),
    }
}

fn describe_transactions(request: &m::DescribeTransactionsRequest, code: i16) -> Reply {
    use m::describe_transactions_response::TransactionState;
    let states = request.transactional_ids.iter().map(|id| TransactionState {
        transactional_id: id.clone(),
        error_code: code,
        ..Default::default()
    });
    Reply::DescribeTransactions(m::DescribeTransactionsResponse {
        transaction_states: states.collect(),
        ..Default::default()
    })
}

fn admin(body: &CommandBody, code: ErrorCode) -> Reply {
    use m::create_topics_response::CreatableTopicResult;
    use m::delete_topics_response::DeletableTopicResult;
    let code = code.code();
    match body {
        CommandBody::CreateTopics(request) => {
            let topics = request.topics.iter().map(|topic| CreatableTopicResult {
                name: topic.name.clone(),
                error_code: code,
                ..Default::default()
            });
            Reply::CreateTopics(m::CreateTopicsResponse { topics: topics.collect(), ..Default::default() })
        }
        CommandBody::DeleteTopics(request) => {
            let by_name = request.topic_names.iter().map(|name| (Some(name.clone()), Default::default()));
            let by_either = request.topics.iter().map(|topic| (topic.name.clone(), topic.topic_id));
            let responses = by_name.chain(by_either).map(|(name, topic_id)| DeletableTopicResult {
                name,
                topic_id,
                error_code: code,
                ..Default::default()
            });
            Reply::DeleteTopics(m::DeleteTopicsResponse {
                responses: responses.collect(),
                ..Default::default()
            })
        }
        CommandBody::CreatePartitions(request) => {
            use m::create_partitions_response::CreatePartitionsTopicResult;
            let results = request.topics.iter().map(|topic| CreatePartitionsTopicResult {
                name: topic.name.clone(),
                error_code: code,
                ..Default::default()
            });
            Reply::CreatePartitions(m::CreatePartitionsResponse {
                results: results.collect(),
                ..Default::default()
            })
        }
        CommandBody::UpdateFeatures(_) => Reply::UpdateFeatures(m::UpdateFeaturesResponse {
            error_code: code,
            error_message: None,
            ..Default::default()
        }),
        // The others name many resources in nested lists; clients treat a closed connection as "try again".
        _ => Reply::Close("the log is being rebuilt; the outcome of this call is unknown"),
    }
}
