//! The door to threads and tasks: everything that runs has a name and an owner that joins it.

use std::future::Future;
use std::io;
use std::thread;

pub use std::thread::JoinHandle as ThreadHandle;
pub use tokio::runtime::{Handle, Runtime};
pub use tokio::task::JoinHandle as TaskHandle;

/// Starts a thread of the operating system; the name shows in tools (15 bytes of it).
pub fn thread<T, F>(name: &str, body: F) -> io::Result<ThreadHandle<T>>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// The runtime of the asynchronous shell, with its network and timers on.
pub fn runtime(worker_threads: usize) -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads.max(1))
        .thread_name("ottla-net")
        .enable_all()
        .build()
}

/// How many threads the machine runs at once; 1 when it does not say.
pub fn parallelism() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Starts a task on the current runtime. The owner awaits or aborts the handle; dropping it detaches the task,
/// which nobody should do: use a `TaskGroup` for many.
#[allow(clippy::disallowed_methods)] // this is the seam that everybody else uses
pub fn task<F>(name: &'static str, future: F) -> TaskHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let _ = name; // kept at every call site; tokio shows names only behind an unstable flag
    tokio::spawn(future)
}

/// Runs code that blocks or computes for long, away from the tasks' threads.
pub fn blocking<F, T>(name: &'static str, body: F) -> TaskHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let _ = name;
    tokio::task::spawn_blocking(body)
}

/// Tasks with one owner: dropped or aborted together, joined together.
#[derive(Debug, Default)]
pub struct TaskGroup {
    tasks: tokio::task::JoinSet<()>,
}

impl TaskGroup {
    /// A group without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task in the group, on the current runtime. Tasks that have ended are forgotten here, so that a
    /// group that lives as long as the process does not grow.
    pub fn spawn<F>(&mut self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let _ = name;
        self.reap();
        self.tasks.spawn(future);
    }

    /// Forgets tasks that have ended.
    pub fn reap(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    /// Tasks that have not been joined yet.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether every task was joined.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Waits until one task has ended; false when there is none. Whether it panicked is in the second value.
    pub async fn join_next(&mut self) -> Option<Result<(), tokio::task::JoinError>> {
        self.tasks.join_next().await
    }

    /// Waits until all tasks have ended by themselves.
    pub async fn join_all(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Aborts all tasks at their next wait, and waits until they are gone.
    pub async fn abort_all(&mut self) {
        self.tasks.abort_all();
        self.join_all().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Proves that a group joins what ends and aborts what does not.
    #[test]
    fn groups_join_and_abort() {
        let runtime = runtime(2).expect("a runtime");
        let done = Arc::new(AtomicUsize::new(0));
        runtime.block_on(async {
            let mut group = TaskGroup::new();
            for _ in 0..3 {
                let done = Arc::clone(&done);
                group.spawn("ends", async move {
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
            group.join_all().await;
            assert_eq!(done.load(Ordering::SeqCst), 3);
            group.spawn("hangs", std::future::pending());
            group.abort_all().await;
            assert!(group.is_empty());
            assert_eq!(task("adds", async { 1 + 1 }).await.expect("joined"), 2);
            assert_eq!(blocking("adds", || 1 + 1).await.expect("joined"), 2);
        });
    }

    /// Proves that threads carry their name.
    #[test]
    fn threads_are_named() {
        let handle =
            thread("ottla-shard", || std::thread::current().name().map(str::to_owned)).expect("a thread");
        assert_eq!(handle.join().expect("joined").as_deref(), Some("ottla-shard"));
    }
}
