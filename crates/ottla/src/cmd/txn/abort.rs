//! `ottla txn abort`: ends a transaction by force, but only the one that was looked at.
//!
//! Without a token it shows what would be aborted, and a token made from that very state: producer id, epoch, start,
//! and per partition where the transaction begins and the last sequence. With a token it looks again; when anything
//! has moved meanwhile, nothing is done. What moves between that look and the abort is refused by the broker: the
//! request names producer id and epoch, and is in vain once the id has gone on to others. (A producer of protocol
//! version 1 keeps its epoch from one transaction to the next: for it alone a moment stays.)

use anyhow::Result;
use clap::Args;
use ottla_client::admin::{AbortTransaction, ProducerState, TransactionDescription};
use ottla_client::{Admin, TopicPartition};
use ottla_env::clock::{Clock, OsClock};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;
use serde_json::json;

use super::{description_json, is_open};
use crate::cli::{Unsafe, Usage, partition};
use crate::{output, text};

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla txn abort billing-7                                 shows the transaction, and a token
  ottla txn abort billing-7 --token 5f0c3a9be2d14477        fences its producer off, aborts that
  ottla txn abort --partition orders/2 --producer-id 4011   the same when no coordinator knows it

Exit code 3: refused, because the transaction is not the one that the token was made from.")]
pub(super) struct Options {
    /// The transactional id: its producer is fenced off and what is open is aborted
    #[arg(required_unless_present = "partition", conflicts_with = "partition")]
    transactional_id: Option<String>,
    /// For a transaction that no coordinator knows: where it hangs
    #[arg(long, value_parser = partition, value_name = "TOPIC/PARTITION", requires = "producer_id")]
    partition: Option<TopicPartition>,
    /// The producer that holds it open
    #[arg(long, requires = "partition")]
    producer_id: Option<i64>,
    /// The token that was shown with the transaction
    #[arg(long)]
    token: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) async fn run(admin: &Admin, options: Options) -> Result<()> {
    let Options { transactional_id, partition, producer_id, token, json } = options;
    match (transactional_id, partition, producer_id) {
        (Some(id), _, _) => known(admin, &Text::from(id), token, json).await,
        (None, Some(at), Some(producer_id)) => hanging(admin, at, producer_id, token, json).await,
        _ => Err(Usage("give a transactional id, or --partition and --producer-id".to_owned()).into()),
    }
}

