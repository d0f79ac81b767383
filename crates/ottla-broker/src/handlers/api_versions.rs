//! ApiVersions (key 18, versions 0-5): what is served here, and the features (KIP-511, KIP-584).
//!
//! An unknown version is answered in version 0 with UNSUPPORTED_VERSION and, as Kafka does, the versions of
//! ApiVersions alone, so that the client asks again. Supported features with minimum 0 are
//! left out below version 4, since older clients refuse them. Version 3 and later carry names that must be
//! well formed.

use ottla_core::cluster::SUPPORTED_FEATURES;
use ottla_protocol::api::ApiKey;
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::api_versions_response::{
    ApiVersion, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey,
};
use ottla_protocol::types::Text;

use crate::dispatch::{Incoming, Outcome, SERVED, encode, respond};
use crate::net::connection::Answer;
use crate::shared::Shared;

/// Answers the request.
pub fn handle(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::ApiVersionsRequest::decode(reader, incoming.version)?;
    let mut response = ApiVersionsResponse { api_keys: served(), ..Default::default() };
    if incoming.version >= 3
        && !(is_name(&request.client_software_name) && is_name(&request.client_software_version))
    {
        response = ApiVersionsResponse { error_code: ErrorCode::InvalidRequest.code(), ..Default::default() };
        return Ok(respond::<m::ApiVersionsRequest>(&incoming, &response));
    }
    let image = shared.view.image();
    let supported = SUPPORTED_FEATURES.iter().filter(|(_, min, _)| incoming.version >= 4 || *min > 0);
    response.supported_features = supported
        .map(|(name, min, max)| SupportedFeatureKey {
            name: Text::from_static(name),
            min_version: *min,
            max_version: *max,
            ..Default::default()
        })
        .collect();
    response.finalized_features_epoch = image.features.epoch();
    let finalized = image.features.finalized().filter(|(_, level)| *level > 0);
    response.finalized_features = finalized
        .map(|(name, level)| FinalizedFeatureKey {
            name: name.clone(),
            max_version_level: level,
            min_version_level: level,
            ..Default::default()
        })
        .collect();
    Ok(respond::<m::ApiVersionsRequest>(&incoming, &response))
}

/// The answer to a version that does not exist (KIP-511): version 0, with the versions of this API that do.
pub fn unsupported(incoming: &Incoming) -> Outcome {
    let response = ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: vec![row(ApiKey::ApiVersions)],
        ..Default::default()
    };
    match encode(&response, incoming.api, 0, incoming.correlation_id) {
        Some(outgoing) => Outcome::Answer(Answer::Now(outgoing)),
        None => Outcome::Close("the answer cannot be encoded".to_owned()),
    }
}

fn served() -> Vec<ApiVersion> {
    SERVED.iter().map(|key| row(*key)).collect()
}

fn row(key: ApiKey) -> ApiVersion {
    let api = key.api();
    ApiVersion { api_key: key.code(), min_version: api.min, max_version: api.max, ..Default::default() }
}

/// Letters, digits, `.` and `-`, beginning and ending with a letter or digit.
fn is_name(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-')
}
