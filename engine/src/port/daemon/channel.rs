//! Messages with descriptors over a Unix socket of type SEQPACKET.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::protocol::MESSAGE_MAX;
use crate::time::Duration;

/// Maximum number of descriptors of a message.
const FDS_MAX: usize = 3;

/// A new socket.
///
/// # Errors
/// No descriptor left.
pub fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Connects to the socket at `path`.
///
/// # Errors
/// The system's error: the socket does not exist, has no listener, or is not accessible.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let (socket, address) = (socket()?, SocketAddrUnix::new(path)?);
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

/// As [`connect`], and limits the time to connect, and later the time that [`receive`] waits for a
/// message.
///
/// # Errors
/// As [`connect`]; [`io::ErrorKind::WouldBlock`] if the time is over: the backlog of the listener
/// is full.
pub fn connect_within(path: &Path, limit: Duration) -> io::Result<OwnedFd> {
    let socket = socket()?;
    for of in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, of, Some(limit))?;
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends `message` with `fds`. Does not wait for room.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if the receiver has not read earlier messages; otherwise the
/// system's error.
pub fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// A message, with the descriptors that came with it.
pub type Received<T> = (T, Vec<OwnedFd>);

/// Waits for the next message; `None` when the other side has closed the socket.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if the bytes are not a message; otherwise the system's error.
pub fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Received<T>>> {
    buffer.resize(MESSAGE_MAX, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&buffer[..got.bytes])?, fds)))
}

/// Receives the next message without waiting. The kernel closes descriptors that came with the
/// message.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if there is none, [`io::ErrorKind::UnexpectedEof`] when the other
/// side has closed the socket, [`io::ErrorKind::InvalidData`] if the bytes are not a message;
/// otherwise the system's error.
pub fn try_receive<T: DeserializeOwned>(socket: impl AsFd, buffer: &mut Vec<u8>) -> io::Result<T> {
    buffer.resize(MESSAGE_MAX, 0);
    let flags = RecvFlags::DONTWAIT;
    let (_, received) = rustix::net::recv(socket, buffer.as_mut_slice(), flags)?;
    match buffer.get(..received) {
        Some([]) => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(bytes) => Ok(serde_json::from_slice(bytes)?),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}
