//! The sockets of the process, by descriptor.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

use super::Socket;

static SOCKETS: RwLock<BTreeMap<RawFd, Arc<Socket>>> = RwLock::new(BTreeMap::new());

/// Adds one.
pub fn insert(fd: RawFd, socket: Arc<Socket>) {
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(fd, socket);
}

/// The socket of a descriptor.
pub fn find(fd: RawFd) -> Option<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&fd).cloned()
}

/// The socket of a descriptor.
///
/// # Errors
/// EBADF if it has none.
pub fn get(fd: RawFd) -> Result<Arc<Socket>, c_int> {
    find(fd).ok_or(libc::EBADF)
}

/// Takes one out.
pub fn remove(fd: RawFd) -> Option<Arc<Socket>> {
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).remove(&fd)
}

/// All of them.
pub fn all() -> Vec<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
}
