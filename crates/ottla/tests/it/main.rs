//! The binary from outside: its command line, its client against its broker, its kills.

mod cli;
mod client;
mod demo;
mod kill;
mod support;
mod transactions;
