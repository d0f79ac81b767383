//! Transactions as operators see them (KIP-664): which there are, who holds a partition open, and how to end one.

use std::collections::BTreeMap;

use ottla_protocol::messages::describe_producers_request::TopicRequest;
use ottla_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use ottla_protocol::messages::{
    DescribeProducersRequest, DescribeProducersResponse, DescribeTransactionsRequest,
    DescribeTransactionsResponse, InitProducerIdRequest, InitProducerIdResponse, ListTransactionsRequest,
    ListTransactionsResponse, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use ottla_protocol::types::{NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Text};

use super::items::{Call, Item, Place, Results, item};
use super::{Admin, AdminError};
use crate::cluster::CoordinatorKind;
use crate::connection::Versions;
use crate::record::TopicPartition;

/// `transaction.timeout.ms` of a producer that only fences: it never has a transaction.
const FENCE_TIMEOUT_MS: i32 = 60_000;

/// Which transactions are listed; the default is all.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let settings = TransactionalSettings::new(client, "worker-1");
/// # let mut producer = TransactionalProducer::init(settings).await?;
/// # let transaction = producer.begin().await?;
/// # transaction.send(Record::to("orders").value("a lamp")).await?;
/// # transaction.flush().await?;
/// use ottla_client::admin::TransactionFilter;
///
/// let hanging = TransactionFilter {
///     states: vec!["Ongoing".into()],
///     running_longer_than_ms: Some(15 * 60 * 1000),
///     ..TransactionFilter::default()
/// };
/// assert!(admin.list_transactions(&hanging).await?.is_empty());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransactionFilter {
    /// Kafka's names of states: `Empty`, `Ongoing`, `PrepareCommit`, `PrepareAbort`, `CompleteCommit`,
    /// `CompleteAbort`, `PrepareEpochFence`.
    pub states: Vec<Text>,
    /// Producer ids.
    pub producer_ids: Vec<i64>,
    /// Open for longer than this, in ms.
    pub running_longer_than_ms: Option<i64>,
}

/// A transactional id, as listed.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let settings = TransactionalSettings::new(client, "worker-1");
/// # let mut producer = TransactionalProducer::init(settings).await?;
/// # let transaction = producer.begin().await?;
/// # transaction.send(Record::to("orders").value("a lamp")).await?;
/// # transaction.flush().await?;
/// use ottla_client::admin::TransactionFilter;
///
/// for listed in admin.list_transactions(&TransactionFilter::default()).await? {
///     println!("{} ({}): {}", listed.transactional_id, listed.producer_id, listed.state);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionListing {
    /// The id.
    pub transactional_id: Text,
    /// Its producer id.
    pub producer_id: i64,
    /// Kafka's name of its state.
    pub state: Text,
}

/// A transactional id, as its coordinator knows it.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let settings = TransactionalSettings::new(client, "worker-1");
/// # let mut producer = TransactionalProducer::init(settings).await?;
/// # let transaction = producer.begin().await?;
/// # transaction.send(Record::to("orders").value("a lamp")).await?;
/// # transaction.flush().await?;
/// let worker = admin.describe_transaction(&"worker-1".into()).await?;
/// println!("{} since {} ms, on {:?}", worker.state, worker.start_time_ms, worker.partitions);
/// # assert_eq!((worker.state.as_str(), worker.partitions.len()), ("Ongoing", 1));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionDescription {
    /// The id.
    pub transactional_id: Text,
    /// Kafka's name of its state.
    pub state: Text,
    /// Its producer id.
    pub producer_id: i64,
    /// Its producer epoch.
    pub producer_epoch: i16,
    /// `transaction.timeout.ms` of its producer.
    pub timeout_ms: i32,
    /// When the open transaction began, ms since the Unix epoch; -1 when there is none.
    pub start_time_ms: i64,
    /// Partitions of the open transaction.
    pub partitions: Vec<TopicPartition>,
    /// The broker that coordinates it.
    pub coordinator_id: i32,
}

