//! Topics, settings and groups by `Admin`.

use std::collections::BTreeMap;

use ottla_client::admin::{AdminError, AlterConfig, ConfigResource, GroupFilter, NewTopic};
use ottla_client::{Codec, OffsetToCommit};
use ottla_protocol::error::ErrorCode;

use super::harness::{Failure, POLL, Suite, check, first, name, until, values};

async fn is_listed(suite: &Suite, topic: &str) -> Result<bool, AdminError> {
    Ok(suite.admin.list_topics().await?.iter().any(|listed| listed.name == *topic))
}

async fn partition_count(suite: &Suite, topic: &str) -> Result<i32, AdminError> {
    Ok(suite.admin.describe_topic(&topic.into()).await?.partition_count)
}

/// A topic is made once, grows, and goes.
pub(crate) async fn topic(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(3, &[]).await?;
    let count = partition_count(suite, &topic).await?;
    check(count == 3, || format!("partitions: {count}"))?;
    match suite.admin.create_topic(&NewTopic::new(topic.as_str(), 1)).await {
        Err(error) if error.code() == Some(ErrorCode::TopicAlreadyExists) => {}
        Err(error) => return Err(format!("creating twice gave {error}").into()),
        Ok(()) => return Err("creating a topic twice succeeded".into()),
    }
    let counts = BTreeMap::from([(topic.as_str().into(), 5)]);
    for grown in suite.admin.create_partitions(&counts, false).await.into_values() {
        grown?;
    }
    until(15, "5 partitions", async || Ok(partition_count(suite, &topic).await? == 5)).await?;
    check(is_listed(suite, &topic).await?, || "not listed".to_owned())?;
    suite.admin.delete_topic(&topic.as_str().into()).await?;
    until(15, "end of the topic", async || Ok(!is_listed(suite, &topic).await?)).await
}

async fn retention(suite: &Suite, topic: &str) -> Result<Option<String>, AdminError> {
    let entries = suite.admin.describe_configs(&ConfigResource::Topic(topic.into())).await?;
    let entry = entries.into_iter().find(|entry| entry.name == "retention.ms");
    Ok(entry.and_then(|entry| entry.value).map(|value| value.to_string()))
}

/// A setting is as it was given, and can be altered.
pub(crate) async fn config(suite: &Suite) -> Result<(), Failure> {
    let topic = suite.topic(1, &[("retention.ms", "1234567")]).await?;
    let found = retention(suite, &topic).await?;
    check(found.as_deref() == Some("1234567"), || format!("retention.ms at creation: {found:?}"))?;
    let resource = ConfigResource::Topic(topic.as_str().into());
    suite.admin.alter_configs(&resource, &[AlterConfig::set("retention.ms", "7654321")]).await?;
    until(15, "altered value", async || Ok(retention(suite, &topic).await?.as_deref() == Some("7654321")))
        .await
}

async fn group_is_listed(suite: &Suite, group: &str) -> Result<bool, AdminError> {
    let listed = suite.admin.list_groups(&GroupFilter::default()).await?;
    Ok(listed.iter().any(|listed| listed.group_id == *group))
}

async fn state(suite: &Suite, group: &str) -> Result<String, AdminError> {
    Ok(suite.admin.describe_group(&group.into()).await?.state.to_lowercase())
}

/// A group is listed and described with and without a member, and can be deleted without.
pub(crate) async fn groups(suite: &Suite) -> Result<(), Failure> {
    let (topic, group) = (suite.topic(1, &[]).await?, name("g"));
    suite.fill(&topic, &values(3, "value"), Codec::None).await?;
    let mut consumer = suite.member(&group, &topic).await?;
    until(30, "records", async || Ok(!consumer.poll(POLL).await?.is_empty())).await?;
    consumer.commit_offsets(&[OffsetToCommit::new(first(&topic), 3)]).await?;
    check(group_is_listed(suite, &group).await?, || "group not listed".to_owned())?;
    let found = state(suite, &group).await?;
    check(found == "stable", || format!("state with a member: {found}"))?;
    consumer.close().await?;
    until(20, "empty group", async || Ok(state(suite, &group).await? == "empty")).await?;
    for deleted in suite.admin.delete_groups(&[group.as_str().into()]).await.into_values() {
        deleted?;
    }
    check(!group_is_listed(suite, &group).await?, || "group still listed".to_owned())
}

/// A topic that is not there is said to be unknown.
pub(crate) async fn unknown_topic(suite: &Suite) -> Result<(), Failure> {
    match suite.admin.delete_topic(&name("nosuch").into()).await {
        Err(error) if error.code() == Some(ErrorCode::UnknownTopicOrPartition) => Ok(()),
        Err(error) => Err(format!("unexpected error {error}").into()),
        Ok(()) => Err("no error".into()),
    }
}
