//! Errors of a test. This file imports nothing from the rest of `perf`, so that the command's
//! `Failure` can wrap these errors.

use std::net::SocketAddr;
use std::time::Duration;

use feroce_engine::device::{DeviceError, PostError};
use feroce_engine::verbs::Status;

/// Why a test ends early.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The control connection to the peer failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// An object of the device cannot be created or connected.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A work request was rejected when it was posted.
    #[error("cannot post a work request: {0}")]
    Post(#[from] PostError),
    /// A work request failed.
    #[error(transparent)]
    Completion(#[from] CompletionError),
    /// The received data differ from the sent data.
    #[error("data check failed: {0}")]
    Check(#[from] CheckError),
    /// The TCP connection under test failed.
    #[error("TCP under test: cannot {action}: {source}")]
    Tcp {
        /// The failed action.
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The plan cannot be run with these devices or this peer.
    #[error("{0}")]
    Plan(String),
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

impl PerfError {
    /// Returns true if this side or the peer has received wrong data.
    pub fn is_wrong_data(&self) -> bool {
        match self {
            Self::Check(_) => true,
            Self::Exchange(ExchangeError::Peer { wrong_data, .. }) => *wrong_data,
            _ => false,
        }
    }
}

fn in_brackets(holder: &str) -> String {
    if holder.is_empty() { String::new() } else { format!(", by {holder}") }
}

/// Errors of the control connection between the two ends of a test.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The name of the server has no address.
    #[error(
        "no address of {host}: {source} (check the name and /etc/resolv.conf, or give the address)"
    )]
    NoAddress {
        /// The name.
        host: String,
        /// The resolver's error.
        source: std::io::Error,
    },
    /// The server cannot be reached.
    #[error("no route to {peer} ({source}): `ip route get` shows the way, `feroce doctor` more")]
    NoRoute {
        /// Address and port that was called.
        peer: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// No server listens.
    #[error(
        "no server at {peer} ({source}): start `feroce perf -i IFACE` there first, with the same -p"
    )]
    NoServer {
        /// Address and port that was called.
        peer: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The port cannot be bound.
    #[error(
        "cannot listen on TCP port {port}: {source}{} (use another port: -p at both ends)",
        in_brackets(.holder)
    )]
    Listen {
        /// The port.
        port: u16,
        /// The process that listens there; empty if it is not known.
        holder: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The peer closed the connection.
    #[error("{peer} closed the connection: its program ended (see its output)")]
    Gone {
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer's kernel does not answer.
    #[error(
        "the host of {peer} has not answered on TCP for {} s: the host or the path to it is gone",
        after.as_secs()
    )]
    Silent {
        /// The peer.
        peer: SocketAddr,
        /// How long the peer's kernel was silent.
        after: Duration,
    },
    /// The client's first line did not come.
    #[error("{peer} connected but said nothing of feroce perf for {} s", after.as_secs())]
    NoGreeting {
        /// The client.
        peer: SocketAddr,
        /// How long the server waited.
        after: Duration,
    },
    /// The connection failed.
    #[error("connection to {peer}: {source}")]
    Io {
        /// The peer.
        peer: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The peer uses another version of the protocol.
    #[error(
        "{peer} uses version {theirs} of this exchange, this side version {ours}: use the \
         same feroce at both ends"
    )]
    Version {
        /// The peer.
        peer: SocketAddr,
        /// Version of the peer.
        theirs: u32,
        /// Version of this side.
        ours: u32,
    },
    /// The peer is another program, or violates the protocol.
    #[error("{peer} does not speak the protocol of feroce perf ({detail})")]
    Invalid {
        /// The peer.
        peer: SocketAddr,
        /// Description of the violation.
        detail: String,
    },
    /// The peer gave up and reported a reason.
    #[error("{peer} gave up: {reason}")]
    Peer {
        /// The peer.
        peer: SocketAddr,
        /// The reason.
        reason: String,
        /// The peer's data check has failed.
        wrong_data: bool,
    },
}

/// A work request failed.
#[derive(Debug, thiserror::Error)]
#[error("{what} of {size} bytes on QP {qp:#x} failed: {status}{}", remedy(*.status))]
pub struct CompletionError {
    /// Name of the operation.
    pub what: &'static str,
    /// Message size in bytes.
    pub size: u32,
    /// Number of the QP.
    pub qp: u32,
    /// Status of the completion.
    pub status: Status,
}

fn remedy(status: Status) -> &'static str {
    match status {
        Status::RetryExceeded => {
            " (the peer stopped answering: its program ended, the path is down or drops large \
             packets, or too many packets are lost for --timeout and --retry)"
        }
        Status::RnrRetryExceeded => " (the peer posts no receives: see its output)",
        Status::RemoteAccess => " (the peer withdrew its memory: see its output)",
        _ => "",
    }
}

/// Received data differ from sent data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A byte differs.
    #[error(
        "QP {qp}, message {message}: byte {offset} of {size} is {got:#04x}, not {expected:#04x}"
    )]
    Byte {
        /// Index of the QP.
        qp: usize,
        /// Number of the message in its round.
        message: u64,
        /// Offset in the message.
        offset: usize,
        /// Length of the message.
        size: u32,
        /// Value found.
        got: u8,
        /// Value expected.
        expected: u8,
    },
    /// The immediate data are those of another message.
    #[error("QP {qp}, message {message}: immediate data {got}, not {message}")]
    Immediate {
        /// Index of the QP.
        qp: usize,
        /// Number of the message in its round.
        message: u64,
        /// Immediate data.
        got: u32,
    },
    /// Not every message of a round was compared.
    #[error("QP {qp}: {got} messages have arrived, {expected} were sent")]
    Count {
        /// Index of the QP.
        qp: usize,
        /// Messages that were compared.
        got: u64,
        /// Messages that were sent.
        expected: u64,
    },
    /// An atomic did not return the value that the previous one left.
    #[error("QP {qp}, atomic {message} returned {got}, not {message}")]
    Returned {
        /// Index of the QP.
        qp: usize,
        /// Number of the atomic, which is also the expected value.
        message: u64,
        /// Value returned.
        got: u64,
    },
    /// The atomics did not leave the expected value.
    #[error("QP {qp}: {expected} atomics left the value {got}")]
    Left {
        /// Index of the QP.
        qp: usize,
        /// Value found.
        got: u64,
        /// Number of atomics, which is the expected value.
        expected: u64,
    },
}
