//! A member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.
//!
//! ```text
//!              +--------------------------------------------------+
//!              v                                                  | Command::Join
//!   start -> join -> (leader: assign) -> sync -> Assigned -> stay +-> Prepare, stay
//!              ^                                               |
//!              +------------------ Command::Join <- Lost <-----+ fenced, or nobody polls
//! ```
//!
//! A rebalance begins in `stay`: the coordinator says so, or the topics have changed. The consumer is told and
//! gives up what it must, inside of `poll`; heartbeats go on meanwhile. The leader's share is in `leader`, the
//! requests in `requests`.

mod leader;
mod requests;

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;
use tokio::sync::mpsc;

use super::inbox::Inbox;
use super::subscription::Remembered;
use super::{Command, End, Event, GroupError, LostReason, Member};
use crate::consumer::assignor::Assignor;
use crate::record::TopicPartition;

/// How often missing topics are looked for.
const MISSING_TOPICS_INTERVAL: Duration = Duration::from_secs(1);

/// Rebalances that overtake each other are followed without a pause so many times.
const RESTARTS_AT_ONCE_MAX: u32 = 3;

/// What comes next.
enum Step {
    Join(Vec<TopicPartition>),
    /// A member; `true`: the consumer has been told to prepare and has not answered.
    Stay(bool),
    Lost(LostReason),
}

/// Why a request did not do what it should.
#[derive(Debug)]
enum Trouble {
    /// The same again, after a pause.
    Again,
    /// A new rebalance, at once.
    Rebalance,
    /// The member is not known in this generation; with `true` not even its id.
    Reset(ErrorCode, bool),
    Fatal(GroupError),
}

/// What the coordinator knows of us, and what the leader needs.
struct Protocol {
    member: Member,
    member_id: Text,
    generation_id: i32,
    remembered: BTreeMap<Text, Remembered>,
    /// The topics we joined with.
    joined_topics: Vec<Text>,
    /// The leader's: partitions of all topics of the group when it assigned them.
    snapshot: Option<BTreeMap<Text, usize>>,
}

struct Classic {
    protocol: Protocol,
    inbox: Inbox,
}

/// Runs a member until it leaves, fails or is dropped.
pub(super) async fn run(member: Member, commands: mpsc::Receiver<Command>) {
    let protocol = Protocol {
        member,
        member_id: Text::EMPTY,
        generation_id: -1,
        remembered: BTreeMap::new(),
        joined_topics: Vec::new(),
        snapshot: None,
    };
    let mut classic = Classic { protocol, inbox: Inbox::new(commands) };
    match classic.live().await {
        End::Abandoned => {}
        End::Leave(done) => {
            classic.protocol.leave("the consumer is being closed").await;
            let _ = done.send(()); // whoever asked has stopped waiting
        }
        End::Failed(error) => {
            classic.protocol.forget(true);
            classic.protocol.member.tell(Event::Failed(error)).await;
        }
    }
}

impl Classic {
    async fn live(&mut self) -> End {
        let mut step = Step::Join(Vec::new());
        loop {
            let next = match step {
                Step::Join(owned) => self.join(owned).await,
                Step::Stay(awaiting) => self.stay(awaiting).await,
                Step::Lost(reason) => self.lose(reason).await,
            };
            step = match next {
                Ok(step) => step,
                Err(end) => return end,
            };
        }
    }

    /// Joins, as often as it takes.
    async fn join(&mut self, owned: Vec<TopicPartition>) -> Result<Step, End> {
        let mut backoff = self.protocol.member.cluster.backoff();
        self.protocol.member.round += 1;
        let mut restarts = 0;
        loop {
            self.protocol.member.shared.set_rebalancing(true);
            if let Some(subscription) = self.inbox.subscription.take() {
                self.protocol.member.subscription = subscription;
            }
            match self.inbox.during(self.protocol.join_and_sync(&owned)).await? {
                Ok(partitions) => {
                    let round = self.protocol.member.round;
                    let told = self.protocol.member.tell(Event::Assigned { round, partitions });
                    self.inbox.during(told).await?;
                    return Ok(Step::Stay(false));
                }
                Err(Trouble::Rebalance) if restarts < RESTARTS_AT_ONCE_MAX => restarts += 1,
                Err(Trouble::Rebalance) => {
                    let pause = time::now() + backoff.next();
                    self.inbox.during(time::sleep_until(pause)).await?;
                }
                Err(Trouble::Again) => {
                    let pause = time::now() + backoff.next();
                    self.inbox.during(time::sleep_until(pause)).await?;
                }
                Err(Trouble::Reset(code, forget_member)) => {
                    self.protocol.forget(forget_member);
                    if !owned.is_empty() {
                        return Ok(Step::Lost(LostReason::Fenced(code)));
                    }
                    let pause = time::now() + backoff.next();
                    self.inbox.during(time::sleep_until(pause)).await?;
                }
                Err(Trouble::Fatal(error)) => return Err(End::Failed(error)),
            }
        }
    }

