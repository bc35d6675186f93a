//! The private interface through which `librdmacm.so.1` uses the connection manager, which lives
//! with the engine in `libibverbs.so.1`. The functions are in the version node `FEROCE_PRIVATE`:
//! with another libibverbs, the loader reports that the node is missing.
//!
//! Identifiers are numbers, addresses are [`CmAddress`], errors are error numbers. All events go to
//! one function, which must neither block nor call back.

use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::ibv_context;

/// Number of an identifier, unique in a process and its children.
pub type CmNumber = u64;

/// An IP address and a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmAddress {
    /// The address; IPv4 uses the first four bytes.
    pub octets: [u8; 16],
    /// Interface index of a link-local IPv6 address.
    pub scope: u32,
    /// The port.
    pub port: u16,
    /// 4 or 6; 0 for no address.
    pub version: u16,
}

impl CmAddress {
    /// Returns the address in the standard library's form; `None` for no address.
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

/// Parameters that both sides exchange about their QPs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmParameters {
    /// QP number.
    pub qpn: u32,
    /// Q_Key of a UD QP.
    pub qkey: u32,
    /// RDMA READs and atomics accepted at a time as responder.
    pub responder_resources: u8,
    /// RDMA READs and atomics outstanding at a time as requester.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: u8,
    /// Retry count.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry_count: u8,
    /// The QP uses an SRQ.
    pub srq: u8,
}

/// ECE (enhanced connection establishment) options.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmEce {
    /// Vendor that defines the options.
    pub vendor_id: u32,
    /// Option bits.
    pub options: u32,
}

/// An event of the connection manager.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CmEvent {
    /// The identifier.
    pub id: CmNumber,
    /// The listener of a connection request; otherwise 0.
    pub listener: CmNumber,
    /// `rdma_cm_event_type`
    pub kind: c_uint,
    /// Status as reported to programs.
    pub status: c_int,
    /// Parameters of the peer's QP.
    pub parameters: CmParameters,
    /// Private data, valid during the call.
    pub data: *const u8,
    /// Length of the private data in bytes.
    pub data_len: usize,
}

/// Function that receives events. It must neither block nor call back.
pub type CmSink = unsafe extern "C" fn(event: *const CmEvent);

/// Addresses, path and ECE of an identifier.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmView {
    /// Local address, once bound.
    pub source: CmAddress,
    /// The peer's address.
    pub destination: CmAddress,
    /// Path to the peer, once resolved.
    pub path: CmPath,
    /// The peer's ECE.
    pub remote_ece: CmEce,
}

/// The path to a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmPath {
    /// Local address; none before resolution.
    pub local: CmAddress,
    /// The peer's address.
    pub remote: CmAddress,
    /// Device index of `ibv_get_device_index`.
    pub device: u32,
    /// Index of the local address in the GID table.
    pub gid_index: u32,
    /// Path MTU code.
    pub mtu: u8,
    /// IP hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Packet lifetime code.
    pub packet_lifetime: u8,
}

/// Parameters for connecting a QP.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmQp {
    /// A [`stage`]: which of the other fields are valid.
    pub stage: u8,
    /// The peer's QP number.
    pub remote_qpn: u32,
    /// First PSN to receive.
    pub rq_psn: u32,
    /// First PSN to send.
    pub sq_psn: u32,
    /// RDMA READs and atomics to accept at a time as responder.
    pub responder_resources: u8,
    /// RDMA READs and atomics to have outstanding at a time as requester.
    pub initiator_depth: u8,
    /// Retry count.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry_count: u8,
    /// ACK timeout code.
    pub ack_timeout: u8,
}

/// How much is known of a QP's parameters.
pub mod stage {
    /// No connection attempt: nothing is valid.
    pub const NOT_REQUESTED: u8 = 0;
    /// Connection requested: only `responder_resources` is valid.
    pub const REQUESTED: u8 = 1;
    /// All fields are valid.
    pub const KNOWN: u8 = 2;
}

/// Options to set before an identifier is used.
pub mod option {
    use std::ffi::c_uint;

