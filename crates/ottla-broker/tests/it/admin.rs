//! Administration over the wire: what one broker answers about itself, its topics, replicas, folder and features.

use ottla_broker::Broker;
use ottla_protocol::messages as m;
use ottla_protocol::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use ottla_protocol::messages::describe_topic_partitions_response::DescribeTopicPartitionsResponse;
use ottla_protocol::types::Text;

use super::wire::{Wire, config, run};

/// Proves: DescribeCluster names the broker as Metadata does, and refuses to be taken for a controller.
#[test]
fn describe_cluster() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        let metadata = wire.call(&m::MetadataRequest::default(), 12).await;
        for version in 0..=2 {
            let request = m::DescribeClusterRequest {
                include_cluster_authorized_operations: version == 2,
                ..Default::default()
            };
            let answer = wire.call(&request, version).await;
            assert_eq!((answer.error_code, answer.controller_id), (0, metadata.controller_id));
            assert_eq!(Some(answer.cluster_id), metadata.cluster_id);
            let (one, other) = (&answer.brokers[0], &metadata.brokers[0]);
            assert_eq!((one.broker_id, &one.host, one.port), (other.node_id, &other.host, other.port));
            assert_eq!(answer.cluster_authorized_operations, if version == 2 { 8096 } else { i32::MIN });
        }
        for (endpoint_type, code) in [(2, 114), (0, 115), (9, 115)] {
            let request = m::DescribeClusterRequest { endpoint_type, ..Default::default() };
            assert_eq!(wire.call(&request, 1).await.error_code, code);
        }
        broker.shutdown().await;
    });
}

/// Proves: Metadata by topic id finds a topic whatever name stands beside it, as the Java client's empty one does; an
/// unknown id is 100; what is asked for twice is answered once; an id before version 12 is 42 and no closed
/// connection. As the answers of Kafka 4.4, but for neither name nor id (-1 there).
#[test]
fn metadata_by_id() {
    use ottla_protocol::messages::metadata_request::MetadataRequestTopic as Wanted;
    use ottla_protocol::types::Uuid;
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        let (one, two) = (wire.create_topic("one", 1).await, wire.create_topic("two", 2).await);
        let by = |topic_id: Uuid, name: Option<&str>| Wanted {
            topic_id,
            name: name.map(Text::from),
            ..Default::default()
        };
        let unknown = Uuid([7; 16]);
        let name = |text: &str| by(Uuid::ZERO, Some(text));
        let cases: [(i16, Vec<Wanted>, &str); 12] = [
            (12, vec![by(one, None)], "0 one 1"),
            (13, vec![by(one, Some(""))], "0 one 1"),
            (13, vec![by(two, Some("one"))], "0 two 2"),
            (13, vec![by(two, Some("none"))], "0 two 2"),
            (13, vec![by(one, None), name("two")], "0 one 1"),
            (13, vec![by(one, None), by(unknown, Some("two")), by(one, Some("x"))], "0 one 1, 100 - 0"),
            (13, vec![name("two"), name("none"), name("two"), name("none")], "0 two 2, 3 none 0"),
            (13, vec![by(Uuid::ZERO, None)], "100 - 0"),
            (10, vec![by(one, Some("")), name("two")], "42  0, 42 two 0"),
            (11, vec![by(Uuid::ZERO, None), name("two")], "42  0, 42 two 0"),
            (11, vec![by(unknown, None)], "42  0"),
            (0, vec![name("two"), name("two")], "0 two 2"),
        ];
        for (version, topics, expected) in cases {
            let request = m::MetadataRequest {
                topics: Some(topics.clone()),
                // Not even then is a topic made of a name beside an id.
                allow_auto_topic_creation: version < 4
                    || topics.iter().any(|topic| !topic.topic_id.is_zero()),
                ..Default::default()
            };
            let answer = wire.call(&request, version).await;
            let shown = |topic: &m::metadata_response::MetadataResponseTopic| {
                let name = topic.name.as_ref().map_or("-", |name| name.as_str());
                format!("{} {name} {}", topic.error_code, topic.partitions.len())
            };
            let shown: Vec<String> = answer.topics.iter().map(shown).collect();
            assert_eq!(shown.join(", "), expected, "version {version}: {topics:?}");
        }
        let all = wire.call(&m::MetadataRequest { topics: None, ..Default::default() }, 13).await.topics;
        let names = all.iter().filter(|topic| !topic.is_internal).filter_map(|topic| topic.name.as_deref());
        assert_eq!(names.collect::<Vec<_>>(), ["one", "two"]);
        broker.shutdown().await;
    });
}

