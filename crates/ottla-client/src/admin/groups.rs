//! Groups: list, describe (both protocols), delete.

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_protocol::coordinator::decode_value;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::consumer_group_describe_response::Assignment;
use ottla_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerProtocolAssignment,
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    ListGroupsRequest, ListGroupsResponse, consumer_group_describe_response, describe_groups_response,
};
use ottla_protocol::types::Text;

use super::items::{Call, Item, Place, Results, item};
use super::{Admin, AdminError};
use crate::connection::Versions;
use crate::record::TopicPartition;

/// A group, as listed.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
/// # let begin = OffsetToCommit::new(TopicPartition::new("orders", 0), 0);
/// # consumer.commit(&GroupMetadata::without_members("shop"), &[begin]).await?;
/// use ottla_client::admin::GroupFilter;
///
/// for group in admin.list_groups(&GroupFilter::default()).await? {
///     println!("{} ({}): {}", group.group_id, group.group_type, group.state);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupListing {
    /// The group.
    pub group_id: Text,
    /// `consumer`, `connect`, ...; empty for one that is only a name for offsets.
    pub protocol_type: Text,
    /// Kafka's name of its state; empty when the broker is too old to tell (before 2.6).
    pub state: Text,
    /// `classic` or `consumer`; empty when the broker is too old to tell (before 3.8).
    pub group_type: Text,
}

/// Which groups are listed; the default is all.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
/// # let begin = OffsetToCommit::new(TopicPartition::new("orders", 0), 0);
/// # consumer.commit(&GroupMetadata::without_members("shop"), &[begin]).await?;
/// use ottla_client::admin::GroupFilter;
///
/// let without_members = GroupFilter { states: vec!["Empty".into()], ..GroupFilter::default() };
/// let listed = admin.list_groups(&without_members).await?;
/// assert!(listed.iter().any(|group| group.group_id == "shop"));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFilter {
    /// Kafka's names of states: `Empty`, `Stable`, `PreparingRebalance`, `CompletingRebalance`, `Assigning`,
    /// `Reconciling`, `Dead`.
    pub states: Vec<Text>,
    /// `classic`, `consumer`.
    pub types: Vec<Text>,
}

/// Which protocol a group speaks.
///
/// ```
/// use ottla_client::admin::GroupType;
///
/// assert_eq!(GroupType::Classic.name(), "classic");
/// assert_eq!(GroupType::Consumer.name(), "consumer"); // KIP-848
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupType {
    /// JoinGroup and SyncGroup: a member assigns.
    Classic,
    /// KIP-848: the coordinator assigns.
    Consumer,
}

impl GroupType {
    /// Kafka's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Consumer => "consumer",
        }
    }
}

/// A group, as its coordinator knows it.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
/// # let begin = OffsetToCommit::new(TopicPartition::new("orders", 0), 0);
/// # consumer.commit(&GroupMetadata::without_members("shop"), &[begin]).await?;
/// let shop = admin.describe_group(&"shop".into()).await?;
/// println!("{}: {}, {} members", shop.group_id, shop.state, shop.members.len());
/// assert!(shop.is_empty()); // so it may be deleted
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDescription {
    /// The group.
    pub group_id: Text,
    /// Which protocol it speaks.
    pub group_type: GroupType,
    /// Kafka's name of its state.
    pub state: Text,
    /// `consumer`, `connect`, ...; empty for one that is only a name for offsets.
    pub protocol_type: Text,
    /// The assignor in use; empty for none.
    pub assignor: Text,
    /// Epoch of the group (KIP-848), -1 for classic groups.
    pub group_epoch: i32,
    /// Epoch of the target assignment (KIP-848), -1 for classic groups.
    pub assignment_epoch: i32,
    /// Its members by id.
    pub members: Vec<MemberDescription>,
}

impl GroupDescription {
    /// Whether nobody is in it, so that its offsets may be changed and it may be deleted.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && matches!(self.state.as_str(), "Empty" | "Dead" | "")
    }
}

