//! Members come, go, stall and are replaced.

use std::time::Duration;

use ottla_client::{
    Assignor, Consumer, ConsumerError, GroupError, GroupProtocol, OffsetToCommit, TopicPartition,
};
use ottla_env::time;

use super::support::*;

/// Proves, for each assignor and for KIP-848, that two members share all partitions, that the second one's coming
/// moves what the protocol says, that leaving gives everything back, and that the listener is told in order.
#[test]
fn members_come_and_go() {
    with_broker(|client| async move {
        for (index, (protocol, assignor)) in ways().into_iter().enumerate() {
            let name = format!("t{index}");
            topic(&client, &name, 4).await;
            let settings =
                settings(&client, &name).group_protocol(protocol).assignors(vec![assignor.clone()]);
            let (mut a, told_a) = member(settings.clone(), &[&name]).await;
            drive(&mut [&mut a], |members, _| shares(members, &[4])).await;
            let (mut b, told_b) = member(settings, &[&name]).await;
            drive(&mut [&mut a, &mut b], |members, _| {
                assert_disjoint(members);
                shares(members, &[2, 2])
            })
            .await;
            let first = notes(&told_a).into_iter().find(|note| note != "+").expect("something");
            assert_eq!(first, "+0,1,2,3", "{protocol:?} {assignor:?}");
            let is_cooperative =
                assignor == Assignor::CooperativeSticky || protocol == GroupProtocol::Consumer;
            let given_up = notes(&told_a).into_iter().find(|note| note.starts_with('-')).expect("something");
            assert_eq!(given_up.matches(',').count() + 1, if is_cooperative { 2 } else { 4 }, "{given_up}");
            b.close().await.expect("closed");
            assert!(notes(&told_b).last().expect("told").starts_with('-'), "{:?}", notes(&told_b));
            drive(&mut [&mut a], |members, _| shares(members, &[4])).await;
            a.close().await.expect("closed");
        }
    });
}

/// Proves that a member that does not poll is left out while its heartbeats go on, that its partitions go to the
/// other one, that it is told of the loss and joins again, and that its late commit is refused.
#[test]
fn who_does_not_poll_is_left_out() {
    with_broker(|client| async move {
        for (name, protocol) in [("classic", GroupProtocol::Classic), ("consumer", GroupProtocol::Consumer)] {
            topic(&client, name, 2).await;
            let settings =
                settings(&client, name).group_protocol(protocol).max_poll_interval(Duration::from_secs(2));
            let (mut a, told_a) = member(settings.clone(), &[name]).await;
            drive(&mut [&mut a], |members, _| shares(members, &[2])).await;
            let (mut b, _) = member(settings, &[name]).await;
            drive(&mut [&mut a, &mut b], |members, _| shares(members, &[1, 1])).await;
            // only b polls
            drive(&mut [&mut b], |members, _| shares(members, &[2])).await;
            let offset = OffsetToCommit::new(a.assignment()[0].clone(), 1);
            let late = a.commit_offsets(&[offset]).await.expect_err("not a member any more");
            assert!(late.to_string().contains("not a member"), "{late}");
            let late = a.group_metadata().expect("a group");
            assert!(!late.member_id.is_empty() && late.generation_id > 0, "{late:?}");
            a.poll(POLL).await.expect("it learns what has happened");
            drive(&mut [&mut a, &mut b], |members, _| {
                assert_disjoint(members);
                shares(members, &[1, 1])
            })
            .await;
            let told = notes(&told_a);
            assert!(told.iter().any(|note| note.starts_with('!')), "{told:?}");
        }
    });
}

/// Proves that a static member that comes back within its session keeps its partitions without a rebalance of the
/// others, and that a second one of the same name fences off the first.
#[test]
fn static_members() {
    with_broker(|client| async move {
        topic(&client, "t", 2).await;
        let plain = settings(&client, "g");
        let (mut other, told) = member(plain.clone().group_instance_id("other"), &["t"]).await;
        let (mut first, _) = member(plain.clone().group_instance_id("one"), &["t"]).await;
        drive(&mut [&mut other, &mut first], |members, _| shares(members, &[1, 1])).await;
        let had = first.assignment();
        let before = notes(&told).len();
        first.close().await.expect("closed");
        let (mut again, _) = member(plain.clone().group_instance_id("one"), &["t"]).await;
        drive(&mut [&mut other, &mut again], |members, _| shares(members, &[1, 1])).await;
        assert_eq!(again.assignment(), had);
        assert_eq!(notes(&told).len(), before, "the other one noticed nothing");

        let (mut twin, _) = member(plain.group_instance_id("one"), &["t"]).await;
        drive(&mut [&mut other, &mut twin], |members, _| shares(members, &[1, 1])).await;
        let deadline = time::now() + LIMIT;
        let fenced = loop {
            assert!(time::now() < deadline, "never fenced");
            if let Err(error) = again.poll(POLL).await {
                break error;
            }
        };
        assert!(matches!(fenced, ConsumerError::Group(GroupError::FencedInstance { .. })), "{fenced}");
        assert!(again.poll(POLL).await.is_err(), "it stays so");
    });
}

