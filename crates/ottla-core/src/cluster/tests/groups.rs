//! Settings of groups: each error, bounds, validation alone, sources, and what a load makes of them.

use ottla_protocol::messages as m;
use ottla_protocol::messages::alter_configs_request::{
    AlterConfigsResource as Replaced, AlterableConfig as ReplacedConfig,
};

use super::{Operation, alter, resource};
use crate::cluster::config::ConfigSource;
use crate::command::CommandBody;
use crate::decision::Reply;
use crate::testing::Shard;

const GROUP: i8 = 32;
const SESSION: &str = "consumer.session.timeout.ms";
const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";

fn replace(shard: &mut Shard, group: &str, validate_only: bool, configs: &[(&str, Option<&str>)]) -> i16 {
    let configs = configs.iter().map(|(name, value)| ReplacedConfig {
        name: (*name).into(),
        value: value.map(Into::into),
        ..Default::default()
    });
    let resource = Replaced {
        resource_type: GROUP,
        resource_name: group.into(),
        configs: configs.collect(),
        ..Default::default()
    };
    let request = m::AlterConfigsRequest { resources: vec![resource], validate_only, ..Default::default() };
    let Reply::AlterConfigs(response) = shard.ask(2, CommandBody::AlterConfigs(request)) else {
        panic!("AlterConfigs is answered")
    };
    response.responses[0].error_code
}

/// What a member of the group would be told, and where DescribeConfigs says that each value comes from.
fn in_force(shard: &Shard, group: &str) -> [(i32, ConfigSource, usize); 2] {
    let image = shard.state.image();
    let settings = image.group_settings(group);
    let of = |name: &str| {
        let setting = settings.iter().find(|setting| setting.definition.name == name).expect("listed");
        (
            setting.value.as_deref().and_then(|value| value.parse().ok()).expect("a number"),
            setting.source,
            setting.synonyms.len(),
        )
    };
    let (session, heartbeat) = (of(SESSION), of(HEARTBEAT));
    let configs = shard.state.cluster.group_configs();
    assert_eq!(configs.session_timeout_ms(group, &shard.state.config), session.0);
    assert_eq!(configs.heartbeat_interval_ms(group, &shard.state.config), heartbeat.0);
    [session, heartbeat]
}

fn ids(shard: &Shard) -> Vec<String> {
    shard.state.image().group_configs().ids().map(ToString::to_string).collect()
}

