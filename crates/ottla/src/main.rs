//! ottla.
fn main() {}
