//! Ownership of an interface: one program owns its RoCE traffic, and a second program gets an error
//! that names the owner.
//!
//! A process takes ownership with two things. Both are in the network namespace of the interface,
//! and disappear when the process ends, however it ends:
//!
//! - the *claim*, an abstract Unix socket named after the interface. Only one process can have it,
//!   but any user can take it;
//! - the *mark*, a packet socket that only a process with CAP_NET_RAW can make
//!   ([`crate::port::packet::mark`]). Several processes can have one.
//!
//! Whoever can open a port AF_XDP or packet can make a mark. Such a process places its mark,
//! takes the claim, changes its mark to "owning", and then looks for other owning marks. Of two
//! processes, the one that looks last sees the other, so that never both own the interface. The
//! claim decides which one of them gives up.
//!
//! If another process has the claim, a process with a mark yields to that process if it has a mark,
//! or if it belongs to the same user or to root, as a program on port UDP may. Otherwise the other
//! process is a squatter, or a program on port UDP of another user, and is ignored. The
//! capabilities of the process with the claim would prove nothing: it may execute a program such as
//! `su` that has some.
//!
//! A process without CAP_NET_RAW can only open port UDP, which any user can prevent by binding UDP
//! port 4791. It yields to every process with the claim, and to every mark.
//!
//! The process is named by a second abstract socket, whose name contains the process id. It counts
//! if its user has made the claim or the mark, and `/proc` does not contradict it.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::sys::socket::UnixCredentials;
use rustix::net::netdevice::name_to_index;

use crate::net::unix_diag::{UnixSocket, unix_socket};
use crate::port::packet::mark::{Mark, Seen, marks};

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

impl From<io::Error> for OwnershipError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Ownership of an interface, until dropped.
#[derive(Debug)]
pub(crate) struct Ownership {
    /// `None` if a process that was ignored has it.
    _claim: Option<UnixDatagram>,
    _mark: Option<Mark>,
    _signature: Option<UnixDatagram>,
}

impl Ownership {
    /// Takes ownership of the interface.
    pub(super) fn take(interface: &str) -> Result<Self, OwnershipError> {
        let index = index_of(interface);
        // Before the claim, so that a process that finds the claim taken also finds the mark.
        let mark = index.map(Mark::claim).transpose()?.flatten();
        let claim = match bind(&claim_name(interface)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                judge_claim(interface, index, mark.as_ref())?;
                None
            }
            other => Some(other?),
        };
        if let Some(mark) = &mark {
            mark.own()?;
        }
        // After the own mark was changed: of two processes, the later sees the mark of the earlier.
        if let Some(other) = other_marks(index, mark.as_ref()).find(|seen| seen.is_owning) {
            return Err(OwnershipError::InUse(Sockets::read().owner(interface, &other.into())));
        }
        // If this name is taken, users without permission to read /proc cannot identify this
        // process; opening still succeeds.
        let signature = bind(&format!("{}{}", signature_prefix(interface), std::process::id()));
        Ok(Self { _claim: claim, _mark: mark, _signature: signature.ok() })
    }
}

/// Decides whether the process that has the claim counts.
fn judge_claim(
    interface: &str,
    index: Option<u32>,
    mark: Option<&Mark>,
) -> Result<(), OwnershipError> {
    let sockets = Sockets::read();
    let holder = sockets.holder(interface);
    let in_use = |holder: Option<&Holder>| {
        let owner = holder.map(|holder| sockets.owner(interface, holder));
        Err(OwnershipError::InUse(owner.unwrap_or_else(Owner::unknown)))
    };
    if let Some(other) = other_marks(index, mark).max_by_key(|seen| seen.is_owning) {
        return in_use(Some(&other.into()));
    }
    let own = rustix::process::geteuid().as_raw();
    match &holder {
        Some(Holder { user: Some(user), .. }) if [own, 0].contains(user) => in_use(holder.as_ref()),
        holder if mark.is_none() => in_use(holder.as_ref()),
        Some(holder) => {
            let process = sockets.owner(interface, holder);
            tracing::warn!(
                "{process} claims {interface}, but has shown no right to use it: the claim is \
                 ignored. If it is a program on port udp, it will receive nothing"
            );
            Ok(())
        }
        // The claim was given up since.
        None => Ok(()),
    }
}

/// The marks on the interface other than `own`. None if the kernel does not show any.
fn other_marks(index: Option<u32>, own: Option<&Mark>) -> impl Iterator<Item = Seen> {
    let own = own.map(Mark::inode);
    let seen = index.and_then(|index| marks(index).ok()).unwrap_or_default();
    seen.into_iter().filter(move |seen| Some(seen.inode) != own)
}

