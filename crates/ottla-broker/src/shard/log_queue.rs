//! The queue from the owner to the log thread: decisions, and answers that wait for one, in the owner's order.
//!
//! Bounded by bytes: above the bound the owner pauses, and with it everything that would make more work.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use ottla_core::cluster::Image;
use ottla_core::decision::{Bounds, Position, Reply, ShardTime};
use ottla_core::shard::Snapshot;
use ottla_protocol::entry::Entry;
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::FilesChange;

use super::Request;
use crate::limits::LOG_QUEUE_BYTES_MAX;

/// One decision on its way to the disk.
pub struct Decided {
    /// Its number.
    pub position: Position,
    /// When it was decided.
    pub time: ShardTime,
    /// Its entries; they stay in one frame.
    pub entries: Vec<Entry>,
    /// Bytes of its batches.
    pub bytes: usize,
    /// Bounds of the touched partitions after it; `None` for a deleted one.
    pub bounds: Vec<(TopicIdPartition, Option<Bounds>)>,
    /// The new image, when it changed.
    pub image: Option<Arc<Image>>,
}

/// An answer that may leave once `rests_on` is durable. The request is kept: after a reload it may have to be
/// decided again.
pub struct Pending {
    /// Order in which the owner answered.
    pub order: u64,
    /// What was asked, and by whom.
    pub request: Request,
    /// The answer.
    pub reply: Reply,
    /// What it rests on.
    pub rests_on: Position,
    /// When it was decided, by the monotonic clock.
    pub decided: Duration,
}

/// What the owner hands to the log thread.
pub enum ToLog {
    /// A decision.
    Decision(Decided),
    /// An answer.
    Answer(Pending),
    /// The state after all decisions before it: to be written once those are durable.
    Snapshot(Snapshot, Position, ShardTime),
    /// A change of the log's files, and who waits until it is durable. When the log ends first, the sender is dropped.
    Files(Arc<FilesChange>, SyncSender<()>),
    /// Seal the file in use, and who waits for it. When that cannot be, the sender is dropped.
    Roll(SyncSender<()>),
}

/// The queue.
#[derive(Default)]
pub struct LogQueue {
    state: Mutex<State>,
    filled: Condvar,
    drained: Condvar,
}

#[derive(Default)]
struct State {
    items: VecDeque<ToLog>,
    bytes: usize,
    closed: bool,
    failed: bool,
}

impl LogQueue {
    /// Queues an item, waiting while too many bytes are queued and the log is alive.
    pub fn push(&self, item: ToLog) {
        let mut state = self.lock();
        while state.bytes >= LOG_QUEUE_BYTES_MAX && !state.failed {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes += item.bytes();
        state.items.push_back(item);
        drop(state);
        self.filled.notify_one();
    }

    /// As [`push`](Self::push), but refuses when nobody will take it any more.
    pub fn offer(&self, item: ToLog) -> bool {
        let mut state = self.lock();
        if state.closed || state.failed {
            return false;
        }
        state.bytes += item.bytes();
        state.items.push_back(item);
        drop(state);
        self.filled.notify_one();
        true
    }

    /// Takes everything up to `frame_bytes` of decisions, or up to a snapshot; waits for the first item.
    /// Empty when the queue is closed and drained.
    pub fn take(&self, frame_bytes: usize) -> Vec<ToLog> {
        let mut state = self.lock();
        while state.items.is_empty() && !state.closed {
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (mut out, mut bytes) = (Vec::new(), 0);
        while let Some(item) = state.items.pop_front() {
            bytes += item.bytes();
            let is_snapshot = matches!(item, ToLog::Snapshot(..));
            out.push(item);
            if is_snapshot || bytes >= frame_bytes {
                break;
            }
        }
        state.bytes -= bytes;
        drop(state);
        self.drained.notify_one();
        out
    }

    /// The log is dead: the owner must not wait for it any more.
    pub fn fail(&self) {
        self.lock().failed = true;
        self.drained.notify_one();
    }

    /// Whether the log is dead.
    pub fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// Nothing more will come.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    /// Everything that is queued; for a reload.
    pub fn drain(&self) -> Vec<ToLog> {
        let mut state = self.lock();
        state.bytes = 0;
        state.items.drain(..).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ToLog {
    fn bytes(&self) -> usize {
        match self {
            Self::Decision(decided) => decided.bytes,
            Self::Answer(_) | Self::Snapshot(..) | Self::Files(..) | Self::Roll(_) => 0,
        }
    }
}
