//! Conformance: captures looked at and played again.

pub mod replay;