async fn page(
    wire: &mut Wire,
    topics: &[&str],
    limit: i32,
    cursor: Option<(&str, i32)>,
) -> DescribeTopicPartitionsResponse {
    let topic = |name: &&str| TopicRequest { name: Text::from(*name), ..Default::default() };
    let cursor = cursor.map(|(name, partition_index)| {
        Box::new(Cursor { topic_name: Text::from(name), partition_index, ..Default::default() })
    });
    let topics = topics.iter().map(topic).collect();
    wire.call(
        &m::DescribeTopicPartitionsRequest {
            topics,
            response_partition_limit: limit,
            cursor,
            ..Default::default()
        },
        0,
    )
    .await
}

/// Topics with their codes and the partitions shown, and the cursor, as text.
fn shown(answer: &DescribeTopicPartitionsResponse) -> String {
    let mut text = String::new();
    for topic in &answer.topics {
        let partitions: Vec<i32> =
            topic.partitions.iter().map(|partition| partition.partition_index).collect();
        let name = topic.name.as_ref().map_or("?", |name| name.as_str());
        text += &format!("{name}:{}{partitions:?} ", topic.error_code);
    }
    match &answer.next_cursor {
        Some(cursor) => text + &format!("-> {}-{}", cursor.topic_name, cursor.partition_index),
        None => text + "end",
    }
}

/// Proves: topics come by name and once, pages end where the client wants and go on from the cursor, and every
/// refusal has its code.
#[test]
fn describe_topic_partitions() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        for (name, partitions) in [("a", 3), ("b", 1), ("c", 2)] {
            wire.create_topic(name, partitions).await;
        }
        // Topics asked for, partitions at most, where to begin, what is answered.
        type Case = (&'static [&'static str], i32, Option<(&'static str, i32)>, &'static str);
        let table: &[Case] = &[
            (&["c", "a", "a"], 2000, None, "a:0[0, 1, 2] c:0[0, 1] end"),
            (&["c", "a"], 3, None, "a:0[0, 1, 2] -> c-0"),
            (&["c", "a"], 4, None, "a:0[0, 1, 2] c:0[0] -> c-1"),
            (&["c", "a"], 4, Some(("c", 1)), "c:0[1] end"),
            (&["c", "a"], 1, Some(("a", 1)), "a:0[1] -> a-2"),
            (&["a"], 0, None, "a:0[0] -> a-1"),
            (&["a"], i32::MIN, Some(("a", 2)), "a:0[2] end"),
            (&["a"], 9, Some(("a", 3)), "a:0[] end"),
            (&["a"], 9, Some(("a", i32::MAX)), "a:0[] end"),
            (&["none", "a b", "b"], 1, None, "a b:17[] b:0[0] -> none-0"),
            (&["none", "b"], 2, None, "b:0[0] none:3[] end"),
            (&["a", "b"], 9, Some(("c", 0)), "a:42[] b:42[] end"),
            (&["a"], 9, Some(("a", -1)), "a:42[] end"),
            (&[], 2, Some(("b", 0)), "b:0[0] c:0[0] -> c-1"),
            (&[], 2, Some(("c", 1)), "c:0[1] end"),
            (&[], 2, Some(("c", -1)), "end"),
            (&[], 1, Some(("bb", 7)), "c:0[0] -> c-1"),
        ];
        for (topics, limit, cursor, wanted) in table {
            let answer = page(&mut wire, topics, *limit, *cursor).await;
            assert_eq!(shown(&answer), *wanted, "{topics:?} {limit} {cursor:?}");
        }
        let mut cursor: Option<(String, i32)> = None;
        let mut partitions = 0;
        for _ in 0..100 {
            let from = cursor.as_ref().map(|(name, index)| (name.as_str(), *index));
            let answer = page(&mut wire, &[], 7, from).await;
            partitions += answer.topics.iter().map(|topic| topic.partitions.len()).sum::<usize>();
            cursor = answer.next_cursor.map(|next| (next.topic_name.to_string(), next.partition_index));
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(partitions, 106, "page by page everything is seen once, internal topics included");
        broker.shutdown().await;
    });
}

