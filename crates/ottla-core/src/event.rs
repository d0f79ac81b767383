//! What a decision did that people may want to know: for the log and the metrics of the shell.
//!
//! Place in the walk: a handler notes it in the step, the shell writes it down. An event is not durable, rests on
//! nothing, and is told again when its command is decided again after a reload. It never holds a secret or the
//! content of a record.

use ottla_protocol::types::Text;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A transaction was open for longer than its timeout, and was aborted.
    TransactionTimedOut {
        /// Whose.
        transactional_id: Text,
        /// The producer id that had opened it.
        producer_id: i64,
        /// Its epoch.
        producer_epoch: i16,
    },
    /// A producer came for a transactional id that another one had; that one's requests are refused from now on.
    ProducerFenced {
        /// The id.
        transactional_id: Text,
        /// Producer id of the newcomer.
        producer_id: i64,
        /// Its epoch.
        producer_epoch: i16,
        /// Whether a transaction of the former was open, and aborted.
        aborted: bool,
    },
    /// A group has a new generation (classic) or a new assignment (KIP-848).
    Rebalanced {
        /// The group.
        group: Text,
        /// `classic` or `consumer`.
        kind: &'static str,
        /// Generation or epoch.
        generation: i32,
        /// Members in it.
        members: usize,
    },
}
