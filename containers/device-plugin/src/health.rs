//! Whether a daemon serves its socket.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Fails if no daemon listens at `socket`.
///
/// # Errors
/// The system's error: the socket does not exist, has no listener, or is not accessible.
pub fn check(socket: &Path) -> io::Result<()> {
    // The daemon's socket is SEQPACKET. EAGAIN means that the backlog is full: a daemon listens.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let client = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match rustix::net::connect(&client, &SocketAddrUnix::new(socket)?) {
        Ok(()) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
