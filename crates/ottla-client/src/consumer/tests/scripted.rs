//! A consumer against a broker that says what a script tells it to: errors of every kind, sessions that are
//! forgotten, logs that were cut, coordinators that make no sense.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use ottla_env::{spawn, time};
use ottla_protocol::api::ApiKey;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::api_versions_response::ApiVersion;
use ottla_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use ottla_protocol::messages::find_coordinator_response::Coordinator;
use ottla_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use ottla_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use ottla_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use ottla_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use ottla_protocol::messages::{
    ApiVersionsResponse, FetchRequest, FetchResponse, FindCoordinatorRequest, FindCoordinatorResponse,
    HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupResponse, ListOffsetsResponse,
    MetadataResponse, OffsetFetchRequest, OffsetFetchResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse, Records, SyncGroupResponse,
};
use ottla_protocol::types::Uuid;

use super::*;
use crate::scripted::{Answer, Call, api_versions, serve};

const TOPIC_ID: Uuid = Uuid([7; 16]);
const SESSION: i32 = 42;
const WAIT: Duration = Duration::from_secs(20);

/// What the next Fetch is answered with.
enum Next {
    Whole(ErrorCode),
    Partition(ErrorCode),
    Batch(Bytes),
    Close,
}

/// What the broker knows and has seen.
struct Script {
    fetches: VecDeque<Next>,
    /// Session id, session epoch, partitions and first offset of each Fetch.
    seen: Vec<(i32, i32, usize, Option<i64>)>,
    leader_epoch: i32,
    /// What OffsetForLeaderEpoch answers, by the epoch that is asked for, and after how long.
    epoch_ends: BTreeMap<i32, i64>,
    epoch_end_after: Duration,
    log_start: i64,
    /// What JoinGroup chooses, what SyncGroup and Heartbeat answer.
    protocol: &'static str,
    sync_codes: VecDeque<ErrorCode>,
    assignment: Bytes,
    /// Each with the number of JoinGroup requests that must have come before it is said.
    heartbeat_codes: VecDeque<(usize, ErrorCode)>,
    joins: Vec<Text>,
}

