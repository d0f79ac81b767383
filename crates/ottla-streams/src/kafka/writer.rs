//! The writing half: a transactional producer in a task of its own, and a plain one for at-least-once work.

use std::collections::BTreeMap;

use ottla_client::{
    Consumer, ConsumerError, ConsumerSettings, Delivery, DeliveryError, ErrorClass, ErrorCode, GroupMetadata,
    OffsetToCommit, OffsetsError, Producer, ProducerSettings, Record, SendError, Text, TopicPartition,
    Transaction, TransactionError, TransactionalProducer, TransactionalSettings,
};
use ottla_env::spawn::{self, Handle, TaskHandle};
use tokio::sync::{mpsc, oneshot};

use super::reader::cluster_error;
use crate::port::{Acked, CommitFailure, PortError, Ticket, TransactionPort};
use crate::record::OutputRecord;

/// Records that are handed over to the producer's task at once.
const HANDED_OVER: usize = 256;
/// Hand-overs that may wait for the task.
const QUEUE_MAX: usize = 4;

type Reply<T> = oneshot::Sender<T>;
type AckedMap = BTreeMap<TopicPartition, Acked>;

enum Command {
    Begin(Reply<Result<(), PortError>>),
    Send(Vec<OutputRecord>),
    Flush(Reply<Result<AckedMap, PortError>>),
    Offsets(Vec<OffsetToCommit>, GroupMetadata, Reply<Result<(), PortError>>),
    Commit(Reply<Result<(), CommitFailure>>),
    Abort(Reply<Result<(), PortError>>),
    Reinit(Reply<Result<(), PortError>>),
}

/// A transactional id on a cluster.
#[derive(Debug)]
pub struct KafkaWriter {
    runtime: Handle,
    commands: mpsc::Sender<Command>,
    /// Sent, but not handed over yet.
    waiting: Vec<OutputRecord>,
    tickets: u64,
    task: TaskHandle<()>,
}

impl KafkaWriter {
    /// Takes the id: returns when every older transaction of it is decided. Blocks, so not for tasks of a runtime.
    pub fn take(runtime: &Handle, settings: TransactionalSettings) -> Result<Self, PortError> {
        let producer = runtime.block_on(TransactionalProducer::init(settings.clone())).map_err(port_error)?;
        let (commands, queue) = mpsc::channel(QUEUE_MAX);
        let _inside = runtime.enter();
        let task = spawn::task("streams-writer", run(settings, producer, queue));
        Ok(Self { runtime: runtime.clone(), commands, waiting: Vec::new(), tickets: 0, task })
    }

    fn tell(&mut self, command: Command) -> Result<(), PortError> {
        self.commands.blocking_send(command).map_err(|_| ended())
    }

    fn hand_over(&mut self) -> Result<(), PortError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let records = std::mem::replace(&mut self.waiting, Vec::with_capacity(HANDED_OVER));
        self.tell(Command::Send(records))
    }

    fn ask<T>(&mut self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, PortError> {
        self.hand_over()?;
        let (reply, answer) = oneshot::channel();
        self.tell(command(reply))?;
        self.runtime.block_on(answer).map_err(|_| ended())
    }
}

impl Drop for KafkaWriter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn ended() -> PortError {
    PortError::Fatal("the producer's task has ended".to_owned())
}

impl TransactionPort for KafkaWriter {
    fn begin(&mut self) -> Result<(), PortError> {
        self.tickets = 0;
        self.waiting.clear();
        self.ask(Command::Begin)?
    }

    fn send(&mut self, record: OutputRecord) -> Result<Ticket, PortError> {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.waiting.push(record);
        if self.waiting.len() >= HANDED_OVER {
            self.hand_over()?;
        }
        Ok(ticket)
    }

    fn flush(&mut self) -> Result<AckedMap, PortError> {
        self.ask(Command::Flush)?
    }

    fn send_offsets(&mut self, offsets: &[OffsetToCommit], group: &GroupMetadata) -> Result<(), PortError> {
        let (offsets, group) = (offsets.to_vec(), group.clone());
        self.ask(|reply| Command::Offsets(offsets, group, reply))?
    }

