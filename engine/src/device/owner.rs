//! One program owns an interface's RoCE traffic, and a second one is told who.
//!
//! Ownership is an abstract Unix socket named for the interface: it lives in the network namespace that
//! the interface lives in, and is gone with the process, however that ends.

use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use super::error::OpenError;

/// Held while the interface is owned.
#[derive(Debug)]
pub(super) struct Ownership {
    _socket: UnixListener,
}

impl Ownership {
    /// Takes the interface.
    pub(super) fn take(interface: &str) -> Result<Self, OpenError> {
        let failed = |source| OpenError::System { action: "take ownership of the interface", source };
        let address = address(interface).map_err(failed)?;
        match UnixListener::bind_addr(&address) {
            Ok(socket) => Ok(Self { _socket: socket }),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                Err(owned_by(interface))
            }
            Err(error) => Err(failed(error)),
        }
    }
}

/// The process that has an interface open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its number; 0 if it cannot be told.
    pub pid: i32,
    /// Its name.
    pub program: String,
}

/// Who has `interface` open by Feroce in the network namespace of the calling thread; `None` if nobody.
pub fn owner_of(interface: &str) -> Option<Owner> {
    let owner = UnixStream::connect_addr(&address(interface).ok()?).ok()?;
    Some(owner_behind(&owner))
}

fn address(interface: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("feroce/owner/{interface}"))
}

fn owner_behind(socket: &UnixStream) -> Owner {
    let pid = crate::sys::peer_pid(socket.as_fd()).unwrap_or(0);
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let program = program.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned());
    Owner { pid, program }
}

fn owned_by(interface: &str) -> OpenError {
    let unknown = Owner { pid: 0, program: "unknown".to_owned() };
    let Owner { pid, program } = owner_of(interface).unwrap_or(unknown);
    OpenError::Owned { interface: interface.to_owned(), pid, program }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_told_the_first() {
        let name = format!("test-{}", std::process::id());
        let first = Ownership::take(&name).unwrap();
        let refused = Ownership::take(&name).unwrap_err();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(refused, OpenError::Owned { pid, .. } if pid == own), "{refused}");
        assert_eq!(owner_of(&name).map(|owner| owner.pid), Some(own));
        drop(first);
        assert_eq!(owner_of(&name), None);
        Ownership::take(&name).unwrap();
    }
}