/// A member of a group.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
/// # let begin = OffsetToCommit::new(TopicPartition::new("orders", 0), 0);
/// # consumer.commit(&GroupMetadata::without_members("shop"), &[begin]).await?;
/// for member in &admin.describe_group(&"shop".into()).await?.members {
///     println!("{} on {} reads {:?}", member.client_id, member.client_host, member.assignment);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberDescription {
    /// Its id.
    pub member_id: Text,
    /// The static member's own name.
    pub group_instance_id: Option<Text>,
    /// Its client's name for itself.
    pub client_id: Text,
    /// Where it connects from.
    pub client_host: Text,
    /// Its epoch (KIP-848), -1 in classic groups.
    pub member_epoch: i32,
    /// What it has.
    pub assignment: Vec<TopicPartition>,
    /// What it is to have (KIP-848); the same as `assignment` in classic groups.
    pub target: Vec<TopicPartition>,
    /// Topics it subscribed to by name (KIP-848 only).
    pub subscribed_topics: Vec<Text>,
    /// Its regular expression (KIP-848 only).
    pub subscribed_regex: Option<Text>,
}

struct ListGroups {
    filter: GroupFilter,
}

impl Call for ListGroups {
    type Key = i32;
    type Request = ListGroupsRequest;
    type Value = Vec<GroupListing>;
    const USABLE: Versions = Versions::new(3, 5);

    fn place(&self, node_id: &i32) -> Place {
        Place::Node(*node_id)
    }

    fn request(&self, _: &[i32]) -> ListGroupsRequest {
        ListGroupsRequest {
            states_filter: self.filter.states.clone(),
            types_filter: self.filter.types.clone(),
            ..ListGroupsRequest::default()
        }
    }

    fn read(&self, keys: &[i32], answer: ListGroupsResponse) -> Vec<(i32, Item<Vec<GroupListing>>)> {
        let listings = || {
            let groups = answer.groups.iter().map(|group| GroupListing {
                group_id: group.group_id.detached(),
                protocol_type: group.protocol_type.detached(),
                state: group.group_state.detached(),
                group_type: group.group_type.detached(),
            });
            groups.collect()
        };
        vec![(keys.first().copied().unwrap_or(-1), item(answer.error_code, None, listings))]
    }

    fn what(&self, node_id: &i32) -> String {
        format!("listing the groups of broker {node_id}")
    }
}

/// KIP-848's description; a classic group answers GROUP_ID_NOT_FOUND.
struct ConsumerGroupDescribe;

impl Call for ConsumerGroupDescribe {
    type Key = Text;
    type Request = ConsumerGroupDescribeRequest;
    type Value = GroupDescription;
    const USABLE: Versions = Versions::new(0, 1);

    fn place(&self, group_id: &Text) -> Place {
        Place::Group(group_id.clone())
    }

    fn request(&self, keys: &[Text]) -> ConsumerGroupDescribeRequest {
        ConsumerGroupDescribeRequest { group_ids: keys.to_vec(), ..Default::default() }
    }

    fn read(&self, _: &[Text], answer: ConsumerGroupDescribeResponse) -> Vec<(Text, Item<GroupDescription>)> {
        let results = answer.groups.iter().map(|group| {
            let members = || group.members.iter().map(consumer_member).collect();
            let description = || GroupDescription {
                group_id: group.group_id.detached(),
                group_type: GroupType::Consumer,
                state: group.group_state.detached(),
                protocol_type: Text::from_static("consumer"),
                assignor: group.assignor_name.detached(),
                group_epoch: group.group_epoch,
                assignment_epoch: group.assignment_epoch,
                members: sorted(members()),
            };
            (group.group_id.detached(), item(group.error_code, group.error_message.as_ref(), description))
        });
        results.collect()
    }

    fn what(&self, group_id: &Text) -> String {
        format!("describing group `{group_id}`")
    }
}

fn sorted(mut members: Vec<MemberDescription>) -> Vec<MemberDescription> {
    members.sort_by(|a, b| a.member_id.cmp(&b.member_id));
    members
}

