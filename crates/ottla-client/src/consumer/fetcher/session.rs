//! What a broker remembers between two fetches (KIP-227): then only changes are sent, and only news come back.
//!
//! A session begins with a full request (epoch 0), which the broker answers with the session's id, or with none
//! when it has no room: then every request is a full one. Whatever goes wrong, the next request is full and ends
//! the old session. Pure.

use std::collections::BTreeMap;

use ottla_protocol::types::Uuid;

use crate::record::TopicPartition;

/// One partition of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::consumer) struct Asked {
    pub(super) topic_partition: TopicPartition,
    pub(super) topic_id: Uuid,
    pub(super) offset: i64,
    pub(super) leader_epoch: i32,
    pub(super) generation: u64,
}

impl Asked {
    /// Whether the broker has to be told.
    fn differs(&self, known: &Self) -> bool {
        (self.topic_id, self.offset, self.leader_epoch) != (known.topic_id, known.offset, known.leader_epoch)
    }
}

/// What goes into a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) session_id: i32,
    pub(super) session_epoch: i32,
    pub(super) send: Vec<Asked>,
    pub(super) forget: Vec<Asked>,
    /// Topics are named by id; else by name.
    pub(super) by_id: bool,
}

/// A session with one node.
#[derive(Debug, Default)]
pub(super) struct Session {
    id: i32,
    /// 0: the next request is full.
    epoch: i32,
    by_id: bool,
    known: BTreeMap<TopicPartition, Asked>,
}

impl Session {
    /// Plans a fetch of exactly these partitions.
    pub(super) fn plan(&mut self, asked: &[Asked]) -> Plan {
        let by_id = asked.iter().all(|asked| !asked.topic_id.is_zero());
        if by_id != self.by_id {
            self.epoch = 0;
            self.by_id = by_id;
        }
        let (session_id, session_epoch) = (self.id, self.epoch);
        let fresh: BTreeMap<TopicPartition, Asked> =
            asked.iter().map(|asked| (asked.topic_partition.clone(), asked.clone())).collect();
        let old = std::mem::replace(&mut self.known, fresh);
        if session_epoch == 0 {
            return Plan { session_id, session_epoch, send: asked.to_vec(), forget: Vec::new(), by_id };
        }
        let changed =
            |asked: &&Asked| old.get(&asked.topic_partition).is_none_or(|known| asked.differs(known));
        let send = asked.iter().filter(changed).cloned().collect();
        let gone = |known: &&Asked| {
            self.known.get(&known.topic_partition).is_none_or(|now| now.topic_id != known.topic_id)
        };
        let forget = old.values().filter(gone).cloned().collect();
        Plan { session_id, session_epoch, send, forget, by_id }
    }

    /// The request was answered without an error; `session_id` is in the answer.
    pub(super) fn answered(&mut self, session_id: i32) {
        if self.epoch == 0 {
            self.id = session_id;
            self.epoch = i32::from(session_id != 0);
        } else if session_id == self.id {
            self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        } else {
            self.lose(session_id == 0);
        }
    }

    /// The next request is full; with `forgotten` the broker has no session to end.
    pub(super) fn lose(&mut self, forgotten: bool) {
        self.epoch = 0;
        if forgotten {
            self.id = 0;
        }
    }

    /// The id of a session that the broker holds.
    pub(super) fn open(&self) -> Option<i32> {
        (self.id != 0 && self.epoch > 0).then_some(self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(partition: i32, offset: i64, id: u8) -> Asked {
        Asked {
            topic_partition: TopicPartition::new("t", partition),
            topic_id: Uuid([id; 16]),
            offset,
            leader_epoch: 0,
            generation: 1,
        }
    }

    fn numbers(asked: &[Asked]) -> Vec<i32> {
        asked.iter().map(|asked| asked.topic_partition.partition).collect()
    }

    /// Proves that only changes are sent in a session, that what left is forgotten, and that epochs go on.
    #[test]
    fn changes_only() {
        let mut session = Session::default();
        let plan = session.plan(&[asked(0, 0, 1), asked(1, 0, 1)]);
        assert_eq!((plan.session_id, plan.session_epoch, numbers(&plan.send)), (0, 0, vec![0, 1]));
        session.answered(7);
        let plan = session.plan(&[asked(0, 5, 1), asked(1, 0, 1)]);
        assert_eq!((plan.session_id, plan.session_epoch, numbers(&plan.send)), (7, 1, vec![0]));
        session.answered(7);
        let plan = session.plan(&[asked(1, 0, 1), asked(2, 0, 1)]);
        assert_eq!((plan.session_epoch, numbers(&plan.send), numbers(&plan.forget)), (2, vec![2], vec![0]));
        session.answered(7);
        // a topic that was made again under its name is another one
        let plan = session.plan(&[asked(1, 0, 2), asked(2, 0, 2)]);
        assert_eq!((numbers(&plan.send), numbers(&plan.forget)), (vec![1, 2], vec![1, 2]));
    }

    /// Proves that whatever happens to a session ends in a full request, and that without one all are full.
    #[test]
    fn losses() {
        let mut session = Session::default();
        session.plan(&[asked(0, 0, 1)]);
        session.answered(0);
        let plan = session.plan(&[asked(0, 0, 1)]);
        assert_eq!((plan.session_id, plan.session_epoch, plan.send.len()), (0, 0, 1));
        session.answered(7);
        session.plan(&[asked(0, 1, 1)]);
        session.lose(false);
        let plan = session.plan(&[asked(0, 1, 1)]);
        assert_eq!((plan.session_id, plan.session_epoch, plan.send.len()), (7, 0, 1), "ends the old one");
        session.answered(8);
        session.answered(9);
        assert_eq!(session.plan(&[asked(0, 1, 1)]).session_epoch, 0, "an answer of another session");
        session.answered(10);
        assert_eq!(session.plan(&[asked(0, 1, 0)]).session_epoch, 0, "from ids to names");
        session.answered(11);
        session.epoch = i32::MAX;
        session.answered(11);
        assert_eq!(session.epoch, 1, "0 and -1 mean something else");
    }
}
