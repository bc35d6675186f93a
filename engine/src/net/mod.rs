//! The host's addressing: which addresses a device has, and which headers reach a peer.
//!
//! The kernel owns addresses, routes and neighbours; this module asks it over netlink and keeps no
//! global state. Every socket lives in the network namespace of the thread that opened it, so
//! several namespaces can be served from one process.
//!
//! | question | answer |
//! |---|---|
//! | what does this interface look like? | [`Interface`] |
//! | which GIDs does a device have, and at which index? | [`Gid`], [`GidTable`] |
//! | which headers lead from this GID to that one? | [`Resolver`] giving [`PathHeaders`] |
//! | what changed? | [`Watcher`] publishing [`NetEvent`]s |
//!
//! IPv4, IPv6 and single-tagged (802.1Q) VLAN sub-interfaces are served. Asking needs no privilege;
//! making the kernel resolve a neighbour needs `CAP_NET_ADMIN` in its network namespace.

mod event;
mod gid;
mod interface;
mod neighbour;
mod netlink;
mod resolve;
mod route;
mod watch;

pub use event::NetEvent;
pub use gid::{GID_TABLE_LEN, Gid, GidEntry, GidTable, ParseGidError};
pub use interface::{Interface, InterfaceAddress, VlanLink};
pub use resolve::{Confirmation, PathHeaders, RESOLVE_TIMEOUT, ResolveError, Resolver};
pub(crate) use resolve::{multicast_mac, wait};
pub use route::chosen_source;
pub use watch::Watcher;

/// Why the kernel's tables could not be read or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// No interface of this name in this network namespace.
    #[error("no interface {name} in this network namespace")]
    NoSuchInterface {
        /// Its name.
        name: String,
    },
    /// The interface has no 48-bit MAC address.
    #[error("interface {name} is not an Ethernet interface")]
    NotEthernet {
        /// Its name.
        name: String,
    },
    /// The kernel refuses this to the process.
    #[error("not permitted to {action}: CAP_NET_ADMIN in this network namespace is needed")]
    Permission {
        /// What was tried.
        action: &'static str,
    },
    /// A system call or a request failed.
    #[error("cannot {action}: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's error number.
        errno: i32,
    },
    /// A table changed during every attempt to read it.
    #[error("cannot {action}: the table never held still")]
    Unsteady {
        /// What was tried.
        action: &'static str,
    },
    /// A netlink message is longer than any known kernel sends.
    #[error("a netlink message was too long to be read")]
    Truncated,
    /// The watcher's thread could not be started.
    #[error("cannot start the thread that watches addresses (error {errno})")]
    Thread {
        /// The system's error number.
        errno: i32,
    },
}
