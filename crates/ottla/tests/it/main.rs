//! The binary from outside: its command line, its client against its broker, its kills.

mod admin;
mod backup;
mod cli;
mod client;
mod demo;
mod doctor;
mod fixtures;
mod groups;
mod kill;
mod log;
mod simple_clients;
mod support;
mod transactions;
