//! A consumer without a group's members: it commits offsets and reads them back. What was acknowledged never
//! goes back.

use ottla_core::decision::Reply;
use ottla_env::rng::Rng;

use super::{Client, Ctx};
use crate::history::Commit;
use crate::message;

/// What it waits for.
#[derive(Debug)]
enum Waiting {
    Commit(usize),
    /// The newest commit that was acknowledged when the fetch was sent.
    Fetch {
        at_least: i64,
    },
}

/// The client.
#[derive(Debug)]
pub(crate) struct Offsets {
    number: u32,
    acked: i64,
    waiting: Option<(u64, Waiting)>,
    done: bool,
}

impl Offsets {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, acked: -1, waiting: None, done: false }
    }

    fn group(&self) -> String {
        format!("offsets-{}", self.number)
    }
}

impl Client for Offsets {
    fn name(&self) -> String {
        self.group()
    }

    fn wake(&mut self, ctx: &mut Ctx<'_>) {
        if ctx.draining {
            self.done = true;
            return;
        }
        ctx.wake_in = Some(ctx.think() + 5);
        if self.waiting.is_some() || ctx.history.topics.get("t0").is_none_or(|topic| topic.id.is_none()) {
            return;
        }
        let (body, waiting, version) = if ctx.rng.one_in(3) {
            let stable = ctx.rng.one_in(2);
            (
                message::offset_fetch(&self.group(), "t0", 0, stable),
                Waiting::Fetch { at_least: self.acked },
                8,
            )
        } else {
            let commit = ctx.history.commits.len();
            ctx.history.commits.push(Commit {
                group: self.group(),
                topic: "t0".to_owned(),
                partition: 0,
                acked: false,
            });
            (message::offset_commit(ctx.history, commit), Waiting::Commit(commit), 8)
        };
        let call = ctx.call_with(version, body, true, false);
        self.waiting = Some((call, waiting));
    }

    fn answered(&mut self, call: u64, _attempts: u32, reply: Reply, ctx: &mut Ctx<'_>) {
        let (waited, waiting) = self.waiting.take().expect("only own calls are answered");
        assert_eq!(call, waited, "one call at a time");
        match (waiting, &reply) {
            (Waiting::Commit(commit), Reply::OffsetCommit(response)) => {
                let code =
                    response.topics.first().and_then(|topic| Some(topic.partitions.first()?.error_code));
                if code == Some(0) {
                    ctx.history.commits[commit].acked = true;
                    ctx.history.counts.offsets_acked += 1;
                    self.acked = commit as i64;
                } else {
                    ctx.history.violation(format!("{}: OffsetCommit got {reply:?}", self.name()));
                }
            }
            (Waiting::Fetch { at_least }, _) => match message::fetched_offset(&reply) {
                Some((0, offset)) if offset >= at_least => {}
                other => {
                    let text =
                        format!("{}: acknowledged {at_least}, fetched {other:?} in {reply:?}", self.name());
                    ctx.history.violation(text);
                }
            },
            _ => ctx.history.violation(format!("{}: OffsetCommit got {reply:?}", self.name())),
        }
    }

    fn lost(&mut self, _call: u64, _ctx: &mut Ctx<'_>) {}

    fn is_done(&self) -> bool {
        self.done && self.waiting.is_none()
    }
}
