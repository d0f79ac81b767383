//! A member of a consumer group (KIP-848): one request, ConsumerGroupHeartbeat, and the broker assigns.
//!
//! The broker sends a target; the consumer gives up what is not in it, takes the rest, and the next heartbeat says
//! what is owned then. One target is worked on at a time, a newer one waits. Every field is sent on joining and
//! after a request without an answer, else only what has changed.
//!
//! Invariants: `owned` is never less than what the consumer reads; the epoch that commits carry is the last one
//! that the coordinator gave.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_env::rng::{OsRng, Rng};
use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use ottla_protocol::messages::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
use ottla_protocol::types::{Text, Uuid};
use tokio::sync::mpsc;
use tracing::{Instrument, Span};

use super::inbox::Inbox;
use super::topics::Subscription;
use super::{Command, End, Event, GroupError, LostReason, Member};
use crate::cluster::{ClusterError, CoordinatorKind, Lane};
use crate::connection::Versions;
use crate::error::{CallError, wants_coordinator};
use crate::record::TopicPartition;

/// Version 1 has regular expressions and member ids that the client makes.
const HEARTBEAT: Versions = Versions::new(0, 1);
const HEARTBEAT_WITH_PATTERN: Versions = Versions::new(1, 1);

/// Epochs that mean something else.
const JOINING: i32 = 0;
const LEAVING: i32 = -1;
const LEAVING_FOR_A_WHILE: i32 = -2;

/// Bounds of the interval that the coordinator sets.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// How long a leaving member waits for the answer.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often topics that the broker assigned and does not know are looked for.
const UNKNOWN_TOPICS_INTERVAL: Duration = Duration::from_secs(1);

type ByTopicId = BTreeMap<Uuid, Vec<i32>>;

/// Why a heartbeat did not do what it should.
enum Trouble {
    Again,
    Fenced(ErrorCode),
    Fatal(GroupError),
}

struct Protocol {
    member: Member,
    member_id: Text,
    member_epoch: i32,
    /// What the coordinator was last told, or is to be told next.
    owned: ByTopicId,
    /// Every field goes into the next request.
    tell_all: bool,
    /// What is owned goes into the next request.
    tell_owned: bool,
    interval: Duration,
    ids: BTreeMap<Text, Uuid>,
    /// The coordinator has a pattern of ours.
    has_pattern: bool,
}

struct Modern {
    protocol: Protocol,
    inbox: Inbox,
    /// A target that the consumer has not been told of.
    target: Option<ByTopicId>,
    /// The consumer works on one.
    is_reconciling: bool,
}

/// Runs a member until it leaves, fails or is dropped.
pub(super) async fn run(member: Member, commands: mpsc::Receiver<Command>) {
    let mut id = [0; 16];
    OsRng.fill(&mut id);
    let protocol = Protocol {
        member,
        member_id: Text::from(Uuid(id).to_string()),
        member_epoch: JOINING,
        owned: ByTopicId::new(),
        tell_all: true,
        tell_owned: false,
        interval: INTERVAL_MIN,
        ids: BTreeMap::new(),
        has_pattern: false,
    };
    let mut modern = Modern { protocol, inbox: Inbox::new(commands), target: None, is_reconciling: false };
    loop {
        let end = match modern.live().await {
            Ok(reason) => match modern.lose(reason).await {
                Ok(()) => continue,
                Err(end) => end,
            },
            Err(end) => end,
        };
        match end {
            End::Abandoned => {}
            End::Leave(done) => {
                modern.protocol.leave().await;
                let _ = done.send(()); // whoever asked has stopped waiting
            }
            End::Failed(error) => {
                modern.protocol.forget();
                modern.protocol.member.tell(Event::Failed(error)).await;
            }
        }
        return;
    }
}

