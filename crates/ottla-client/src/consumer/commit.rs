//! Commits: one after the other in the order they were asked for, so that an older one never overwrites a newer.
//!
//! A task of its own sends them; who waits holds a `PendingCommit`, which may be dropped. The member id and
//! generation are those of the moment of sending, so that a KIP-848 member whose epoch has just moved is not
//! refused for it.

use std::sync::Arc;

use ottla_env::spawn::{self, TaskHandle};
use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;
use tokio::sync::{mpsc, oneshot};

use super::error::CommitError;
use super::group::Shared;
use super::settings::ConsumerSettings;
use crate::cluster::Cluster;
use crate::offsets::{self, OffsetsError};
use crate::record::{GroupMetadata, OffsetToCommit};

/// Commits that may wait.
const COMMITS_MAX: usize = 256;

/// A commit that was handed over. Dropping it does not take it back.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # use std::time::Duration;
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client.clone())).await?;
/// # producer.send(Record::to("orders").value("a lamp")).await?.wait().await?;
/// # let settings = ConsumerSettings::new(client.clone()).group_id("shop").offset_reset(OffsetReset::Earliest);
/// # let mut consumer = Consumer::connect(settings).await?;
/// # consumer.assign(&[(TopicPartition::new("orders", 0), StartAt::Beginning)]).await?;
/// use ottla_client::OffsetToCommit;
///
/// let pending = consumer.start_commit(vec![OffsetToCommit::new(TopicPartition::new("orders", 0), 1)])?;
/// // ... other work ...
/// pending.wait().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Debug)]
#[must_use = "the outcome is only known to who waits for it"]
pub struct PendingCommit {
    done: oneshot::Receiver<Result<(), CommitError>>,
}

impl PendingCommit {
    /// Waits for the outcome. If the future is dropped, the offsets may be committed all the same.
    pub async fn wait(self) -> Result<(), CommitError> {
        self.done.await.unwrap_or(Err(CommitError::Closed))
    }

    /// The outcome, if it is known.
    pub(super) fn poll(&mut self) -> Option<Result<(), CommitError>> {
        match self.done.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(CommitError::Closed)),
        }
    }
}

struct Job {
    offsets: Vec<OffsetToCommit>,
    member: Option<Arc<Shared>>,
    done: oneshot::Sender<Result<(), CommitError>>,
}

/// Sends commits.
#[derive(Debug)]
pub(super) struct Committer {
    jobs: mpsc::Sender<Job>,
    task: TaskHandle<()>,
    has_group: bool,
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Committer {
    pub(super) fn start(cluster: Cluster, settings: Arc<ConsumerSettings>) -> Self {
        let (jobs, queue) = mpsc::channel(COMMITS_MAX);
        let has_group = settings.group_id.is_some();
        Self { jobs, task: spawn::task("consumer-commit", run(cluster, settings, queue)), has_group }
    }

    /// Hands offsets over; with `member` in its name.
    pub(super) fn submit(
        &self,
        offsets: Vec<OffsetToCommit>,
        member: Option<&Arc<Shared>>,
    ) -> Result<PendingCommit, CommitError> {
        if !self.has_group {
            return Err(CommitError::NoGroup);
        }
        let (sender, done) = oneshot::channel();
        let job = Job { offsets, member: member.cloned(), done: sender };
        match self.jobs.try_send(job) {
            Ok(()) => Ok(PendingCommit { done }),
            Err(mpsc::error::TrySendError::Full(_)) => Err(CommitError::TooMany { waiting: COMMITS_MAX }),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(CommitError::Closed),
        }
    }
}

async fn run(cluster: Cluster, settings: Arc<ConsumerSettings>, mut queue: mpsc::Receiver<Job>) {
    let Some(group_id) = settings.group_id.clone() else { return };
    while let Some(Job { offsets, member, done }) = queue.recv().await {
        let outcome = if offsets.is_empty() {
            Ok(())
        } else {
            commit(&cluster, &settings, &group_id, &offsets, member.as_deref()).await
        };
        if let Err(error) = &outcome {
            tracing::debug!(%group_id, %error, "offsets were not committed");
        }
        let _ = done.send(outcome); // nobody waits: fine
    }
}

/// Commits, again while a member's epoch moves on.
async fn commit(
    cluster: &Cluster,
    settings: &ConsumerSettings,
    group_id: &Text,
    offsets: &[OffsetToCommit],
    member: Option<&Shared>,
) -> Result<(), CommitError> {
    let deadline = cluster.deadline();
    let mut backoff = cluster.backoff();
    loop {
        let mut group = GroupMetadata::without_members(group_id.clone());
        if let Some(member) = member {
            (group.member_id, group.generation_id) = member.identity();
            group.group_instance_id = settings.group_instance_id.clone();
            if !member.is_member() {
                return Err(not_member(group_id, member.is_rebalancing(), ErrorCode::UnknownMemberId));
            }
        }
        let code = match offsets::commit(cluster, &group, offsets).await {
            Err(OffsetsError::Group { code, .. }) => code,
            outcome => return outcome.map_err(CommitError::from),
        };
        match code {
            ErrorCode::RebalanceInProgress => {
                return Err(CommitError::RebalanceInProgress { group_id: group_id.clone() });
            }
            ErrorCode::StaleMemberEpoch if member.is_some() => {
                let until = time::now() + backoff.next();
                if until >= deadline {
                    return Err(not_member(group_id, false, code));
                }
                time::sleep_until(until).await;
            }
            // the generation moved on while we were asking: the rebalance is what is wrong
            ErrorCode::IllegalGeneration if member.is_some_and(Shared::is_rebalancing) => {
                return Err(CommitError::RebalanceInProgress { group_id: group_id.clone() });
            }
            ErrorCode::IllegalGeneration
            | ErrorCode::UnknownMemberId
            | ErrorCode::FencedInstanceId
            | ErrorCode::FencedMemberEpoch => return Err(not_member(group_id, false, code)),
            code => return Err(OffsetsError::Group { group_id: group_id.clone(), code }.into()),
        }
    }
}

fn not_member(group_id: &Text, is_joining: bool, code: ErrorCode) -> CommitError {
    let group_id = group_id.clone();
    if is_joining {
        CommitError::RebalanceInProgress { group_id }
    } else {
        CommitError::NotMember { group_id, code }
    }
}
