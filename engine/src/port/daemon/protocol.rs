//! The protocol between a daemon and its clients.
//!
//! The transport is a Unix socket of type SEQPACKET, which keeps messages whole. Each message is
//! one JSON value. A client sends calls ([`Call`]), the daemon sends answers ([`Message::Answer`])
//! and, unasked, notices ([`Message::Notice`]). The first call is [`Request::Attach`].
//!
//! # The client's port
//! The answer to `Attach` carries three descriptors: the memory of two rings of frames, and the
//! client's end of the bell between the two processes
//! ([`RemoteBell`](crate::memory::bell::RemoteBell)). The daemon moves no frame before the client
//! has mapped the memory ([`Request::Ready`]).
//!
//! ```text
//! offset 0                  ring from the client to the daemon   tx_slots of frame_max bytes
//! after it                  ring from the daemon to the client   rx_slots of frame_max bytes
//! ```
//!
//! # Versions
//! A client states its [`VERSION`] in `Attach`; a daemon of another version refuses the client with
//! [`Refusal::Version`]. Fields may be added without a new version: unknown ones are ignored.

use std::net::IpAddr;

use feroce_wire::MacAddr;
use serde::{Deserialize, Serialize};

use super::limits::Limits;
use crate::memory::frame_ring::{FrameRingError, RingShape};
use crate::net::{Gid, GidEntry, PathHeaders, ResolveError};
use crate::port::kind::ServicePort;
use crate::time::Duration;

/// Version of the protocol and of the layout of the rings.
pub const VERSION: u32 = 1;

/// Maximum length of a message in bytes. A GID table of 1024 entries fits.
pub const MESSAGE_MAX: usize = 192 << 10;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Chosen by the client; repeated in the answer.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// The requests of a client. Each variant names the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A port: [`Answer::Attached`]. The first call, once.
    Attach {
        /// [`VERSION`] of the client.
        version: u32,
        /// Name of the program, for display.
        program: String,
    },
    /// The client has mapped the memory: [`Answer::Done`]. From then on the memory cannot be mapped
    /// again, nor can a hole be made in it.
    Ready,
    /// Statistics: [`Answer::Stat`]. Allowed before `Attach`, too.
    Stat,
    /// Another slice of QP numbers: [`Answer::Slice`].
    QpnSlice,
    /// The headers of a path: [`Answer::Path`]. The answer comes when the next hop has answered;
    /// the daemon answers other calls meanwhile.
    Resolve {
        /// GID of the destination, a host or a multicast group.
        destination: [u8; 16],
        /// Local address.
        source: Local,
        /// Time to wait for the next hop, in milliseconds.
        timeout_ms: u64,
    },
    /// Permission to send from the QP `qpn` to the QP `remote_qpn` of a host: [`Answer::Done`].
    /// Replaces an earlier permission of the QP.
    Connect {
        /// A number of the client's slices.
        qpn: u32,
        /// The peer's address.
        remote: IpAddr,
        /// The peer's QP.
        remote_qpn: u32,
    },
    /// The end of the permission that [`Request::Connect`] gave: [`Answer::Done`].
    Disconnect {
        /// As in [`Request::Connect`].
        qpn: u32,
    },
    /// Membership in a multicast group: [`Answer::Done`].
    Join {
        /// The group.
        group: IpAddr,
    },
    /// The end of a membership: [`Answer::Done`].
    Leave {
        /// The group.
        group: IpAddr,
    },
    /// The port of a service, at which no other client may listen: [`Answer::Done`].
    Claim(ServicePort),
    /// The end of a claim: [`Answer::Done`].
    Release(ServicePort),
}

/// A message of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The answer to the call `id`.
    Answer {
        /// As in [`Call`].
        id: u64,
        /// The result.
        result: Result<Answer, Refusal>,
    },
    /// A message without a call.
    Notice(Notice),
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The request has no other result.
    Done,
    /// The client has a port.
    Attached(Box<Attached>),
    /// The first number of a slice of QP numbers.
    Slice(u32),
    /// A path.
    Path(PathAnswer),
    /// Statistics.
    Stat(Box<DaemonStat>),
}

/// Statistics of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStat {
    /// Kind and mode of the daemon's port.
    pub port: String,
    /// Frames that the port received.
    pub rx_frames: u64,
    /// Bytes that the port received.
    pub rx_bytes: u64,
    /// Frames that the port lost on arrival.
    pub rx_dropped: u64,
    /// Frames for which there was no program.
    pub rx_undelivered: u64,
    /// Frames that the port sent.
    pub tx_frames: u64,
    /// Bytes that the port sent.
    pub tx_bytes: u64,
    /// The programs: all for root and the daemon's user, otherwise those of the user who asks.
    pub programs: Vec<ProgramStat>,
    /// The users whose programs are in `programs`, and users whose programs have ended within the
    /// last minute.
    #[serde(default)]
    pub users: Vec<UserStat>,
    /// The limits; `None` from a daemon of an earlier version.
    #[serde(default)]
    pub limits: Option<Limits>,
}

