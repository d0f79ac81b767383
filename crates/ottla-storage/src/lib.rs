//! ottla-storage.
