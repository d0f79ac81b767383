//! One request for many items: ask where each belongs, repeat what was not answered for good, answer per item.
//!
//! Place: under every batched call of `Admin`. A `Call` says where an item is asked for, how a request is made of
//! several, and how its answer is read; `Admin::run` groups items by broker, sends, and goes on with those whose
//! answer means "not now" or "not here" until `default.api.timeout.ms`.
//!
//! Invariant: every item that was handed in has exactly one result. An item that an answer leaves out is an error of
//! its own, never a success.

use std::collections::{BTreeMap, BTreeSet};

use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::Request;
use ottla_protocol::types::Text;

use super::{Admin, AdminError};
use crate::cluster::{ClusterError, CoordinatorKind, Lane};
use crate::connection::Versions;
use crate::error::{CallError, wants_coordinator, wants_metadata};
use crate::record::TopicPartition;

/// Most items in one request: brokers bound what an admin request may ask for.
const ITEMS_MAX: usize = 1000;

/// Where an item is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// At the controller; at any broker while nobody knows it.
    Controller,
    /// At this broker.
    Node(i32),
    /// At the leader of a partition.
    Leader(TopicPartition),
    /// At the coordinator of a group.
    Group(Text),
    /// At the coordinator of a transactional id.
    TransactionalId(Text),
}

/// What a broker said no with.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) code: ErrorCode,
    pub(super) message: Option<Text>,
}

/// The result of one item in one answer.
pub(super) type Item<T> = Result<T, Refusal>;

/// Reads an error code and message: `Ok` for none.
pub(super) fn item<T>(code: i16, message: Option<&Text>, value: impl FnOnce() -> T) -> Item<T> {
    match ErrorCode::from_code(code) {
        ErrorCode::None => Ok(value()),
        code => {
            let message = message.filter(|message| !message.as_str().is_empty()).map(Text::detached);
            Err(Refusal { code, message })
        }
    }
}

/// Results by item.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::NewTopic;
///
/// let topics = [NewTopic::new("invoices", 1), NewTopic::new("orders", 1)];
/// let results = admin.create_topics(&topics, false).await;
/// for (name, result) in &results {
///     match result {
///         Ok(created) => println!("{name} has {} partitions", created.partition_count),
///         Err(error) => println!("{error}"), // of this topic alone
///     }
/// }
/// assert!(results[&topics[0].name].is_ok() && results[&topics[1].name].is_err());
/// # Ok(())
/// # });
/// ```
pub type Results<K, T> = BTreeMap<K, Result<T, AdminError>>;

/// A kind of request that carries many items.
pub(super) trait Call {
    /// What is asked for.
    type Key: Ord + Clone;
    /// The request.
    type Request: Request;
    /// What an item's answer holds.
    type Value;
    /// Versions of the request that `request` and `read` understand.
    const USABLE: Versions;

    /// Where an item is asked for.
    fn place(&self, key: &Self::Key) -> Place;
    /// The request for these items, which belong to one place.
    fn request(&self, keys: &[Self::Key]) -> Self::Request;
    /// The results that an answer holds.
    fn read(
        &self,
        keys: &[Self::Key],
        answer: <Self::Request as Request>::Response,
    ) -> Vec<(Self::Key, Item<Self::Value>)>;
    /// What was asked for, for messages.
    fn what(&self, key: &Self::Key) -> String;
    /// Whether a refusal may go away by itself.
    fn again(&self, code: ErrorCode) -> bool {
        code.is_retriable()
    }
    /// What a refusal means when an earlier attempt may have been carried out: "already there" is then success.
    fn after_lost(&self, _code: ErrorCode) -> Option<Self::Value> {
        None
    }
}

/// An item on its way.
struct Open {
    /// An earlier attempt may have been carried out.
    lost: bool,
    /// Why it is not done yet.
    last: Option<AdminError>,
}

/// Controllers do not wait for topics to appear: these are final there.
pub(super) fn again_at_controller(code: ErrorCode) -> bool {
    let final_there = matches!(
        code,
        ErrorCode::UnknownTopicOrPartition
            | ErrorCode::UnknownTopicId
            | ErrorCode::ElectionNotNeeded
            | ErrorCode::PreferredLeaderNotAvailable
            | ErrorCode::EligibleLeadersNotAvailable
    );
    code.is_retriable() && !final_there
}

impl Admin {
    /// Asks for all items and waits for their results. Sends again what was not answered, so whoever drops the
    /// future does not know how far it came.
    pub(super) async fn run<C: Call>(&self, call: &C, keys: Vec<C::Key>) -> Results<C::Key, C::Value> {
        let times = (time::now(), self.cluster.deadline());
        let deadline = times.1;
        let mut backoff = self.cluster.backoff();
        let mut done = BTreeMap::new();
        let mut open: BTreeMap<C::Key, Open> =
            keys.into_iter().map(|key| (key, Open { lost: false, last: None })).collect();
        while !open.is_empty() {
            for (node, keys) in self.by_node(call, &mut open, &mut done, times).await {
                for keys in keys.chunks(ITEMS_MAX) {
                    let answer = self.ask(node, &call.request(keys), C::USABLE).await;
                    if self.take(call, keys, answer, &mut open, &mut done)
                        && let Err(error) = self.cluster.refresh_brokers(deadline).await
                    {
                        tracing::debug!(%error, "nobody says who the controller is"); // the next round finds out
                    }
                }
            }
            if open.is_empty() {
                break;
            }
            let until = time::now() + backoff.next();
            if until >= deadline {
                for (key, item) in std::mem::take(&mut open) {
                    let error = item.last.unwrap_or_else(|| AdminError::Unanswered { what: call.what(&key) });
                    done.insert(key, Err(error));
                }
                break;
            }
            time::sleep_until(until).await;
        }
        done
    }

