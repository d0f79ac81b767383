//! The join phase: how it begins, how it ends, and what timers do.
//!
//! Place in the walk: called by `join`, `leave` and `sync` when members come, go or change; [`ClassicGroup::tick`]
//! by the shard's tick.
//!
//! Invariants: a join phase ends when every member has joined and no id that was given out is missing, or at its
//! deadline; then the generation grows by one, there is one leader, and the protocol is one that all support.
//! The first join phase of an empty group never ends before its delay.

use bytes::Bytes;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;

use super::state::{ClassicGroup, JoinPhase, Member, State, Waiting};
use super::{Turn, join, sync};
use crate::command::Token;
use crate::decision::Reply;

/// Least wait for members of whom nobody came, so that a timeout of zero does not spin.
const NOBODY_CAME_MS: i64 = 500;

impl ClassicGroup {
    /// The longest time that a member may take to join again.
    fn rebalance_timeout_ms(&self) -> i64 {
        self.members.iter().map(|(_, member)| member.rebalance_timeout_ms).max().unwrap_or(0)
    }

    fn all_joined(&self) -> bool {
        self.pending.is_empty() && self.members.all_joined()
    }

    /// Calls the members to join again.
    pub(super) fn prepare_rebalance(&mut self, turn: &mut Turn) {
        if self.state == State::CompletingRebalance {
            self.members.each(|_, member| {
                member.assignment = Bytes::new();
                if let Waiting::Sync(parked) = member.waiting {
                    member.waiting = Waiting::None;
                    member.refresh(turn.now_ms);
                    let response = sync::refused(ErrorCode::RebalanceInProgress);
                    turn.answers.push((parked, Reply::SyncGroup(response)));
                }
            });
        }
        self.sync_deadline = None;
        let timeout_ms = self.rebalance_timeout_ms();
        if self.state == State::Empty {
            self.state = State::PreparingRebalance;
            let delay_ms = turn.rules.initial_rebalance_delay_ms;
            self.join_phase = Some(JoinPhase::Initial {
                deadline: turn.now_ms.saturating_add(delay_ms),
                delay_ms,
                remaining_ms: timeout_ms.saturating_sub(delay_ms).max(0),
                member_added: false,
            });
        } else {
            self.state = State::PreparingRebalance;
            self.join_phase = Some(JoinPhase::Usual { deadline: turn.now_ms.saturating_add(timeout_ms) });
            self.maybe_complete_join(turn);
        }
    }

    /// Begins a rebalance, or sees whether the one that runs has everybody now.
    pub(super) fn rebalance_or_complete(&mut self, turn: &mut Turn) {
        if self.state == State::PreparingRebalance {
            self.maybe_complete_join(turn);
        } else {
            self.prepare_rebalance(turn);
        }
    }

    /// Ends the join phase if everybody has joined.
    pub(super) fn maybe_complete_join(&mut self, turn: &mut Turn) {
        if matches!(self.join_phase, Some(JoinPhase::Usual { .. })) && self.all_joined() {
            self.complete_join(turn);
        }
    }

    /// Calls whoever waits to join again, somewhere else.
    pub(super) fn dismiss(&mut self, turn: &mut Turn) {
        let mut waiting: Vec<(Text, Waiting)> = Vec::with_capacity(self.members.len());
        self.members.each(|id, member| waiting.push((id.clone(), std::mem::take(&mut member.waiting))));
        for (id, waiting) in waiting {
            self.answer_with(turn, &id, waiting, ErrorCode::RebalanceInProgress);
        }
    }

    /// Members are gone.
    pub(super) fn after_removal(&mut self, turn: &mut Turn) {
        if self.state != State::Empty {
            self.rebalance_or_complete(turn);
        }
    }