async fn sizes(
    wire: &mut Wire,
    version: i16,
    topics: Option<&[(&str, &[i32])]>,
) -> (Vec<(String, i32, i64)>, String) {
    use m::describe_log_dirs_request::DescribableLogDirTopic;
    let topics = topics.map(|topics| {
        let topic = |(name, partitions): &(&str, &[i32])| DescribableLogDirTopic {
            topic: Text::from(*name),
            partitions: partitions.to_vec(),
            ..Default::default()
        };
        topics.iter().map(topic).collect()
    });
    let answer = wire.call(&m::DescribeLogDirsRequest { topics, ..Default::default() }, version).await;
    assert_eq!((answer.error_code, answer.results.len(), answer.results[0].error_code), (0, 1, 0));
    let dir = &answer.results[0];
    if version >= 4 {
        assert!(dir.total_bytes > 0 && (0..=dir.total_bytes).contains(&dir.usable_bytes), "{dir:?}");
    }
    let partitions = dir.topics.iter().flat_map(|topic| {
        let name = topic.name.to_string();
        let size = move |partition: &m::describe_log_dirs_response::DescribeLogDirsPartition| {
            (name.clone(), partition.partition_index, partition.partition_size)
        };
        topic.partitions.iter().map(size).collect::<Vec<_>>()
    });
    (partitions.collect(), dir.log_dir.to_string())
}

/// Proves: sizes are those of the batches, in the file in use and in sealed ones, before and after a restart; what
/// does not exist is left out; a replica can only stay where it is.
#[test]
fn log_dirs() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path());
        config.log_file_bytes = 1 << 20;
        let broker = Broker::start(config.clone()).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("a", 2).await;
        wire.create_topic("b", 1).await;
        let asked: &[(&str, &[i32])] = &[("a", &[1, 0, 0, 9]), ("none", &[0]), ("a", &[1]), ("b", &[-1])];
        let (found, dir) = sizes(&mut wire, 5, Some(asked)).await;
        assert_eq!(found, [("a".to_owned(), 0, 0), ("a".to_owned(), 1, 0)]);
        assert_eq!(dir, folder.path().to_str().expect("UTF-8"));

        let value = "x".repeat(300_000);
        let mut bytes = 0;
        for offset in 0..6 {
            assert_eq!(wire.produce("a", 1, &[&value]).await, (0, offset));
            let (found, _) = sizes(&mut wire, 1, Some(asked)).await;
            assert!(found[1].2 > bytes + 300_000, "{found:?}");
            bytes = found[1].2;
        }
        assert_eq!(bytes % 6, 0, "six batches of one size");
        assert!(bytes < 6 * 300_200, "and not of whole files");
        let (all, _) = sizes(&mut wire, 4, None).await;
        assert_eq!(all.len(), 103, "internal topics are listed");
        broker.shutdown().await;

        let broker = Broker::start(config).await.expect("it starts again");
        let mut wire = Wire::connect(&broker).await;
        let (found, dir) = sizes(&mut wire, 3, Some(asked)).await;
        assert_eq!(found[1].2, bytes);
        for (path, name, code) in
            [(&*dir, "a", 0), (&*dir, "none", 3), ("/elsewhere", "a", 57), ("", "none", 57)]
        {
            use m::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
            let topics = vec![AlterReplicaLogDirTopic {
                name: Text::from(name),
                partitions: vec![0],
                ..Default::default()
            }];
            let dirs = vec![AlterReplicaLogDir { path: Text::from(path), topics, ..Default::default() }];
            for version in 1..=2 {
                let request = m::AlterReplicaLogDirsRequest { dirs: dirs.clone(), ..Default::default() };
                let answer = wire.call(&request, version).await;
                assert_eq!(answer.results[0].partitions[0].error_code, code, "{path} {name}");
            }
        }
        broker.shutdown().await;
    });
}

