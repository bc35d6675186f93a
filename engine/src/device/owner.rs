//! Ownership of an interface: one program owns its RoCE traffic, and a second program gets an error
//! that names the owner.
//!
//! Ownership is an abstract Unix socket named after the interface. The socket is in the network
//! namespace of the interface and disappears when the process ends, however it ends. Nothing is
//! ever sent to it.
//!
//! Any user may bind such a name and so prevent an interface from being opened. Feroce does not
//! ignore holders of other users: a program that opened the interface by file capabilities is such
//! a holder, and two owners would corrupt each other's traffic. But the error names the real
//! holder, so that it can be stopped: the process that has the socket open, found by the inode of
//! the socket. If this process may not inspect processes of other users, it uses a second socket
//! name, in which the owner states its process id.

use std::fmt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::sys::socket::UnixCredentials;

/// The abstract sockets of the calling thread's network namespace.
pub(super) const SOCKETS: &str = "/proc/thread-self/net/unix";

/// Why ownership of an interface could not be taken.
#[derive(Debug)]
pub(super) enum OwnershipError {
    /// The process that has the interface open.
    InUse(Owner),
    /// A system call failed.
    System(std::io::Error),
}

/// Ownership of an interface, until dropped.
#[derive(Debug)]
pub(crate) struct Ownership {
    _claim: UnixDatagram,
    _signature: Option<UnixDatagram>,
}

impl Ownership {
    /// Takes ownership of the interface.
    pub(super) fn take(interface: &str) -> Result<Self, OwnershipError> {
        let claim = match bind(&claim_name(interface)) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let owner = owner_of(interface).unwrap_or_else(Owner::unknown);
                return Err(OwnershipError::InUse(owner));
            }
            other => other.map_err(OwnershipError::System)?,
        };
        // If this name is taken, users without permission to read /proc cannot identify this
        // process; opening still succeeds.
        let signature = bind(&format!("{}{}", signature_prefix(interface), std::process::id()));
        Ok(Self { _claim: claim, _signature: signature.ok() })
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
    /// Process id; 0 if unknown.
    pub pid: i32,
    /// Name of the process.
    pub program: String,
    /// User id of the process, if known.
    pub user: Option<u32>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("an unknown process (root can identify it)");
        }
        write!(f, "process {} ({})", self.pid, self.program)?;
        self.user.map_or(Ok(()), |user| write!(f, " of user {user}"))
    }
}

impl Owner {
    /// An owner that cannot be identified.
    pub(super) fn unknown() -> Self {
        Self { pid: 0, program: "unknown".to_owned(), user: None }
    }

    /// The process at the other end of a socket.
    pub(super) fn of_socket(credentials: &UnixCredentials) -> Self {
        Self { user: Some(credentials.uid()), ..Self::of(credentials.pid()) }
    }

    fn of(pid: i32) -> Self {
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let program = program.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned());
        let user = std::fs::metadata(format!("/proc/{pid}")).ok().map(|about| about.uid());
        // A process chooses its name itself; control characters must not reach a terminal.
        Self { pid, program: program.escape_debug().to_string(), user }
    }
}

/// The process that has `interface` open with Feroce in the network namespace of the calling
/// thread; `None` if there is none.
pub fn owner_of(interface: &str) -> Option<Owner> {
    let sockets = std::fs::read_to_string(SOCKETS).ok()?;
    // Inode and name are the last two columns.
    let rows = sockets.lines().filter_map(|line| {
        let mut columns = line.split_whitespace().rev();
        let (name, inode) = (columns.next()?, columns.next()?);
        Some((name.strip_prefix('@')?, inode))
    });
    let rows: Vec<_> = rows.collect();
    let claim = claim_name(interface);
    let inode = rows.iter().find(|(name, _)| *name == claim).map(|(_, inode)| *inode)?;
    let link = format!("socket:[{inode}]");
    let prefix = signature_prefix(interface);
    let signed = rows.iter().find_map(|(name, _)| name.strip_prefix(&prefix)?.parse().ok());
    match signed.map(|pid| (pid, has_open(pid, &link))) {
        // The signature names this process, and /proc does not contradict it.
        Some((pid, Some(true) | None)) => Some(Owner::of(pid)),
        _ => Some(processes().find(|pid| has_open(*pid, &link) == Some(true)))
            .map(|pid| pid.map_or_else(Owner::unknown, Owner::of)),
    }
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns true if process `pid` has the file that `link` describes open; `None` if this process
/// may not read it.
fn has_open(pid: i32, link: &str) -> Option<bool> {
    let open = match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(false),
        other => other.ok()?,
    };
    let mut targets = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    Some(targets.any(|target| target.as_os_str() == link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_gets_the_first_one_in_the_error() {
        let name = format!("test-{}", std::process::id());
        let first = Ownership::take(&name).unwrap();
        let refused = Ownership::take(&name).unwrap_err();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(
            matches!(&refused, OwnershipError::InUse(owner) if owner.pid == own),
            "{refused:?}"
        );
        let user = nix::unistd::geteuid().as_raw();
        assert_eq!(owner_of(&name).map(|owner| (owner.pid, owner.user)), Some((own, Some(user))));
        drop(first);
        assert_eq!(owner_of(&name), None);
        Ownership::take(&name).unwrap();
    }

    #[test]
    fn a_false_signature_does_not_hide_the_owner() {
        let name = format!("test-false-{}", std::process::id());
        let parent = nix::unistd::getppid();
        let _claim = bind(&claim_name(&name)).unwrap();
        let _signature = bind(&format!("{}{parent}", signature_prefix(&name))).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(owner_of(&name).map(|owner| owner.pid), Some(own));
        // A signature alone does not make its process the owner.
        let _other = bind(&format!("{}{own}", signature_prefix("test-none"))).unwrap();
        assert_eq!(owner_of("test-none"), None);
    }
}
