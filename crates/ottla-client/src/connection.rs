//! One connection to one broker: frames, correlation ids, pipelining, time-outs, version negotiation.
//!
//! Two tasks per connection, owned by the last clone of `Connection`: one writes the frames that could not be
//! written at once, one reads answers and hands each to the oldest waiting request, since Kafka answers a
//! connection in order.
//!
//! Invariants: a request's place in the queue of waiting answers is its place on the wire; at most
//! `IN_FLIGHT_MAX` requests are outstanding; an answer's buffer is no larger than what the peer has sent can pay
//! for. Any violation, and any answer that is late, ends the connection: everything waiting fails at once with the
//! reason.

mod negotiate;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use ottla_env::net;
use ottla_env::spawn::{self, TaskHandle};
use ottla_env::time::{self, Instant};
use ottla_protocol::api::ApiKey;
use ottla_protocol::codec::Reader;
use ottla_protocol::frame;
use ottla_protocol::header::{RequestHeader, ResponseHeader};
use ottla_protocol::messages::{Message, Request};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tracing::{Instrument, Span};

use crate::error::CallError;
use crate::settings::ClientSettings;

use negotiate::Offered;
pub use negotiate::{Finalized, Versions};
#[cfg(test)]
pub(crate) use wire::FrameReader;
use wire::Outgoing;

/// Most requests of one connection without an answer.
const IN_FLIGHT_MAX: usize = 128;
/// Bytes that decoding an answer may allocate, however short it is.
const DECODE_BUDGET_BYTES_MIN: usize = 1 << 20;
/// And beyond its length, however long it is.
const DECODE_BUDGET_BYTES_MAX: usize = 256 << 20;
/// Bytes that a structure takes in memory per byte on the wire, at most: what short elements come to.
const DECODE_GROWTH_MAX: usize = 16;

/// A connection to a broker, negotiated. Clones share it; it is closed when the last one is dropped.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// use std::{sync::Arc, time::Duration};
/// use ottla_client::{ClientSettings, Connection, Versions};
/// use ottla_protocol::messages::MetadataRequest;
///
/// const METADATA: Versions = Versions::new(9, 13);
///
/// let connection = Connection::connect(bootstrap, Arc::new(ClientSettings::new(bootstrap)?)).await?;
/// let all_topics = MetadataRequest { topics: None, ..MetadataRequest::default() };
/// let answer = connection.call(&all_topics, METADATA).await?;
/// println!("{} has {} topics", connection.address(), answer.topics.len());
///
/// // several at once: answers come in the order of the requests
/// let version = connection.version::<MetadataRequest>(METADATA)?;
/// let mut first = connection.start(&all_topics, version).await?;
/// let mut second = connection.start_waiting(&all_topics, version, Duration::from_secs(1)).await?;
/// first.wait().await?;
/// second.wait().await?;
/// println!("{:?}, closed: {}", connection.finalized("transaction.version"), connection.is_closed());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Connection {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    out: Arc<Outgoing>,
    permits: Arc<Semaphore>,
    settings: Arc<ClientSettings>,
    offered: Offered,
    tasks: [TaskHandle<()>; 2],
}

/// What the two tasks and the waiting requests share.
#[derive(Debug)]
struct Shared {
    address: String,
    state: Mutex<State>,
    closed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    next_correlation_id: i32,
    waiting: VecDeque<Waiting>,
    closed: Option<String>,
}