/// What a user has used of the limits for all of the user's programs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStat {
    /// User id.
    pub user: u32,
    /// Number of programs attached, of [`Limits::clients`].
    pub programs: u32,
    /// Number of QP numbers, of [`Limits::qps`], including those of programs that have ended within
    /// the last minute.
    pub qp_numbers: u32,
}

/// Statistics of a program at a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramStat {
    /// Name of the program, as the program states it.
    pub program: String,
    /// Process id.
    pub pid: i32,
    /// User id.
    pub user: u32,
    /// Number of QP numbers that the program has.
    pub qp_numbers: u32,
    /// Number of connections of RDMA CM, half-open ones included.
    pub connections: usize,
    /// Number of ports of RDMA CM that the program is bound to.
    pub services: usize,
    /// Frames of the program.
    pub frames: ProgramFrames,
}

/// Frames of a program since it was attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFrames {
    /// Frames to the program.
    pub rx_frames: u64,
    /// Bytes to the program.
    pub rx_bytes: u64,
    /// Frames lost because the program had not taken earlier ones.
    pub rx_dropped: u64,
    /// Frames from the program.
    pub tx_frames: u64,
    /// Bytes from the program.
    pub tx_bytes: u64,
    /// Frames that the program may not send.
    pub tx_refused: u64,
    /// Number of times that the program had to wait, because its user had used up
    /// [`Limits::packets`] or [`Limits::bytes`].
    #[serde(default)]
    pub tx_throttled: u64,
}

/// A client's port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Kind and mode of the daemon's port, for display.
    pub kind: String,
    /// As [`PortAttributes::mac`](crate::port::PortAttributes::mac).
    pub mac: [u8; 6],
    /// As [`PortAttributes::mtu`](crate::port::PortAttributes::mtu).
    pub mtu: u32,
    /// As [`PortAttributes::frame_max`](crate::port::PortAttributes::frame_max).
    pub frame_max: usize,
    /// As [`PortAttributes::link_rate`](crate::port::PortAttributes::link_rate).
    pub link_rate: Option<u64>,
    /// As [`PortAttributes::segments_max`](crate::port::PortAttributes::segments_max).
    pub segments_max: usize,
    /// As [`PortAttributes::source_ports`](crate::port::PortAttributes::source_ports).
    pub source_ports: Vec<u16>,
    /// As [`OpenedPorts::window_max`](crate::port::kind::OpenedPorts::window_max).
    pub window_max: Option<u32>,
    /// Frames in the ring from the client to the daemon.
    pub tx_slots: usize,
    /// Frames in the ring from the daemon to the client.
    pub rx_slots: usize,
    /// The local addresses in GID table order.
    pub gids: Vec<Local>,
}

impl Attached {
    /// The shapes of the rings, from the client and to the client.
    ///
    /// # Errors
    /// [`FrameRingError::Shape`].
    pub fn shapes(&self) -> Result<[RingShape; 2], FrameRingError> {
        let shape = |slots| RingShape::new(slots, self.frame_max);
        Ok([shape(self.tx_slots)?, shape(self.rx_slots)?])
    }
}

/// A local address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Local {
    /// The GID.
    pub gid: [u8; 16],
    /// VLAN of its packets.
    pub vlan: Option<u16>,
    /// Index of the interface with the address, in the daemon's network namespace.
    pub interface: u32,
    /// Name of that interface.
    pub interface_name: String,
}

impl From<&GidEntry> for Local {
    fn from(entry: &GidEntry) -> Self {
        Self {
            gid: entry.gid.0,
            vlan: entry.vlan,
            interface: entry.interface,
            interface_name: entry.interface_name.clone(),
        }
    }
}

impl From<&Local> for GidEntry {
    fn from(local: &Local) -> Self {
        Self {
            gid: Gid(local.gid),
            vlan: local.vlan,
            interface: local.interface,
            interface_name: local.interface_name.clone(),
        }
    }
}

/// The headers of a path, as [`PathHeaders`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields of `PathHeaders`.
pub struct PathAnswer {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub vlan: Option<u16>,
    pub src_ip: IpAddr,
    pub dst_ip: IpAddr,
    pub hop_limit: u8,
    pub mtu: u32,
    pub interface: u32,
    pub next_hop: Option<IpAddr>,
}

impl From<PathHeaders> for PathAnswer {
    fn from(headers: PathHeaders) -> Self {
        let PathHeaders { vlan, src_ip, dst_ip, hop_limit, mtu, interface, next_hop, .. } = headers;
        let (dst_mac, src_mac) = (headers.dst_mac.0, headers.src_mac.0);
        Self { dst_mac, src_mac, vlan, src_ip, dst_ip, hop_limit, mtu, interface, next_hop }
    }
}

