//! The topics of an application: inputs that must be there, and internal ones that it makes.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_client::admin::{AdminError, NewTopic};
use ottla_client::{Admin, ClusterError, ErrorCode, Text};
use ottla_env::time;

use super::AppError;
use crate::topology::{InternalKind, InternalPartitions, Plan, Topology};

/// Longest until all brokers know a topic that was just made.
const KNOWN_MAX: Duration = Duration::from_secs(30);
const KNOWN_PAUSE: Duration = Duration::from_millis(50);

/// Reads the numbers of partitions of the inputs and makes the internal topics that are missing.
pub(super) async fn prepare(
    admin: &Admin,
    topology: &Topology,
    replication_factor: i16,
) -> Result<Plan, AppError> {
    let mut external = BTreeMap::new();
    for topic in topology.external_inputs() {
        let found = admin.describe_topic(&Text::from(topic)).await;
        let description = match found {
            Err(AdminError::Cluster(ClusterError::NoSuchTopic { .. })) => {
                return Err(AppError::NoInput { topic: topic.to_owned() });
            }
            found => found?,
        };
        external.insert(topic.to_owned(), description.partition_count);
    }
    let plan = topology.plan(&external)?;
    for internal in &plan.internal {
        make(admin, internal, replication_factor).await?;
    }
    Ok(plan)
}

async fn make(admin: &Admin, internal: &InternalPartitions, replication_factor: i16) -> Result<(), AppError> {
    let name = Text::from(internal.topic.name.as_str());
    let mut topic = NewTopic::new(name.clone(), internal.partitions);
    topic.replication_factor = replication_factor;
    for (setting, value) in configs(&internal.topic.kind) {
        topic = topic.config(setting, value);
    }
    match admin.create_topic(&topic).await {
        Ok(()) => tracing::info!(topic = %name, partitions = internal.partitions, "made an internal topic"),
        Err(AdminError::Refused { code: ErrorCode::TopicAlreadyExists, .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let there = partitions_of(admin, &name).await?;
    if there != internal.partitions {
        return Err(AppError::InternalTopic {
            topic: internal.topic.name.clone(),
            partitions: there,
            needed: internal.partitions,
        });
    }
    Ok(())
}

/// Partitions of a topic that is there: a broker may hear of a new one a moment after it was made.
async fn partitions_of(admin: &Admin, name: &Text) -> Result<i32, AppError> {
    let deadline = time::now() + KNOWN_MAX;
    loop {
        match admin.describe_topic(name).await {
            Err(AdminError::Cluster(ClusterError::NoSuchTopic { .. })) if time::now() < deadline => {
                time::sleep(KNOWN_PAUSE).await;
            }
            found => return Ok(found?.partition_count),
        }
    }
}

fn configs(kind: &InternalKind) -> Vec<(&'static str, String)> {
    match kind {
        // emptied by the application itself, up to what was committed
        InternalKind::Repartition => {
            vec![("cleanup.policy", "delete".into()), ("retention.ms", "-1".into())]
        }
        InternalKind::Changelog { compact, delete, retention_ms } => {
            let policy = match (compact, delete) {
                (true, true) => "compact,delete",
                (false, true) => "delete",
                (_, false) => "compact",
            };
            let retention =
                retention_ms.filter(|_| *delete).map_or_else(|| "-1".to_owned(), |ms| ms.to_string());
            vec![("cleanup.policy", policy.into()), ("retention.ms", retention)]
        }
    }
}