#[derive(Debug)]
struct Waiting {
    correlation_id: i32,
    answer: oneshot::Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.shared.close("it was closed by us");
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Ends the connection; the first reason is kept. Everything waiting fails.
    fn close(&self, reason: impl Into<String>) {
        let mut state = self.state();
        if state.closed.is_none() {
            state.closed = Some(reason.into());
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
        self.closed.send_replace(true);
    }

    fn closed_error(&self, api: &'static str) -> CallError {
        let reason = self.state().closed.clone().unwrap_or_else(|| "the answer was lost".to_owned());
        CallError::Closed { address: self.address.clone(), api, reason }
    }
}

impl Connection {
    /// Connects to `host:port` and asks which versions are served. Dropping the future closes what was opened.
    pub async fn connect(address: &str, settings: Arc<ClientSettings>) -> Result<Self, CallError> {
        let failed = |reason: String| CallError::Connect { address: address.to_owned(), reason };
        let stream = net::connect(address, settings.connection_setup_timeout)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let (read, write) = stream.into_split();
        let shared = Arc::new(Shared {
            address: address.to_owned(),
            state: Mutex::default(),
            closed: watch::Sender::new(false),
        });
        let (out, frames) = Outgoing::new(write, IN_FLIGHT_MAX);
        let span = tracing::debug_span!("connection", node = address);
        let writer = wire::run_writer(Arc::clone(&shared), Arc::clone(&out), frames);
        let reader = wire::run_reader(Arc::clone(&shared), read, settings.answer_bytes_max);
        let tasks = [
            spawn::task("client-write", writer.instrument(span.clone())),
            spawn::task("client-read", reader.instrument(span.clone())),
        ];
        let permits = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        let mut inner = Inner { shared, out, permits, settings, offered: Offered::nothing(), tasks };
        inner.offered = negotiate::negotiate(&inner).instrument(span).await.map_err(|error| match error {
            CallError::Closed { reason, .. } => failed(reason),
            CallError::Garbled { address, api, detail } => CallError::Protocol { address, api, detail },
            other => other,
        })?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.inner.shared.state().closed.is_some()
    }

    /// The peer, as it was given.
    pub fn address(&self) -> &str {
        &self.inner.shared.address
    }

    /// The level a feature is finalized at, with the epoch it was learnt at; absent when it is not.
    pub fn finalized(&self, feature: &str) -> Option<Finalized> {
        self.inner.offered.finalized(feature)
    }

    /// The highest version both sides speak, within what the caller can use.
    pub fn version<R: Request>(&self, usable: Versions) -> Result<i16, CallError> {
        self.inner.offered.version::<R>(usable).map_err(|offered| CallError::Unsupported {
            address: self.address().to_owned(),
            api: R::NAME,
            wanted: usable,
            offered,
        })
    }

    /// Queues a request, waiting for room among the outstanding ones. The order of calls on one connection is
    /// the order on the wire. Dropping the future before it is ready leaves nothing queued.
    pub async fn start<R: Request>(
        &self,
        request: &R,
        version: i16,
    ) -> Result<Pending<R::Response>, CallError> {
        self.inner.start(request, version, self.inner.settings.request_timeout).await
    }

    /// Like `start`, for requests that the broker may hold back for `wait` on purpose.
    pub async fn start_waiting<R: Request>(
        &self,
        request: &R,
        version: i16,
        wait: Duration,
    ) -> Result<Pending<R::Response>, CallError> {
        self.inner.start(request, version, self.inner.settings.request_timeout.saturating_add(wait)).await
    }

