//! Configuration of a daemon.

use std::path::PathBuf;

use super::admission::Dscps;
use crate::port::daemon::limits::Limits;

/// Configuration of a [`Daemon`](super::Daemon).
#[derive(Debug, Clone, Default)]
pub struct DaemonConfig {
    /// Directory of the socket; `None` for the default: `/run/feroce` for root, `feroce` in the
    /// runtime directory for another user.
    pub directory: Option<PathBuf>,
    /// Group that may use the socket.
    pub group: Option<u32>,
    /// Permissions of the socket; `None`: 0660 with a group, 0600 without.
    pub mode: Option<u32>,
    /// Limits of each user.
    pub limits: Limits,
    /// DSCPs that programs may use.
    pub dscps: Dscps,
    /// The switch never sleeps: shorter latency, one CPU.
    pub polls: bool,
}
