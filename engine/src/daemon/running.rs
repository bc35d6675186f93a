//! The daemons that run in a network namespace.

use std::io;
use std::path::{Path, PathBuf};

use crate::port::daemon::protocol::{Answer, Call, DaemonStat, Message, Request};
use crate::port::daemon::{channel, socket_path};
use crate::time::Duration;

/// Maximum time for a daemon to answer: a daemon that is stopped (SIGSTOP) does not.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// A running daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The interface that the daemon owns.
    pub interface: String,
    /// The daemon's process.
    pub pid: i32,
    socket: PathBuf,
}

impl Running {
    /// The daemon's statistics: all programs for root and the daemon's user, otherwise those of the
    /// calling user.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if the daemon refuses or its answer is invalid,
    /// [`io::ErrorKind::TimedOut`] if it does not answer within 2 s; otherwise the system's error.
    pub fn stat(&self) -> io::Result<DaemonStat> {
        let in_time = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        };
        let socket = channel::connect_within(&self.socket, ANSWER_TIME).map_err(in_time)?;
        channel::send(&socket, &Call { id: 0, request: Request::Stat }, &[])?;
        match channel::receive(&socket, &mut Vec::new()).map_err(in_time)? {
            Some((Message::Answer { result: Ok(Answer::Stat(stat)), .. }, _)) => Ok(*stat),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The daemons in the network namespace of the calling thread whose sockets are in `directory`, or
/// at the default places.
///
/// # Errors
/// The directory cannot be read.
pub fn running(directory: Option<&Path>) -> io::Result<Vec<Running>> {
    let directories = match directory {
        Some(directory) => vec![socket_path::socket_in(directory, "")?],
        None => socket_path::candidates(""),
    };
    let mut found = Vec::new();
    for directory in directories {
        let entries = match std::fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for entry in entries {
            let socket = entry?.path();
            let name = socket.file_name().and_then(|name| name.to_str());
            if let (Some(name), Some(pid)) = (name, owner(&socket)) {
                found.push(Running { interface: name.to_owned(), pid, socket });
            }
        }
    }
    Ok(found)
}

/// The daemon of `interface` in the network namespace of the calling thread, at the default places.
pub fn of(interface: &str) -> Option<Running> {
    socket_path::candidates(interface).into_iter().find_map(|socket| {
        let pid = owner(&socket)?;
        Some(Running { interface: interface.to_owned(), pid, socket })
    })
}

/// Returns true if a daemon listens at `socket`.
pub fn is_served(socket: &Path) -> bool {
    owner(socket).is_some()
}

/// The process that listens at `socket`.
fn owner(socket: &Path) -> Option<i32> {
    let socket = channel::connect_within(socket, ANSWER_TIME).ok()?;
    // Not rustix: its type for process ids has no 0, which the kernel returns for a process of
    // another pid namespace.
    let about = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials);
    about.ok().map(|about| about.pid())
}
