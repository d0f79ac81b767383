//! What happens in `poll` when the group changes hands: the listener is called, partitions go and come.
//!
//! An event that has begun is finished by the next `poll` if this one is dropped; a listener's call that was
//! dropped in the middle is then made again.

use std::pin::Pin;
use std::sync::Arc;

use ottla_env::time;
use ottla_protocol::types::Text;
use tracing::{Instrument, Span};

use super::commit::{Committer, PendingCommit};
use super::error::{CommitError, ConsumerError};
use super::fetcher::{Fetcher, Place, Position};
use super::group::{Command, Event, LostReason, Membership};
use super::settings::{ConsumerSettings, GroupProtocol};
use crate::offsets;
use crate::record::{CommittedOffset, GroupMetadata, OffsetToCommit, TopicPartition};

/// What a listener's call returns.
///
/// ```
/// use ottla_client::Callback;
///
/// let nothing: Callback<'_> = Box::pin(std::future::ready(()));
/// let something: Callback<'_> = Box::pin(async { println!("partitions went") });
/// # drop((nothing, something));
/// ```
pub type Callback<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Is told when partitions come and go, inside of `Consumer::poll`, and may commit there.
///
/// Whatever a call does must be done within `max.poll.interval.ms`. When `poll` is dropped during a call, the call
/// is made again by the next `poll`.
///
/// ```
/// use ottla_client::{Callback, LostReason, Rebalance, RebalanceListener, TopicPartition};
///
/// struct CommitOnRevoke;
///
/// impl RebalanceListener for CommitOnRevoke {
///     fn assigned<'a>(&'a mut self, _: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
///         println!("{} partitions came", partitions.len());
///         Box::pin(std::future::ready(()))
///     }
///
///     fn revoked<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
///         Box::pin(async move {
///             if let Err(error) = rebalance.commit_positions().await {
///                 eprintln!("{} partitions may be read again: {error}", partitions.len());
///             }
///         })
///     }
///
///     fn lost<'a>(
///         &'a mut self,
///         _: Rebalance<'a>,
///         partitions: &'a [TopicPartition],
///         reason: LostReason,
///     ) -> Callback<'a> {
///         eprintln!("{} partitions are somebody else's: {reason:?}", partitions.len());
///         Box::pin(std::future::ready(()))
///     }
/// }
/// ```
pub trait RebalanceListener: Send + Sync {
    /// These partitions were added; what was assigned before and stays is not among them. Called at the end of
    /// every rebalance, so the list may be empty. `Rebalance::seek` decides where reading begins.
    fn assigned<'a>(
        &'a mut self,
        rebalance: Rebalance<'a>,
        partitions: &'a [TopicPartition],
    ) -> Callback<'a> {
        let _ = (rebalance, partitions);
        Box::pin(std::future::ready(()))
    }

    /// These partitions are given up when the call returns. Until then they are this member's: their offsets can
    /// be committed, alone or in a transaction.
    fn revoked<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        let _ = (rebalance, partitions);
        Box::pin(std::future::ready(()))
    }

    /// These partitions are somebody else's already, because the member was given up: what was not committed
    /// cannot be committed any more. Abort an open transaction. Without this, `revoked` is called.
    fn lost<'a>(
        &'a mut self,
        rebalance: Rebalance<'a>,
        partitions: &'a [TopicPartition],
        reason: LostReason,
    ) -> Callback<'a> {
        let _ = reason;
        self.revoked(rebalance, partitions)
    }
}

/// What a listener may do to the consumer it belongs to.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # use std::time::Duration;
/// use ottla_client::{Callback, Consumer, ConsumerError, ConsumerSettings, OffsetToCommit};
/// use ottla_client::{Rebalance, RebalanceListener, TopicPartition};
///
/// /// Begins at the offsets of a store of its own, reads nothing before that, and commits what is given up.
/// struct OwnStore;
///
/// async fn begin(mut rebalance: Rebalance<'_>, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
///     for committed in rebalance.committed(partitions).await? {
///         let at = committed.topic_partition;
///         println!("{at}: {:?} was committed, {:?} is next", committed.offset, rebalance.position(&at));
///         rebalance.seek(&at, 0)?;
///     }
///     rebalance.pause(partitions)
/// }
///
/// async fn end(rebalance: Rebalance<'_>, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
///     println!("{:?} gives up {:?}", rebalance.group_metadata(), rebalance.positions());
///     rebalance.commit_positions().await?;
///     // or what is known better
///     let done: Vec<_> = partitions.iter().map(|at| OffsetToCommit::new(at.clone(), 0)).collect();
///     Ok(rebalance.commit_offsets(&done).await?)
/// }
///
/// impl RebalanceListener for OwnStore {
///     fn assigned<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
///         Box::pin(async move { begin(rebalance, partitions).await.unwrap_or_else(|error| eprintln!("{error}")) })
///     }
///
///     fn revoked<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
///         Box::pin(async move { end(rebalance, partitions).await.unwrap_or_else(|error| eprintln!("{error}")) })
///     }
/// }
///
/// let mut consumer = Consumer::connect(ConsumerSettings::new(client).group_id("shop")).await?;
/// consumer.set_listener(OwnStore);
/// consumer.subscribe(&["orders"]).await?;
/// while consumer.assignment().is_empty() {
///     consumer.poll(Duration::from_millis(100)).await?;
/// }
/// assert_eq!(consumer.paused(), consumer.assignment());
/// consumer.close().await?;
/// # let committed = admin.group_offsets(&"shop".into()).await?;
/// # assert_eq!(committed[0].offset, Some(0));
/// # Ok(())
/// # });
/// ```
#[derive(Debug)]
pub struct Rebalance<'a> {
    core: &'a mut Core,
}

