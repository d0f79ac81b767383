//! A member of a classic group: join, sync, heartbeat, and again when told to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;
use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::Agreement;
use super::wire::Wire;

/// As Kafka's consumer sends them.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
const SESSION_TIMEOUT_MS: i32 = 45_000;
const REBALANCE_TIMEOUT_MS: i32 = 300_000;
/// About what the assignor of Kafka's consumer sends for one topic.
const METADATA_BYTES: usize = 60;

/// Lives until it is aborted; what goes wrong ends it, and so its group is never stable.
pub(super) async fn member(
    wire: Wire,
    group: String,
    number: usize,
    topic: String,
    agreement: Arc<Agreement>,
) {
    let mut member = Member { wire, group: Text::from(group), id: Text::EMPTY, number, agreement };
    if let Err(error) = member.live(&topic).await {
        tracing::error!(%error, "a member ended");
    }
}

struct Member {
    wire: Wire,
    group: Text,
    id: Text,
    number: usize,
    agreement: Arc<Agreement>,
}

impl Member {
    async fn live(&mut self, topic: &str) -> Result<()> {
        loop {
            self.is_in(0);
            let joined = self.join(topic).await?;
            if joined.leader == self.id {
                self.agreement.total.store(joined.members.len(), Ordering::Release);
            }
            match ErrorCode::from_code(self.sync(&joined).await?) {
                ErrorCode::None => {}
                ErrorCode::RebalanceInProgress => continue,
                other => bail!("SyncGroup: {other:?}"),
            }
            self.is_in(joined.generation_id);
            loop {
                time::sleep(HEARTBEAT_INTERVAL).await;
                let heartbeat = m::HeartbeatRequest {
                    group_id: self.group.clone(),
                    generation_id: joined.generation_id,
                    member_id: self.id.clone(),
                    ..Default::default()
                };
                match ErrorCode::from_code(self.wire.call(&heartbeat, 4).await?.error_code) {
                    ErrorCode::None => {}
                    ErrorCode::RebalanceInProgress => break,
                    other => bail!("Heartbeat: {other:?}"),
                }
            }
        }
    }

    fn is_in(&self, generation: i32) {
        let generation = usize::try_from(generation).unwrap_or(0);
        self.agreement.generations[self.number].store(generation, Ordering::Release);
    }

    async fn join(&mut self, topic: &str) -> Result<m::JoinGroupResponse> {
        loop {
            let mut metadata = topic.as_bytes().to_vec();
            metadata.resize(METADATA_BYTES, 0);
            let protocol = m::join_group_request::JoinGroupRequestProtocol {
                name: Text::from_static("range"),
                metadata: Bytes::from(metadata),
                ..Default::default()
            };
            let request = m::JoinGroupRequest {
                group_id: self.group.clone(),
                session_timeout_ms: SESSION_TIMEOUT_MS,
                rebalance_timeout_ms: REBALANCE_TIMEOUT_MS,
                member_id: self.id.clone(),
                protocol_type: Text::from_static("consumer"),
                protocols: vec![protocol],
                ..Default::default()
            };
            let response = self.wire.call(&request, 9).await?;
            match ErrorCode::from_code(response.error_code) {
                ErrorCode::None => return Ok(response),
                ErrorCode::MemberIdRequired => self.id = response.member_id,
                ErrorCode::RebalanceInProgress => {}
                other => bail!("JoinGroup: {other:?}"),
            }
        }
    }

    async fn sync(&mut self, joined: &m::JoinGroupResponse) -> Result<i16> {
        let assignment = |member: &m::join_group_response::JoinGroupResponseMember| {
            m::sync_group_request::SyncGroupRequestAssignment {
                member_id: member.member_id.clone(),
                assignment: Bytes::from(vec![0; METADATA_BYTES]),
                ..Default::default()
            }
        };
        let request = m::SyncGroupRequest {
            group_id: self.group.clone(),
            generation_id: joined.generation_id,
            member_id: self.id.clone(),
            protocol_type: Some(Text::from_static("consumer")),
            protocol_name: Some(Text::from_static("range")),
            assignments: joined.members.iter().map(assignment).collect(),
            ..Default::default()
        };
        Ok(self.wire.call(&request, 5).await?.error_code)
    }
}
