//! CreatePartitions, AlterConfigs and UpdateFeatures: each error, validation alone, and what a load makes of them.

use ottla_protocol::messages as m;
use ottla_protocol::messages::alter_configs_request::{
    AlterConfigsResource as Replaced, AlterableConfig as ReplacedConfig,
};
use ottla_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use ottla_protocol::messages::update_features_request::FeatureUpdateKey;
use ottla_protocol::types::Text;

use super::{alter, resource};
use crate::cluster::{GROUP_VERSION, TRANSACTION_VERSION};
use crate::command::CommandBody;
use crate::decision::Reply;
use crate::testing::{NOBODY, Shard};

fn more(name: &str, count: i32) -> CreatePartitionsTopic {
    CreatePartitionsTopic { name: name.into(), count, assignments: None, ..Default::default() }
}

fn assigned(name: &str, count: i32, assignments: &[&[i32]]) -> CreatePartitionsTopic {
    let assignment = |broker_ids: &&[i32]| CreatePartitionsAssignment {
        broker_ids: broker_ids.to_vec(),
        ..Default::default()
    };
    let assignments = Some(assignments.iter().map(assignment).collect());
    CreatePartitionsTopic { assignments, ..more(name, count) }
}

fn create_partitions(shard: &mut Shard, topics: Vec<CreatePartitionsTopic>, validate_only: bool) -> Vec<i16> {
    let request = m::CreatePartitionsRequest { topics, validate_only, ..Default::default() };
    let Reply::CreatePartitions(response) = shard.ask(3, CommandBody::CreatePartitions(request)) else {
        panic!("CreatePartitions is answered")
    };
    response.results.iter().map(|result| result.error_code).collect()
}

fn count_of(shard: &Shard, name: &str) -> i32 {
    shard.state.topics.by_name(name).expect("it exists").partition_count
}

/// CreatePartitions: every refusal has its code and leaves the topic as it is, validation alone changes nothing,
/// what passes beside refusals is done, and the new partitions take records before and after a load.
#[test]
fn create_partitions_table() {
    let mut shard = Shard::with(|config| config.limits.topic_partitions_max = 100);
    for name in ["a", "b", "c"] {
        shard.create(name, 2, &[]);
    }
    let table = [
        (more("a", 4), 0),
        (assigned("b", 4, &[&[1], &[1]]), 0),
        (more("none", 5), 3),
        (more("", 5), 3),
        (more("__consumer_offsets", 51), 37),
        (more("t", 3), 37),
        (more("t", 2), 37),
        (more("t", 0), 37),
        (more("t", i32::MIN), 37),
        (assigned("t", 5, &[&[1]]), 39),
        (assigned("t", 4, &[&[1], &[1]]), 39),
        (assigned("t", 4, &[]), 39),
        (assigned("t", 4, &[&[7]]), 39),
        (assigned("t", 4, &[&[]]), 39),
        (assigned("t", 4, &[&[1, 1]]), 39),
        (more("t", 101), 44),
        (more("t", i32::MAX), 44),
    ];
    let position = shard.state.position();
    for (topic, code) in &table {
        assert_eq!(create_partitions(&mut shard, vec![topic.clone()], true), [*code], "{topic:?}");
    }
    assert_eq!(shard.state.position(), position, "validate_only");
    for (topic, code) in table {
        assert_eq!(create_partitions(&mut shard, vec![topic.clone()], false), [code], "{topic:?}");
    }
    assert_eq!(shard.state.position().0, position.0 + 2);
    let together = vec![more("t", 5), more("c", 3), more("c", 4), more("none", 1)];
    assert_eq!(create_partitions(&mut shard, together, false), [0, 42, 3], "named twice, answered once");
    assert_eq!(["a", "b", "c", "t"].map(|name| count_of(&shard, name)), [4, 4, 2, 5]);
    assert_eq!(shard.send_to(4, 9, NOBODY, 1), (0, 0));
    shard.reload();
    assert_eq!(shard.send_to(4, 9, NOBODY, 1), (0, 1));
    assert_eq!(shard.send_to(3, 9, NOBODY, 1), (0, 0));
    assert_eq!(shard.send_to(5, 9, NOBODY, 1).0, 3);
    let decision = shard.run(
        3,
        CommandBody::CreatePartitions(m::CreatePartitionsRequest {
            topics: vec![more("t", 7)],
            ..Default::default()
        }),
    );
    assert!(decision.image_changed, "readers hear of it");
    assert!([5, 6].iter().all(|index| decision.touched.contains(&shard.partition(*index))));
}

