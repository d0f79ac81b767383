//! The crate's tests: one conformance suite over every disk, faults on copies of a folder, a property test.

mod cleaning;
mod conformance;
mod copies;
mod crash;
mod damage;
mod dump;
mod faults;
mod fixtures;
mod inspect;
mod levels;
mod memory;
mod power;
mod support;
