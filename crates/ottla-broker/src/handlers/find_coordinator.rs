//! FindCoordinator (key 10, versions 0-6): this broker coordinates every group and every transactional id.
//!
//! Key types: 0 group, 1 transactional id (KIP-98); others are INVALID_REQUEST. Version 4 and later name several
//! keys (KIP-699). An empty key is answered like any other, as Kafka does.

use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::find_coordinator_response::{Coordinator, FindCoordinatorResponse};
use ottla_protocol::types::Text;

use crate::dispatch::{Incoming, Outcome, respond};
use crate::shared::Shared;

/// Answers the request.
pub fn handle(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::FindCoordinatorRequest::decode(reader, incoming.version)?;
    let known = matches!(request.key_type, 0 | 1);
    let coordinator = |key: Text| match known {
        true => Coordinator {
            key,
            node_id: shared.config.core.node_id,
            host: Text::from(shared.advertised.0.as_str()),
            port: i32::from(shared.advertised.1),
            error_message: Some(Text::EMPTY),
            ..Default::default()
        },
        false => Coordinator {
            key,
            node_id: -1,
            port: -1,
            error_code: ErrorCode::InvalidRequest.code(),
            error_message: Some(Text::from_static("this key type has no coordinator here")),
            ..Default::default()
        },
    };
    let mut response = FindCoordinatorResponse::default();
    if incoming.version >= 4 {
        response.coordinators = request.coordinator_keys.into_iter().map(coordinator).collect();
    } else {
        let only = coordinator(request.key);
        response.error_code = only.error_code;
        response.error_message = if known { Some(Text::from_static("NONE")) } else { only.error_message };
        (response.node_id, response.host, response.port) = (only.node_id, only.host, only.port);
    }
    Ok(respond::<m::FindCoordinatorRequest>(&incoming, &response))
}