    /// The same for one item.
    pub(super) async fn run_one<C: Call>(&self, call: &C, key: C::Key) -> Result<C::Value, AdminError> {
        let mut results = self.run(call, vec![key]).await;
        results.pop_first().expect("every item has a result").1
    }

    /// The open items by the broker to ask; `None` is any. Items that belong nowhere are done. The times are when
    /// the call began and when it gives up.
    async fn by_node<C: Call>(
        &self,
        call: &C,
        open: &mut BTreeMap<C::Key, Open>,
        done: &mut Results<C::Key, C::Value>,
        (since, deadline): (time::Instant, time::Instant),
    ) -> BTreeMap<Option<i32>, Vec<C::Key>> {
        let mut by_node: BTreeMap<Option<i32>, Vec<C::Key>> = BTreeMap::new();
        let keys: Vec<C::Key> = open.keys().cloned().collect();
        for key in keys {
            let node = match call.place(&key) {
                Place::Controller => Ok(self.cluster.controller()),
                Place::Node(node) => Ok(Some(node)),
                Place::Leader(at) => self.cluster.leader(&at.topic, at.partition, since).await.map(Some),
                Place::Group(id) => {
                    self.cluster.coordinator(CoordinatorKind::Group, &id, deadline).await.map(Some)
                }
                Place::TransactionalId(id) => {
                    self.cluster.coordinator(CoordinatorKind::Transaction, &id, deadline).await.map(Some)
                }
            };
            match node {
                Ok(node) => by_node.entry(node).or_default().push(key),
                Err(error) => {
                    open.remove(&key);
                    done.insert(key, Err(error.into()));
                }
            }
        }
        by_node
    }

    async fn ask<R: Request>(
        &self,
        node: Option<i32>,
        request: &R,
        usable: Versions,
    ) -> Result<R::Response, CallError> {
        let connection = match node {
            Some(node_id) => self.cluster.node(node_id, Lane::Control).await,
            None => self.cluster.any().await,
        };
        connection?.call(request, usable).await
    }

    /// Sorts the items of one request into done and not yet. Says whether the controller may be another.
    fn take<C: Call>(
        &self,
        call: &C,
        keys: &[C::Key],
        answer: Result<<C::Request as Request>::Response, CallError>,
        open: &mut BTreeMap<C::Key, Open>,
        done: &mut Results<C::Key, C::Value>,
    ) -> bool {
        let mut moved = false;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                for key in keys {
                    self.forget(&call.place(key), None);
                    let Some(item) = open.get_mut(key) else { continue };
                    item.lost |= error.may_have_happened();
                    item.last = Some(ClusterError::from(error.clone()).into());
                    if error.is_retriable() {
                        moved |= call.place(key) == Place::Controller;
                    } else {
                        done.insert(key.clone(), Err(ClusterError::from(error.clone()).into()));
                        open.remove(key);
                    }
                }
                return moved;
            }
        };
        let mut unanswered: BTreeSet<C::Key> = keys.iter().cloned().collect();
        for (key, result) in call.read(keys, answer) {
            if !unanswered.remove(&key) {
                continue; // nobody asked for it, or it was said twice
            }
            let Some(item) = open.get_mut(&key) else { continue };
            let result = match result {
                Ok(value) => Ok(value),
                Err(refusal) => match call.after_lost(refusal.code).filter(|_| item.lost) {
                    Some(value) => Ok(value),
                    None => {
                        let Refusal { code, message } = refusal;
                        let error = AdminError::Refused { what: call.what(&key), code, message };
                        if call.again(code) {
                            item.lost |= code == ErrorCode::RequestTimedOut;
                            moved |= code == ErrorCode::NotController;
                            item.last = Some(error);
                            self.forget(&call.place(&key), Some(code));
                            continue;
                        }
                        Err(error)
                    }
                },
            };
            open.remove(&key);
            done.insert(key, result);
        }
        for key in unanswered {
            open.remove(&key);
            let error = AdminError::Unanswered { what: call.what(&key) };
            done.insert(key, Err(error));
        }
        moved
    }

    /// Forgets where something was: after a failed connection, or when a broker says that it is elsewhere.
    fn forget(&self, place: &Place, code: Option<ErrorCode>) {
        match place {
            Place::Leader(at) if code.is_none_or(wants_metadata) => self.cluster.forget_topic(&at.topic),
            Place::Group(id) if code.is_none_or(wants_coordinator) => {
                self.cluster.forget_coordinator(CoordinatorKind::Group, id);
            }
            Place::TransactionalId(id) if code.is_none_or(wants_coordinator) => {
                self.cluster.forget_coordinator(CoordinatorKind::Transaction, id);
            }
            Place::Controller | Place::Node(_) | Place::Leader(_) | Place::Group(_) => {}
            Place::TransactionalId(_) => {}
        }
    }
}
