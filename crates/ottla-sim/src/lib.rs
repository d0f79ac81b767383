//! ottla-sim.