/// A producer that a partition remembers.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let settings = TransactionalSettings::new(client, "worker-1");
/// # let mut producer = TransactionalProducer::init(settings).await?;
/// # let transaction = producer.begin().await?;
/// # transaction.send(Record::to("orders").value("a lamp")).await?;
/// # transaction.flush().await?;
/// use ottla_client::TopicPartition;
///
/// for producer in admin.describe_producers(&TopicPartition::new("orders", 0)).await? {
///     if let Some(begin) = producer.transaction_start_offset {
///         println!("producer {} holds readers back at {begin}", producer.producer_id);
///     }
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// Its producer id.
    pub producer_id: i64,
    /// Its producer epoch.
    pub producer_epoch: i32,
    /// Sequence of its last record, -1 when none is remembered.
    pub last_sequence: i32,
    /// Time of its last record in ms.
    pub last_timestamp: i64,
    /// Epoch of the coordinator that last ended a transaction of it here, -1 for none.
    pub coordinator_epoch: i32,
    /// Where its open transaction begins here; absent when it has none.
    pub transaction_start_offset: Option<i64>,
}

/// A transaction on one partition to be aborted by force.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let settings = TransactionalSettings::new(client, "worker-1");
/// # let mut producer = TransactionalProducer::init(settings).await?;
/// # let transaction = producer.begin().await?;
/// # transaction.send(Record::to("orders").value("a lamp")).await?;
/// # transaction.flush().await?;
/// use ottla_client::TopicPartition;
/// use ottla_client::admin::AbortTransaction;
///
/// let at = TopicPartition::new("orders", 0);
/// let producers = admin.describe_producers(&at).await?;
/// let holder = producers.iter().find(|producer| producer.transaction_start_offset.is_some()).expect("one is open");
/// let abort = AbortTransaction {
///     topic_partition: at,
///     producer_id: holder.producer_id,
///     producer_epoch: i16::try_from(holder.producer_epoch)?,
///     coordinator_epoch: holder.coordinator_epoch,
/// };
/// admin.abort_transaction(&abort).await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortTransaction {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The producer that holds it open.
    pub producer_id: i64,
    /// Its epoch there.
    pub producer_epoch: i16,
    /// The coordinator's epoch as the partition knows it; -1 counts as 0.
    pub coordinator_epoch: i32,
}

/// The pair that a fenced transactional id has now.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let settings = TransactionalSettings::new(client, "worker-1");
/// # let mut producer = TransactionalProducer::init(settings).await?;
/// # let transaction = producer.begin().await?;
/// # transaction.send(Record::to("orders").value("a lamp")).await?;
/// # transaction.flush().await?;
/// for (id, fenced) in admin.fence_producers(&["worker-1".into()]).await {
///     let fenced = fenced?;
///     println!("{id}: producer {} below epoch {} is fenced off", fenced.producer_id, fenced.producer_epoch);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencedProducer {
    /// Its producer id.
    pub producer_id: i64,
    /// Its epoch: everything below it is fenced off.
    pub producer_epoch: i16,
}

struct ListTransactions {
    filter: TransactionFilter,
}

impl Call for ListTransactions {
    type Key = i32;
    type Request = ListTransactionsRequest;
    type Value = Vec<TransactionListing>;
    const USABLE: Versions = Versions::new(0, 2);

    fn place(&self, node_id: &i32) -> Place {
        Place::Node(*node_id)
    }

    fn request(&self, _: &[i32]) -> ListTransactionsRequest {
        ListTransactionsRequest {
            state_filters: self.filter.states.clone(),
            producer_id_filters: self.filter.producer_ids.clone(),
            duration_filter: self.filter.running_longer_than_ms.unwrap_or(-1),
            ..ListTransactionsRequest::default()
        }
    }

    fn read(
        &self,
        keys: &[i32],
        answer: ListTransactionsResponse,
    ) -> Vec<(i32, Item<Vec<TransactionListing>>)> {
        let listings = || {
            let states = answer.transaction_states.iter().map(|state| TransactionListing {
                transactional_id: state.transactional_id.detached(),
                producer_id: state.producer_id,
                state: state.transaction_state.detached(),
            });
            states.collect()
        };
        let node_id = keys.first().copied().unwrap_or(-1);
        vec![(node_id, item(answer.error_code, None, listings))]
    }

    fn what(&self, node_id: &i32) -> String {
        format!("listing transactions of broker {node_id}")
    }
}

struct DescribeTransactions;

impl Call for DescribeTransactions {
    type Key = Text;
    type Request = DescribeTransactionsRequest;
    type Value = TransactionDescription;
    const USABLE: Versions = Versions::new(0, 0);

