//! The published view: what readers may see, as immutable values swapped in by the log thread.
//!
//! Order of a publication: the bounds of all partitions of the frame, the image, the frame's sequence; then
//! answers leave and parked fetches are woken. A reader notes the sequence first and uses, per partition, the
//! newest bounds not above it, so that all bounds in one answer are of one instant.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use hashbrown::HashMap;
use ottla_core::cluster::Image;
use ottla_core::config::CoreConfig;
use ottla_core::decision::Bounds;
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::LogReader;
use tokio::sync::Notify;

type Slots = HashMap<TopicIdPartition, Arc<PartitionSlot>, foldhash::quality::FixedState>;

/// What is published of the shard; shared by the log thread (writes) and all connections (read).
pub struct View {
    partitions: RwLock<Slots>,
    image: RwLock<Arc<Image>>,
    reader: RwLock<LogReader>,
    image_changed: Notify,
    sequence: AtomicU64,
    wakeups: Mutex<Vec<Arc<PartitionSlot>>>,
    wake: Notify,
}

/// The bounds of one partition as of one frame.
#[derive(Debug)]
pub struct Published {
    sequence: u64,
    /// The bounds.
    pub bounds: Bounds,
}

/// One partition's published bounds and who waits for them to move.
pub struct PartitionSlot {
    versions: Mutex<(Arc<Published>, Option<Arc<Published>>)>,
    waiters: Mutex<Waiters>,
}

/// Parked fetches, among them some that are gone.
#[derive(Default)]
struct Waiters {
    all: Vec<Weak<Waiter>>,
    /// When there are so many, those that are gone are taken out.
    sweep_at: usize,
}

/// A parked fetch.
#[derive(Default)]
pub struct Waiter {
    /// Signalled once when one of its partitions moved.
    pub moved: Notify,
    fired: AtomicBool,
}

/// The noted sequence is too old for this partition: note it again and start over.
#[derive(Debug, PartialEq, Eq)]
pub struct Outdated;

impl View {
    /// A view of a recovered shard; `seed` makes the hash order of partitions unpredictable to clients.
    pub fn new(image: Arc<Image>, reader: LogReader, seed: u64) -> Self {
        Self {
            partitions: RwLock::new(HashMap::with_hasher(foldhash::quality::FixedState::with_seed(seed))),
            image: RwLock::new(image),
            reader: RwLock::new(reader),
            image_changed: Notify::new(),
            sequence: AtomicU64::new(0),
            wakeups: Mutex::new(Vec::new()),
            wake: Notify::new(),
        }
    }

