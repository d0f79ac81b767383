//! Which versions and features the peer has: ApiVersions, asked once per connection.

use std::collections::BTreeMap;
use std::fmt;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse, Request};
use ottla_protocol::types::Text;

use super::Inner;
use crate::error::CallError;

/// A range of versions, both ends included.
///
/// ```
/// use ottla_client::Versions;
///
/// const FETCH: Versions = Versions::new(4, 17);
/// assert_eq!(FETCH.to_string(), "4 to 17");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Lowest.
    pub min: i16,
    /// Highest.
    pub max: i16,
}

impl Versions {
    /// From `min` to `max`.
    pub const fn new(min: i16, max: i16) -> Self {
        Self { min, max }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// A finalized feature level.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// let found = admin.cluster().finalized("transaction.version").await?.expect("Kafka 4 and Ottla have it");
/// println!("transactions in version {}, decided in epoch {}", found.level, found.epoch);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finalized {
    /// The level.
    pub level: i16,
    /// Grows with each change of any feature; levels of the highest epoch count.
    pub epoch: i64,
}

/// What a peer offers.
#[derive(Clone, Debug)]
pub(super) struct Offered {
    versions: BTreeMap<i16, Versions>,
    features: BTreeMap<Text, i16>,
    features_epoch: i64,
}

/// The version ApiVersions is first asked in; a peer without it answers in version 0 and says so.
const FIRST_VERSION: i16 = 4;

impl Offered {
    pub(super) fn nothing() -> Self {
        Self { versions: BTreeMap::new(), features: BTreeMap::new(), features_epoch: -1 }
    }

    fn from_answer(answer: ApiVersionsResponse) -> Self {
        let versions =
            answer.api_keys.iter().map(|api| (api.api_key, Versions::new(api.min_version, api.max_version)));
        let features = answer.finalized_features.iter().map(|f| (f.name.detached(), f.max_version_level));
        Self {
            versions: versions.collect(),
            features: if answer.finalized_features_epoch >= 0 { features.collect() } else { BTreeMap::new() },
            features_epoch: answer.finalized_features_epoch,
        }
    }

    pub(super) fn finalized(&self, feature: &str) -> Option<Finalized> {
        let level = *self.features.get(feature.as_bytes())?;
        Some(Finalized { level, epoch: self.features_epoch })
    }

    /// The highest version that we have, the caller can use and the peer serves; else what the peer offers.
    pub(super) fn version<R: Request>(&self, usable: Versions) -> Result<i16, String> {
        let Some(offered) = self.versions.get(&R::API.code()) else {
            return Err("no version of it".to_owned());
        };
        let highest = offered.max.min(usable.max).min(R::MAX_VERSION);
        let lowest = offered.min.max(usable.min).max(R::MIN_VERSION);
        if highest >= lowest { Ok(highest) } else { Err(offered.to_string()) }
    }
}

/// Asks the peer what it offers.
pub(super) async fn negotiate(inner: &Inner) -> Result<Offered, CallError> {
    let request = ApiVersionsRequest {
        client_software_name: Text::from_static("ottla-client"),
        client_software_version: Text::from_static(env!("CARGO_PKG_VERSION")),
        ..ApiVersionsRequest::default()
    };
    let mut version = FIRST_VERSION;
    loop {
        let timeout = inner.settings.request_timeout.min(inner.settings.connection_setup_timeout);
        let mut pending = inner.start(&request, version, timeout).await?;
        let answer = pending.wait().await?;
        match ErrorCode::from_code(answer.error_code) {
            ErrorCode::None => return Ok(Offered::from_answer(answer)),
            ErrorCode::UnsupportedVersion if version > 0 => {
                let offered =
                    answer.api_keys.iter().find(|api| api.api_key == ApiVersionsRequest::API.code());
                version = offered.map_or(0, |api| api.max_version.clamp(0, version - 1));
            }
            other => {
                return Err(CallError::Protocol {
                    address: inner.shared.address.clone(),
                    api: "ApiVersionsRequest",
                    detail: format!("error {other}"),
                });
            }
        }
    }
}
