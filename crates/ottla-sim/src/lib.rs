//! The simulator: client, core and log in one thread, from one seed, in virtual time; and the checker of what
//! happened.
//!
//! The real core and the real storage run on a simulated machine (`ottla_env::disk::sim`) whose unsynced writes
//! are kept, dropped, torn or reordered at a power cut, whose syncs fail and leave pages that are clean and wrong,
//! and which stops between any two operations, also during recovery and while a snapshot is written. `shell` is
//! the broker's shell in miniature, `client` are idempotent, transactional (both protocols) and other clients
//! with retries, crashes and zombies, `world` connects them, `checker` judges the history they wrote down.
//!
//! Reading guide: `power_cut` is the entrance, `flips` damages a folder byte by byte, `options` what a run is made of,
//! `checker` what is promised.
//! Not here: the network code, the codec of requests, threads. They have tests of their own.

mod checker;
mod client;
mod events;
pub mod flips;
mod history;
mod message;
mod options;
pub mod power_cut;
mod shell;
#[cfg(test)]
mod tests;
mod world;
