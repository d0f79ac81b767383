//! Every operator against a naive model, over a world with commits, rollbacks and restarts at random.

mod aggregates;
mod crashes;
mod joins;
mod sessions;
mod stateless;
mod windows;
pub(crate) mod world;
