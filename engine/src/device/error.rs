//! Errors of the control plane.

use feroce_wire::PathMtu;

use super::owner::{Owner, OwnershipError};
use crate::memory::AccessError;
use crate::memory::arena::ArenaError;
use crate::memory::frame_ring::FrameRingError;
use crate::net::{Gid, NetError, ResolveError};
use crate::port::kind::PortError;
use crate::port::registry::PortKind;
use crate::qp::attributes::ModifyError;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A configuration value is out of range.
    #[error("device configuration: {0}")]
    Config(&'static str),
    /// Another program has the interface open with Feroce.
    #[error(
        "interface {interface} is in use by {owner}: one process owns the RoCE traffic of an \
         interface. `feroce up {interface}` lets many programs use it (docs/daemon.md)"
    )]
    Owned {
        /// The interface.
        interface: String,
        /// The process that has the interface open.
        owner: Owner,
    },
    /// This build lacks the kind of port.
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
    /// The addresses of the host could not be read.
    #[error(transparent)]
    Net(#[from] NetError),
    /// There is no memory for rings.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The rings between cores could not be created.
    #[error(transparent)]
    Ring(#[from] FrameRingError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}

impl OpenError {
    /// Ownership of `interface` could not be taken.
    pub(super) fn ownership(interface: &str, error: OwnershipError) -> Self {
        match error {
            OwnershipError::InUse(owner) => Self::Owned { interface: interface.to_owned(), owner },
            OwnershipError::System(source) => {
                Self::System { action: "take ownership of the interface", source }
            }
        }
    }
}

fn list_failures(failures: &[(&'static str, PortError)]) -> String {
    let failures: Vec<_> =
        failures.iter().map(|(kind, error)| format!("{kind}: {error}")).collect();
    failures.join("; ")
}

/// Why an object could not be created or changed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A number exceeds its limit.
    #[error("{what} is {value}, the limit is {limit}")]
    Limit {
        /// The parameter.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// The device has the maximum number of objects of this kind.
    #[error("no more {0} (raise the limit in the device's configuration)")]
    Exhausted(&'static str),
    /// The region is not a range of memory, or its access rights contradict each other.
    #[error("memory region: {0}")]
    Region(&'static str),
    /// The memory of an advice request is not accessible.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A DMA buffer cannot be mapped.
    #[error("the DMA buffer cannot be mapped: {0}")]
    DmaBuf(#[source] std::io::Error),
    /// Another object still needs this one.
    #[error("{0}")]
    Busy(&'static str),
    /// The QP is in a state that does not allow the change.
    #[error("{0}")]
    State(&'static str),
    /// Objects of different devices or protection domains were combined.
    #[error("{0} belongs to another device or protection domain")]
    Foreign(&'static str),
    /// The requested QP number is taken or outside the range of the device.
    #[error("QP number {0:#x} is taken or outside the range of this device")]
    Qpn(u32),
    /// There is no memory for rings.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// No descriptor is left.
    #[error("no descriptor left: {0}")]
    System(#[from] std::io::Error),
    /// The attributes of a QP are invalid.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The port cannot carry the path MTU.
    #[error("path MTU {} needs a larger interface MTU than {mtu}", .path_mtu.bytes())]
    PathMtu {
        /// The requested path MTU.
        path_mtu: PathMtu,
        /// The MTU of the interface in bytes.
        mtu: u32,
    },
    /// The GID table has no entry with this index.
    #[error("no GID with index {0}")]
    GidIndex(u32),
    /// Only UD QPs can be attached to multicast groups.
    #[error("only UD QPs can be attached to multicast groups")]
    NotDatagram,
    /// The GID is not a multicast group.
    #[error("{0} is not a multicast group")]
    NotMulticast(Gid),
    /// The QP is not attached to the group.
    #[error("the QP is not attached to {0}")]
    NotAttached(Gid),
    /// The host could not become a member of a multicast group.
    #[error("cannot join the multicast group {group}: {source}")]
    Membership {
        /// The group.
        group: Gid,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The port cannot send from this UDP source port.
    #[error("this port does not send from UDP port {0}: list it in `udp_source_ports`")]
    SourcePort(u16),
    /// The peer cannot be reached.
    #[error("no path to {gid}: {source}")]
    Path {
        /// The peer.
        gid: Gid,
        /// The cause.
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
    /// The state of the QP does not permit this request.
    #[error("the state of the QP does not permit this request")]
    State,
    /// The QP uses a shared receive queue; receives must be posted there.
    #[error("the QP uses a shared receive queue")]
    SharedReceives,
    /// The window is of type 2, but this call binds windows of type 1.
    #[error(
        "type 2 windows are bound by a request in the send queue, with a key that the program \
         chooses"
    )]
    WindowType,
    /// The request has more scatter/gather entries than the QP was created for.
    #[error("more scatter/gather entries than the QP was created for")]
    TooManySges,
    /// The request has more inline data than the QP was created for.
    #[error("more inline data than the QP was created for")]
    InlineTooLong,
    /// A request that returns data has inline data.
    #[error("READs and atomics cannot have inline data")]
    InlineNotAllowed,
    /// The QP is an XRC target: it sends nothing.
    #[error("an XRC target QP has no send queue")]
    Operation,
    /// A datagram has no destination on this device, or a request of a connected QP has one.
    #[error("requests of UD QPs need a destination; those of connected QPs must not have one")]
    Destination,
}
