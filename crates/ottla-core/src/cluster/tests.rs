//! Topics, settings and record deletion as requests: each error, and what a load makes of them.

use std::collections::BTreeSet;

use ottla_protocol::messages as m;
use ottla_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use ottla_protocol::messages::create_topics_response::CreatableTopicResult;
use ottla_protocol::messages::delete_topics_request::DeleteTopicState;
use ottla_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use ottla_protocol::types::{Text, Uuid};

use super::config::{ConfigSource, broker_definition, broker_definitions, topic_definitions};
use super::{coordinator_partition, validate_name};
use crate::command::CommandBody;
use crate::config::CoreConfig;
use crate::decision::Reply;
use crate::testing::{NOBODY, Shard};

mod admin;
mod defaults;
mod groups;

fn topic(name: &str, num_partitions: i32, replication_factor: i16) -> CreatableTopic {
    CreatableTopic { name: name.into(), num_partitions, replication_factor, ..Default::default() }
}

fn with_config(name: &str, config: &str, value: Option<&str>) -> CreatableTopic {
    let configs = vec![CreatableTopicConfig {
        name: config.into(),
        value: value.map(Text::from),
        ..Default::default()
    }];
    CreatableTopic { configs, ..topic(name, 1, 1) }
}

fn assigned(name: &str, assignments: &[(i32, &[i32])]) -> CreatableTopic {
    let assignments = assignments
        .iter()
        .map(|(partition_index, broker_ids)| CreatableReplicaAssignment {
            partition_index: *partition_index,
            broker_ids: broker_ids.to_vec(),
            ..Default::default()
        })
        .collect();
    CreatableTopic { assignments, ..topic(name, -1, -1) }
}

fn create(shard: &mut Shard, topics: Vec<CreatableTopic>, validate_only: bool) -> Vec<CreatableTopicResult> {
    let request = m::CreateTopicsRequest { topics, validate_only, ..Default::default() };
    let Reply::CreateTopics(response) = shard.ask(7, CommandBody::CreateTopics(request)) else {
        panic!("CreateTopics is answered")
    };
    response.topics
}

fn codes(results: &[CreatableTopicResult]) -> Vec<i16> {
    results.iter().map(|result| result.error_code).collect()
}

/// Bootstrap makes the cluster once: its id, transaction.version 2, the two internal topics with given ids.
#[test]
fn bootstrap() {
    let mut shard = Shard::new();
    let image = shard.state.image();
    assert_eq!(image.cluster_id, Uuid([9; 16]));
    assert_eq!(image.features.transaction_version(), 2);
    assert!(image.features.epoch() >= 0);
    let offsets = image.topic_by_name("__consumer_offsets").expect("made");
    assert_eq!((offsets.id, offsets.partition_count, offsets.is_internal()), (Uuid([1; 16]), 50, true));
    let transactions = image.topic_by_id(Uuid([2; 16])).expect("made");
    assert_eq!((&*transactions.name, transactions.partition_count), ("__transaction_state", 50));
    assert!(transactions.config.compact && !transactions.config.delete);
    let position = shard.state.position();
    let again =
        CommandBody::Bootstrap { cluster_id: Uuid([8; 16]), topic_ids: [Uuid([3; 16]), Uuid([4; 16])] };
    assert!(matches!(shard.ask(0, again), Reply::Done));
    assert_eq!((shard.state.position(), shard.state.image().cluster_id), (position, Uuid([9; 16])));
    shard.reload();
    assert!(shard.state.is_bootstrapped());
    assert_eq!(shard.state.image().topics().len(), 3);
}

