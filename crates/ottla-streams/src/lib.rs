//! Stream processing whose state moves only on transaction boundaries.
//!
//! Outputs, changelog records and input offsets are one Kafka transaction; the state on disk is outside of it. It
//! never runs ahead: uncommitted writes live in memory, and are applied as one batch, with the changelog positions
//! in it, only after the broker said "committed". An abort forgets them. After a crash the state is some earlier
//! boundary, and the changelog between its position and the committed restore target brings it forward.
//!
//! Place in the walk: outside of it, on top of `ottla-client`; works with any Kafka 2.5 or later.
//!
//! | module | what it does |
//! |---|---|
//! | [`anchor`] | the restore targets in the metadata of an offset commit |
//! | [`driver`] | a topology under test over a simulated cluster, with crashes and time |
//! | [`engine`] | bytes of a task's stores on disk or in memory, one atomic batch at a time |
//! | [`meta`] | what a task knows of its boundary, inside every batch |
//! | [`open`] | opens a task's stores, damaged ones too |
//! | [`overlay`] | what a task wrote since its boundary |
//! | [`port`] | what a worker asks of a cluster: transactions, stable offsets, changelogs |
//! | [`record`] | records and names at byte level |
//! | [`recovery`] | brings a task's stores to the boundary that the log says |
//! | [`topology`], [`dsl`] | what an application computes, as a value, and the typed builder of it |
//! | [`app`] | a topology at work on a cluster |
//! | [`kafka`] | the ports on a real cluster |
//! | [`codec`] | keys and values as bytes |
//! | [`task`], [`processor`] | a sub-topology over one partition at work, and the user's code in it |
//! | [`store`] | typed stores over a task's or a snapshot's bytes |
//! | [`source`] | records from outside of Kafka, exactly once: log files, a PostgreSQL outbox |
//! | [`state`] | the stores of a task: overlay over engine |
//! | [`state_dir`] | folder, lock and identity of an application on a machine |
//! | [`worker`] | the commit protocol: tasks that share a transaction |
//!
//! Invariants (asserted in debug builds): I1 a store is the fold of its committed changelog below its position, and
//! both are written in one batch; I2 the position never passes the last committed restore target; I3 a transaction
//! in which a task wrote anything carries that task's offsets; I4 only the owner of a task gets them accepted; I5
//! whatever a task keeps in memory is in a store or rebuilt when it is rolled back.
//!
//! Not here: standby replicas, snapshots of stores, splitting a task (room is left for all three).

mod bytes_codec;

pub mod anchor;
pub mod app;
pub mod codec;
pub mod driver;
pub mod dsl;
pub mod engine;
pub mod kafka;
pub mod meta;
pub mod open;
pub mod overlay;
pub mod port;
pub mod processor;
pub mod record;
pub mod recovery;
pub mod source;
pub mod state;
pub mod state_dir;
pub mod store;
pub mod task;
pub mod topology;
pub mod worker;

pub use bytes_codec::Malformed;