    fn commit(&mut self) -> Result<(), CommitFailure> {
        self.ask(Command::Commit).map_err(|error| CommitFailure::Fatal(error.to_string()))?
    }

    fn abort(&mut self) -> Result<(), PortError> {
        self.waiting.clear();
        self.ask(Command::Abort)?
    }

    fn reinit(&mut self) -> Result<(), PortError> {
        self.waiting.clear();
        self.ask(Command::Reinit)?
    }
}

/// A caller that has gone away needs no answer.
fn answer<T>(reply: Reply<T>, value: T) {
    let _ = reply.send(value);
}

fn no_transaction() -> PortError {
    PortError::MustAbort("no transaction is open".to_owned())
}

/// The task that owns the producer.
async fn run(
    settings: TransactionalSettings,
    mut producer: TransactionalProducer,
    mut commands: mpsc::Receiver<Command>,
) {
    let mut next = commands.recv().await;
    while let Some(command) = next.take() {
        match command {
            Command::Begin(reply) => match producer.begin().await {
                Ok(transaction) => {
                    answer(reply, Ok(()));
                    next = in_transaction(transaction, &mut commands).await;
                }
                Err(error) => answer(reply, Err(port_error(error))),
            },
            // what was sent into a transaction that has failed is of no use any more
            Command::Send(_) => {}
            Command::Flush(reply) => answer(reply, Err(no_transaction())),
            Command::Offsets(_, _, reply) => answer(reply, Err(no_transaction())),
            Command::Commit(reply) => {
                answer(reply, Err(CommitFailure::Aborted("no transaction is open".to_owned())));
            }
            Command::Abort(reply) => answer(reply, Ok(())),
            Command::Reinit(reply) => match TransactionalProducer::init(settings.clone()).await {
                Ok(taken) => {
                    producer = taken;
                    answer(reply, Ok(()));
                }
                Err(error) => answer(reply, Err(port_error(error))),
            },
        }
        if next.is_none() {
            next = commands.recv().await;
        }
    }
}

/// Serves one transaction to its end. A command that it cannot serve is handed back.
async fn in_transaction(
    transaction: Transaction<'_>,
    commands: &mut mpsc::Receiver<Command>,
) -> Option<Command> {
    let mut sent = Sent::default();
    loop {
        match commands.recv().await? {
            Command::Send(records) => {
                for record in records {
                    sent.send(record, &transaction).await;
                }
            }
            Command::Flush(reply) => {
                let flushed = transaction.flush().await;
                let outcome = match (sent.failed.clone(), flushed) {
                    (Some(error), _) => Err(error),
                    (None, Err(error)) => Err(delivery_error(&error)),
                    (None, Ok(())) => sent.newest.acked().await,
                };
                answer(reply, outcome);
            }
            Command::Offsets(offsets, group, reply) => {
                let outcome = transaction.send_offsets(&offsets, &group).await;
                answer(reply, outcome.map_err(|error| offsets_error(&offsets, error)));
            }
            Command::Commit(reply) => {
                answer(reply, transaction.commit().await.map_err(commit_failure));
                return None;
            }
            Command::Abort(reply) => {
                answer(reply, transaction.abort().await.map_err(port_error));
                return None;
            }
            Command::Begin(reply) => {
                answer(reply, Err(PortError::MustAbort("a transaction is open already".to_owned())));
            }
            reinit @ Command::Reinit(_) => return Some(reinit),
        }
    }
}

/// What was sent in a transaction.
#[derive(Default)]
struct Sent {
    newest: Newest,
    failed: Option<PortError>,
}

/// The newest delivery of each partition: what was sent to it before has lower offsets, and a flush tells of any
/// failure among all of it.
#[derive(Debug, Default)]
struct Newest {
    deliveries: BTreeMap<TopicPartition, Delivery>,
    acked: AckedMap,
}

impl Newest {
    fn add(&mut self, delivery: Delivery) {
        match self.deliveries.get_mut(delivery.topic_partition()) {
            Some(last) => *last = delivery,
            None => drop(self.deliveries.insert(delivery.topic_partition().clone(), delivery)),
        }
    }

