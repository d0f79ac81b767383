//! Coordinators: which broker looks after a group or a transactional id.

use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse, Request};
use ottla_protocol::types::Text;
use tracing::Instrument;

use super::nodes::Lane;
use super::{Cluster, ClusterError};
use crate::connection::Versions;
use crate::error::{CallError, wants_coordinator};
use crate::settings::HostPort;

const FIND_COORDINATOR: Versions = Versions::new(4, 6);

/// Most coordinators that are remembered.
const COORDINATORS_MAX: usize = 10_000;

/// What is coordinated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoordinatorKind {
    /// A consumer group.
    Group,
    /// A transactional id.
    Transaction,
}

impl CoordinatorKind {
    fn key_type(self) -> i8 {
        match self {
            Self::Group => 0,
            Self::Transaction => 1,
        }
    }

    fn describe(self, key: &str) -> String {
        match self {
            Self::Group => format!("coordinator of group `{key}`"),
            Self::Transaction => format!("coordinator of transactional id `{key}`"),
        }
    }
}

impl Cluster {
    /// The node that coordinates the key: from memory, else asked for until the deadline.
    pub(crate) async fn coordinator(
        &self,
        kind: CoordinatorKind,
        key: &Text,
        deadline: Instant,
    ) -> Result<i32, ClusterError> {
        let memory_key = (kind.key_type(), key.clone());
        if let Some(node_id) = self.view().coordinators.get(&memory_key) {
            return Ok(*node_id);
        }
        let span = tracing::debug_span!("coordinator", ?kind, %key, node_id = tracing::field::Empty);
        let found = self.look_for_coordinator(kind, key, deadline).instrument(span.clone()).await;
        if let Ok(node_id) = found {
            span.record("node_id", node_id);
        }
        found
    }

    async fn look_for_coordinator(
        &self,
        kind: CoordinatorKind,
        key: &Text,
        deadline: Instant,
    ) -> Result<i32, ClusterError> {
        let mut backoff = self.backoff();
        loop {
            let (code, node_id, host, port) = self.find_coordinator(kind, key, deadline).await?;
            let code = match (code, u16::try_from(port)) {
                (ErrorCode::None, Ok(port)) => {
                    let mut view = self.view();
                    view.learn(node_id, HostPort { host: host.to_string(), port });
                    if view.coordinators.len() >= COORDINATORS_MAX {
                        view.coordinators.clear();
                    }
                    view.coordinators.insert((kind.key_type(), key.clone()), node_id);
                    return Ok(node_id);
                }
                (ErrorCode::None, Err(_)) => ErrorCode::CoordinatorNotAvailable,
                (code, _) => code,
            };
            let until = time::now() + backoff.next();
            if !code.is_retriable() || until >= deadline {
                return Err(ClusterError::Refused { what: kind.describe(key), code });
            }
            time::sleep_until(until).await;
        }
    }

    async fn find_coordinator(
        &self,
        kind: CoordinatorKind,
        key: &Text,
        deadline: Instant,
    ) -> Result<(ErrorCode, i32, Text, i32), ClusterError> {
        let request = FindCoordinatorRequest {
            key_type: kind.key_type(),
            coordinator_keys: vec![key.clone()],
            ..FindCoordinatorRequest::default()
        };
        let answer: FindCoordinatorResponse = self.call_any(&request, FIND_COORDINATOR, deadline).await?;
        let found = answer.coordinators.into_iter().find(|found| found.key == *key);
        Ok(found.map_or((ErrorCode::CoordinatorNotAvailable, -1, Text::EMPTY, -1), |found| {
            (ErrorCode::from_code(found.error_code), found.node_id, found.host, found.port)
        }))
    }

    /// Forgets where the coordinator was.
    pub(crate) fn forget_coordinator(&self, kind: CoordinatorKind, key: &Text) {
        self.view().coordinators.remove(&(kind.key_type(), key.clone()));
    }

    /// Sends a request to a coordinator until it answers without a code that means "again", or the deadline
    /// passes. `code` reads the answer's error; the last answer is given back when time is up.
    pub(crate) async fn call_coordinator<R: Request>(
        &self,
        kind: CoordinatorKind,
        key: &Text,
        request: &R,
        usable: Versions,
        deadline: Instant,
        code: impl Fn(&R::Response) -> ErrorCode,
    ) -> Result<R::Response, ClusterError> {
        let started = time::now();
        let mut backoff = self.backoff();
        loop {
            let node_id = self.coordinator(kind, key, deadline).await?;
            match self.call_node(node_id, request, usable).await {
                Ok(answer) => {
                    let code = code(&answer);
                    let until = time::now() + backoff.next();
                    if !retry_at_coordinator(code) || until >= deadline {
                        return Ok(answer);
                    }
                    tracing::debug!(%code, api = R::NAME, %key, "coordinator asks for a retry");
                    if wants_coordinator(code) {
                        self.forget_coordinator(kind, key);
                    }
                    time::sleep_until(until).await;
                }
                Err(error) if error.is_retriable() => {
                    self.forget_coordinator(kind, key);
                    self.pause(&mut backoff, deadline, started, error).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a request to one node, once.
    pub(crate) async fn call_node<R: Request>(
        &self,
        node_id: i32,
        request: &R,
        usable: Versions,
    ) -> Result<R::Response, CallError> {
        self.node(node_id, Lane::Control).await?.call(request, usable).await
    }
}

/// Codes on which a coordinator is asked the same again.
fn retry_at_coordinator(code: ErrorCode) -> bool {
    code.is_retriable() || code == ErrorCode::ConcurrentTransactions
}