/// CreateTopics: every refusal has Kafka's code, and what passes beside them is created.
#[test]
fn create_topics_table() {
    let mut shard = Shard::new();
    create(&mut shard, vec![topic("with.dot", 1, 1)], false);
    let table = [
        (topic("new", 2, 1), 0),
        (topic("defaults", -1, -1), 0),
        (topic("", 1, 1), 17),
        (topic("..", 1, 1), 17),
        (topic("a b", 1, 1), 17),
        (topic(&"n".repeat(250), 1, 1), 17),
        (topic("with_dot", 1, 1), 17),
        (topic("t", 1, 1), 36),
        (topic("__consumer_offsets", 1, 1), 36),
        (topic("__cluster_metadata", 1, 1), 42),
        (topic("p0", 0, 1), 37),
        (topic("p-2", -2, 1), 37),
        (topic("r0", 1, 0), 38),
        (topic("r3", 1, 3), 38),
        (assigned("a", &[(0, &[1]), (1, &[1])]), 0),
        (assigned("a-unknown", &[(0, &[5])]), 39),
        (assigned("a-none", &[(0, &[])]), 39),
        (assigned("a-twice", &[(0, &[1, 1])]), 39),
        (assigned("a-gap", &[(0, &[1]), (2, &[1])]), 39),
        (assigned("a-same", &[(0, &[1]), (0, &[1])]), 39),
        (CreatableTopic { num_partitions: 1, ..assigned("a-count", &[(0, &[1])]) }, 42),
        (CreatableTopic { replication_factor: 1, ..assigned("a-factor", &[(0, &[1])]) }, 42),
        (with_config("c", "retention.ms", Some("1000")), 0),
        (with_config("c-unknown", "no.such.setting", Some("1")), 40),
        (with_config("c-null", "retention.ms", None), 40),
        (with_config("c-type", "retention.ms", Some("soon")), 40),
        (with_config("c-value", "segment.bytes", Some("10")), 40),
        (with_config("c-list", "cleanup.policy", Some("compact,keep")), 40),
        (topic("twice", 1, 1), 42),
        (topic("large", 10_001, 1), 44),
    ];
    let (mut topics, mut wanted): (Vec<_>, Vec<_>) = table.into_iter().unzip();
    topics.push(topic("twice", 1, 1));
    let results = create(&mut shard, topics.clone(), true);
    assert_eq!(codes(&results), wanted, "validate_only");
    assert!(results.iter().all(|result| result.topic_id.is_zero()));
    assert_eq!(shard.state.topics.len(), 4);
    assert_eq!(codes(&create(&mut shard, topics.clone(), false)), wanted);
    assert_eq!(shard.state.topics.len(), 8);
    for (topic, code) in topics.iter().zip(&mut wanted) {
        *code = if *code == 0 { 36 } else { *code };
        assert_eq!(shard.state.topics.by_name(&topic.name).is_some(), *code == 36, "{}", topic.name);
    }
    assert_eq!(codes(&create(&mut shard, topics, false)), wanted);
    shard.reload();
    assert_eq!(shard.state.topics.by_name("a").expect("created").partition_count, 2);
    assert_eq!(shard.state.topics.by_name("c").expect("created").config.retention_ms, 1000);
}

/// Version 5 and up: the answer tells what was made, with every setting and its source.
#[test]
fn create_topics_tells_what_was_made() {
    let mut shard = Shard::with(|config| config.num_partitions = 4);
    let results = create(
        &mut shard,
        vec![CreatableTopic { num_partitions: -1, ..with_config("c", "retention.ms", Some(" 1000 ")) }],
        false,
    );
    let result = &results[0];
    assert_eq!((result.num_partitions, result.replication_factor), (4, 1));
    assert_eq!(result.topic_id, shard.topic_id("c"));
    let configs = result.configs.as_ref().expect("since version 5");
    assert_eq!(configs.len(), topic_definitions().len());
    let retention = configs.iter().find(|config| config.name == "retention.ms").expect("listed");
    assert_eq!(
        (retention.value.as_deref(), retention.config_source),
        (Some("1000"), ConfigSource::DynamicTopic as i8)
    );
    let segment = configs.iter().find(|config| config.name == "segment.bytes").expect("listed");
    assert_eq!((segment.value.as_deref(), segment.config_source), (Some("1073741824"), 5));
}

/// Two new topics whose names differ only in '.' and '_' collide within one request as well, and the name is
/// free again when its topic is gone.
#[test]
fn names_collide() {
    let mut shard = Shard::new();
    assert_eq!(codes(&create(&mut shard, vec![topic("a.b", 1, 1), topic("a_b", 1, 1)], false)), [0, 17]);
    assert_eq!(delete(&mut shard, 5, &[(Some("a.b"), Uuid::ZERO)]), [0]);
    assert_eq!(codes(&create(&mut shard, vec![topic("a_b", 1, 1)], false)), [0]);
}

/// Topic ids: never the same, never one that Kafka keeps, never printed with a '-' in front.
#[test]
fn topic_ids() {
    let mut shard = Shard::new();
    let mut ids = BTreeSet::new();
    for round in 0..30 {
        let topics = (0..20).map(|index| topic(&format!("t-{round}-{index}"), 1, 1)).collect();
        for result in create(&mut shard, topics, false) {
            assert!(ids.insert(result.topic_id), "an id was given twice");
            assert!(!result.topic_id.to_string().starts_with('-'));
            assert!(result.topic_id.0[..15] != [0; 15]);
        }
        assert_eq!(delete(&mut shard, 5, &[(Some(&format!("t-{round}-0")), Uuid::ZERO)]), [0]);
    }
}