    fn place(&self, id: &Text) -> Place {
        Place::TransactionalId(id.clone())
    }

    fn request(&self, keys: &[Text]) -> DescribeTransactionsRequest {
        DescribeTransactionsRequest { transactional_ids: keys.to_vec(), ..Default::default() }
    }

    fn read(
        &self,
        _: &[Text],
        answer: DescribeTransactionsResponse,
    ) -> Vec<(Text, Item<TransactionDescription>)> {
        let results = answer.transaction_states.iter().map(|state| {
            let description = || TransactionDescription {
                transactional_id: state.transactional_id.detached(),
                state: state.transaction_state.detached(),
                producer_id: state.producer_id,
                producer_epoch: state.producer_epoch,
                timeout_ms: state.transaction_timeout_ms,
                start_time_ms: state.transaction_start_time_ms,
                partitions: state
                    .topics
                    .iter()
                    .flat_map(|topic| {
                        let partitions = topic.partitions.iter();
                        partitions.map(|index| TopicPartition::new(topic.topic.detached(), *index))
                    })
                    .collect(),
                coordinator_id: -1,
            };
            (state.transactional_id.detached(), item(state.error_code, None, description))
        });
        results.collect()
    }

    fn what(&self, id: &Text) -> String {
        format!("describing transactional id `{id}`")
    }
}

struct DescribeProducers;

impl Call for DescribeProducers {
    type Key = TopicPartition;
    type Request = DescribeProducersRequest;
    type Value = Vec<ProducerState>;
    const USABLE: Versions = Versions::new(0, 0);

    fn place(&self, at: &TopicPartition) -> Place {
        Place::Leader(at.clone())
    }

    fn request(&self, keys: &[TopicPartition]) -> DescribeProducersRequest {
        let mut topics: BTreeMap<Text, TopicRequest> = BTreeMap::new();
        for at in keys {
            let topic = topics.entry(at.topic.clone()).or_default();
            topic.name = at.topic.clone();
            topic.partition_indexes.push(at.partition);
        }
        DescribeProducersRequest { topics: topics.into_values().collect(), ..Default::default() }
    }

    fn read(
        &self,
        _: &[TopicPartition],
        answer: DescribeProducersResponse,
    ) -> Vec<(TopicPartition, Item<Vec<ProducerState>>)> {
        let results = answer.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| {
                let producers = || {
                    let producers = partition.active_producers.iter().map(|producer| ProducerState {
                        producer_id: producer.producer_id,
                        producer_epoch: producer.producer_epoch,
                        last_sequence: producer.last_sequence,
                        last_timestamp: producer.last_timestamp,
                        coordinator_epoch: producer.coordinator_epoch,
                        transaction_start_offset: (producer.current_txn_start_offset >= 0)
                            .then_some(producer.current_txn_start_offset),
                    });
                    let mut producers: Vec<_> = producers.collect();
                    producers.sort_by_key(|producer| producer.producer_id);
                    producers
                };
                let at = TopicPartition::new(topic.name.detached(), partition.partition_index);
                (at, item(partition.error_code, partition.error_message.as_ref(), producers))
            })
        });
        results.collect()
    }

    fn what(&self, at: &TopicPartition) -> String {
        format!("describing the producers of {at}")
    }
}

struct WriteAbortMarker<'a>(&'a AbortTransaction);

impl Call for WriteAbortMarker<'_> {
    type Key = TopicPartition;
    type Request = WriteTxnMarkersRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(1, 2);

    fn place(&self, at: &TopicPartition) -> Place {
        Place::Leader(at.clone())
    }

    fn request(&self, keys: &[TopicPartition]) -> WriteTxnMarkersRequest {
        let topics = keys.iter().map(|at| WritableTxnMarkerTopic {
            name: at.topic.clone(),
            partition_indexes: vec![at.partition],
            ..WritableTxnMarkerTopic::default()
        });
        let marker = WritableTxnMarker {
            producer_id: self.0.producer_id,
            producer_epoch: self.0.producer_epoch,
            transaction_result: false,
            topics: topics.collect(),
            coordinator_epoch: self.0.coordinator_epoch.max(0),
            ..WritableTxnMarker::default()
        };
        WriteTxnMarkersRequest { markers: vec![marker], ..WriteTxnMarkersRequest::default() }
    }

    fn read(&self, _: &[TopicPartition], answer: WriteTxnMarkersResponse) -> Vec<(TopicPartition, Item<()>)> {
        let topics = answer.markers.iter().flat_map(|marker| &marker.topics);
        let results = topics.flat_map(|topic| {
            topic.partitions.iter().map(|partition| {
                let at = TopicPartition::new(topic.name.detached(), partition.partition_index);
                (at, item(partition.error_code, None, || ()))
            })
        });
        results.collect()
    }

    fn what(&self, at: &TopicPartition) -> String {
        format!("aborting the transaction of producer {} on {at}", self.0.producer_id)
    }
}

