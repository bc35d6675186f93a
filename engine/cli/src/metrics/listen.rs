//! Where `feroce metrics` listens: a TCP port or a Unix socket.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::sys::stat::{Mode, umask};

/// Prefix of a path in the option `--listen`.
const UNIX: &str = "unix:";

/// An address to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(UNIX) {
            Some("") => Err("expected a path after `unix:`".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                "expected an address with a port, such as 127.0.0.1:4791, or unix:PATH".to_owned()
            }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}/metrics"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Address {
    /// Returns true if only processes of this host reach the address.
    pub const fn is_local(&self) -> bool {
        match self {
            Self::Tcp(SocketAddr::V4(address)) => address.ip().is_loopback(),
            Self::Tcp(SocketAddr::V6(address)) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

/// A listening socket. The file of a Unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    /// The address, with the port that the kernel has chosen for port 0.
    pub address: Address,
    socket: OwnedFd,
}

impl Listener {
    /// Listens at `address`; at a Unix socket, for users whom the permissions `mode` allow.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if a process listens there, or a file that is no socket exists;
    /// otherwise the system's error.
    pub fn open(address: &Address, mode: u32) -> io::Result<Self> {
        match address {
            Address::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted)?;
                let address = Address::Tcp(listener.local_addr()?);
                Ok(Self { address, socket: listener.into() })
            }
            Address::Unix(path) => {
                remove_stale(path)?;
                // The socket never has more permissions, not even before a chmod(2).
                let before = umask(Mode::from_bits_truncate(!mode & 0o777));
                let listener = UnixListener::bind(path);
                umask(before);
                Ok(Self { address: address.clone(), socket: listener?.into() })
            }
        }
    }

    /// A second descriptor of the socket.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path); // Another process may have removed it.
        }
    }
}

/// Removes a socket that a killed process has left.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refuses = || {
        let connected = UnixStream::connect(path);
        connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if is_socket && refuses() { std::fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn addresses_are_parsed() {
        let parse = |text: &str| text.parse::<Address>();
        for (text, is_local) in [
            ("127.0.0.1:4791", true),
            ("127.8.8.8:1", true),
            ("[::1]:4791", true),
            ("unix:/run/x", true),
            ("0.0.0.0:4791", false),
            ("[::]:4791", false),
            ("10.0.0.1:4791", false),
        ] {
            assert_eq!(parse(text).unwrap().is_local(), is_local, "{text}");
        }
        for bad in ["", "unix:", "localhost", "127.0.0.1", ":4791", "/run/x", "127.0.0.1:70000"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_unix_socket_has_its_mode_and_replaces_a_stale_one() {
        let path = std::env::temp_dir().join(format!("fr-metrics-{}", std::process::id()));
        let address = Address::Unix(path.clone());
        drop(UnixListener::bind(&path).unwrap()); // The file stays.
        let listener = Listener::open(&address, 0o640).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        let second = Listener::open(&address, 0o600).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        std::fs::write(&path, "a file").unwrap();
        assert!(Listener::open(&address, 0o600).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        std::fs::remove_file(&path).unwrap();
    }
}