/// The ceiling on all partitions counts what the request adds before.
#[test]
fn create_partitions_ceiling() {
    let mut shard = Shard::with(|config| {
        config.offsets_topic_num_partitions = 1;
        config.transaction_state_log_num_partitions = 1;
        config.limits.partitions_max = 10;
    });
    // The control log, two partitions of internal topics, three of "t", one of "a".
    shard.create("a", 1, &[]);
    assert_eq!(create_partitions(&mut shard, vec![more("t", 5), more("a", 3)], true), [0, 44]);
    assert_eq!(create_partitions(&mut shard, vec![more("t", 5), more("a", 2)], false), [0, 0]);
    assert_eq!(create_partitions(&mut shard, vec![more("t", 6)], false), [44]);
}

fn replaced(resource_type: i8, resource_name: &str, configs: &[(&str, Option<&str>)]) -> Replaced {
    let config = |(name, value): &(&str, Option<&str>)| ReplacedConfig {
        name: (*name).into(),
        value: value.map(Text::from),
        ..Default::default()
    };
    let configs = configs.iter().map(config).collect();
    Replaced { resource_type, resource_name: resource_name.into(), configs, ..Default::default() }
}

fn replace(shard: &mut Shard, validate_only: bool, resources: Vec<Replaced>) -> Vec<i16> {
    let request = m::AlterConfigsRequest { resources, validate_only, ..Default::default() };
    let Reply::AlterConfigs(response) = shard.ask(2, CommandBody::AlterConfigs(request)) else {
        panic!("AlterConfigs is answered")
    };
    response.responses.iter().map(|response| response.error_code).collect()
}

fn overrides(shard: &Shard, name: &str) -> Vec<String> {
    let topic = shard.state.topics.by_name(name).expect("it exists");
    topic.config.overrides().map(|(name, value)| format!("{name}={value}")).collect()
}

/// AlterConfigs of topics: what is named is all that is set afterwards, refusals change nothing.
#[test]
fn replace_topic_configs() {
    let mut shard = Shard::new();
    shard.create("a", 1, &[("retention.ms", "1"), ("segment.bytes", "2000000")]);
    // Topic, settings, code.
    type Case = (&'static str, &'static [(&'static str, Option<&'static str>)], i16);
    let table: &[Case] = &[
        ("a", &[("no.such", Some("1"))], 40),
        ("a", &[("retention.ms", Some("soon"))], 40),
        ("a", &[("retention.ms", None)], 42),
        ("a", &[("retention.ms", Some("1")), ("retention.ms", Some("2"))], 42),
        ("a", &[("min.compaction.lag.ms", Some("9")), ("max.compaction.lag.ms", Some("8"))], 40),
        ("none", &[], 3),
        ("a b", &[], 17),
        ("", &[], 42),
        ("__consumer_offsets", &[("max.message.bytes", Some("100"))], 40),
    ];
    for (name, configs, code) in table {
        assert_eq!(
            replace(&mut shard, false, vec![replaced(2, name, configs)]),
            [*code],
            "{name} {configs:?}"
        );
    }
    let new = replaced(2, "a", &[("retention.ms", Some(" 5 ")), ("cleanup.policy", Some("compact"))]);
    assert_eq!(replace(&mut shard, true, vec![new.clone()]), [0]);
    assert_eq!(overrides(&shard, "a"), ["retention.ms=1", "segment.bytes=2000000"]);
    assert_eq!(replace(&mut shard, false, vec![new.clone(), replaced(2, "none", &[])]), [0, 3]);
    assert_eq!(overrides(&shard, "a"), ["cleanup.policy=compact", "retention.ms=5"]);
    shard.reload();
    let position = shard.state.position();
    assert_eq!(replace(&mut shard, false, vec![new]), [0]);
    assert_eq!(shard.state.position(), position, "nothing new is not written");
    let twice = vec![replaced(2, "a", &[]), replaced(2, "a", &[]), replaced(8, "1", &[])];
    assert_eq!(replace(&mut shard, false, twice), [42, 42, 42]);
    assert_eq!(replace(&mut shard, false, vec![replaced(2, "a", &[])]), [0]);
    assert_eq!(overrides(&shard, "a"), [""; 0]);
    shard.assert_loads();
}

