//! The broker from outside, over its socket: one binary, one folder, a file per concern.

mod daily;
mod faults;
mod hostile;
mod wire;
