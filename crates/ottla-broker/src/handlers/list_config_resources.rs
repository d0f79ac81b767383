//! ListConfigResources (key 74, versions 0 and 1; KIP-714, KIP-1142): what has settings that can be described.
//!
//! Version 0 lists client metrics, of which there are none. From version 1 on the types are named, none for all:
//! topics (2) and brokers (4) have settings here, and groups (32) for which something was set; loggers (8) and client
//! metrics (16) are known and there are none; another type is UNSUPPORTED_VERSION for the whole.

use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::list_config_resources_response::ConfigResource;
use ottla_protocol::types::Text;

use crate::dispatch::{Incoming, Outcome, respond};
use crate::shared::Shared;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;
/// Topics, brokers, loggers, client metrics, groups.
const KNOWN: [i8; 5] = [TOPIC, BROKER, 8, 16, GROUP];

/// Answers the request.
pub fn handle(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::ListConfigResourcesRequest::decode(reader, incoming.version)?;
    let wanted = request.resource_types;
    let mut response = m::ListConfigResourcesResponse::default();
    if !wanted.iter().all(|kind| KNOWN.contains(kind)) {
        response.error_code = ErrorCode::UnsupportedVersion.code();
    } else if incoming.version > 0 {
        let is_wanted = |kind: i8| wanted.is_empty() || wanted.contains(&kind);
        let resource = |resource_name, resource_type| ConfigResource {
            resource_name,
            resource_type,
            ..Default::default()
        };
        if is_wanted(BROKER) {
            response
                .config_resources
                .push(resource(Text::from(shared.config.core.node_id.to_string()), BROKER));
        }
        let image = shared.view.image();
        if is_wanted(GROUP) {
            let groups = image.group_configs().ids().map(|group| resource(group.clone(), GROUP));
            response.config_resources.extend(groups);
        }
        if is_wanted(TOPIC) {
            let topics = image.topics().into_iter().map(|topic| resource(topic.name.clone(), TOPIC));
            response.config_resources.extend(topics);
        }
    }
    Ok(respond::<m::ListConfigResourcesRequest>(&incoming, &response))
}
