//! The four requests of a classic member, and what each error asks for.

use std::time::Duration;

use bytes::Bytes;
use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use ottla_protocol::messages::leave_group_request::MemberIdentity;
use ottla_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use ottla_protocol::messages::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, Request, SyncGroupRequest,
};
use ottla_protocol::types::Text;
use tracing::{Instrument, Span};

use super::super::GroupError;
use super::super::subscription;
use super::{Protocol, Trouble};
use crate::cluster::{ClusterError, CoordinatorKind, Lane};
use crate::connection::{Connection, Versions};
use crate::consumer::assignor::{Assignor, MemberSubscription};
use crate::error::{CallError, wants_coordinator};
use crate::record::TopicPartition;

const PROTOCOL_TYPE: Text = Text::from_static("consumer");

/// First version with static members, and the range without.
const JOIN: (i16, Versions) = (5, Versions::new(2, 9));
const SYNC: (i16, Versions) = (3, Versions::new(1, 5));
const HEARTBEAT: (i16, Versions) = (3, Versions::new(1, 4));
const LEAVE: Versions = Versions::new(1, 5);
/// First version of LeaveGroup that takes several members.
const LEAVE_MEMBERS: i16 = 3;

/// How long a leaving member waits for the answer.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

impl Protocol {
    fn usable(&self, (with_instance, all): (i16, Versions)) -> Versions {
        let is_static = self.member.settings.group_instance_id.is_some();
        if is_static { Versions::new(with_instance, all.max) } else { all }
    }

    /// A connection to the coordinator.
    async fn coordinator(&self, lane: Lane) -> Result<Connection, Trouble> {
        let cluster = &self.member.cluster;
        let found =
            cluster.coordinator(CoordinatorKind::Group, &self.member.group_id, cluster.deadline()).await;
        let node_id = match found {
            Ok(node_id) => node_id,
            Err(error) if error.is_retriable() => return Err(Trouble::Again),
            Err(ClusterError::Refused { code, .. }) => {
                return Err(Trouble::Fatal(self.member.refused("FindCoordinator", code, None)));
            }
            Err(error) => return Err(Trouble::Fatal(error.into())),
        };
        cluster.node(node_id, lane).await.map_err(|error| self.failed(error))
    }

    /// A call that has no answer.
    fn failed(&self, error: CallError) -> Trouble {
        if error.is_retriable() {
            tracing::debug!(group_id = %self.member.group_id, %error, "group request failed, will be repeated");
            self.forget_coordinator();
            return Trouble::Again;
        }
        Trouble::Fatal(ClusterError::from(error).into())
    }

    fn forget_coordinator(&self) {
        self.member.cluster.forget_coordinator(CoordinatorKind::Group, &self.member.group_id);
    }

    /// Asks the coordinator, which may take `wait` longer than other requests.
    async fn ask<R: Request>(
        &self,
        lane: Lane,
        request: &R,
        usable: Versions,
        wait: Duration,
    ) -> Result<R::Response, Trouble> {
        let connection = self.coordinator(lane).await?;
        let asked = async {
            let version = connection.version::<R>(usable)?;
            connection.start_waiting(request, version, wait).await?.wait().await
        };
        asked.await.map_err(|error| self.failed(error))
    }

    /// What an error code asks for, the same for all requests but for the codes that only one of them has.
    fn judge(&self, code: ErrorCode, during: &'static str) -> Result<(), Trouble> {
        match code {
            ErrorCode::None => Ok(()),
            ErrorCode::RebalanceInProgress => Err(Trouble::Rebalance),
            ErrorCode::UnknownMemberId => Err(Trouble::Reset(code, true)),
            ErrorCode::IllegalGeneration => Err(Trouble::Reset(code, false)),
            code if code.is_retriable() => {
                if wants_coordinator(code) {
                    self.forget_coordinator();
                }
                Err(Trouble::Again)
            }
            code => Err(Trouble::Fatal(self.member.refused(during, code, None))),
        }
    }

