//! Hostile bytes in every message: an error, never a panic, and never more memory than the budget.
//!
//! The whole test binary counts its allocations, so it holds one test thread at a time by holding one lock.
#![allow(unsafe_code)] // a counting allocator can only be written so; it forwards to the system's

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use ottla_protocol::codec::{DecodeError, Message, Reader, Writer};
use ottla_protocol::messages::{FetchResponse, ProduceRequest, fetch_response, produce_request};
use proptest::prelude::*;
use support::random::{Dice, definitions};
use support::{decode, recode};

/// Counts bytes in use, their peak, and calls.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

// SAFETY: every call is handed to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = IN_USE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allowed beside the budget: the buffer's own bookkeeping when it is shared for the first time.
const SLACK_BYTES: usize = 1024;

/// Decodes within the budget and says how much memory that took at its peak.
fn decode_peak(name: &str, version: i16, bytes: &Bytes, budget: usize) -> (Result<(), DecodeError>, usize) {
    let mut reader = Reader::with_budget(bytes.clone(), budget);
    let before = IN_USE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = decode(name, version, &mut reader);
    (result, PEAK.load(Ordering::Relaxed).saturating_sub(before))
}

/// Bytes that once were a message.
fn mutate(mut body: Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(body.len() as u64 + 1) as usize;
        match dice.below(6) {
            0 => body.truncate(at),
            1 => body.insert(at, dice.next() as u8),
            2 => drop(body.splice(at..at, [0x7f, 0xff, 0xff, 0xff])),
            3 => drop(body.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0x07])),
            4 => body.extend((0..dice.below(40)).map(|_| 0xff)),
            _ => {
                if let Some(byte) = body.get_mut(at) {
                    *byte = [0, 1, 2, 0x7f, 0x80, 0xff, dice.next() as u8][dice.below(7) as usize];
                }
            }
        }
    }
    body
}

/// Whatever decodes also encodes, and what was encoded is a fixed point.
fn check_stable(name: &str, version: i16, bytes: &Bytes) {
    let mut first = Writer::new();
    if recode(name, version, &mut Reader::new(bytes.clone()), &mut first).is_err() {
        return;
    }
    let first = first.finish_bytes();
    let mut second = Writer::new();
    recode(name, version, &mut Reader::new(first.clone()), &mut second).expect("our own bytes");
    assert_eq!(second.finish_bytes(), first, "{name} {version}");
}

fn check_all(dice: &mut Dice, make: impl Fn(Vec<u8>, &mut Dice) -> Vec<u8>) -> usize {
    let _alone = ONE_AT_A_TIME.lock().expect("no other test has failed");
    const BUDGET: usize = 64 << 10;
    let mut refused = 0;
    for definition in definitions() {
        let name = definition.name();
        for version in definition.versions() {
            let bytes = Bytes::from(make(definition.body(version, dice), dice));
            let (result, peak) = decode_peak(name, version, &bytes, BUDGET);
            assert!(peak <= BUDGET + SLACK_BYTES, "{name} {version}: {peak} bytes for {bytes:?}");
            refused += usize::from(result.is_err());
            check_stable(name, version, &bytes);
        }
    }
    refused
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn damaged_messages_are_refused_or_understood(seed in any::<u64>()) {
        // Proves that no damage to a valid message leads to a panic or to memory beyond the budget, and that
        // whatever is still understood is understood in a stable way.
        let refused = check_all(&mut Dice::new(seed), mutate);
        prop_assert!(refused > 100, "only {refused} refused: the damage does not work");
    }

    #[test]
    fn noise_is_refused_or_understood(seed in any::<u64>(), length in 0..600u64) {
        // Proves the same for bytes that never were a message.
        check_all(&mut Dice::new(seed), |_, dice| (0..dice.below(length + 1)).map(|_| dice.next() as u8).collect());
    }
}

#[test]
fn huge_counts_cost_nothing() {
    // Proves that lengths and counts up to the largest number are refused before memory is taken for them: the
    // same byte repeated puts such a number at every place where a length can stand.
    let _alone = ONE_AT_A_TIME.lock().expect("no other test has failed");
    for pattern in
        [&[0x7fu8][..], &[0xff], &[0x00, 0x00, 0xff, 0xff], &[0xff, 0xff, 0xff, 0xff, 0x0f], &[0x00], &[0x02]]
    {
        let bytes: Bytes = pattern.iter().copied().cycle().take(1 << 16).collect::<Vec<u8>>().into();
        for definition in definitions() {
            let name = definition.name();
            for version in definition.versions() {
                let (_, peak) = decode_peak(name, version, &bytes, 1 << 20);
                assert!(peak <= (1 << 20) + SLACK_BYTES, "{name} {version}: {peak} bytes");
            }
        }
    }
}

