//! How `librdmacm.so.1` reaches the connection manager, which lives with the engine in `libibverbs.so.1`: functions that are this
//! project's own, in the version node `FEROCE_PRIVATE`. With another library of that name, the loader says that the node is missing.
//!
//! Identifiers go by number, addresses as [`CmAddress`], errors as error numbers. Events come to one function, which must neither
//! block nor call back.

use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::ibv_context;

/// An identifier, by a number that the process and its children use once.
pub type CmNumber = u64;

/// An address and a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmAddress {
    /// The address; of IPv4, the first four.
    pub octets: [u8; 16],
    /// The interface's index, of IPv6 on one link.
    pub scope: u32,
    /// The port.
    pub port: u16,
    /// 4 or 6; 0 for no address.
    pub version: u16,
}

impl CmAddress {
    /// As the standard library has it; `None` for no address.
    pub fn socket(&self) -> Option<SocketAddr> {
        let [a, b, c, d, ..] = self.octets;
        match self.version {
            4 => Some(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), self.port)),
            6 => {
                let ip = Ipv6Addr::from(self.octets);
                Some(SocketAddrV6::new(ip, self.port, 0, self.scope).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for CmAddress {
    fn from(address: SocketAddr) -> Self {
        let mut octets = [0; 16];
        let port = address.port();
        match address {
            SocketAddr::V4(v4) => {
                octets[..4].copy_from_slice(&v4.ip().octets());
                Self { octets, scope: 0, port, version: 4 }
            }
            SocketAddr::V6(v6) => {
                Self { octets: v6.ip().octets(), scope: v6.scope_id(), port, version: 6 }
            }
        }
    }
}

impl From<Option<SocketAddr>> for CmAddress {
    fn from(address: Option<SocketAddr>) -> Self {
        address.map(Self::from).unwrap_or_default()
    }
}

impl From<IpAddr> for CmAddress {
    fn from(ip: IpAddr) -> Self {
        SocketAddr::new(ip, 0).into()
    }
}

/// What ends tell each other about their QPs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmParameters {
    /// The QP.
    pub qpn: u32,
    /// Of a datagram QP.
    pub qkey: u32,
    /// READs and atomics answered at a time.
    pub responder_resources: u8,
    /// READs and atomics under way at a time.
    pub initiator_depth: u8,
    /// End-to-end credits.
    pub flow_control: u8,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// Has a shared receive queue.
    pub srq: u8,
}

/// Enhanced connection establishment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmEce {
    /// Who defines the options.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// Something has happened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CmEvent {
    /// To whom.
    pub id: CmNumber,
    /// Through which listener it came; 0 if through none.
    pub listener: CmNumber,
    /// `rdma_cm_event_type`
    pub kind: c_uint,
    /// As programs are told.
    pub status: c_int,
    /// The peer's QP.
    pub parameters: CmParameters,
    /// Private data, valid during the call.
    pub data: *const u8,
    /// Its length.
    pub data_len: usize,
}

/// Takes events. It must neither block nor call back.
pub type CmSink = unsafe extern "C" fn(event: *const CmEvent);

/// What is known of an identifier.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmView {
    /// Own address, once bound.
    pub source: CmAddress,
    /// The peer's.
    pub destination: CmAddress,
    /// The way to the peer, once found.
    pub path: CmPath,
    /// What the peer says about enhancements.
    pub remote_ece: CmEce,
}

/// The way to a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmPath {
    /// Own address; none if there is no way yet.
    pub local: CmAddress,
    /// The peer's.
    pub remote: CmAddress,
    /// The device, by `ibv_get_device_index`.
    pub device: u32,
    /// Index of the GID that is the own address.
    pub gid_index: u32,
    /// Path MTU, as its code.
    pub mtu: u8,
    /// IP hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// How long a packet may be under way, as a code.
    pub packet_lifetime: u8,
}

/// What a QP is set to, to be connected.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmQp {
    /// A [`stage`]: how much of the rest is known.
    pub stage: u8,
    /// The peer's QP.
    pub remote_qpn: u32,
    /// PSN of the first packet that comes.
    pub rq_psn: u32,
    /// PSN of the first packet that goes.
    pub sq_psn: u32,
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

/// How much is known of what a QP is set to.
pub mod stage {
    /// Nobody was asked: nothing.
    pub const NOT_ASKED: u8 = 0;
    /// The peer was asked: only how many READs and atomics to answer at a time.
    pub const ASKED: u8 = 1;
    /// All.
    pub const KNOWN: u8 = 2;
}

