//! Why a command failed, by culprit, and the exit code of each.

use std::path::PathBuf;

use feroce_engine::device::settings::SettingsError;
use feroce_engine::device::stat::StatError;
use feroce_engine::device::{DeviceError, OpenError, PostError};
use feroce_engine::net::NetError;

use crate::perf::{CheckError, CompletionError, ExchangeError};

/// What ends a command early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The options contradict each other; clap cannot see it.
    #[error("{0}")]
    Usage(String),
    /// The device does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An object of the device cannot be made or connected.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A work request was not taken.
    #[error("cannot post a work request: {0}")]
    Post(#[from] PostError),
    /// The host's tables.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The file or the environment.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The program that is looked into.
    #[error(transparent)]
    Stat(#[from] StatError),
    /// The conversation with the peer.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A work request failed.
    #[error(transparent)]
    Completion(#[from] CompletionError),
    /// The data are not what was sent.
    #[error("data check failed: {0}")]
    Check(#[from] CheckError),
    /// The plan cannot be run on what the devices are.
    #[error("{0}")]
    Plan(String),
    /// The program of `feroce run`.
    #[error("cannot start {}: {source}", program.display())]
    Program {
        /// As given.
        program: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The TCP connection under test.
    #[error("TCP under test: cannot {action}: {source}")]
    Tcp {
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Our own output.
    #[error("cannot write the output: {0}")]
    Output(#[source] std::io::Error),
    /// The file of `--pcap`.
    #[error("the capture is not complete: {0}")]
    Capture(#[source] std::io::Error),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// The code that the program exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted => 130,
            // As shells have it.
            Self::Program { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => 127,
                _ => 126,
            },
            _ => 1,
        }
    }
}

/// An error with its causes, each once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.contains(&told) {
            text = format!("{text}: {told}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let source = std::io::Error::other("no such thing");
        let failure = Failure::Output(source);
        assert_eq!(chain(&failure), "cannot write the output: no such thing");
        let source = std::io::Error::other("denied");
        let open = OpenError::System { action: "take ownership", source };
        assert_eq!(chain(&Failure::from(open)), "cannot take ownership: denied");
    }

    #[test]
    fn exit_codes_are_those_documented() {
        assert_eq!(Failure::Usage(String::new()).exit_code(), 2);
        assert_eq!(Failure::Plan(String::new()).exit_code(), 1);
        assert_eq!(Failure::Interrupted.exit_code(), 130);
    }
}
