//! Offsets from brokers that have just heard of a topic, and from brokers that leave things out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ottla_env::spawn;
use ottla_protocol::api::ApiKey;
use ottla_protocol::messages::api_versions_response::ApiVersion;
use ottla_protocol::messages::find_coordinator_response::Coordinator;
use ottla_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use ottla_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use ottla_protocol::messages::offset_fetch_response::OffsetFetchResponseGroup;
use ottla_protocol::messages::{
    FindCoordinatorRequest, FindCoordinatorResponse, ListOffsetsRequest, ListOffsetsResponse,
    MetadataRequest, MetadataResponse, OffsetCommitResponse, OffsetFetchResponse,
};

use super::*;
use crate::admin::{Admin, OffsetSpec};
use crate::consumer::{Consumer, ConsumerSettings, IsolationLevel, StartAt};
use crate::record::{GroupMetadata, OffsetToCommit};
use crate::scripted::{Answer, Call, Server, api_versions, serve};
use crate::settings::ClientSettings;

/// How a broker that has just heard of a topic speaks of it.
#[derive(Clone, Copy, Debug)]
enum Birth {
    /// Metadata: no such topic.
    Unknown,
    /// Metadata: the topic has no leaders.
    NoLeaders,
    /// Metadata: the partition has no leader.
    NoLeader,
    /// Metadata: not all partitions are there.
    Short,
    /// ListOffsets: this code.
    Refused(ErrorCode),
}

const BIRTH: [Birth; 8] = [
    Birth::Unknown,
    Birth::NoLeaders,
    Birth::NoLeader,
    Birth::Short,
    Birth::Refused(ErrorCode::UnknownTopicOrPartition),
    Birth::Refused(ErrorCode::LeaderNotAvailable),
    Birth::Refused(ErrorCode::NotLeaderOrFollower),
    Birth::Unknown,
];

fn run<F: Future>(test: F) -> F::Output {
    spawn::runtime(2).expect("a runtime").block_on(test)
}

fn client(address: &str) -> ClientSettings {
    let quick = Duration::from_millis(1);
    ClientSettings::new(address).expect("an address").retry_backoff(quick).retry_backoff_max(quick)
}

fn metadata(own: &str, birth: Option<Birth>, asked: &MetadataRequest) -> MetadataResponse {
    let (host, port) = own.split_once(':').expect("host and port");
    let count = if matches!(birth, Some(Birth::Short)) { 1 } else { 2 };
    let leader_id = if matches!(birth, Some(Birth::NoLeader)) { -1 } else { 1 };
    let partitions: Vec<_> = (0..count)
        .map(|partition_index| MetadataResponsePartition { partition_index, leader_id, ..Default::default() })
        .collect();
    let topics = asked.topics.iter().flatten().map(|topic| {
        let name = topic.name.clone().expect("asked by name");
        let code = match birth {
            Some(Birth::Unknown) => ErrorCode::UnknownTopicOrPartition,
            _ if name != "new" => ErrorCode::UnknownTopicOrPartition,
            Some(Birth::NoLeaders) => ErrorCode::LeaderNotAvailable,
            _ => ErrorCode::None,
        };
        let partitions = if code.is_none() { partitions.clone() } else { Vec::new() };
        let name = Some(name);
        MetadataResponseTopic { name, error_code: code.code(), partitions, ..Default::default() }
    });
    MetadataResponse {
        brokers: vec![MetadataResponseBroker {
            node_id: 1,
            host: host.into(),
            port: port.parse().expect("a port"),
            ..MetadataResponseBroker::default()
        }],
        topics: topics.collect(),
        ..MetadataResponse::default()
    }
}

fn listed(request: ListOffsetsRequest, code: ErrorCode) -> ListOffsetsResponse {
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|partition| ListOffsetsPartitionResponse {
            partition_index: partition.partition_index,
            error_code: code.code(),
            offset: 5,
            ..ListOffsetsPartitionResponse::default()
        });
        let (name, partitions) = (topic.name, partitions.collect());
        ListOffsetsTopicResponse { name, partitions, ..Default::default() }
    });
    ListOffsetsResponse { topics: topics.collect(), ..ListOffsetsResponse::default() }
}