impl Modern {
    /// Joins and stays, until the membership is lost.
    async fn live(&mut self) -> Result<LostReason, End> {
        let mut backoff = self.protocol.member.cluster.backoff();
        let mut next_beat = time::now();
        loop {
            if let Some(subscription) = self.inbox.subscription.take() {
                self.protocol.member.subscription = subscription;
                self.protocol.tell_all = true;
                next_beat = time::now();
            }
            if let Some(owned) = self.inbox.take_reconciled(self.protocol.member.round) {
                self.protocol.take_owned(&owned);
                self.is_reconciling = false;
                next_beat = time::now();
            }
            let now = time::now();
            let poll_deadline = self.protocol.member.poll_deadline();
            if now >= poll_deadline {
                self.inbox.during(self.protocol.leave()).await?;
                return Ok(LostReason::PollInterval);
            }
            if now >= next_beat {
                match self.inbox.during(self.protocol.heartbeat()).await? {
                    Ok(target) => {
                        backoff.reset();
                        self.target = target.or(self.target.take());
                        next_beat = time::now() + self.protocol.interval;
                    }
                    Err(Trouble::Again) => {
                        self.protocol.tell_all = true;
                        next_beat = time::now() + backoff.next();
                    }
                    Err(Trouble::Fenced(code)) => return Ok(LostReason::Fenced(code)),
                    Err(Trouble::Fatal(error)) => return Err(End::Failed(error)),
                }
            }
            let mut wake = next_beat.min(poll_deadline);
            if !self.is_reconciling && self.target.is_some() && !self.reconcile().await? {
                wake = wake.min(time::now() + UNKNOWN_TOPICS_INTERVAL);
            }
            self.inbox.until(wake).await?;
        }
    }

    /// Hands a target to the consumer; false while some topic of it is not known.
    async fn reconcile(&mut self) -> Result<bool, End> {
        let Some(target) = self.target.take() else { return Ok(true) };
        let ids: Vec<Uuid> = target.keys().copied().collect();
        let names = self.inbox.during(self.protocol.member.cluster.topic_names(&ids)).await?;
        let names = names.unwrap_or_default();
        if names.len() < ids.len() {
            tracing::debug!(
                known = names.len(),
                assigned = ids.len(),
                "topics of the assignment are not known yet"
            );
            self.target = Some(target);
            return Ok(false);
        }
        self.protocol.ids.extend(names.iter().map(|(id, name)| (name.clone(), *id)));
        let partitions = target.iter().flat_map(|(id, partitions)| {
            let name = &names[id];
            partitions.iter().map(move |partition| TopicPartition::new(name.clone(), *partition))
        });
        self.protocol.member.round += 1;
        let event = Event::Assigned { round: self.protocol.member.round, partitions: partitions.collect() };
        self.is_reconciling = true;
        self.inbox.during(self.protocol.member.tell(event)).await?;
        Ok(true)
    }

    /// Tells the consumer that it owns nothing any more, and waits for it.
    async fn lose(&mut self, reason: LostReason) -> Result<(), End> {
        self.protocol.forget();
        self.target = None;
        self.is_reconciling = false;
        self.protocol.member.round += 1;
        let round = self.protocol.member.round;
        self.inbox.during(self.protocol.member.tell(Event::Lost { round, reason })).await?;
        loop {
            self.inbox.next().await?;
            if self.inbox.take_join(round).is_some() {
                return Ok(());
            }
        }
    }
}

impl Protocol {
    fn forget(&mut self) {
        self.member_epoch = JOINING;
        self.owned.clear();
        self.tell_all = true;
        self.member.shared.end();
    }

    fn take_owned(&mut self, owned: &[TopicPartition]) {
        self.owned.clear();
        for at in owned {
            if let Some(id) = self.ids.get(&at.topic) {
                self.owned.entry(*id).or_default().push(at.partition);
            }
        }
        self.tell_owned = true;
    }

    fn request(&self) -> ConsumerGroupHeartbeatRequest {
        let settings = &self.member.settings;
        let mut request = ConsumerGroupHeartbeatRequest {
            group_id: self.member.group_id.clone(),
            member_id: self.member_id.clone(),
            member_epoch: self.member_epoch,
            instance_id: settings.group_instance_id.clone(),
            ..ConsumerGroupHeartbeatRequest::default()
        };
        if self.tell_all {
            request.rack_id = settings.client_rack.clone();
            request.rebalance_timeout_ms =
                i32::try_from(settings.max_poll_interval.as_millis()).unwrap_or(i32::MAX);
            request.server_assignor = settings.group_remote_assignor.clone();
            match &self.member.subscription {
                Subscription::Topics(topics) => {
                    request.subscribed_topic_names = Some(topics.iter().cloned().collect());
                    request.subscribed_topic_regex = self.has_pattern.then_some(Text::EMPTY);
                }
                Subscription::Pattern(_, text) => {
                    request.subscribed_topic_names = Some(Vec::new());
                    request.subscribed_topic_regex = Some(text.clone());
                }
            }
        }
        if self.tell_all || self.tell_owned {
            let owned = self.owned.iter().map(|(topic_id, partitions)| TopicPartitions {
                topic_id: *topic_id,
                partitions: partitions.clone(),
                ..TopicPartitions::default()
            });
            request.topic_partitions = Some(owned.collect());
        }
        request
    }

