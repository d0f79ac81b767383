//! The consumer: it reads chosen partitions, or those that its group gives it, in either isolation level.
//!
//! Place: `poll` is what users call, and everything that changes what is read happens inside of it. Below it
//! `fetcher` reads, `group` is the member of the group in the background, `rebalance` brings the two together,
//! `commit` sends offsets.
//!
//! Invariants: a record is returned once per position; nothing is taken out of the buffer before the call that
//! returns it has nothing left to wait for, so a `poll` that is dropped loses nothing; partitions come and go only
//! in `poll`, with the listener called.

mod assignor;
mod commit;
mod error;
mod fetcher;
mod group;
mod isolation;
mod positions;
mod reader;
mod rebalance;
mod settings;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;

use crate::cluster::{Cluster, ClusterError};
use crate::offsets::{self, EARLIEST, LATEST, OffsetAndTimestamp, OffsetsError};
use crate::record::{CommittedOffset, GroupMetadata, Header, OffsetToCommit, TopicPartition};
use commit::Committer;
use fetcher::{Fetcher, Place, Position};
use group::topics::Subscription;
use group::{Command, Membership};
use rebalance::{Core, Underway};

pub use assignor::{Assignor, CustomAssignor, MemberSubscription, PartitionAssignor};
pub use commit::PendingCommit;
pub use error::{CommitError, ConsumerError};
pub use fetcher::ConsumerMetrics;
pub use group::{GroupError, LostReason};
pub use rebalance::{Callback, Rebalance, RebalanceListener};
pub use settings::{ConsumerSettings, GroupProtocol, IsolationLevel, OffsetReset};

/// How long `close` waits for the cluster.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long `close` waits for each broker to end its fetch session.
const SESSION_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A record that was read.
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
/// for record in consumer.poll(Duration::from_secs(1)).await? {
///     let text = record.value.as_deref().map(String::from_utf8_lossy);
///     println!("{} at {}: {text:?}, {} headers", record.topic_partition, record.offset, record.headers.len());
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRecord {
    /// Where it was.
    pub topic_partition: TopicPartition,
    /// Its offset.
    pub offset: i64,
    /// Leader epoch of its partition when it was written; -1 when the broker did not say.
    pub leader_epoch: i32,
    /// Its time in ms since the Unix epoch.
    pub timestamp: i64,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value.
    pub value: Option<Bytes>,
    /// Its headers, in order. Names that are not UTF-8 are shown with replacement characters.
    pub headers: Vec<Header>,
}

/// Where to begin.
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
/// use ottla_client::{StartAt, TopicPartition};
///
/// consumer.assign(&[(TopicPartition::new("orders", 0), StartAt::Timestamp(1_700_000_000_000))]).await?;
/// consumer.assign_topic(&"orders".into(), StartAt::Beginning).await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// The first record that is still there.
    Beginning,
    /// Behind the last: only what is written from now on.
    End,
    /// That offset.
    Offset(i64),
    /// The first record that is not older (ms since the Unix epoch); the end when there is none.
    Timestamp(i64),
    /// Where `group.id` has committed, else where `auto.offset.reset` says. Found by `poll`.
    Committed,
}

/// How far a partition is read.
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
/// let at = TopicPartition::new("orders", 0);
/// consumer.poll(Duration::from_secs(1)).await?;
/// if let Some(lag) = consumer.lag(&at) {
///     println!("{} to read, {} behind an open transaction", lag.behind, lag.hidden);
/// }
/// # assert_eq!(consumer.lag(&at), Some(ottla_client::Lag { behind: 0, hidden: 0 }));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Offsets between the position and the end of what can be read.
    pub behind: i64,
    /// Offsets beyond that, which are hidden until an open transaction ends; 0 with `read_uncommitted`.
    pub hidden: i64,
}

