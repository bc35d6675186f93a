//! What goes into an [`Endpoint`](super::Endpoint) and comes out of it.

use std::net::IpAddr;

use feroce_wire::cm::{PortSpace, RejectReason, SidrStatus};
use feroce_wire::{MAD_LEN, PathMtu, Psn, Qkey, Qpn};

use crate::time::{Duration, Instant};

/// An identifier of the endpoint: a listener, a connection, a question. Its number is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub(super) u32);

impl CmId {
    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The identifier of a number that [`CmId::number`] gave.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// A device, by a number that its owner chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey(pub u32);

/// What may be chosen; the defaults are those of current Linux kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// In what time an endpoint answers a message, as a code: 4.096 us times two to it.
    pub response_timeout: u8,
    /// How long a packet may be under way, as a code.
    pub packet_lifetime: u8,
    /// How often a message without an answer is sent again, at most 15.
    pub max_retries: u8,
    /// How much longer than usual a program may take to answer a request, as a code: said to a peer that asks again.
    pub service_timeout: u8,
    /// How long the devices take to acknowledge, as a code.
    pub ack_delay: u8,
    /// First and last port given to who asks for any.
    pub ephemeral: (u16, u16),
    /// How long an answer is kept, to be given again to a peer that asks again: as long as a peer is known to go on asking.
    pub answer_kept: Duration,
    /// How long copies of a request may come after the connection that it led to.
    pub copies_kept: Duration,
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
            answer_kept: Duration::from_secs(100), // 16 times 6.1 s
            copies_kept: Duration::from_secs(10),
        }
    }
}

/// The kind of QP that an identifier is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagrams: nothing is connected, a question is asked and answered.
    Ud,
    /// The end of an extended reliable connection that sends: it asks, and answers nobody.
    XrcIni,
    /// The end that receives: it is asked.
    XrcTgt,
}

impl QpKind {
    /// The kind that a port space has by itself.
    pub const fn of(space: PortSpace) -> Self {
        match space {
            PortSpace::Tcp | PortSpace::Ib => Self::Rc,
            PortSpace::Udp | PortSpace::Ipoib => Self::Ud,
        }
    }
}

/// The way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Whose port it leaves through.
    pub device: DeviceKey,
    /// Own address: one of the device's GIDs.
    pub local: IpAddr,
    /// The peer's, of the same family.
    pub remote: IpAddr,
    /// Largest payload.
    pub mtu: PathMtu,
    /// IP hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

/// Enhanced connection establishment: what the vendors of both devices have agreed on. Carried, not understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Who defines the options, 24 bits; 0 for nobody.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// What the ends of a connection tell each other about their QPs. In events the view is that of the receiver: its
/// `initiator_depth` is what the peer can answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The QP.
    pub qpn: Qpn,
    /// READs and atomics answered at a time.
    pub responder_resources: u8,
    /// READs and atomics under way at a time.
    pub initiator_depth: u8,
    /// Whether end-to-end credits are counted.
    pub flow_control: bool,
    /// Retries, at most 7.
    pub retry_count: u8,
    /// RNR retries, at most 7; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether the QP has a shared receive queue.
    pub srq: bool,
    /// The key of a datagram QP.
    pub qkey: Qkey,
}

/// What a QP is set to, to be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpParameters {
    /// Its kind.
    pub kind: QpKind,
    /// The way to the peer.
    pub path: Path,
    /// The peer's QP.
    pub remote_qpn: Qpn,
    /// PSN of the first packet that comes.
    pub rq_psn: Psn,
    /// PSN of the first packet that goes.
    pub sq_psn: Psn,
    /// READs and atomics to answer at a time.
    pub responder_resources: u8,
    /// READs and atomics to have under way at a time.
    pub initiator_depth: u8,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// Acknowledgement timeout, as a code.
    pub ack_timeout: u8,
}

/// A MAD to be sent from QP 1 to the peer's QP 1, with Q_Key [`Qkey::GSI`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Through which device.
    pub device: DeviceKey,
    /// From which of its addresses.
    pub local: IpAddr,
    /// To whom.
    pub remote: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// What.
    pub mad: [u8; MAD_LEN],
}

