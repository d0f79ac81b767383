//! What a survey finds of groups: their number by type and state, members, committed offsets.
//!
//! Place in the walk: beside it, see [`crate::survey`]. Only reads.

use super::Groups;
use super::admin::listed;
use crate::survey::{Committed, Survey};

impl Groups {
    /// Counts groups, their members (those that were given an id and did not come yet included) and offsets.
    pub(crate) fn count(&self, survey: &mut Survey) {
        survey.group_offsets = self.values as u64;
        for group in self.index.values() {
            let (state, _, kind) = listed(&group.protocol);
            *survey.groups.entry((kind, state)).or_default() += 1;
            *survey.group_members.entry(kind).or_default() += group.weight.0 as u64;
        }
    }

    /// Keys of offsets that have a value.
    pub(crate) fn keys(&self) -> u64 {
        self.offsets.len() as u64
    }

    /// One past the largest slot of an offset that may be in use.
    pub(crate) fn slot_bound(&self) -> u32 {
        self.offsets.slot_bound()
    }

    /// The committed offsets in a range of slots, in slot order.
    pub(crate) fn committed_in_slots(&self, from: u32, to: u32) -> impl Iterator<Item = Committed> {
        let slots = self.offsets.iter_from(from).skip_while(move |(slot, _)| *slot < from);
        slots.take_while(move |(slot, _)| *slot < to).filter_map(|(_, values)| {
            let committed = values.committed.as_ref()?;
            Some(Committed {
                group: values.key.group.clone(),
                topic: values.key.topic.clone(),
                topic_id: committed.topic_id,
                partition: values.key.partition,
                offset: committed.offset,
            })
        })
    }
}