/// Reads partitions: those it is given, or those its group gives it.
///
/// Partitions by hand:
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client.clone())).await?;
/// # producer.send(Record::to("orders").value("a lamp")).await?.wait().await?;
/// use std::time::Duration;
/// use ottla_client::{Consumer, ConsumerSettings, StartAt, TopicPartition};
///
/// let mut consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
/// consumer.assign(&[(TopicPartition::new("orders", 0), StartAt::Beginning)]).await?;
/// let records = consumer.poll(Duration::from_secs(1)).await?;
/// for record in &records {
///     println!("{} {:?}", record.offset, record.value);
/// }
/// # assert_eq!(records.len(), 1);
/// # Ok(())
/// # });
/// ```
///
/// As a member of a group:
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client.clone())).await?;
/// # producer.send(Record::to("orders").value("a lamp")).await?.wait().await?;
/// use std::time::Duration;
/// use ottla_client::{Consumer, ConsumerSettings, OffsetReset};
///
/// let settings = ConsumerSettings::new(client).group_id("shop").offset_reset(OffsetReset::Earliest);
/// let mut consumer = Consumer::connect(settings).await?;
/// consumer.subscribe(&["orders"]).await?;
/// let mut seen = 0;
/// while seen < 1 {
///     for record in consumer.poll(Duration::from_secs(1)).await? {
///         println!("{} {:?}", record.offset, record.value);
///         seen += 1;
///     }
///     consumer.commit_positions().await?;
/// }
/// consumer.close().await?;
/// # Ok(())
/// # });
/// ```
///
/// A consumer that is dropped without `close` ends its tasks, but the coordinator hears of it only when the
/// session times out.
pub struct Consumer {
    core: Core,
    listener: Option<Box<dyn RebalanceListener>>,
    underway: Option<Underway>,
    /// Why there is no membership any more.
    failed: Option<GroupError>,
    next_auto_commit: Instant,
    auto_commit: Option<PendingCommit>,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Consumer {
    /// Connects. Cancel-safe.
    pub async fn connect(settings: ConsumerSettings) -> Result<Self, ClusterError> {
        settings.check()?;
        let settings = Arc::new(settings);
        let cluster = Cluster::connect(settings.client.clone()).await?;
        let next_auto_commit = time::now() + settings.auto_commit_interval;
        let core = Core {
            fetcher: Fetcher::new(cluster.clone(), Arc::clone(&settings)),
            committer: Committer::start(cluster, Arc::clone(&settings)),
            settings,
            membership: None,
        };
        Ok(Self { core, listener: None, underway: None, failed: None, next_auto_commit, auto_commit: None })
    }

    /// The cluster, to look up topics.
    pub fn cluster(&self) -> &Cluster {
        &self.core.fetcher.cluster
    }

    /// Counters since the consumer was made.
    pub fn metrics(&self) -> ConsumerMetrics {
        self.core.fetcher.metrics
    }

    /// Replaces what is read. If the future is dropped, the former assignment stays.
    pub async fn assign(&mut self, partitions: &[(TopicPartition, StartAt)]) -> Result<(), ConsumerError> {
        if self.core.membership.is_some() {
            return Err(ConsumerError::Subscribed);
        }
        let mut places = BTreeMap::new();
        let mut wanted = BTreeMap::new();
        for (at, start) in partitions {
            let timestamp = match start {
                StartAt::Committed => {
                    places.insert(at.clone(), Place::Committed);
                    continue;
                }
                StartAt::Offset(offset) => {
                    places.insert(at.clone(), place(*offset));
                    continue;
                }
                StartAt::Beginning => EARLIEST,
                StartAt::End => LATEST,
                StartAt::Timestamp(timestamp) => (*timestamp).max(0),
            };
            wanted.insert(at.clone(), timestamp);
        }
        let mut later = Vec::new();
        for (at, found) in self.list(wanted).await? {
            match found {
                Some(found) => drop(places.insert(at, place(found.offset))),
                None => later.push(at),
            }
        }
        places.extend(self.end_offsets(&later).await?.into_iter().map(|(at, offset)| (at, place(offset))));
        self.failed = None;
        self.core.fetcher.is_subscribed = false;
        self.core.fetcher.member = None;
        self.core.fetcher.clear();
        self.core.fetcher.add(places);
        Ok(())
    }

    /// Replaces what is read with all partitions of a topic. If the future is dropped, nothing changes.
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
    /// use ottla_client::{StartAt, TopicPartition};
    ///
    /// consumer.assign_topic(&"orders".into(), StartAt::Beginning).await?;
    /// let at = TopicPartition::new("orders", 0);
    /// assert_eq!(consumer.assignment(), [at.clone()]);
    /// let records = consumer.poll(Duration::from_secs(1)).await?;
    /// assert_eq!(consumer.position(&at), Some(1));
    /// println!("read up to {:?} of {:?}, {:?}", consumer.positions(), consumer.readable_end(&at), consumer.lag(&at));
    ///
    /// consumer.seek(&at, 0)?; // the same records again
    /// consumer.pause(&consumer.assignment())?;
    /// assert_eq!(consumer.paused(), [at.clone()]);
    /// assert_eq!(consumer.poll(Duration::ZERO).await?, []);
    /// consumer.resume(&[at])?;
    /// assert_eq!(consumer.poll(Duration::from_secs(1)).await?, records);
    /// println!("{:?}", consumer.metrics());
    /// # Ok(())
    /// # });
    /// ```
    pub async fn assign_topic(&mut self, topic: &Text, start: StartAt) -> Result<(), ConsumerError> {
        let count = self.cluster().refresh_topic_or_wait(topic).await?.partition_count();
        let partitions: Vec<_> =
            (0..count).map(|partition| (TopicPartition::new(topic.clone(), partition), start)).collect();
        self.assign(&partitions).await
    }

    /// Becomes a member of the group and reads what it gives from these topics; `poll` takes part in everything.
    /// Replaces an earlier subscription, which ends with a rebalance, and partitions assigned by hand. Topics that
    /// do not exist yet are read once they do. Cancel-safe.
    pub async fn subscribe(&mut self, topics: &[&str]) -> Result<(), ConsumerError> {
        let subscription = Subscription::topics(topics).map_err(ClusterError::from)?;
        self.join(subscription).await
    }

    /// The same for all topics whose whole name matches the regular expression, but Kafka's internal ones. New
    /// topics are found within `metadata.max.age.ms`. With `group.protocol=consumer` the broker matches, by RE2's
    /// rules; else this client, by those of the `regex` crate. Cancel-safe.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let client = ClientSettings::new(bootstrap)?;
    /// # let admin = Admin::connect(client.clone()).await?;
    /// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
    /// use std::time::Duration;
    /// use ottla_client::{Callback, Consumer, ConsumerSettings, OffsetReset};
    /// use ottla_client::{Rebalance, RebalanceListener, TopicPartition};
    ///
    /// struct Says;
    ///
    /// impl RebalanceListener for Says {
    ///     fn assigned<'a>(&'a mut self, _: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
    ///         println!("{} partitions came", partitions.len());
    ///         Box::pin(std::future::ready(()))
    ///     }
    /// }
    ///
    /// let settings = ConsumerSettings::new(client).group_id("shop").offset_reset(OffsetReset::Earliest);
    /// let mut consumer = Consumer::connect(settings).await?;
    /// consumer.set_listener(Says);
    /// consumer.subscribe_pattern("orders|invoices-.*").await?;
    /// while consumer.assignment().is_empty() {
    ///     consumer.poll(Duration::from_millis(100)).await?;
    /// }
    /// println!("{:?} of {:?}", consumer.group_metadata(), consumer.cluster().cluster_id());
    /// consumer.unsubscribe().await;
    /// assert!(consumer.assignment().is_empty());
    /// # Ok(())
    /// # });
    /// ```
    pub async fn subscribe_pattern(&mut self, pattern: &str) -> Result<(), ConsumerError> {
        let subscription = Subscription::pattern(pattern).map_err(ClusterError::from)?;
        self.join(subscription).await
    }

    /// Sets who is told when partitions come and go.
    pub fn set_listener(&mut self, listener: impl RebalanceListener + 'static) {
        self.listener = Some(Box::new(listener));
    }

    async fn join(&mut self, subscription: Subscription) -> Result<(), ConsumerError> {
        let Some(group_id) = self.core.settings.group_id.clone() else {
            return Err(GroupError::NoGroup.into());
        };
        self.failed = None;
        if let Some(membership) = &mut self.core.membership {
            membership.subscription = subscription.clone();
            membership.tell(Command::Subscribe(subscription)).await;
            return Ok(());
        }
        self.core.fetcher.clear();
        self.core.fetcher.is_subscribed = true;
        self.core.fetcher.member = None;
        let (cluster, settings) = (&self.core.fetcher.cluster, &self.core.settings);
        let membership = Membership::start(cluster, settings, &group_id, subscription);
        if settings.group_protocol == GroupProtocol::Consumer {
            self.core.fetcher.member = Some(Arc::clone(&membership.shared));
        }
        self.core.membership = Some(membership);
        Ok(())
    }

    /// Leaves the group and reads nothing any more: commits first if `enable.auto.commit` says so, and calls
    /// `RebalanceListener::revoked`, or `lost` when the membership has ended already. If the future is dropped,
    /// call it again.
    pub async fn unsubscribe(&mut self) {
        self.leave(time::now() + CLOSE_TIMEOUT).await;
    }

    async fn leave(&mut self, deadline: Instant) {
        let owned = self.core.fetcher.assignment();
        if time::timeout_at(deadline, self.core.auto_commit(&owned)).await.is_err() {
            tracing::warn!("positions were not committed in time");
        }
        match &self.core.membership {
            Some(membership) if membership.shared.is_member() => {
                rebalance::give_up(&mut self.core, &mut self.listener, owned).await;
            }
            Some(_) => {
                let reason = LostReason::Fenced(ErrorCode::UnknownMemberId);
                rebalance::lose(&mut self.core, &mut self.listener, owned, reason).await;
            }
            None => {}
        }
        self.underway = None;
        self.core.fetcher.clear();
        self.core.fetcher.is_subscribed = false;
        self.core.fetcher.member = None;
        if let Some(membership) = self.core.membership.take() {
            membership.leave(deadline).await;
        }
    }

    /// Ends in order: commits if `enable.auto.commit` says so, calls `RebalanceListener::revoked`, leaves the
    /// group (a static member does not) and waits for commits under way. Takes at most 30 s and what the listener
    /// takes; the error is that of a commit. If the future is dropped, the rest is left to time-outs.
    pub async fn close(mut self) -> Result<(), ConsumerError> {
        let deadline = time::now() + CLOSE_TIMEOUT;
        // everything that was handed over before this has been answered when this has
        let last = self.core.commit(Vec::new()).ok();
        self.leave(deadline).await;
        if let Some(last) = last {
            time::timeout_at(deadline, last.wait()).await.unwrap_or(Err(CommitError::Closed))?;
        }
        self.core.fetcher.close(time::now() + SESSION_CLOSE_TIMEOUT).await;
        Ok(())
    }

    /// The partitions that are read, in order.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.core.fetcher.assignment()
    }

