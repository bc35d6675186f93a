//! The UDP sockets of a port: those that receive, and those that send from each source port.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use feroce_wire::ROCE_PORT;

use super::config::UdpConfig;
use super::error::UdpError;
use super::filter::choose;
use crate::port::af_xdp::interface::Interface;
use crate::port::classic_bpf::NOTHING;
use crate::port::socket::{attach, attach_chooser, bind_any, local_port, open, set, size_buffers};

// Options of Linux that the libc crate lacks.
const UDP_NO_CHECK6_TX: libc::c_int = 101;
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// Level, name and value of a socket option, and the action that an error message names.
type SocketOption = (libc::c_int, libc::c_int, libc::c_int, &'static str);

const HEADER_FIELDS: &str = "see header fields of received packets";
const RECEIVE_V4: &[SocketOption] = &[
    (libc::IPPROTO_IP, libc::IP_PKTINFO, 1, HEADER_FIELDS),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, 1, HEADER_FIELDS),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, 1, HEADER_FIELDS),
];
const RECEIVE_V6: &[SocketOption] = &[
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1, HEADER_FIELDS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1, HEADER_FIELDS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1, HEADER_FIELDS),
    (libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1, "receive IPv6 packets without a UDP checksum"),
];
/// Sets DF and identification 0. The path MTU is always that of the interface: an ICMP message,
/// which any host can forge, does not change it.
const SEND_V4: &[SocketOption] = &[
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE, "set DF"),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0, "keep multicast packets from this host"),
];
const SEND_V6: &[SocketOption] = &[
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE, "set the path MTU"),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 0, "keep multicast packets from this host"),
];

/// A receive socket.
#[derive(Debug, Clone)]
pub(super) struct RxSocket {
    pub socket: Arc<OwnedFd>,
    pub is_v6: bool,
    /// The socket of its family that receives multicast datagrams.
    pub has_groups: bool,
}

/// Opens a socket that drops what it receives. `None` if the kernel has no IPv6.
fn open_dropping(is_v6: bool) -> Result<Option<OwnedFd>, UdpError> {
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    let socket = match open(family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK) {
        Err(error) if is_v6 && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            return Ok(None);
        }
        other => other.map_err(UdpError::system("open a UDP socket"))?,
    };
    let prepared = attach(&socket, &NOTHING).and_then(|()| match is_v6 {
        true => set(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1),
        false => Ok(()),
    });
    prepared.map_err(UdpError::system("prepare a UDP socket"))?;
    Ok(Some(socket))
}

fn apply(socket: &OwnedFd, options: &[SocketOption]) -> Result<(), UdpError> {
    options.iter().try_for_each(|&(level, option, value, action)| {
        set(socket, level, option, &value).map_err(UdpError::system(action))
    })
}

/// Restricts a socket to one interface. Otherwise the sockets of two interfaces would form one
/// group, and get each other's packets. Linux before 5.7 allows this only to privileged programs.
fn bind_to(socket: &OwnedFd, interface: &Interface) -> Result<(), UdpError> {
    // `struct ifreq` has room for 16 bytes of a name.
    let mut name = [0; 16];
    let bytes = interface.name.as_bytes();
    name[..bytes.len()].copy_from_slice(bytes);
    let bound = set(socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &name);
    bound.map_err(UdpError::system("restrict a UDP socket to the interface (Linux 5.7 or root)"))
}

/// Allows other sockets of this user at the port of `socket`.
fn share_port(socket: &OwnedFd) -> Result<(), UdpError> {
    let shared = set(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1);
    shared.map_err(UdpError::system("share a UDP port"))
}

/// Opens the receive sockets of each core. They drop all packets until their filters are replaced.
///
/// Sockets of one family form a group, in which the destination QP chooses the socket.
pub(super) fn open_receivers(
    interface: &Interface,
    config: &UdpConfig,
    cores: usize,
) -> Result<Vec<Vec<RxSocket>>, UdpError> {
    let mut of_cores = vec![Vec::new(); cores];
    let count = cores * config.rx_sockets as usize;
    for is_v6 in [false, true] {
        let mut first = None;
        for index in 0..count {
            let Some(socket) = open_receiver(interface, config, is_v6)? else { break };
            let socket = Arc::new(socket);
            first.get_or_insert_with(|| Arc::clone(&socket));
            of_cores[index % cores].push(RxSocket { socket, is_v6, has_groups: index == 0 });
        }
        if let Some(first) = first {
            let sockets = u32::try_from(count).expect("at most 1024");
            let chosen = attach_chooser(&first, &choose(sockets));
            chosen.map_err(UdpError::system("spread QPs over several sockets"))?;
        }
    }
    Ok(of_cores)
}

