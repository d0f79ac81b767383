//! Members that somebody else puts out of a classic group (KIP-345): static ones that will not come back.

use ottla_protocol::messages::leave_group_request::MemberIdentity;
use ottla_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};
use ottla_protocol::types::Text;

use super::Admin;
use super::items::{Call, Item, Place, Results, item};
use crate::connection::Versions;

struct RemoveMembers<'a> {
    group_id: &'a Text,
}

impl Call for RemoveMembers<'_> {
    /// `group.instance.id`.
    type Key = Text;
    type Request = LeaveGroupRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(3, 5);

    fn place(&self, _: &Text) -> Place {
        Place::Group(self.group_id.clone())
    }

    fn request(&self, keys: &[Text]) -> LeaveGroupRequest {
        let member = |id: &Text| MemberIdentity {
            group_instance_id: Some(id.clone()),
            reason: Some(Text::from_static("removed by an administrator")),
            ..MemberIdentity::default()
        };
        LeaveGroupRequest {
            group_id: self.group_id.clone(),
            members: keys.iter().map(member).collect(),
            ..LeaveGroupRequest::default()
        }
    }

    fn read(&self, keys: &[Text], answer: LeaveGroupResponse) -> Vec<(Text, Item<()>)> {
        if answer.error_code != 0 {
            return keys.iter().map(|id| (id.clone(), item(answer.error_code, None, || ()))).collect();
        }
        let results = answer.members.iter().filter_map(|member| {
            Some((member.group_instance_id.as_ref()?.detached(), item(member.error_code, None, || ())))
        });
        results.collect()
    }

    fn what(&self, group_instance_id: &Text) -> String {
        format!("removing static member `{group_instance_id}` from group `{}`", self.group_id)
    }
}

impl Admin {
    /// Puts static members of a classic group out, by `group.instance.id`, so that the others need not wait for the
    /// session's time-out. `UNKNOWN_MEMBER_ID`: no such member. If the future is dropped, some may be out.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let admin = Admin::connect(ClientSettings::new(bootstrap)?).await?;
    /// for (id, removed) in admin.remove_members(&"shop".into(), &["till-3".into()]).await {
    ///     match removed {
    ///         Ok(()) => println!("{id} is out"),
    ///         Err(error) => println!("{id}: {error}"), // here: it was never in
    ///     }
    /// }
    /// # Ok(())
    /// # });
    /// ```
    pub async fn remove_members(&self, group_id: &Text, group_instance_ids: &[Text]) -> Results<Text, ()> {
        self.run(&RemoveMembers { group_id }, group_instance_ids.to_vec()).await
    }
}
