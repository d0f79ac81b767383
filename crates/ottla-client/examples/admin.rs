//! Administration: a topic and a group from their creation to their end.
//!
//! `cargo run -p ottla-client --example admin -- 127.0.0.1:9092` (`--help` shows what else it takes)
//!
//! Every call is asked of the right brokers, again while the answer is "not now"; a call for many items has a result
//! for each. A call whose answer was lost and that is repeated does not take its own work for somebody else's.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use ottla_client::admin::{AlterConfig, ConfigResource, GroupFilter, NewTopic, OffsetSpec, TopicRef};
use ottla_client::{
    Admin, ClientSettings, ErrorCode, IsolationLevel, OffsetToCommit, Producer, ProducerSettings, Record,
    TopicPartition,
};

type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "usage: admin [BOOTSTRAP [NAME]]

BOOTSTRAP  HOST:PORT of any Kafka (default 127.0.0.1:9092)
NAME       of the topic and the group that are made and deleted again (default admin-PID)";

/// Longest the whole may take.
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
const PARTITIONS: i32 = 3;
const RECORDS: i64 = 90;
/// How far the group is said to have read in each partition.
const READ: i64 = 10;

/// The whole story, with a topic and a group called `name`.
pub(crate) async fn run(client: ClientSettings, name: &str) -> Result<(), Failure> {
    let admin = Admin::connect(client.clone()).await?;
    let cluster = admin.describe_cluster().await?;
    println!(
        "cluster {}: {} brokers, controller {}",
        cluster.cluster_id,
        cluster.brokers.len(),
        cluster.controller_id
    );
    create(&admin, name).await?;
    alter(&admin, name).await?;
    fill(client, name).await?;
    group(&admin, name).await?;
    end(&admin, name).await
}

/// Creates the topic, twice, and describes it.
async fn create(admin: &Admin, name: &str) -> Result<(), Failure> {
    let topic = NewTopic::new(name, PARTITIONS).config("retention.ms", "86400000");
    admin.create_topic(&topic).await?;
    match admin.create_topic(&topic).await {
        Err(error) if error.code() == Some(ErrorCode::TopicAlreadyExists) => {
            println!("as it should be: {error}")
        }
        other => return Err(format!("creating a topic twice: {other:?}").into()),
    }
    for (_, details) in admin.describe_topics(&[TopicRef::name(name)]).await {
        let details = details?;
        println!("{} has the id {}", details.name, details.topic_id);
        for partition in details.partitions {
            println!(
                "  {}: leader {}, in sync {:?}",
                partition.partition, partition.leader, partition.in_sync
            );
        }
    }
    Ok(())
}

/// Changes a setting of the topic and shows what differs from the defaults.
async fn alter(admin: &Admin, name: &str) -> Result<(), Failure> {
    let resource = ConfigResource::Topic(name.into());
    let changes = [AlterConfig::set("retention.ms", "3600000"), AlterConfig::set("compression.type", "zstd")];
    admin.alter_configs(&resource, &changes).await?;
    // brokers of a cluster learn of a change one after the other
    let settings = loop {
        let settings = admin.describe_configs(&resource).await?;
        let retention = settings.iter().find(|setting| setting.name == "retention.ms");
        if retention.and_then(|setting| setting.value.as_ref()).is_some_and(|value| *value == "3600000") {
            break settings;
        }
        pause().await;
    };
    for setting in settings.iter().filter(|setting| !setting.is_default) {
        let value = setting.value.as_ref().map_or("(secret)", |value| value.as_str());
        println!("{} = {value}, from {}", setting.name, setting.source.name());
    }
    Ok(())
}

/// Something to have offsets of.
async fn fill(client: ClientSettings, name: &str) -> Result<(), Failure> {
    let producer = Producer::connect(ProducerSettings::new(client)).await?;
    for number in 0..RECORDS {
        let partition = i32::try_from(number % i64::from(PARTITIONS))?;
        producer.send(Record::to(name).partition(partition).value(number.to_string())).await?;
    }
    Ok(producer.flush().await?)
}

/// Where the partitions begin or end.
async fn offsets(
    admin: &Admin,
    name: &str,
    spec: OffsetSpec,
) -> Result<BTreeMap<TopicPartition, i64>, Failure> {
    let wanted = (0..PARTITIONS).map(|partition| (TopicPartition::new(name, partition), spec)).collect();
    let mut offsets = BTreeMap::new();
    for (at, found) in admin.list_offsets(&wanted, IsolationLevel::ReadCommitted).await {
        offsets.insert(at, found?.map_or(-1, |found| found.offset));
    }
    Ok(offsets)
}

/// Gives a group without members its offsets, and tells how far it is behind.
async fn group(admin: &Admin, name: &str) -> Result<(), Failure> {
    let begins = offsets(admin, name, OffsetSpec::Earliest).await?;
    let ends = offsets(admin, name, OffsetSpec::Latest).await?;
    let read: Vec<_> =
        begins.iter().map(|(at, begin)| OffsetToCommit::new(at.clone(), begin + READ)).collect();
    for (at, committed) in admin.alter_group_offsets(&name.into(), &read).await {
        committed.map_err(|error| format!("{at}: {error}"))?;
    }
    let listed = admin.list_groups(&GroupFilter::default()).await?;
    let described = admin.describe_group(&name.into()).await?;
    println!(
        "{} groups; {name} is {}, with {} members",
        listed.len(),
        described.state,
        described.members.len()
    );
    let mut behind = 0;
    for committed in admin.group_offsets(&name.into()).await? {
        let (at, offset) = (committed.topic_partition, committed.offset.unwrap_or(0));
        println!("  {at}: {offset} of {}", ends[&at]);
        behind += ends[&at] - offset;
    }
    let expected = RECORDS - i64::from(PARTITIONS) * READ;
    if behind != expected {
        return Err(format!("the group is {behind} records behind, not {expected}").into());
    }
    Ok(())
}

/// Deletes the group, the records and the topic.
async fn end(admin: &Admin, name: &str) -> Result<(), Failure> {
    for (group, deleted) in admin.delete_groups(&[name.into()]).await {
        deleted.map_err(|error| format!("{group}: {error}"))?;
    }
    let ends = offsets(admin, name, OffsetSpec::Latest).await?;
    for (at, start) in admin.delete_records_of(&ends).await {
        println!("{at} begins at {} now", start?);
    }
    admin.delete_topic(&name.into()).await?;
    while admin.list_topics().await?.iter().any(|topic| topic.name == *name) {
        pause().await;
    }
    println!("{name} is gone");
    Ok(())
}

async fn pause() {
    let _ = tokio::time::timeout(PAUSE, std::future::pending::<()>()).await;
}

#[allow(dead_code)] // a test runs `run` instead
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.len() > 2 || arguments.iter().any(|argument| argument.starts_with('-')) {
        println!("{USAGE}");
        return Ok(());
    }
    let bootstrap = arguments.first().map_or("127.0.0.1:9092", String::as_str);
    let name = arguments.get(1).cloned().unwrap_or_else(|| format!("admin-{}", std::process::id()));
    tokio::time::timeout(LIMIT, run(ClientSettings::new(bootstrap)?, &name)).await?
}
