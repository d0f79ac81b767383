//! The one table of APIs: key, name, versions, first flexible version.
//!
//! The versions are those that Apache Kafka 4.4 announces. What the broker serves is a list of its own; what can
//! be decoded is the schema's (Kafka announces Produce from 0 for old librdkafka, but reads it from 3).

use std::fmt;

/// Of [`Api::first_flexible`]: no version is flexible.
pub const NEVER: i16 = i16::MAX;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    /// The key.
    pub key: ApiKey,
    /// Kafka's name, without `Request`.
    pub name: &'static str,
    /// First version announced.
    pub min: i16,
    /// Last version announced.
    pub max: i16,
    /// First version with compact lengths, tagged fields and the newer headers; [`NEVER`] for none.
    pub first_flexible: i16,
}

macro_rules! table {
    ($(($code:literal, $name:ident, $min:literal, $max:literal, $flexible:tt),)*) => {
        /// Key of an API: the first field of every request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        #[allow(missing_docs)] // Kafka's names, documented there
        pub enum ApiKey {
            $($name = $code,)*
        }

        /// All APIs by key.
        pub const API_TABLE: &[Api] = &[
            $(Api { key: ApiKey::$name, name: stringify!($name), min: $min, max: $max, first_flexible: $flexible },)*
        ];

        impl ApiKey {
            /// The API with that key.
            pub const fn from_code(code: i16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its row in the table.
            pub const fn api(self) -> Api {
                match self {
                    $(Self::$name => Api {
                        key: self, name: stringify!($name), min: $min, max: $max, first_flexible: $flexible,
                    },)*
                }
            }
        }
    };
}

table! {
    // key, name, first and last version, first flexible version
    (0, Produce, 0, 13, 9),
    (1, Fetch, 4, 18, 12),
    (2, ListOffsets, 1, 11, 6),
    (3, Metadata, 0, 13, 9),
    (8, OffsetCommit, 2, 10, 8),
    (9, OffsetFetch, 1, 10, 6),
    (10, FindCoordinator, 0, 6, 3),
    (11, JoinGroup, 0, 9, 6),
    (12, Heartbeat, 0, 4, 4),
    (13, LeaveGroup, 0, 5, 4),
    (14, SyncGroup, 0, 5, 4),
    (15, DescribeGroups, 0, 6, 5),
    (16, ListGroups, 0, 5, 3),
    (17, SaslHandshake, 0, 1, NEVER),
    (18, ApiVersions, 0, 5, 3),
    (19, CreateTopics, 2, 7, 5),
    (20, DeleteTopics, 1, 6, 4),
    (21, DeleteRecords, 0, 2, 2),
    (22, InitProducerId, 0, 5, 2),
    (23, OffsetForLeaderEpoch, 2, 4, 4),
    (24, AddPartitionsToTxn, 0, 5, 3),
    (25, AddOffsetsToTxn, 0, 4, 3),
    (26, EndTxn, 0, 5, 3),
    (27, WriteTxnMarkers, 1, 2, 1),
    (28, TxnOffsetCommit, 0, 6, 3),
    (29, DescribeAcls, 1, 3, 2),
    (30, CreateAcls, 1, 3, 2),
    (31, DeleteAcls, 1, 3, 2),
    (32, DescribeConfigs, 1, 4, 4),
    (33, AlterConfigs, 0, 2, 2),
    (34, AlterReplicaLogDirs, 1, 2, 2),
    (35, DescribeLogDirs, 1, 5, 2),
    (36, SaslAuthenticate, 0, 2, 2),
    (37, CreatePartitions, 0, 3, 2),
    (38, CreateDelegationToken, 1, 3, 2),
    (39, RenewDelegationToken, 1, 2, 2),
    (40, ExpireDelegationToken, 1, 2, 2),
    (41, DescribeDelegationToken, 1, 3, 2),
    (42, DeleteGroups, 0, 3, 2),
    (43, ElectLeaders, 0, 2, 2),
    (44, IncrementalAlterConfigs, 0, 1, 1),
    (45, AlterPartitionReassignments, 0, 1, 0),
    (46, ListPartitionReassignments, 0, 0, 0),
    (47, OffsetDelete, 0, 0, NEVER),
    (48, DescribeClientQuotas, 0, 1, 1),
    (49, AlterClientQuotas, 0, 1, 1),
    (50, DescribeUserScramCredentials, 0, 0, 0),
    (51, AlterUserScramCredentials, 0, 0, 0),
    (55, DescribeQuorum, 0, 2, 0),
    (57, UpdateFeatures, 0, 2, 0),
    (60, DescribeCluster, 0, 2, 0),
    (61, DescribeProducers, 0, 0, 0),
    (64, UnregisterBroker, 0, 0, 0),
    (65, DescribeTransactions, 0, 0, 0),
    (66, ListTransactions, 0, 2, 0),
    (68, ConsumerGroupHeartbeat, 0, 1, 0),
    (69, ConsumerGroupDescribe, 0, 1, 0),
    (74, ListConfigResources, 0, 1, 0),
    (75, DescribeTopicPartitions, 0, 0, 0),
    (76, ShareGroupHeartbeat, 1, 1, 0),
    (77, ShareGroupDescribe, 1, 1, 0),
    (78, ShareFetch, 1, 2, 0),
    (79, ShareAcknowledge, 1, 2, 0),
    (80, AddRaftVoter, 0, 1, 0),
    (81, RemoveRaftVoter, 0, 0, 0),
    (83, InitializeShareGroupState, 0, 0, 0),
    (84, ReadShareGroupState, 0, 0, 0),
    (85, WriteShareGroupState, 0, 1, 0),
    (86, DeleteShareGroupState, 0, 0, 0),
    (87, ReadShareGroupStateSummary, 0, 1, 0),
    (88, StreamsGroupHeartbeat, 0, 1, 0),
    (89, StreamsGroupDescribe, 0, 1, 0),
    (90, DescribeShareGroupOffsets, 0, 1, 0),
    (91, AlterShareGroupOffsets, 0, 0, 0),
    (92, DeleteShareGroupOffsets, 0, 0, 0),
    (93, StreamsGroupTopologyDescriptionUpdate, 0, 0, 0),
    (94, UnregisterController, 0, 0, 0),
}

impl ApiKey {
    /// The number on the wire.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Kafka's name, without `Request`.
    pub const fn name(self) -> &'static str {
        self.api().name
    }

    /// Whether the version has compact lengths and tagged fields.
    pub const fn is_flexible(self, version: i16) -> bool {
        version >= self.api().first_flexible
    }

    /// Version of the header in front of a request.
    pub const fn request_header_version(self, version: i16) -> i16 {
        if self.is_flexible(version) { 2 } else { 1 }
    }

    /// Version of the header in front of a response. ApiVersions always has 0: a client must be able to read the
    /// answer before it knows what the broker speaks (KIP-511).
    pub const fn response_header_version(self, version: i16) -> i16 {
        if self.is_flexible(version) && !matches!(self, Self::ApiVersions) { 1 } else { 0 }
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{self, Message, Request, for_each_api};

    fn check<Q: Request>(name: &str) {
        let api = Q::API.api();
        assert_eq!(api.name, name);
        assert_eq!((api.max, api.first_flexible), (Q::MAX_VERSION, Q::FIRST_FLEXIBLE), "{name}");
        assert!(api.min == Q::MIN_VERSION || name == "Produce", "{name}");
        assert_eq!(Q::NAME, format!("{name}Request"));
        assert_eq!(<Q::Response as Message>::NAME, format!("{name}Response"));
        assert_eq!(
            (<Q::Response as Message>::MIN_VERSION, <Q::Response as Message>::MAX_VERSION),
            (Q::MIN_VERSION, Q::MAX_VERSION)
        );
    }

    #[test]
    fn table_agrees_with_schema() {
        // Proves that every row has its messages in the schema, in the same versions, and none is missing.
        let mut count = 0;
        macro_rules! all {
            ($(($api:ident, $request:ident, $response:ident))*) => {
                $(check::<messages::$request>(stringify!($api)); count += 1;)*
            };
        }
        for_each_api!(all);
        assert_eq!(count, API_TABLE.len());
        for api in API_TABLE {
            assert_eq!(ApiKey::from_code(api.key.code()), Some(api.key));
        }
        assert_eq!(ApiKey::from_code(4), None);
    }
}