    /// Who commits, for `Transaction::send_offsets` (KIP-447). Absent without `group.id`. Ask for it in each
    /// transaction anew and without a `poll` in between: it changes with every rebalance. A member that was given
    /// up keeps its old name until it has joined again, so that the broker refuses its offsets.
    pub fn group_metadata(&self) -> Option<GroupMetadata> {
        self.core.group_metadata()
    }

    /// Moves a partition's position.
    pub fn seek(&mut self, topic_partition: &TopicPartition, offset: i64) -> Result<(), ConsumerError> {
        self.core.fetcher.seek(topic_partition, place(offset))
    }

    /// Moves a partition's position to what its group has committed, else to where `auto.offset.reset` says; the
    /// next `poll` finds out. What an aborted transaction has read is read again.
    pub fn seek_to_committed(&mut self, topic_partition: &TopicPartition) -> Result<(), ConsumerError> {
        self.core.fetcher.seek(topic_partition, Place::Committed)
    }

    /// Holds partitions back: `poll` returns nothing of them until `resume`. What is buffered stays.
    pub fn pause(&mut self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        self.core.fetcher.set_paused(partitions, true)
    }

    /// Lets partitions go on.
    pub fn resume(&mut self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        self.core.fetcher.set_paused(partitions, false)
    }

