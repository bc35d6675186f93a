//! The error that ends a command, and its exit code.

use std::path::PathBuf;

use feroce_engine::daemon::DaemonOpenError;
use feroce_engine::device::OpenError;
use feroce_engine::device::settings::SettingsError;
use feroce_engine::device::stat::StatError;
pub use feroce_engine::log::chain;
use feroce_engine::net::NetError;

use crate::exit::Exit;
use crate::perf::error::{ExchangeError, PerfError};

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The options contradict each other in a way that clap cannot check.
    #[error("{0}")]
    Usage(String),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The daemon cannot be started.
    #[error(transparent)]
    Daemon(#[from] DaemonOpenError),
    /// The kernel's network tables cannot be read.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The configuration file or the environment is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The running program does not serve its figures.
    #[error(transparent)]
    Stat(#[from] StatError),
    /// A test of `feroce perf` failed.
    #[error(transparent)]
    Perf(#[from] PerfError),
    /// The request cannot be met on this host.
    #[error("{0}")]
    Plan(String),
    /// `feroce run` cannot start the program.
    #[error("cannot start {}: {source}", program.display())]
    Program {
        /// Path or name of the program.
        program: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Standard output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[source] std::io::Error),
    /// The file of `--pcap` cannot be written.
    #[error("the capture is not complete: {0}")]
    Capture(#[source] std::io::Error),
    /// `feroce fabric`, `pfc` or `conform` failed.
    #[cfg(any(feature = "fabric", feature = "pfc", feature = "conform"))]
    #[error("{message}")]
    Tool {
        /// Message for the user.
        message: String,
        /// Exit code.
        exit: Exit,
    },
}

impl From<ExchangeError> for Failure {
    fn from(error: ExchangeError) -> Self {
        Self::Perf(error.into())
    }
}

impl Failure {
    /// The exit code of this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Perf(PerfError::Interrupted) => Exit::Interrupted,
            Self::Perf(error) if error.is_wrong_data() => Exit::Findings,
            // The codes of shells.
            Self::Program { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::CannotStart,
            },
            #[cfg(any(feature = "fabric", feature = "pfc", feature = "conform"))]
            Self::Tool { exit, .. } => *exit,
            _ => Exit::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::error::CheckError;

    #[test]
    fn each_cause_appears_once() {
        let source = std::io::Error::other("no such thing");
        let failure = Failure::Output(source);
        assert_eq!(chain(&failure), "cannot write the output: no such thing");
        let source = std::io::Error::other("denied");
        let open = OpenError::System { action: "take ownership", source };
        assert_eq!(chain(&Failure::from(open)), "cannot take ownership: denied");
    }

    #[test]
    fn exit_codes_follow_the_cause() {
        assert_eq!(Failure::Usage(String::new()).exit().code(), 2);
        assert_eq!(Failure::Plan(String::new()).exit().code(), 1);
        assert_eq!(Failure::from(PerfError::Interrupted).exit().code(), 130);
        let wrong = PerfError::from(CheckError::Left { qp: 0, got: 1, expected: 2 });
        let peer = std::net::SocketAddr::from(([10, 0, 0, 1], 1));
        let reported = ExchangeError::Peer { peer, reason: wrong.to_string(), wrong_data: true };
        assert_eq!(Failure::from(wrong).exit().code(), 3);
        assert_eq!(Failure::from(reported).exit().code(), 3, "the peer has found it");
    }
}
