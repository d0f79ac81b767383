//! The shard's inbox: one FIFO per connection, served round robin by bytes (deficit round robin).
//!
//! Whatever a firehose has queued, a one-record commit of another connection is taken within one round.
//! Connections push from their tasks, the owner thread pops; both hold the lock for a few operations only.
//! The bytes in it are bounded by the permits that connections hold (see `net`), not here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use ottla_core::command::ConnectionId;

use crate::limits::INBOX_QUANTUM_BYTES;

/// A fair queue of items from many connections to one owner.
pub struct Inbox<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
}

struct State<T> {
    queues: BTreeMap<ConnectionId, Queue<T>>,
    /// Connections with something queued, in the order they are served.
    ring: VecDeque<ConnectionId>,
    waiting: bool,
    nudged: bool,
    closed: bool,
}

struct Queue<T> {
    items: VecDeque<(usize, T)>,
    deficit: usize,
}

/// What a pop brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Popped {
    /// Items were taken, and nothing is left.
    Drained,
    /// Items were taken, and more are there.
    More,
    /// Nothing came within the time.
    TimedOut,
    /// Nothing came, but somebody wants the owner to look around.
    Nudged,
    /// The inbox is closed and empty.
    Closed,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        let state = State {
            queues: BTreeMap::new(),
            ring: VecDeque::new(),
            waiting: false,
            nudged: false,
            closed: false,
        };
        Self { state: Mutex::new(state), filled: Condvar::new() }
    }
}

impl<T> Inbox<T> {
    /// Queues an item that weighs `bytes`; gives it back when the inbox is closed.
    pub fn push(&self, connection: ConnectionId, bytes: usize, item: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.closed {
            return Err(item);
        }
        let queue =
            state.queues.entry(connection).or_insert_with(|| Queue { items: VecDeque::new(), deficit: 0 });
        let was_empty = queue.items.is_empty();
        queue.items.push_back((bytes.max(1), item));
        if was_empty {
            state.ring.push_back(connection);
        }
        let wake = std::mem::take(&mut state.waiting);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Takes up to `count_max` items in fair order, waiting up to `wait` (none: for ever) for the first.
    pub fn pop(&self, out: &mut Vec<T>, count_max: usize, wait: Option<Duration>) -> Popped {
        let mut state = self.lock();
        while state.ring.is_empty() {
            if state.closed {
                return Popped::Closed;
            }
            if std::mem::take(&mut state.nudged) {
                return Popped::Nudged;
            }
            state.waiting = true;
            match wait {
                None => state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    let (guard, timeout) =
                        self.filled.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
                    state = guard;
                    if timeout.timed_out() && state.ring.is_empty() && !state.closed && !state.nudged {
                        state.waiting = false;
                        return Popped::TimedOut;
                    }
                }
            }
        }
        state.waiting = false;
        state.serve(out, count_max);
        if state.ring.is_empty() { Popped::Drained } else { Popped::More }
    }

