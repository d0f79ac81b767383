//! Why the coordinator refuses, and the one place where that becomes Kafka's codes.
//!
//! Place in the walk: every handler of `txn/` decides with [`Refusal`]; which code a client may see depends on
//! the API and the version that it speaks (eos-semantics 3.3 to 3.5 and 4.5), and that is decided here alone.

use ottla_protocol::error::ErrorCode;
use thiserror::Error;

/// Why a request about a transactional id is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Refusal {
    /// The request contradicts itself or names an empty id.
    #[error("the request is invalid")]
    InvalidRequest,
    /// The id is unknown, or has another producer id.
    #[error("the producer id is not that of the transactional id")]
    WrongProducerId,
    /// The epoch is not the current one: another producer has taken over, or the server has aborted.
    #[error("the producer is fenced")]
    Fenced,
    /// A decision of this id is not complete.
    #[error("a transaction is being completed")]
    Concurrent,
    /// The transaction is not in a state for that.
    #[error("the transaction is in another state")]
    WrongState,
    /// The partition is not in the transaction.
    #[error("the partition is not in the transaction")]
    NotInTransaction,
    /// The timeout is not positive or above `transaction.max.timeout.ms`.
    #[error("the timeout is out of bounds")]
    InvalidTimeout,
    /// There are as many transactional ids as the limits allow.
    #[error("too many transactional ids")]
    TooManyIds,
    /// There are as many open transactions as the limits allow.
    #[error("too many open transactions")]
    TooManyOpen,
    /// The transaction would have more partitions than the limits allow, or all together would.
    #[error("too many partitions in the transaction")]
    TooManyPartitions,
    /// Partitions remember as many producers as the limits allow, and this one is new to some.
    #[error("too many producers")]
    TooManyProducers,
    /// Transactions of protocol v1 are switched off.
    #[error("transactions of protocol v1 are switched off")]
    V1Disabled,
}

/// Through which API a refusal goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    /// InitProducerId.
    InitProducerId,
    /// AddPartitionsToTxn.
    AddPartitions,
    /// AddOffsetsToTxn.
    AddOffsets,
    /// EndTxn.
    EndTxn,
    /// TxnOffsetCommit.
    TxnOffsetCommit,
    /// Produce, by the coordinator's own code: the partition's side maps it further.
    Coordinator,
}

impl Refusal {
    /// The code that a client of this version of the API is told.
    pub(crate) fn code(self, through: Through, version: i16) -> ErrorCode {
        match self {
            Self::InvalidRequest => ErrorCode::InvalidRequest,
            Self::WrongProducerId => ErrorCode::InvalidProducerIdMapping,
            Self::Fenced if knows_fenced(through, version) => ErrorCode::ProducerFenced,
            Self::Fenced => ErrorCode::InvalidProducerEpoch,
            // Clients wait and ask again; it passes when another transaction ends.
            Self::Concurrent | Self::TooManyOpen => ErrorCode::ConcurrentTransactions,
            Self::WrongState => ErrorCode::InvalidTxnState,
            Self::NotInTransaction if knows_abortable(through, version) => ErrorCode::TransactionAbortable,
            Self::NotInTransaction => ErrorCode::InvalidTxnState,
            Self::InvalidTimeout => ErrorCode::InvalidTransactionTimeout,
            Self::TooManyIds => ErrorCode::CoordinatorNotAvailable,
            Self::TooManyPartitions | Self::TooManyProducers => ErrorCode::PolicyViolation,
            Self::V1Disabled => ErrorCode::UnsupportedVersion,
        }
    }
}

/// Versions that know PRODUCER_FENCED; older ones, and all that write to partitions, get INVALID_PRODUCER_EPOCH.
fn knows_fenced(through: Through, version: i16) -> bool {
    match through {
        Through::InitProducerId => version >= 4,
        Through::AddPartitions | Through::AddOffsets | Through::EndTxn => version >= 2,
        Through::TxnOffsetCommit => false,
        Through::Coordinator => true,
    }
}

/// Versions that know TRANSACTION_ABORTABLE (KIP-890). AddPartitionsToTxn 4 gets it too, as measured.
fn knows_abortable(through: Through, version: i16) -> bool {
    match through {
        Through::InitProducerId | Through::EndTxn => version >= 5,
        Through::AddPartitions | Through::AddOffsets | Through::TxnOffsetCommit => version >= 4,
        Through::Coordinator => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenarios 28, 38, 54: the codes by version are those of eos-semantics 3.3, 3.4, 3.5 and 4.5.
    #[test]
    fn codes_by_version() {
        let fenced = |through, version| Refusal::Fenced.code(through, version).code();
        let by_version =
            |through, last| (0..=last).map(|version| fenced(through, version)).collect::<Vec<_>>();
        assert_eq!(by_version(Through::InitProducerId, 5), [47, 47, 47, 47, 90, 90]);
        assert_eq!(by_version(Through::AddPartitions, 5), [47, 47, 90, 90, 90, 90]);
        assert_eq!(by_version(Through::AddOffsets, 4), [47, 47, 90, 90, 90]);
        assert_eq!(by_version(Through::EndTxn, 5), [47, 47, 90, 90, 90, 90]);
        assert_eq!(by_version(Through::TxnOffsetCommit, 6), [47; 7]);
        let missing = |through, version| Refusal::NotInTransaction.code(through, version).code();
        assert_eq!(
            (0..=4).map(|v| missing(Through::TxnOffsetCommit, v)).collect::<Vec<_>>(),
            [48, 48, 48, 48, 120]
        );
        assert_eq!((missing(Through::AddPartitions, 4), missing(Through::AddPartitions, 5)), (120, 120));
    }
}
