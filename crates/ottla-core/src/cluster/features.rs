//! UpdateFeatures, versions 0 to 2 (KIP-584): the level at which the cluster runs a feature.
//!
//! Error 95 for everything that a level cannot be: an unknown feature or type of upgrade, a level that is not
//! supported or below 0, a lower one without saying so, a higher one as a downgrade; 42 a feature named twice.
//! All features change or none: before version 2 the answer names them one by one when they did.

use std::collections::BTreeSet;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::update_features_request::FeatureUpdateKey;
use ottla_protocol::messages::update_features_response::UpdatableFeatureResult;
use ottla_protocol::types::Text;

use super::{Features, SUPPORTED_FEATURES, records};
use crate::command::Context;
use crate::decision::Reply;
use crate::shard::Step;

const UPGRADE: i8 = 1;
const SAFE_DOWNGRADE: i8 = 2;
const UNSAFE_DOWNGRADE: i8 = 3;

/// Answers UpdateFeatures.
pub(crate) fn update_features(step: &mut Step<'_>, context: &Context, request: m::UpdateFeaturesRequest) {
    let mut names = BTreeSet::new();
    let twice = request.feature_updates.iter().find(|update| !names.insert(&update.feature));
    let features = step.state.cluster.features();
    let checked = match twice {
        Some(update) => {
            Err((ErrorCode::InvalidRequest, format!("feature {} is named twice", update.feature)))
        }
        None => request.feature_updates.iter().try_for_each(|update| {
            check(features, update, context.version).map_err(|reason| {
                let (name, level) = (&update.feature, update.max_version_level);
                (
                    ErrorCode::InvalidUpdateVersion,
                    format!("feature {name} cannot be set to {level}: {reason}"),
                )
            })
        }),
    };
    let mut response = m::UpdateFeaturesResponse { error_message: None, ..Default::default() };
    if let Err((code, message)) = checked {
        response.error_code = code.code();
        response.error_message = Some(format!("nothing was changed: {message}").into());
    } else {
        let changed = request.feature_updates.iter().filter(|update| {
            // Level 0 says that a feature is not in use, whether it has a record or not.
            features.level(&update.feature) != update.max_version_level
        });
        let new_records: Vec<_> =
            changed.map(|update| records::feature(&update.feature, update.max_version_level)).collect();
        if !new_records.is_empty() && !request.validate_only {
            step.append_control(&new_records);
        }
        let result = |update: FeatureUpdateKey| UpdatableFeatureResult {
            feature: update.feature,
            error_message: Some(Text::from_static("NONE")),
            ..Default::default()
        };
        if context.version < 2 {
            response.results = request.feature_updates.into_iter().map(result).collect();
        }
    }
    let rests_on = if step.has_entries() { step.position() } else { step.state.cluster.rests_on() };
    step.answer(context.token, Reply::UpdateFeatures(response), rests_on);
}

/// Whether a feature may be set to a level. The error says why not.
fn check(features: &Features, update: &FeatureUpdateKey, version: i16) -> Result<(), String> {
    let level = update.max_version_level;
    // Version 0 has a flag instead of a type: with it a level may go down, and still up.
    let (up, down) = match (version, update.upgrade_type) {
        (0, _) => (true, update.allow_downgrade),
        (_, UPGRADE) => (true, false),
        (_, SAFE_DOWNGRADE | UNSAFE_DOWNGRADE) => (false, true),
        _ => return Err("unknown type of upgrade".into()),
    };
    if level < 0 {
        return Err("a level is 0 or more".into());
    }
    let supported = SUPPORTED_FEATURES.iter().find(|(name, ..)| update.feature == *name);
    let Some((_, least, most)) = supported else { return Err("there is no such feature".into()) };
    if !(*least..=*most).contains(&level) {
        return Err(format!("this broker supports {least} to {most}"));
    }
    let now = features.level(&update.feature);
    if level < now && !down {
        return Err(format!("it is at {now}, and a downgrade must be asked for as one"));
    }
    if level > now && !up {
        return Err(format!("it is at {now}, which is lower"));
    }
    Ok(())
}