    /// Removes what a connection has queued, for instance because its peer is gone.
    pub fn discard(&self, connection: ConnectionId, keep: impl Fn(&T) -> bool) -> Vec<T> {
        let mut state = self.lock();
        let Some(queue) = state.queues.get_mut(&connection) else { return Vec::new() };
        let (kept, gone): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut queue.items).into_iter().partition(|(_, item)| keep(item));
        queue.items = kept;
        if queue.items.is_empty() {
            state.queues.remove(&connection);
            state.ring.retain(|id| *id != connection);
        }
        gone.into_iter().map(|(_, item)| item).collect()
    }

    /// Takes what matches from all queues, keeping their order; for requests that have waited too long.
    pub fn take_matching(&self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        let ids: Vec<ConnectionId> = self.lock().ring.iter().copied().collect();
        ids.into_iter().flat_map(|id| self.discard(id, |item| !matches(item))).collect()
    }

    /// No item is accepted any more; what is queued can still be popped.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    /// Waits without taking anything, until the time is over or the inbox is closed.
    pub fn rest(&self, time: Duration) {
        let state = self.lock();
        let waited = self.filled.wait_timeout_while(state, time, |state| !state.closed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Items that are queued.
    pub fn len(&self) -> usize {
        self.lock().queues.values().map(|queue| queue.items.len()).sum()
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.lock().ring.is_empty()
    }

    /// Makes a waiting pop return.
    pub fn nudge(&self) {
        self.lock().nudged = true;
        self.filled.notify_all();
    }

    /// Whether `close` was called.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn serve(&mut self, out: &mut Vec<T>, count_max: usize) {
        let mut taken = 0;
        while taken < count_max {
            let Some(&id) = self.ring.front() else { return };
            let queue = self.queues.get_mut(&id).expect("a connection in the ring has a queue");
            if queue.items.front().is_some_and(|(bytes, _)| *bytes > queue.deficit) {
                queue.deficit += INBOX_QUANTUM_BYTES;
            }
            while taken < count_max && queue.items.front().is_some_and(|(bytes, _)| *bytes <= queue.deficit) {
                let (bytes, item) = queue.items.pop_front().expect("the front was just seen");
                queue.deficit -= bytes;
                out.push(item);
                taken += 1;
            }
            // Whoever has spent its turn goes to the end, also when the batch is full just now.
            let next = queue.items.front().map(|(bytes, _)| *bytes > queue.deficit);
            match next {
                None => {
                    self.queues.remove(&id);
                    self.ring.pop_front();
                }
                Some(true) => self.ring.rotate_left(1),
                Some(false) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop_all(inbox: &Inbox<u32>) -> Vec<u32> {
        let mut out = Vec::new();
        while inbox.pop(&mut out, 4, Some(Duration::ZERO)) != Popped::TimedOut {}
        out
    }

    /// Proves: a small request of one connection overtakes what a firehose has queued, each stays in order.
    #[test]
    fn a_small_request_is_served_within_one_round() {
        let inbox = Inbox::default();
        for n in 0..50 {
            inbox.push(ConnectionId(1), 1 << 20, n).expect("open");
        }
        inbox.push(ConnectionId(2), 100, 1000).expect("open");
        inbox.push(ConnectionId(2), 100, 1001).expect("open");
        let out = pop_all(&inbox);
        assert!(out.iter().position(|n| *n == 1000).expect("served") < 2, "{out:?}");
        let firehose: Vec<u32> = out.iter().copied().filter(|n| *n < 1000).collect();
        assert_eq!(firehose, (0..50).collect::<Vec<_>>());
    }

    /// Proves: bytes are shared evenly, whatever the sizes of the requests are.
    #[test]
    fn bytes_are_shared_evenly() {
        let inbox = Inbox::default();
        for n in 0..64 {
            inbox.push(ConnectionId(1), 64 << 10, n).expect("open");
            for k in 0..8 {
                inbox.push(ConnectionId(2), 8 << 10, 1000 + n * 8 + k).expect("open");
            }
        }
        let mut out = Vec::new();
        while out.len() < 9 * 16 {
            inbox.pop(&mut out, 1, Some(Duration::ZERO));
        }
        let large = out.iter().filter(|n| **n < 1000).count();
        assert!((15..=17).contains(&large), "{large} of the large ones among {}", out.len());
    }

    /// Proves: discarding takes only what is asked, and an emptied connection leaves the ring.
    #[test]
    fn discard_and_close() {
        let inbox = Inbox::default();
        for n in 0..6 {
            inbox.push(ConnectionId(1), 10, n).expect("open");
        }
        assert_eq!(inbox.discard(ConnectionId(1), |n| n % 2 == 0), vec![1, 3, 5]);
        assert_eq!(inbox.take_matching(|n| *n == 4), vec![4]);
        inbox.close();
        assert_eq!(inbox.push(ConnectionId(2), 1, 9), Err(9));
        assert_eq!(pop_closed(&inbox), vec![0, 2]);
    }

    fn pop_closed(inbox: &Inbox<u32>) -> Vec<u32> {
        let mut out = Vec::new();
        while inbox.pop(&mut out, 4, None) != Popped::Closed {}
        out
    }
}