/// Proves: there are no access rules, and tools are told so once per rule; Kafka's names for what the broker was
/// started with are shown.
#[test]
fn rules_and_names() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        for version in 1..=3 {
            assert_eq!(wire.call(&m::DescribeAclsRequest::default(), version).await.error_code, 54);
            let creations = vec![m::create_acls_request::AclCreation::default(); 2];
            let answer = wire.call(&m::CreateAclsRequest { creations, ..Default::default() }, version).await;
            assert_eq!(answer.results.iter().map(|one| one.error_code).collect::<Vec<_>>(), [54, 54]);
            let filters = vec![m::delete_acls_request::DeleteAclsFilter::default(); 2];
            let answer = wire.call(&m::DeleteAclsRequest { filters, ..Default::default() }, version).await;
            assert_eq!(answer.filter_results.iter().map(|one| one.error_code).collect::<Vec<_>>(), [54, 54]);
        }
        let names = ["advertised.listeners", "broker.id", "log.dirs"].map(Text::from_static);
        let resource = m::describe_configs_request::DescribeConfigsResource {
            resource_type: 4,
            resource_name: Text::from_static("1"),
            configuration_keys: Some(names.to_vec()),
            ..Default::default()
        };
        let request = m::DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
        let answer = wire.call(&request, 4).await;
        let values = answer.results[0].configs.iter().map(|config| config.value.as_deref().expect("shown"));
        let address = format!("PLAINTEXT://{}", broker.local_addr());
        assert_eq!(values.collect::<Vec<_>>(), [&address, "1", folder.path().to_str().expect("UTF-8")]);
        broker.shutdown().await;
    });
}

/// Proves: a setting of a group is described with its sources and listed once it was altered, at once and after the
/// group gave it up; a group without a name has none.
#[test]
fn settings_of_groups() {
    use m::describe_configs_request::DescribeConfigsResource;
    use m::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    const NAME: &str = "consumer.session.timeout.ms";
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        for (value, source, listed) in [(None, 5, 0), (Some("50000"), 8, 1), (None, 5, 0)] {
            let change = AlterableConfig {
                name: Text::from_static(NAME),
                config_operation: i8::from(value.is_none()),
                value: value.map(Text::from_static),
                ..Default::default()
            };
            let resource = AlterConfigsResource {
                resource_type: 32,
                resource_name: Text::from_static("g"),
                configs: vec![change],
                ..Default::default()
            };
            let request =
                m::IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
            assert_eq!(wire.call(&request, 1).await.responses[0].error_code, 0);
            let resource = |name| DescribeConfigsResource {
                resource_type: 32,
                resource_name: Text::from_static(name),
                configuration_keys: (source == 8).then(Vec::new), // an empty list means all, too
                ..Default::default()
            };
            let request = m::DescribeConfigsRequest {
                resources: vec![resource("g"), resource("")],
                include_synonyms: true,
                ..Default::default()
            };
            let answer = wire.call(&request, 4).await;
            assert_eq!((answer.results[0].error_code, answer.results[1].error_code), (0, 42));
            let configs = &answer.results[0].configs;
            let found = configs.iter().find(|config| config.name == NAME).expect("listed");
            assert_eq!((found.value.as_deref(), found.config_source), (value.or(Some("45000")), source));
            let names: Vec<&str> = found.synonyms.iter().map(|synonym| synonym.name.as_str()).collect();
            assert_eq!(names.last(), Some(&"group.consumer.session.timeout.ms"));
            assert_eq!(names.len(), 1 + listed);
            let request = m::ListConfigResourcesRequest { resource_types: vec![32], ..Default::default() };
            assert_eq!(wire.call(&request, 1).await.config_resources.len(), listed);
        }
        broker.shutdown().await;
    });
}

/// Proves: what one request names many times is described once, so that its answer is no larger than the state, and
/// a request that names far more than there can be is not answered.
#[test]
fn settings_are_described_once() {
    use m::describe_configs_request::DescribeConfigsResource;
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let resource = |resource_type, name: &str| DescribeConfigsResource {
            resource_type,
            resource_name: Text::from(name),
            ..Default::default()
        };
        let all = [resource(2, "t"), resource(4, "1"), resource(8, "1"), resource(32, "g")];
        let request = m::DescribeConfigsRequest { resources: vec![all; 50].concat(), ..Default::default() };
        let answer = wire.call(&request, 4).await;
        let told =
            answer.results.iter().map(|one| (one.resource_type, one.error_code, !one.configs.is_empty()));
        assert_eq!(told.collect::<Vec<_>>(), [2, 4, 8, 32].map(|kind| (kind, 0, true)));
        let groups = (0..25_001).map(|n| resource(32, &n.to_string())).collect();
        wire.send(&m::DescribeConfigsRequest { resources: groups, ..Default::default() }, 4).await;
        assert!(wire.frame().await.is_none(), "closed");
        broker.shutdown().await;
    });
}

