//! Pings that find the path MTU to a peer: ICMP echo requests (RFC 792, RFC 4443) with
//! fragmentation forbidden. The replies may be fragmented: the reverse direction is not tested.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use feroce_engine::net::PathHeaders;
use feroce_engine::sys;
use feroce_engine::time::Clock;
use feroce_wire::PathMtu;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recvmsg,
    sendmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// Attempts per packet size.
const TRIES: usize = 2;
/// Time to wait for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of the echo header: type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;
/// Length of an IP packet that every path carries.
const SHORT: u32 = 84;
/// Large enough for a packet of the largest path MTU with IP headers.
const BUFFER: usize = 8192;

/// Result of the pings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// No reply, even to short packets.
    Silent,
    /// Largest path MTU whose packets arrive; `None` if no path MTU's packets do.
    Carries(Option<PathMtu>),
}

/// ICMP types of request and reply.
struct Kind {
    request: u8,
    reply: u8,
    /// Bytes of the IP header without options.
    ip_header: u32,
}

const V4: Kind = Kind { request: 8, reply: 0, ip_header: 20 };
const V6: Kind = Kind { request: 128, reply: 129, ip_header: 40 };

/// A raw socket for pings.
#[derive(Debug)]
struct Pinger {
    socket: OwnedFd,
    peer: SockaddrStorage,
    v6: bool,
    sequence: u16,
}

/// Pings the destination of `headers` through `interface`: first with a short packet, then with
/// packets of `largest` and of each smaller path MTU, until one is answered.
///
/// # Errors
/// If the kernel refuses the socket: it requires CAP_NET_RAW.
pub fn probe(headers: &PathHeaders, interface: &str, largest: PathMtu) -> io::Result<Reach> {
    let mut pinger = Pinger::open(headers, interface)?;
    if !pinger.is_answered(SHORT) {
        return Ok(Reach::Silent);
    }
    let sizes = PathMtu::ALL.into_iter().rev().filter(|mtu| mtu.bytes() <= largest.bytes());
    let mut sizes = sizes.map(|mtu| (mtu, mtu.bytes() + PathMtu::OVERHEAD));
    let found = sizes.find(|(_, bytes)| pinger.is_answered(*bytes));
    Ok(Reach::Carries(found.map(|(mtu, _)| mtu)))
}

impl Pinger {
    fn open(headers: &PathHeaders, interface: &str) -> io::Result<Self> {
        let (family, protocol) = match headers.dst_ip {
            IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
            IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
        };
        let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        sys::never_fragment(socket.as_fd(), headers.dst_ip.is_ipv6())?;
        setsockopt(&socket, sockopt::BindToDevice, &interface.into())?;
        bind(socket.as_raw_fd(), &address(headers.src_ip, headers.interface))?;
        let peer = address(headers.dst_ip, headers.interface);
        Ok(Self { socket, peer, v6: headers.dst_ip.is_ipv6(), sequence: 0 })
    }

    /// Returns true if an echo request in an IP packet of `ip_bytes` bytes is answered.
    fn is_answered(&mut self, ip_bytes: u32) -> bool {
        (0..TRIES).any(|_| {
            self.sequence += 1;
            let message = self.message(ip_bytes);
            let sent = sendmsg(
                self.socket.as_raw_fd(),
                &[IoSlice::new(&message)],
                &[],
                MsgFlags::empty(),
                Some(&self.peer),
            );
            sent.is_ok() && self.receives_reply(&message)
        })
    }

    fn kind(&self) -> &'static Kind {
        if self.v6 { &V6 } else { &V4 }
    }

    fn message(&self, ip_bytes: u32) -> Vec<u8> {
        let kind = self.kind();
        let mut message = vec![0; (ip_bytes - kind.ip_header) as usize];
        let [id_high, id_low, ..] = std::process::id().to_le_bytes();
        let [high, low] = self.sequence.to_be_bytes();
        message[..HEADER].copy_from_slice(&[kind.request, 0, 0, 0, id_high, id_low, high, low]);
        if !self.v6 {
            // The kernel fills in the checksum of ICMPv6.
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        message
    }

    /// Returns true if the reply to `message` arrives within [`REPLY_TIMEOUT`]. Other packets are
    /// ignored.
    fn receives_reply(&self, message: &[u8]) -> bool {
        let clock = Clock::start();
        let start = clock.now();
        let mut buffer = [0; BUFFER];
        loop {
            let left = REPLY_TIMEOUT.saturating_sub(clock.now() - start);
            let wait = TimeVal::new(0, left.subsec_micros().into());
            if left.as_micros() == 0
                || setsockopt(&self.socket, sockopt::ReceiveTimeout, &wait).is_err()
            {
                return false;
            }
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let fd = self.socket.as_raw_fd();
            let Ok(received) = recvmsg::<()>(fd, &mut parts, None, MsgFlags::empty()) else {
                continue;
            };
            let bytes = received.bytes;
            if self.is_reply(&buffer[..bytes], message) {
                return true;
            }
        }
    }

    fn is_reply(&self, packet: &[u8], message: &[u8]) -> bool {
        // A raw IPv4 socket delivers the IP header; a raw IPv6 socket does not.
        let header = match packet.first() {
            Some(first) if !self.v6 => usize::from(first & 0xf) * 4,
            _ => 0,
        };
        let reply = packet.get(header..).unwrap_or_default();
        reply.len() == message.len() && reply[0] == self.kind().reply && reply[4..] == message[4..]
    }
}

fn address(ip: IpAddr, interface: u32) -> SockaddrStorage {
    match ip {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, 0).into(),
        IpAddr::V6(ip) => {
            let scope = if ip.is_unicast_link_local() { interface } else { 0 };
            SocketAddrV6::new(ip, 0, 0, scope).into()
        }
    }
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or_default()));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_rfc() {
        // RFC 1071, section 3: 0001 f203 f4f5 f6f7 add up to ddf2.
        assert_eq!(checksum(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[1]), !0x0100);
    }
}