    /// The partitions that are held back, in order.
    pub fn paused(&self) -> Vec<TopicPartition> {
        self.core.fetcher.paused()
    }

    /// The offset of the next record that `poll` may return; absent when the partition is not assigned, or its
    /// position has not been found yet.
    pub fn position(&self, topic_partition: &TopicPartition) -> Option<i64> {
        self.core.fetcher.position(topic_partition)
    }

    /// The positions of all assigned partitions as far as they are known: what `commit_positions` commits.
    pub fn positions(&self) -> Vec<OffsetToCommit> {
        self.core.fetcher.positions(|_| true)
    }

    /// How far this consumer could read when the broker last answered for the partition: its high watermark, or
    /// with `read_committed` its last stable offset.
    pub fn readable_end(&self, topic_partition: &TopicPartition) -> Option<i64> {
        self.core.fetcher.readable_end(topic_partition)
    }

    /// How far the partition is read, as of the broker's last answer; absent before it.
    pub fn lag(&self, topic_partition: &TopicPartition) -> Option<Lag> {
        self.core.fetcher.lag(topic_partition)
    }

    /// Returns up to `max.poll.records` records, waiting for the first at most `wait`; none when there are none.
    /// The next fetch runs while the caller works. Rebalances happen in here, and take as long as the listener
    /// does. Cancel-safe: nothing that was fetched is lost, and an event of the group is handled by the next call.
    pub async fn poll(&mut self, wait: Duration) -> Result<Vec<ConsumerRecord>, ConsumerError> {
        let deadline = time::now() + wait;
        self.commit_by_time();
        loop {
            if let Some(error) = &self.failed {
                return Err(error.clone().into());
            }
            self.follow_group().await?;
            self.core.fetcher.take_reports()?;
            // from here to the return there is nothing to wait for
            let records = self.core.fetcher.take_ready()?;
            let next = self.core.fetcher.start_work(time::now());
            if !records.is_empty() {
                return Ok(records);
            }
            if time::now() >= deadline {
                return Ok(Vec::new());
            }
            let wake = next.min(deadline);
            self.core.fetcher.set_waiting(true);
            match &mut self.core.membership {
                None => tokio::select! {
                    report = self.core.fetcher.reports.recv() => {
                        self.core.fetcher.handle(report.expect("the fetcher holds the other end"))?;
                    }
                    () = time::sleep_until(wake) => {}
                },
                Some(membership) => tokio::select! {
                    report = self.core.fetcher.reports.recv() => {
                        self.core.fetcher.handle(report.expect("the fetcher holds the other end"))?;
                    }
                    Some(event) = membership.events.recv() => self.underway = Some(Underway::new(event)),
                    () = time::sleep_until(wake) => {}
                },
            }
            self.core.fetcher.set_waiting(false);
        }
    }

