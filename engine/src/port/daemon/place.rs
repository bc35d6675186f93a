//! Where the sockets of daemons are.
//!
//! | daemon of | directory |
//! |---|---|
//! | root | `/run/feroce` |
//! | another user | `$XDG_RUNTIME_DIR/feroce`; without that variable `/tmp/feroce-UID` |
//!
//! In it a directory per network namespace, named by the number of the namespace, and in that one a
//! socket per interface. A program looks in the directory of root first. A directory counts only if
//! root or the user owns it, so that no other user can pretend to be a daemon.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The directory of root's daemons.
const OF_ROOT: &str = "/run/feroce";

/// The directory of the daemons of the user who runs this process.
pub fn own_directory() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if user == 0 => OF_ROOT.into(),
        Some(runtime) if !runtime.is_empty() => Path::new(&runtime).join("feroce"),
        _ => format!("/tmp/feroce-{user}").into(),
    }
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

/// The places where a program looks for the daemon of `interface`, in this order.
pub fn candidates(interface: &str) -> Vec<PathBuf> {
    let mut directories = vec![PathBuf::from(OF_ROOT)];
    let own = own_directory();
    if own != directories[0] {
        directories.push(own);
    }
    directories.retain(|directory| is_trusted(directory));
    directories.iter().filter_map(|directory| socket_in(directory, interface).ok()).collect()
}

/// Returns true if `directory` belongs to root or to the user, and is no link.
pub fn is_trusted(directory: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(directory)
        .is_ok_and(|about| about.is_dir() && (about.uid() == 0 || about.uid() == user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_files_are_not_trusted() {
        assert!(is_trusted(Path::new("/run")) && !is_trusted(Path::new("/proc/self/exe")));
        assert!(!is_trusted(Path::new("/proc/self/cwd")) && !is_trusted(Path::new("/nowhere")));
    }

    #[test]
    fn a_socket_is_named_by_namespace_and_interface() {
        let path = socket_in(Path::new("/run/feroce"), "eth0").unwrap();
        assert_eq!(path.file_name().unwrap(), "eth0");
        assert_eq!(path.components().count(), 5);
    }
}
