//! What is committed, by whom, and where the next one goes on.

use std::time::Duration;

use ottla_client::{Consumer, GroupProtocol, OffsetReset, OffsetToCommit, StartAt, TopicPartition};
use ottla_protocol::types::Text;

use super::support::*;

fn at(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

async fn committed(consumer: &Consumer, partition: i32) -> Option<i64> {
    let found = consumer.committed(&Text::from("g"), &[at(partition)]).await.expect("fetched");
    found[0].offset
}

/// Proves that a member goes on where the last one has committed, with both protocols and with partitions by hand.
#[test]
fn resuming() {
    with_broker(|client| async move {
        topic(&client, "t", 1).await;
        fill(&client, "t", 1, 0, 10).await;
        for (index, protocol) in
            [GroupProtocol::Classic, GroupProtocol::Consumer, GroupProtocol::Classic].into_iter().enumerate()
        {
            let settings = settings(&client, "g").group_protocol(protocol).max_poll_records(2);
            let (mut consumer, _) = member(settings, &["t"]).await;
            let values = drive(&mut [&mut consumer], |_, values| !values.is_empty()).await;
            assert_eq!(values, [format!("0:{}", 2 * index), format!("0:{}", 2 * index + 1)]);
            consumer.commit_positions().await.expect("committed");
            consumer.close().await.expect("closed");
        }
        let mut by_hand = Consumer::connect(settings(&client, "g")).await.expect("connected");
        by_hand.assign(&[(at(0), StartAt::Committed)]).await.expect("assigned");
        let values = drive(&mut [&mut by_hand], |_, values| !values.is_empty()).await;
        assert_eq!(values[0], "0:6");
    });
}

/// Proves that automatic commits cover what earlier polls returned, and never what nobody has got.
#[test]
fn automatic() {
    with_broker(|client| async move {
        topic(&client, "t", 1).await;
        fill(&client, "t", 1, 0, 10).await;
        let settings = settings(&client, "g")
            .auto_commit(true)
            .auto_commit_interval(Duration::from_millis(1))
            .max_poll_records(4);
        let (mut consumer, _) = member(settings, &["t"]).await;
        drive(&mut [&mut consumer], |_, values| values.len() == 4).await;
        let early = committed(&consumer, 0).await;
        assert_eq!(early.unwrap_or(0), 0, "the first batch is being worked on");
        consumer.poll(POLL).await.expect("read");
        let probe = Consumer::connect(settings_without_group(&client)).await.expect("connected");
        let deadline = ottla_env::time::now() + LIMIT;
        while committed(&probe, 0).await != Some(4) {
            assert!(ottla_env::time::now() < deadline, "{:?}", committed(&probe, 0).await);
        }
        consumer.close().await.expect("closed");
        assert_eq!(committed(&probe, 0).await, Some(8), "closing commits what was returned");
    });
}

fn settings_without_group(client: &ottla_client::ClientSettings) -> ottla_client::ConsumerSettings {
    ottla_client::ConsumerSettings::new(client.clone())
}

/// Proves that commits are carried out in the order they were asked for, that each has an outcome of its own, and
/// that one that was dropped is carried out.
#[test]
fn order() {
    with_broker(|client| async move {
        topic(&client, "t", 1).await;
        let (mut consumer, _) = member(settings(&client, "g"), &["t"]).await;
        drive(&mut [&mut consumer], |members, _| shares(members, &[1])).await;
        let mut last = None;
        for offset in 1..=100 {
            let pending = consumer.start_commit(vec![OffsetToCommit::new(at(0), offset)]).expect("room");
            last = Some(pending); // the ones before are dropped
        }
        let bad = OffsetToCommit { metadata: "x".repeat(5000).into(), ..OffsetToCommit::new(at(0), 7) };
        let refused = consumer.start_commit(vec![bad]).expect("room");
        last.expect("the last").wait().await.expect("committed");
        assert_eq!(committed(&consumer, 0).await, Some(100));
        let refused = refused.wait().await.expect_err("too long");
        assert!(refused.to_string().contains("OFFSET_METADATA_TOO_LARGE"), "{refused}");
    });
}

/// Proves that without a committed offset `auto.offset.reset` decides, and that `none` is an error that a seek ends.
#[test]
fn resets() {
    with_broker(|client| async move {
        topic(&client, "t", 1).await;
        fill(&client, "t", 1, 0, 5).await;
        let plain = settings(&client, "g");
        let (mut none, _) = member(plain.clone().offset_reset(OffsetReset::None), &["t"]).await;
        let deadline = ottla_env::time::now() + LIMIT;
        let error = loop {
            assert!(ottla_env::time::now() < deadline, "never told");
            if let Err(error) = none.poll(POLL).await {
                break error;
            }
        };
        assert!(matches!(error, ottla_client::ConsumerError::NoOffset { .. }), "{error}");
        none.seek(&at(0), 3).expect("assigned");
        assert_eq!(drive(&mut [&mut none], |_, values| values.len() == 2).await, ["0:3", "0:4"]);
        none.close().await.expect("closed");
        let hour = OffsetReset::ByDuration(Duration::from_secs(3600));
        for (reset, first) in [(OffsetReset::Earliest, 0), (OffsetReset::Latest, 5), (hour, 0)] {
            let (mut consumer, _) = member(plain.clone().offset_reset(reset), &["t"]).await;
            drive(&mut [&mut consumer], |members, _| members[0].position(&at(0)).is_some()).await;
            let position = consumer.position(&at(0)).expect("known");
            assert!(position == first || first == 0 && position == 5, "{reset:?} {position}");
            consumer.close().await.expect("closed");
        }
    });
}