impl From<PathAnswer> for PathHeaders {
    fn from(answer: PathAnswer) -> Self {
        let PathAnswer { vlan, src_ip, dst_ip, hop_limit, mtu, interface, next_hop, .. } = answer;
        let (dst_mac, src_mac) = (MacAddr(answer.dst_mac), MacAddr(answer.src_mac));
        Self { dst_mac, src_mac, vlan, src_ip, dst_ip, hop_limit, mtu, interface, next_hop }
    }
}

/// A change that the daemon reports to its clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The local addresses have changed.
    Gids(Vec<Local>),
    /// The Ethernet address of a next hop has changed.
    Neighbour {
        /// VLAN.
        vlan: Option<u16>,
        /// The next hop.
        ip: IpAddr,
        /// The new Ethernet address.
        mac: [u8; 6],
    },
    /// The daemon ends.
    Closing,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The client has another version of the protocol.
    #[error("the daemon speaks version {0} of the protocol, this program another")]
    Version(u32),
    /// The user has reached a limit.
    #[error("the daemon allows this user no more {0}")]
    Quota(String),
    /// The request is not valid in the state of the client.
    #[error("the daemon refuses: {0}")]
    Invalid(String),
    /// Another program has the address and port of the service, or the peer of the QP.
    #[error("another program has it")]
    InUse,
    /// Another program has the port of the service at another address.
    #[error("another program is bound to this port")]
    NotAvailable,
    /// A system call failed.
    #[error("the daemon cannot {action}: {}", std::io::Error::from_raw_os_error(*.errno))]
    System {
        /// What the daemon tried.
        action: String,
        /// The error number.
        errno: i32,
    },
    /// There is no path.
    #[error("{0}")]
    Path(PathRefusal),
}

/// Why there is no path: the variants of [`ResolveError`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs)] // The variants of `ResolveError`.
pub enum PathRefusal {
    #[error("not a host")]
    NotAHost,
    #[error("this host")]
    LocalDestination,
    #[error("the source address is gone")]
    SourceGone,
    #[error("interface {0} is down")]
    InterfaceDown(String),
    #[error("no route through {0}")]
    NoRoute(String),
    #[error("no tags on {0}")]
    Tagged(String),
    #[error("{0} did not answer")]
    Unresolved(IpAddr),
    #[error("{0}")]
    Other(String),
}

impl From<&ResolveError> for PathRefusal {
    fn from(error: &ResolveError) -> Self {
        match error {
            ResolveError::NotAHost { .. } => Self::NotAHost,
            ResolveError::LocalDestination { .. } => Self::LocalDestination,
            ResolveError::SourceGone { .. } => Self::SourceGone,
            ResolveError::InterfaceDown { interface } => Self::InterfaceDown(interface.clone()),
            ResolveError::NoRoute { interface, .. } => Self::NoRoute(interface.clone()),
            ResolveError::Tagged { interface } => Self::Tagged(interface.clone()),
            ResolveError::Unresolved { next_hop, .. } => Self::Unresolved(*next_hop),
            other => Self::Other(other.to_string()),
        }
    }
}

impl PathRefusal {
    /// The error for a path from `source_ip` to `destination`, which was refused after the time
    /// `after`.
    pub fn into_error(
        self,
        source_ip: IpAddr,
        destination: IpAddr,
        after: Duration,
    ) -> ResolveError {
        match self {
            Self::NotAHost => ResolveError::NotAHost { destination },
            Self::LocalDestination => ResolveError::LocalDestination { destination },
            Self::SourceGone => ResolveError::SourceGone { source_ip },
            Self::InterfaceDown(interface) => ResolveError::InterfaceDown { interface },
            Self::NoRoute(interface) => ResolveError::NoRoute { destination, interface },
            Self::Tagged(interface) => ResolveError::Tagged { interface },
            Self::Unresolved(next_hop) => ResolveError::Unresolved { next_hop, after },
            Self::Other(reason) => ResolveError::Daemon { reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_socket() {
        let local = Local { gid: [7; 16], vlan: Some(5), interface: 3, interface_name: "a".into() };
        let attach = Request::Attach { version: VERSION, program: "x".to_owned() };
        let call = Call { id: 9, request: attach };
        let json = serde_json::to_vec(&call).unwrap();
        assert_eq!(serde_json::from_slice::<Call>(&json).unwrap(), call);
        let full = Message::Notice(Notice::Gids(vec![local; crate::net::GID_TABLE_LEN]));
        let json = serde_json::to_vec(&full).unwrap();
        assert!(json.len() < MESSAGE_MAX, "{} bytes", json.len());
        assert_eq!(serde_json::from_slice::<Message>(&json).unwrap(), full);
    }

    #[test]
    fn unknown_fields_are_ignored_and_unknown_requests_refused() {
        let known = br#"{"id":1,"request":"QpnSlice","later":true}"#;
        assert_eq!(serde_json::from_slice::<Call>(known).unwrap().request, Request::QpnSlice);
        assert!(serde_json::from_slice::<Call>(br#"{"id":1,"request":"Reboot"}"#).is_err());
    }
}
