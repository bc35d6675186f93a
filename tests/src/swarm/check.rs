//! The result type of all checks.

/// `Err` describes the violation.
pub type Check = Result<(), String>;
