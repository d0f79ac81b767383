//! Errors every part of the client shares, and what each asks of its reader: again, give up this transaction,
//! or stop.

use std::time::Duration;

use ottla_protocol::error::ErrorCode;

use crate::connection::Versions;

/// What an error asks for.
///
/// ```
/// use ottla_client::{DeliveryError, ErrorClass};
///
/// fn next(class: ErrorClass) -> &'static str {
///     match class {
///         ErrorClass::Retriable => "ask again",
///         ErrorClass::Abortable => "abort the transaction, begin the next",
///         ErrorClass::Fatal => "stop, or make a new producer",
///     }
/// }
/// assert_eq!(next(DeliveryError::Closed.class()), "stop, or make a new producer");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The same again may work; the client has already retried within its time-outs.
    Retriable,
    /// The transaction must be aborted; the next one may work.
    Abortable,
    /// Nothing more can be done with this object.
    Fatal,
}

/// Why a request has no usable answer.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// use std::sync::Arc;
/// use ottla_client::{CallError, ClientSettings, Connection};
///
/// let nobody = "127.0.0.1:1";
/// let error = Connection::connect(nobody, Arc::new(ClientSettings::new(nobody)?)).await.expect_err("refused");
/// assert!(matches!(error, CallError::Connect { .. }));
/// assert!(error.is_retriable());
/// assert!(!error.may_have_happened()); // nothing was sent
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// No connection could be made.
    #[error("cannot connect to {address}: {reason}; is the broker running and is the address right?")]
    Connect {
        /// Where to.
        address: String,
        /// What the operating system or the peer said.
        reason: String,
    },
    /// The connection ended before the answer came; whether the request was carried out is not known.
    #[error("the connection to {address} ended before {api} was answered: {reason}")]
    Closed {
        /// The peer.
        address: String,
        /// The request.
        api: &'static str,
        /// Why it ended.
        reason: String,
    },
    /// The answer did not come in time; the connection was given up.
    #[error("{address} did not answer {api} within {} ms (request.timeout.ms); it may be overloaded or paused", after.as_millis())]
    TimedOut {
        /// The peer.
        address: String,
        /// The request.
        api: &'static str,
        /// How long it took.
        after: Duration,
    },
    /// An answer cannot be read, from a peer that had been understood before; the connection was given up, and
    /// whether the request was carried out is not known.
    #[error("{address} answered {api} with bytes that cannot be read: {detail}")]
    Garbled {
        /// The peer.
        address: String,
        /// The request.
        api: &'static str,
        /// What was wrong.
        detail: String,
    },
    /// The peer answered something that is not Kafka's protocol.
    #[error("{address} answered {api} with bytes that are not Kafka's protocol: {detail}")]
    Protocol {
        /// The peer.
        address: String,
        /// The request.
        api: &'static str,
        /// What was wrong.
        detail: String,
    },
    /// The peer does not speak a version that we need.
    #[error(
        "{address} does not serve {api} in version {wanted} (it offers {offered}); the broker is too old or the call is not supported there"
    )]
    Unsupported {
        /// The peer.
        address: String,
        /// The request.
        api: &'static str,
        /// What this client speaks.
        wanted: Versions,
        /// What the peer speaks.
        offered: String,
    },
    /// The request cannot be written: a string or list is longer than the protocol allows.
    #[error("cannot write {api}: {detail}")]
    Encode {
        /// The request.
        api: &'static str,
        /// What was wrong.
        detail: String,
    },
}

impl CallError {
    /// Whether the same request may work later or elsewhere.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Closed { .. } | Self::TimedOut { .. } | Self::Garbled { .. } => true,
            Self::Protocol { .. } | Self::Unsupported { .. } | Self::Encode { .. } => false,
        }
    }

    /// Whether the request may have been carried out although no answer came.
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Closed { .. } | Self::TimedOut { .. } | Self::Garbled { .. } | Self::Protocol { .. } => {
                true
            }
            Self::Connect { .. } | Self::Unsupported { .. } | Self::Encode { .. } => false,
        }
    }
}

/// What an answer counts as that leaves out something it was asked for: never as a success (librdkafka#5577 is the
/// class: a result of the whole must reach every part of it).
pub(crate) const LEFT_OUT: ErrorCode = ErrorCode::UnknownServerError;

/// Codes that mean "ask for the metadata again": the leader or the topic is somewhere else.
pub(crate) fn wants_metadata(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::UnknownTopicOrPartition
            | ErrorCode::LeaderNotAvailable
            | ErrorCode::NotLeaderOrFollower
            | ErrorCode::FencedLeaderEpoch
            | ErrorCode::UnknownLeaderEpoch
            | ErrorCode::KafkaStorageError
            | ErrorCode::UnknownTopicId
            | ErrorCode::InconsistentTopicId
    )
}

/// Codes that mean "look for the coordinator again".
pub(crate) fn wants_coordinator(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable)
}
