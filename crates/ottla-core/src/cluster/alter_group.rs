//! The part of IncrementalAlterConfigs and AlterConfigs that is about groups (resource type 32).
//!
//! Place in the walk: `alter` checks the form of a request and comes here with one resource of it; what it comes to
//! is a record of the control log.
//!
//! Errors: 40 unknown setting or invalid value, 42 no group is named or its id is too long, 44 too many groups with
//! settings.

use std::collections::BTreeMap;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::incremental_alter_configs_request::AlterConfigsResource;
use ottla_protocol::types::Text;

use super::alter::{DELETE, Refused, altered, invalid_request};
use super::config::{ConfigError, Definition, GROUP_ID_BYTES_MAX, GroupConfig, group_definition};
use super::records;
use crate::shard::{NewRecord, ShardState};

/// Settings whose names begin so are of kinds of groups that do not exist here.
const ABSENT_KINDS: [&str; 3] = ["errors.deadletterqueue.", "share.", "streams."];

/// What changes of a group's settings come to. `planned` records come before it from the same request.
pub(super) fn plan(
    state: &ShardState,
    resource: &AlterConfigsResource,
    planned: usize,
) -> Result<Vec<NewRecord>, Refused> {
    let group = &resource.resource_name;
    let there = state.cluster.group_configs().get(group);
    let mut overrides = there.map(|config| config.overrides().clone()).unwrap_or_default();
    for config in &resource.configs {
        if config.config_operation == DELETE {
            overrides.remove(&config.name); // also a name that nobody knows, as in Kafka
            continue;
        }
        let definition = definition(&config.name)?;
        let current = overrides.get(&config.name).map_or(definition.default, Text::as_str);
        if let Some(value) = altered(definition, current, config)? {
            overrides.insert(definition.name.into(), value);
        }
    }
    replace(state, group, overrides, planned)
}

/// What replacing a group's settings comes to: no record if they are those it has.
pub(super) fn replace(
    state: &ShardState,
    group: &Text,
    overrides: BTreeMap<Text, Text>,
    planned: usize,
) -> Result<Vec<NewRecord>, Refused> {
    if group.is_empty() {
        return Err(invalid_request("there are no settings of all groups"));
    }
    if group.len() > GROUP_ID_BYTES_MAX {
        return Err(invalid_request(format!("the id of a group has at most {GROUP_ID_BYTES_MAX} bytes")));
    }
    for name in overrides.keys() {
        definition(name)?;
    }
    let config = GroupConfig::new(overrides, &state.config)?;
    let (configs, groups_max) = (state.cluster.group_configs(), state.config.limits.group_configs_max);
    let there = configs.get(group);
    if there.map_or(config.overrides().is_empty(), |there| *there == config) {
        return Ok(Vec::new());
    }
    if there.is_none() && configs.len() + planned >= groups_max {
        let reason = format!("at most {groups_max} groups have settings of their own");
        return Err((ErrorCode::PolicyViolation, reason));
    }
    Ok(vec![records::group_config(group, &config)])
}

/// A setting of groups. A truthful broker does not take what nothing follows.
fn definition(name: &str) -> Result<&'static Definition, Refused> {
    group_definition(name).ok_or_else(|| {
        if ABSENT_KINDS.iter().any(|kind| name.starts_with(kind)) {
            let reason = format!("{name} is of share or streams groups, which do not exist here");
            return (ErrorCode::InvalidConfig, reason);
        }
        ConfigError::Unknown { name: name.into() }.into()
    })
}