struct Fence {
    /// The only holder that is fenced off, when given (KIP-360).
    holder: Option<(i64, i16)>,
}

impl Call for Fence {
    type Key = Text;
    type Request = InitProducerIdRequest;
    type Value = FencedProducer;
    /// From the pair of KIP-360 to before two-phase commit.
    const USABLE: Versions = Versions::new(3, 5);

    fn place(&self, id: &Text) -> Place {
        Place::TransactionalId(id.clone())
    }

    fn request(&self, keys: &[Text]) -> InitProducerIdRequest {
        let (producer_id, producer_epoch) = self.holder.unwrap_or((NO_PRODUCER_ID, NO_PRODUCER_EPOCH));
        InitProducerIdRequest {
            transactional_id: keys.first().cloned(),
            transaction_timeout_ms: FENCE_TIMEOUT_MS,
            producer_id,
            producer_epoch,
            ..InitProducerIdRequest::default()
        }
    }

    fn read(&self, keys: &[Text], answer: InitProducerIdResponse) -> Vec<(Text, Item<FencedProducer>)> {
        let InitProducerIdResponse { producer_id, producer_epoch, .. } = answer;
        let id = keys.first().cloned().unwrap_or_default();
        vec![(id, item(answer.error_code, None, || FencedProducer { producer_id, producer_epoch }))]
    }

    fn what(&self, id: &Text) -> String {
        match self.holder {
            Some((producer_id, epoch)) => {
                format!("fencing producer {producer_id}, epoch {epoch}, of transactional id `{id}`")
            }
            None => format!("fencing the producer of transactional id `{id}`"),
        }
    }
}

impl Admin {
    /// Transactional ids, from every broker, sorted. Cancel-safe.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let client = ClientSettings::new(bootstrap)?;
    /// # let admin = Admin::connect(client.clone()).await?;
    /// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
    /// # let settings = TransactionalSettings::new(client, "worker-1");
    /// # let mut producer = TransactionalProducer::init(settings).await?;
    /// # let transaction = producer.begin().await?;
    /// # transaction.send(Record::to("orders").value("a lamp")).await?;
    /// # transaction.flush().await?;
    /// use ottla_client::TopicPartition;
    /// use ottla_client::admin::{AbortTransaction, TransactionFilter};
    ///
    /// let listed = admin.list_transactions(&TransactionFilter::default()).await?;
    /// let ids: Vec<_> = listed.into_iter().map(|listing| listing.transactional_id).collect();
    /// for (id, described) in admin.describe_transactions(&ids).await {
    ///     println!("{id}: {}", described?.state);
    /// }
    /// let worker = admin.describe_transaction(&"worker-1".into()).await?;
    ///
    /// // who holds readers of this partition back?
    /// let at = TopicPartition::new("orders", 0);
    /// for (at, producers) in admin.describe_producers_of(&[at.clone()]).await {
    ///     println!("{at}: {} producers", producers?.len());
    /// }
    /// for producer in admin.describe_producers(&at).await? {
    ///     let ids = admin.transactional_ids(&[producer.producer_id]).await?;
    ///     match ids.get(&producer.producer_id) {
    ///         // its coordinator knows it: fence it off, if it is still the one that was described
    ///         Some(id) => println!("{:?}", admin.fence_holder(id, worker.producer_id, worker.producer_epoch).await?),
    ///         None => {
    ///             let abort = AbortTransaction {
    ///                 topic_partition: at.clone(),
    ///                 producer_id: producer.producer_id,
    ///                 producer_epoch: i16::try_from(producer.producer_epoch)?,
    ///                 coordinator_epoch: producer.coordinator_epoch,
    ///             };
    ///             admin.abort_transaction(&abort).await?;
    ///         }
    ///     }
    /// }
    /// for fenced in admin.fence_producers(&["worker-2".into()]).await.into_values() {
    ///     fenced?; // whoever it is
    /// }
    /// # Ok(())
    /// # });
    /// ```
    pub async fn list_transactions(
        &self,
        filter: &TransactionFilter,
    ) -> Result<Vec<TransactionListing>, AdminError> {
        let nodes = self.cluster.nodes().iter().map(|node| node.node_id).collect();
        let results = self.run(&ListTransactions { filter: filter.clone() }, nodes).await;
        let mut listings = Vec::new();
        for listed in results.into_values() {
            listings.extend(listed?);
        }
        listings.sort();
        Ok(listings)
    }