    /// Joins and takes the assignment.
    pub(super) async fn join_and_sync(
        &mut self,
        owned: &[TopicPartition],
    ) -> Result<Vec<TopicPartition>, Trouble> {
        let span = self.span("join");
        let joined = self.join_group(owned).instrument(span).await?;
        let settings = std::sync::Arc::clone(&self.member.settings);
        let name = joined.protocol_name.as_ref().map_or("", Text::as_str);
        let Some(assignor) = settings.assignors.iter().find(|assignor| assignor.name() == name) else {
            let problem =
                format!("the group's assignor is {:?}, which is not configured", joined.protocol_name);
            return Err(self.unusable("JoinGroup", problem));
        };
        self.snapshot = None;
        let is_leader = joined.leader == self.member_id && !joined.skip_assignment;
        let assignments = if is_leader { self.assign(assignor, &joined).await? } else { Vec::new() };
        let span = self.span("sync");
        let bytes = self.sync_group(assignor, assignments).instrument(span).await?;
        let Some(partitions) = subscription::decode_assignment(&bytes) else {
            return Err(self.unusable("SyncGroup", "the leader's assignment cannot be read".to_owned()));
        };
        let generation_id = self.generation_id;
        self.remembered(assignor).take(partitions.clone(), generation_id);
        self.member.shared.set_rebalancing(false);
        tracing::debug!(group_id = %self.member.group_id, generation_id, is_leader, assignor = assignor.name(), count = partitions.len(), "joined");
        Ok(partitions)
    }

    fn span(&self, phase: &'static str) -> Span {
        let (group_id, generation) = (&self.member.group_id, self.generation_id);
        tracing::info_span!("rebalance", phase, %group_id, generation)
    }

    fn unusable(&self, during: &'static str, problem: String) -> Trouble {
        Trouble::Fatal(GroupError::Unusable { group_id: self.member.group_id.clone(), during, problem })
    }

    /// Joins; a new member is given its id and joins again with it (KIP-394).
    async fn join_group(&mut self, owned: &[TopicPartition]) -> Result<JoinGroupResponse, Trouble> {
        let resolved = self.member.subscription.resolve(&self.member.cluster).await;
        self.joined_topics = resolved.map_err(|error| match error {
            error if error.is_retriable() => Trouble::Again,
            error => Trouble::Fatal(error.into()),
        })?;
        loop {
            let request = self.join_request(owned);
            let wait = self.member.settings.max_poll_interval;
            let answer = self.ask(Lane::Group, &request, self.usable(JOIN), wait).await?;
            match ErrorCode::from_code(answer.error_code) {
                ErrorCode::MemberIdRequired if self.member_id.is_empty() && !answer.member_id.is_empty() => {
                    self.member_id = answer.member_id.detached();
                }
                code => {
                    self.judge(code, "JoinGroup")?;
                    self.member_id = answer.member_id.detached();
                    self.generation_id = answer.generation_id;
                    // what is still owned is committed in the new generation from here on: nobody else can have it
                    // before we have rejoined without it
                    self.member.shared.identify(&self.member_id, self.generation_id);
                    return Ok(answer);
                }
            }
        }
    }

    fn join_request(&mut self, owned: &[TopicPartition]) -> JoinGroupRequest {
        let settings = std::sync::Arc::clone(&self.member.settings);
        let mut protocols = Vec::new();
        for assignor in &settings.assignors {
            let metadata = subscription::encode(&MemberSubscription {
                topics: self.joined_topics.clone(),
                owned: owned.to_vec(),
                generation_id: (self.generation_id >= 0).then_some(self.generation_id),
                user_data: self.remembered(assignor).user_data(assignor),
                rack_id: settings.client_rack.clone(),
                ..MemberSubscription::default()
            });
            let name = Text::from(assignor.name());
            protocols.push(JoinGroupRequestProtocol {
                name,
                metadata,
                ..JoinGroupRequestProtocol::default()
            });
        }
        JoinGroupRequest {
            group_id: self.member.group_id.clone(),
            session_timeout_ms: millis(settings.session_timeout),
            rebalance_timeout_ms: millis(settings.max_poll_interval),
            member_id: self.member_id.clone(),
            group_instance_id: settings.group_instance_id.clone(),
            protocol_type: PROTOCOL_TYPE,
            protocols,
            ..JoinGroupRequest::default()
        }
    }

