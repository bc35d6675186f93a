//! The environment variables that choose how Feroce behaves.
//!
//! A program with more privileges than its caller (set-user-ID, file capabilities: `AT_SECURE`)
//! must not let the caller choose files to read and write, or settings. For such a program no
//! variable is set.

use std::ffi::OsString;

/// Returns the value of the variable `name`. `None` if it is not set, or if this process has more
/// privileges than the process that set it.
pub fn var_os(name: &str) -> Option<OsString> {
    if crate::sys::has_gained_privileges() { None } else { std::env::var_os(name) }
}

/// All variables with their values; none in a process with more privileges than its caller.
pub(crate) fn vars_os() -> impl Iterator<Item = (OsString, OsString)> {
    let trusted = !crate::sys::has_gained_privileges();
    trusted.then(std::env::vars_os).into_iter().flatten()
}
