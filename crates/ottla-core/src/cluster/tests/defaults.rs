//! Broker-wide settings as the defaults of topics: what follows them, when, with which sources, and what a load
//! makes of it.

use ottla_protocol::batch::TimestampType;
use ottla_protocol::check::CompressionType;
use ottla_protocol::compression::Codec;

use super::{alter, resource};
use crate::cluster::config::{ConfigSource, TopicConfig, broker_definition};
use crate::config::CoreConfig;
use crate::testing::Shard;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

fn config<'a>(shard: &'a Shard, topic: &str) -> &'a TopicConfig {
    &shard.state.topics.by_name(topic).expect("it exists").config
}

/// Value, source and synonyms of a topic's setting, as DescribeConfigs shows them.
fn shown(shard: &Shard, topic: &str, name: &str) -> (String, ConfigSource, Vec<String>) {
    let image = shard.state.image();
    let topic = image.topic_by_name(topic).expect("it exists");
    let settings = image.sources().of_topic(&topic.config);
    let setting = settings.into_iter().find(|setting| setting.definition.name == name).expect("listed");
    let synonyms = setting.synonyms.iter();
    let synonyms = synonyms.map(|one| format!("{}={}@{}", one.name, one.value, one.source as i8)).collect();
    (setting.value.expect("a topic's settings have values"), setting.source, synonyms)
}

fn set(shard: &mut Shard, node: &str, name: &str, value: &str) {
    assert_eq!(alter(shard, false, vec![resource(BROKER, node, &[(name, 0, Some(value))])]), [0], "{name}");
}

/// A topic without a value of its own follows the broker's at once, also one that is made later; its own value
/// stays; a setting of one broker goes before that of all; a load gives the same; taking it away leads back.
#[test]
fn topics_follow_the_broker() {
    let mut shard = Shard::new();
    shard.create("own", 1, &[("max.message.bytes", "500")]);
    for (name, value) in [
        ("message.max.bytes", "9000"),
        ("log.message.timestamp.type", "LogAppendTime"),
        ("log.message.timestamp.after.max.ms", "5"),
        ("compression.type", "zstd"),
        ("compression.zstd.level", "7"),
        ("log.cleanup.policy", "compact,delete"),
        ("log.segment.bytes", "2000000"),
        ("log.retention.ms", "-7"),
    ] {
        set(&mut shard, "", name, value);
    }
    set(&mut shard, "1", "message.max.bytes", "8000");
    shard.create("later", 1, &[]);
    for round in 0..2 {
        for (topic, bytes) in [("t", 8000), ("later", 8000), ("own", 500)] {
            let config = config(&shard, topic);
            assert_eq!(config.max_message_bytes, bytes, "{topic} {round}");
            assert_eq!(config.timestamp_type, TimestampType::LogAppendTime);
            assert_eq!((config.timestamp_after_max_ms, config.segment_bytes), (5, 2_000_000));
            assert_eq!(config.compression, CompressionType::Codec(Codec::Zstd));
            assert_eq!((config.compression_level, config.retention_ms), (Some(7), -1));
            assert!(config.compact && config.delete);
        }
        let internal = config(&shard, "__consumer_offsets");
        assert_eq!((internal.compression, internal.segment_bytes), (CompressionType::Producer, 104_857_600));
        assert!(internal.compact && !internal.delete, "internal topics have values of their own");
        shard.reload();
    }
    shard.assert_loads();
    for node in ["", "1"] {
        let delete = resource(BROKER, node, &[("message.max.bytes", 1, None)]);
        assert_eq!(alter(&mut shard, false, vec![delete]), [0]);
    }
    assert_eq!(config(&shard, "t").max_message_bytes, 1_048_588);
}

/// Sources and synonyms are Kafka's (asked of Kafka 4.4).
#[test]
fn sources() {
    let mut shard = Shard::with(|config| {
        let set = |config: &mut CoreConfig, name, value| {
            broker_definition(name).expect("known").set(config, value).expect("allowed");
        };
        set(config, "log.retention.hours", "1");
        set(config, "message.max.bytes", "7000");
    });
    let default = ConfigSource::Default;
    assert_eq!(shown(&shard, "t", "retention.ms"), ("3600000".into(), default, vec![]));
    assert_eq!(
        shown(&shard, "t", "max.message.bytes"),
        (
            "7000".into(),
            ConfigSource::StaticBroker,
            vec!["message.max.bytes=7000@4".into(), "message.max.bytes=1048588@5".into()]
        )
    );
    assert_eq!(shown(&shard, "t", "segment.ms"), ("604800000".into(), default, vec![]));
    set(&mut shard, "", "log.retention.ms", "5000");
    set(&mut shard, "1", "log.retention.ms", "6000");
    let own = resource(TOPIC, "t", &[("retention.ms", 0, Some("7"))]);
    assert_eq!(alter(&mut shard, false, vec![own]), [0]);
    assert_eq!(
        shown(&shard, "t", "retention.ms"),
        (
            "7".into(),
            ConfigSource::DynamicTopic,
            vec![
                "retention.ms=7@1".into(),
                "log.retention.ms=6000@2".into(),
                "log.retention.ms=5000@3".into(),
                "log.retention.hours=1@4".into(),
                "log.retention.hours=168@5".into(),
            ]
        )
    );
    let broker = shard.state.image().sources().of_broker();
    let retention =
        broker.iter().find(|setting| setting.definition.name == "log.retention.ms").expect("listed");
    let synonyms: Vec<_> = retention.synonyms.iter().map(|one| (one.name, one.source as i8)).collect();
    let hours = "log.retention.hours";
    assert_eq!(synonyms, [("log.retention.ms", 2), ("log.retention.ms", 3), (hours, 4), (hours, 5)]);
    let names = ["log.retention.ms", "log.retention.hours", "log.retention.minutes", "max.connections"];
    let values = names.map(|name| {
        let setting = broker.iter().find(|setting| setting.definition.name == name).expect("listed");
        (setting.value.clone(), setting.source as i8, setting.read_only)
    });
    let value = |text: &str| Some(text.to_owned());
    assert_eq!(
        values,
        [(value("6000"), 2, false), (value("1"), 4, true), (None, 5, true), (value("20000"), 5, false)]
    );
}