/// FNV-1a over the words of a state: short, and another one for any other state but by accident.
fn token_of(words: &[String]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in words.iter().flat_map(|word| word.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// Where a transaction stands on a partition.
struct OnPartition {
    at: TopicPartition,
    /// Absent when it has written nothing there yet.
    producer: Option<ProducerState>,
}

impl OnPartition {
    fn word(&self) -> String {
        match &self.producer {
            Some(p) => format!(
                "{}@{:?}#{}:{}",
                self.at, p.transaction_start_offset, p.last_sequence, p.producer_epoch
            ),
            None => format!("{}@-", self.at),
        }
    }
}

/// A transaction that its coordinator knows.
async fn known(admin: &Admin, id: &Text, given: Option<String>, json: bool) -> Result<()> {
    let found = admin.describe_transaction(id).await?;
    if found.state != "Ongoing" {
        let now = format!("transactional id `{id}` has no open transaction (it is {})", found.state);
        return match given {
            Some(_) => Err(Unsafe(format!("{now}; nothing was done")).into()),
            None if json => output::json(&json!({ "transaction": description_json(&found), "token": null })),
            None => output::line(&now),
        };
    }
    let places = places(admin, &found).await?;
    let token = token_of(&words(&found, &places));
    let Some(given) = given else { return show(&found, &places, &token, json) };
    if given != token {
        return Err(moved(&format!("transactional id `{id}`")));
    }
    match admin.fence_holder(id, found.producer_id, found.producer_epoch).await {
        Ok(_) => {}
        Err(error)
            if matches!(error.code(), Some(ErrorCode::ProducerFenced | ErrorCode::InvalidProducerEpoch)) =>
        {
            return Err(moved(&format!("transactional id `{id}`")));
        }
        Err(error) => return Err(error.into()),
    }
    if json {
        return output::json(&json!({ "transaction": description_json(&found), "aborted": true }));
    }
    output::note(&format!("the transaction of `{id}` is aborted and its producer is fenced off"));
    Ok(())
}

fn moved(what: &str) -> anyhow::Error {
    Unsafe(format!(
        "{what} has moved on since the token was made, so nothing was aborted; look again without --token"
    ))
    .into()
}

/// Where the transaction stands on each of its partitions.
async fn places(admin: &Admin, found: &TransactionDescription) -> Result<Vec<OnPartition>> {
    let mut places = Vec::new();
    for (at, producers) in admin.describe_producers_of(&found.partitions).await {
        let producer = producers?.into_iter().find(|producer| {
            producer.producer_id == found.producer_id && producer.transaction_start_offset.is_some()
        });
        places.push(OnPartition { at, producer });
    }
    Ok(places)
}

fn words(found: &TransactionDescription, places: &[OnPartition]) -> Vec<String> {
    let mut words = vec![
        found.transactional_id.to_string(),
        found.producer_id.to_string(),
        found.producer_epoch.to_string(),
        found.start_time_ms.to_string(),
    ];
    words.extend(places.iter().map(OnPartition::word));
    words
}

fn place_json(place: &OnPartition) -> serde_json::Value {
    json!({
        "topic": place.at.topic.as_str(),
        "partition": place.at.partition,
        "start_offset": place.producer.as_ref().and_then(|p| p.transaction_start_offset),
        "last_sequence": place.producer.as_ref().map(|p| p.last_sequence),
    })
}

fn show(found: &TransactionDescription, places: &[OnPartition], token: &str, json: bool) -> Result<()> {
    if json {
        return output::json(&json!({
            "transaction": description_json(found),
            "on": places.iter().map(place_json).collect::<Vec<_>>(),
            "token": token,
        }));
    }
    assert!(is_open(found), "only an open transaction is shown for abort");
    let age = text::duration_ms(OsClock.wall_ms() - found.start_time_ms);
    output::line(&format!(
        "transaction of `{}`: producer {}, epoch {}, open for {age}",
        found.transactional_id, found.producer_id, found.producer_epoch
    ))?;
    let rows: Vec<_> = places.iter().map(place_row).collect();
    output::table(&["PARTITION", "FROM OFFSET", "LAST SEQUENCE"], &rows)?;
    output::line(&format!(
        "nothing was done; to abort exactly this:\n  ottla txn abort {} --token {token}",
        found.transactional_id
    ))
}

fn place_row(place: &OnPartition) -> Vec<String> {
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    vec![
        place.at.to_string(),
        number(place.producer.as_ref().and_then(|p| p.transaction_start_offset)),
        number(place.producer.as_ref().map(|p| i64::from(p.last_sequence))),
    ]
}

/// A transaction that hangs on one partition.
async fn hanging(
    admin: &Admin,
    at: TopicPartition,
    producer_id: i64,
    given: Option<String>,
    json: bool,
) -> Result<()> {
    let producers = admin.describe_producers(&at).await?;
    let found = producers
        .into_iter()
        .find(|producer| producer.producer_id == producer_id && producer.transaction_start_offset.is_some());
    let Some(found) = found else {
        let now = format!("producer {producer_id} has no open transaction on {at}");
        return match given {
            Some(_) => Err(Unsafe(format!("{now}; nothing was done")).into()),
            None => anyhow::bail!(now),
        };
    };
    let (epoch, coordinator_epoch) = (i16::try_from(found.producer_epoch)?, found.coordinator_epoch);
    let place = OnPartition { at: at.clone(), producer: Some(found) };
    let token = token_of(&[producer_id.to_string(), place.word()]);
    let Some(given) = given else {
        if json {
            let shown = json!({
                "producer_id": producer_id, "producer_epoch": epoch, "on": [place_json(&place)], "token": token,
            });
            return output::json(&shown);
        }
        output::line(&format!("transaction of producer {producer_id}, epoch {epoch}"))?;
        output::table(&["PARTITION", "FROM OFFSET", "LAST SEQUENCE"], &[place_row(&place)])?;
        return output::line(&format!(
            "nothing was done; to abort exactly this, past any coordinator:\n  ottla txn abort --partition {at} \
             --producer-id {producer_id} --token {token}"
        ));
    };
    if given != token {
        return Err(moved(&format!("producer {producer_id} on {at}")));
    }
    let abort = AbortTransaction {
        topic_partition: at.clone(),
        producer_id,
        producer_epoch: epoch,
        coordinator_epoch,
    };
    match admin.abort_transaction(&abort).await {
        Ok(()) => {}
        Err(error) if error.code() == Some(ErrorCode::InvalidProducerEpoch) => {
            return Err(moved(&format!("producer {producer_id} on {at}")));
        }
        Err(error) => return Err(error.into()),
    }
    if json {
        return output::json(
            &json!({ "producer_id": producer_id, "on": [place_json(&place)], "aborted": true }),
        );
    }
    output::note(&format!("the transaction of producer {producer_id} on {at} is aborted"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that every part of a state is in the token, and that words do not run into each other.
    #[test]
    fn tokens_follow_the_state() {
        let words = |a: &str, b: &str| token_of(&[a.to_owned(), b.to_owned()]);
        assert_eq!(words("a", "b"), words("a", "b"));
        assert!(words("a", "b") != words("b", "a") && words("ab", "") != words("a", "b"));
        let producer = |epoch, sequence, start| OnPartition {
            at: TopicPartition::new("t", 0),
            producer: Some(ProducerState {
                producer_id: 1,
                producer_epoch: epoch,
                last_sequence: sequence,
                last_timestamp: 0,
                coordinator_epoch: 0,
                transaction_start_offset: Some(start),
            }),
        };
        let words: std::collections::BTreeSet<String> =
            [producer(0, 0, 0), producer(1, 0, 0), producer(0, 1, 0), producer(0, 0, 1)]
                .iter()
                .map(OnPartition::word)
                .collect();
        assert_eq!(words.len(), 4);
    }
}
