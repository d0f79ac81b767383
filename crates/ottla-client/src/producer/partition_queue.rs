//! The batches of one partition that have a sequence: what may be sent, and what an answer means for the rest.
//!
//! Pure: no clock, no I/O. A broker accepts a producer's batches of a partition only in order of their sequences
//! and recognizes repetitions of the last five, so that none is sent that is five or more behind the first
//! unresolved one, however many between them are resolved, and a failed one is repeated before those behind it are.
//!
//! Invariants: batches stand in order of their sequences; a batch that is resolved leaves; `Rejected` batches are
//! known not to be in the log and get a new sequence, under a new epoch, once everything else is resolved. A batch
//! that is too large for its topic is parted in two, which take its sequences between them, so that nothing behind
//! it changes.

use std::collections::VecDeque;

use bytes::Bytes;
use ottla_env::time::Instant;
use ottla_protocol::batch::{
    BATCH_HEAD_BYTES, BATCH_HEADER_BYTES, BatchBuilder, BatchHeader, Producer, crc_of, increment_sequence,
};
use ottla_protocol::record::{NewRecord, records_of};

use super::accumulator::{Identity, Receipt};

/// A batch with a sequence.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) receipt: Receipt,
    pub(super) bytes: Bytes,
    pub(super) created: Instant,
    base_sequence: i32,
    records: i32,
    /// How many batches of this queue have sequences before it, resolved ones too.
    place: u64,
    state: State,
    last_error: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Sent; `alone` when nothing unresolved stood before it, so that "out of order" speaks of itself.
    InFlight { alone: bool },
    /// To be sent again; `may_exist` when an attempt may have succeeded.
    Waiting { may_exist: bool },
    /// Known not to be in the log, and cannot get there with this sequence.
    Rejected,
}

/// The unresolved batches of a partition.
#[derive(Debug, Default)]
pub(super) struct PartitionQueue {
    next_sequence: i32,
    next_place: u64,
    batches: VecDeque<Assigned>,
    /// Nothing is sent before then, after a failure.
    pub(super) not_before: Option<Instant>,
    pub(super) failures: u32,
}

/// A batch that is given up.
#[derive(Debug)]
pub(super) struct GivenUp {
    pub(super) receipt: Receipt,
    pub(super) created: Instant,
    pub(super) last_error: String,
    pub(super) may_exist: bool,
}

