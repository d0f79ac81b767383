//! The members of a classic group, with what is asked about all of them together.
//!
//! Place in the walk: the table inside a [`ClassicGroup`](super::ClassicGroup). Every request of a member asks
//! whether all have joined, when the next of them expires, what all of them support: looking at each member for
//! that would make the work of a group that comes at once grow with the square of its size.
//!
//! Invariants: a member changes only through [`Members::change`], [`Members::refresh`] and [`Members::each`], so
//! that sums and orders here are those of the members at any time.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::Text;

use super::state::Member;

/// Members by id.
#[derive(Debug, Default)]
pub(super) struct Members {
    by_id: BTreeMap<Text, Member>,
    sums: Sums,
}

/// What is known of all members together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    bytes: usize,
    joined: usize,
    synced: usize,
    /// Members that support a protocol, by its name.
    supporters: BTreeMap<Text, usize>,
    /// When each of them expires if it is not heard of, ms.
    deadlines: BTreeSet<(i64, Text)>,
    /// Ids in the order in which members came.
    order: BTreeMap<u64, Text>,
}

impl Sums {
    fn add(&mut self, id: &Text, member: &Member) {
        self.bytes += member.bytes();
        self.joined += usize::from(member.joined);
        self.synced += usize::from(member.synced);
        for name in names(member) {
            *self.supporters.entry(name.clone()).or_default() += 1;
        }
        self.deadlines.insert((member.session_deadline, id.clone()));
        self.order.insert(member.order, id.clone());
    }

    fn take(&mut self, id: &Text, member: &Member) {
        self.bytes -= member.bytes();
        self.joined -= usize::from(member.joined);
        self.synced -= usize::from(member.synced);
        for name in names(member) {
            let count = self.supporters.get_mut(name).expect("what is taken was added");
            *count -= 1;
            if *count == 0 {
                self.supporters.remove(name);
            }
        }
        self.deadlines.remove(&(member.session_deadline, id.clone()));
        self.order.remove(&member.order);
    }
}

/// Names of the protocols that a member supports, each once.
fn names(member: &Member) -> BTreeSet<&Text> {
    member.protocols.iter().map(|(name, _)| name).collect()
}

impl Members {
    /// A member.
    pub(super) fn get(&self, id: &str) -> Option<&Member> {
        self.by_id.get(id.as_bytes())
    }