    async fn sync_group(
        &mut self,
        assignor: &Assignor,
        assignments: Vec<(Text, Bytes)>,
    ) -> Result<Bytes, Trouble> {
        let assignments = assignments.into_iter().map(|(member_id, assignment)| SyncGroupRequestAssignment {
            member_id,
            assignment,
            ..SyncGroupRequestAssignment::default()
        });
        let request = SyncGroupRequest {
            group_id: self.member.group_id.clone(),
            generation_id: self.generation_id,
            member_id: self.member_id.clone(),
            group_instance_id: self.member.settings.group_instance_id.clone(),
            protocol_type: Some(PROTOCOL_TYPE),
            protocol_name: Some(Text::from(assignor.name())),
            assignments: assignments.collect(),
            ..SyncGroupRequest::default()
        };
        let wait = self.member.settings.max_poll_interval;
        let answer = self.ask(Lane::Group, &request, self.usable(SYNC), wait).await?;
        self.judge(ErrorCode::from_code(answer.error_code), "SyncGroup")?;
        Ok(answer.assignment)
    }

    /// One sign of life.
    pub(super) async fn heartbeat(&mut self) -> Result<(), Trouble> {
        let request = HeartbeatRequest {
            group_id: self.member.group_id.clone(),
            generation_id: self.generation_id,
            member_id: self.member_id.clone(),
            group_instance_id: self.member.settings.group_instance_id.clone(),
            ..HeartbeatRequest::default()
        };
        let asked = self.ask(Lane::Group, &request, self.usable(HEARTBEAT), Duration::ZERO);
        match time::timeout_at(self.beat_deadline(), asked).await {
            Ok(answer) => self.judge(ErrorCode::from_code(answer?.error_code), "Heartbeat"),
            Err(_) => {
                self.forget_coordinator();
                Err(Trouble::Again)
            }
        }
    }

    /// Leaves, trying once. Static members do not: their session goes on until it times out (KIP-345).
    pub(super) async fn leave(&mut self, reason: &'static str) {
        let member_id = std::mem::take(&mut self.member_id);
        self.forget(true);
        if member_id.is_empty() || self.member.settings.group_instance_id.is_some() {
            return;
        }
        let asked = async {
            // not behind a JoinGroup that waits
            let connection = self.coordinator(Lane::Control).await?;
            let left = async {
                let version = connection.version::<LeaveGroupRequest>(LEAVE)?;
                let request = self.leave_request(&member_id, reason, version);
                connection.start(&request, version).await?.wait().await
            };
            left.await.map_err(|error| self.failed(error))
        };
        match time::timeout(LEAVE_TIMEOUT, asked).await {
            Ok(Ok(_)) => tracing::debug!(group_id = %self.member.group_id, reason, "left"),
            Ok(Err(_)) | Err(_) => {
                tracing::debug!(group_id = %self.member.group_id, "LeaveGroup was not answered; the session will time out");
            }
        }
    }

    fn leave_request(&self, member_id: &Text, reason: &'static str, version: i16) -> LeaveGroupRequest {
        let mut request =
            LeaveGroupRequest { group_id: self.member.group_id.clone(), ..LeaveGroupRequest::default() };
        if version >= LEAVE_MEMBERS {
            request.members = vec![MemberIdentity {
                member_id: member_id.clone(),
                reason: Some(Text::from_static(reason)),
                ..MemberIdentity::default()
            }];
        } else {
            request.member_id = member_id.clone();
        }
        request
    }
}

pub(super) fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