/// What can be set before an identifier is used.
pub mod option {
    use std::ffi::c_uint;

    /// Traffic class.
    pub const TRAFFIC_CLASS: c_uint = 0;
    /// Shares its port with others that say so, too.
    pub const REUSE_ADDRESS: c_uint = 1;
    /// An unspecified IPv6 address is none of IPv4.
    pub const V6_ONLY: c_uint = 2;
    /// Acknowledgement timeout, as a code.
    pub const ACK_TIMEOUT: c_uint = 3;
}

/// Declares the functions, and their types under the same names for whoever defines them.
macro_rules! functions {
    ($( $(#[$doc:meta])* fn $name:ident($( $argument:ident: $type:ty ),* $(,)?) -> $result:ty; )*) => {
        $( $(#[$doc])* pub type $name = unsafe extern "C" fn($( $argument: $type ),*) -> $result; )*

        unsafe extern "C" {
            $( $(#[$doc])* pub fn $name($( $argument: $type ),*) -> $result; )*
        }
    };
}

functions! {
    /// Serves connections through an open device, whose index goes to `index`; `sink` takes the events of the process from the
    /// first call on. Nothing changes if the device does so already.
    fn feroce_cm_attach(context: *mut ibv_context, sink: CmSink, index: *mut u32) -> c_int;
    /// A new identifier for `rdma_port_space` and `ibv_qp_type`.
    fn feroce_cm_create(sink: CmSink, space: c_uint, qp_type: c_uint, id: *mut CmNumber) -> c_int;
    /// Destroys it: no event of it comes from now on.
    fn feroce_cm_destroy(id: CmNumber) -> c_int;
    /// Which attached device has the address of its own.
    fn feroce_cm_device_of(address: *const CmAddress, index: *mut u32, gid_index: *mut u32) -> c_int;
    /// Binds it to an address of a device, or to any.
    fn feroce_cm_bind(id: CmNumber, address: *const CmAddress) -> c_int;
    /// Listens.
    fn feroce_cm_listen(id: CmNumber, backlog: u32) -> c_int;
    /// The program has taken a request.
    fn feroce_cm_take_request(id: CmNumber) -> c_int;
    /// Looks for the way to an address, so long at most; an event tells.
    fn feroce_cm_resolve_address(
        id: CmNumber,
        source: *const CmAddress,
        destination: *const CmAddress,
        timeout_ms: u32,
    ) -> c_int;
    /// The path is known with the address; an event tells.
    fn feroce_cm_resolve_route(id: CmNumber) -> c_int;
    /// Asks for a connection.
    fn feroce_cm_connect(
        id: CmNumber,
        parameters: *const CmParameters,
        data: *const c_void,
        data_len: usize,
    ) -> c_int;
    /// Accepts one.
    fn feroce_cm_accept(
        id: CmNumber,
        parameters: *const CmParameters,
        data: *const c_void,
        data_len: usize,
    ) -> c_int;
    /// Confirms one that the peer has accepted.
    fn feroce_cm_establish(id: CmNumber) -> c_int;
    /// Says no, for a reason of the specification.
    fn feroce_cm_reject(id: CmNumber, reason: u16, data: *const c_void, data_len: usize) -> c_int;
    /// Ends a connection.
    fn feroce_cm_disconnect(id: CmNumber) -> c_int;
    /// The peer's data has come ahead of its confirmation.
    fn feroce_cm_notify_established(id: CmNumber) -> c_int;
    /// What is known.
    fn feroce_cm_query(id: CmNumber, view: *mut CmView) -> c_int;
    /// What its QP is set to.
    fn feroce_cm_qp_parameters(id: CmNumber, qp: *mut CmQp) -> c_int;
    /// Sets an [`option`].
    fn feroce_cm_set_option(id: CmNumber, option: c_uint, value: u32) -> c_int;
    /// What it says about enhancements.
    fn feroce_cm_set_local_ece(id: CmNumber, ece: *const CmEce) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        let v6 = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3);
        for address in ["10.0.0.1:80".parse().unwrap(), SocketAddr::V6(v6)] {
            assert_eq!(CmAddress::from(address).socket(), Some(address));
        }
        assert_eq!(CmAddress::from(None::<SocketAddr>).socket(), None);
    }
}