impl PartitionQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Whether a new batch is within `window` of the first unresolved one.
    pub(super) fn has_room(&self, window: usize) -> bool {
        self.batches.front().is_none_or(|first| self.next_place - first.place < window as u64)
    }

    /// The sequence of the next new batch.
    pub(super) fn next_sequence(&self) -> i32 {
        self.next_sequence
    }

    /// Whether something waits to be sent again, or was rejected: nothing new may overtake it.
    pub(super) fn is_recovering(&self) -> bool {
        self.batches.iter().any(|batch| !matches!(batch.state, State::InFlight { .. }))
    }

    /// Whether every batch left is rejected.
    pub(super) fn is_settled(&self) -> bool {
        self.batches.iter().all(|batch| batch.state == State::Rejected)
    }

    /// Takes a batch that was encoded with `next_sequence`, as in flight.
    pub(super) fn push_sent(&mut self, receipt: Receipt, bytes: Bytes, created: Instant, records: i32) {
        let alone = self.batches.is_empty();
        self.batches.push_back(Assigned {
            receipt,
            bytes,
            created,
            base_sequence: self.next_sequence,
            records,
            place: self.next_place,
            state: State::InFlight { alone },
            last_error: String::new(),
        });
        self.next_place += 1;
        self.next_sequence = increment_sequence(self.next_sequence, records);
    }

    /// The next batch to repeat, marked as in flight; absent when there is none within `window` of the first
    /// unresolved one.
    pub(super) fn resend(&mut self, window: usize) -> Option<(u64, Bytes)> {
        let is_unresolved = |batch: &Assigned| batch.state != State::Rejected;
        let mut unresolved = self.batches.iter().enumerate().filter(|(_, batch)| is_unresolved(batch));
        let (first_index, first) = unresolved.clone().next()?;
        let (index, batch) = unresolved.find(|(_, batch)| matches!(batch.state, State::Waiting { .. }))?;
        if batch.place - first.place >= window as u64 {
            return None;
        }
        let alone = first_index == index;
        let batch = &mut self.batches[index];
        batch.state = State::InFlight { alone };
        Some((batch.receipt.id, batch.bytes.clone()))
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.batches.iter().position(|batch| batch.receipt.id == id)
    }

    /// The batch is in the log.
    pub(super) fn succeed(&mut self, id: u64) -> Option<Receipt> {
        let index = self.position(id)?;
        self.failures = 0;
        self.not_before = None;
        self.batches.remove(index).map(|batch| batch.receipt)
    }

    /// The batch is to be sent again.
    pub(super) fn retry(&mut self, id: u64, may_exist: bool, error: String) {
        if let Some(index) = self.position(id) {
            let batch = &mut self.batches[index];
            batch.state = State::Waiting { may_exist };
            batch.last_error = error;
        }
    }

    /// The broker says "out of order": true when that is final, which means that the log lacks something before
    /// this batch that will not come any more, or knows this producer no longer.
    pub(super) fn out_of_order(&mut self, id: u64, error: &str) -> bool {
        let Some(index) = self.position(id) else { return false };
        let after_rejected = self.batches.iter().take(index).all(|batch| batch.state == State::Rejected);
        let batch = &mut self.batches[index];
        batch.last_error = error.to_owned();
        let last = matches!(batch.state, State::InFlight { alone: true }) && after_rejected;
        batch.state = if last { State::Rejected } else { State::Waiting { may_exist: false } };
        last
    }

    /// Parts a batch in two, which wait to be sent; `part` parts its receipt behind that many records. False when
    /// it is a single record, or not here.
    pub(super) fn part(&mut self, id: u64, part: impl FnOnce(Receipt, i32) -> (Receipt, Receipt)) -> bool {
        let Some(index) = self.position(id).filter(|index| self.batches[*index].records > 1) else {
            return false;
        };
        let batch = self.batches.remove(index).expect("the index was just found");
        let records = batch.records / 2;
        let (bytes, behind_bytes) = halves(&batch.bytes, records);
        let (receipt, behind_receipt) = part(batch.receipt, records);
        // nothing behind a batch that was not written is resolved, so that places stay without a gap
        self.batches.iter_mut().skip(index).for_each(|behind| behind.place += 1);
        self.next_place += 1;
        let piece = |receipt, bytes, base_sequence, records, place| Assigned {
            receipt,
            bytes,
            created: batch.created,
            base_sequence,
            records,
            place,
            state: State::Waiting { may_exist: false },
            last_error: batch.last_error.clone(),
        };
        let behind_sequence = increment_sequence(batch.base_sequence, records);
        let (place, records_behind) = (batch.place, batch.records - records);
        let behind = piece(behind_receipt, behind_bytes, behind_sequence, records_behind, place + 1);
        self.batches.insert(index, behind);
        self.batches.insert(index, piece(receipt, bytes, batch.base_sequence, records, place));
        true
    }

    /// The batch can never be written. True when later sequences depend on it.
    pub(super) fn refuse(&mut self, id: u64) -> Option<(Receipt, bool)> {
        let index = self.position(id)?;
        let batch = self.batches.remove(index).expect("the index was just found");
        let gap = index < self.batches.len();
        if !gap {
            self.next_sequence = batch.base_sequence;
            self.next_place = batch.place;
        }
        Some((batch.receipt, gap))
    }

    /// Takes out what is not in flight and `old`. The second value is true when a later sequence depends on what
    /// was taken, or may.
    pub(super) fn give_up(&mut self, old: impl Fn(Instant) -> bool) -> (Vec<GivenUp>, bool) {
        let mut taken = Vec::new();
        let mut gap = false;
        for batch in std::mem::take(&mut self.batches) {
            let may_exist = match batch.state {
                State::InFlight { .. } => None,
                State::Waiting { may_exist } => Some(may_exist),
                State::Rejected => Some(false),
            };
            match may_exist.filter(|_| old(batch.created)) {
                Some(may_exist) => {
                    gap = true;
                    let (receipt, created, last_error) = (batch.receipt, batch.created, batch.last_error);
                    taken.push(GivenUp { receipt, created, last_error, may_exist });
                }
                None => self.batches.push_back(batch),
            }
        }
        (taken, gap)
    }

    /// The oldest batch that is not in flight.
    pub(super) fn oldest_waiting(&self) -> Option<Instant> {
        let waiting = |batch: &&Assigned| !matches!(batch.state, State::InFlight { .. });
        self.batches.iter().filter(waiting).map(|batch| batch.created).min()
    }

    /// Starts over under a new identity: sequences from 0; rejected batches are written anew and wait.
    pub(super) fn restart(&mut self, identity: &Identity) {
        assert!(self.is_settled(), "a new epoch is taken only when the old one has nothing open");
        self.next_sequence = 0;
        self.next_place = 0;
        self.not_before = None;
        self.failures = 0;
        for batch in &mut self.batches {
            batch.place = self.next_place;
            self.next_place += 1;
            batch.base_sequence = self.next_sequence;
            batch.bytes = with_producer(&batch.bytes, identity, self.next_sequence);
            batch.state = State::Waiting { may_exist: false };
            self.next_sequence = increment_sequence(self.next_sequence, batch.records);
        }
    }
}

/// The same batch from another producer.
fn with_producer(bytes: &Bytes, identity: &Identity, base_sequence: i32) -> Bytes {
    let mut header = BatchHeader::parse(bytes).expect("we built this batch");
    header.producer_id = identity.producer_id;
    header.producer_epoch = identity.producer_epoch;
    header.base_sequence = base_sequence;
    let mut copy = bytes.to_vec();
    copy[BATCH_HEAD_BYTES..BATCH_HEADER_BYTES].copy_from_slice(&header.tail_header());
    header.crc = crc_of(&copy[BATCH_HEAD_BYTES..]);
    copy[..BATCH_HEAD_BYTES].copy_from_slice(&header.head());
    Bytes::from(copy)
}

/// The first `records` records of a batch, and the rest, as batches of the same producer with their sequences.
fn halves(bytes: &Bytes, records: i32) -> (Bytes, Bytes) {
    const OURS: &str = "we built this batch";
    let header = BatchHeader::parse(bytes).expect(OURS);
    let codec = header.codec().expect(OURS);
    let builder = |base_sequence| {
        let mut builder = BatchBuilder::new(codec);
        builder.set_producer(Producer {
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            base_sequence,
            transactional: header.is_transactional(),
        });
        builder
    };
    let mut front = builder(header.base_sequence);
    let mut behind = builder(increment_sequence(header.base_sequence, records));
    let all = records_of(&header, &bytes.slice(BATCH_HEAD_BYTES..), usize::MAX).expect(OURS);
    for (index, record) in (0_i32..).zip(all) {
        let record = record.expect(OURS);
        let headers: Vec<(&[u8], Option<&[u8]>)> =
            record.headers.iter().map(|header| (header.key.as_ref(), header.value.as_deref())).collect();
        let record = NewRecord {
            timestamp: record.timestamp,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
        };
        let half = if index < records { &mut front } else { &mut behind };
        half.append(&record).expect("a part is not larger than the whole");
    }
    (front.build(), behind.build())
}
