//! DescribeAcls, CreateAcls and DeleteAcls (keys 29 to 31, versions 1-3; KIP-140): there are no access rules.
//!
//! Every answer is SECURITY_DISABLED (54), as Kafka's without an authorizer: it tells tools that everybody may do
//! everything, and that rules would not hold. Create and delete are answered once per rule.

use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::create_acls_response::AclCreationResult;
use ottla_protocol::messages::delete_acls_response::DeleteAclsFilterResult;
use ottla_protocol::types::Text;

use crate::dispatch::{Incoming, Outcome, respond};

const REASON: Text = Text::from_static("this broker has no authorizer: there are no access rules");

/// Answers DescribeAcls.
pub fn describe(incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    m::DescribeAclsRequest::decode(reader, incoming.version)?;
    let response = m::DescribeAclsResponse {
        error_code: ErrorCode::SecurityDisabled.code(),
        error_message: Some(REASON),
        ..Default::default()
    };
    Ok(respond::<m::DescribeAclsRequest>(&incoming, &response))
}

/// Answers CreateAcls.
pub fn create(incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::CreateAclsRequest::decode(reader, incoming.version)?;
    let result = AclCreationResult {
        error_code: ErrorCode::SecurityDisabled.code(),
        error_message: Some(REASON),
        ..Default::default()
    };
    let results = vec![result; request.creations.len()];
    Ok(respond::<m::CreateAclsRequest>(&incoming, &m::CreateAclsResponse { results, ..Default::default() }))
}

/// Answers DeleteAcls.
pub fn delete(incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::DeleteAclsRequest::decode(reader, incoming.version)?;
    let result = DeleteAclsFilterResult {
        error_code: ErrorCode::SecurityDisabled.code(),
        error_message: Some(REASON),
        ..Default::default()
    };
    let filter_results = vec![result; request.filters.len()];
    let response = m::DeleteAclsResponse { filter_results, ..Default::default() };
    Ok(respond::<m::DeleteAclsRequest>(&incoming, &response))
}
