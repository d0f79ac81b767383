//! Membership in a group: a task in the background is the member, the consumer is told what it reads.
//!
//! The task (`classic` for JoinGroup and SyncGroup, `modern` for KIP-848) speaks with the coordinator and sends
//! heartbeats whether or not anybody polls; it alone knows the protocol. What changes the assignment goes as an
//! `Event` to the consumer, which calls the listener inside of `poll` and answers with a `Command`. So nothing is
//! taken away from a user's code while it works on records, and a user who does not poll for
//! `max.poll.interval.ms` is left out: the task leaves the group.
//!
//! Invariants: events are handled in order, each until it is done, also when `poll` is dropped in between; a
//! command answers the event of its round, older ones are ignored; what `Shared` holds is what commits carry.

mod classic;
mod inbox;
mod modern;
pub(super) mod subscription;
pub(super) mod topics;

use std::sync::{Arc, Mutex, MutexGuard};

use ottla_env::spawn::{self, TaskHandle};
use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;
use tokio::sync::{mpsc, oneshot};

use super::settings::{ConsumerSettings, GroupProtocol};
use crate::cluster::{Cluster, ClusterError};
use crate::record::{GroupMetadata, TopicPartition};
use topics::Subscription;

/// Events that may wait for `poll`; the member waits when there are more.
const EVENTS_MAX: usize = 8;
/// Commands that may wait for the member.
const COMMANDS_MAX: usize = 8;

/// Why a consumer is not a member any more, and will not become one by itself.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{Consumer, ConsumerError, ConsumerSettings, GroupError};
///
/// let mut consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
/// let error = consumer.subscribe(&["orders"]).await.expect_err("no `group.id` is set");
/// assert!(matches!(error, ConsumerError::Group(GroupError::NoGroup)));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum GroupError {
    /// No `group.id` is set.
    #[error("`group.id` is not set; a subscription needs a group")]
    NoGroup,
    /// Another consumer uses the same `group.instance.id`.
    #[error(
        "the static member `{group_instance_id}` of group `{group_id}` was taken over by another consumer ({code}); \
         every running consumer needs a group.instance.id of its own"
    )]
    FencedInstance {
        /// The group.
        group_id: Text,
        /// The static member.
        group_instance_id: Text,
        /// What the coordinator said.
        code: ErrorCode,
    },
    /// The coordinator refused for good.
    #[error("the coordinator of group `{group_id}` refused {during} with {code}{}", message.as_ref().map_or_else(String::new, |m| format!(": {m}")))]
    Refused {
        /// The group.
        group_id: Text,
        /// What it said.
        code: ErrorCode,
        /// To which request.
        during: &'static str,
        /// Its words.
        message: Option<Text>,
    },
    /// The coordinator chose what this consumer cannot do.
    #[error("the coordinator of group `{group_id}` answered {during} with what cannot be used: {problem}")]
    Unusable {
        /// The group.
        group_id: Text,
        /// To which request.
        during: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// Why partitions were lost without being given up.
///
/// ```
/// use ottla_client::{ErrorCode, LostReason};
///
/// fn advice(reason: LostReason) -> String {
///     match reason {
///         LostReason::PollInterval => "poll more often, or raise max.poll.interval.ms".to_owned(),
///         LostReason::Fenced(code) => format!("the coordinator gave the member up: {code}"),
///         LostReason::Failed => "the next `poll` says why".to_owned(),
///     }
/// }
/// assert!(advice(LostReason::Fenced(ErrorCode::UnknownMemberId)).ends_with("UNKNOWN_MEMBER_ID"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// Nobody called `poll` for `max.poll.interval.ms`: the consumer left the group.
    PollInterval,
    /// The coordinator does not know the member any more, or not in this epoch.
    Fenced(ErrorCode),
    /// The membership has ended for good: `poll` returns why.
    Failed,
}

/// What the consumer is told. `round` counts the rebalances of this member.
#[derive(Debug)]
pub(super) enum Event {
    /// A rebalance begins: give up what must be given up, then `Command::Join`.
    Prepare { round: u64 },
    /// The assignment. With the classic protocol `Command::Join` is due when partitions were taken away; with
    /// KIP-848's `Command::Reconciled` is always due.
    Assigned { round: u64, partitions: Vec<TopicPartition> },
    /// Nothing is owned any more; then `Command::Join`.
    Lost { round: u64, reason: LostReason },
    /// The end.
    Failed(GroupError),
}

/// What the member is told.
#[derive(Debug)]
pub(super) enum Command {
    /// Join, again or for the first time, owning this.
    Join { round: u64, owned: Vec<TopicPartition> },
    /// This is owned now.
    Reconciled { round: u64, owned: Vec<TopicPartition> },
    /// Other topics from now on.
    Subscribe(Subscription),
    /// Leave, then say so.
    Leave(oneshot::Sender<()>),
}

/// What the member's task and the consumer share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Who the member is, or was last: whoever commits for a membership that has ended must be refused, and a
    /// commit in nobody's name would not be.
    member_id: Text,
    generation_id: i32,
    is_member: bool,
    is_rebalancing: bool,
    last_poll: Instant,
}

