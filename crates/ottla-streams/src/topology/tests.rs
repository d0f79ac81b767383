//! Tests of this module; see the parent.
