//! The sockets of the process by descriptor.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

use super::any_socket::Socket;

static SOCKETS: RwLock<BTreeMap<RawFd, Arc<Socket>>> = RwLock::new(BTreeMap::new());

/// Adds a socket.
pub fn insert(fd: RawFd, socket: Arc<Socket>) {
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(fd, socket);
}

/// Returns the socket of a descriptor.
pub fn find(fd: RawFd) -> Option<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&fd).cloned()
}

/// Returns the socket of a descriptor.
///
/// # Errors
/// EBADF if the descriptor is not a socket.
pub fn get(fd: RawFd) -> Result<Arc<Socket>, c_int> {
    find(fd).ok_or(libc::EBADF)
}

/// Removes a socket.
pub fn remove(fd: RawFd) -> Option<Arc<Socket>> {
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).remove(&fd)
}

/// Returns all sockets.
pub fn all() -> Vec<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
}
