//! One program owns an interface's RoCE traffic, and a second one is told who.
//!
//! Ownership is an abstract Unix socket named for the interface: it lives in the network namespace that
//! the interface lives in, and is gone with the process, however that ends. Nothing is ever sent to it.
//!
//! Such names are free for all, so any user can keep an interface from being opened. A holder is not passed over for
//! being a stranger: who opens the interface by file capabilities is one, too, and two owners would tear each
//! other's traffic. But it is named truly, so that it can be ended: the process is the one that has the socket
//! open, by its inode. Only where other users' processes cannot be looked into, a second name counts, by which the
//! owner says itself which process it is.

use std::fmt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::sys::socket::UnixCredentials;

use super::error::OpenError;

/// The abstract sockets of the calling thread's network namespace.
pub(super) const SOCKETS: &str = "/proc/thread-self/net/unix";

/// Held while the interface is owned.
#[derive(Debug)]
pub(super) struct Ownership {
    _claim: UnixDatagram,
    _signature: Option<UnixDatagram>,
}

impl Ownership {
    /// Takes the interface.
    pub(super) fn take(interface: &str) -> Result<Self, OpenError> {
        let failed =
            |source| OpenError::System { action: "take ownership of the interface", source };
        let claim = match bind(&claim_name(interface)) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let owner = owner_of(interface).unwrap_or_else(Owner::unknown);
                return Err(OpenError::Owned { interface: interface.to_owned(), owner });
            }
            other => other.map_err(failed)?,
        };
        // If somebody has taken that, we are not told apart from others by those who cannot look.
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
    /// Its number; 0 if it cannot be told.
    pub pid: i32,
    /// Its name.
    pub program: String,
    /// Whom it runs as, if that can be told.
    pub user: Option<u32>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("a process that cannot be told from here (as root it can)");
        }
        write!(f, "process {} ({})", self.pid, self.program)?;
        self.user.map_or(Ok(()), |user| write!(f, " of user {user}"))
    }
}

impl Owner {
    /// Somebody.
    pub(super) fn unknown() -> Self {
        Self { pid: 0, program: "unknown".to_owned(), user: None }
    }

    /// Who is at the other end of a socket.
    pub(super) fn of_socket(credentials: &UnixCredentials) -> Self {
        Self { user: Some(credentials.uid()), ..Self::of(credentials.pid()) }
    }

    fn of(pid: i32) -> Self {
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let program = program.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned());
        let user = std::fs::metadata(format!("/proc/{pid}")).ok().map(|about| about.uid());
        // Its own choice, and not for terminals to obey.
        Self { pid, program: program.escape_debug().to_string(), user }
    }
}

/// Who has `interface` open by Feroce in the network namespace of the calling thread; `None` if nobody.
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
        // It says so itself, and nothing is against it.
        Some((pid, Some(true) | None)) => Some(Owner::of(pid)),
        _ => Some(processes().find(|pid| has_open(*pid, &link) == Some(true)))
            .map(|pid| pid.map_or_else(Owner::unknown, Owner::of)),
    }
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether process `pid` has what `link` says open; `None` if we may not look.
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
    fn a_second_owner_is_told_the_first() {
        let name = format!("test-{}", std::process::id());
        let first = Ownership::take(&name).unwrap();
        let refused = Ownership::take(&name).unwrap_err();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(
            matches!(&refused, OpenError::Owned { owner, .. } if owner.pid == own),
            "{refused}"
        );
        let user = nix::unistd::geteuid().as_raw();
        assert_eq!(owner_of(&name).map(|owner| (owner.pid, owner.user)), Some((own, Some(user))));
        drop(first);
        assert_eq!(owner_of(&name), None);
        Ownership::take(&name).unwrap();
    }

    #[test]
    fn an_owner_that_gives_itself_for_another_is_named_truly() {
        let name = format!("test-false-{}", std::process::id());
        let parent = nix::unistd::getppid();
        let _claim = bind(&claim_name(&name)).unwrap();
        let _signature = bind(&format!("{}{parent}", signature_prefix(&name))).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(owner_of(&name).map(|owner| owner.pid), Some(own));
        // A signature alone is no claim.
        let _other = bind(&format!("{}{own}", signature_prefix("test-none"))).unwrap();
        assert_eq!(owner_of("test-none"), None);
    }
}
