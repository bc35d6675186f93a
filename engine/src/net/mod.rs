//! The host's addressing: the addresses of a device, and the headers that reach a peer.
//!
//! The kernel owns addresses, routes and neighbours. This module reads them over netlink and keeps
//! no global state. Every socket belongs to the network namespace of the thread that opened it, so
//! one process can serve several namespaces.
//!
//! | topic | types |
//! |---|---|
//! | properties of an interface | [`Interface`] |
//! | GIDs of a device, and their indices | [`Gid`], [`GidTable`] |
//! | headers from a local GID to a peer's | [`Resolver`], which returns [`PathHeaders`] |
//! | changes | [`Watcher`], which publishes [`NetEvent`]s |
//!
//! IPv4, IPv6 and single-tagged (802.1Q) VLAN sub-interfaces are supported. Reading needs no
//! privilege. Making the kernel resolve a neighbour needs `CAP_NET_ADMIN` in its network namespace.

mod event;
mod gid;
mod interface;
mod neighbour;
mod netlink;
mod next_hops;
mod resolve;
mod route;
pub(crate) mod unix_diag;
mod watch;

pub use event::NetEvent;
pub use gid::{GID_TABLE_LEN, Gid, GidEntry, GidTable, ParseGidError};
pub use interface::{Interface, InterfaceAddress, VlanLink};
pub(crate) use next_hops::{Hop, NextHops};
pub use resolve::{Confirmation, PathHeaders, RESOLVE_TIMEOUT, ResolveError, Resolver};
pub(crate) use resolve::{ROUTED_MAC, multicast_mac, wait};
pub use route::chosen_source;
pub(crate) use watch::Watched;
pub use watch::Watcher;

/// Why the kernel's tables could not be read or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// No interface of this name in this network namespace.
    #[error("no interface {name} in this network namespace (see `ip link`)")]
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
    /// The process lacks the permission.
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
    #[error("cannot {action}: the table kept changing")]
    Unsteady {
        /// What was tried.
        action: &'static str,
    },
    /// A netlink message is longer than any that known kernels send.
    #[error("a netlink message was too long to be read")]
    Truncated,
    /// The watcher's thread could not be started.
    #[error("cannot start the thread that watches addresses (error {errno})")]
    Thread {
        /// The system's error number.
        errno: i32,
    },
}
