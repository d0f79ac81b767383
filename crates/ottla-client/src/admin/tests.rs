//! Batched calls against a broker that moves, forgets and refuses.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_env::spawn;
use ottla_protocol::api::ApiKey;
use ottla_protocol::messages::api_versions_response::ApiVersion;
use ottla_protocol::messages::create_topics_response::CreatableTopicResult;
use ottla_protocol::messages::delete_groups_response::DeletableGroupResult;
use ottla_protocol::messages::find_coordinator_response::Coordinator;
use ottla_protocol::messages::metadata_response::MetadataResponseBroker;
use ottla_protocol::messages::{
    CreateTopicsRequest, CreateTopicsResponse, DeleteGroupsRequest, DeleteGroupsResponse,
    DescribeGroupsRequest, DescribeGroupsResponse, FindCoordinatorRequest, FindCoordinatorResponse,
    MetadataResponse, describe_groups_response,
};

use super::*;
use crate::scripted::{Answer, Call, Server, api_versions, serve};

fn run<F: Future>(test: F) -> F::Output {
    spawn::runtime(2).expect("a runtime").block_on(test)
}

fn client(address: &str) -> ClientSettings {
    let quick = Duration::from_millis(1);
    ClientSettings::new(address)
        .expect("an address")
        .retry_backoff(quick)
        .retry_backoff_max(quick)
        .reconnect_backoff(quick)
        .reconnect_backoff_max(quick)
}

/// A broker that is controller and coordinator; the script answers everything else.
async fn broker<F>(mut script: F) -> Server
where
    F: FnMut(&mut Call) -> Answer + Send + 'static,
{
    serve(move |own, mut call| {
        let (host, port) = own.split_once(':').expect("host and port");
        let (host, port): (Text, i32) = (host.into(), port.parse().expect("a port"));
        match call.header.api {
            ApiKey::ApiVersions => {
                let mut answer = api_versions();
                let served =
                    [(ApiKey::CreateTopics, 7), (ApiKey::DeleteGroups, 2), (ApiKey::DescribeGroups, 5)];
                answer.api_keys.extend(served.map(|(key, max_version)| ApiVersion {
                    api_key: key.code(),
                    max_version,
                    ..ApiVersion::default()
                }));
                call.reply(&answer)
            }
            ApiKey::Metadata => call.reply(&MetadataResponse {
                brokers: vec![MetadataResponseBroker { node_id: 1, host, port, ..Default::default() }],
                controller_id: 1,
                ..MetadataResponse::default()
            }),
            ApiKey::FindCoordinator => {
                let request: FindCoordinatorRequest = call.decode();
                let found = request.coordinator_keys.into_iter().map(|key| Coordinator {
                    key,
                    node_id: 1,
                    host: host.clone(),
                    port,
                    ..Coordinator::default()
                });
                call.reply(&FindCoordinatorResponse { coordinators: found.collect(), ..Default::default() })
            }
            _ => script(&mut call),
        }
    })
    .await
}

fn created(name: &str, code: ErrorCode) -> CreatableTopicResult {
    CreatableTopicResult { name: name.into(), error_code: code.code(), ..Default::default() }
}

/// Proves that every item has its own result: one is made, one is refused with the broker's words, one is left out
/// of the answer, and an item that nobody asked for is not reported.
#[test]
fn each_item_has_its_own_result() {
    run(async {
        let server = broker(|call| {
            let request: CreateTopicsRequest = call.decode();
            assert_eq!(request.topics.len(), 3, "one request for all");
            let refused = CreatableTopicResult {
                error_message: Some("it is there".into()),
                ..created("b", ErrorCode::TopicAlreadyExists)
            };
            let topics = vec![created("a", ErrorCode::None), refused, created("stranger", ErrorCode::None)];
            call.reply(&CreateTopicsResponse { topics, ..CreateTopicsResponse::default() })
        })
        .await;
        let admin = Admin::connect(client(&server.address)).await.expect("connected");
        let topics = ["a", "b", "c"].map(|name| NewTopic::new(name, 1));
        let results = admin.create_topics(&topics, false).await;
        assert_eq!(results.len(), 3);
        assert!(results["a".as_bytes()].is_ok(), "{results:?}");
        let refused = results["b".as_bytes()].as_ref().expect_err("it exists");
        assert_eq!(refused.code(), Some(ErrorCode::TopicAlreadyExists));
        assert!(refused.to_string().ends_with("TOPIC_ALREADY_EXISTS: it is there"), "{refused}");
        assert!(matches!(results["c".as_bytes()], Err(AdminError::Unanswered { .. })), "{results:?}");
    });
}

