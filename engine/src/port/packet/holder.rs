//! Sockets that hold UDP port 4791 and drop everything they receive.
//!
//! A packet socket gets copies of frames. The kernel's own stack also gets each frame and would
//! respond with ICMP "port unreachable" if no socket had the port. `UDP_GRO` is set if the port
//! receives super-frames: otherwise the kernel would cut each super-frame before it drops it.
//! Without super-frames `UDP_GRO` is not set, because the kernel would then merge datagrams of
//! other senders.

use std::io;
use std::os::fd::OwnedFd;

use feroce_wire::ROCE_PORT;

use super::error::PacketError;
use crate::port::classic_bpf::NOTHING;
use crate::port::socket::{attach, bind_any, open, set};

/// Holds the UDP port until it is dropped.
#[derive(Debug)]
pub(super) struct Holder {
    _four: OwnedFd,
    /// `None` if the kernel has no IPv6.
    _six: Option<OwnedFd>,
}

impl Holder {
    /// Takes the UDP port in the network namespace of the calling thread. Packet ports of the same
    /// user share it.
    pub fn take(super_frames: bool) -> Result<Self, PacketError> {
        let refused = |source: io::Error| match source.raw_os_error() {
            Some(libc::EADDRINUSE) => PacketError::PortInUse { source },
            _ => PacketError::system("hold UDP port 4791")(source),
        };
        let six = match hold(true, super_frames) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => None,
            other => Some(other.map_err(refused)?),
        };
        Ok(Self { _four: hold(false, super_frames).map_err(refused)?, _six: six })
    }
}

fn hold(is_v6: bool, super_frames: bool) -> io::Result<OwnedFd> {
    let socket = dropping_socket(if is_v6 { libc::AF_INET6 } else { libc::AF_INET }, super_frames)?;
    if is_v6 {
        set(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1)?;
    }
    bind_any(&socket, is_v6, ROCE_PORT).map(|()| socket)
}

/// A UDP socket that drops everything it receives.
fn dropping_socket(family: libc::c_int, super_frames: bool) -> io::Result<OwnedFd> {
    let socket = open(family, libc::SOCK_DGRAM)?;
    attach(&socket, &NOTHING)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
    if super_frames {
        set(&socket, libc::IPPROTO_UDP, libc::UDP_GRO, &1)?;
    }
    Ok(socket)
}