/// The index of an interface in the network namespace of the calling thread.
fn index_of(interface: &str) -> Option<u32> {
    name_to_index(UnixDatagram::unbound().ok()?, interface).ok()
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

/// The socket by which a process has claimed or marked an interface.
#[derive(Debug, Clone, Copy)]
struct Holder {
    inode: u64,
    /// The user who made the socket; `None` on kernels that do not say it.
    user: Option<u32>,
}

impl From<Seen> for Holder {
    fn from(mark: Seen) -> Self {
        Self { inode: mark.inode, user: Some(mark.user) }
    }
}

/// Names and inodes of a network namespace's sockets with abstract names. Any user can forge rows,
/// with the line feeds of a name.
struct Sockets(Vec<(String, u64)>);

impl Sockets {
    /// Reads those of the calling thread's namespace. None if `/proc` is not mounted.
    fn read() -> Self {
        let sockets = std::fs::read(SOCKETS).unwrap_or_default();
        let sockets = String::from_utf8_lossy(&sockets);
        // Inode and name are the last two columns.
        let rows = sockets.lines().filter_map(|line| {
            let mut columns = line.split_whitespace().rev();
            let (name, inode) = (columns.next()?, columns.next()?);
            Some((name.strip_prefix('@')?.to_owned(), inode.parse().ok()?))
        });
        Self(rows.collect())
    }

    /// The process that has the claim of `interface`.
    fn holder(&self, interface: &str) -> Option<Holder> {
        let claim = claim_name(interface);
        let inodes = || self.0.iter().filter(|(name, _)| *name == claim).map(|(_, inode)| *inode);
        let known = inodes().find_map(|inode| Some((inode, verified(inode, &claim)?)));
        let known = known.map(|(inode, socket)| Holder { inode, user: Some(socket.user) });
        known.or_else(|| Some(Holder { inode: inodes().next()?, user: None }))
    }

    /// The process behind `holder`.
    fn owner(&self, interface: &str, holder: &Holder) -> Owner {
        let link = format!("socket:[{}]", holder.inode);
        let prefix = signature_prefix(interface);
        let signed = self.0.iter().filter_map(|(name, inode)| {
            let pid: i32 = name.strip_prefix(&prefix)?.parse().ok()?;
            let user = verified(*inode, name).map(|socket| socket.user);
            (user == holder.user).then_some(pid)
        });
        // A signature names this process, and /proc does not contradict it.
        let mut plausible = signed.filter(|pid| has_open(*pid, &link) != Some(false));
        let pid = plausible
            .next()
            .or_else(|| processes().find(|pid| has_open(*pid, &link) == Some(true)));
        pid.map_or_else(|| Owner { user: holder.user, ..Owner::unknown() }, Owner::of)
    }
}

/// The socket with this inode, if the kernel confirms its name.
fn verified(inode: u64, name: &str) -> Option<UnixSocket> {
    let socket = unix_socket(u32::try_from(inode).ok()?)?;
    let is_so = socket.is_datagram && socket.abstract_name.as_deref() == Some(name.as_bytes());
    is_so.then_some(socket)
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
        match self.pid {
            0 => f.write_str("an unknown process")?,
            pid => write!(f, "process {pid} ({})", self.program)?,
        }
        self.user.map_or(Ok(()), |user| write!(f, " of user {user}"))?;
        if self.pid == 0 { f.write_str(" (root can identify it)") } else { Ok(()) }
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
/// thread; `None` if there is none. A process that only has the name of the claim, and no right to
/// use the interface, is returned if no process has the interface open.
pub fn owner_of(interface: &str) -> Option<Owner> {
    let sockets = Sockets::read();
    let marked = other_marks(index_of(interface), None).find(|seen| seen.is_owning);
    let holder = marked.map(Holder::from).or_else(|| sockets.holder(interface))?;
    Some(sockets.owner(interface, &holder))
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

    /// Runs `body` in a network namespace of its own; not without root.
    fn in_namespace(body: impl FnOnce() + Send + 'static) {
        if !nix::unistd::geteuid().is_root() {
            feroce_test_skip::skip("a network namespace needs root");
            return;
        }
        let alone = move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            body();
        };
        feroce_threads::spawn("feroce-test", alone).unwrap().join().unwrap();
    }

    fn in_use(result: &Result<Ownership, OwnershipError>) -> bool {
        matches!(result, Err(OwnershipError::InUse(owner))
            if u32::try_from(owner.pid) == Ok(std::process::id()))
    }

    #[test]
    fn owners_exclude_each_other_without_the_claim() {
        in_namespace(|| {
            let index = index_of("lo");
            let first = Ownership::take("lo").unwrap();
            assert!(in_use(&Ownership::take("lo")));
            drop(first);
            // As if a squatter had taken the claim before, and given it up now.
            let first = Mark::claim(index.unwrap()).unwrap().unwrap();
            first.own().unwrap();
            assert!(matches!(Ownership::take("lo"), Err(OwnershipError::InUse(_))));
            assert_eq!(
                owner_of("lo").map(|owner| owner.pid),
                i32::try_from(std::process::id()).ok()
            );
            drop(first);
            // A process that marks the interface as claimed but lacks the claim is no owner.
            let _claiming = Mark::claim(index.unwrap()).unwrap().unwrap();
            Ownership::take("lo").unwrap();
        });
    }

    #[test]
    fn the_claim_of_the_same_user_counts_without_a_mark() {
        in_namespace(|| {
            let claim = bind(&claim_name("lo")).unwrap();
            assert!(in_use(&Ownership::take("lo")));
            drop(claim);
            Ownership::take("lo").unwrap();
        });
    }

    #[test]
    fn of_many_processes_at_once_exactly_one_owns_the_interface() {
        in_namespace(|| {
            for round in 0..100 {
                let start = std::sync::Barrier::new(4);
                let owners = std::thread::scope(|scope| {
                    let take = || {
                        start.wait();
                        let taken = Ownership::take("lo");
                        start.wait(); // No thread gives up the interface before all have tried.
                        taken
                    };
                    let all = [(); 4].map(|()| {
                        feroce_threads::spawn_scoped(scope, "feroce-test", take).unwrap()
                    });
                    all.map(|one| usize::from(one.join().unwrap().is_ok())).iter().sum::<usize>()
                });
                assert_eq!(owners, 1, "round {round}");
            }
        });
    }
}
