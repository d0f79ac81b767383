//! ottla-broker.