impl Script {
    fn new(fetches: Vec<Next>) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            fetches: fetches.into(),
            seen: Vec::new(),
            leader_epoch: 1,
            epoch_ends: BTreeMap::new(),
            epoch_end_after: Duration::ZERO,
            log_start: 0,
            protocol: "range",
            sync_codes: VecDeque::new(),
            assignment: group::subscription::encode_assignment(&[at()]),
            heartbeat_codes: VecDeque::new(),
            joins: Vec::new(),
        }))
    }

    fn answer(&mut self, own: &str, mut call: Call) -> Answer {
        match call.header.api {
            ApiKey::ApiVersions => call.reply(&versions()),
            ApiKey::Metadata => call.reply(&self.metadata(own)),
            ApiKey::Fetch => {
                let request = call.decode();
                match self.fetch(&request) {
                    Some(answer) => call.reply(&answer),
                    None => Answer::Close,
                }
            }
            ApiKey::ListOffsets => call.reply(&self.list_offsets()),
            ApiKey::OffsetForLeaderEpoch => {
                let request = call.decode();
                match call.reply(&self.epoch_end(&request)) {
                    Answer::Bytes(bytes) => Answer::Late(self.epoch_end_after, bytes),
                    other => other,
                }
            }
            ApiKey::FindCoordinator => {
                let request = call.decode();
                call.reply(&coordinator(own, request))
            }
            ApiKey::OffsetFetch => {
                let request = call.decode();
                call.reply(&nothing_committed(request))
            }
            ApiKey::JoinGroup => {
                let request: JoinGroupRequest = call.decode();
                self.joins.push(request.member_id.detached());
                call.reply(&JoinGroupResponse {
                    generation_id: i32::try_from(self.joins.len()).expect("few"),
                    protocol_name: Some(Text::from_static(self.protocol)),
                    leader: "somebody else".into(),
                    member_id: "m".into(),
                    ..JoinGroupResponse::default()
                })
            }
            ApiKey::SyncGroup => call.reply(&SyncGroupResponse {
                error_code: self.sync_codes.pop_front().unwrap_or_default().code(),
                assignment: self.assignment.clone(),
                ..SyncGroupResponse::default()
            }),
            ApiKey::Heartbeat => call.reply(&self.heartbeat()),
            ApiKey::LeaveGroup => call.reply(&LeaveGroupResponse::default()),
            _ => Answer::Close,
        }
    }

    fn heartbeat(&mut self) -> HeartbeatResponse {
        let joins = self.joins.len();
        let code = self.heartbeat_codes.pop_front_if(|(after, _)| *after <= joins).map(|(_, code)| code);
        HeartbeatResponse { error_code: code.unwrap_or_default().code(), ..HeartbeatResponse::default() }
    }

    fn metadata(&self, own: &str) -> MetadataResponse {
        let (host, port) = own.split_once(':').expect("host and port");
        MetadataResponse {
            brokers: vec![MetadataResponseBroker {
                node_id: 1,
                host: host.into(),
                port: port.parse().expect("a port"),
                ..MetadataResponseBroker::default()
            }],
            topics: vec![MetadataResponseTopic {
                name: Some(Text::from_static("t")),
                topic_id: TOPIC_ID,
                partitions: vec![MetadataResponsePartition {
                    leader_id: 1,
                    leader_epoch: self.leader_epoch,
                    ..MetadataResponsePartition::default()
                }],
                ..MetadataResponseTopic::default()
            }],
            ..MetadataResponse::default()
        }
    }

    fn fetch(&mut self, request: &FetchRequest) -> Option<FetchResponse> {
        let partitions: Vec<_> = request.topics.iter().flat_map(|topic| &topic.partitions).collect();
        let offset = partitions.first().map(|partition| partition.fetch_offset);
        self.seen.push((request.session_id, request.session_epoch, partitions.len(), offset));
        let answer = FetchResponse { session_id: SESSION, ..FetchResponse::default() };
        let (code, records) = match self.fetches.pop_front() {
            None => return Some(answer),
            Some(Next::Close) => return None,
            Some(Next::Whole(code)) => {
                return Some(FetchResponse { error_code: code.code(), ..FetchResponse::default() });
            }
            Some(Next::Partition(code)) => (code, Bytes::new()),
            Some(Next::Batch(bytes)) => (ErrorCode::None, bytes),
        };
        let partition = PartitionData {
            error_code: code.code(),
            high_watermark: 100,
            last_stable_offset: 100,
            records: Some(Records::from(records)),
            ..PartitionData::default()
        };
        let topic = FetchableTopicResponse {
            topic_id: TOPIC_ID,
            partitions: vec![partition],
            ..FetchableTopicResponse::default()
        };
        Some(FetchResponse { responses: vec![topic], ..answer })
    }

    fn list_offsets(&self) -> ListOffsetsResponse {
        let partition = ListOffsetsPartitionResponse {
            offset: self.log_start,
            ..ListOffsetsPartitionResponse::default()
        };
        let topic = ListOffsetsTopicResponse {
            name: Text::from_static("t"),
            partitions: vec![partition],
            ..ListOffsetsTopicResponse::default()
        };
        ListOffsetsResponse { topics: vec![topic], ..ListOffsetsResponse::default() }
    }

    fn epoch_end(&self, request: &OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse {
        let leader_epoch = request.topics[0].partitions[0].leader_epoch;
        let end_offset = self.epoch_ends.get(&leader_epoch).copied().unwrap_or(i64::MAX);
        let partition = EpochEndOffset { leader_epoch, end_offset, ..EpochEndOffset::default() };
        let topic = OffsetForLeaderTopicResult {
            topic: Text::from_static("t"),
            partitions: vec![partition],
            ..OffsetForLeaderTopicResult::default()
        };
        OffsetForLeaderEpochResponse { topics: vec![topic], ..OffsetForLeaderEpochResponse::default() }
    }
}

fn nothing_committed(request: OffsetFetchRequest) -> OffsetFetchResponse {
    let groups = request.groups.into_iter().map(|group| {
        let topics = group.topics.into_iter().flatten().map(|topic| {
            let partitions = topic.partition_indexes.into_iter().map(|partition_index| {
                OffsetFetchResponsePartitions { partition_index, committed_offset: -1, ..Default::default() }
            });
            let (name, partitions) = (topic.name, partitions.collect());
            OffsetFetchResponseTopics { name, partitions, ..Default::default() }
        });
        let (group_id, topics) = (group.group_id, topics.collect());
        OffsetFetchResponseGroup { group_id, topics, ..Default::default() }
    });
    OffsetFetchResponse { groups: groups.collect(), ..OffsetFetchResponse::default() }
}

