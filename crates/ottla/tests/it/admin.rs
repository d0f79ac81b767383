//! The client's admin calls against its own broker, those that no command uses among them.

use std::collections::BTreeMap;

use ottla_client::admin::{
    AlterConfig, ConfigResource, ConfigSource, Election, FeatureUpgrade, GroupFilter, NewTopic, TopicRef,
};
use ottla_client::{Admin, TopicPartition};
use ottla_protocol::types::{Text, Uuid};

use crate::support::{Broker, block_on};

fn code<T: std::fmt::Debug>(result: Result<T, ottla_client::admin::AdminError>) -> &'static str {
    result.expect_err("refused").code().expect("by the broker").name()
}

/// Proves topics by name and by id in batches: each has its own result, a validation changes nothing, and what is
/// deleted by id is that topic and no other.
#[test]
fn topics_in_batches() {
    let broker = Broker::start();
    block_on(async {
        let admin = Admin::connect(broker.client()).await.expect("connected");
        let topics = [NewTopic::new("a", 2), NewTopic::new("b", -1), NewTopic::new("bad/name", 1)];
        for validate_only in [true, false] {
            let mut created = admin.create_topics(&topics, validate_only).await;
            assert_eq!(created.len(), 3);
            assert_eq!(
                code(created.remove("bad/name".as_bytes()).expect("its own")),
                "INVALID_TOPIC_EXCEPTION"
            );
            let made = created.values().all(Result::is_ok);
            assert!(made, "{validate_only}: {created:?}");
        }
        let refs =
            [TopicRef::name("a"), TopicRef::name("b"), TopicRef::name("none"), TopicRef::Id(Uuid([7; 16]))];
        let mut described = admin.describe_topics(&refs).await;
        assert_eq!(code(described.remove(&refs[2]).expect("its own")), "UNKNOWN_TOPIC_OR_PARTITION");
        assert_eq!(code(described.remove(&refs[3]).expect("its own")), "UNKNOWN_TOPIC_ID");
        let a = described.remove(&refs[0]).expect("its own").expect("described");
        assert_eq!((a.partitions.len(), a.partitions[1].in_sync.len(), a.is_internal), (2, 1, false));
        let by_id = admin.describe_topics(&[TopicRef::Id(a.topic_id)]).await;
        assert_eq!(by_id[&TopicRef::Id(a.topic_id)].as_ref().expect("described").name, "a");
        let counts = BTreeMap::from([(Text::from("a"), 5), (Text::from("b"), 1), (Text::from("none"), 2)]);
        let mut grown = admin.create_partitions(&counts, false).await;
        assert_eq!(code(grown.remove("b".as_bytes()).expect("its own")), "INVALID_PARTITIONS");
        assert_eq!(code(grown.remove("none".as_bytes()).expect("its own")), "UNKNOWN_TOPIC_OR_PARTITION");
        assert!(grown["a".as_bytes()].is_ok(), "{grown:?}");
        let deleted = admin.delete_topics(&[TopicRef::Id(a.topic_id), TopicRef::name("b")]).await;
        assert!(deleted.values().all(Result::is_ok), "{deleted:?}");
        admin.create_topic(&NewTopic::new("a", 1)).await.expect("made anew");
        let again = admin.delete_topics(&[TopicRef::Id(a.topic_id)]).await;
        assert_eq!(code(again.into_values().next().expect("one")), "UNKNOWN_TOPIC_ID");
        assert_eq!(admin.list_topics().await.expect("listed").iter().filter(|t| !t.is_internal).count(), 1);
    });
}

