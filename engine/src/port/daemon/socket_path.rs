//! The paths of the daemons' sockets.
//!
//! | daemon of | directory |
//! |---|---|
//! | root | `/run/feroce` |
//! | another user | `feroce` in `$XDG_RUNTIME_DIR`, or `/tmp/feroce-UID` without that variable |
//!
//! Root of a user namespace counts as the user who made the namespace.
//!
//! The directory contains one directory per network namespace, named by the inode number of the
//! namespace. That directory contains one socket per interface. A program looks in the directory of
//! root first. In `/run`, only root makes directories. Another directory counts only if the user
//! owns it, so that no other user can pretend to be a daemon.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The directory of root's daemons.
const OF_ROOT: &str = "/run/feroce";

/// The directory of the daemons of the user who runs this process.
pub fn own_directory() -> PathBuf {
    let user = outer_user();
    match crate::environment::var_os("XDG_RUNTIME_DIR") {
        _ if user == 0 => OF_ROOT.into(),
        Some(runtime) if !runtime.is_empty() => Path::new(&runtime).join("feroce"),
        _ => format!("/tmp/feroce-{user}").into(),
    }
}

/// The user id in the initial user namespace. Root of another user namespace cannot write to
/// `/run`.
fn outer_user() -> u32 {
    let user = rustix::process::geteuid().as_raw();
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let rows = map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().ok());
        Some((numbers.next()??, numbers.next()??, numbers.next()??))
    });
    let mut rows = rows.filter_map(|(inner, outer, count)| {
        let offset = user.checked_sub(inner).filter(|offset| *offset < count)?;
        outer.checked_add(offset)
    });
    rows.next().unwrap_or(user)
}

/// The socket of the daemon of `interface` in `directory`, for the network namespace of the calling
/// thread.
///
/// # Errors
/// The namespace cannot be read: `/proc` is not mounted.
pub fn socket_in(directory: &Path, interface: &str) -> std::io::Result<PathBuf> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(directory.join(namespace.to_string()).join(interface))
}

/// The paths at which a program looks for the daemon's socket of `interface`, in this order.
pub fn candidates(interface: &str) -> Vec<PathBuf> {
    let mut directories = vec![PathBuf::from(OF_ROOT)];
    let own = own_directory();
    if own != directories[0] && is_own(&own) {
        directories.push(own);
    }
    directories.iter().filter_map(|directory| socket_in(directory, interface).ok()).collect()
}

/// Returns true if `directory` belongs to the user of this process, and is not a link.
pub fn is_own(directory: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(directory).is_ok_and(|about| about.is_dir() && about.uid() == user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_files_are_no_directory_of_the_user() {
        let directory = std::env::temp_dir().join(format!("feroce-place-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        assert!(is_own(&directory) && !is_own(Path::new("/proc/self/exe")));
        assert!(!is_own(Path::new("/proc/self/cwd")) && !is_own(Path::new("/nowhere")));
        std::fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn a_socket_is_named_by_namespace_and_interface() {
        let path = socket_in(Path::new("/run/feroce"), "eth0").unwrap();
        assert_eq!(path.file_name().unwrap(), "eth0");
        assert_eq!(path.components().count(), 5);
    }
}