    /// Topics, configs and features.
    pub fn image(&self) -> Arc<Image> {
        self.image.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ready once other settings than these are in force.
    pub async fn settings_changed(&self, known: &Arc<CoreConfig>) {
        loop {
            let mut changed = std::pin::pin!(self.image_changed.notified());
            changed.as_mut().enable(); // what is published from here on is seen
            if !Arc::ptr_eq(&self.image().config, known) {
                return;
            }
            changed.await;
        }
    }

    /// Where bytes are read from.
    pub fn reader(&self) -> LogReader {
        self.reader.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// After a reload the index is a new one; bounds go on.
    pub fn replace_reader(&self, reader: LogReader) {
        *self.reader.write().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    /// Sequence of the newest published frame.
    pub fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// The slot of a partition, none when it does not exist.
    pub fn slot(&self, partition: TopicIdPartition) -> Option<Arc<PartitionSlot>> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).get(&partition).cloned()
    }

    /// Publishes one frame. `None` bounds remove a partition that was deleted.
    pub fn publish(
        &self,
        sequence: u64,
        bounds: Vec<(TopicIdPartition, Option<Bounds>)>,
        image: Option<Arc<Image>>,
    ) {
        let mut touched = Vec::with_capacity(bounds.len());
        for (partition, bounds) in bounds {
            touched.extend(self.publish_partition(sequence, partition, bounds));
        }
        if let Some(image) = image {
            *self.image.write().unwrap_or_else(PoisonError::into_inner) = image;
            self.image_changed.notify_waiters();
        }
        self.sequence.store(sequence, Ordering::Release);
        if !touched.is_empty() {
            self.wakeups.lock().unwrap_or_else(PoisonError::into_inner).append(&mut touched);
        }
    }

    /// Publishes a whole state after a load: what is not among the bounds is gone.
    pub fn publish_all(&self, sequence: u64, bounds: Vec<(TopicIdPartition, Bounds)>, image: Arc<Image>) {
        let mut gone: BTreeSet<TopicIdPartition> =
            self.partitions.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        for (partition, _) in &bounds {
            gone.remove(partition);
        }
        let removals = gone.into_iter().map(|partition| (partition, None));
        let all = bounds.into_iter().map(|(partition, bounds)| (partition, Some(bounds))).chain(removals);
        self.publish(sequence, all.collect(), Some(image));
    }

    /// Lets the wake-up task run; called after the answers of the frame have been released.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Wakes parked fetches for ever: one signal a frame on the log thread, the fan-out happens here.
    pub async fn run_wakeups(&self) {
        loop {
            self.wake.notified().await;
            let touched = std::mem::take(&mut *self.wakeups.lock().unwrap_or_else(PoisonError::into_inner));
            for slot in touched {
                slot.wake_waiters();
            }
        }
    }

    fn publish_partition(
        &self,
        sequence: u64,
        partition: TopicIdPartition,
        bounds: Option<Bounds>,
    ) -> Option<Arc<PartitionSlot>> {
        let Some(bounds) = bounds else {
            return self.partitions.write().unwrap_or_else(PoisonError::into_inner).remove(&partition);
        };
        let published = Arc::new(Published { sequence, bounds });
        if let Some(slot) = self.slot(partition) {
            slot.publish(published);
            return Some(slot);
        }
        let slot = PartitionSlot { versions: Mutex::new((published, None)), waiters: Mutex::default() };
        self.partitions.write().unwrap_or_else(PoisonError::into_inner).insert(partition, Arc::new(slot));
        None
    }
}

impl PartitionSlot {
    /// The newest bounds not above `sequence`.
    pub fn bounds_at(&self, sequence: u64) -> Result<Arc<Published>, Outdated> {
        let versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        if versions.0.sequence <= sequence {
            return Ok(versions.0.clone());
        }
        versions.1.as_ref().filter(|previous| previous.sequence <= sequence).cloned().ok_or(Outdated)
    }

    /// The newest bounds.
    pub fn newest(&self) -> Arc<Published> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Registers a parked fetch until it is woken once or dropped.
    pub fn register(&self, waiter: &Arc<Waiter>) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if waiters.all.len() >= waiters.sweep_at {
            waiters.all.retain(|waiter| waiter.strong_count() > 0);
            // Twice what is left: a sweep is paid for by as many registrations as it looks at.
            waiters.sweep_at = (2 * waiters.all.len()).max(16);
        }
        waiters.all.push(Arc::downgrade(waiter));
    }

    fn publish(&self, published: Arc<Published>) {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let before = &versions.0.bounds;
        assert!(
            published.bounds.high_watermark >= before.high_watermark
                && published.bounds.log_start_offset >= before.log_start_offset,
            "published bounds never go back: {before:?} -> {:?}",
            published.bounds
        );
        let old = std::mem::replace(&mut versions.0, published);
        versions.1 = Some(old);
    }

    fn wake_waiters(&self) {
        let waiters = std::mem::take(&mut *self.waiters.lock().unwrap_or_else(PoisonError::into_inner));
        for waiter in waiters.all.iter().filter_map(Weak::upgrade) {
            if !waiter.fired.swap(true, Ordering::AcqRel) {
                waiter.moved.notify_one();
            }
        }
    }
}
