//! docs/protocol.md: the APIs with their versions, what is behind them, and where they differ from Kafka's.

use std::fmt::Write;

use ottla_broker::dispatch::SERVED;
use ottla_protocol::api::{API_TABLE, ApiKey};

use super::{assert_is, read};

/// What Kafka 4.4 answered when it was asked.
const KAFKA: &str = "compat/kafka-4.4.0-api-versions.tsv";

const HEAD: &str = "# Protocol

The APIs of Kafka that Ottla serves, made from the tables of the code (`ottla-protocol/src/api.rs`,
`ottla-broker/src/dispatch.rs`) and compared with what Apache Kafka 4.4.0 announces
([compat/kafka-4.4.0-api-versions.tsv](../compat/kafka-4.4.0-api-versions.tsv)). Do not edit it: see
`ottla-broker/tests/it/documents.rs`.

ApiVersions lists what is served and nothing else. A request with another key or version closes the connection
without an answer, as in Kafka; only ApiVersions itself is always answered: in a version that is not known here with
UNSUPPORTED_VERSION (35) in version 0, and the range that is known (KIP-511).

What differs for transactions and offsets, with the reasons, is in [compatibility.md](compatibility.md); what can be
set is in [settings.md](settings.md).

";

const TELEMETRY: &str = "
## Client metrics (KIP-714)

