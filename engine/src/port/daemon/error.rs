//! Errors of the port of a daemon. A message names the remedy where Feroce knows one.

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
        /// The socket at which no daemon listens.
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

    /// The daemon's rings have an impossible shape.
    #[error("the daemon offers rings of an impossible shape")]
    Rings(#[from] FrameRingError),

    /// A system call failed.
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