fn versions() -> ApiVersionsResponse {
    let mut answer = api_versions();
    let more = [
        (ApiKey::Fetch, 4, 17),
        (ApiKey::ListOffsets, 1, 10),
        (ApiKey::OffsetForLeaderEpoch, 2, 4),
        (ApiKey::OffsetFetch, 1, 9),
        (ApiKey::JoinGroup, 2, 9),
        (ApiKey::SyncGroup, 0, 5),
        (ApiKey::Heartbeat, 0, 4),
        (ApiKey::LeaveGroup, 0, 5),
    ];
    for (key, min_version, max_version) in more {
        answer.api_keys.retain(|api| api.api_key != key.code());
        answer.api_keys.push(ApiVersion {
            api_key: key.code(),
            min_version,
            max_version,
            ..ApiVersion::default()
        });
    }
    answer
}

fn coordinator(own: &str, request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let (host, port) = own.split_once(':').expect("host and port");
    let found = request.coordinator_keys.into_iter().map(|key| Coordinator {
        key,
        node_id: 1,
        host: host.into(),
        port: port.parse().expect("a port"),
        ..Coordinator::default()
    });
    FindCoordinatorResponse { coordinators: found.collect(), ..FindCoordinatorResponse::default() }
}

fn at() -> TopicPartition {
    TopicPartition::new("t", 0)
}

/// Runs a test with a consumer of that script.
fn with<F: Future<Output = ()>>(
    script: &Arc<Mutex<Script>>,
    change: impl FnOnce(ConsumerSettings) -> ConsumerSettings,
    test: impl FnOnce(Consumer) -> F,
) {
    spawn::runtime(2).expect("a runtime").block_on(async {
        let script = Arc::clone(script);
        let server = serve(move |own, call| script.lock().expect("no panic").answer(own, call)).await;
        let pause = Duration::from_millis(1);
        let client = ClientSettings::new(&server.address)
            .expect("an address")
            .retry_backoff(pause)
            .retry_backoff_max(pause)
            .reconnect_backoff(pause)
            .reconnect_backoff_max(pause);
        let settings = ConsumerSettings::new(client).group_id("g").heartbeat_interval(pause);
        let consumer = Consumer::connect(change(settings)).await.expect("connected");
        test(consumer).await;
        drop(server);
    });
}

/// Polls until records or an error come.
async fn next(consumer: &mut Consumer) -> Result<Vec<i64>, ConsumerError> {
    let records = consumer.poll(WAIT).await?;
    assert!(!records.is_empty(), "nothing came");
    Ok(records.iter().map(|record| record.offset).collect())
}

/// Proves that errors that pass are passed, each in its way: a session that is gone is begun anew at once and with
/// everything in it, a leader that moved is looked for, a cut connection is made again; and that in a session only
/// what has changed is sent.
#[test]
fn errors_that_pass() {
    let script = Script::new(vec![
        Next::Partition(ErrorCode::NotLeaderOrFollower),
        Next::Batch(data(0, 2, -1, Codec::None)),
        Next::Whole(ErrorCode::FetchSessionIdNotFound),
        Next::Partition(ErrorCode::UnknownTopicId),
        Next::Close,
        Next::Whole(ErrorCode::InvalidFetchSessionEpoch),
        Next::Partition(ErrorCode::UnknownServerError),
        Next::Partition(ErrorCode::OffsetNotAvailable),
        Next::Batch(data(2, 3, -1, Codec::None)),
    ]);
    with(
        &script,
        |settings| settings,
        |mut consumer| async move {
            consumer.assign(&[(at(), StartAt::Offset(0))]).await.expect("assigned");
            assert_eq!(next(&mut consumer).await.expect("read"), [0, 1]);
            assert_eq!(next(&mut consumer).await.expect("read"), [2, 3, 4]);
            assert!(consumer.poll(Duration::from_millis(50)).await.expect("nothing more").is_empty());
            consumer.close().await.expect("closed");
        },
    );
    let seen = script.lock().expect("no panic").seen.clone();
    assert_eq!(seen[0], (0, 0, 1, Some(0)), "a full request first");
    assert_eq!(seen[1], (SESSION, 1, 0, None), "nothing has changed since");
    assert_eq!(seen[2], (SESSION, 2, 1, Some(2)), "the position has");
    assert_eq!(seen[3], (0, 0, 1, Some(2)), "the broker has forgotten the session");
    assert_eq!(seen[5], (SESSION, 0, 1, Some(2)), "a new one instead of that of the cut connection");
    assert_eq!(seen[6], (SESSION, 0, 1, Some(2)), "and again after a wrong epoch");
    assert_eq!(seen.last().expect("some").1, -1, "closing ends it");
}

