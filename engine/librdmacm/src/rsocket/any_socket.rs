//! A socket of either kind.

use std::ffi::c_int;
use std::os::fd::RawFd;

use super::datagram::Datagram;
use super::socket::StreamSocket;
use super::wait::Awaited;

/// A socket of either kind.
#[derive(Debug)]
pub enum Socket {
    /// `SOCK_STREAM`
    Stream(Box<StreamSocket>),
    /// `SOCK_DGRAM`
    Datagram(Box<Datagram>),
}

impl Socket {
    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        match self {
            Self::Stream(socket) => socket.fd(),
            Self::Datagram(socket) => socket.fd(),
        }
    }

    /// Runs `act` with the socket's lock held.
    pub fn with<T>(&self, act: impl FnOnce(&mut dyn Awaited) -> T) -> T {
        match self {
            Self::Stream(socket) => act(&mut *socket.lock()),
            Self::Datagram(socket) => act(&mut *socket.lock()),
        }
    }

    /// Returns the stream socket.
    ///
    /// # Errors
    /// EOPNOTSUPP for a datagram socket.
    pub fn stream(&self) -> Result<&StreamSocket, c_int> {
        match self {
            Self::Stream(socket) => Ok(socket),
            Self::Datagram(_) => Err(libc::EOPNOTSUPP),
        }
    }
}
