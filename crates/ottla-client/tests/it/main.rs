//! The client from outside, against brokers and networks that fail.

mod cancelled;
mod cases;
mod faults;
mod proxy;
mod support;