    /// Whether somebody has this id.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.by_id.contains_key(id.as_bytes())
    }

    /// Number of members.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All of them, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Text, &Member)> {
        #[cfg(test)]
        looks::count(self.by_id.len());
        self.by_id.iter()
    }

    /// A member comes. Nobody has its id or its place in the order.
    pub(super) fn insert(&mut self, id: Text, member: Member) {
        self.sums.add(&id, &member);
        let before = self.by_id.insert(id, member);
        assert!(before.is_none(), "members come once");
    }

    /// A member goes.
    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        let (id, member) = self.by_id.remove_entry(id.as_bytes())?;
        self.sums.take(&id, &member);
        Some(member)
    }

    /// Changes a member. None: there is no such member.
    pub(super) fn change<R>(&mut self, id: &str, change: impl FnOnce(&mut Member) -> R) -> Option<R> {
        let (id, mut member) = self.by_id.remove_entry(id.as_bytes())?;
        self.sums.take(&id, &member);
        let result = change(&mut member);
        self.sums.add(&id, &member);
        self.by_id.insert(id, member);
        Some(result)
    }

    /// A member was heard of.
    pub(super) fn refresh(&mut self, id: &str, now_ms: i64) {
        let Some(member) = self.by_id.get_mut(id.as_bytes()) else { return };
        let before = member.session_deadline;
        member.refresh(now_ms);
        let after = member.session_deadline;
        if before != after
            && let Some((id, _)) = self.by_id.get_key_value(id.as_bytes())
        {
            self.sums.deadlines.remove(&(before, id.clone()));
            self.sums.deadlines.insert((after, id.clone()));
        }
    }

    /// Changes all of them, by id.
    pub(super) fn each(&mut self, mut change: impl FnMut(&Text, &mut Member)) {
        #[cfg(test)]
        looks::count(self.by_id.len());
        self.sums = Sums::default();
        for (id, member) in &mut self.by_id {
            change(id, member);
            self.sums.add(id, member);
        }
    }

    /// Bytes that they make the broker keep.
    pub(super) fn bytes(&self) -> usize {
        self.sums.bytes
    }

    /// How many have joined the generation that is being prepared.
    pub(super) fn joined(&self) -> usize {
        self.sums.joined
    }

    /// Whether all have joined it.
    pub(super) fn all_joined(&self) -> bool {
        self.sums.joined == self.by_id.len()
    }

    /// Whether all have asked for their assignment.
    pub(super) fn all_synced(&self) -> bool {
        self.sums.synced == self.by_id.len()
    }

    /// Whether all support this protocol.
    pub(super) fn all_support(&self, protocol: &str) -> bool {
        let supporters = self.sums.supporters.get(protocol.as_bytes()).copied();
        supporters.unwrap_or_default() == self.by_id.len()
    }

    /// When the first of them expires, ms.
    pub(super) fn next_deadline(&self) -> Option<i64> {
        self.sums.deadlines.first().map(|(at, _)| *at)
    }

    /// Those that expire now or did before, by id.
    pub(super) fn due(&self, now_ms: i64) -> BTreeSet<Text> {
        let due = self.sums.deadlines.iter().take_while(|(at, _)| *at <= now_ms);
        due.map(|(_, id)| id.clone()).collect()
    }

    /// Who came first.
    pub(super) fn oldest(&self) -> Option<&Text> {
        self.sums.order.first_key_value().map(|(_, id)| id)
    }

    /// In the order in which they came.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (&Text, &Member)> {
        #[cfg(test)]
        looks::count(self.by_id.len());
        self.sums.order.values().filter_map(|id| self.by_id.get_key_value(id))
    }
}

/// Ids that were given to members that must still come with them.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// When each expires, ms.
    by_id: BTreeMap<Text, i64>,
    deadlines: BTreeSet<(i64, Text)>,
    bytes: usize,
}

impl Pending {
    /// Whether this id was given out.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.by_id.contains_key(id.as_bytes())
    }

    /// Number of ids.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Bytes that they make the broker keep.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// An id is given out until then, ms.
    pub(super) fn insert(&mut self, id: Text, deadline: i64) {
        self.remove(&id);
        self.bytes += bytes_of(&id);
        self.deadlines.insert((deadline, id.clone()));
        self.by_id.insert(id, deadline);
    }

    /// An id is waited for no more. False: it was not.
    pub(super) fn remove(&mut self, id: &str) -> bool {
        let Some((id, deadline)) = self.by_id.remove_entry(id.as_bytes()) else { return false };
        self.bytes -= bytes_of(&id);
        self.deadlines.remove(&(deadline, id));
        true
    }

    /// Forgets what expires now or did before. False: nothing did.
    pub(super) fn expire(&mut self, now_ms: i64) -> bool {
        let before = self.len();
        while let Some((_, id)) = self.deadlines.first().filter(|(at, _)| *at <= now_ms).cloned() {
            self.remove(&id);
        }
        self.len() < before
    }

    /// When the first of them expires, ms.
    pub(super) fn next_deadline(&self) -> Option<i64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Moves all of them.
    pub(super) fn shift_deadlines(&mut self, by_ms: i64) {
        for at in self.by_id.values_mut() {
            *at = at.saturating_add(by_ms);
        }
        self.deadlines = self.by_id.iter().map(|(id, at)| (*at, id.clone())).collect();
    }
}

fn bytes_of(id: &Text) -> usize {
    id.len() + 64
}

/// Counts how many members are looked at, for tests.
#[cfg(test)]
pub(super) mod looks {
    use std::cell::Cell;

    thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

    pub(super) fn count(members: usize) {
        LOOKS.set(LOOKS.get() + members);
    }

    /// How many there were since the last time.
    pub(in crate::group::classic) fn taken() -> usize {
        LOOKS.take()
    }
}