/// Proves: elections are not needed, reassignments are neither there nor possible, in every version.
#[test]
fn replicas() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("a", 2).await;
        use m::elect_leaders_request::TopicPartitions;
        let partitions = TopicPartitions {
            topic: Text::from_static("a"),
            partitions: vec![0, 1, 2],
            ..Default::default()
        };
        for (version, election_type, wanted) in [(0, 0, [84, 84, 3]), (2, 1, [84, 84, 3]), (1, 7, [42; 3])] {
            let topic_partitions = Some(vec![partitions.clone()]);
            let request = m::ElectLeadersRequest { election_type, topic_partitions, ..Default::default() };
            let answer = wire.call(&request, version).await;
            let results = &answer.replica_election_results[0].partition_result;
            let codes: Vec<i16> = results.iter().map(|result| result.error_code).collect();
            assert_eq!(
                (codes, answer.error_code),
                (wanted.to_vec(), if election_type == 7 { 42 } else { 0 })
            );
        }
        let all = m::ElectLeadersRequest { topic_partitions: None, ..Default::default() };
        let answer = wire.call(&all, 2).await;
        assert_eq!((answer.error_code, answer.replica_election_results.len()), (0, 0));
        let answer = wire.call(&m::ListPartitionReassignmentsRequest::default(), 0).await;
        assert_eq!((answer.error_code, answer.error_message, answer.topics.len()), (0, None, 0));

        use m::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
        let table: &[(i32, Option<&[i32]>, i16)] = &[
            (0, None, 85),
            (0, Some(&[1]), 0),
            (0, Some(&[]), 39),
            (0, Some(&[7]), 39),
            (0, Some(&[1, 1]), 39),
            (0, Some(&[1, 7]), 39),
            (2, Some(&[1]), 3),
            (-1, None, 3),
        ];
        let partitions = table.iter().map(|(partition_index, replicas, _)| ReassignablePartition {
            partition_index: *partition_index,
            replicas: replicas.map(<[i32]>::to_vec),
            ..Default::default()
        });
        let topic = ReassignableTopic {
            name: Text::from_static("a"),
            partitions: partitions.collect(),
            ..Default::default()
        };
        for version in 0..=1 {
            let request =
                m::AlterPartitionReassignmentsRequest { topics: vec![topic.clone()], ..Default::default() };
            let answer = wire.call(&request, version).await;
            let codes: Vec<i16> =
                answer.responses[0].partitions.iter().map(|partition| partition.error_code).collect();
            assert_eq!(codes, table.iter().map(|(_, _, code)| *code).collect::<Vec<_>>());
        }
        broker.shutdown().await;
    });
}

/// Proves: a request whose answer would be far larger than itself is not answered, and the broker goes on.
#[test]
fn too_many_partitions() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        for (named, is_answered) in [(100_000, true), (100_001, false)] {
            let mut wire = Wire::connect(&broker).await;
            let topic = m::elect_leaders_request::TopicPartitions {
                topic: Text::from_static("none"),
                partitions: vec![0; named],
                ..Default::default()
            };
            let request =
                m::ElectLeadersRequest { topic_partitions: Some(vec![topic]), ..Default::default() };
            wire.send(&request, 2).await;
            assert_eq!(wire.frame().await.is_some(), is_answered, "{named}");
        }
        broker.shutdown().await;
    });
}

/// Proves: the quorum is this broker, for the metadata log alone, and moves when metadata changes.
#[test]
fn describe_quorum() {
    use m::describe_quorum_request::{PartitionData, TopicData};
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        let partition = |partition_index| PartitionData { partition_index, ..Default::default() };
        let topics = ["__cluster_metadata", "a"].map(|name| TopicData {
            topic_name: Text::from_static(name),
            partitions: vec![partition(0), partition(1)],
            ..Default::default()
        });
        let request = m::DescribeQuorumRequest { topics: topics.to_vec(), ..Default::default() };
        let mut before = 0;
        for version in 0..=2 {
            let answer = wire.call(&request, version).await;
            let codes =
                answer.topics.iter().flat_map(|topic| topic.partitions.iter().map(|one| one.error_code));
            assert_eq!(codes.collect::<Vec<_>>(), [0, 3, 3, 3]);
            let quorum = &answer.topics[0].partitions[0];
            assert_eq!((quorum.leader_id, quorum.current_voters.len(), quorum.observers.len()), (1, 1, 0));
            assert_eq!(quorum.current_voters[0].log_end_offset, quorum.high_watermark);
            assert_eq!(quorum.current_voters[0].last_fetch_timestamp > 0, version >= 1);
            assert_eq!(answer.nodes.len(), usize::from(version == 2));
            assert!(quorum.high_watermark > before, "creating topics is metadata");
            before = quorum.high_watermark;
            wire.create_topic(&format!("t{version}"), 1).await;
        }
        broker.shutdown().await;
    });
}