fn open_receiver(
    interface: &Interface,
    config: &UdpConfig,
    is_v6: bool,
) -> Result<Option<OwnedFd>, UdpError> {
    let Some(socket) = open_dropping(is_v6)? else { return Ok(None) };
    bind_to(&socket, interface)?;
    share_port(&socket)?;
    apply(&socket, if is_v6 { RECEIVE_V6 } else { RECEIVE_V4 })?;
    // Linux before 5.0 delivers packets one by one.
    let _packets = set(&socket, libc::IPPROTO_UDP, libc::UDP_GRO, &1);
    size_buffers(&socket, config.rx_bytes).map_err(UdpError::system("size the receive buffer"))?;
    bind_any(&socket, is_v6, ROCE_PORT).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => UdpError::PortInUse { source },
        _ => UdpError::System { action: "bind UDP port 4791", source },
    })?;
    Ok(Some(socket))
}

/// The sockets that send from one source port.
#[derive(Debug)]
pub(super) struct Source {
    /// The UDP port.
    pub port: u16,
    four: Pair,
    /// `None` if the kernel has no IPv6.
    six: Option<Pair>,
}

/// The sockets of one family and source port.
#[derive(Debug)]
struct Pair {
    /// Sends packets with UDP checksum 0, as RNICs do.
    plain: OwnedFd,
    /// Sends super-frames: segmentation needs a checksum. `None` without super-frames.
    segmenting: Option<OwnedFd>,
}

impl Source {
    /// The socket for a message; `None` without IPv6.
    pub fn socket(&self, is_v6: bool, segmented: bool) -> Option<&OwnedFd> {
        let pair = if is_v6 { self.six.as_ref()? } else { &self.four };
        if segmented { pair.segmenting.as_ref() } else { Some(&pair.plain) }
    }
}

/// Number of attempts if the kernel chooses the port: a port that is free for IPv4 may be in use
/// for IPv6.
const PORT_TRIES: usize = 8;

/// Opens the sockets of each source port. `super_frames`: whether super-frames are sent.
pub(super) fn open_sources(
    interface: &Interface,
    ports: &[u16],
    super_frames: bool,
) -> Result<Vec<Source>, UdpError> {
    let open = |&port: &u16| {
        let tries = if port == 0 { PORT_TRIES } else { 1 };
        let mut opened = open_source(interface, port, super_frames);
        for _ in 1..tries {
            if !matches!(opened, Err(UdpError::SourcePort { .. })) {
                break;
            }
            opened = open_source(interface, port, super_frames);
        }
        opened
    };
    ports.iter().map(open).collect()
}

fn open_source(interface: &Interface, port: u16, super_frames: bool) -> Result<Source, UdpError> {
    let Some(plain) = open_sender(interface, false, false, port)? else {
        unreachable!("the kernel always has IPv4");
    };
    let port = local_port(&plain).map_err(UdpError::system("read a UDP port"))?;
    let segmenting = |is_v6| match super_frames {
        true => open_sender(interface, is_v6, true, port),
        false => Ok(None),
    };
    let four = Pair { plain, segmenting: segmenting(false)? };
    let six = match open_sender(interface, true, false, port)? {
        Some(plain) => Some(Pair { plain, segmenting: segmenting(true)? }),
        None => None,
    };
    Ok(Source { port, four, six })
}

fn open_sender(
    interface: &Interface,
    is_v6: bool,
    segmenting: bool,
    port: u16,
) -> Result<Option<OwnedFd>, UdpError> {
    let Some(socket) = open_dropping(is_v6)? else { return Ok(None) };
    bind_to(&socket, interface)?;
    apply(&socket, if is_v6 { SEND_V6 } else { SEND_V4 })?;
    if segmenting {
        share_port(&socket)?;
    }
    let unchecked = match (is_v6, segmenting) {
        (_, true) => Ok(()),
        (true, false) => set(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_TX, &1),
        (false, false) => set(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, &1),
    };
    unchecked.map_err(UdpError::system("send packets without a UDP checksum"))?;
    let sized = size_buffers(&socket, 0);
    sized.map_err(UdpError::system("size the send buffer"))?;
    // The first socket of a port is bound without SO_REUSEPORT, so that it does not share the port
    // of another program.
    let bound = bind_any(&socket, is_v6, port);
    bound.map_err(|source| UdpError::SourcePort { port, source })?;
    if !segmenting {
        share_port(&socket)?;
    }
    Ok(Some(socket))
}

/// Returns true if the kernel segments UDP super-frames (Linux 4.18).
pub(super) fn can_segment() -> bool {
    let socket = open(libc::AF_INET, libc::SOCK_DGRAM);
    let set = |socket: OwnedFd| set(&socket, libc::IPPROTO_UDP, libc::UDP_SEGMENT, &0);
    socket.and_then(set).is_ok()
}