/// Ceilings on topics and partitions are met by refusing.
#[test]
fn ceilings() {
    let mut shard = Shard::with(|config| {
        config.offsets_topic_num_partitions = 1;
        config.transaction_state_log_num_partitions = 1;
        config.limits.topics_max = 6;
        config.limits.partitions_max = 16;
    });
    let topics =
        vec![topic("a", 4, 1), topic("b", 7, 1), topic("c", 6, 1), topic("d", 1, 1), topic("e", 1, 1)];
    assert_eq!(codes(&create(&mut shard, topics, false)), [0, 44, 0, 44, 44]);
    assert_eq!(codes(&create(&mut shard, vec![topic("f", 1, 1)], false)), [44]);
}

fn delete(shard: &mut Shard, version: i16, topics: &[(Option<&str>, Uuid)]) -> Vec<i16> {
    let names = topics.iter().filter_map(|(name, _)| *name).map(Text::from).collect();
    let states = topics
        .iter()
        .map(|(name, topic_id)| DeleteTopicState {
            name: name.map(Text::from),
            topic_id: *topic_id,
            ..Default::default()
        })
        .collect();
    let request = m::DeleteTopicsRequest { topics: states, topic_names: names, ..Default::default() };
    let Reply::DeleteTopics(response) = shard.ask(version, CommandBody::DeleteTopics(request)) else {
        panic!("DeleteTopics is answered")
    };
    response.responses.iter().map(|response| response.error_code).collect()
}

/// DeleteTopics by name and id: every error, and a topic made again under the name is another one.
#[test]
fn delete_topics() {
    let mut shard = Shard::new();
    let (a, b) = (shard.create("a", 2, &[]), shard.create("b", 1, &[]));
    let t = shard.topic_id("t");
    assert_eq!(shard.send(9, NOBODY, 3).0, 0);
    let none = Uuid::ZERO;
    let wanted: &[(Option<&str>, Uuid)] = &[
        (Some("a"), none),
        (None, b),
        (Some("none"), none),
        (None, Uuid([77; 16])),
        (Some("t"), t),
        (None, none),
        (Some("__transaction_state"), none),
        (None, a),
    ];
    assert_eq!(delete(&mut shard, 6, wanted), [0, 0, 3, 100, 42, 42, 42, 42]);
    assert_eq!(delete(&mut shard, 1, &[(Some("a"), none), (Some("t"), none)]), [3, 0]);
    assert!(
        shard.state.bounds(ottla_protocol::types::TopicIdPartition { topic_id: t, partition: 0 }).is_none()
    );
    shard.reload();
    let again = shard.create("t", 1, &[]);
    assert_ne!(again, t);
    assert_eq!(shard.offsets(0), (0, 0, 0));
    assert_eq!(shard.state.topics.len(), 3);
    shard.assert_loads();
}

/// Topics that a client asked for are made with the defaults, names that cannot be are passed over.
#[test]
fn auto_create() {
    let mut shard = Shard::with(|config| config.num_partitions = 2);
    let names = ["auto", "t", "a b", "auto", "au.to", "au_to"].map(Text::from).to_vec();
    let decision = shard.run(0, CommandBody::AutoCreateTopics(names.clone()));
    assert!(decision.image_changed);
    assert_eq!(
        decision.touched.iter().filter(|partition| partition.topic_id == shard.topic_id("auto")).count(),
        2
    );
    assert_eq!(shard.state.topics.len(), 5);
    assert!(shard.run(0, CommandBody::AutoCreateTopics(names)).entries.is_empty());
    let mut off = Shard::with(|config| config.auto_create_topics_enable = false);
    off.run(0, CommandBody::AutoCreateTopics(vec!["auto".into()]));
    assert_eq!(off.state.topics.len(), 3);
}

type Operation<'a> = (&'a str, i8, Option<&'a str>);