    /// One heartbeat; a new target if there is one.
    async fn heartbeat(&mut self) -> Result<Option<ByTopicId>, Trouble> {
        let request = self.request();
        let settings = &self.member.settings;
        let deadline: Instant = time::now() + settings.client.request_timeout.min(settings.session_timeout);
        // the first one joins; the others are requests like any
        let span = match request.member_epoch {
            JOINING => tracing::info_span!("rebalance", phase = "join", group_id = %self.member.group_id),
            _ => Span::none(),
        };
        let answer = match time::timeout_at(deadline, self.send(&request).instrument(span)).await {
            Ok(answer) => answer?,
            Err(_) => {
                self.forget_coordinator();
                return Err(Trouble::Again);
            }
        };
        self.judge(&answer)?;
        (self.tell_all, self.tell_owned) = (false, false);
        self.has_pattern = matches!(self.member.subscription, Subscription::Pattern(..));
        if let Some(member_id) = answer.member_id.as_ref().filter(|member_id| !member_id.is_empty()) {
            self.member_id = member_id.detached();
        }
        self.member_epoch = answer.member_epoch;
        self.member.shared.identify(&self.member_id, answer.member_epoch);
        let interval = u64::try_from(answer.heartbeat_interval_ms).unwrap_or(0);
        self.interval = Duration::from_millis(interval).clamp(INTERVAL_MIN, INTERVAL_MAX);
        Ok(answer.assignment.map(|assignment| {
            assignment.topic_partitions.into_iter().map(|topic| (topic.topic_id, topic.partitions)).collect()
        }))
    }

    async fn send(
        &self,
        request: &ConsumerGroupHeartbeatRequest,
    ) -> Result<ConsumerGroupHeartbeatResponse, Trouble> {
        let cluster = &self.member.cluster;
        let found =
            cluster.coordinator(CoordinatorKind::Group, &self.member.group_id, cluster.deadline()).await;
        let node_id = match found {
            Ok(node_id) => node_id,
            Err(error) if error.is_retriable() => return Err(Trouble::Again),
            Err(error) => return Err(Trouble::Fatal(error.into())),
        };
        let usable =
            if request.subscribed_topic_regex.is_some() { HEARTBEAT_WITH_PATTERN } else { HEARTBEAT };
        let called = async {
            let connection = cluster.node(node_id, Lane::Group).await?;
            connection.call(request, usable).await
        };
        called.await.map_err(|error: CallError| {
            if error.is_retriable() {
                tracing::debug!(group_id = %self.member.group_id, %error, "heartbeat failed, will be repeated");
                self.forget_coordinator();
                return Trouble::Again;
            }
            Trouble::Fatal(ClusterError::from(error).into())
        })
    }

    fn forget_coordinator(&self) {
        self.member.cluster.forget_coordinator(CoordinatorKind::Group, &self.member.group_id);
    }

    fn judge(&self, answer: &ConsumerGroupHeartbeatResponse) -> Result<(), Trouble> {
        match ErrorCode::from_code(answer.error_code) {
            ErrorCode::None => Ok(()),
            code @ (ErrorCode::UnknownMemberId | ErrorCode::FencedMemberEpoch) => Err(Trouble::Fenced(code)),
            // the group is gone, and with it the membership
            code @ ErrorCode::GroupIdNotFound if self.member_epoch > 0 => Err(Trouble::Fenced(code)),
            code if code.is_retriable() => {
                if wants_coordinator(code) {
                    self.forget_coordinator();
                }
                Err(Trouble::Again)
            }
            code => {
                let message = answer.error_message.as_ref();
                Err(Trouble::Fatal(self.member.refused("ConsumerGroupHeartbeat", code, message)))
            }
        }
    }

    /// Leaves, trying once; a static member only for a while.
    async fn leave(&mut self) {
        if self.member_epoch == JOINING {
            return; // the coordinator never heard of us, or has forgotten us
        }
        let is_static = self.member.settings.group_instance_id.is_some();
        let request = ConsumerGroupHeartbeatRequest {
            group_id: self.member.group_id.clone(),
            member_id: self.member_id.clone(),
            member_epoch: if is_static { LEAVING_FOR_A_WHILE } else { LEAVING },
            instance_id: self.member.settings.group_instance_id.clone(),
            ..ConsumerGroupHeartbeatRequest::default()
        };
        let left = time::timeout(LEAVE_TIMEOUT, self.send(&request)).await;
        if !matches!(left, Ok(Ok(_))) {
            tracing::debug!(group_id = %self.member.group_id, "leaving was not answered; the session will time out");
        }
        self.forget();
    }
}