/// Adding to a list and taking from it begins with what holds, also when that is the broker's.
#[test]
fn lists_begin_with_what_holds() {
    let mut shard = Shard::new();
    set(&mut shard, "", "log.cleanup.policy", "compact");
    let append = resource(TOPIC, "t", &[("cleanup.policy", 2, Some("delete"))]);
    assert_eq!(alter(&mut shard, false, vec![append]), [0]);
    assert!(config(&shard, "t").compact && config(&shard, "t").delete);
    let append = resource(BROKER, "", &[("log.cleanup.policy", 2, Some("delete,delete"))]);
    assert_eq!(alter(&mut shard, false, vec![append]), [0]);
    assert_eq!(shard.state.config.kept.get("log.cleanup.policy").map(|text| &**text), Some("compact,delete"));
}

/// The broker's settings: bounds, what contradicts what, and changes that change nothing.
#[test]
fn broker_refusals() {
    let mut shard = Shard::new();
    let table: &[(&str, &[super::Operation<'_>], i16)] = &[
        ("1", &[("log.retention.ms", 0, Some("0"))], 42),
        ("1", &[("log.retention.hours", 0, Some("1"))], 42),
        ("", &[("log.retention.hours", 1, None)], 0),
        ("", &[("no.such", 1, None)], 0),
        ("", &[("max.connections", 0, Some("0"))], 42),
        ("", &[("max.connections", 2, Some("5"))], 40),
        ("", &[("max.connections.per.ip", 0, Some("0"))], 42),
        (
            "",
            &[
                ("max.connections.per.ip", 0, Some("0")),
                ("max.connections.per.ip.overrides", 0, Some("127.0.0.1:5")),
            ],
            0,
        ),
        ("", &[("max.connections.per.ip.overrides", 1, None)], 42),
        ("", &[("max.connections.per.ip.overrides", 0, Some("host:5"))], 42),
        ("1", &[("log.local.retention.ms", 0, Some("99999999999"))], 42),
        ("1", &[("log.local.retention.bytes", 0, Some("5")), ("log.retention.bytes", 0, Some("3"))], 42),
        ("1", &[("log.local.retention.bytes", 0, Some("3")), ("log.retention.bytes", 0, Some("3"))], 0),
        ("1", &[("sasl.kerberos.min.time.before.relogin", 0, Some("1"))], 0),
        ("", &[("sasl.kerberos.min.time.before.relogin", 0, Some("1"))], 42),
        ("x", &[("log.retention.ms", 0, Some("1"))], 42),
    ];
    for (node, operations, code) in table {
        let codes = alter(&mut shard, false, vec![resource(BROKER, node, operations)]);
        assert_eq!(codes, [*code], "{node:?} {operations:?}");
    }
    assert_eq!(shard.state.config.max_connections_per_ip_overrides, "127.0.0.1:5");
    let position = shard.state.position();
    let same = resource(BROKER, "1", &[("log.retention.bytes", 0, Some("3"))]);
    assert_eq!(alter(&mut shard, false, vec![same]), [0]);
    assert_eq!(shard.state.position(), position, "what is so already is not written");
    shard.assert_loads();
}

/// Settings of topics that ask for what is not there, or make no sense, are refused as Kafka does.
#[test]
fn topic_refusals() {
    let mut shard = Shard::new();
    let table = [
        ("remote.storage.enable", "true", 40),
        ("remote.storage.enable", "false", 0),
        ("remote.log.copy.disable", "true", 0),
        ("leader.replication.throttled.replicas", "*", 0),
        ("leader.replication.throttled.replicas", "0:1,1:1", 0),
        ("leader.replication.throttled.replicas", "x", 40),
        ("leader.replication.throttled.replicas", "*,0:1", 40),
        ("max.decompressed.message.bytes", "0", 40),
        ("cleanup.policy", "", 0),
        ("cleanup.policy", "delete,none", 40),
        ("unclean.leader.election.enable", "TRUE", 0),
        ("message.format.version", "3.0", 40),
        ("max.message.bytes", "2147483648", 40),
    ];
    for (name, value, code) in table {
        let codes = alter(&mut shard, false, vec![resource(TOPIC, "t", &[(name, 0, Some(value))])]);
        assert_eq!(codes, [code], "{name}={value}");
    }
}