fn resource(resource_type: i8, resource_name: &str, operations: &[Operation<'_>]) -> AlterConfigsResource {
    let configs = operations
        .iter()
        .map(|(name, config_operation, value)| AlterableConfig {
            name: (*name).into(),
            config_operation: *config_operation,
            value: value.map(Text::from),
            ..Default::default()
        })
        .collect();
    AlterConfigsResource { resource_type, resource_name: resource_name.into(), configs, ..Default::default() }
}

fn alter(shard: &mut Shard, validate_only: bool, resources: Vec<AlterConfigsResource>) -> Vec<i16> {
    let request = m::IncrementalAlterConfigsRequest { resources, validate_only, ..Default::default() };
    let Reply::IncrementalAlterConfigs(response) =
        shard.ask(1, CommandBody::IncrementalAlterConfigs(request))
    else {
        panic!("IncrementalAlterConfigs is answered")
    };
    response.responses.iter().map(|response| response.error_code).collect()
}

/// IncrementalAlterConfigs of topics: operations, errors per resource, all or nothing within one, and a load.
#[test]
fn alter_topic_configs() {
    let mut shard = Shard::new();
    shard.create("u", 1, &[]);
    let table: &[(&str, &[Operation<'_>], i16)] = &[
        ("t", &[("retention.ms", 0, Some("5")), ("cleanup.policy", 2, Some("compact"))], 0),
        ("t", &[("retention.ms", 0, Some("6")), ("segment.bytes", 0, Some("1"))], 40),
        ("t", &[("no.such", 0, Some("1"))], 40),
        ("t", &[("no.such", 1, None)], 0),
        ("t", &[("retention.ms", 2, Some("1"))], 40),
        ("t", &[("retention.ms", 0, None)], 42),
        ("t", &[("retention.ms", 9, Some("1"))], 42),
        ("t", &[("retention.ms", 0, Some("1")), ("retention.ms", 1, None)], 42),
        ("t", &[("min.compaction.lag.ms", 0, Some("9")), ("max.compaction.lag.ms", 0, Some("8"))], 40),
        ("none", &[("retention.ms", 0, Some("5"))], 3),
    ];
    for validate_only in [true, false] {
        for (name, operations, code) in table {
            assert_eq!(
                alter(&mut shard, validate_only, vec![resource(2, name, operations)]),
                [*code],
                "{operations:?}"
            );
        }
        let config = &shard.state.topics.by_name("t").expect("there").config;
        let wanted = if validate_only { (604_800_000, false, true) } else { (5, true, true) };
        assert_eq!((config.retention_ms, config.compact, config.delete), wanted);
    }
    shard.reload();
    let subtract = resource(2, "t", &[("cleanup.policy", 3, Some("delete")), ("retention.ms", 1, None)]);
    let twice = [resource(2, "u", &[]), resource(2, "u", &[])];
    assert_eq!(alter(&mut shard, false, [vec![subtract], twice.to_vec()].concat()), [0, 42, 42]);
    let config = &shard.state.topics.by_name("t").expect("there").config;
    assert_eq!((config.retention_ms, config.compact, config.delete), (604_800_000, true, false));
    assert_eq!(alter(&mut shard, false, vec![resource(8, "1", &[]), resource(16, "m", &[])]), [42, 42]);
    shard.assert_loads();
}

/// IncrementalAlterConfigs of the broker: what is dynamic takes effect at once, for one broker before all, and
/// survives a load; the rest is refused.
#[test]
fn alter_broker_configs() {
    let mut shard = Shard::new();
    let name = "producer.id.expiration.ms";
    assert_eq!(alter(&mut shard, false, vec![resource(4, "", &[(name, 0, Some("3000"))])]), [0]);
    assert_eq!(shard.state.config.producer_id_expiration_ms, 3000);
    assert_eq!(alter(&mut shard, false, vec![resource(4, "1", &[(name, 0, Some("2000"))])]), [0]);
    assert_eq!(shard.state.config.producer_id_expiration_ms, 2000);
    shard.reload();
    assert_eq!(shard.state.config.producer_id_expiration_ms, 2000);
    let image = shard.state.image();
    let settings = image.sources().of_broker();
    assert_eq!(settings.len(), broker_definitions().len());
    let setting = settings.iter().find(|setting| setting.definition.name == name).expect("listed");
    assert_eq!(
        (setting.value.as_deref(), setting.source, setting.synonyms.len()),
        (Some("2000"), ConfigSource::DynamicBroker, 3)
    );
    assert_eq!(image.sources().of_every_broker().len(), 1);
    assert_eq!(alter(&mut shard, false, vec![resource(4, "1", &[(name, 1, None)])]), [0]);
    assert_eq!(shard.state.config.producer_id_expiration_ms, 3000);
    assert_eq!(alter(&mut shard, false, vec![resource(4, "", &[(name, 1, None)])]), [0]);
    assert_eq!(shard.state.config.producer_id_expiration_ms, 86_400_000);
    let verification = resource(4, "", &[("transaction.partition.verification.enable", 0, Some("false"))]);
    assert_eq!(alter(&mut shard, false, vec![verification]), [0]);
    assert!(!shard.state.config.transaction_partition_verification_enable);
    let table = [
        ("7", name, "1", 42),
        ("", "num.partitions", "3", 42),
        ("", "no.such", "1", 40),
        ("", name, "-1", 42),
        ("", "log.retention.ms", "0", 42),
        ("", "sasl.kerberos.min.time.before.relogin", "1", 42),
    ];
    for (resource_name, name, value, code) in table {
        assert_eq!(
            alter(&mut shard, false, vec![resource(4, resource_name, &[(name, 0, Some(value))])]),
            [code]
        );
    }
    shard.assert_loads();
}

fn delete_records(shard: &mut Shard, name: &str, partition_index: i32, offset: i64) -> (i16, i64) {
    let partitions = vec![m::delete_records_request::DeleteRecordsPartition {
        partition_index,
        offset,
        ..Default::default()
    }];
    let topics = vec![m::delete_records_request::DeleteRecordsTopic {
        name: name.into(),
        partitions,
        ..Default::default()
    }];
    let request = m::DeleteRecordsRequest { topics, ..Default::default() };
    let Reply::DeleteRecords(response) = shard.ask(2, CommandBody::DeleteRecords(request)) else {
        panic!("DeleteRecords is answered")
    };
    let partition = &response.topics[0].partitions[0];
    (partition.error_code, partition.low_watermark)
}

/// DeleteRecords: every error, -1 for the high watermark, never back, and a load.
#[test]
fn delete_records_table() {
    let mut shard = Shard::new();
    shard.create("compacted", 1, &[("cleanup.policy", "compact")]);
    assert_eq!(shard.send(9, NOBODY, 10).0, 0);
    let table = [
        ("t", 0, 4, (0, 4)),
        ("t", 0, 2, (0, 4)),
        ("t", 0, 11, (1, -1)),
        ("t", 0, -2, (1, -1)),
        ("t", 3, 0, (3, -1)),
        ("none", 0, 0, (3, -1)),
        ("__consumer_offsets", 0, 0, (17, -1)),
        ("compacted", 0, 0, (44, -1)),
        ("t", 0, -1, (0, 10)),
        ("t", 1, -1, (0, 0)),
    ];
    for (name, partition, offset, wanted) in table {
        assert_eq!(
            delete_records(&mut shard, name, partition, offset),
            wanted,
            "{name}-{partition} {offset}"
        );
    }
    shard.reload();
    assert_eq!(shard.offsets(0), (10, 10, 10));
    assert_eq!(shard.send(9, NOBODY, 1), (0, 10));
}

/// The hash that places groups and transactional ids is Java's over UTF-16; the smallest int counts as 0.
#[test]
fn coordinator_partitions() {
    for (key, hash) in [("", 0i32), ("a", 97), ("abc", 96_354), ("hello", 99_162_322)] {
        assert_eq!(coordinator_partition(key, 50), hash % 50, "{key}");
    }
    // A string whose hash is the smallest int.
    assert_eq!(coordinator_partition("polygenelubricants", 50), 0);
    // A letter outside of the basic plane counts as two units.
    assert_eq!(coordinator_partition("😀", 1_000_000), (0xd83d * 31 + 0xde00) % 1_000_000);
}

/// Names: what Kafka allows and nothing else.
#[test]
fn names() {
    for good in ["a", "A.b_c-9", "...", "__x", &"n".repeat(249)] {
        assert!(validate_name(good).is_ok(), "{good}");
    }
    for bad in ["", ".", "..", "a b", "a/b", "ä", "a\0", &"n".repeat(250)] {
        assert!(validate_name(bad).is_err(), "{bad}");
    }
}

/// Definitions are sorted (they are searched by bisection), their defaults pass their own rules, and a broker's
/// default is what the config says.
#[test]
fn definitions_are_sound() {
    assert!(topic_definitions().is_sorted_by(|one, other| one.name < other.name));
    assert!(topic_definitions().iter().all(|definition| definition.check(definition.default).is_ok()));
    let synonyms = topic_definitions().iter().filter_map(|definition| definition.synonym);
    for synonym in synonyms {
        assert!(broker_definition(synonym).is_some(), "{synonym} gives a topic's default");
    }
    assert!(broker_definitions().is_sorted_by(|one, other| one.name() < other.name()));
    let config = CoreConfig::default();
    assert_eq!(config.check(), Ok(()));
    for definition in broker_definitions() {
        let default = definition.definition.default_value();
        assert_eq!(definition.get(&config).as_deref(), default, "{}", definition.name());
        assert!(default.is_none_or(|default| definition.definition.check(default).is_ok()));
    }
}