    /// Traffic class.
    pub const TRAFFIC_CLASS: c_uint = 0;
    /// Allows other identifiers with this option to use the same port.
    pub const REUSE_ADDRESS: c_uint = 1;
    /// The unspecified IPv6 address does not accept IPv4.
    pub const V6_ONLY: c_uint = 2;
    /// ACK timeout code.
    pub const ACK_TIMEOUT: c_uint = 3;
}

/// Declares the functions, and a type of the same name for each, which the definition is checked
/// against.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($( $argument:ident: $type:ty ),* $(,)?) -> $result:ty;
    )*) => {
        $( $(#[$doc])* pub type $name = unsafe extern "C" fn($( $argument: $type ),*) -> $result; )*

        unsafe extern "C" {
            $( $(#[$doc])* pub fn $name($( $argument: $type ),*) -> $result; )*
        }
    };
}

functions! {
    /// Attaches an open device and returns its index. `sink` receives the events of the process;
    /// only the first call sets it. Does nothing if the device is already attached.
    fn feroce_cm_attach(context: *mut ibv_context, sink: CmSink, index: *mut u32) -> c_int;
    /// Creates an identifier for an `rdma_port_space` and `ibv_qp_type`.
    fn feroce_cm_create(sink: CmSink, space: c_uint, qp_type: c_uint, id: *mut CmNumber) -> c_int;
    /// Destroys an identifier. Its events are no longer delivered.
    fn feroce_cm_destroy(id: CmNumber) -> c_int;
    /// Finds the attached device with this local address.
    fn feroce_cm_device_of(
        address: *const CmAddress,
        index: *mut u32,
        gid_index: *mut u32,
    ) -> c_int;
    /// Binds an identifier to a local or unspecified address.
    fn feroce_cm_bind(id: CmNumber, address: *const CmAddress) -> c_int;
    /// Starts to listen.
    fn feroce_cm_listen(id: CmNumber, backlog: u32) -> c_int;
    /// Takes a connection request for the program.
    fn feroce_cm_take_request(id: CmNumber) -> c_int;
    /// Starts address resolution with a time limit; an event reports the result.
    fn feroce_cm_resolve_address(
        id: CmNumber,
        source: *const CmAddress,
        destination: *const CmAddress,
        timeout_ms: u32,
    ) -> c_int;
    /// Starts route resolution, which completes at once; an event reports the result.
    fn feroce_cm_resolve_route(id: CmNumber) -> c_int;
    /// Sends a connection request.
    fn feroce_cm_connect(
        id: CmNumber,
        parameters: *const CmParameters,
        data: *const c_void,
        data_len: usize,
    ) -> c_int;
    /// Accepts a connection request.
    fn feroce_cm_accept(
        id: CmNumber,
        parameters: *const CmParameters,
        data: *const c_void,
        data_len: usize,
    ) -> c_int;
    /// Confirms a connection that the peer has accepted (RTU).
    fn feroce_cm_establish(id: CmNumber) -> c_int;
    /// Rejects a connection request with a reason of the InfiniBand specification.
    fn feroce_cm_reject(id: CmNumber, reason: u16, data: *const c_void, data_len: usize) -> c_int;
    /// Disconnects.
    fn feroce_cm_disconnect(id: CmNumber) -> c_int;
    /// Reports that data arrived before the RTU.
    fn feroce_cm_notify_established(id: CmNumber) -> c_int;
    /// Returns addresses, path and ECE.
    fn feroce_cm_query(id: CmNumber, view: *mut CmView) -> c_int;
    /// Returns the parameters for the QP.
    fn feroce_cm_qp_parameters(id: CmNumber, qp: *mut CmQp) -> c_int;
    /// Sets an [`option`].
    fn feroce_cm_set_option(id: CmNumber, option: c_uint, value: u32) -> c_int;
    /// Sets the local ECE.
    fn feroce_cm_set_local_ece(id: CmNumber, ece: *const CmEce) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_conversion() {
        let v6 = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3);
        for address in ["10.0.0.1:80".parse().unwrap(), SocketAddr::V6(v6)] {
            assert_eq!(CmAddress::from(address).socket(), Some(address));
        }
        assert_eq!(CmAddress::from(None::<SocketAddr>).socket(), None);
    }
}