#[test]
fn the_smallest_elements_stay_within_the_budget() {
    // Proves that the budget, not only the bytes left, bounds memory: a megabyte of empty elements would become
    // tens of megabytes.
    let _alone = ONE_AT_A_TIME.lock().expect("no other test has failed");
    // 2^19 - 1 topics, each of an empty name, no partitions and no tags; then the throttle time and no tags.
    let mut body = vec![0x80, 0x80, 0x20];
    (1..1u32 << 19).for_each(|_| body.extend([1, 1, 0]));
    body.extend([0; 5]);
    let body = Bytes::from(body);
    let (result, peak) = decode_peak("ProduceResponse", 9, &body, 1 << 20);
    assert!(matches!(result, Err(DecodeError::OverBudget(_))), "{result:?}");
    assert!(peak <= (1 << 20) + SLACK_BYTES, "{peak}");
    // The meter works: with more budget the same bytes take it.
    let (result, peak) = decode_peak("ProduceResponse", 9, &body, 1 << 30);
    assert_eq!(result, Ok(()));
    assert!(peak > 16 << 20, "{peak}");
}

#[test]
fn many_unknown_tags_are_charged() {
    // Proves that tagged fields of two bytes each, the cheapest way to make lists grow, are charged.
    let _alone = ONE_AT_A_TIME.lock().expect("no other test has failed");
    // ApiVersions 3: two empty names, then 2^17 tagged fields without a body.
    let mut body = vec![1, 1, 0x80, 0x80, 0x08];
    (0..1u32 << 17).for_each(|_| body.extend([0x64, 0]));
    let (result, peak) = decode_peak("ApiVersionsRequest", 3, &Bytes::from(body), 1 << 20);
    assert!(matches!(result, Err(DecodeError::OverBudget(_))), "{result:?}");
    assert!(peak <= (1 << 20) + SLACK_BYTES, "{peak}");
}

#[test]
fn the_hot_path_allocates_per_array_not_per_field() {
    // Proves that reading a Produce request takes one allocation per array and one to share the buffer, whatever
    // its strings and records, and that writing a Fetch response copies no records.
    let _alone = ONE_AT_A_TIME.lock().expect("no other test has failed");
    let partition = produce_request::PartitionProduceData {
        records: Some(Bytes::from(vec![1; 100_000]).into()),
        ..Default::default()
    };
    let topic = produce_request::TopicProduceData {
        name: "a topic".into(),
        partition_data: vec![partition; 10],
        ..Default::default()
    };
    let request = ProduceRequest {
        transactional_id: Some("an id".into()),
        topic_data: vec![topic; 2],
        ..Default::default()
    };
    let mut writer = Writer::new();
    request.encode(&mut writer, 12).expect("every field exists in version 12");
    let mut reader = Reader::new(writer.finish_bytes());
    let before = CALLS.load(Ordering::Relaxed);
    let decoded = ProduceRequest::decode(&mut reader, 12);
    assert_eq!(CALLS.load(Ordering::Relaxed) - before, 1 + 2 + 1);
    assert_eq!(decoded, Ok(request));

    let partition = fetch_response::PartitionData {
        records: Some(Bytes::from(vec![1; 100_000]).into()),
        aborted_transactions: None,
        ..Default::default()
    };
    let topic =
        fetch_response::FetchableTopicResponse { partitions: vec![partition; 100], ..Default::default() };
    let response = FetchResponse { responses: vec![topic], ..Default::default() };
    let (before, bytes_before) = (CALLS.load(Ordering::Relaxed), IN_USE.load(Ordering::Relaxed));
    let mut writer = Writer::new();
    response.encode(&mut writer, 13).expect("every field exists in version 13");
    let chunks = writer.finish();
    assert!(CALLS.load(Ordering::Relaxed) - before < 50, "{}", CALLS.load(Ordering::Relaxed) - before);
    assert!(IN_USE.load(Ordering::Relaxed) - bytes_before < 64 << 10);
    assert_eq!(chunks.len(), 201);
}
