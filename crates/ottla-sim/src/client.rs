//! Simulated clients: state machines that are woken, answered, or told that an answer will never come.
//!
//! A client never looks at the broker. It knows which errors it may be given; any other is a broken promise. The
//! network around it (`world`) repeats requests whose connection broke, in order, on a new connection.

pub(crate) mod admin;
pub(crate) mod idempotent;
pub(crate) mod offsets;
pub(crate) mod plain;
pub(crate) mod transactional;

use ottla_core::command::CommandBody;
use ottla_core::decision::Reply;
use ottla_env::rng::SeededRng;

use crate::history::History;
use crate::options::Options;

/// What a client sees of the world, and where it puts what it wants to do.
pub(crate) struct Ctx<'a> {
    /// The client's own clock, ms.
    pub(crate) now_ms: i64,
    /// How far shard time has moved forward since the run began, ms, as far as anybody has seen: what began less
    /// than its timeout ago by this measure cannot have timed out.
    pub(crate) shard_forward_ms: i64,
    pub(crate) rng: &'a mut SeededRng,
    pub(crate) history: &'a mut History,
    pub(crate) options: &'a Options,
    /// No new work is begun any more.
    pub(crate) draining: bool,
    pub(crate) next_call: &'a mut u64,
    /// Requests to send, in order.
    pub(crate) calls: Vec<Call>,
    /// When to be woken again, ms from now.
    pub(crate) wake_in: Option<u64>,
    /// New clients.
    pub(crate) spawn: Vec<Box<dyn Client>>,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Names it to its client.
    pub(crate) number: u64,
    pub(crate) version: i16,
    pub(crate) body: CommandBody,
    /// Whether it is repeated when its connection breaks.
    pub(crate) repeats: bool,
    /// Whether it may still arrive after its connection was cut.
    pub(crate) may_be_late: bool,
}

impl Ctx<'_> {
    /// Sends a request that is repeated until it is answered and that may arrive late.
    pub(crate) fn call(&mut self, version: i16, body: CommandBody) -> u64 {
        self.call_with(version, body, true, true)
    }

    pub(crate) fn call_with(
        &mut self,
        version: i16,
        body: CommandBody,
        repeats: bool,
        may_be_late: bool,
    ) -> u64 {
        *self.next_call += 1;
        let number = *self.next_call;
        self.calls.push(Call { number, version, body, repeats, may_be_late });
        number
    }

    /// A pause before the next step: mostly short.
    pub(crate) fn think(&mut self) -> u64 {
        use ottla_env::rng::Rng;
        match self.rng.below(20) {
            0..=11 => self.rng.below(3),
            12..=18 => self.rng.between(3, 60),
            _ => self.rng.between(100, 1_000),
        }
    }
}

/// A client.
pub(crate) trait Client {
    /// For messages.
    fn name(&self) -> String;
    /// Time has passed.
    fn wake(&mut self, ctx: &mut Ctx<'_>);
    /// A request was answered; `attempts` counts how often it was sent.
    fn answered(&mut self, call: u64, attempts: u32, reply: Reply, ctx: &mut Ctx<'_>);
    /// A request that is not repeated will never be answered.
    fn lost(&mut self, call: u64, ctx: &mut Ctx<'_>);
    /// An attempt broke; the network repeats it.
    fn attempt_broke(&mut self, _call: u64, _ctx: &mut Ctx<'_>) {}
    /// The client crashes; its successor is put into `ctx.spawn`. True: it goes on as a zombie.
    fn crash(&mut self, _ctx: &mut Ctx<'_>) -> bool {
        false
    }
    /// Whether it can crash.
    fn can_crash(&self) -> bool {
        false
    }
    /// Whether it will do nothing more.
    fn is_done(&self) -> bool;
}
