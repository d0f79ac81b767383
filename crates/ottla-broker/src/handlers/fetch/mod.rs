//! Fetch (key 1, versions 4-18): long polls, both isolation levels, incremental sessions (KIP-227), topic ids.
//!
//! It never goes through the shard's queue: it reads the published bounds and the log's index. Bounds of all
//! partitions in one answer are of one instant. A parked fetch is woken when one of its partitions moves, and
//! is answered early, empty, when a later request waits behind it on its connection. A follower's fetch
//! (`replica_id` >= 0) is served like a consumer's: nobody becomes a replica by saying so.

pub mod answer;
pub mod read;
pub mod sessions;

use std::sync::Arc;
use std::time::Duration;

use ottla_env::time;
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::fetch_request::FetchRequest;
use ottla_protocol::types::{Text, Uuid};

use crate::dispatch::{Incoming, Outcome, encode};
use crate::limits::{FETCH_BYTES_LEAST, FETCH_IN_FLIGHT_SHARE, FETCH_WAIT_MAX};
use crate::net::connection::{Answer, Outgoing, Peer};
use crate::net::frames::Share;
use crate::net::line::Line;
use crate::shard::view::Waiter;
use crate::shared::Shared;
use read::{Limits, Round};
use sessions::{Asked, Chosen, SessionError};

/// One partition that a fetch wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The topic's name; empty from version 13 on.
    pub topic: Text,
    /// The topic's id from version 13 on, else zero.
    pub topic_id: Uuid,
    /// Index of the partition.
    pub partition: i32,
    /// Offset of the first record wanted.
    pub fetch_offset: i64,
    /// Bytes wanted of this partition at the most.
    pub max_bytes: usize,
    /// The leader epoch that the client knows, -1 for none.
    pub current_leader_epoch: i32,
}

/// Decodes the request; reading and waiting happen when its turn to be answered comes.
pub fn handle(
    shared: &Arc<Shared>,
    peer: &Peer,
    incoming: Incoming,
    reader: &mut Reader,
) -> Result<Outcome, DecodeError> {
    let request = FetchRequest::decode(reader, incoming.version)?;
    let Incoming { api, version, correlation_id, bytes, permit, .. } = incoming;
    let (shared, line) = (shared.clone(), peer.line.clone());
    Ok(Outcome::Answer(Answer::Later(Box::pin(async move {
        // Its bytes count among those of requests that wait; if there are too many, it does not.
        let parked = shared.request_budget.park(bytes);
        let (response, held) = answer_fetch(&shared, &line, version, request, parked).await;
        drop(permit);
        let outgoing = encode(&response, api, version, correlation_id)?;
        Some(Outgoing { held, ..outgoing })
    }))))
}

type Held = Option<tokio::sync::OwnedSemaphorePermit>;

async fn answer_fetch(
    shared: &Arc<Shared>,
    line: &Line,
    version: i16,
    request: FetchRequest,
    parked: Option<Share>,
) -> (m::FetchResponse, Held) {
    let by_id = version >= 13;
    let asked = Asked {
        session_id: request.session_id,
        session_epoch: request.session_epoch,
        changes: wanted_of(&request),
        forgotten: forgotten_of(&request),
        by_id,
    };
    let chosen = match shared.sessions.begin(asked, shared.clock.monotonic()) {
        Ok(chosen) => chosen,
        Err(error) => return (refusal(error), None),
    };
    let share = (shared.fetch_budget.available_permits() / FETCH_IN_FLIGHT_SHARE).max(FETCH_BYTES_LEAST);
    let bytes_max = shared.config.fetch_max_bytes.min(share);
    let limits = Limits {
        bytes: usize::try_from(request.max_bytes).unwrap_or(0).min(bytes_max),
        read_committed: request.isolation_level == 1,
        by_id,
        version,
    };
    let wait = match parked {
        Some(_) => Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)).min(FETCH_WAIT_MAX),
        None => Duration::ZERO,
    };
    let min_bytes = usize::try_from(request.min_bytes).unwrap_or(0).min(limits.bytes);
    drop(request);
    let mut round = poll(shared, line, &chosen, &limits, min_bytes, wait).await;
    let held = round.held.take();
    (answer::build(shared, chosen, round, version), held)
}

/// Reads, and reads again when a partition has moved, until there is enough to answer or the time is over.
async fn poll(
    shared: &Arc<Shared>,
    line: &Line,
    chosen: &Chosen,
    limits: &Limits,
    min_bytes: usize,
    wait: Duration,
) -> Round {
    let deadline = time::now() + wait;
    let mut round = read::read_all(shared, &chosen.wanted, limits).await;
    loop {
        if round.is_enough(min_bytes) || wait.is_zero() || chosen.wanted.is_empty() {
            return round;
        }
        // Register first, then look again: what is published in between is seen one way or the other.
        let waiter = Arc::new(Waiter::default());
        round.slots.iter().for_each(|(slot, _)| slot.register(&waiter));
        if round.is_outdated() {
            round = read::read_all(shared, &chosen.wanted, limits).await;
            if round.is_enough(min_bytes) {
                return round;
            }
        }
        // Whoever waits holds no data and no room that others may need: what there is is read again.
        let empty = (round.bytes == 0).then_some(round);
        let _parked = shared.metrics.parked_fetches.hold();
        let has_moved = tokio::select! {
            () = waiter.moved.notified() => true,
            () = time::sleep_until(deadline) => false,
            () = line.somebody_behind() => false,
            () = shared.stopping() => false,
        };
        round = match empty {
            Some(round) if !has_moved => round,
            _ => read::read_all(shared, &chosen.wanted, limits).await,
        };
        if !has_moved {
            return round;
        }
    }
}

fn wanted_of(request: &FetchRequest) -> Vec<Wanted> {
    let topics = request.topics.iter();
    let partitions =
        topics.flat_map(|topic| topic.partitions.iter().map(move |partition| (topic, partition)));
    let wanted = partitions.map(|(topic, partition)| Wanted {
        topic: topic.topic.clone(),
        topic_id: topic.topic_id,
        partition: partition.partition,
        fetch_offset: partition.fetch_offset,
        max_bytes: usize::try_from(partition.partition_max_bytes).unwrap_or(0),
        current_leader_epoch: partition.current_leader_epoch,
    });
    wanted.collect()
}

fn forgotten_of(request: &FetchRequest) -> Vec<(Text, Uuid, i32)> {
    let topics = request.forgotten_topics_data.iter();
    topics
        .flat_map(|topic| {
            topic.partitions.iter().map(|partition| (topic.topic.clone(), topic.topic_id, *partition))
        })
        .collect()
}

fn refusal(error: SessionError) -> m::FetchResponse {
    let code = match error {
        SessionError::UnknownId => ErrorCode::FetchSessionIdNotFound,
        SessionError::WrongEpoch => ErrorCode::InvalidFetchSessionEpoch,
        SessionError::IdsAndNames => ErrorCode::FetchSessionTopicIdError,
    };
    m::FetchResponse { error_code: code.code(), ..Default::default() }
}