/// Proves that errors that do not pass are told with the partition, and that the next poll goes on.
#[test]
fn errors_that_stay() {
    let mut damaged = data(0, 1, -1, Codec::None).to_vec();
    damaged[65] ^= 1;
    let script = Script::new(vec![
        Next::Partition(ErrorCode::TopicAuthorizationFailed),
        Next::Partition(ErrorCode::OffsetOutOfRange),
        Next::Partition(ErrorCode::CorruptMessage),
        // the second one may be fetched, and thrown away, before the first one is found out
        Next::Batch(damaged.clone().into()),
        Next::Batch(damaged.into()),
        Next::Batch(Bytes::from_static(b"no batch at all")),
        Next::Batch(data(0, 1, -1, Codec::None)),
    ]);
    with(
        &script,
        |settings| settings,
        |mut consumer| async move {
            consumer.assign(&[(at(), StartAt::Offset(0))]).await.expect("assigned");
            let mut told = Vec::new();
            let read = loop {
                match next(&mut consumer).await {
                    Ok(read) => break read,
                    Err(error) => told.push(error.to_string()),
                }
                assert!(told.len() < 10, "{told:?}");
            };
            assert_eq!(read, [0]);
            assert!((5..=6).contains(&told.len()), "{told:?}");
            let words = ["TOPIC_AUTHORIZATION_FAILED", "not in the log"].into_iter();
            for (told, word) in told.iter().zip(words.chain(std::iter::repeat("damaged"))) {
                assert!(told.contains(word) && told.contains("t/0"), "{told}");
            }
        },
    );
}

/// Proves that a partition which is held back is not fetched on, however often `poll` waits: one fetch was under way.
#[test]
fn held_back() {
    let script = Script::new((0..50).map(|at| Next::Batch(data(at, 1, -1, Codec::None))).collect());
    let seen = Arc::clone(&script);
    with(
        &script,
        |settings| settings,
        |mut consumer| async move {
            let fetches = || seen.lock().expect("no panic").seen.len();
            consumer.assign(&[(at(), StartAt::Offset(0))]).await.expect("assigned");
            let mut read = next(&mut consumer).await.expect("read");
            consumer.pause(&[at()]).expect("assigned");
            let before = fetches();
            for _ in 0..20 {
                assert!(consumer.poll(Duration::from_millis(10)).await.expect("held back").is_empty());
            }
            assert!(fetches() <= before + 2, "{before}, now {}", fetches());
            consumer.resume(&[at()]).expect("assigned");
            while read.len() < 50 {
                read.extend(next(&mut consumer).await.expect("read"));
            }
            assert!(read.iter().copied().eq(0..50), "in order, each once: {read:?}");
            consumer.close().await.expect("closed");
        },
    );
}

/// Proves that a position outside of the log begins anew where `auto.offset.reset` says, what is buffered first.
#[test]
fn out_of_range() {
    let script = Script::new(vec![
        Next::Batch(data(0, 2, -1, Codec::None)),
        Next::Partition(ErrorCode::OffsetOutOfRange),
        Next::Partition(ErrorCode::OffsetOutOfRange),
        Next::Batch(data(50, 1, -1, Codec::None)),
    ]);
    script.lock().expect("no panic").log_start = 50;
    let reset = |settings: ConsumerSettings| settings.offset_reset(OffsetReset::Earliest);
    with(&script, reset, |mut consumer| async move {
        consumer.assign(&[(at(), StartAt::Offset(0))]).await.expect("assigned");
        assert_eq!(next(&mut consumer).await.expect("read"), [0, 1]);
        assert_eq!(next(&mut consumer).await.expect("read"), [50]);
    });
}

/// Proves that a change of leader is followed by a validation of the position, and that a log that was cut below it
/// is told, or gone back in if `auto.offset.reset` is set.
#[test]
fn truncation() {
    for reset in [OffsetReset::None, OffsetReset::Latest] {
        let mut first = data(0, 9, -1, Codec::None).to_vec();
        first[12..16].copy_from_slice(&0_i32.to_be_bytes()); // its leader epoch
        let script =
            Script::new(vec![Next::Batch(first.into()), Next::Partition(ErrorCode::FencedLeaderEpoch)]);
        let change = |settings: ConsumerSettings| settings.offset_reset(reset);
        let inside = Arc::clone(&script);
        with(&script, change, |mut consumer| async move {
            consumer.assign(&[(at(), StartAt::Offset(0))]).await.expect("assigned");
            assert_eq!(next(&mut consumer).await.expect("read").len(), 9);
            {
                let mut script = inside.lock().expect("no panic");
                (script.leader_epoch, script.epoch_ends) = (2, [(0, 4)].into());
                script.fetches.push_back(Next::Partition(ErrorCode::FencedLeaderEpoch));
                if reset == OffsetReset::Latest {
                    script.fetches.push_back(Next::Batch(data(4, 1, -1, Codec::None)));
                }
            }
            let outcome = next(&mut consumer).await;
            match reset {
                OffsetReset::None => {
                    let error = outcome.expect_err("told");
                    let cut = matches!(
                        error,
                        ConsumerError::Truncated { offset: 9, divergent_offset: Some(4), .. }
                    );
                    assert!(cut, "{error}");
                }
                _ => assert_eq!(outcome.expect("read"), [4]),
            }
        });
    }
}

