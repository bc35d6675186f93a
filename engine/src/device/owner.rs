//! One program owns an interface's RoCE traffic, and a second one is told who.
//!
//! Ownership is an abstract Unix socket named for the interface: it lives in the network namespace that
//! the interface lives in, and is gone with the process, however that ends. A second name says which
//! process it is; nothing is ever sent to either.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::error::OpenError;

/// The abstract sockets of the calling thread's network namespace.
pub(super) const SOCKETS: &str = "/proc/thread-self/net/unix";

/// Held while the interface is owned.
#[derive(Debug)]
pub(super) struct Ownership {
    _claim: UnixDatagram,
    _signature: UnixDatagram,
}

impl Ownership {
    /// Takes the interface.
    pub(super) fn take(interface: &str) -> Result<Self, OpenError> {
        let failed =
            |source| OpenError::System { action: "take ownership of the interface", source };
        let claim = match bind(&claim_name(interface)) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                return Err(owned_by(interface));
            }
            other => other.map_err(failed)?,
        };
        let signature = bind(&format!("{}{}", signature_prefix(interface), std::process::id()));
        Ok(Self { _claim: claim, _signature: signature.map_err(failed)? })
    }
}

fn bind(name: &str) -> std::io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

fn claim_name(interface: &str) -> String {
    format!("feroce/owner/{interface}")
}

fn signature_prefix(interface: &str) -> String {
    format!("feroce/owner-of/{interface}/")
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
    let sockets = std::fs::read_to_string(SOCKETS).ok()?;
    let prefix = format!("@{}", signature_prefix(interface));
    // The name is the last column.
    let names = sockets.lines().filter_map(|line| line.split_whitespace().last());
    let pid = names.filter_map(|name| name.strip_prefix(&prefix)?.parse().ok()).next()?;
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let program = program.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned());
    Some(Owner { pid, program })
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
