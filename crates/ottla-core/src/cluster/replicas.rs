//! Replicas of a partition, as requests may ask for them: one, on this node.

/// Whether a partition may have these replicas. The error says why not.
pub fn check_replicas(node_id: i32, broker_ids: &[i32]) -> Result<(), String> {
    match broker_ids {
        [] => Err("a partition is assigned to no broker".into()),
        [broker_id] if *broker_id == node_id => Ok(()),
        _ => Err(match broker_ids.iter().find(|broker_id| **broker_id != node_id) {
            Some(unknown) => format!("a partition is assigned to broker {unknown}, which is unknown"),
            None => format!("a partition is assigned to broker {node_id} twice"),
        }),
    }
}
