//! Errors of the control plane.

use feroce_wire::PathMtu;

use super::PortKind;
use crate::memory::AccessError;
use crate::memory::arena::ArenaError;
use crate::memory::frame_ring::FrameRingError;
use crate::net::{Gid, NetError, ResolveError};
use crate::port::kind::PortError;
use crate::qp::attributes::ModifyError;

use super::owner::Owner;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A value of the configuration is out of range.
    #[error("device configuration: {0}")]
    Config(&'static str),
    /// Another program runs Feroce on the interface.
    #[error(
        "interface {interface} is in use by {owner}: one program owns an interface's RoCE traffic, and another needs an \
         interface of its own (docs/programs.md)"
    )]
    Owned {
        /// Interface.
        interface: String,
        /// Who has it.
        owner: Owner,
    },
    /// The kind of port was left out when Feroce was built.
    #[error("this build of Feroce has no {0} port: build it with `--features {0}` (docs/{0}.md)")]
    NotBuilt(PortKind),
    /// The port failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// None of the kinds of port that `auto` tries opens.
    #[error("no kind of port opens: {}", list_failures(.failures))]
    NoPort {
        /// The kinds in the order in which they were tried, with their errors.
        failures: Vec<(&'static str, PortError)>,
    },
    /// The host's addressing.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Memory for rings.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// Rings between cores.
    #[error(transparent)]
    Ring(#[from] FrameRingError),
    /// The system.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

fn list_failures(failures: &[(&'static str, PortError)]) -> String {
    let failures: Vec<_> =
        failures.iter().map(|(kind, error)| format!("{kind}: {error}")).collect();
    failures.join("; ")
}

/// Why an object could not be created or changed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A number in the request is out of range.
    #[error("{what} is {value}, the limit is {limit}")]
    Limit {
        /// What.
        what: &'static str,
        /// As asked for.
        value: u64,
        /// As allowed.
        limit: u64,
    },
    /// The device has as many objects of the kind as it can have.
    #[error("no more {0} (raise the limit in the device's configuration)")]
    Exhausted(&'static str),
    /// A region that is no range of memory, or rights that contradict each other.
    #[error("memory region: {0}")]
    Region(&'static str),
    /// Memory that was named in advice.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A DMA buffer whose memory cannot be had.
    #[error("the DMA buffer cannot be mapped: {0}")]
    DmaBuf(#[source] std::io::Error),
    /// Something else still needs it.
    #[error("{0}")]
    Busy(&'static str),
    /// Objects of different devices or protection domains were put together.
    #[error("{0} belongs to another device or protection domain")]
    Foreign(&'static str),
    /// A QP number that was asked for is taken or outside the device's slice.
    #[error("QP number {0:#x} is taken or outside this device's numbers")]
    Qpn(u32),
    /// Memory for rings.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The system.
    #[error("no descriptor left: {0}")]
    System(#[from] std::io::Error),
    /// The attributes of a QP.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The port cannot carry the path MTU.
    #[error("path MTU {} needs a larger interface MTU than {mtu}", .path_mtu.bytes())]
    PathMtu {
        /// As asked for.
        path_mtu: PathMtu,
        /// Of the interface.
        mtu: u32,
    },
    /// No entry of the GID table has this index.
    #[error("no GID with index {0}")]
    GidIndex(u32),
    /// Only UD QPs are attached to multicast groups.
    #[error("only UD QPs are attached to multicast groups")]
    NotDatagram,
    /// The GID is no multicast group's.
    #[error("{0} is no multicast group")]
    NotMulticast(Gid),
    /// The QP is not attached to the group.
    #[error("the QP is not attached to {0}")]
    NotAttached(Gid),
    /// The host could not become a member of a multicast group.
    #[error("cannot join the multicast group {group}: {source}")]
    Membership {
        /// The group.
        group: Gid,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The peer cannot be reached.
    #[error("no path to {gid}: {source}")]
    Path {
        /// The peer.
        gid: Gid,
        /// Why.
        #[source]
        source: ResolveError,
    },
}

/// Why a work request was not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The work queue is full.
    #[error("the work queue is full")]
    Full,
    /// The QP's state does not take such requests.
    #[error("the QP's state does not take such requests")]
    State,
    /// The QP takes its receives from a shared queue: they are posted there.
    #[error("the QP takes its receives from a shared receive queue")]
    SharedReceives,
    /// A type 2 window where a type 1 window belongs.
    #[error("type 2 windows are bound by a request of the send queue, with a key of the program's")]
    WindowType,
    /// More entries than the QP was made for.
    #[error("more scatter/gather entries than the QP was made for")]
    TooManySges,
    /// More inline data than the QP was made for.
    #[error("more inline data than the QP was made for")]
    InlineTooLong,
    /// Inline data with a request that returns data.
    #[error("READs and atomics have no inline data")]
    InlineNotAllowed,
    /// The QP's service has no such operation.
    #[error("the QP's service has no such operation")]
    Operation,
    /// A datagram names no destination, or a request of a connected QP names one.
    #[error("requests of UD QPs need a destination, those of connected QPs have one")]
    Destination,
    /// A datagram is longer than a packet of its path.
    #[error("a datagram fits one packet of its path")]
    TooLong,
    /// The address handle belongs to another device or protection domain.
    #[error("the address handle belongs to another protection domain")]
    Foreign,
}
