//! The socket at which programs attach.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rustix::net::SocketAddrUnix;

use super::config::DaemonConfig;
use crate::port::daemon::{channel, socket_path};

/// Makes the socket at `path` in `directory`.
pub(super) fn listen(directory: &Path, path: &Path, config: &DaemonConfig) -> io::Result<OwnedFd> {
    let is_shared =
        config.group.is_some() || config.mode.is_some() || directory.starts_with("/run");
    let mode = if is_shared { 0o755 } else { 0o700 };
    let parent = path.parent().expect("the directory of a namespace");
    for made in [directory, parent] {
        let is_new = !made.exists();
        std::fs::DirBuilder::new().recursive(true).mode(mode).create(made)?;
        if is_new {
            // The umask may have removed permissions.
            std::fs::set_permissions(made, std::fs::Permissions::from_mode(mode))?;
        }
    }
    if config.directory.is_none() && !socket_path::is_own(directory) {
        let what = format!("{} belongs to another user", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    match channel::connect(path) {
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        // Left behind by a daemon that was killed.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
        }
        Err(_) => {}
    }
    let socket = channel::socket()?;
    // No program may connect before the permissions are set: a socket that does not listen refuses.
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Some(group) = config.group {
        std::os::unix::fs::chown(path, None, Some(group))?;
    }
    let mode = config.mode.unwrap_or(if config.group.is_some() { 0o660 } else { 0o600 });
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket)
}