    /// The highest offset of each partition so far. After a flush, so that everything has its outcome. Fails when it
    /// is not known (the broker recognized a repetition and has forgotten where it is): a restore target is never
    /// guessed.
    async fn acked(&mut self) -> Result<AckedMap, PortError> {
        while let Some((at, delivery)) = self.deliveries.pop_first() {
            let written = delivery.wait().await.map_err(|error| delivery_error(&error))?;
            if written.offset < 0 {
                let reason = format!("{at}: the broker does not know any more where a repeated batch is");
                return Err(PortError::MustAbort(reason));
            }
            let last = self.acked.entry(at).or_insert(Acked { offset: written.offset, leader_epoch: -1 });
            last.offset = last.offset.max(written.offset);
        }
        Ok(self.acked.clone())
    }
}

impl Sent {
    async fn send(&mut self, record: OutputRecord, transaction: &Transaction<'_>) {
        if self.failed.is_some() {
            return;
        }
        let topic = record.topic.clone();
        match transaction.send(client_record(record)).await {
            Ok(delivery) => self.newest.add(delivery),
            Err(error) => self.failed = Some(send_error(&topic, &error)),
        }
    }
}

fn client_record(record: OutputRecord) -> Record {
    let OutputRecord { topic, partition, record } = record;
    Record {
        topic,
        partition,
        key: record.key,
        value: record.value,
        headers: record.headers,
        timestamp: (record.timestamp >= 0).then_some(record.timestamp),
    }
}

fn send_error(topic: &Text, error: &SendError) -> PortError {
    let (topic, reason) = (topic.to_string(), error.to_string());
    match error {
        SendError::TooLarge { .. } | SendError::NoSuchPartition { .. } => {
            PortError::RecordRefused { topic, reason }
        }
        SendError::TransactionFailed(delivery) => delivery_error(delivery),
        SendError::Cluster(cluster) if !cluster.is_retriable() => PortError::RecordRefused { topic, reason },
        SendError::Cluster(_) | SendError::BufferFull { .. } => PortError::MustAbort(reason),
        SendError::Closed => PortError::Fatal(reason),
    }
}

fn delivery_error(error: &DeliveryError) -> PortError {
    let reason = error.to_string();
    match error {
        DeliveryError::Refused {
            code: ErrorCode::ProducerFenced | ErrorCode::InvalidProducerEpoch, ..
        } => PortError::Fenced(reason),
        DeliveryError::Refused {
            topic_partition,
            code:
                ErrorCode::MessageTooLarge
                | ErrorCode::RecordListTooLarge
                | ErrorCode::InvalidRecord
                | ErrorCode::TopicAuthorizationFailed
                | ErrorCode::PolicyViolation,
            ..
        }
        | DeliveryError::Unsendable { topic_partition, .. } => {
            PortError::RecordRefused { topic: topic_partition.topic.to_string(), reason }
        }
        DeliveryError::Refused { .. }
        | DeliveryError::TimedOut { .. }
        | DeliveryError::Aborted { .. }
        | DeliveryError::Closed => PortError::MustAbort(reason),
    }
}

fn offsets_error(offsets: &[OffsetToCommit], error: TransactionError) -> PortError {
    let TransactionError::OffsetsRefused { code, .. } = error else { return port_error(error) };
    group_error(code, offsets, error.to_string())
}

/// What a group says of offsets.
fn group_error(code: ErrorCode, offsets: &[OffsetToCommit], reason: String) -> PortError {
    match code {
        ErrorCode::IllegalGeneration
        | ErrorCode::UnknownMemberId
        | ErrorCode::RebalanceInProgress
        | ErrorCode::FencedInstanceId
        | ErrorCode::StaleMemberEpoch
        | ErrorCode::FencedMemberEpoch => PortError::NotOwner(reason),
        ErrorCode::OffsetMetadataTooLarge => match offsets.first() {
            Some(first) => PortError::MetadataTooLarge { at: first.topic_partition.clone(), reason },
            None => PortError::Fatal(reason),
        },
        ErrorCode::GroupAuthorizationFailed => PortError::Fatal(reason),
        _ => PortError::MustAbort(reason),
    }
}