    /// Handles what the group has sent.
    async fn follow_group(&mut self) -> Result<(), ConsumerError> {
        loop {
            let Some(membership) = &mut self.core.membership else { return Ok(()) };
            membership.polled();
            if self.underway.is_none() {
                let Ok(event) = membership.events.try_recv() else { return Ok(()) };
                self.underway = Some(Underway::new(event));
            }
            if let Some(underway) = &mut self.underway {
                let outcome = underway.carry_on(&mut self.core, &mut self.listener).await;
                self.underway = None;
                if let Err(ConsumerError::Group(error)) = &outcome {
                    self.failed = Some(error.clone());
                }
                outcome?;
            }
        }
    }

    /// What `enable.auto.commit` owes: positions of what earlier calls have returned.
    fn commit_by_time(&mut self) {
        if let Some(outcome) = self.auto_commit.as_mut().and_then(PendingCommit::poll) {
            self.auto_commit = None;
            if let Err(error) = outcome {
                tracing::warn!(%error, "automatic commit failed; the next one covers it");
            }
        }
        let now = time::now();
        if !self.core.settings.auto_commit || now < self.next_auto_commit || self.auto_commit.is_some() {
            return;
        }
        self.next_auto_commit = now + self.core.settings.auto_commit_interval;
        match self.core.commit(self.positions()) {
            Ok(pending) => self.auto_commit = Some(pending),
            Err(error) => tracing::warn!(%error, "automatic commit failed; the next one covers it"),
        }
    }