impl Shared {
    fn new() -> Self {
        let state = State {
            member_id: Text::EMPTY,
            generation_id: -1,
            is_member: false,
            is_rebalancing: false,
            last_poll: time::now(),
        };
        Self { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Sets who the member is.
    fn identify(&self, member_id: &Text, generation_id: i32) {
        let mut state = self.state();
        state.member_id = member_id.clone();
        state.generation_id = generation_id;
        state.is_member = true;
    }

    /// The membership has ended.
    fn end(&self) {
        self.state().is_member = false;
    }

    fn set_rebalancing(&self, is_rebalancing: bool) {
        self.state().is_rebalancing = is_rebalancing;
    }

    fn last_poll(&self) -> Instant {
        self.state().last_poll
    }

    /// A rebalance is under way.
    pub(super) fn is_rebalancing(&self) -> bool {
        self.state().is_rebalancing
    }

    /// Whether the coordinator has given us a generation and not taken it back, as far as we know.
    pub(super) fn is_member(&self) -> bool {
        self.state().is_member
    }

    /// Member and generation, as the coordinator knows or last knew them.
    pub(super) fn identity(&self) -> (Text, i32) {
        let state = self.state();
        (state.member_id.clone(), state.generation_id)
    }
}

/// A consumer's membership.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) subscription: Subscription,
    pub(super) shared: Arc<Shared>,
    pub(super) events: mpsc::Receiver<Event>,
    commands: mpsc::Sender<Command>,
    task: TaskHandle<()>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What both protocols need.
#[derive(Debug)]
struct Member {
    cluster: Cluster,
    settings: Arc<ConsumerSettings>,
    group_id: Text,
    shared: Arc<Shared>,
    subscription: Subscription,
    events: mpsc::Sender<Event>,
    round: u64,
}

impl Member {
    /// When a user that has not polled since is left out.
    fn poll_deadline(&self) -> Instant {
        self.shared.last_poll() + self.settings.max_poll_interval
    }

    fn refused(&self, during: &'static str, code: ErrorCode, message: Option<&Text>) -> GroupError {
        let group_id = self.group_id.clone();
        match (code, &self.settings.group_instance_id) {
            (ErrorCode::FencedInstanceId | ErrorCode::UnreleasedInstanceId, Some(instance)) => {
                GroupError::FencedInstance { group_id, group_instance_id: instance.clone(), code }
            }
            _ => GroupError::Refused { group_id, code, during, message: message.map(Text::detached) },
        }
    }

    /// Tells the consumer; false when it has gone.
    async fn tell(&self, event: Event) -> bool {
        tracing::debug!(group_id = %self.group_id, ?event, "group");
        self.events.send(event).await.is_ok()
    }
}

/// How a member's task ends.
#[derive(Debug)]
enum End {
    /// The consumer has gone without a word.
    Abandoned,
    /// It was asked to leave.
    Leave(oneshot::Sender<()>),
    /// For good.
    Failed(GroupError),
}

impl Membership {
    /// Starts a member.
    pub(super) fn start(
        cluster: &Cluster,
        settings: &Arc<ConsumerSettings>,
        group_id: &Text,
        subscription: Subscription,
    ) -> Self {
        let (event_sender, events) = mpsc::channel(EVENTS_MAX);
        let (commands, command_receiver) = mpsc::channel(COMMANDS_MAX);
        let shared = Arc::new(Shared::new());
        let member = Member {
            cluster: cluster.clone(),
            settings: Arc::clone(settings),
            group_id: group_id.clone(),
            shared: Arc::clone(&shared),
            subscription: subscription.clone(),
            events: event_sender,
            round: 0,
        };
        let task = match settings.group_protocol {
            GroupProtocol::Classic => spawn::task("group-classic", classic::run(member, command_receiver)),
            GroupProtocol::Consumer => spawn::task("group-consumer", modern::run(member, command_receiver)),
        };
        Self { subscription, shared, events, commands, task }
    }

    /// Notes that the user is alive.
    pub(super) fn polled(&self) {
        self.shared.state().last_poll = time::now();
    }

    /// Tells the member. It always has room soon: it takes commands whatever it does.
    pub(super) async fn tell(&self, command: Command) {
        let _ = self.commands.send(command).await; // it has ended, and has said why
    }

    /// Leaves, waiting at most until `deadline`.
    pub(super) async fn leave(mut self, deadline: Instant) {
        let (sender, done) = oneshot::channel();
        let commands = self.commands.clone();
        let asked = async {
            let _ = commands.send(Command::Leave(sender)).await; // it has ended, and has said why
            let _ = done.await;
        };
        let left = async {
            // the member may be waiting for room for an event, or may have ended
            tokio::select! {
                () = asked => {}
                () = async { while self.events.recv().await.is_some() {} } => {}
            }
        };
        if time::timeout_at(deadline, left).await.is_err() {
            tracing::warn!("the group was not left in time; its session time-out will end the membership");
        }
    }

    /// Who commits.
    pub(super) fn metadata(&self, group_id: &Text, instance: Option<&Text>) -> GroupMetadata {
        let (member_id, generation_id) = self.shared.identity();
        GroupMetadata {
            group_id: group_id.clone(),
            generation_id,
            member_id,
            group_instance_id: instance.cloned(),
        }
    }
}