/// Proves that a pattern follows topics that come, matched by us or by the broker, and that a subscription can be
/// changed and given up.
#[test]
fn patterns_and_changes() {
    with_broker(|client| async move {
        for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
            let word = if protocol == GroupProtocol::Classic { "a" } else { "b" };
            let (one, two, three) = (format!("{word}-one"), format!("{word}-two"), format!("other-{word}"));
            topic(&client, &one, 1).await;
            topic(&client, &three, 1).await;
            let mut settings = settings(&client, word).group_protocol(protocol);
            settings.set("metadata.max.age.ms", "300").expect("known");
            let mut consumer = Consumer::connect(settings).await.expect("connected");
            consumer.subscribe_pattern(&format!("{word}-.*")).await.expect("a pattern");
            drive(&mut [&mut consumer], |members, _| shares(members, &[1])).await;
            topic(&client, &two, 1).await;
            drive(&mut [&mut consumer], |members, _| shares(members, &[2])).await;
            consumer.subscribe(&[&three]).await.expect("a topic");
            let only = vec![TopicPartition::new(three.as_str(), 0)];
            drive(&mut [&mut consumer], |members, _| members[0].assignment() == only).await;
            consumer.unsubscribe().await;
            assert!(consumer.assignment().is_empty());
            assert!(consumer.subscribe_pattern("(").await.is_err());
        }
    });
}

/// Proves that a topic that is made after the subscription is read, and that partitions that are added are.
#[test]
fn topics_grow() {
    with_broker(|client| async move {
        let mut settings = settings(&client, "g");
        settings.set("metadata.max.age.ms", "300").expect("known");
        let (mut consumer, _) = member(settings, &["late"]).await;
        drive(&mut [&mut consumer], |members, _| members[0].metrics().rebalances > 0).await;
        let admin = topic(&client, "late", 1).await;
        drive(&mut [&mut consumer], |members, _| shares(members, &[1])).await;
        let counts = std::collections::BTreeMap::from([("late".into(), 3)]);
        for result in admin.create_partitions(&counts, false).await.into_values() {
            result.expect("created");
        }
        drive(&mut [&mut consumer], |members, _| shares(members, &[3])).await;
    });
}

/// Proves that what cannot work is said: no group, an assignor that the broker has not, partitions by hand beside a
/// subscription.
#[test]
fn misuse() {
    with_broker(|client| async move {
        topic(&client, "t", 1).await;
        let mut alone =
            Consumer::connect(ottla_client::ConsumerSettings::new(client.clone())).await.expect("connected");
        let error = alone.subscribe(&["t"]).await.expect_err("no group");
        assert!(matches!(error, ConsumerError::Group(GroupError::NoGroup)), "{error}");
        assert!(alone.commit_positions().await.is_err() && alone.group_metadata().is_none());

        let mut settings = settings(&client, "g").group_protocol(GroupProtocol::Consumer);
        settings.set("group.remote.assignor", "fair").expect("any name");
        let (mut consumer, _) = member(settings, &["t"]).await;
        let by_hand = consumer.assign(&[]).await.expect_err("subscribed");
        assert!(matches!(by_hand, ConsumerError::Subscribed), "{by_hand}");
        let deadline = time::now() + LIMIT;
        let refused = loop {
            assert!(time::now() < deadline, "never refused");
            if let Err(error) = consumer.poll(POLL).await {
                break error;
            }
        };
        assert!(refused.to_string().contains("UNSUPPORTED_ASSIGNOR"), "{refused}");
    });
}

/// Proves that KIP-848 knows static members too: one that comes back keeps its partition, and its twin is refused
/// while it is there.
#[test]
fn static_members_of_consumer_groups() {
    with_broker(|client| async move {
        topic(&client, "t", 2).await;
        let plain = settings(&client, "g").group_protocol(GroupProtocol::Consumer);
        let (mut other, told) = member(plain.clone().group_instance_id("other"), &["t"]).await;
        let (mut first, _) = member(plain.clone().group_instance_id("one"), &["t"]).await;
        drive(&mut [&mut other, &mut first], |members, _| shares(members, &[1, 1])).await;
        let (had, before) = (first.assignment(), notes(&told));
        first.close().await.expect("closed");
        let (mut again, _) = member(plain.clone().group_instance_id("one"), &["t"]).await;
        drive(&mut [&mut other, &mut again], |members, _| shares(members, &[1, 1])).await;
        assert_eq!(again.assignment(), had);
        assert_eq!(notes(&told), before, "the other one noticed nothing");
        let (mut twin, _) = member(plain.group_instance_id("one"), &["t"]).await;
        let deadline = time::now() + LIMIT;
        let refused = loop {
            assert!(time::now() < deadline, "never refused");
            if let Err(error) = twin.poll(POLL).await {
                break error;
            }
        };
        assert!(matches!(refused, ConsumerError::Group(GroupError::FencedInstance { .. })), "{refused}");
        again.poll(POLL).await.expect("still a member");
    });
}
