//! Input and output types of an [`Endpoint`](super::Endpoint).
//!
//! How the forms of connection parameters relate to each other is described in
//! [`ConnectOptions`](crate::device::ConnectOptions)'s file, `device/connect_options.rs`.

use std::net::IpAddr;

use feroce_wire::cm::{PortSpace, RejectReason, SidrStatus};
use feroce_wire::{MAD_LEN, PathMtu, Psn, Qkey, Qpn};

use crate::time::{Duration, Instant};

/// An identifier of the endpoint: a listener, a connection or a SIDR exchange. Numbers are not
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub(super) u32);

impl CmId {
    /// Returns the number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the identifier for a number that [`CmId::number`] returned.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// A device, by a number that its owner chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey(pub u32);

/// Configuration. The defaults are those of current Linux kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// Time in which an endpoint responds to a message, as a code: 4.096 us * 2^code.
    pub response_timeout: u8,
    /// Maximum lifetime of a packet, as a code.
    pub packet_lifetime: u8,
    /// Retransmissions of a message without response, at most 15.
    pub max_retries: u8,
    /// Extra time that a program may need for a request, as a code; an MRA reports it to a peer
    /// that retransmits.
    pub service_timeout: u8,
    /// Maximum delay of the devices' acknowledgements, as a code.
    pub ack_delay: u8,
    /// First and last port for identifiers that bind to any port.
    pub ephemeral: (u16, u16),
    /// How long a response is cached for copies of its request: as long as known peers retransmit.
    pub response_cache_time: Duration,
    /// How long copies of a REQ may arrive after its connection.
    pub copy_time: Duration,
    /// Times after which a REQ without response is sent again before its first retransmission is
    /// due, in ascending order; zero means never. A peer whose program is just starting has no RNIC
    /// yet and drops the REQ; a host with a kernel RNIC would reject it.
    pub early_copies: [Duration; 2],
}

impl Default for CmConfig {
    fn default() -> Self {
        Self {
            response_timeout: 18,
            packet_lifetime: 16,
            max_retries: 15,
            service_timeout: 24,
            ack_delay: 15,
            ephemeral: (32768, 60999),
            response_cache_time: Duration::from_secs(100), // 16 transmissions, 6.1 s apart
            copy_time: Duration::from_secs(10),
            early_copies: [Duration::from_millis(128), Duration::from_millis(512)],
        }
    }
}

/// The kind of QP of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagrams: no connection, a SIDR exchange.
    Ud,
    /// The initiator of an extended reliable connection: sends requests only.
    XrcIni,
    /// The target of an extended reliable connection: receives requests only.
    XrcTgt,
}

impl QpKind {
    /// Returns the default kind of a port space.
    pub const fn of(space: PortSpace) -> Self {
        match space {
            PortSpace::Tcp | PortSpace::Ib => Self::Rc,
            PortSpace::Udp | PortSpace::Ipoib => Self::Ud,
        }
    }
}

/// The path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The local device.
    pub device: DeviceKey,
    /// Local address: one of the device's GIDs.
    pub local: IpAddr,
    /// Peer's address, of the same family.
    pub remote: IpAddr,
    /// Path MTU.
    pub mtu: PathMtu,
    /// IP hop limit.
    pub hop_limit: u8,
    /// IP traffic class: DSCP and ECN.
    pub traffic_class: u8,
}

/// Enhanced connection establishment: options that the vendors of both devices negotiate. Carried
/// without interpretation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Vendor that defines the options, 24 bits; 0 for none.
    pub vendor_id: u32,
    /// Options.
    pub options: u32,
}

/// The parameters that the ends of a connection exchange. In events they are from the receiver's
/// point of view: `initiator_depth` is the peer's number of responder resources. By default all are
/// 0: no READs or atomics in either direction, and no retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// QP number.
    pub qpn: Qpn,
    /// Maximum number of READs and atomics that the QP responds to concurrently.
    pub responder_resources: u8,
    /// Maximum number of READs and atomics that the QP has outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control (credits).
    pub flow_control: bool,
    /// Retries, at most 7.
    pub retry_count: u8,
    /// RNR retries, at most 7; 7 means unlimited.
    pub rnr_retry_count: u8,
    /// The QP has a shared receive queue.
    pub srq: bool,
    /// Q_Key of a datagram QP.
    pub qkey: Qkey,
}

/// The parameters for connecting a QP: the agreed [`Parameters`], and values that only one end
/// needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpParameters {
    /// QP kind.
    pub kind: QpKind,
    /// Path to the peer.
    pub path: Path,
    /// PSN of the first packet received.
    pub rq_psn: Psn,
    /// PSN of the first packet sent.
    pub sq_psn: Psn,
    /// ACK timeout code.
    pub ack_timeout: u8,
    /// Parameters agreed with the peer, from the point of view of the local QP; `qpn` is the peer's
    /// QP.
    pub agreed: Parameters,
}

/// A MAD to send from QP 1 to the peer's QP 1, with Q_Key [`Qkey::GSI`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Sending device.
    pub device: DeviceKey,
    /// Source address, one of the device's.
    pub local: IpAddr,
    /// Destination address.
    pub remote: IpAddr,
    /// IP traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Bytes of the MAD.
    pub mad: [u8; MAD_LEN],
}

