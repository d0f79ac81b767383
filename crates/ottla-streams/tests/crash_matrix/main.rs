//! The crash matrix: each row C1 to C23 as a named test, all steps times all outcomes, and broken variants that must
//! be caught. Everything runs in the driver: the real workers, commit protocol and recovery over a cluster in memory.
//!
//! Rows that need a real disk, a real broker or real processes are in other places, named here:
//!
//! | row | what the driver cannot show | where |
//! |---|---|---|
//! | C5, C6 | torn and cut write-ahead logs of RocksDB | tests of the engine |
//! | C16 | files of RocksDB that are damaged | tests of the engine and of the state folder |
//! | C21 | the lock of a state folder, host and boot id | tests of the state folder |
//! | C1-C9, C11, C22 | SIGKILL of processes and brokers, SIGSTOP, lost answers | `cargo xtask prove streams` |
//!
//! The same over RocksDB in a folder is in `on_disk`. A failing seed is printed; run it alone with `CRASH_SEED=n cargo test -p ottla-streams --test crash_matrix chaos`.

#![allow(clippy::unwrap_used, reason = "helpers of tests stop the test")]

mod broken;
mod commits;
mod enumerated;
mod ledger;
#[cfg(feature = "rocksdb")]
mod on_disk;
mod rows;
mod rows_log;
