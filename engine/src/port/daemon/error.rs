//! Errors of the port of a daemon. Each message contains a remedy.

use std::io;
use std::path::PathBuf;

use crate::memory::frame_ring::FrameRingError;
use crate::port::kind::PortFailure;

/// Why a program could not attach to a daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// A configuration value is out of range.
    #[error("daemon port configuration: {0}")]
    Config(&'static str),

    /// No daemon serves the interface.
    #[error("no daemon listens at {} (`feroce up INTERFACE` starts one)", path.display())]
    NotThere {
        /// Its socket.
        path: PathBuf,
    },

    /// The daemon cannot be reached.
    #[error(
        "the daemon at {} cannot be used (its socket's owner, group and mode say who may)",
        path.display()
    )]
    Socket {
        /// Its socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },

    /// The daemon refuses the program.
    #[error("the daemon at {} refuses this program: {reason}", path.display())]
    Refused {
        /// Its socket.
        path: PathBuf,
        /// Why.
        reason: String,
    },

    /// What the daemon offers does not fit.
    #[error("the daemon offers rings that are none")]
    Rings(#[from] FrameRingError),

    /// Memory or a thread is missing.
    #[error("cannot {action}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl PortFailure for DaemonError {
    fn allows_fallback(&self) -> bool {
        matches!(self, Self::NotThere { .. })
    }
}
