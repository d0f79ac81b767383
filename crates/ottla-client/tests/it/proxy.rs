//! A proxy between a client and a broker that does, by seed, what networks and broken peers do.
//!
//! It knows frames, not messages: it may cut a connection before, within or behind a frame, hold a frame back,
//! answer with another correlation id, cut bytes off the end of an answer, or claim an answer of 2 GiB. Requests
//! are never changed, so that what reaches the broker is what the client wrote, whole or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ottla_env::net::{self, OwnedReadHalf, OwnedWriteHalf};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn::{self, TaskGroup, TaskHandle};
use ottla_env::time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Faults in a million frames, each kind.
const RATE: u32 = 15_000;
/// Bytes of the longest frame that passes.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// How often each fault was made.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests_lost: AtomicU64,
    pub(crate) requests_cut: AtomicU64,
    pub(crate) answers_lost: AtomicU64,
    pub(crate) answers_cut: AtomicU64,
    pub(crate) answers_truncated: AtomicU64,
    pub(crate) answers_swapped: AtomicU64,
    pub(crate) answers_hostile: AtomicU64,
    pub(crate) delays: AtomicU64,
}

impl Counts {
    /// How often each fault was made.
    pub(crate) fn all(&self) -> [u64; 8] {
        let all = [
            &self.requests_lost,
            &self.requests_cut,
            &self.answers_lost,
            &self.answers_cut,
            &self.answers_truncated,
            &self.answers_swapped,
            &self.answers_hostile,
            &self.delays,
        ];
        all.map(|count| count.load(Ordering::Relaxed))
    }
}

/// What a proxy shares with its connections.
#[derive(Debug, Default)]
struct Shared {
    counts: Counts,
    faulty: AtomicBool,
    silent: AtomicBool,
}

/// A running proxy; it ends when this is dropped.
pub(crate) struct Proxy {
    pub(crate) address: String,
    shared: Arc<Shared>,
    task: TaskHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Takes an address; `forward` then gives it its target.
    pub(crate) async fn bind() -> (String, net::TcpListener) {
        let listener = net::bind("127.0.0.1:0").await.expect("a free port");
        (listener.local_addr().expect("an address").to_string(), listener)
    }

    /// Begins to forward, without faults.
    pub(crate) fn forward(listener: net::TcpListener, target: String, seed: u64) -> Self {
        let address = listener.local_addr().expect("an address").to_string();
        let shared = Arc::new(Shared::default());
        let task = spawn::task("proxy", serve(listener, target, SeededRng::new(seed), shared.clone()));
        Self { address, shared, task }
    }

    /// Begins or ends making faults.
    pub(crate) fn set_faulty(&self, faulty: bool) {
        self.shared.faulty.store(faulty, Ordering::Relaxed);
    }

    /// From now on nothing passes, and nothing is closed.
    pub(crate) fn set_silent(&self, silent: bool) {
        self.shared.silent.store(silent, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.shared.counts
    }
}

async fn serve(listener: net::TcpListener, target: String, mut rng: SeededRng, shared: Arc<Shared>) {
    let mut connections = TaskGroup::new();
    while let Ok((client, _)) = net::accept(&listener).await {
        connections.reap();
        let Ok(broker) = net::connect(&target, Duration::from_secs(5)).await else { continue };
        let (client_read, client_write) = client.into_split();
        let (broker_read, broker_write) = broker.into_split();
        let (a, b) = (rng.next_u64(), rng.next_u64());
        let (shared_a, shared_b) = (shared.clone(), shared.clone());
        connections.spawn("proxy-connection", async move {
            let requests = pass_requests(client_read, broker_write, SeededRng::new(a), &shared_a);
            let answers = pass_answers(broker_read, client_write, SeededRng::new(b), &shared_b);
            // either side's end closes both
            tokio::select! {
                () = requests => {}
                () = answers => {}
            }
        });
    }
}

/// A frame without its length; absent when the connection has ended.
async fn read(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let length = usize::try_from(from.read_i32().await.ok()?).ok()?;
    assert!(length <= FRAME_BYTES_MAX, "neither side sends so much");
    let mut frame = vec![0; length];
    from.read_exact(&mut frame).await.ok()?;
    Some(frame)
}

async fn write(to: &mut OwnedWriteHalf, claimed: usize, bytes: &[u8]) -> bool {
    let length = i32::try_from(claimed).expect("below 2 GiB").to_be_bytes();
    to.write_all(&length).await.is_ok() && to.write_all(bytes).await.is_ok()
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

async fn hold_back(rng: &mut SeededRng, shared: &Shared) {
    if rng.chance(RATE) {
        count(&shared.counts.delays);
        time::sleep(Duration::from_millis(rng.between(1, 200))).await;
    }
}

async fn pass_requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut rng: SeededRng, shared: &Shared) {
    while let Some(frame) = read(&mut from).await {
        while shared.silent.load(Ordering::Relaxed) {
            time::sleep(Duration::from_millis(20)).await;
        }
        if shared.faulty.load(Ordering::Relaxed) {
            hold_back(&mut rng, shared).await;
            if rng.chance(RATE) {
                return count(&shared.counts.requests_lost);
            }
            if rng.chance(RATE) {
                write(&mut to, frame.len(), &frame[..frame.len() / 2]).await;
                return count(&shared.counts.requests_cut);
            }
        }
        if !write(&mut to, frame.len(), &frame).await {
            return;
        }
    }
}

async fn pass_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut rng: SeededRng, shared: &Shared) {
    // the first answer is that to ApiVersions: a peer that garbles it is refused for good, and rightly so
    let mut is_first = true;
    while let Some(mut frame) = read(&mut from).await {
        let counts = &shared.counts;
        if shared.faulty.load(Ordering::Relaxed) {
            hold_back(&mut rng, shared).await;
            if rng.chance(RATE) {
                return count(&counts.answers_lost);
            }
            if rng.chance(RATE) {
                write(&mut to, frame.len(), &frame[..frame.len() / 2]).await;
                return count(&counts.answers_cut);
            }
            if !is_first && rng.chance(RATE) {
                count(&counts.answers_truncated);
                let cut = rng.between(1, 8).min(frame.len() as u64 - 4) as usize;
                frame.truncate(frame.len() - cut);
            } else if !is_first && rng.chance(RATE) {
                count(&counts.answers_swapped);
                frame[3] ^= 1;
            } else if !is_first && rng.chance(RATE) {
                count(&counts.answers_hostile);
                write(&mut to, i32::MAX as usize, &frame).await;
                return;
            }
        }
        is_first = false;
        if !write(&mut to, frame.len(), &frame).await {
            return;
        }
    }
}
