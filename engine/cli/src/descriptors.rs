//! Descriptors that a process inherits from its starter.

use std::fs;
use std::os::fd::RawFd;

/// Closes all descriptors but the standard ones and `kept`. For a process that may outlive its
/// starter's caller: a lock or a pipe that the caller passed on would live as long.
pub fn close_inherited(kept: Option<RawFd>) {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return };
    let open = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let open: Vec<RawFd> = open.collect(); // Closes the folder, which is one of them.
    for descriptor in open.into_iter().filter(|fd| *fd > 2 && Some(*fd) != kept) {
        let _ = nix::unistd::close(descriptor); // An error: the folder's.
    }
}
