//! Between a client and a broker: keeps answers by API and version, and, when told to, changes some of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ottla_env::net::{self, OwnedReadHalf, OwnedWriteHalf};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn::{self, TaskGroup, TaskHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Answers that are kept of each API and version.
const KEPT_MAX: usize = 3;
/// Bytes of a correlation id, with which every answer begins.
pub(crate) const CORRELATION_BYTES: usize = 4;
const API_VERSIONS: i16 = 18;

/// API key and version.
pub(crate) type Kind = (i16, i16);

/// What all connections share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Answers of a broker without length, the longest of each kind.
    pub(crate) answers: Mutex<BTreeMap<Kind, Vec<Vec<u8>>>>,
    /// Whether answers are changed.
    pub(crate) mutates: AtomicBool,
    /// How many were.
    pub(crate) mutated: AtomicU64,
}

impl Shared {
    fn keep(&self, kind: Kind, frame: &[u8]) {
        let mut answers = self.answers.lock().expect("nobody panics in here");
        let kept = answers.entry(kind).or_default();
        if !kept.iter().any(|kept| kept.len() == frame.len()) {
            kept.push(frame.to_vec());
            kept.sort_by_key(|kept| std::cmp::Reverse(kept.len()));
            kept.truncate(KEPT_MAX);
        }
    }
}

/// Takes an address for `forward`.
pub(crate) async fn bind() -> (String, net::TcpListener) {
    let listener = net::bind("127.0.0.1:0").await.expect("a free port");
    (listener.local_addr().expect("an address").to_string(), listener)
}

/// Forwards until the handle is aborted.
pub(crate) fn forward(
    listener: net::TcpListener,
    target: String,
    seed: u64,
    shared: Arc<Shared>,
) -> TaskHandle<()> {
    spawn::task("middle", async move {
        let mut rng = SeededRng::new(seed);
        let mut connections = TaskGroup::new();
        while let Ok((client, _)) = net::accept(&listener).await {
            connections.reap();
            let Ok(broker) = net::connect(&target, Duration::from_secs(5)).await else { continue };
            let (client_read, client_write) = client.into_split();
            let (broker_read, broker_write) = broker.into_split();
            let (shared, rng) = (Arc::clone(&shared), SeededRng::new(rng.next_u64()));
            connections.spawn("middle-connection", async move {
                let asked = Mutex::default();
                tokio::select! {
                    () = pass_requests(client_read, broker_write, &asked) => {}
                    () = pass_answers(broker_read, client_write, &asked, rng, &shared) => {}
                }
            });
        }
    })
}

/// A frame without its length; absent when the connection has ended.
pub(crate) async fn read(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let length = usize::try_from(from.read_i32().await.ok()?).ok()?;
    let mut frame = vec![0; length];
    from.read_exact(&mut frame).await.ok()?;
    Some(frame)
}

pub(crate) async fn write(to: &mut OwnedWriteHalf, frame: &[u8]) -> bool {
    let length = i32::try_from(frame.len()).expect("below 2 GiB").to_be_bytes();
    to.write_all(&[&length[..], frame].concat()).await.is_ok()
}

/// API key and version of a request.
pub(crate) fn kind_of(request: &[u8]) -> Kind {
    let number = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
    (number(0), number(2))
}

async fn pass_requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, asked: &Mutex<VecDeque<Kind>>) {
    while let Some(frame) = read(&mut from).await {
        asked.lock().expect("nobody panics in here").push_back(kind_of(&frame));
        if !write(&mut to, &frame).await {
            return;
        }
    }
}

async fn pass_answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    asked: &Mutex<VecDeque<Kind>>,
    mut rng: SeededRng,
    shared: &Shared,
) {
    while let Some(mut frame) = read(&mut from).await {
        let kind = asked.lock().expect("nobody panics in here").pop_front().expect("it was asked for");
        if !shared.mutates.load(Ordering::Relaxed) {
            shared.keep(kind, &frame);
        } else if kind.0 != API_VERSIONS && rng.index(6) == 0 {
            frame = mutate(&frame, &mut rng);
            shared.mutated.fetch_add(1, Ordering::Relaxed);
        }
        if !write(&mut to, &frame).await {
            return;
        }
    }
}

/// Another answer to the same request: bits, bytes, lengths and counts that are wrong, cut, put in and repeated.
pub(crate) fn mutate(frame: &[u8], rng: &mut SeededRng) -> Vec<u8> {
    let (head, body) = frame.split_at(CORRELATION_BYTES);
    let mut body = body.to_vec();
    for _ in 0..=rng.index(3) {
        let at = rng.index(body.len() + 1);
        let behind = (at + 1 + rng.index(8)).min(body.len());
        match rng.index(8) {
            0 => body.truncate(at),
            1 => body.extend((0..rng.index(40)).map(|_| 0xff)),
            2 if at < body.len() => body[at] ^= 1 << rng.index(8),
            // absent, where a length or a count was; or the largest there is, in both ways to write it
            3 => body.splice(at..behind, [0xff; 4]).for_each(drop),
            4 => body.splice(at..behind, [0x7f, 0xff, 0xff, 0xff]).for_each(drop),
            5 => body.splice(at..behind, [0xff, 0xff, 0xff, 0xff, 0x0f]).for_each(drop),
            6 => drop(body.drain(at..behind.max(at))),
            _ => {
                let piece = body[at..behind.max(at)].to_vec();
                body.splice(at..at, piece).for_each(drop);
            }
        }
    }
    [head, &body].concat()
}