    /// Transactional ids, from their coordinators. Cancel-safe.
    pub async fn describe_transactions(&self, ids: &[Text]) -> Results<Text, TransactionDescription> {
        let mut results = self.run(&DescribeTransactions, ids.to_vec()).await;
        for (id, description) in &mut results {
            if let Ok(description) = description {
                let (kind, deadline) = (CoordinatorKind::Transaction, self.cluster.deadline());
                description.coordinator_id = self.cluster.coordinator(kind, id, deadline).await.unwrap_or(-1);
            }
        }
        results
    }

    /// One transactional id, from its coordinator. Cancel-safe.
    pub async fn describe_transaction(
        &self,
        transactional_id: &Text,
    ) -> Result<TransactionDescription, AdminError> {
        let mut results = self.describe_transactions(std::slice::from_ref(transactional_id)).await;
        results.pop_first().expect("every id has a result").1
    }

    /// The producers that partitions remember, by id. Cancel-safe.
    pub async fn describe_producers_of(
        &self,
        partitions: &[TopicPartition],
    ) -> Results<TopicPartition, Vec<ProducerState>> {
        self.run(&DescribeProducers, partitions.to_vec()).await
    }

    /// The producers that one partition remembers, by id. Cancel-safe.
    pub async fn describe_producers(&self, at: &TopicPartition) -> Result<Vec<ProducerState>, AdminError> {
        self.run_one(&DescribeProducers, at.clone()).await
    }

    /// Ends a transaction on one partition by writing an abort marker, past its coordinator. For transactions
    /// that no coordinator knows; otherwise fencing its producer is the safe way. If the future is dropped, the
    /// marker may be written.
    pub async fn abort_transaction(&self, abort: &AbortTransaction) -> Result<(), AdminError> {
        self.run_one(&WriteAbortMarker(abort), abort.topic_partition.clone()).await
    }

    /// Fences off whoever produces under these transactional ids and aborts what they left open. An id that nobody
    /// knows comes into being. If the future is dropped, some may be fenced off.
    pub async fn fence_producers(&self, ids: &[Text]) -> Results<Text, FencedProducer> {
        let mut results = Results::new();
        for id in ids {
            results.insert(id.clone(), self.run_one(&Fence { holder: None }, id.clone()).await);
        }
        results
    }

    /// Fences off one holder of a transactional id and aborts what it left open, but only while it is the holder:
    /// when the id has gone on to another producer id or epoch, the broker refuses with `PRODUCER_FENCED` or
    /// `INVALID_PRODUCER_EPOCH` and nothing changes. If the future is dropped, it may be fenced off.
    pub async fn fence_holder(
        &self,
        transactional_id: &Text,
        producer_id: i64,
        producer_epoch: i16,
    ) -> Result<FencedProducer, AdminError> {
        let holder = Some((producer_id, producer_epoch));
        self.run_one(&Fence { holder }, transactional_id.clone()).await
    }

    /// The transactional ids behind producer ids; those that none has are left out. Cancel-safe.
    pub async fn transactional_ids(&self, producer_ids: &[i64]) -> Result<BTreeMap<i64, Text>, AdminError> {
        let filter =
            TransactionFilter { producer_ids: producer_ids.to_vec(), ..TransactionFilter::default() };
        let listings = self.list_transactions(&filter).await?;
        Ok(listings.into_iter().map(|listing| (listing.producer_id, listing.transactional_id)).collect())
    }
}
