//! ottla-client.