/// AlterConfigs of the broker: the settings of one node, or of all, that are not named go back to what was below.
#[test]
fn replace_broker_configs() {
    let mut shard = Shard::new();
    let (expiration, verification) =
        ("producer.id.expiration.ms", "transaction.partition.verification.enable");
    let both = replaced(4, "1", &[(expiration, Some("2000")), (verification, Some("false"))]);
    let all = replaced(4, "", &[(expiration, Some("3000"))]);
    assert_eq!(replace(&mut shard, false, vec![both, all]), [0, 0]);
    let config = &shard.state.config;
    assert_eq!(
        (config.producer_id_expiration_ms, config.transaction_partition_verification_enable),
        (2000, false)
    );
    let table: &[(&str, &str, Option<&str>, i16)] = &[
        ("1", "num.partitions", Some("3"), 42),
        ("1", "no.such", Some("3"), 40),
        ("1", expiration, Some("-1"), 42),
        ("1", expiration, None, 42),
        ("7", expiration, Some("1"), 42),
        ("x", expiration, Some("1"), 42),
    ];
    for (node, name, value, code) in table {
        let resource = replaced(4, node, &[(name, *value)]);
        assert_eq!(replace(&mut shard, false, vec![resource]), [*code], "{node} {name} {value:?}");
    }
    assert_eq!(replace(&mut shard, false, vec![replaced(4, "1", &[(verification, Some("false"))])]), [0]);
    shard.reload();
    assert_eq!(shard.state.config.producer_id_expiration_ms, 3000, "the setting of every broker shows");
    assert_eq!(replace(&mut shard, false, vec![replaced(4, "1", &[]), replaced(4, "", &[])]), [0, 0]);
    let config = &shard.state.config;
    assert_eq!(
        (config.producer_id_expiration_ms, config.transaction_partition_verification_enable),
        (86_400_000, true)
    );
    shard.assert_loads();
}

/// Settings of Kafka's that mean nothing here are kept and shown: kafka-reassign-partitions sets the throttles.
#[test]
fn broker_settings_without_effect() {
    let mut shard = Shard::new();
    let configs = [
        ("sasl.kerberos.min.time.before.relogin", Some("58000")),
        ("leader.replication.throttled.rate", Some("1000000")),
        ("follower.replication.throttled.rate", Some("1000000")),
        ("replica.alter.log.dirs.io.max.bytes.per.second", Some("0")),
    ];
    assert_eq!(replace(&mut shard, false, vec![replaced(4, "1", &configs)]), [0]);
    shard.reload();
    let image = shard.state.image();
    let settings = image.sources().of_broker();
    for (name, value) in configs {
        let setting = settings.iter().find(|setting| setting.definition.name == name).expect("listed");
        assert_eq!((setting.value.as_deref(), setting.read_only), (value, false), "{name}");
    }
    let negative = ("leader.replication.throttled.rate", Some("-1"));
    assert_eq!(replace(&mut shard, false, vec![replaced(4, "1", &[negative])]), [42]);
}

/// The largest batch of an internal topic cannot be set, as the broker's own records would not be bound by it;
/// taking such a setting away is no change, and other settings are free.
#[test]
fn internal_topics_have_no_largest_batch() {
    let mut shard = Shard::new();
    for name in ["__consumer_offsets", "__transaction_state"] {
        let set = resource(2, name, &[("max.message.bytes", 0, Some("100"))]);
        let delete = resource(2, name, &[("max.message.bytes", 1, None)]);
        let other = resource(2, name, &[("segment.bytes", 0, Some("2000000"))]);
        assert_eq!(alter(&mut shard, false, vec![set]), [40]);
        assert_eq!(alter(&mut shard, false, vec![delete]), [0]);
        assert_eq!(alter(&mut shard, false, vec![other]), [0]);
        assert!(
            shard
                .state
                .topics
                .by_name(name)
                .expect("there")
                .config
                .override_of("max.message.bytes")
                .is_none()
        );
    }
    assert_eq!(
        alter(&mut shard, false, vec![resource(2, "t", &[("max.message.bytes", 0, Some("100"))])]),
        [0]
    );
}