/// Proves that a position which moves on over buffered records while it is validated is not taken for cut: what was
/// asked is where the epoch ends in which it was. Every record comes once.
#[test]
fn read_on_while_validated() {
    for reset in [OffsetReset::None, OffsetReset::Earliest] {
        let in_epoch = |from, count, epoch: i32| {
            let mut batch = data(from, count, -1, Codec::None).to_vec();
            batch[12..16].copy_from_slice(&epoch.to_be_bytes());
            Bytes::from(batch)
        };
        let buffered = joined(&[in_epoch(0, 6, 0), in_epoch(6, 30, 1)]);
        let script = Script::new(vec![Next::Batch(buffered), Next::Partition(ErrorCode::FencedLeaderEpoch)]);
        {
            let mut script = script.lock().expect("no panic");
            script.epoch_ends = [(0, 6), (1, 36)].into();
            script.epoch_end_after = Duration::from_millis(100);
        }
        let change = |settings: ConsumerSettings| settings.offset_reset(reset).max_poll_records(1);
        let inside = Arc::clone(&script);
        with(&script, change, |mut consumer| async move {
            consumer.assign(&[(at(), StartAt::Offset(0))]).await.expect("assigned");
            let mut read = next(&mut consumer).await.expect("read");
            inside.lock().expect("no panic").leader_epoch = 2;
            while read.len() < 36 {
                time::sleep(Duration::from_millis(5)).await;
                read.extend(next(&mut consumer).await.expect("nothing was cut"));
            }
            inside.lock().expect("no panic").fetches.push_back(Next::Batch(in_epoch(36, 1, 2)));
            read.extend(next(&mut consumer).await.expect("nothing was cut"));
            assert_eq!(read, (0..37).collect::<Vec<i64>>());
        });
    }
}

/// Proves that a member joins again when its sync is overtaken or its generation unknown, and with a new id only
/// when the old one is.
#[test]
fn members_join_again() {
    let script = Script::new(Vec::new());
    {
        let mut script = script.lock().expect("no panic");
        script.sync_codes = [ErrorCode::RebalanceInProgress, ErrorCode::UnknownMemberId].into();
        // heartbeats go on while the consumer has not answered a rebalance: the last code is for the next generation
        script.heartbeat_codes = [
            (3, ErrorCode::CoordinatorLoadInProgress),
            (3, ErrorCode::NotCoordinator),
            (3, ErrorCode::RebalanceInProgress),
            (4, ErrorCode::IllegalGeneration),
        ]
        .into();
    }
    let reset = |settings: ConsumerSettings| settings.offset_reset(OffsetReset::Earliest);
    let inside = Arc::clone(&script);
    with(&script, reset, |mut consumer| async move {
        consumer.subscribe(&["t"]).await.expect("a subscription");
        let deadline = time::now() + WAIT;
        while inside.lock().expect("no panic").joins.len() < 5 {
            assert!(time::now() < deadline, "{:?}", inside.lock().expect("no panic").joins);
            consumer.poll(Duration::from_millis(5)).await.expect("nothing wrong");
        }
        consumer.close().await.expect("closed");
    });
    let joins = script.lock().expect("no panic").joins.clone();
    assert_eq!(joins[..5], ["", "m", "", "m", "m"].map(Text::from));
}

/// Proves that coordinators that make no sense end the membership with a reason: an assignor that nobody offered, an
/// assignment that cannot be read.
#[test]
fn coordinators_without_sense() {
    for (protocol, assignment, word) in
        [("fair", &b""[..], "not configured"), ("range", b"\0\x01\x7f\xff\xff\xff", "cannot be read")]
    {
        let script = Script::new(Vec::new());
        {
            let mut script = script.lock().expect("no panic");
            (script.protocol, script.assignment) = (protocol, Bytes::copy_from_slice(assignment));
        }
        with(
            &script,
            |settings| settings,
            |mut consumer| async move {
                consumer.subscribe(&["t"]).await.expect("a subscription");
                let error = next(&mut consumer).await.expect_err("told");
                assert!(error.to_string().contains(word), "{error}");
                assert!(consumer.poll(WAIT).await.is_err(), "it stays so");
            },
        );
    }
}