impl Rebalance<'_> {
    /// Commits the positions of all assigned partitions and waits for the answer. If the future is dropped, they may
    /// be committed.
    pub async fn commit_positions(&self) -> Result<(), CommitError> {
        self.core.commit(self.core.fetcher.positions(|_| true))?.wait().await
    }

    /// Commits these offsets and waits for the answer. If the future is dropped, they may be committed.
    pub async fn commit_offsets(&self, offsets: &[OffsetToCommit]) -> Result<(), CommitError> {
        self.core.commit(offsets.to_vec())?.wait().await
    }

    /// Who commits, for `Transaction::send_offsets`.
    pub fn group_metadata(&self) -> Option<GroupMetadata> {
        self.core.group_metadata()
    }

    /// The offset of the next record that `poll` may return; absent when it is not known yet.
    pub fn position(&self, topic_partition: &TopicPartition) -> Option<i64> {
        self.core.fetcher.position(topic_partition)
    }

    /// The positions that are known, of all assigned partitions.
    pub fn positions(&self) -> Vec<OffsetToCommit> {
        self.core.fetcher.positions(|_| true)
    }

    /// What the group has committed for these partitions; waits while a transaction holds an offset open.
    /// Cancel-safe.
    pub async fn committed(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, ConsumerError> {
        let group_id = self.core.settings.group_id.as_ref().ok_or(CommitError::NoGroup)?;
        Ok(offsets::committed(&self.core.fetcher.cluster, group_id, Some(partitions)).await?)
    }

    /// Moves a partition's position.
    pub fn seek(&mut self, topic_partition: &TopicPartition, offset: i64) -> Result<(), ConsumerError> {
        self.core.fetcher.seek(topic_partition, Place::At(Position { offset, leader_epoch: -1 }))
    }

    /// Holds partitions back.
    pub fn pause(&mut self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        self.core.fetcher.set_paused(partitions, true)
    }
}

/// The consumer without its listener.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) settings: Arc<ConsumerSettings>,
    pub(super) fetcher: Fetcher,
    pub(super) committer: Committer,
    pub(super) membership: Option<Membership>,
}

impl Core {
    pub(super) fn commit(&self, offsets: Vec<OffsetToCommit>) -> Result<PendingCommit, CommitError> {
        self.committer.submit(offsets, self.membership.as_ref().map(|member| &member.shared))
    }

    pub(super) fn group_metadata(&self) -> Option<GroupMetadata> {
        let group_id: &Text = self.settings.group_id.as_ref()?;
        Some(match &self.membership {
            Some(membership) => membership.metadata(group_id, self.settings.group_instance_id.as_ref()),
            None => GroupMetadata::without_members(group_id.clone()),
        })
    }

    /// What `enable.auto.commit` owes before partitions go. Not longer than a rebalance may take.
    pub(super) async fn auto_commit(&self, leaving: &[TopicPartition]) {
        if !self.settings.auto_commit || leaving.is_empty() {
            return;
        }
        let limit = self.settings.max_poll_interval.min(self.settings.client.api_timeout);
        let committed = async { self.commit(self.fetcher.positions(|_| true))?.wait().await };
        match time::timeout(limit, committed).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "positions were not committed before partitions were given up");
            }
            Err(_) => tracing::warn!("the commit before partitions were given up took too long"),
        }
    }
}

/// An event that is being handled.
#[derive(Debug)]
pub(super) struct Underway {
    event: Event,
    stage: Stage,
    /// Partitions were given up in this rebalance.
    gave_up: bool,
}

#[derive(Debug)]
enum Stage {
    /// Give up what has to be given up.
    GiveUp,
    /// These were added and are to be announced.
    Announce(Vec<TopicPartition>),
}

impl Underway {
    pub(super) fn new(event: Event) -> Self {
        Self { event, stage: Stage::GiveUp, gave_up: false }
    }

