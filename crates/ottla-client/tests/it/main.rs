//! The client from outside, against brokers and networks that fail.

mod faults;
mod proxy;
mod support;