    /// Takes a member out. Whatever it waits for is answered with that error.
    pub(super) fn remove_member(&mut self, turn: &mut Turn, id: &Text, code: ErrorCode) {
        let Some(member) = self.members.remove(id) else { return };
        if let Some(instance_id) = &member.instance_id
            && self.static_members.get(instance_id) == Some(id)
        {
            self.static_members.remove(instance_id);
        }
        self.answer_with(turn, id, member.waiting, code);
        if self.leader.as_ref() == Some(id) {
            self.leader = self.members.oldest().cloned();
        }
    }

    /// Answers what a member waits for with an error.
    pub(super) fn answer_with(&self, turn: &mut Turn, id: &Text, waiting: Waiting, code: ErrorCode) {
        match waiting {
            Waiting::None => {}
            Waiting::Join(parked) => {
                let response = join::refused(code, parked.version, id.clone());
                turn.answers.push((parked, Reply::JoinGroup(response)));
            }
            Waiting::Sync(parked) => turn.answers.push((parked, Reply::SyncGroup(sync::refused(code)))),
        }
    }

    /// Ends the join phase with those who came.
    fn complete_join(&mut self, turn: &mut Turn) {
        let absent: Vec<Text> = self
            .members
            .iter()
            .filter(|(_, member)| !member.joined && member.instance_id.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for id in absent {
            self.remove_member(turn, &id, ErrorCode::UnknownMemberId);
        }
        let leader = self.leader.as_ref().and_then(|leader| self.members.get(leader));
        if !leader.is_some_and(|leader| leader.joined) {
            match self.members.in_order().find(|(_, member)| member.joined) {
                Some((oldest, _)) => self.leader = Some(oldest.clone()),
                // Static members alone, and none of them came: they are waited for until their sessions end.
                None if !self.members.is_empty() => {
                    let timeout_ms = self.rebalance_timeout_ms().max(NOBODY_CAME_MS);
                    let deadline = turn.now_ms.saturating_add(timeout_ms);
                    self.join_phase = Some(JoinPhase::Usual { deadline });
                    return;
                }
                None => self.leader = None,
            }
        }
        self.join_phase = None;
        self.generation_id = self.generation_id.checked_add(1).unwrap_or(1);
        if self.members.is_empty() {
            self.state = State::Empty;
            self.protocol_name = None;
            turn.store = true;
            return;
        }
        self.protocol_name = self.select_protocol();
        self.state = State::CompletingRebalance;
        self.sync_deadline = Some(turn.now_ms.saturating_add(self.rebalance_timeout_ms()));
        self.answer_joins(turn);
    }

    fn answer_joins(&mut self, turn: &mut Turn) {
        let mut waiting = Vec::new();
        self.members.each(|id, member| {
            member.joined = false;
            member.synced = false;
            member.is_new = false;
            member.refresh(turn.now_ms);
            if let Waiting::Join(parked) = std::mem::take(&mut member.waiting) {
                waiting.push((id.clone(), parked));
            }
        });
        for (id, parked) in waiting {
            let response = self.join_response(&id);
            turn.answers.push((parked, Reply::JoinGroup(response)));
        }
    }

    /// Each member votes for the first of its protocols that all support; the most votes win, then the oldest
    /// member's preference.
    pub(super) fn select_protocol(&self) -> Option<Text> {
        let oldest = self.members.get(self.members.oldest()?)?;
        let names = oldest.protocols.iter().map(|(name, _)| name);
        let common: Vec<&Text> = names.filter(|name| self.members.all_support(name)).collect();
        let mut votes = vec![0usize; common.len()];
        for (_, member) in self.members.iter() {
            let first =
                member.protocols.iter().find_map(|(name, _)| common.iter().position(|it| *it == name));
            if let Some(at) = first {
                votes[at] += 1;
            }
        }
        let best = votes.iter().max()?;
        votes.iter().position(|count| count == best).map(|at| common[at].clone())
    }

    /// Fires what is due.
    pub(super) fn tick(&mut self, turn: &mut Turn) {
        if self.pending.expire(turn.now_ms) {
            self.maybe_complete_join(turn);
        }
        self.expire_sessions(turn);
        match self.join_phase {
            Some(JoinPhase::Initial { deadline, delay_ms, remaining_ms, member_added })
                if deadline <= turn.now_ms =>
            {
                if member_added && remaining_ms > 0 {
                    let next_ms = turn.rules.initial_rebalance_delay_ms.min(remaining_ms);
                    self.join_phase = Some(JoinPhase::Initial {
                        deadline: turn.now_ms.saturating_add(next_ms),
                        delay_ms: next_ms,
                        remaining_ms: remaining_ms.saturating_sub(delay_ms).max(0),
                        member_added: false,
                    });
                } else {
                    self.complete_join(turn);
                }
            }
            Some(JoinPhase::Usual { deadline }) if deadline <= turn.now_ms => self.complete_join(turn),
            _ => {}
        }
        if self.sync_deadline.is_some_and(|deadline| deadline <= turn.now_ms) {
            self.sync_deadline = None;
            self.expire_unsynced(turn);
        }
    }

    fn expire_sessions(&mut self, turn: &mut Turn) {
        let mut expired = self.members.due(turn.now_ms);
        let waits = |member: &Member| !member.is_new && member.waiting != Waiting::None;
        expired.retain(|id| {
            let waits = self.members.get(id).is_some_and(waits);
            if waits {
                self.members.refresh(id, turn.now_ms); // it waits for us
            }
            !waits
        });
        for id in &expired {
            self.remove_member(turn, id, ErrorCode::UnknownMemberId);
        }
        if !expired.is_empty() {
            self.after_removal(turn);
        }
    }

    fn expire_unsynced(&mut self, turn: &mut Turn) {
        let unsynced: Vec<Text> =
            self.members.iter().filter(|(_, member)| !member.synced).map(|(id, _)| id.clone()).collect();
        for id in &unsynced {
            self.remove_member(turn, id, ErrorCode::UnknownMemberId);
        }
        if !unsynced.is_empty() {
            self.after_removal(turn);
        }
    }

    /// The connection on which a member waits is gone. A member that does not know its id yet can never come
    /// back; any other has one session to do so.
    pub(super) fn abandoned(&mut self, turn: &mut Turn, token: Token, id: &Text) {
        let Some(member) = self.members.get(id) else { return };
        match member.waiting {
            Waiting::Join(parked) | Waiting::Sync(parked) if parked.token == token => {}
            _ => return,
        }
        let is_lost = member.is_new && !member.knows_id;
        self.members.change(id, |member| {
            member.waiting = Waiting::None;
            member.refresh(turn.now_ms);
        });
        if is_lost {
            self.remove_member(turn, id, ErrorCode::UnknownMemberId);
            self.after_removal(turn);
        }
    }

    /// When the next timer is due, ms.
    pub(in crate::group) fn next_deadline(&self) -> Option<i64> {
        let join = self.join_phase.map(|phase| match phase {
            JoinPhase::Initial { deadline, .. } | JoinPhase::Usual { deadline } => deadline,
        });
        let sessions = self.members.next_deadline().into_iter();
        sessions.chain(self.pending.next_deadline()).chain(join).chain(self.sync_deadline).min()
    }

    /// Moves all timers.
    pub(in crate::group) fn shift_deadlines(&mut self, by_ms: i64) {
        self.members
            .each(|_, member| member.session_deadline = member.session_deadline.saturating_add(by_ms));
        self.pending.shift_deadlines(by_ms);
        if let Some(deadline) = &mut self.sync_deadline {
            *deadline = deadline.saturating_add(by_ms);
        }
        if let Some(JoinPhase::Initial { deadline, .. } | JoinPhase::Usual { deadline }) =
            &mut self.join_phase
        {
            *deadline = deadline.saturating_add(by_ms);
        }
    }
}
