//! The binary from outside: its command line, its client against its broker, its kills.

mod admin;
mod cli;
mod client;
mod demo;
mod doctor;
mod groups;
mod kill;
mod log;
mod simple_clients;
mod support;
mod transactions;