    /// Handles the event, or the rest of it.
    pub(super) async fn carry_on(
        &mut self,
        core: &mut Core,
        listener: &mut Option<Box<dyn RebalanceListener>>,
    ) -> Result<(), ConsumerError> {
        let is_cooperative = core.settings.is_cooperative();
        let owned = core.fetcher.assignment();
        match &self.event {
            Event::Prepare { round } => {
                let round = *round;
                let unwanted = |at: &TopicPartition| {
                    core.membership.as_ref().is_some_and(|member| !member.subscription.contains(&at.topic))
                };
                let going = owned.iter().filter(|at| !is_cooperative || unwanted(at)).cloned().collect();
                // what is read on is committed too: the next generation may begin at any time
                core.auto_commit(&owned).await;
                give_up(core, listener, going).await;
                core.tell(Command::Join { round, owned: core.fetcher.assignment() }).await;
                Ok(())
            }
            Event::Assigned { .. } => self.take_assignment(core, listener, owned).await,
            Event::Lost { round, reason } => {
                let (round, reason) = (*round, *reason);
                lose(core, listener, owned, reason).await;
                core.tell(Command::Join { round, owned: Vec::new() }).await;
                Ok(())
            }
            Event::Failed(error) => {
                let error = error.clone();
                lose(core, listener, owned, LostReason::Failed).await;
                core.membership = None;
                Err(error.into())
            }
        }
    }

    async fn take_assignment(
        &mut self,
        core: &mut Core,
        listener: &mut Option<Box<dyn RebalanceListener>>,
        owned: Vec<TopicPartition>,
    ) -> Result<(), ConsumerError> {
        let Event::Assigned { round, partitions } = &self.event else { return Ok(()) };
        if matches!(self.stage, Stage::GiveUp) {
            let going: Vec<_> = owned.iter().filter(|at| !partitions.contains(at)).cloned().collect();
            if !going.is_empty() {
                core.auto_commit(&going).await;
                give_up(core, listener, going).await;
                self.gave_up = true;
            }
            let added: Vec<_> =
                partitions.iter().filter(|at| !core.fetcher.is_assigned(at)).cloned().collect();
            core.fetcher.add(added.iter().map(|at| (at.clone(), Place::Committed)));
            core.fetcher.metrics.rebalances += 1;
            self.stage = Stage::Announce(added);
        }
        if let Stage::Announce(added) = &self.stage {
            let span = span_of(core, "assigned", added.len());
            if let Some(listener) = listener {
                listener.assigned(Rebalance { core: &mut *core }, added).instrument(span).await;
            }
        }
        let owned = core.fetcher.assignment();
        let round = *round;
        match core.settings.group_protocol {
            GroupProtocol::Consumer => core.tell(Command::Reconciled { round, owned }).await,
            // what was given up has to find its new owner in another rebalance; and so has what the leader
            // assigned by a subscription that has changed since
            GroupProtocol::Classic => {
                let is_wanted = |at: &TopicPartition| {
                    core.membership.as_ref().is_none_or(|member| member.subscription.contains(&at.topic))
                };
                if self.gave_up || !owned.iter().all(is_wanted) {
                    let owned = if core.settings.is_cooperative() { owned } else { Vec::new() };
                    core.tell(Command::Join { round, owned }).await;
                }
            }
        }
        Ok(())
    }
}

impl Core {
    async fn tell(&self, command: Command) {
        if let Some(membership) = &self.membership {
            membership.tell(command).await;
        }
    }
}

/// The span of one phase of a rebalance, which lasts for as long as the listener's call.
fn span_of(core: &Core, phase: &'static str, partitions: usize) -> Span {
    let group_id = core.settings.group_id.as_ref().map_or("", |group_id| group_id.as_str());
    let generation = core.membership.as_ref().map_or(-1, |membership| membership.shared.identity().1);
    tracing::info_span!("rebalance", phase, group_id, generation, partitions)
}

/// Calls the listener, then gives the partitions up.
pub(super) async fn give_up(
    core: &mut Core,
    listener: &mut Option<Box<dyn RebalanceListener>>,
    going: Vec<TopicPartition>,
) {
    if going.is_empty() {
        return;
    }
    let span = span_of(core, "revoked", going.len());
    if let Some(listener) = listener {
        listener.revoked(Rebalance { core: &mut *core }, &going).instrument(span).await;
    }
    core.fetcher.remove(&going);
}

/// Calls the listener, then forgets all partitions.
pub(super) async fn lose(
    core: &mut Core,
    listener: &mut Option<Box<dyn RebalanceListener>>,
    gone: Vec<TopicPartition>,
    reason: LostReason,
) {
    if gone.is_empty() {
        return;
    }
    tracing::warn!(?reason, count = gone.len(), "partitions were lost");
    let span = span_of(core, "lost", gone.len());
    if let Some(listener) = listener {
        listener.lost(Rebalance { core: &mut *core }, &gone, reason).instrument(span).await;
    }
    core.fetcher.clear();
}