    async fn list(
        &self,
        wanted: BTreeMap<TopicPartition, i64>,
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>, OffsetsError> {
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        offsets::list(self.cluster(), self.core.settings.isolation.code(), wanted).await
    }

    /// Offsets of the first records not older than the given times (ms); absent where there is none. Cancel-safe.
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
    /// use ottla_client::TopicPartition;
    ///
    /// let partitions = [TopicPartition::new("orders", 0)];
    /// let first = consumer.beginning_offsets(&partitions).await?[&partitions[0]];
    /// let end = consumer.end_offsets(&partitions).await?[&partitions[0]];
    /// assert_eq!((first, end), (0, 1));
    /// let found = consumer.offsets_for_times(&[(partitions[0].clone(), 1_700_000_000_000)]).await?;
    /// println!("{:?}", found[&partitions[0]]); // absent: nothing is that young
    /// # Ok(())
    /// # });
    /// ```
    pub async fn offsets_for_times(
        &self,
        times: &[(TopicPartition, i64)],
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>, ConsumerError> {
        Ok(self.list(times.iter().map(|(at, time)| (at.clone(), (*time).max(0))).collect()).await?)
    }

    /// Offsets of the first records still there. Cancel-safe.
    pub async fn beginning_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        self.ends(partitions, EARLIEST).await
    }

    /// Offsets behind the last readable records: with `read_committed` the last stable offset. Cancel-safe.
    pub async fn end_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        self.ends(partitions, LATEST).await
    }

    async fn ends(
        &self,
        partitions: &[TopicPartition],
        which: i64,
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        let found = self.list(partitions.iter().map(|at| (at.clone(), which)).collect()).await?;
        Ok(found.into_iter().map(|(at, found)| (at, found.map_or(0, |found| found.offset))).collect())
    }

    /// What a group has committed for these partitions; waits while a transaction holds an offset open.
    /// Cancel-safe.
    pub async fn committed(
        &self,
        group_id: &Text,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, ConsumerError> {
        Ok(offsets::committed(self.cluster(), group_id, Some(partitions)).await?)
    }

    /// Commits the positions of all assigned partitions and waits for the answer. Commits of one consumer are
    /// carried out in the order they were asked for. If the future is dropped, they may be committed.
    pub async fn commit_positions(&self) -> Result<(), CommitError> {
        self.core.commit(self.positions())?.wait().await
    }

    /// The same for these offsets.
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
    /// use ottla_client::{GroupMetadata, OffsetToCommit, StartAt, TopicPartition};
    ///
    /// let at = TopicPartition::new("orders", 0);
    /// consumer.commit_offsets(&[OffsetToCommit::new(at.clone(), 1)]).await?;
    /// // or go on, and look at the outcome later
    /// let pending = consumer.start_commit(vec![OffsetToCommit::new(at.clone(), 0)])?;
    /// pending.wait().await?;
    /// assert_eq!(consumer.committed(&"shop".into(), &[at.clone()]).await?[0].offset, Some(0));
    ///
    /// consumer.seek_to_committed(&at)?;
    /// consumer.poll(Duration::from_secs(1)).await?;
    /// consumer.commit_positions().await?;
    ///
    /// // for any other group that has no members
    /// consumer.commit(&GroupMetadata::without_members("audit"), &[OffsetToCommit::new(at, 1)]).await?;
    /// # Ok(())
    /// # });
    /// ```
    pub async fn commit_offsets(&self, offsets: &[OffsetToCommit]) -> Result<(), CommitError> {
        self.core.commit(offsets.to_vec())?.wait().await
    }

    /// Hands offsets over to be committed while the caller goes on.
    pub fn start_commit(&self, offsets: Vec<OffsetToCommit>) -> Result<PendingCommit, CommitError> {
        self.core.commit(offsets)
    }

    /// Commits offsets for any group, outside of any transaction. If the future is dropped, they may be committed.
    pub async fn commit(
        &self,
        group: &GroupMetadata,
        offsets: &[OffsetToCommit],
    ) -> Result<(), ConsumerError> {
        if offsets.is_empty() {
            return Ok(());
        }
        Ok(offsets::commit(self.cluster(), group, offsets).await?)
    }
}

fn place(offset: i64) -> Place {
    Place::At(Position { offset, leader_epoch: -1 })
}
