//! The processor API: code of the user's that sees one record at a time, has stores and timers.
//!
//! A processor is given as a factory and is made anew for each task and after each rollback, so fields of it that
//! matter are in a store, or rebuilt in [`Processor::init`] (I5).
//!
//! Place in the walk: topology -> task -> here. Not here: the DSL's own operators.

use std::any::Any;
use std::marker::PhantomData;
use std::time::Duration;

use ottla_client::Header;

pub use crate::task::{ProcessError, RecordPosition, TimerClock};

use crate::record::TaskId;
use crate::store::{Opening, StoreError, StoreHandle};
use crate::task::node::{Cx, taken};
use crate::task::{Core, Failure, Node};

/// A record with typed key and value.
#[derive(Clone, Debug, PartialEq)]
pub struct Record<K, V> {
    /// Its key.
    pub key: K,
    /// Its value.
    pub value: V,
    /// Milliseconds since 1970: event time.
    pub timestamp: i64,
    /// Headers of the input record; they travel with it.
    pub headers: Vec<Header>,
}

impl<K, V> Record<K, V> {
    /// A record without headers.
    ///
    /// ```
    /// use ottla_streams::processor::Record;
    /// let record = Record::new("key", 7, 1_000).with_value("seven");
    /// assert_eq!((record.key, record.value, record.timestamp), ("key", "seven", 1_000));
    /// ```
    pub fn new(key: K, value: V, timestamp: i64) -> Self {
        Self { key, value, timestamp, headers: Vec::new() }
    }

    /// The same with another key.
    ///
    /// ```
    /// # use ottla_streams::processor::Record;
    /// assert_eq!(Record::new(1, "x", 5).with_key(2), Record::new(2, "x", 5));
    /// ```
    pub fn with_key<K2>(self, key: K2) -> Record<K2, V> {
        Record { key, value: self.value, timestamp: self.timestamp, headers: self.headers }
    }

    /// The same with another value.
    ///
    /// ```
    /// # use ottla_streams::processor::Record;
    /// assert_eq!(Record::new(1, "x", 5).with_value("y"), Record::new(1, "y", 5));
    /// ```
    pub fn with_value<V2>(self, value: V2) -> Record<K, V2> {
        Record { key: self.key, value, timestamp: self.timestamp, headers: self.headers }
    }
}

/// Code that takes one record at a time.
///
/// ```
/// use std::time::Duration;
/// use ottla_streams::codec::{I64, Utf8};
/// use ottla_streams::processor::{Context, ProcessError, Processor, Record, TimerClock};
/// use ottla_streams::store::KvStore;
/// use ottla_streams::topology::Topology;
///
/// /// Forwards the first record of each key, and once a minute forgets all keys.
/// struct First {
///     seen: KvStore<String, i64>,
/// }
///
/// impl Processor for First {
///     type KeyIn = String;
///     type In = i64;
///     type KeyOut = String;
///     type Out = i64;
///
///     fn init(&mut self, cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
///         cx.schedule("forget", TimerClock::StreamTime, Duration::from_secs(60))
///     }
///
///     fn process(&mut self, r: Record<String, i64>, cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
///         if cx.store(&self.seen).get(&r.key)?.is_none() {
///             cx.store(&self.seen).put(&r.key, &r.timestamp)?;
///             cx.forward(r)?;
///         }
///         Ok(())
///     }
///
///     fn timer(&mut self, _name: &str, _at: i64, cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
///         let keys: Vec<String> = cx.store(&self.seen).all()?.map(|entry| entry.map(|(key, _)| key)).collect::<Result<_, _>>()?;
///         keys.iter().try_for_each(|key| cx.store(&self.seen).delete(key))?;
///         Ok(())
///     }
/// }
///
/// let topology = Topology::new("app", |b| {
///     let seen = b.kv_store("seen", Utf8, I64);
///     let input = b.stream("in", Utf8, I64);
///     let handle = seen.clone();
///     let first = input.process("first", &[&seen], move || First { seen: handle.clone() });
///     first.keys_as(Utf8).values_as(I64).to("out");
/// })?;
/// # Ok::<(), ottla_streams::topology::TopologyError>(())
/// ```
pub trait Processor: Send + 'static {
    /// Keys that it takes.
    type KeyIn: 'static;
    /// Values that it takes.
    type In: 'static;
    /// Keys that it forwards.
    type KeyOut: Clone + Send + 'static;
    /// Values that it forwards.
    type Out: Clone + Send + 'static;

    /// Before the first record, and after each rollback. May read stores and schedule timers.
    fn init(&mut self, _cx: &mut Context<'_, Self::KeyOut, Self::Out>) -> Result<(), ProcessError> {
        Ok(())
    }

    /// A record. On an error the topology's policy decides; what was written and forwarded for it does not count then.
    fn process(
        &mut self,
        record: Record<Self::KeyIn, Self::In>,
        cx: &mut Context<'_, Self::KeyOut, Self::Out>,
    ) -> Result<(), ProcessError>;

    /// A timer of [`Context::schedule`] is due; `at` is the time of its clock, ms. An error stops the task.
    fn timer(
        &mut self,
        _name: &str,
        _at: i64,
        _cx: &mut Context<'_, Self::KeyOut, Self::Out>,
    ) -> Result<(), ProcessError> {
        Ok(())
    }

    /// The task ends or is rolled back.
    fn close(&mut self) {}
}

