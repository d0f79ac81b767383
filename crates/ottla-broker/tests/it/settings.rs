//! Settings over the wire: what is changed while the broker runs holds at once and after a restart.

use ottla_broker::Broker;
use ottla_env::time;
use ottla_protocol::messages as m;
use ottla_protocol::messages::describe_configs_request::DescribeConfigsResource;
use ottla_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use ottla_protocol::types::Text;

use super::wire::{PATIENCE, Wire, config, run};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;

/// Sets one setting, or with `None` takes it away.
async fn alter(wire: &mut Wire, resource_type: i8, resource: &str, name: &str, value: Option<&str>) -> i16 {
    let config = AlterableConfig {
        name: Text::from(name),
        config_operation: i8::from(value.is_none()),
        value: value.map(Text::from),
        ..Default::default()
    };
    let resource = AlterConfigsResource {
        resource_type,
        resource_name: Text::from(resource),
        configs: vec![config],
        ..Default::default()
    };
    let request = m::IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    wire.call(&request, 1).await.responses[0].error_code
}

/// Code, and value, source and "read only" of every setting asked for.
async fn describe(
    wire: &mut Wire,
    resource_type: i8,
    resource: &str,
    names: &[&str],
) -> (i16, Vec<(String, i8, bool)>) {
    let resource = DescribeConfigsResource {
        resource_type,
        resource_name: Text::from(resource),
        configuration_keys: Some(names.iter().map(|name| Text::from(*name)).collect()),
        ..Default::default()
    };
    let request = m::DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let result = wire.call(&request, 4).await.results.remove(0);
    let shown = result.configs.into_iter().map(|config| {
        (
            config.value.map(|text| text.to_string()).unwrap_or_default(),
            config.config_source,
            config.read_only,
        )
    });
    (result.error_code, shown.collect())
}

/// Proves: the broker's largest batch and codec reach a topic without its own at once, with the sources that Kafka
/// names, are there after a restart over a setting of the start, and go when they are taken away.
#[test]
fn broker_settings_reach_topics() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let long = "x".repeat(3000);
        assert_eq!(wire.produce("t", 0, &[&long]).await, (0, 0));
        assert_eq!(alter(&mut wire, BROKER, "", "message.max.bytes", Some("1000")).await, 0);
        assert_eq!(wire.produce("t", 0, &[&long]).await.0, 10, "an answer means that it holds");
        assert_eq!(alter(&mut wire, BROKER, "", "compression.type", Some("gzip")).await, 0);
        assert_eq!(wire.produce("t", 0, &["short"]).await, (0, 1));
        let names = ["compression.type", "max.message.bytes"];
        let shown = describe(&mut wire, TOPIC, "t", &names).await;
        let value = |text: &str, source| (text.to_owned(), source, false);
        assert_eq!(shown, (0, vec![value("gzip", 3), value("1000", 3)]));
        broker.shutdown().await;

        let mut again = config(folder.path());
        again.set("test", "message.max.bytes", "2000000").expect("allowed");
        let broker = Broker::start(again).await.expect("it starts again");
        let mut wire = Wire::connect(&broker).await;
        assert_eq!(wire.produce("t", 0, &[&long]).await.0, 10);
        assert_eq!(alter(&mut wire, BROKER, "1", "message.max.bytes", Some("5000")).await, 0);
        assert_eq!(wire.produce("t", 0, &[&long]).await, (0, 2));
        assert_eq!(describe(&mut wire, TOPIC, "t", &names).await.1[1], value("5000", 2));
        for node in ["", "1"] {
            assert_eq!(alter(&mut wire, BROKER, node, "message.max.bytes", None).await, 0);
        }
        assert_eq!(describe(&mut wire, TOPIC, "t", &names).await.1[1], value("2000000", 4));
        let fetched = wire.fetch("t", 0, 0, 0).await;
        assert_eq!(fetched.values, [long.as_str(), "short", long.as_str()]);
        broker.shutdown().await;
    });
}

/// Proves: a limit of connections that is changed while the broker runs binds the next connection.
#[test]
fn limits_of_connections_change() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        assert_eq!(alter(&mut wire, BROKER, "", "max.connections.per.ip", Some("1")).await, 0);
        let deadline = time::now() + PATIENCE;
        while !Wire::connect(&broker).await.closes_within(std::time::Duration::from_millis(100)).await {
            assert!(time::now() < deadline, "a second connection is still served");
        }
        assert_eq!(alter(&mut wire, BROKER, "", "max.connections.per.ip", None).await, 0);
        let deadline = time::now() + PATIENCE;
        while Wire::connect(&broker).await.closes_within(std::time::Duration::from_millis(100)).await {
            assert!(time::now() < deadline, "a second connection is still refused");
        }
        broker.shutdown().await;
    });
}

/// Proves: what is set at a start is shown with its type and as read only, by name and only what was asked for;
/// levels of log messages are shown and cannot be set; other brokers and unknown resources are refused.
#[test]
fn described() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path());
        config.set("test", "num.partitions", "3").expect("allowed");
        let broker = Broker::start(config).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        let names =
            ["num.partitions", "max.connections", "socket.request.max.bytes", "no.such", "log.retention.ms"];
        let (code, mut shown) = describe(&mut wire, BROKER, "1", &names).await;
        shown.sort_unstable();
        let value = |text: &str, source, read_only| (text.to_owned(), source, read_only);
        let wanted = vec![
            value("", 5, false),
            value("104857600", 5, true),
            value("20000", 5, false),
            value("3", 4, true),
        ];
        assert_eq!((code, shown), (0, wanted));
        assert_eq!(describe(&mut wire, BROKER, "", &names).await, (0, vec![]));
        let (code, levels) = describe(&mut wire, BROKER_LOGGER, "1", &["root"]).await;
        assert_eq!((code, levels.len(), levels[0].1, levels[0].2), (0, 1, 6, true));
        assert_eq!(alter(&mut wire, BROKER_LOGGER, "1", "root", Some("DEBUG")).await, 42);
        for (resource_type, resource, code) in [
            (BROKER, "2", 42),
            (BROKER_LOGGER, "", 42),
            (TOPIC, "none", 3),
            (TOPIC, "a/b", 17),
            (99, "x", 42),
        ] {
            assert_eq!(describe(&mut wire, resource_type, resource, &names).await, (code, vec![]));
        }
        assert_eq!(alter(&mut wire, BROKER, "1", "num.partitions", Some("4")).await, 42);
        broker.shutdown().await;
    });
}