/// Origin of a received MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Device that received it.
    pub device: DeviceKey,
    /// Local address that it was sent to.
    pub local: IpAddr,
    /// Sender's address.
    pub remote: IpAddr,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The address is resolved.
    AddrResolved,
    /// The address could not be resolved.
    AddrError,
    /// The route is resolved.
    RouteResolved,
    /// The route could not be resolved.
    RouteError,
    /// A peer requests a connection or, for datagrams, a QP. The identifier is new.
    ConnectRequest,
    /// The peer accepts. Connect the QP, then call
    /// [`Endpoint::establish`](super::Endpoint::establish).
    ConnectResponse,
    /// No response arrived, or a SIDR REP rejected the request.
    Unreachable,
    /// The peer rejects.
    Rejected,
    /// The connection is established, or the SIDR REP has arrived.
    Established,
    /// The connection has ended.
    Disconnected,
    /// The device was removed.
    DeviceRemoval,
    /// Timewait is over: no packet of the connection is in flight, and its QP may be reused.
    TimewaitExit,
}

/// The result that an event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Success,
    /// The peer's reason.
    Rejected(RejectReason),
    /// Status of the peer's SIDR REP.
    Sidr(SidrStatus),
    /// No response.
    TimedOut,
    /// No path.
    Unresolved(Unresolved),
}

/// Why an address could not be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// No device has the source address, or no device reaches the destination.
    NoDevice,
    /// No route.
    NoRoute,
    /// The peer, or the router to it, did not answer ARP or neighbour discovery.
    NoAnswer,
    /// The interface is down, or the kernel refuses.
    NotPossible,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The identifier.
    pub id: CmId,
    /// For a new identifier: its listener.
    pub listener: Option<CmId>,
    /// The kind of event.
    pub kind: EventKind,
    /// The result.
    pub status: Status,
    /// The peer's parameters, in events about connections.
    pub parameters: Parameters,
    /// The whole private data field of the message. The program defines how many bytes are
    /// significant.
    pub private_data: Vec<u8>,
}

/// Why a command is refused: a mistake of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// No such identifier.
    #[error("no such identifier")]
    Unknown,
    /// Not in the state for this command.
    #[error("not in the state for this")]
    State,
    /// Already connected.
    #[error("already connected")]
    IsConnected,
    /// More private data than the message can carry.
    #[error("{have} bytes of private data, the message has room for {room}")]
    PrivateData {
        /// Bytes given.
        have: usize,
        /// Bytes that fit.
        room: usize,
    },
    /// Another identifier has the address.
    #[error("the address is in use")]
    AddressInUse,
    /// Another identifier has the port at any address, or no port is free.
    #[error("the address is not available")]
    AddressNotAvailable,
    /// The addresses are of different families.
    #[error("the addresses are of different families")]
    Family,
    /// The endpoint does not know the device.
    #[error("no such device")]
    NoDevice,
}

/// Returns the duration of a time code as the kernel rounds it: 1 ms for codes up to 8, doubling
/// with each further code.
pub(super) fn code_duration(code: u8) -> Duration {
    Duration::from_millis(1 << code.saturating_sub(8).min(31))
}

/// Returns the ACK timeout code of a QP: the round trip plus the peer's ACK delay. Codes are
/// logarithmic, so the result is the larger of the two codes, plus one if the smaller is within one
/// of it.
pub(super) fn ack_timeout(ack_delay: u8, packet_lifetime: u8) -> u8 {
    let round_trip = packet_lifetime + 1;
    let (larger, smaller) = (round_trip.max(ack_delay), round_trip.min(ack_delay));
    (larger + u8::from(smaller + 1 >= larger)).min(31)
}

/// A message that is retransmitted until its response arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resend {
    pub mad: [u8; MAD_LEN],
    pub interval: Duration,
    pub left: u8,
    pub due: Instant,
    /// Times of copies to send before `due`; [`Instant::FAR`] if there is none.
    pub early: [Instant; 2],
}

impl Resend {
    /// A message sent at `now`, without early copies.
    pub fn new(mad: [u8; MAD_LEN], interval: Duration, left: u8, now: Instant) -> Self {
        Self { mad, interval, left, due: now + interval, early: [Instant::FAR; 2] }
    }

    /// Time of the next copy.
    pub fn next(&self) -> Instant {
        self.early.into_iter().fold(self.due, Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_time() {
        assert_eq!(
            [0, 8, 9, 16, 20, 31].map(|code| code_duration(code).as_millis()),
            [1, 1, 2, 256, 4096, 8_388_608]
        );
    }

    /// Captures of rxe: lifetime 18 and delay 15 give 19. The other cases follow the kernel's rule,
    /// written differently: the larger of the two, plus one if the other is equal or adjacent.
    #[test]
    fn ack_timeouts() {
        assert_eq!(ack_timeout(15, 18), 19);
        assert_eq!(ack_timeout(15, 16), 17);
        assert_eq!(ack_timeout(16, 16), 18);
        assert_eq!(ack_timeout(17, 16), 18);
        assert_eq!(ack_timeout(18, 16), 19);
        assert_eq!(ack_timeout(19, 16), 19);
        assert_eq!(ack_timeout(31, 31), 31);
    }
}
