//! Whether a daemon serves its socket.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Fails if no daemon listens at `socket`.
///
/// # Errors
/// The system's error: there is no socket, nobody listens at it, or this user may not use it.
pub fn check(socket: &Path) -> io::Result<()> {
    // The type of the daemon's socket. A full queue of connections is a daemon's as well.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let client = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match rustix::net::connect(&client, &SocketAddrUnix::new(socket)?) {
        Ok(()) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