fn port_error(error: TransactionError) -> PortError {
    let reason = error.to_string();
    match error {
        TransactionError::Fenced { .. } => PortError::Fenced(reason),
        TransactionError::Aborted { .. }
        | TransactionError::MustAbort { .. }
        | TransactionError::OffsetsRefused { .. } => PortError::MustAbort(reason),
        TransactionError::Unknown { .. } => PortError::Retriable(reason),
        TransactionError::Cluster(ref cluster) if cluster.is_retriable() => PortError::Retriable(reason),
        TransactionError::Refused { .. } | TransactionError::Cluster(_) => PortError::Fatal(reason),
    }
}

fn commit_failure(error: TransactionError) -> CommitFailure {
    let reason = error.to_string();
    match error {
        TransactionError::Aborted { .. }
        | TransactionError::MustAbort { .. }
        | TransactionError::OffsetsRefused { .. } => CommitFailure::Aborted(reason),
        TransactionError::Unknown { .. } => CommitFailure::Unknown(reason),
        TransactionError::Fenced { .. } => CommitFailure::Fenced(reason),
        error if error.class() == ErrorClass::Retriable => CommitFailure::Unknown(reason),
        TransactionError::Refused { .. } | TransactionError::Cluster(_) => CommitFailure::Fatal(reason),
    }
}

/// At-least-once work: an idempotent producer without transactions, and commits that count at once.
#[derive(Debug)]
pub struct PlainWriter {
    runtime: Handle,
    producer: Producer,
    /// Reads nothing; commits for the member.
    committer: Consumer,
    newest: Newest,
    tickets: u64,
}

impl PlainWriter {
    /// Connects. Blocks, so not for tasks of a runtime.
    pub fn connect(runtime: &Handle, settings: ProducerSettings) -> Result<Self, PortError> {
        let client = settings.client.clone();
        let connect = async {
            let producer = Producer::connect(settings).await?;
            Ok((producer, Consumer::connect(ConsumerSettings::new(client)).await?))
        };
        let (producer, committer) = runtime.block_on(connect).map_err(|error| cluster_error(&error))?;
        let newest = Newest::default();
        Ok(Self { runtime: runtime.clone(), producer, committer, newest, tickets: 0 })
    }
}

fn commit_error(offsets: &[OffsetToCommit], error: &ConsumerError) -> PortError {
    let reason = error.to_string();
    match error {
        ConsumerError::Offsets(OffsetsError::Partition { code, .. } | OffsetsError::Group { code, .. }) => {
            group_error(*code, offsets, reason)
        }
        ConsumerError::Offsets(OffsetsError::Cluster(cluster)) if !cluster.is_retriable() => {
            PortError::Fatal(reason)
        }
        _ => PortError::MustAbort(reason),
    }
}

impl TransactionPort for PlainWriter {
    fn begin(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn send(&mut self, record: OutputRecord) -> Result<Ticket, PortError> {
        let topic = record.topic.clone();
        let sent = self.runtime.block_on(self.producer.send(client_record(record)));
        self.newest.add(sent.map_err(|error| send_error(&topic, &error))?);
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        Ok(ticket)
    }

    fn flush(&mut self) -> Result<AckedMap, PortError> {
        self.runtime.block_on(self.producer.flush()).map_err(|error| delivery_error(&error))?;
        let acked = self.runtime.block_on(self.newest.acked())?;
        self.newest = Newest::default();
        Ok(acked)
    }

    fn send_offsets(&mut self, offsets: &[OffsetToCommit], group: &GroupMetadata) -> Result<(), PortError> {
        let committed = self.runtime.block_on(self.committer.commit(group, offsets));
        committed.map_err(|error| commit_error(offsets, &error))
    }

    fn commit(&mut self) -> Result<(), CommitFailure> {
        Ok(())
    }

    fn abort(&mut self) -> Result<(), PortError> {
        self.newest = Newest::default();
        Ok(())
    }

    fn reinit(&mut self) -> Result<(), PortError> {
        self.abort()
    }
}