/// Where a MAD came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The device that received it.
    pub device: DeviceKey,
    /// Which of its addresses it was sent to.
    pub local: IpAddr,
    /// The sender's address.
    pub remote: IpAddr,
}

/// What has happened to an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The way to the address is known.
    AddrResolved,
    /// It cannot be found.
    AddrError,
    /// The path is known.
    RouteResolved,
    /// It cannot be found.
    RouteError,
    /// A peer asks for a connection, or for a QP that answers datagrams. The identifier is new.
    ConnectRequest,
    /// The peer accepts: connect the QP, then call [`Endpoint::establish`](super::Endpoint::establish).
    ConnectResponse,
    /// There was no answer; or a question was answered with a refusal.
    Unreachable,
    /// The peer says no.
    Rejected,
    /// The connection stands; or the question is answered.
    Established,
    /// The connection has ended.
    Disconnected,
    /// The device is gone.
    DeviceRemoval,
    /// Nothing of the connection can be under way any more: its QP may be used again.
    TimewaitExit,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Well.
    Success,
    /// The peer's reason.
    Rejected(RejectReason),
    /// The peer's answer to a question.
    Sidr(SidrStatus),
    /// No answer came.
    TimedOut,
    /// No way was found.
    Unresolved(Unresolved),
}

/// Why no way to an address was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// No device has the source address, or none leads there.
    NoDevice,
    /// There is no route.
    NoRoute,
    /// The peer, or the router to it, did not say its Ethernet address.
    NoAnswer,
    /// The interface is down, or the kernel refuses to help.
    NotPossible,
}

/// Something has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// To whom.
    pub id: CmId,
    /// Through which listener a new identifier came.
    pub listener: Option<CmId>,
    /// What.
    pub kind: EventKind,
    /// How it went.
    pub status: Status,
    /// What the peer says about its QP, in events about connections.
    pub parameters: Parameters,
    /// The private data of the message, always as much as it can carry: how much of it means something, its users know.
    pub private_data: Vec<u8>,
}

/// Why a command is refused. The culprit is the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// No such identifier.
    #[error("no such identifier")]
    Unknown,
    /// Not in the state for it.
    #[error("not in the state for this")]
    State,
    /// The connection stands already.
    #[error("connected already")]
    IsConnected,
    /// More private data than the message carries.
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
    /// Another identifier has the port at any address, or no port is left.
    #[error("the address is not to be had")]
    AddressNotAvailable,
    /// The addresses are of different families.
    #[error("the addresses are of different families")]
    Family,
    /// The device is not known to the endpoint.
    #[error("no such device")]
    NoDevice,
}

/// How long the code of a time lasts by the kernel's reckoning: a millisecond for 8, and twice as long for each more.
pub(super) fn lasts(code: u8) -> Duration {
    Duration::from_millis(1 << code.saturating_sub(8).min(31))
}

/// The acknowledgement timeout of a QP, as a code: about the time for the way there and back and the peer's delay. As codes
/// grow by doubling, the larger counts, and one more if the other comes near it.
pub(super) fn ack_timeout(ack_delay: u8, packet_lifetime: u8) -> u8 {
    let way = packet_lifetime + 1;
    let (larger, smaller) = (way.max(ack_delay), way.min(ack_delay));
    (larger + u8::from(smaller + 1 >= larger)).min(31)
}

/// A message that is sent again until it is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resend {
    pub mad: [u8; MAD_LEN],
    pub interval: Duration,
    pub left: u8,
    pub due: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_time() {
        assert_eq!(
            [0, 8, 9, 16, 20, 31].map(|code| lasts(code).as_millis()),
            [1, 1, 2, 256, 4096, 8_388_608]
        );
    }

    /// What rxe says in captures: lifetime 18 and delay 15 give 19. The others by the rule of the kernel, written differently:
    /// the larger of the two, and one more if the other is equal to it or next to it.
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