    /// Sends a request and waits for its answer. If the future is dropped, the request may still be carried out.
    pub async fn call<R: Request>(&self, request: &R, usable: Versions) -> Result<R::Response, CallError> {
        let version = self.version::<R>(usable)?;
        self.start(request, version).await?.wait().await
    }
}

impl Inner {
    async fn start<R: Request>(
        &self,
        request: &R,
        version: i16,
        timeout: Duration,
    ) -> Result<Pending<R::Response>, CallError> {
        let deadline = time::now() + timeout;
        let permit = time::timeout_at(deadline, Arc::clone(&self.permits).acquire_owned()).await;
        let Ok(permit) = permit else {
            return Err(CallError::TimedOut {
                address: self.shared.address.clone(),
                api: R::NAME,
                after: timeout,
            });
        };
        let permit = permit.expect("this semaphore is never closed");
        let (sender, answer) = oneshot::channel();
        // the lock makes the place in the queue of answers and the place on the wire the same
        let mut state = self.shared.state();
        if state.closed.is_some() {
            drop(state);
            return Err(self.shared.closed_error(R::NAME));
        }
        let correlation_id = state.next_correlation_id;
        state.next_correlation_id = correlation_id.wrapping_add(1) & i32::MAX;
        let header =
            RequestHeader::new(R::API, version, correlation_id, Some(self.settings.client_id.clone()));
        let frame = frame::encode_request(&header, request)
            .map_err(|error| CallError::Encode { api: R::NAME, detail: error.to_string() })?;
        let span = tracing::debug_span!(
            "request",
            api = R::NAME,
            version,
            correlation_id,
            node = %self.shared.address,
            outcome = tracing::field::Empty,
        );
        state.waiting.push_back(Waiting { correlation_id, answer: sender, _permit: permit });
        let sent = self.out.send(frame);
        drop(state);
        if let Err(reason) = sent {
            self.shared.close(reason);
            return Err(self.shared.closed_error(R::NAME));
        }
        Ok(Pending {
            shared: Arc::clone(&self.shared),
            answer,
            version,
            deadline,
            timeout,
            key: R::API,
            api: R::NAME,
            span,
            response: PhantomData,
        })
    }
}

/// A request that was queued; its answer can be waited for.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// use std::sync::Arc;
/// use ottla_client::{ClientSettings, Connection, Pending, Versions};
/// use ottla_protocol::messages::{MetadataRequest, MetadataResponse};
///
/// # let connection = Connection::connect(bootstrap, Arc::new(ClientSettings::new(bootstrap)?)).await?;
/// let mut pending: Pending<MetadataResponse> = connection.start(&MetadataRequest::default(), 12).await?;
/// assert_eq!(pending.version(), 12);
/// println!("{} brokers", pending.wait().await?.brokers.len());
/// # Ok(())
/// # });
/// ```
#[derive(Debug)]
pub struct Pending<R> {
    shared: Arc<Shared>,
    answer: oneshot::Receiver<Bytes>,
    version: i16,
    deadline: Instant,
    timeout: Duration,
    key: ApiKey,
    api: &'static str,
    span: Span,
    response: PhantomData<fn() -> R>,
}

impl<R: Message> Pending<R> {
    /// The version the request was written in, and so the answer's.
    pub fn version(&self) -> i16 {
        self.version
    }

    /// Waits for the answer, at most until the request's time-out; then the connection is ended, because
    /// answers come in order and none behind a lost one can be told apart. Cancel-safe: the wait can be taken up
    /// again.
    pub async fn wait(&mut self) -> Result<R, CallError> {
        let result = self.answer().await;
        match &result {
            Ok(_) => self.span.record("outcome", "answered"),
            Err(error) => self.span.record("outcome", tracing::field::display(error)),
        };
        result
    }

    async fn answer(&mut self) -> Result<R, CallError> {
        match time::timeout_at(self.deadline, &mut self.answer).await {
            Ok(Ok(bytes)) => self.decode(bytes),
            Ok(Err(_)) => Err(self.shared.closed_error(self.api)),
            Err(_) => {
                self.shared.close(format!(
                    "{} was not answered within {} ms",
                    self.api,
                    self.timeout.as_millis()
                ));
                Err(CallError::TimedOut {
                    address: self.shared.address.clone(),
                    api: self.api,
                    after: self.timeout,
                })
            }
        }
    }

    fn decode(&self, bytes: Bytes) -> Result<R, CallError> {
        let grown = bytes
            .len()
            .saturating_mul(DECODE_GROWTH_MAX)
            .min(bytes.len().saturating_add(DECODE_BUDGET_BYTES_MAX));
        let budget = grown.max(DECODE_BUDGET_BYTES_MIN);
        let mut reader = Reader::with_budget(bytes, budget);
        let decoded = ResponseHeader::decode(&mut reader, self.key, self.version)
            .and_then(|_| R::decode(&mut reader, self.version));
        decoded.map_err(|error| {
            self.shared.close("it sent an answer that cannot be read");
            CallError::Garbled {
                address: self.shared.address.clone(),
                api: self.api,
                detail: error.to_string(),
            }
        })
    }
}