/// Proves that only what is not done is asked again, and that "exists already" is success when, and only when, an
/// attempt of this call may have made the topic: its answer was lost.
#[test]
fn a_lost_answer_and_what_its_repetition_finds() {
    run(async {
        let mut round = 0;
        let server = broker(move |call| {
            let request: CreateTopicsRequest = call.decode();
            let names: Vec<&str> = request.topics.iter().map(|topic| topic.name.as_str()).collect();
            round += 1;
            match round {
                1 => {
                    assert_eq!(names, ["a", "b"]);
                    let topics = vec![
                        created("a", ErrorCode::TopicAlreadyExists),
                        created("b", ErrorCode::NotController),
                    ];
                    call.reply(&CreateTopicsResponse { topics, ..CreateTopicsResponse::default() })
                }
                2 => {
                    assert_eq!(names, ["b"], "`a` is done");
                    Answer::Close
                }
                _ => {
                    assert_eq!(names, ["b"]);
                    let topics = vec![created("b", ErrorCode::TopicAlreadyExists)];
                    call.reply(&CreateTopicsResponse { topics, ..CreateTopicsResponse::default() })
                }
            }
        })
        .await;
        let admin = Admin::connect(client(&server.address)).await.expect("connected");
        let results = admin.create_topics(&["a", "b"].map(|name| NewTopic::new(name, 1)), false).await;
        let refused = results["a".as_bytes()].as_ref().expect_err("nothing of this call was lost");
        assert_eq!(refused.code(), Some(ErrorCode::TopicAlreadyExists));
        assert!(results["b".as_bytes()].is_ok(), "{results:?}");
    });
}

/// Proves that a coordinator that has moved is looked for again, and that the groups of one coordinator go in one
/// request.
#[test]
fn coordinators_move() {
    run(async {
        let mut round = 0;
        let server = broker(move |call| {
            let request: DeleteGroupsRequest = call.decode();
            round += 1;
            assert_eq!(request.groups_names.len(), if round == 1 { 3 } else { 2 });
            let results = request.groups_names.iter().map(|group| {
                let code = match (round, group.as_str()) {
                    (1, "full") => ErrorCode::NonEmptyGroup,
                    (1, _) => ErrorCode::NotCoordinator,
                    _ => ErrorCode::None,
                };
                DeletableGroupResult {
                    group_id: group.clone(),
                    error_code: code.code(),
                    ..Default::default()
                }
            });
            call.reply(&DeleteGroupsResponse {
                results: results.collect(),
                ..DeleteGroupsResponse::default()
            })
        })
        .await;
        let admin = Admin::connect(client(&server.address)).await.expect("connected");
        let groups = ["full", "moved", "too"].map(Text::from);
        let results = admin.delete_groups(&groups).await;
        assert_eq!(
            results["full".as_bytes()].as_ref().expect_err("members").code(),
            Some(ErrorCode::NonEmptyGroup)
        );
        assert!(results["moved".as_bytes()].is_ok() && results["too".as_bytes()].is_ok(), "{results:?}");
    });
}

/// Proves that a broker without KIP-848 describes its groups all the same, that bytes which are no assignment do not
/// matter, and that a group that is `Dead` in an old answer does not exist.
#[test]
fn groups_of_a_broker_without_kip_848() {
    run(async {
        let server = broker(|call| {
            let request: DescribeGroupsRequest = call.decode();
            let groups = request.groups.iter().map(|group| describe_groups_response::DescribedGroup {
                group_id: group.clone(),
                group_state: if group == "gone" { "Dead".into() } else { "Stable".into() },
                protocol_type: "consumer".into(),
                members: vec![describe_groups_response::DescribedGroupMember {
                    member_id: "m".into(),
                    member_assignment: vec![0, 1, 0xff, 0xff, 0xff].into(),
                    ..Default::default()
                }],
                ..Default::default()
            });
            call.reply(&DescribeGroupsResponse { groups: groups.collect(), ..Default::default() })
        })
        .await;
        let admin = Admin::connect(client(&server.address)).await.expect("connected");
        let results = admin.describe_groups(&["g", "gone"].map(Text::from)).await;
        let group = results["g".as_bytes()].as_ref().expect("described");
        assert_eq!((group.group_type, group.members.len()), (GroupType::Classic, 1));
        assert!(group.members[0].assignment.is_empty() && !group.is_empty());
        let gone = results["gone".as_bytes()].as_ref().expect_err("it does not exist");
        assert_eq!(gone.code(), Some(ErrorCode::GroupIdNotFound));
    });
}

/// Proves that a call ends at its deadline with the reason, and that a request which the broker does not serve fails
/// at once.
#[test]
fn calls_end() {
    run(async {
        let server = broker(|call| {
            let request: CreateTopicsRequest = call.decode();
            let topics = request.topics.iter().map(|topic| created(&topic.name, ErrorCode::NotController));
            call.reply(&CreateTopicsResponse { topics: topics.collect(), ..CreateTopicsResponse::default() })
        })
        .await;
        let mut settings = client(&server.address);
        settings.api_timeout = Duration::from_millis(200);
        let admin = Admin::connect(settings).await.expect("connected");
        let error = admin.create_topic(&NewTopic::new("a", 1)).await.expect_err("nobody is the controller");
        assert_eq!(error.code(), Some(ErrorCode::NotController));
        let none = BTreeMap::from([(Text::from("a"), 2)]);
        let results = admin.create_partitions(&none, false).await;
        assert!(results["a".as_bytes()].as_ref().expect_err("not served").is_unsupported());
    });
}