/// IncrementalAlterConfigs of groups has Kafka's codes (asked of Kafka 4.4): bounds of the broker, operations, null,
/// unknown names, which may be removed; nothing of a refused resource is taken.
#[test]
fn codes() {
    let mut shard = Shard::new();
    let table: &[(&str, &[Operation<'_>], i16)] = &[
        ("g", &[(SESSION, 0, Some("50000"))], 0),
        ("g", &[(SESSION, 0, Some("44999"))], 40),
        ("g", &[(SESSION, 0, Some("60001"))], 40),
        ("g", &[(HEARTBEAT, 0, Some(" 6000 "))], 0),
        ("g", &[(HEARTBEAT, 0, Some("4999"))], 40),
        ("g", &[(HEARTBEAT, 0, Some("15001"))], 40),
        ("g", &[(HEARTBEAT, 0, Some("soon"))], 40),
        ("g", &[(HEARTBEAT, 0, Some(""))], 40),
        ("g", &[(HEARTBEAT, 0, Some("99999999999"))], 40),
        ("g", &[(HEARTBEAT, 0, None)], 42),
        ("g", &[(HEARTBEAT, 2, Some("5000"))], 40),
        ("g", &[(HEARTBEAT, 3, Some("5000"))], 40),
        ("g", &[(HEARTBEAT, 5, Some("5000"))], 42),
        ("g", &[(HEARTBEAT, 0, Some("6000")), (HEARTBEAT, 0, Some("7000"))], 42),
        ("g", &[("no.such", 0, Some("5"))], 40),
        ("g", &[("no.such", 1, None)], 0),
        ("g", &[("share.session.timeout.ms", 0, Some("50000"))], 40),
        ("g", &[("streams.num.standby.replicas", 0, Some("1"))], 40),
        ("g", &[(SESSION, 0, Some("55000")), (HEARTBEAT, 0, Some("1"))], 40),
        ("", &[(SESSION, 0, Some("50000"))], 42),
        ("a b/\u{e9}", &[(SESSION, 0, Some("50000"))], 0),
    ];
    for validate_only in [true, false] {
        for (group, operations, code) in table {
            let codes = alter(&mut shard, validate_only, vec![resource(GROUP, group, operations)]);
            assert_eq!(codes, [*code], "{group:?} {operations:?}");
        }
        let wanted: &[&str] = if validate_only { &[] } else { &["a b/\u{e9}", "g"] };
        assert_eq!(ids(&shard), wanted);
    }
    let long = "x".repeat(5000);
    assert_eq!(alter(&mut shard, false, vec![resource(GROUP, &long, &[(SESSION, 0, Some("50000"))])]), [42]);
    let zeros = format!("{}50000", "0".repeat(5000));
    assert_eq!(alter(&mut shard, false, vec![resource(GROUP, "g", &[(SESSION, 0, Some(&zeros))])]), [40]);
    let group = ConfigSource::DynamicGroup;
    assert_eq!(in_force(&shard, "g"), [(50_000, group, 2), (6000, group, 2)]);
    assert_eq!(
        in_force(&shard, "other"),
        [(45_000, ConfigSource::Default, 1), (5000, ConfigSource::Default, 1)]
    );
    shard.reload();
    assert_eq!(in_force(&shard, "g"), [(50_000, group, 2), (6000, group, 2)]);
    shard.assert_loads();
}

/// AlterConfigs replaces everything that was set for a group, and a group without settings is listed no more.
#[test]
fn replaced() {
    let mut shard = Shard::new();
    assert_eq!(replace(&mut shard, "g", false, &[(SESSION, Some("46000")), (HEARTBEAT, Some("7000"))]), 0);
    assert_eq!(replace(&mut shard, "g", true, &[]), 0);
    assert_eq!(in_force(&shard, "g").map(|(value, ..)| value), [46_000, 7000]);
    type Wanted<'a> = &'a [(&'a str, Option<&'a str>)];
    let table: &[(&str, Wanted<'_>, i16)] = &[
        ("g", &[(SESSION, None)], 42),
        ("g", &[(HEARTBEAT, Some("1"))], 40),
        ("g", &[("no.such", Some("1"))], 40),
        ("g", &[("share.isolation.level", Some("read_committed"))], 40),
        ("g", &[(SESSION, Some("46000")), (SESSION, Some("47000"))], 42),
        ("", &[(SESSION, Some("46000"))], 42),
        ("g", &[(HEARTBEAT, Some("8000"))], 0),
    ];
    for (group, configs, code) in table {
        assert_eq!(replace(&mut shard, group, false, configs), *code, "{group:?} {configs:?}");
    }
    assert_eq!(in_force(&shard, "g").map(|(value, ..)| value), [45_000, 8000]);
    let position = shard.state.position();
    assert_eq!(replace(&mut shard, "g", false, &[(HEARTBEAT, Some("8000"))]), 0);
    assert_eq!(shard.state.position(), position, "what is so already is not written");
    assert_eq!(replace(&mut shard, "g", false, &[]), 0);
    assert_eq!(ids(&shard), [""; 0]);
    shard.reload();
    assert_eq!(ids(&shard), [""; 0]);
    shard.assert_loads();
}

/// The session must be longer than the heartbeat interval, counting what the other has by default; values outside
/// of bounds that the broker has now are as near as the bounds allow; settings at the start are shown as such.
#[test]
fn bounds_and_defaults() {
    let mut shard = Shard::with(|config| {
        config.group_consumer_min_session_timeout_ms = 6000;
        config.group_consumer_session_timeout_ms = 46_000;
        config.group_consumer_max_heartbeat_interval_ms = 20_000;
    });
    assert_eq!(in_force(&shard, "g")[0], (46_000, ConfigSource::StaticBroker, 2));
    let both = |session, heartbeat| {
        vec![resource(GROUP, "g", &[(SESSION, 0, Some(session)), (HEARTBEAT, 0, Some(heartbeat))])]
    };
    assert_eq!(alter(&mut shard, false, both("6000", "7000")), [40]);
    assert_eq!(alter(&mut shard, false, both("7000", "7000")), [40]);
    assert_eq!(alter(&mut shard, false, vec![resource(GROUP, "g", &[(SESSION, 0, Some("6500"))])]), [0]);
    assert_eq!(alter(&mut shard, false, vec![resource(GROUP, "g", &[(HEARTBEAT, 0, Some("7000"))])]), [40]);
    assert_eq!(in_force(&shard, "g")[0], (6500, ConfigSource::DynamicGroup, 3));
    shard.state.config.group_consumer_min_session_timeout_ms = 10_000;
    let configs = shard.state.cluster.group_configs();
    assert_eq!(configs.session_timeout_ms("g", &shard.state.config), 10_000);
}

/// As many groups have settings as the limits allow, also when one request brings them all; a group that has some
/// can still be changed, and one that gives them up makes room.
#[test]
fn ceiling() {
    let mut shard = Shard::with(|config| config.limits.group_configs_max = 3);
    let set = |group: &str| resource(GROUP, group, &[(SESSION, 0, Some("50000"))]);
    let all = ["a", "b", "c", "d", "e"].map(set).to_vec();
    assert_eq!(alter(&mut shard, false, all), [0, 0, 0, 44, 44]);
    assert_eq!(alter(&mut shard, false, vec![set("d")]), [44]);
    assert_eq!(alter(&mut shard, false, vec![resource(GROUP, "a", &[(SESSION, 0, Some("51000"))])]), [0]);
    assert_eq!(alter(&mut shard, false, vec![resource(GROUP, "a", &[(SESSION, 1, None)])]), [0]);
    assert_eq!(alter(&mut shard, false, vec![set("d")]), [0]);
    assert_eq!(ids(&shard), ["b", "c", "d"]);
}