/// What a processor may do: forward, read and write stores, schedule timers.
/// ```
/// use std::time::Duration;
/// use ottla_streams::processor::{Context, ProcessError, Record, TimerClock};
///
/// fn init(cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
///     cx.schedule("every-second", TimerClock::WallClock, Duration::from_secs(1))
/// }
///
/// fn process(r: Record<String, i64>, cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
///     let late = cx.stream_time() - r.timestamp;
///     if late > 60_000 {
///         let at = cx.position().map(ToString::to_string).unwrap_or_default();
///         return Err(format!("task {}: {at} is {late} ms late", cx.task()).into());
///     }
///     if r.value > 1_000 {
///         cx.request_commit(); // shows it at once
///     }
///     cx.forward(r)
/// }
/// ```
pub struct Context<'a, K, V> {
    core: &'a mut Core,
    node: usize,
    output: PhantomData<fn(K, V)>,
}

impl<K: Clone + 'static, V: Clone + 'static> Context<'_, K, V> {
    /// Gives a record to the steps after this processor, which work on it before this returns. When one of them
    /// fails, the record at hand has failed, whatever the processor makes of the error.
    pub fn forward(&mut self, record: Record<K, V>) -> Result<(), ProcessError> {
        let result = Cx { core: self.core, node: self.node }.forward(0, record);
        result.map_err(|failure| {
            if self.core.starting {
                return "nothing can be forwarded in init".into();
            }
            self.core.fault.get_or_insert(failure);
            "a later step failed".into()
        })
    }

    /// A store that was given to the processor.
    pub fn store<'s, S: StoreHandle>(&'s mut self, handle: &'s S) -> S::Access<'s> {
        handle.open(Opening(self.core))
    }

    /// Calls [`Processor::timer`] with that name at every multiple of `every` of a clock, from now on; several
    /// multiples passed at once are one call. Only in [`Processor::init`], so that a rollback or a restart sets the
    /// same timers again. Less than a millisecond is one.
    pub fn schedule(&mut self, name: &str, clock: TimerClock, every: Duration) -> Result<(), ProcessError> {
        if !self.core.starting {
            return Err(
                "timers are scheduled in init only: those set later would be gone after a restart".into()
            );
        }
        let every_ms = i64::try_from(every.as_millis()).unwrap_or(i64::MAX).max(1);
        let Core { timers, names, kept_timers, stream_time, .. } = &mut *self.core;
        timers.schedule((self.node, &names[self.node]), name, clock, every_ms, (*stream_time, kept_timers));
        Ok(())
    }

    /// Asks for a commit after this record, instead of at the next interval.
    pub fn request_commit(&mut self) {
        self.core.commit_requested = true;
    }

    /// The task.
    pub fn task(&self) -> TaskId {
        self.core.id
    }

    /// The input record at hand; in a timer the last one, absent when there was none since the start.
    pub fn position(&self) -> Option<&RecordPosition> {
        self.core.position.as_ref()
    }

    /// Highest timestamp of the task's input records so far, ms; `i64::MIN` = none yet.
    pub fn stream_time(&self) -> i64 {
        self.core.stream_time
    }

    /// The machine's clock, ms since 1970, as of this step. Not the same when a record is taken again.
    pub fn wall_clock(&self) -> i64 {
        self.core.wall_ms
    }
}

/// A user's processor as a node.
pub(crate) struct ProcessorNode<P>(pub(crate) P);

/// What the user's code came to; failures of stores and later steps weigh more than what it says itself.
fn outcome(result: Result<(), ProcessError>, core: &mut Core) -> Result<(), Failure> {
    if let Some(fault) = core.fault.take() {
        return Err(fault);
    }
    result.map_err(|error| match error.downcast::<StoreError>() {
        Ok(error) => Failure::from(*error),
        Err(error) => Failure::Process(error.to_string()),
    })
}

impl<P: Processor> ProcessorNode<P> {
    fn run(
        &mut self,
        cx: &mut Cx<'_>,
        call: impl FnOnce(&mut P, &mut Context<'_, P::KeyOut, P::Out>) -> Result<(), ProcessError>,
    ) -> Result<(), Failure> {
        let mut context = Context { core: &mut *cx.core, node: cx.node, output: PhantomData };
        let result = call(&mut self.0, &mut context);
        outcome(result, cx.core)
    }
}

impl<P: Processor> Node for ProcessorNode<P> {
    fn init(&mut self, cx: &mut Cx<'_>) -> Result<(), Failure> {
        self.run(cx, |processor, context| processor.init(context))
    }

    fn process(&mut self, _port: u8, item: &mut dyn Any, cx: &mut Cx<'_>) -> Result<(), Failure> {
        let record = taken::<P::KeyIn, P::In>(item);
        self.run(cx, |processor, context| processor.process(record, context))
    }

    fn timer(&mut self, name: &str, at: i64, cx: &mut Cx<'_>) -> Result<(), Failure> {
        self.run(cx, |processor, context| processor.timer(name, at, context))
    }

    fn close(&mut self) {
        self.0.close();
    }
}
