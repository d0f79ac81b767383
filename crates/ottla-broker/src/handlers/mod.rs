//! One file per API that the shell answers; the others go to the shard as they are (see `dispatch`).

pub mod api_versions;
pub mod describe_configs;
pub mod fetch;
pub mod find_coordinator;
pub mod list_offsets;
pub mod metadata;
pub mod produce;