fn consumer_member(member: &consumer_group_describe_response::Member) -> MemberDescription {
    MemberDescription {
        member_id: member.member_id.detached(),
        group_instance_id: member.instance_id.as_ref().map(Text::detached),
        client_id: member.client_id.detached(),
        client_host: member.client_host.detached(),
        member_epoch: member.member_epoch,
        assignment: partitions(&member.assignment),
        target: partitions(&member.target_assignment),
        subscribed_topics: member.subscribed_topic_names.iter().map(Text::detached).collect(),
        subscribed_regex: member.subscribed_topic_regex.as_ref().map(Text::detached),
    }
}

fn partitions(assignment: &Assignment) -> Vec<TopicPartition> {
    let mut partitions: Vec<_> = assignment
        .topic_partitions
        .iter()
        .flat_map(|topic| {
            topic.partitions.iter().map(|index| TopicPartition::new(topic.topic_name.detached(), *index))
        })
        .collect();
    partitions.sort();
    partitions
}

struct DescribeClassicGroups;

impl Call for DescribeClassicGroups {
    type Key = Text;
    type Request = DescribeGroupsRequest;
    type Value = GroupDescription;
    const USABLE: Versions = Versions::new(4, 6);

    fn place(&self, group_id: &Text) -> Place {
        Place::Group(group_id.clone())
    }

    fn request(&self, keys: &[Text]) -> DescribeGroupsRequest {
        DescribeGroupsRequest { groups: keys.to_vec(), ..DescribeGroupsRequest::default() }
    }

    fn read(&self, _: &[Text], answer: DescribeGroupsResponse) -> Vec<(Text, Item<GroupDescription>)> {
        let results = answer.groups.iter().map(|group| {
            let is_consumer = group.protocol_type == "consumer";
            let description = || GroupDescription {
                group_id: group.group_id.detached(),
                group_type: GroupType::Classic,
                state: group.group_state.detached(),
                protocol_type: group.protocol_type.detached(),
                assignor: group.protocol_data.detached(),
                group_epoch: -1,
                assignment_epoch: -1,
                members: sorted(group.members.iter().map(|m| classic_member(m, is_consumer)).collect()),
            };
            // Before version 6 a group that does not exist is `Dead` and no error; one word for both.
            let code = match group.group_state.as_str() {
                "Dead" if group.error_code == 0 => ErrorCode::GroupIdNotFound.code(),
                _ => group.error_code,
            };
            (group.group_id.detached(), item(code, group.error_message.as_ref(), description))
        });
        results.collect()
    }

    fn what(&self, group_id: &Text) -> String {
        format!("describing group `{group_id}`")
    }
}

fn classic_member(
    member: &describe_groups_response::DescribedGroupMember,
    is_consumer: bool,
) -> MemberDescription {
    // other protocols keep bytes of their own in there
    let assignment = if is_consumer { classic_assignment(&member.member_assignment) } else { Vec::new() };
    MemberDescription {
        member_id: member.member_id.detached(),
        group_instance_id: member.group_instance_id.as_ref().map(Text::detached),
        client_id: member.client_id.detached(),
        client_host: member.client_host.detached(),
        member_epoch: -1,
        target: assignment.clone(),
        assignment,
        subscribed_topics: Vec::new(),
        subscribed_regex: None,
    }
}

/// What a classic member's leader gave it; nothing while it waits, or when the bytes are not Kafka's.
fn classic_assignment(bytes: &Bytes) -> Vec<TopicPartition> {
    if bytes.is_empty() {
        return Vec::new();
    }
    match decode_value::<ConsumerProtocolAssignment>(bytes) {
        Ok(assignment) => {
            let topics = assignment.assigned_partitions.iter();
            let partitions = topics.flat_map(|topic| {
                topic.partitions.iter().map(|index| TopicPartition::new(topic.topic.detached(), *index))
            });
            let mut partitions: Vec<_> = partitions.collect();
            partitions.sort();
            partitions
        }
        Err(error) => {
            tracing::debug!(%error, "a member's assignment is not of the consumer protocol");
            Vec::new()
        }
    }
}

