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
mod power;
mod space;
mod support;

use ottla_env::disk::memory;
