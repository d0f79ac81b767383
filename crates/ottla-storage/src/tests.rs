//! The crate's tests: one conformance suite over every disk, faults on copies of a folder, a property test.

mod conformance;
mod crash;
mod damage;
mod faults;
mod inspect;
mod memory;
mod power;
mod support;