struct DeleteGroups;

impl Call for DeleteGroups {
    type Key = Text;
    type Request = DeleteGroupsRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(0, 3);

    fn place(&self, group_id: &Text) -> Place {
        Place::Group(group_id.clone())
    }

    fn request(&self, keys: &[Text]) -> DeleteGroupsRequest {
        DeleteGroupsRequest { groups_names: keys.to_vec(), ..DeleteGroupsRequest::default() }
    }

    fn read(&self, _: &[Text], answer: DeleteGroupsResponse) -> Vec<(Text, Item<()>)> {
        let results = answer.results.iter().map(|group| {
            (group.group_id.detached(), item(group.error_code, group.error_message.as_ref(), || ()))
        });
        results.collect()
    }

    fn what(&self, group_id: &Text) -> String {
        format!("deleting group `{group_id}`")
    }

    fn after_lost(&self, code: ErrorCode) -> Option<()> {
        (code == ErrorCode::GroupIdNotFound).then_some(())
    }
}

impl Admin {
    /// Groups, from every broker, sorted. Cancel-safe.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let client = ClientSettings::new(bootstrap)?;
    /// # let admin = Admin::connect(client.clone()).await?;
    /// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
    /// # let consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
    /// # let begin = OffsetToCommit::new(TopicPartition::new("orders", 0), 0);
    /// # consumer.commit(&GroupMetadata::without_members("shop"), &[begin]).await?;
    /// use ottla_client::admin::GroupFilter;
    ///
    /// let listed = admin.list_groups(&GroupFilter::default()).await?;
    /// let ids: Vec<_> = listed.into_iter().map(|group| group.group_id).collect();
    /// for (group_id, described) in admin.describe_groups(&ids).await {
    ///     println!("{group_id}: {}", described?.state);
    /// }
    /// if admin.describe_group(&"shop".into()).await?.is_empty() {
    ///     for (group_id, deleted) in admin.delete_groups(&["shop".into()]).await {
    ///         println!("{group_id}: {deleted:?}");
    ///     }
    /// }
    /// # Ok(())
    /// # });
    /// ```
    pub async fn list_groups(&self, filter: &GroupFilter) -> Result<Vec<GroupListing>, AdminError> {
        let nodes = self.cluster.nodes().iter().map(|node| node.node_id).collect();
        let mut listings = Vec::new();
        for listed in self.run(&ListGroups { filter: filter.clone() }, nodes).await.into_values() {
            listings.extend(listed?);
        }
        listings.sort();
        listings.dedup();
        Ok(listings)
    }

    /// Groups, from their coordinators, whichever protocol they speak. Cancel-safe.
    pub async fn describe_groups(&self, group_ids: &[Text]) -> Results<Text, GroupDescription> {
        let mut results: BTreeMap<_, _> = self.run(&ConsumerGroupDescribe, group_ids.to_vec()).await;
        // A classic group is not found there; a broker before KIP-848 has no such request.
        let classic: Vec<Text> = results
            .iter()
            .filter(|(_, result)| match result {
                Ok(_) => false,
                Err(error) => error.is_unsupported() || error.code() == Some(ErrorCode::GroupIdNotFound),
            })
            .map(|(group_id, _)| group_id.clone())
            .collect();
        if !classic.is_empty() {
            results.extend(self.run(&DescribeClassicGroups, classic).await);
        }
        results
    }

    /// One group, as `describe_groups` does. Cancel-safe.
    pub async fn describe_group(&self, group_id: &Text) -> Result<GroupDescription, AdminError> {
        let mut results = self.describe_groups(std::slice::from_ref(group_id)).await;
        results.pop_first().expect("every group has a result").1
    }

    /// Deletes groups with their offsets; refused while somebody is in them (`NON_EMPTY_GROUP`). If the future is
    /// dropped, some may be deleted.
    pub async fn delete_groups(&self, group_ids: &[Text]) -> Results<Text, ()> {
        self.run(&DeleteGroups, group_ids.to_vec()).await
    }
}