fn update(feature: &str, max_version_level: i16, upgrade_type: i8) -> FeatureUpdateKey {
    FeatureUpdateKey { feature: feature.into(), max_version_level, upgrade_type, ..Default::default() }
}

fn update_features(
    shard: &mut Shard,
    version: i16,
    feature_updates: Vec<FeatureUpdateKey>,
    validate_only: bool,
) -> (i16, usize) {
    let request = m::UpdateFeaturesRequest { feature_updates, validate_only, ..Default::default() };
    let Reply::UpdateFeatures(response) = shard.ask(version, CommandBody::UpdateFeatures(request)) else {
        panic!("UpdateFeatures is answered")
    };
    assert_eq!(response.error_code != 0, response.error_message.is_some());
    (response.error_code, response.results.len())
}

/// UpdateFeatures: every level and type of upgrade, all or nothing, an epoch that grows with each change and only
/// then, and a load.
#[test]
fn update_features_table() {
    let mut shard = Shard::new();
    let (tv, gv) = (TRANSACTION_VERSION, GROUP_VERSION);
    let table = [
        (vec![], 0),
        (vec![update(tv, 2, 1)], 0),
        (vec![update(tv, 2, 2)], 0),
        (vec![update(tv, 1, 2)], 0),
        (vec![update(tv, 0, 3)], 0),
        (vec![update(gv, 0, 2)], 0),
        (vec![update(tv, 1, 1)], 95),
        (vec![update(tv, 3, 1)], 95),
        (vec![update(tv, -1, 2)], 95),
        (vec![update(tv, 1, 0)], 95),
        (vec![update(tv, 1, 9)], 95),
        (vec![update("metadata.version", 1, 1)], 95),
        (vec![update("", 0, 2)], 95),
        (vec![update(tv, 1, 2), update("no.such", 1, 1)], 95),
        (vec![update(tv, 1, 2), update(tv, 0, 2)], 42),
    ];
    let (position, epoch) = (shard.state.position(), shard.state.image().features.epoch());
    for (updates, code) in table {
        let results = if code == 0 { updates.len() } else { 0 };
        assert_eq!(update_features(&mut shard, 1, updates.clone(), true), (code, results), "{updates:?}");
        assert_eq!(update_features(&mut shard, 2, updates.clone(), true), (code, 0), "{updates:?}");
        if code != 0 {
            assert_eq!(update_features(&mut shard, 2, updates, false).0, code);
        }
    }
    assert_eq!(update_features(&mut shard, 2, vec![update(tv, 2, 1), update(gv, 1, 1)], false).0, 0);
    assert_eq!(shard.state.position(), position, "nothing new is not written");
    assert_eq!(update_features(&mut shard, 2, vec![update(tv, 1, 2), update(gv, 0, 3)], false).0, 0);
    let features = shard.state.image().features.clone();
    assert_eq!((features.transaction_version(), features.group_version()), (1, 0));
    assert!(features.epoch() > epoch);
    shard.reload();
    assert_eq!(*shard.state.image().features, *features);
    assert_eq!(
        update_features(&mut shard, 2, vec![update(tv, 2, 2)], false).0,
        95,
        "no upgrade as a downgrade"
    );
    assert_eq!(update_features(&mut shard, 2, vec![update(tv, 2, 1)], false).0, 0);
    assert_eq!(shard.state.image().features.transaction_version(), 2);
}

/// Version 0 has a flag: without it a level cannot go down, with it down and up.
#[test]
fn update_features_version_0() {
    let mut shard = Shard::new();
    let flagged = |level, allow_downgrade| {
        vec![FeatureUpdateKey { allow_downgrade, ..update(TRANSACTION_VERSION, level, 1) }]
    };
    assert_eq!(update_features(&mut shard, 0, flagged(1, false), false), (95, 0));
    assert_eq!(update_features(&mut shard, 0, flagged(1, true), false), (0, 1));
    assert_eq!(update_features(&mut shard, 0, flagged(2, false), false), (0, 1));
    assert_eq!(update_features(&mut shard, 0, flagged(0, true), false), (0, 1));
    assert_eq!(update_features(&mut shard, 0, flagged(2, true), false), (0, 1));
}
