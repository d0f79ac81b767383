//! DescribeCluster (key 60, versions 0-2; KIP-700, KIP-919, KIP-1073): the cluster's id and its one broker.
//!
//! Clients may ask a broker or a controller about itself; this is a broker. Errors: 114 asked as a controller, 115
//! asked as something else. No broker is ever fenced: the only one is the one that answers.

use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use ottla_protocol::types::Text;

use super::metadata::CLUSTER_OPERATIONS;
use crate::dispatch::{Incoming, Outcome, respond};
use crate::shared::Shared;

const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

/// Answers the request.
pub fn handle(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::DescribeClusterRequest::decode(reader, incoming.version)?;
    let refused = match request.endpoint_type {
        BROKERS => None,
        CONTROLLERS => {
            Some((ErrorCode::MismatchedEndpointType, "this is a broker's endpoint, not a controller's"))
        }
        _ => Some((ErrorCode::UnsupportedEndpointType, "endpoints are of brokers (1) or controllers (2)")),
    };
    let mut response = m::DescribeClusterResponse::default();
    if let Some((code, message)) = refused {
        (response.error_code, response.error_message) = (code.code(), Some(Text::from_static(message)));
        return Ok(respond::<m::DescribeClusterRequest>(&incoming, &response));
    }
    let node_id = shared.config.core.node_id;
    response.cluster_id = Text::from(shared.view.image().cluster_id.to_string());
    response.controller_id = node_id;
    response.brokers = vec![DescribeClusterBroker {
        broker_id: node_id,
        host: Text::from(shared.advertised.0.as_str()),
        port: i32::from(shared.advertised.1),
        ..Default::default()
    }];
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = CLUSTER_OPERATIONS;
    }
    Ok(respond::<m::DescribeClusterRequest>(&incoming, &response))
}