/// Proves: what is changed is announced: partitions in Metadata, features with a higher epoch in ApiVersions,
/// resources by type; and where a leader epoch ends is found, over a restart.
#[test]
fn changes_show() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("a", 1).await;
        let topic = m::create_partitions_request::CreatePartitionsTopic {
            name: Text::from_static("a"),
            count: 3,
            assignments: None,
            ..Default::default()
        };
        for (version, code) in [(0, 0), (3, 37)] {
            let request = m::CreatePartitionsRequest { topics: vec![topic.clone()], ..Default::default() };
            assert_eq!(wire.call(&request, version).await.results[0].error_code, code);
        }
        assert_eq!(wire.produce("a", 2, &["x", "y"]).await, (0, 0));

        let before = api_versions(&mut wire).await;
        let update = m::update_features_request::FeatureUpdateKey {
            feature: Text::from_static("transaction.version"),
            max_version_level: 1,
            upgrade_type: 2,
            ..Default::default()
        };
        let request = m::UpdateFeaturesRequest { feature_updates: vec![update], ..Default::default() };
        assert_eq!(wire.call(&request, 2).await.error_code, 0);
        let after = api_versions(&mut wire).await;
        assert!(after.finalized_features_epoch > before.finalized_features_epoch);
        let level = |answer: &m::ApiVersionsResponse| {
            let feature =
                answer.finalized_features.iter().find(|feature| feature.name == "transaction.version");
            feature.map(|feature| feature.max_version_level)
        };
        assert_eq!((level(&before), level(&after)), (Some(2), Some(1)));

        list_resources(&mut wire).await;
        broker.shutdown().await;

        let broker = Broker::start(config(folder.path())).await.expect("it starts again");
        let mut wire = Wire::connect(&broker).await;
        assert_eq!(wire.produce("a", 2, &["z"]).await, (0, 2));
        ends_of_epochs(&mut wire).await;
        broker.shutdown().await;
    });
}

async fn api_versions(wire: &mut Wire) -> m::ApiVersionsResponse {
    let request = m::ApiVersionsRequest {
        client_software_name: Text::from_static("it"),
        client_software_version: Text::from_static("1"),
        ..Default::default()
    };
    wire.call(&request, 4).await
}

async fn list_resources(wire: &mut Wire) {
    for (version, resource_types, wanted) in [
        (0, vec![], Some(0)),
        (1, vec![], Some(4)),
        (1, vec![2], Some(3)),
        (1, vec![4, 8, 16, 32], Some(1)),
        (1, vec![2, 99], None),
    ] {
        let request = m::ListConfigResourcesRequest { resource_types, ..Default::default() };
        let answer = wire.call(&request, version).await;
        let found = (answer.error_code == 0).then_some(answer.config_resources.len());
        assert_eq!((found, answer.error_code), (wanted, if wanted.is_some() { 0 } else { 35 }));
    }
}

async fn ends_of_epochs(wire: &mut Wire) {
    use m::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
    let table = [
        (2, -1, 0, (0, 0, 2)),
        (2, 1, 1, (0, 1, 3)),
        (2, 0, 0, (74, -1, -1)),
        (2, 9, 0, (75, -1, -1)),
        (3, -1, 0, (3, -1, -1)),
    ];
    for version in 2..=4 {
        let partitions = table.map(|(partition, current_leader_epoch, leader_epoch, _)| {
            OffsetForLeaderPartition { partition, current_leader_epoch, leader_epoch, ..Default::default() }
        });
        let topic = OffsetForLeaderTopic {
            topic: Text::from_static("a"),
            partitions: partitions.to_vec(),
            ..Default::default()
        };
        let request = m::OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() };
        let answer = wire.call(&request, version).await;
        let found =
            answer.topics[0].partitions.iter().map(|one| (one.error_code, one.leader_epoch, one.end_offset));
        assert_eq!(found.collect::<Vec<_>>(), table.map(|(.., wanted)| wanted));
    }
}