    /// A member: heartbeats, until something happens.
    async fn stay(&mut self, awaiting: bool) -> Result<Step, End> {
        let interval = self.protocol.member.settings.heartbeat_interval;
        let mut next_beat = time::now() + interval;
        let mut next_check = time::now() + self.check_interval();
        loop {
            if let Some(owned) = self.inbox.take_join(self.protocol.member.round) {
                return Ok(Step::Join(owned));
            }
            if !awaiting && self.inbox.subscription.is_some() {
                return self.prepare().await;
            }
            let now = time::now();
            let poll_deadline = self.protocol.member.poll_deadline();
            if now >= poll_deadline {
                self.inbox.during(self.protocol.leave("nobody polled for max.poll.interval.ms")).await?;
                return Ok(Step::Lost(LostReason::PollInterval));
            }
            if now >= next_beat {
                next_beat = now + interval;
                match self.inbox.during(self.protocol.heartbeat()).await? {
                    Ok(()) => {}
                    Err(Trouble::Rebalance) if awaiting => {}
                    Err(Trouble::Rebalance) => return self.prepare().await,
                    Err(Trouble::Again) => {
                        next_beat = time::now() + self.protocol.member.settings.client.retry_backoff;
                    }
                    Err(Trouble::Reset(code, forget_member)) => {
                        self.protocol.forget(forget_member);
                        return Ok(Step::Lost(LostReason::Fenced(code)));
                    }
                    Err(Trouble::Fatal(error)) => return Err(End::Failed(error)),
                }
                continue;
            }
            if !awaiting && now >= next_check {
                if self.inbox.during(self.protocol.topics_changed()).await? {
                    return self.prepare().await;
                }
                next_check = time::now() + self.check_interval();
                continue;
            }
            let wake = next_beat.min(poll_deadline).min(if awaiting { next_beat } else { next_check });
            self.inbox.until(wake).await?;
        }
    }

    fn check_interval(&self) -> Duration {
        let interval = self.protocol.member.settings.client.metadata_max_age;
        if self.protocol.misses_topics() { interval.min(MISSING_TOPICS_INTERVAL) } else { interval }
    }

    /// Tells the consumer that a rebalance begins.
    async fn prepare(&mut self) -> Result<Step, End> {
        self.protocol.member.shared.set_rebalancing(true);
        let round = self.protocol.member.round;
        self.inbox.during(self.protocol.member.tell(Event::Prepare { round })).await?;
        Ok(Step::Stay(true))
    }

    /// Tells the consumer that it owns nothing any more, and waits for it.
    async fn lose(&mut self, reason: LostReason) -> Result<Step, End> {
        self.protocol.member.round += 1;
        let round = self.protocol.member.round;
        self.inbox.during(self.protocol.member.tell(Event::Lost { round, reason })).await?;
        loop {
            self.inbox.next().await?;
            if let Some(owned) = self.inbox.take_join(round) {
                return Ok(Step::Join(owned));
            }
        }
    }
}

impl Protocol {
    /// Is not a member any more; with `true` the member id is given up too.
    fn forget(&mut self, forget_member: bool) {
        self.generation_id = -1;
        if forget_member {
            self.member_id = Text::EMPTY;
        }
        self.snapshot = None;
        self.member.shared.end();
        self.member.shared.set_rebalancing(false);
    }

    fn remembered(&mut self, assignor: &Assignor) -> &mut Remembered {
        self.remembered.entry(assignor.name().into()).or_default()
    }

    /// When a heartbeat gives up.
    fn beat_deadline(&self) -> Instant {
        let settings = &self.member.settings;
        time::now() + settings.client.request_timeout.min(settings.session_timeout)
    }
}
