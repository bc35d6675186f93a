//! Configuration of a daemon.

use std::path::PathBuf;

use super::admission::Dscps;
use super::quota::Limits;

/// Configuration of a [`Daemon`](super::Daemon).
#[derive(Debug, Clone, Default)]
pub struct DaemonConfig {
    /// Directory of the socket; `None` for the usual one: `/run/feroce` of root, `feroce` in the
    /// runtime directory of another user.
    pub directory: Option<PathBuf>,
    /// Group that may use the socket.
    pub group: Option<u32>,
    /// Permissions of the socket; `None`: 0660 with a group, 0600 without.
    pub mode: Option<u32>,
    /// What a user may have.
    pub limits: Limits,
    /// DSCPs that programs may use.
    pub dscps: Dscps,
    /// The switch never sleeps.
    pub polls: bool,
}
