//! Futures that are dropped at every place where they wait: what each call says happens then, does.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, Consumer, ConsumerSettings, GroupMetadata, OffsetReset, OffsetToCommit, Producer,
    ProducerSettings, Record, StartAt, TopicPartition, TransactionError, TransactionalProducer,
    TransactionalSettings,
};
use ottla_env::time;
use ottla_protocol::types::Text;

use crate::faults::values;
use crate::support::{Cluster, client, run};

const TOPIC: &str = "t";
/// Longest that one test may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Lets a future wait so many times, then drops it where it waits. Absent when it was dropped.
async fn up_to<F: Future>(waits: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = waits;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

async fn start(seed: u64) -> Cluster {
    let cluster = Cluster::start(seed).await;
    let admin = Admin::connect(client(&cluster.direct)).await.expect("connected");
    admin.create_topic(&NewTopic::new(Text::from_static(TOPIC), 4)).await.expect("created");
    cluster
}

/// Proves that a `send` that is dropped where it waits, for metadata or for room, leaves its record out, and one that
/// was ready has it in: what is sent again after a drop is there once, in order. A dropped `flush` loses nothing.
#[test]
fn sends_are_all_or_nothing() {
    run(async {
        let cluster = start(100).await;
        let (mut dropped, mut next) = (0, 0_u64);
        let started = time::now();
        for round in 0..6 {
            let mut settings = ProducerSettings::new(client(&cluster.proxy.address));
            settings.buffer_bytes = 64 << 10;
            settings.max_request_bytes = 60 << 10;
            let producer = Producer::connect(settings).await.expect("connected");
            let end = next + 40;
            let mut waits = round;
            while next < end {
                assert!(started.elapsed() < LIMIT);
                let record = Record::to(TOPIC).partition(0).value(format!("{next:x>9000}"));
                match up_to(waits % 4, producer.send(record)).await {
                    Some(taken) => {
                        drop(taken.expect("taken")); // its outcome is the flush's
                        next += 1;
                    }
                    None => dropped += 1,
                }
                waits += 1;
            }
            let mut waits = 0;
            while up_to(waits, producer.flush()).await.map(|done| done.expect("delivered")).is_none() {
                assert!(started.elapsed() < LIMIT);
                waits += 1;
            }
        }
        assert!(dropped > 6, "some waited: {dropped}");
        let read = values(client(&cluster.direct)).await;
        assert_eq!(read[&0], (0..next).collect::<Vec<_>>(), "{dropped} were dropped");
        cluster.stop().await;
    });
}

/// What became of a transaction whose end may have been dropped.
async fn settle(producer: &mut TransactionalProducer, limit: time::Instant) -> bool {
    let mut waits = 0;
    loop {
        assert!(time::now() < limit, "it never settles");
        waits += 1;
        // `begin` is dropped at every place too
        let begun = up_to(waits, producer.begin()).await.map(|begun| begun.map(drop));
        match begun {
            None => {}
            Some(Ok(())) => return false,
            Some(Err(TransactionError::Unknown { commit: true, .. })) => {
                let mut waits = 0;
                loop {
                    match up_to(waits, producer.resolve()).await {
                        Some(committed) => return committed.expect("answered"),
                        None => waits += 1,
                    }
                }
            }
            Some(Err(error)) => panic!("{error}"),
        }
    }
}

/// What the group has committed.
async fn committed_offset(cluster: &Cluster) -> Option<i64> {
    let consumer =
        Consumer::connect(ConsumerSettings::new(client(&cluster.direct))).await.expect("connected");
    let at = TopicPartition::new(TOPIC, 3);
    consumer.committed(&Text::from_static("g"), &[at]).await.expect("told")[0].offset
}

/// Proves for both versions of the protocol that a commit, an abort, a `send_offsets` or a `begin` that is dropped at
/// any place where it waits leaves a producer that can tell what became of the transaction: what `resolve` calls
/// committed is visible, offsets included, and what the next `begin` has aborted is not.
#[test]
fn transactions_are_all_or_nothing() {
    run(async {
        for version in [2, 1] {
            let cluster = start(110 + version as u64).await;
            cluster.finalize_transaction_version(version).await;
            let settings = ProducerSettings::new(client(&cluster.proxy.address)).linger(Duration::ZERO);
            let settings =
                TransactionalSettings::new(client(&cluster.proxy.address), "id").producer(settings);
            let mut producer = TransactionalProducer::init(settings).await.expect("taken over");
            let group = GroupMetadata::without_members("g");
            let limit = time::now() + LIMIT;
            let (mut committed, mut last_offset, mut dropped) = (Vec::new(), None, 0);
            let mut undropped = 0;
            for number in 0_u64.. {
                let waits = usize::try_from(number / 3).expect("few");
                let transaction = producer.begin().await.expect("begun");
                for partition in 0..2 {
                    let record = Record::to(TOPIC).partition(partition).value(number.to_string());
                    drop(transaction.send(record).await.expect("taken"));
                }
                let offset = i64::try_from(number).expect("few");
                let offsets = [OffsetToCommit::new(TopicPartition::new(TOPIC, 3), offset)];
                // of three transactions one is dropped while its offsets are sent, one in its commit, one in its abort
                let outcome = match number % 3 {
                    0 => match up_to(waits, transaction.send_offsets(&offsets, &group)).await {
                        Some(sent) => {
                            sent.expect("taken");
                            Some(transaction.commit().await.map(|()| true))
                        }
                        None => {
                            drop(transaction);
                            None
                        }
                    },
                    1 => {
                        transaction.send_offsets(&offsets, &group).await.expect("taken");
                        up_to(waits, transaction.commit()).await.map(|done| done.map(|()| true))
                    }
                    _ => up_to(waits, transaction.abort()).await.map(|done| done.map(|()| false)),
                };
                let is_committed = match outcome {
                    Some(done) => {
                        undropped += 1;
                        done.expect("ended")
                    }
                    None => {
                        (dropped, undropped) = (dropped + 1, 0);
                        settle(&mut producer, limit).await
                    }
                };
                if is_committed {
                    committed.push(number);
                    last_offset = Some(offset);
                }
                if undropped > 9 {
                    break;
                }
                assert!(time::now() < limit, "{dropped} dropped");
            }
            // how often each waits after its first time depends on how the machine wakes tasks
            assert!(dropped >= 3, "version {version}: each of the three waits at least once, {dropped}");
            producer.close().await.expect("closed");
            let read = values(client(&cluster.direct)).await;
            for partition in 0..2 {
                assert_eq!(read[&partition], committed, "version {version}, {dropped} dropped");
            }
            assert_eq!(committed_offset(&cluster).await, last_offset, "version {version}");
            cluster.stop().await;
        }
    });
}

/// Proves that a `poll` that is dropped at any place where it waits loses and repeats nothing, as a member that joins
/// and as a reader of chosen partitions; and that commits that are dropped are carried out or not, in their order: what
/// is committed at last is what was asked for last.
#[test]
fn polls_and_commits() {
    run(async {
        let cluster = start(120).await;
        let producer =
            Producer::connect(ProducerSettings::new(client(&cluster.direct))).await.expect("connected");
        for number in 0..400 {
            let record = Record::to(TOPIC).partition(0).value(number.to_string());
            drop(producer.send(record).await.expect("taken"));
        }
        producer.flush().await.expect("delivered");
        for subscribes in [false, true] {
            let settings = ConsumerSettings::new(client(&cluster.direct))
                .group_id(if subscribes { "member" } else { "reader" })
                .offset_reset(OffsetReset::Earliest)
                .max_poll_records(7);
            let mut consumer = Consumer::connect(settings).await.expect("connected");
            let at = TopicPartition::new(TOPIC, 0);
            if subscribes {
                consumer.subscribe(&[TOPIC]).await.expect("joining");
            } else {
                consumer.assign(&[(at.clone(), StartAt::Committed)]).await.expect("assigned");
            }
            let limit = time::now() + LIMIT;
            let (mut read, mut dropped, mut committed) = (Vec::new(), 0, 0);
            for step in 0_usize.. {
                assert!(time::now() < limit, "{} read", read.len());
                match up_to(step % 5, consumer.poll(Duration::from_millis(200))).await {
                    Some(records) => read.extend(records.expect("read").into_iter().map(|at| at.offset)),
                    None => dropped += 1,
                }
                if read.len() >= 400 {
                    break;
                }
                if step % 3 == 0 && !read.is_empty() {
                    if let Some(done) = up_to(step % 2, consumer.commit_positions()).await {
                        done.expect("committed");
                    }
                    committed += 1;
                }
            }
            assert_eq!(read, (0..400).collect::<Vec<i64>>(), "subscribes: {subscribes}");
            assert!(dropped > 0 && committed > 5, "{dropped} polls and {committed} commits");
            assert!(up_to(0, consumer.commit_positions()).await.is_none(), "it waits for the answer");
            // behind the dropped ones, and so behind whatever they do
            consumer.commit_offsets(&[]).await.expect("all are answered");
            let group = Text::from_static(if subscribes { "member" } else { "reader" });
            let told = consumer.committed(&group, &[at]).await.expect("told");
            assert_eq!(told[0].offset, Some(400), "subscribes: {subscribes}");
            consumer.close().await.expect("closed");
        }
        cluster.stop().await;
    });
}