GetTelemetrySubscriptions (71) and PushTelemetry (72) are announced by a Kafka broker only when a plugin takes the
metrics. Ottla has no plugins and announces neither, so clients with `enable.metrics.push` (Java's default) ask for
nothing and send nothing. (Kafka answers key 71 all the same when it is asked unannounced; here that closes the
connection, as any key that is not announced.) To answer \"no subscriptions\" would cost each client a request every few minutes and tell
nobody anything.
";

/// The proposals behind an API, and what is not as in Kafka. Of served APIs.
#[rustfmt::skip] // a table
const NOTES: &[(ApiKey, &str, &str)] = &[
    (ApiKey::Produce, "98, 110, 467, 516, 890, 951", "versions 0 to 2 are announced as Kafka does, and refused as Kafka does (KAFKA-18659); `acks=1` waits for the disk too; internal topics are closed to everybody; a producer that would be one more than `max.producers`: POLICY_VIOLATION, which clients give up on and show"),
    (ApiKey::Fetch, "74, 98, 110, 227, 320, 392, 516, 903, 951", "bounds of one answer are of one instant; a parked request is answered early, empty, when another waits behind it; a follower's is served like a consumer's"),
    (ApiKey::ListOffsets, "79, 207, 405, 734, 1005, 1023, 1075", "nothing is tiered: earliest local is the earliest, latest tiered and earliest pending upload find nothing; timestamp -1000 is Ottla's own: the tombstone horizon, one past the highest tombstone that compaction has removed while it was the last record of its key, 0 for none (Kafka: UNSUPPORTED_VERSION)"),
    (ApiKey::Metadata, "4, 430, 516, 700", "a topic that is made because it was asked for is in the same answer, where Kafka's first answer is UNKNOWN_TOPIC_OR_PARTITION"),
    (ApiKey::OffsetCommit, "211, 345, 848", ""),
    (ApiKey::OffsetFetch, "88, 447, 709, 848", ""),
    (ApiKey::FindCoordinator, "98, 699, 890", "share groups (key type 2) have no coordinator: INVALID_REQUEST"),
    (ApiKey::JoinGroup, "62, 345, 394, 559, 800", ""),
    (ApiKey::Heartbeat, "345", ""),
    (ApiKey::LeaveGroup, "345, 800", ""),
    (ApiKey::SyncGroup, "345, 559", ""),
    (ApiKey::DescribeGroups, "345, 430, 1043", ""),
    (ApiKey::ListGroups, "518, 848", ""),
    (ApiKey::ApiVersions, "35, 511, 584, 1242", "features are those that this broker has"),
    (ApiKey::CreateTopics, "4, 195, 464, 516, 525", "one replica; more topics or partitions than the limits allow: POLICY_VIOLATION"),
    (ApiKey::DeleteTopics, "4, 516", "internal topics cannot be deleted: INVALID_REQUEST"),
    (ApiKey::DeleteRecords, "107", ""),
    (ApiKey::InitProducerId, "98, 360, 588, 890", "a transactional id beyond `max.transactional.ids`: COORDINATOR_NOT_AVAILABLE, which clients repeat until their own time is over, and others can expire meanwhile"),
    (ApiKey::OffsetForLeaderEpoch, "101, 279, 320", ""),
    (ApiKey::AddPartitionsToTxn, "98, 890", "a transaction beyond `max.open.transactions`: CONCURRENT_TRANSACTIONS, which clients repeat until another one ends (also Produce 12, AddOffsetsToTxn and TxnOffsetCommit 5, where they begin one); partitions beyond the limits: POLICY_VIOLATION"),
    (ApiKey::AddOffsetsToTxn, "98, 890", ""),
    (ApiKey::EndTxn, "98, 890", ""),
    (ApiKey::WriteTxnMarkers, "98, 664, 1228", ""),
    (ApiKey::TxnOffsetCommit, "98, 447, 848, 890, 1319", ""),
    (ApiKey::DescribeAcls, "140, 290", "SECURITY_DISABLED, as Kafka without an authorizer"),
    (ApiKey::CreateAcls, "140, 290", "SECURITY_DISABLED, as Kafka without an authorizer"),
    (ApiKey::DeleteAcls, "140, 290", "SECURITY_DISABLED, as Kafka without an authorizer"),
    (ApiKey::DescribeConfigs, "133, 226, 412, 569", "levels of log messages are read only; no client metrics"),
    (ApiKey::AlterConfigs, "133", "unknown settings of a broker are refused, where Kafka keeps them"),
    (ApiKey::AlterReplicaLogDirs, "113", "there is one folder: another one is LOG_DIR_NOT_FOUND"),
    (ApiKey::DescribeLogDirs, "113, 827, 1066", ""),
    (ApiKey::CreatePartitions, "195", "more than the limits allow: POLICY_VIOLATION"),
    (ApiKey::DeleteGroups, "229", ""),
    (ApiKey::ElectLeaders, "460", "the leader is always the preferred one: ELECTION_NOT_NEEDED"),
    (ApiKey::IncrementalAlterConfigs, "339, 412", "unknown settings of a broker are refused, where Kafka keeps them; levels of log messages cannot be set"),
    (ApiKey::AlterPartitionReassignments, "455", "the replicas that a partition has may be asked for, no others"),
    (ApiKey::ListPartitionReassignments, "455", "there are never any"),
    (ApiKey::OffsetDelete, "496", ""),
    (ApiKey::DescribeQuorum, "595, 836, 853", "one voter: this broker"),
    (ApiKey::UpdateFeatures, "584, 778, 1022", "features are those that this broker has"),
    (ApiKey::DescribeCluster, "700, 919, 1073", ""),
    (ApiKey::DescribeProducers, "664", ""),
    (ApiKey::DescribeTransactions, "664", ""),
    (ApiKey::ListTransactions, "664, 994, 1152", ""),
    (ApiKey::ConsumerGroupHeartbeat, "848, 1082", ""),
    (ApiKey::ConsumerGroupDescribe, "848, 1099", ""),
    (ApiKey::ListConfigResources, "714, 1000, 1142", "there are no client metrics"),
    (ApiKey::DescribeTopicPartitions, "966", ""),
];

/// Why an API of Kafka's is not served.
#[rustfmt::skip] // a table
const ABSENT: &[(&[ApiKey], &str)] = &[
    (&[ApiKey::SaslHandshake, ApiKey::SaslAuthenticate, ApiKey::DescribeUserScramCredentials,
       ApiKey::AlterUserScramCredentials, ApiKey::CreateDelegationToken, ApiKey::RenewDelegationToken,
       ApiKey::ExpireDelegationToken, ApiKey::DescribeDelegationToken],
        "there is no authentication yet: listen on a trusted network only"),
    (&[ApiKey::DescribeClientQuotas, ApiKey::AlterClientQuotas], "there are no quotas yet"),
    (&[ApiKey::UnregisterBroker, ApiKey::AddRaftVoter, ApiKey::RemoveRaftVoter, ApiKey::UnregisterController],
        "there is one broker, and no quorum to join or leave"),
    (&[ApiKey::ShareGroupHeartbeat, ApiKey::ShareGroupDescribe, ApiKey::ShareFetch, ApiKey::ShareAcknowledge,
       ApiKey::InitializeShareGroupState, ApiKey::ReadShareGroupState, ApiKey::WriteShareGroupState,
       ApiKey::DeleteShareGroupState, ApiKey::ReadShareGroupStateSummary, ApiKey::DescribeShareGroupOffsets,
       ApiKey::AlterShareGroupOffsets, ApiKey::DeleteShareGroupOffsets],
        "share groups (KIP-932) are not there"),
    (&[ApiKey::StreamsGroupHeartbeat, ApiKey::StreamsGroupDescribe, ApiKey::StreamsGroupTopologyDescriptionUpdate],
        "groups of Kafka Streams' own protocol (KIP-1071) are not there; Streams works with consumer groups"),
];

fn versions(min: i16, max: i16) -> String {
    if min == max { min.to_string() } else { format!("{min}-{max}") }
}

fn document() -> String {
    let mut text = HEAD.to_owned();
    text +=
        "## Served\n\n| key | API | versions | Kafka 4.4 | KIPs | differences |\n|---|---|---|---|---|---|\n";
    for api in API_TABLE.iter().filter(|api| SERVED.contains(&api.key)) {
        let (_, kips, differs) = NOTES.iter().find(|(key, ..)| *key == api.key).expect("noted");
        let range = versions(api.min, api.max);
        let (_, min, max) = kafka().into_iter().find(|(key, ..)| *key == api.key.code()).expect("Kafka's");
        let (code, name, theirs) = (api.key.code(), api.name, versions(min, max));
        writeln!(text, "| {code} | {name} | {range} | {theirs} | {kips} | {differs} |").expect("to memory");
    }
    text += "\n## Not served\n\n| key | API | Kafka 4.4 | why |\n|---|---|---|---|\n";
    for api in API_TABLE.iter().filter(|api| !SERVED.contains(&api.key)) {
        let (_, why) = ABSENT.iter().find(|(keys, _)| keys.contains(&api.key)).expect("a reason");
        let (code, name, range) = (api.key.code(), api.name, versions(api.min, api.max));
        writeln!(text, "| {code} | {name} | {range} | {why} |").expect("to memory");
    }
    text + TELEMETRY
}

/// Key and versions of every API that Kafka announces.
fn kafka() -> Vec<(i16, i16, i16)> {
    let text = read(KAFKA);
    let row = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| fields[at].parse::<i16>().expect("a number");
        (number(0), number(2), number(3))
    };
    text.lines().skip(1).map(row).collect()
}

/// Proves: docs/protocol.md is what the tables say.
#[test]
fn protocol_is_documented() {
    assert_is("docs/protocol.md", &document());
}

/// Proves: what is served has exactly the versions that Kafka 4.4 announces, and every API of Kafka's that is not
/// served has a reason; no note is about something else.
#[test]
fn versions_are_kafkas() {
    let ours: Vec<_> = API_TABLE.iter().map(|api| (api.key.code(), api.min, api.max)).collect();
    assert_eq!(ours, kafka());
    for api in API_TABLE {
        let served = SERVED.iter().filter(|key| **key == api.key).count();
        let notes = NOTES.iter().filter(|(key, ..)| *key == api.key).count();
        let reasons = ABSENT.iter().filter(|(keys, _)| keys.contains(&api.key)).count();
        assert!(
            (served, notes, reasons) == (1, 1, 0) || (served, notes, reasons) == (0, 0, 1),
            "{}: listed {served} times, noted {notes} times, {reasons} reasons",
            api.name
        );
    }
}
