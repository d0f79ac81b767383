//! Creates the topics of a run; with `Options::admin` it also creates and deletes others, and deletes records.
//! Names are never used twice, so that nothing sent to a deleted topic can meet its successor.

use ottla_core::decision::Reply;
use ottla_env::rng::Rng;
use ottla_protocol::types::TopicIdPartition;

use super::{Client, Ctx};
use crate::history::{Topic, is_compacted};
use crate::message;

/// Kafka's code for a topic that exists.
const TOPIC_ALREADY_EXISTS: i16 = 36;

/// What it waits for.
#[derive(Debug)]
enum Waiting {
    Create(String),
    Delete(String),
    DeleteRecords(TopicIdPartition, i64),
}

/// The client.
#[derive(Debug)]
pub(crate) struct Admin {
    created: u32,
    waiting: Option<(u64, Waiting)>,
    done: bool,
}

impl Admin {
    pub(crate) fn new() -> Self {
        Self { created: 0, waiting: None, done: false }
    }

    fn create(&mut self, name: String, partitions: i32, ctx: &mut Ctx<'_>) {
        ctx.history.topics.insert(name.clone(), Topic { partitions, ..Topic::default() });
        let call = ctx.call_with(7, message::create_topic(&name, partitions), true, false);
        self.waiting = Some((call, Waiting::Create(name)));
    }

    fn act(&mut self, ctx: &mut Ctx<'_>) {
        let targets = ctx.history.targets();
        let extra: Vec<_> = targets.iter().filter(|target| target.0.starts_with('x')).collect();
        match ctx.rng.below(4) {
            0 => {
                self.created += 1;
                let partitions = i32::try_from(ctx.rng.between(1, 2)).expect("small");
                self.create(format!("x{}", self.created), partitions, ctx);
            }
            1 if !extra.is_empty() => {
                let name = extra[ctx.rng.index(extra.len())].0.clone();
                ctx.history.topics.get_mut(&name).expect("it is a target").delete_sent = true;
                let call = ctx.call_with(5, message::delete_topic(&name), true, false);
                self.waiting = Some((call, Waiting::Delete(name)));
            }
            2 if targets.iter().any(|target| !is_compacted(&target.0)) => {
                let targets: Vec<_> = targets.iter().filter(|target| !is_compacted(&target.0)).collect();
                let (name, topic_id, count) = &targets[ctx.rng.index(targets.len())];
                let partition = i32::try_from(ctx.rng.below(*count as u64)).expect("small");
                let place = TopicIdPartition { topic_id: *topic_id, partition };
                let high_watermark = ctx.history.high_watermark(place);
                let offset = i64::try_from(ctx.rng.below(high_watermark as u64 + 1)).expect("an offset");
                ctx.history.deletions.entry(place).or_default().asked.insert(offset);
                let call = ctx.call_with(2, message::delete_records(name, partition, offset), true, false);
                self.waiting = Some((call, Waiting::DeleteRecords(place, offset)));
            }
            _ => {}
        }
    }
}

impl Client for Admin {
    fn name(&self) -> String {
        "admin".to_owned()
    }

    fn wake(&mut self, ctx: &mut Ctx<'_>) {
        if ctx.draining {
            self.done = true;
            return;
        }
        ctx.wake_in = Some(
            if ctx.history.topics.len() < (ctx.options.topics + ctx.options.compacted_topics) as usize {
                5
            } else {
                ctx.think() + 100
            },
        );
        if self.waiting.is_some() {
            return;
        }
        let compacted = (0..ctx.options.compacted_topics).map(|n| format!("k{n}"));
        let missing = (0..ctx.options.topics).map(|n| format!("t{n}")).chain(compacted);
        let missing = missing.into_iter().find(|name| !ctx.history.topics.contains_key(name));
        match missing {
            Some(name) => self.create(name, ctx.options.partitions, ctx),
            None if ctx.options.admin => self.act(ctx),
            None => {}
        }
    }

    fn answered(&mut self, call: u64, attempts: u32, reply: Reply, ctx: &mut Ctx<'_>) {
        let (waited, waiting) = self.waiting.take().expect("only own calls are answered");
        assert_eq!(call, waited, "one call at a time");
        let expected = match (&waiting, &reply) {
            (Waiting::Create(name), Reply::CreateTopics(response)) => match response.topics.first() {
                Some(created) if created.error_code == 0 => {
                    let topic = ctx.history.topics.get_mut(name).expect("it was noted");
                    topic.create_acked = true;
                    topic.id = Some(created.topic_id);
                    !created.topic_id.is_zero()
                }
                // An earlier attempt did it; its id comes with the published image.
                Some(created) if created.error_code == TOPIC_ALREADY_EXISTS && attempts > 1 => {
                    ctx.history.topics.get_mut(name).expect("it was noted").create_acked = true;
                    true
                }
                Some(_) => false,
                None => false,
            },
            (Waiting::Delete(name), Reply::DeleteTopics(response)) => match response.responses.first() {
                Some(deleted) if deleted.error_code == 0 || (deleted.error_code == 3 && attempts > 1) => {
                    ctx.history.topics.get_mut(name).expect("it was noted").delete_acked = true;
                    true
                }
                _ => false,
            },
            (Waiting::DeleteRecords(place, offset), Reply::DeleteRecords(response)) => {
                let partition = response.topics.first().and_then(|topic| topic.partitions.first());
                match partition {
                    Some(partition) if partition.error_code == 0 => {
                        let deletions = ctx.history.deletions.get_mut(place).expect("it was noted");
                        deletions.acked = deletions.acked.max(*offset);
                        partition.low_watermark >= *offset
                    }
                    _ => false,
                }
            }
            _ => false,
        };
        if !expected {
            ctx.history.violation(format!("admin: {waiting:?} (attempt {attempts}) got {reply:?}"));
        }
    }

    fn lost(&mut self, _call: u64, _ctx: &mut Ctx<'_>) {}

    fn is_done(&self) -> bool {
        self.done && self.waiting.is_none()
    }
}