/// A broker that speaks of the topic `new` as `births` say, one after the other, and knows no other; its answers
/// about offsets of groups are empty.
async fn broker(births: Arc<Mutex<VecDeque<Birth>>>) -> Server {
    serve(move |own, mut call: Call| -> Answer {
        let mut births = births.lock().expect("no test panics in here");
        match call.header.api {
            ApiKey::ApiVersions => {
                let mut answer = api_versions();
                let more = [(ApiKey::ListOffsets, 10), (ApiKey::OffsetFetch, 9), (ApiKey::OffsetCommit, 9)];
                answer.api_keys.extend(more.map(|(key, max_version)| ApiVersion {
                    api_key: key.code(),
                    max_version,
                    ..ApiVersion::default()
                }));
                call.reply(&answer)
            }
            ApiKey::Metadata => {
                let request: MetadataRequest = call.decode();
                let is_look = request.topics.as_ref().is_some_and(|topics| !topics.is_empty());
                let next =
                    births.front().copied().filter(|birth| is_look && !matches!(birth, Birth::Refused(_)));
                if next.is_some() {
                    births.pop_front();
                }
                call.reply(&metadata(own, next, &request))
            }
            ApiKey::ListOffsets => {
                let code = match births.front() {
                    Some(Birth::Refused(code)) => *code,
                    _ => ErrorCode::None,
                };
                if !code.is_none() {
                    births.pop_front();
                }
                let request = call.decode();
                call.reply(&listed(request, code))
            }
            ApiKey::FindCoordinator => {
                let request: FindCoordinatorRequest = call.decode();
                let (host, port) = own.split_once(':').expect("host and port");
                let found = request.coordinator_keys.into_iter().map(|key| Coordinator {
                    key,
                    node_id: 1,
                    host: host.into(),
                    port: port.parse().expect("a port"),
                    ..Coordinator::default()
                });
                call.reply(&FindCoordinatorResponse { coordinators: found.collect(), ..Default::default() })
            }
            ApiKey::OffsetFetch => {
                // of group `h` it says nothing, of `g` nothing that was asked for
                let groups = vec![OffsetFetchResponseGroup { group_id: "g".into(), ..Default::default() }];
                call.reply(&OffsetFetchResponse { groups, ..OffsetFetchResponse::default() })
            }
            ApiKey::OffsetCommit => call.reply(&OffsetCommitResponse::default()),
            _ => Answer::Close,
        }
    })
    .await
}

/// Proves that a topic which was created a moment ago is waited for by everything that looks up offsets, however the
/// brokers put it that they are not ready: unknown, without a leader, without this partition, or refused by the leader.
/// Seen on Apache Kafka right behind CreateTopics.
#[test]
fn a_topic_that_was_just_created() {
    run(async {
        let births = Arc::new(Mutex::new(VecDeque::new()));
        let server = broker(Arc::clone(&births)).await;
        let be_born = || births.lock().expect("free").extend(BIRTH);
        let at = TopicPartition::new("new", 1);
        for start in [StartAt::Beginning, StartAt::End, StartAt::Timestamp(7)] {
            let mut consumer =
                Consumer::connect(ConsumerSettings::new(client(&server.address))).await.expect("connected");
            be_born();
            consumer.assign(&[(at.clone(), start)]).await.expect("waited for");
            assert_eq!(consumer.position(&at), Some(5), "{start:?}");
            assert!(births.lock().expect("free").is_empty() || start == StartAt::Beginning, "{start:?}");
            births.lock().expect("free").clear();
        }
        let admin = Admin::connect(client(&server.address)).await.expect("connected");
        be_born();
        assert_eq!(admin.beginning_offsets(std::slice::from_ref(&at)).await.expect("told")[&at], 5);
        admin.cluster().forget_topic(&at.topic);
        be_born();
        let specs = BTreeMap::from([(at.clone(), OffsetSpec::Latest)]);
        let found = admin.list_offsets(&specs, IsolationLevel::ReadUncommitted).await;
        let found = found[&at].as_ref().expect("told").expect("an offset");
        assert_eq!(found.offset, 5);
    });
}

/// Proves that many topics which do not exist are waited for together, not one after the other, and are then errors
/// that say so.
#[test]
fn topics_that_do_not_exist() {
    run(async {
        let server = broker(Arc::default()).await;
        let admin = Admin::connect(client(&server.address)).await.expect("connected");
        let specs = (0..40).map(|n| (TopicPartition::new(format!("missing-{n}"), 0), OffsetSpec::Latest));
        let started = time::now();
        let found = admin.list_offsets(&specs.collect(), IsolationLevel::ReadUncommitted).await;
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert_eq!(found.len(), 40);
        for (at, outcome) in found {
            let error = outcome.expect_err("it does not exist").to_string();
            assert!(error.contains(at.topic.as_str()) && error.contains("does not exist"), "{error}");
        }
        let mut consumer =
            Consumer::connect(ConsumerSettings::new(client(&server.address))).await.expect("connected");
        let beyond = TopicPartition::new("new", 2);
        let error = consumer.assign(&[(beyond, StartAt::End)]).await.expect_err("it has two partitions");
        assert!(error.to_string().contains("no partition 2"), "{error}");
    });
}

/// librdkafka#5577 is the class: answers whose arrays are absent or empty. Proves that an answer which leaves out the
/// group or a partition is neither "nothing was committed", which would send a reader back to the start, nor "it is
/// committed".
#[test]
fn librdkafka_5577_offsets_that_an_answer_leaves_out() {
    run(async {
        let server = broker(Arc::default()).await;
        let cluster = Cluster::connect(client(&server.address)).await.expect("connected");
        let at = TopicPartition::new("new", 0);
        for group_id in ["g", "h"] {
            let group_id = Text::from(group_id);
            let told = committed(&cluster, &group_id, Some(std::slice::from_ref(&at))).await;
            assert!(matches!(told, Err(OffsetsError::Group { .. })), "{group_id}: {told:?}");
            let offsets = [OffsetToCommit::new(at.clone(), 1)];
            let told = commit(&cluster, &GroupMetadata::without_members(group_id.clone()), &offsets).await;
            assert!(matches!(told, Err(OffsetsError::Group { .. })), "{group_id}: {told:?}");
        }
        let all = committed(&cluster, &Text::from_static("g"), None).await.expect("the group has none");
        assert_eq!(all, []);
    });
}
