//! A member of a consumer group (KIP-848): heartbeats, and does at once what their answers say.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail};
use ottla_env::rng::{OsRng, Rng};
use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use ottla_protocol::types::{Text, Uuid};

use super::Agreement;
use super::wire::Wire;

const REBALANCE_TIMEOUT_MS: i32 = 300_000;

/// Lives until it is aborted; what goes wrong ends it, and so its group is never stable.
pub(super) async fn member(
    wire: Wire,
    group: String,
    number: usize,
    topic: (String, Uuid),
    agreement: Arc<Agreement>,
) {
    let mut member = Member { wire, group: Text::from(group), number, topic, owned: Vec::new(), agreement };
    if let Err(error) = member.live().await {
        tracing::error!(%error, "a member ended");
    }
}

struct Member {
    wire: Wire,
    group: Text,
    number: usize,
    topic: (String, Uuid),
    owned: Vec<i32>,
    agreement: Arc<Agreement>,
}

impl Member {
    async fn live(&mut self) -> Result<()> {
        let mut id = [0; 16];
        OsRng.fill(&mut id);
        let id = Text::from(Uuid(id).to_string());
        let mut epoch = 0;
        let mut tell_all = true;
        loop {
            let topics = TopicPartitions {
                topic_id: self.topic.1,
                partitions: self.owned.clone(),
                ..Default::default()
            };
            let owned = if self.owned.is_empty() { Vec::new() } else { vec![topics] };
            let request = m::ConsumerGroupHeartbeatRequest {
                group_id: self.group.clone(),
                member_id: id.clone(),
                member_epoch: epoch,
                rebalance_timeout_ms: if epoch == 0 { REBALANCE_TIMEOUT_MS } else { -1 },
                subscribed_topic_names: (epoch == 0).then(|| vec![Text::from(self.topic.0.as_str())]),
                topic_partitions: tell_all.then_some(owned),
                ..Default::default()
            };
            let response = self.wire.call(&request, 1).await?;
            match ErrorCode::from_code(response.error_code) {
                ErrorCode::None => {}
                other => bail!("ConsumerGroupHeartbeat: {other:?} {:?}", response.error_message),
            }
            epoch = response.member_epoch;
            tell_all = false;
            if let Some(assignment) = response.assignment {
                let owned: Vec<i32> =
                    assignment.topic_partitions.into_iter().flat_map(|topic| topic.partitions).collect();
                tell_all = owned != self.owned;
                self.agreement.total.fetch_add(owned.len(), Ordering::AcqRel);
                self.agreement.total.fetch_sub(self.owned.len(), Ordering::AcqRel);
                self.owned = owned;
            }
            let generation = usize::try_from(epoch).unwrap_or(0);
            self.agreement.generations[self.number].store(generation, Ordering::Release);
            if !tell_all {
                let interval = u64::try_from(response.heartbeat_interval_ms).unwrap_or(0).max(100);
                time::sleep(Duration::from_millis(interval)).await;
            }
        }
    }
}
