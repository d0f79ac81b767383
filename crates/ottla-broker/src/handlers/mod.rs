//! One file per API, or per few that are one matter, that the shell answers; the others go to the shard as they
//! are (see `dispatch`).

pub mod acls;
pub mod api_versions;
pub mod describe_cluster;
pub mod describe_configs;
pub mod describe_quorum;
pub mod describe_topic_partitions;
pub mod fetch;
pub mod find_coordinator;
pub mod list_config_resources;
pub mod list_offsets;
pub mod log_dirs;
pub mod metadata;
pub mod offset_for_leader_epoch;
pub mod produce;
pub mod replicas;

use crate::dispatch::Outcome;
use crate::limits::ADMIN_PARTITIONS_MAX;

/// Closes the connection when a request names more partitions than one answer should hold: some answers take many
/// times the bytes of their requests.
fn too_many_partitions(counts: impl Iterator<Item = usize>) -> Option<Outcome> {
    let named: usize = counts.sum();
    let reason = || format!("the request names {named} partitions, {ADMIN_PARTITIONS_MAX} are allowed");
    (named > ADMIN_PARTITIONS_MAX).then(|| Outcome::Close(reason()))
}
