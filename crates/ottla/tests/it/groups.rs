//! Groups on the command line, with and without members.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_client::admin::{NewTopic, OffsetSpec};
use ottla_client::{
    Admin, IsolationLevel, OffsetToCommit, ProducerSettings, Record, TopicPartition, TransactionalProducer,
    TransactionalSettings,
};
use ottla_protocol::types::Text;
use serde_json::{Value, json};

use crate::support::{Broker, block_on};

/// A topic `t` with two partitions of three records each, and a group `g` that has read one of each.
async fn set_up(broker: &Broker) -> Admin {
    let admin = Admin::connect(broker.client()).await.expect("connected");
    admin.create_topic(&NewTopic::new("t", 2)).await.expect("created");
    let lines: String = (0..6)
        .map(|number| {
            format!(
                "{{\"value\":\"{number}\",\"partition\":{},\"timestamp\":{}}}\n",
                number % 2,
                1000 + number
            )
        })
        .collect();
    broker.ok(&["produce", "t", "--format", "json"], &lines);
    let offsets = [0, 1].map(|partition| OffsetToCommit::new(TopicPartition::new("t", partition), 1));
    for result in admin.alter_group_offsets(&Text::from("g"), &offsets).await.into_values() {
        result.expect("set");
    }
    admin
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Proves that lag is told in its two parts: what could be read by now, and what an open transaction hides.
#[test]
fn lag_in_two_parts() {
    let broker = Broker::start();
    block_on(async {
        set_up(&broker).await;
        let settings = TransactionalSettings::new(broker.client(), "x")
            .producer(ProducerSettings::new(broker.client()).linger(Duration::ZERO));
        let mut producer = TransactionalProducer::init(settings).await.expect("taken over");
        let transaction = producer.begin().await.expect("begun");
        for value in ["a", "b", "c", "d"] {
            transaction.send(Record::to("t").partition(1).value(value)).await.expect("taken");
        }
        transaction.flush().await.expect("written");
        let group: Value =
            serde_json::from_str(&broker.ok(&["group", "describe", "g", "--json"], "")).expect("JSON");
        assert_eq!((&group["state"], &group["members"]), (&json!("Empty"), &json!([])));
        let lags: Vec<_> = group["partitions"]
            .as_array()
            .expect("partitions")
            .iter()
            .map(|p| (p["behind"].clone(), p["hidden"].clone()))
            .collect();
        assert_eq!(lags, [(json!(2), json!(0)), (json!(2), json!(4))]);
        let text = broker.ok(&["group", "describe", "g"], "");
        assert!(text.contains("4 records behind, 4 hidden by open transactions"), "{text}");
        transaction.abort().await.expect("aborted");
    });
    assert!(broker.ok(&["group", "list"], "").contains('g'));
    assert_eq!(objects(&broker.ok(&["group", "list", "--state", "Stable", "--json"], "")).len(), 0);
    let nobody = broker.ottla(&["group", "describe", "nobody"], "");
    assert!(nobody.code == 1 && nobody.stderr.contains("GROUP_ID_NOT_FOUND"), "{nobody:?}");
}

/// Proves that a reset only shows what it would do until it is told to, that every way of naming a place gives the
/// right offset, and that offsets stay within the partition.
#[test]
fn reset() {
    let broker = Broker::start();
    block_on(set_up(&broker));
    let reset = |arguments: &[&str]| {
        let base = ["group", "reset", "g", "--json", "--topic", "t"];
        let changes = objects(&broker.ok(&[&base[..], arguments].concat(), ""));
        changes.iter().map(|change| change["new_offset"].as_i64().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(reset(&["--to-latest"]), [3, 3]);
    let committed = || {
        let offsets = objects(&broker.ok(&["group", "offsets", "g", "--json"], ""));
        offsets.iter().map(|offset| offset["offset"].as_i64().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(committed(), [1, 1], "it was only shown");
    assert_eq!(reset(&["--to-earliest"]), [0, 0]);
    assert_eq!(reset(&["--to-offset", "2"]), [2, 2]);
    assert_eq!(reset(&["--to-offset", "99"]), [3, 3]);
    assert_eq!(reset(&["--shift-by", "-5"]), [0, 0]);
    assert_eq!(reset(&["--shift-by", "1"]), [2, 2]);
    assert_eq!(reset(&["--to-datetime", "1002"]), [1, 1]);
    assert_eq!(reset(&["--to-datetime", "1970-01-01T00:00:01.003Z"]), [2, 1]);
    assert_eq!(reset(&["--by-duration", "1h"]), [3, 3], "nothing is that young");
    assert_eq!(reset(&["--to-current"]), [1, 1]);
    assert_eq!(reset(&["--to-latest", "--execute"]), [3, 3]);
    assert_eq!(committed(), [3, 3]);
    broker.ok(&["group", "reset", "new", "--topic", "t/1", "--to-earliest", "--execute"], "");
    let nothing = broker.ottla(&["group", "reset", "newer", "--topic", "t", "--shift-by", "1"], "");
    assert!(nothing.code == 2 && nothing.stderr.contains("nothing is committed"), "{nothing:?}");
    assert_eq!(broker.ottla(&["group", "reset", "g", "--topic", "t"], "").code, 2, "to where?");
    broker.ok(&["group", "delete-offsets", "g", "t/0"], "");
    assert_eq!(committed(), [3]);
    broker.ok(&["group", "delete", "g", "new"], "");
    assert_eq!(broker.ottla(&["group", "describe", "g"], "").code, 1);
}

/// Proves that a group with a member is neither reset nor deleted, with a text that says why and exit code 3. The
/// member is a consumer group's (KIP-848), made with the requests themselves.
#[test]
fn members_are_respected() {
    use ottla_client::{Connection, Versions};
    use ottla_protocol::messages::ConsumerGroupHeartbeatRequest;

    let broker = Broker::start();
    block_on(async {
        let admin = set_up(&broker).await;
        let settings = std::sync::Arc::new(broker.client());
        let connection = Connection::connect(&broker.address, settings).await.expect("connected");
        let mut heartbeat = ConsumerGroupHeartbeatRequest {
            group_id: "g".into(),
            member_id: "AAAAAAAAAAAAAAAAAAAAAQ".into(),
            member_epoch: 0,
            rebalance_timeout_ms: 60_000,
            subscribed_topic_names: Some(vec!["t".into()]),
            topic_partitions: Some(Vec::new()),
            ..ConsumerGroupHeartbeatRequest::default()
        };
        let joined = connection.call(&heartbeat, Versions::new(1, 1)).await.expect("answered");
        assert_eq!(joined.error_code, 0, "{joined:?}");
        let group = admin.describe_group(&Text::from("g")).await.expect("described");
        assert_eq!((group.group_type.name(), group.members.len()), ("consumer", 1));
        let refused = broker.ottla(&["group", "reset", "g", "--topic", "t", "--to-latest", "--execute"], "");
        assert!(refused.code == 3 && refused.stderr.contains("Stop"), "{refused:?}");
        let refused = broker.ottla(&["group", "delete", "g"], "");
        assert!(refused.code == 1 && refused.stderr.contains("NON_EMPTY_GROUP"), "{refused:?}");
        let refused = broker.ottla(&["group", "delete-offsets", "g", "t"], "");
        assert!(refused.code == 1 && refused.stderr.contains("GROUP_SUBSCRIBED_TO_TOPIC"), "{refused:?}");
        let shown: Value =
            serde_json::from_str(&broker.ok(&["group", "describe", "g", "--json"], "")).expect("JSON");
        assert_eq!(shown["members"][0]["target"], json!(["t/0", "t/1"]), "{shown}");
        heartbeat.member_epoch = -1;
        heartbeat.member_id = joined.member_id.unwrap_or_else(|| "AAAAAAAAAAAAAAAAAAAAAQ".into());
        connection.call(&heartbeat, Versions::new(1, 1)).await.expect("answered");
        broker.ok(&["group", "delete", "g"], "");
    });
}

/// Proves every name for an offset against a real broker, per item: one that does not exist is its own error.
#[test]
fn offsets_by_name() {
    let broker = Broker::start();
    block_on(async {
        let admin = set_up(&broker).await;
        let at = TopicPartition::new("t", 0);
        for (spec, offset) in [
            (OffsetSpec::Earliest, Some(0)),
            (OffsetSpec::Latest, Some(3)),
            (OffsetSpec::MaxTimestamp, Some(2)),
            (OffsetSpec::EarliestLocal, Some(0)),
            (OffsetSpec::LatestTiered, None),
            (OffsetSpec::Timestamp(1001), Some(1)),
            (OffsetSpec::Timestamp(5000), None),
        ] {
            let specs = BTreeMap::from([(at.clone(), spec), (TopicPartition::new("t", 9), spec)]);
            let found = admin.list_offsets(&specs, IsolationLevel::ReadUncommitted).await;
            let own = found[&at].as_ref().expect("found").map(|found| found.offset);
            assert_eq!(own, offset, "{spec:?}");
            assert!(found[&TopicPartition::new("t", 9)].is_err(), "there is no such partition");
        }
    });
}