/// Proves settings in batches, changed one by one and replaced as a whole, and where values come from.
#[test]
fn settings_in_batches() {
    let broker = Broker::start();
    block_on(async {
        let admin = Admin::connect(broker.client()).await.expect("connected");
        admin.create_topic(&NewTopic::new("t", 1)).await.expect("created");
        let (topic, none) = (ConfigResource::Topic("t".into()), ConfigResource::Topic("none".into()));
        let set = vec![AlterConfig::set("retention.ms", "7"), AlterConfig::set("cleanup.policy", "compact")];
        let changes = BTreeMap::from([(topic.clone(), set.clone()), (none.clone(), set)]);
        let mut altered = admin.alter_configs_of(&changes, false).await;
        assert_eq!(code(altered.remove(&none).expect("its own")), "UNKNOWN_TOPIC_OR_PARTITION");
        altered.remove(&topic).expect("its own").expect("altered");
        let values = BTreeMap::from([(Text::from("retention.ms"), Text::from("9"))]);
        let replaced = admin.replace_configs(&BTreeMap::from([(topic.clone(), values)]), false).await;
        assert!(replaced.values().all(Result::is_ok), "{replaced:?}");
        let broker_resource = ConfigResource::Broker("1".into());
        let mut described = admin.describe_configs_of(&[topic.clone(), broker_resource.clone()]).await;
        let entries = described.remove(&topic).expect("its own").expect("described");
        let find = |name: &str| entries.iter().find(|entry| entry.name == name).expect("there");
        assert_eq!(find("retention.ms").value.as_ref().map(Text::as_str), Some("9"));
        assert_eq!(find("retention.ms").source, ConfigSource::Topic);
        assert_eq!(
            find("cleanup.policy").value.as_ref().map(Text::as_str),
            Some("delete"),
            "it was replaced"
        );
        assert!(!described.remove(&broker_resource).expect("its own").expect("described").is_empty());
        assert!(admin.list_config_resources().await.expect("listed").contains(&topic));
    });
}

/// Proves what a single broker says of its cluster: leaders are right, nothing is being moved, features move only
/// where they may.
#[test]
fn the_cluster_itself() {
    let broker = Broker::start();
    block_on(async {
        let admin = Admin::connect(broker.client()).await.expect("connected");
        admin.create_topic(&NewTopic::new("t", 1)).await.expect("created");
        let cluster = admin.describe_cluster().await.expect("described");
        assert_eq!(cluster.brokers.len(), 1);
        let (at, none) = (TopicPartition::new("t", 0), TopicPartition::new("none", 0));
        let mut elected = admin.elect_leaders(Election::Preferred, &[at.clone(), none.clone()]).await;
        assert_eq!(code(elected.remove(&at).expect("its own")), "ELECTION_NOT_NEEDED");
        assert_eq!(code(elected.remove(&none).expect("its own")), "UNKNOWN_TOPIC_OR_PARTITION");
        let own = cluster.brokers[0].node_id;
        for (replicas, expected) in [
            (Some(vec![own]), None),
            (Some(vec![own + 1]), Some("INVALID_REPLICA_ASSIGNMENT")),
            (None, Some("NO_REASSIGNMENT_IN_PROGRESS")),
        ] {
            let moved = admin.alter_reassignments(&BTreeMap::from([(at.clone(), replicas)])).await;
            let refused = moved[&at].as_ref().err().and_then(|error| error.code()).map(|code| code.name());
            assert_eq!(refused, expected);
        }
        assert!(admin.list_reassignments(None).await.expect("listed").is_empty());
        assert!(admin.list_reassignments(Some(std::slice::from_ref(&at))).await.expect("listed").is_empty());
        assert_eq!(admin.describe_quorum().await.expect("described").voters.len(), 1);
        let dirs = admin.describe_log_dirs(&[]).await;
        let dirs = dirs[&own].as_ref().expect("described");
        assert!(dirs.len() == 1 && dirs[0].partitions.contains_key(&at), "{dirs:?}");
        let features = admin.describe_features().await.expect("described");
        let level = |name: &str| features.iter().find(|f| f.name == name).and_then(|f| f.finalized);
        assert_eq!(level("transaction.version"), Some(2));
        let to = |level, upgrade| BTreeMap::from([(Text::from("transaction.version"), (level, upgrade))]);
        let down = admin.update_features(&to(1, FeatureUpgrade::Upgrade), true).await;
        assert_eq!(code(down), "INVALID_UPDATE_VERSION");
        admin.update_features(&to(1, FeatureUpgrade::SafeDowngrade), true).await.expect("it may");
        assert!(admin.list_groups(&GroupFilter::default()).await.expect("listed").is_empty());
        let fenced = admin.fence_producers(&["new".into()]).await;
        assert!(fenced["new".as_bytes()].is_ok(), "{fenced:?}");
    });
}
