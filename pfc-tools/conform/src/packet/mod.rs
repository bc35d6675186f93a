//! Finds the RoCE packet in a frame, whatever headers surround it.

mod ib;

use std::net::IpAddr;

use feroce_wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN};
use feroce_wire::icrc::Sums;
use feroce_wire::{EthernetHeader, IcrcError, Packet, ParseError, ROCE_PORT, VlanTag};

use super::trace::{Frame, Link};

/// What carries the transport headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// UDP port 4791 of IP.
    RoceV2,
    /// EtherType 0x8915: a global routing header instead of IP and UDP.
    RoceV1,
    /// InfiniBand itself.
    InfiniBand,
}

/// The result of the ICRC check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Icrc {
    /// The ICRC matches the bytes.
    Valid,
    /// The ICRC does not match.
    Wrong {
        /// The value computed from the bytes.
        expected: u32,
        /// The value in the packet.
        found: u32,
    },
    /// Not all covered bytes were captured.
    Unknown,
}

/// A captured RoCE packet. For RoCE v1 and InfiniBand, the Ethernet, IP and UDP headers are made up
/// from the routing headers: a GID becomes an IPv6 address, a LID an address below `fe80::`.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Number of the file, from 0.
    pub file: u16,
    /// Number of the capture point.
    pub tap: u16,
    /// Number of the frame in its file, from 1.
    pub number: u64,
    /// Time of capture, in nanoseconds since 1970.
    pub at: u64,
    /// Headers, payload and pad; missing bytes of a truncated frame are zeros. Borrowed because it
    /// is large.
    pub packet: &'a Packet<'a>,
    /// Result of the ICRC check.
    pub icrc: Icrc,
    /// CRCs of the packet and of its head, to distinguish copies from other packets. For
    /// InfiniBand, computed over the made-up headers.
    pub sums: Sums,
    /// The carrier.
    pub carrier: Carrier,
    /// True if the frame was truncated by the capture.
    pub is_cut: bool,
}

impl Seen<'_> {
    /// Returns the source address.
    pub const fn src(&self) -> IpAddr {
        self.packet.ip.src()
    }

    /// Returns the destination address.
    pub const fn dst(&self) -> IpAddr {
        self.packet.ip.dst()
    }
}

/// The contents of a frame.
#[derive(Debug, Clone, Copy)]
pub enum Contents<'a> {
    /// A RoCE packet.
    Roce(Seen<'a>),
    /// A malformed RoCE packet.
    Broken(ParseError),
    /// No RoCE packet.
    Other,
}

/// Reads frames. Its buffer holds the bytes of frames that [`Packet`] cannot parse as they are.
#[derive(Debug, Default)]
pub struct Reader {
    scratch: Vec<u8>,
}

/// Maximum number of headers around a packet: VLAN tags and tunnels.
const DEPTH: usize = 8;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
const ETHERTYPE_ROCE_V1: u16 = 0x8915;
const VXLAN_PORT: u16 = 4789;
const VXLAN: usize = 8;
/// The longest frame that is completed with zeros, in bytes.
const LONGEST: usize = 1 << 16;

impl Reader {
    /// Parses `frame` and passes the result to `take`.
    pub fn read(&mut self, frame: &Frame<'_>, take: impl FnOnce(Contents<'_>)) {
        if frame.link == Link::Ethernet && !frame.is_cut() {
            match &Packet::parse(frame.bytes, &[]) {
                Ok(packet) => {
                    let verdict = verdict(packet);
                    return take(Contents::Roce(seen(frame, packet, verdict, Carrier::RoceV2)));
                }
                Err(error) if is_to_roce_port(frame.bytes) => {
                    return take(Contents::Broken(*error));
                }
                Err(_) => {}
            }
        }
        self.read_inside(frame, take);
    }

    /// Removes the headers around the packet, and lays it out in the buffer as [`Packet`] expects.
    fn read_inside(&mut self, frame: &Frame<'_>, take: impl FnOnce(Contents<'_>)) {
        let missing = (frame.original_len as usize).saturating_sub(frame.bytes.len());
        let (core, tag) = match frame.link {
            Link::Ethernet => match unwrapped(frame.bytes) {
                Some(found) => found,
                None => return take(Contents::Other),
            },
            Link::Ip => (Core::Ip(frame.bytes), None),
            Link::InfiniBand => (Core::InfiniBand(frame.bytes), None),
            Link::Other => return take(Contents::Other),
        };
        let scratch = &mut self.scratch;
        scratch.clear();
        let (carrier, crc) = match core {
            Core::Ip(bytes) => {
                ethernet(scratch, tag, bytes.first().is_some_and(|byte| byte >> 4 == 6));
                scratch.extend_from_slice(bytes);
                (Carrier::RoceV2, None)
            }
            Core::RoceV1(bytes) => {
                let Some(crc) = ib::from_grh(scratch, bytes, None) else {
                    return take(Contents::Other);
                };
                (Carrier::RoceV1, Some(crc))
            }
            Core::InfiniBand(bytes) => {
                let Some(crc) = ib::from_lrh(scratch, bytes) else {
                    return take(Contents::Other);
                };
                (Carrier::InfiniBand, Some(crc))
            }
        };
        scratch.resize((scratch.len() + missing).min(LONGEST), 0);
        let is_to_roce_port = is_to_roce_port(scratch);
        let contents = match &Packet::parse(scratch, &[]) {
            Ok(packet) => {
                let verdict = match crc {
                    _ if missing > 0 => (Icrc::Unknown, packet.sums()),
                    None => verdict(packet),
                    Some(expected) if expected == packet.icrc => (Icrc::Valid, packet.sums()),
                    Some(expected) => (Icrc::Wrong { expected, found: packet.icrc }, packet.sums()),
                };
                let seen = seen(frame, packet, verdict, carrier);
                return take(Contents::Roce(Seen { is_cut: missing > 0, ..seen }));
            }
            Err(error) if is_to_roce_port => Contents::Broken(*error),
            Err(_) => Contents::Other,
        };
        take(contents);
    }
}

#[inline]
fn seen<'a>(
    frame: &Frame<'_>,
    packet: &'a Packet<'a>,
    (icrc, sums): (Icrc, Sums),
    carrier: Carrier,
) -> Seen<'a> {
    let Frame { file, tap, number, at, .. } = *frame;
    Seen { file, tap, number, at, packet, icrc, sums, carrier, is_cut: false }
}

#[inline]
fn verdict(packet: &Packet<'_>) -> (Icrc, Sums) {
    let sums = packet.sums();
    let verdict = match sums.verify(packet.icrc) {
        Ok(()) => Icrc::Valid,
        Err(IcrcError { expected, found }) => Icrc::Wrong { expected, found },
    };
    (verdict, sums)
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Returns the offset of UDP in an IP packet without extension headers.
fn udp_at(ip: &[u8]) -> Option<usize> {
    const UDP: u8 = 17;
    match ip.first()? >> 4 {
        // Only the first fragment has ports.
        4 if ip.get(9) == Some(&UDP) && word(ip, 6)? & 0x1fff == 0 => {
            Some(usize::from(ip[0] & 0xf) * 4)
        }
        6 if ip.get(6) == Some(&UDP) => Some(40),
        _ => None,
    }
}

fn udp_port(ip: &[u8]) -> Option<u16> {
    word(ip, udp_at(ip)? + 2)
}

/// Returns true if an Ethernet frame with at most one VLAN tag is addressed to the RoCE port.
fn is_to_roce_port(frame: &[u8]) -> bool {
    roce_ip_at(frame).is_some()
}

/// Returns the offset of the IP header in an Ethernet frame with at most one VLAN tag that is
/// addressed to the RoCE port.
pub fn roce_ip_at(frame: &[u8]) -> Option<usize> {
    let ip_at = match word(frame, 12) {
        Some(ETHERTYPE_VLAN) => EthernetHeader::LEN + VlanTag::LEN,
        _ => EthernetHeader::LEN,
    };
    let is_ip = matches!(word(frame, ip_at - 2), Some(ETHERTYPE_IPV4 | ETHERTYPE_IPV6));
    let is_to_port = is_ip && frame.get(ip_at..).and_then(udp_port) == Some(ROCE_PORT);
    is_to_port.then_some(ip_at)
}

/// The packet without its surrounding headers.
enum Core<'a> {
    Ip(&'a [u8]),
    RoceV1(&'a [u8]),
    InfiniBand(&'a [u8]),
}

/// Returns the IP packet or RoCE v1 packet in an Ethernet frame, also inside tunnels, and the
/// innermost VLAN tag.
fn unwrapped(frame: &[u8]) -> Option<(Core<'_>, Option<VlanTag>)> {
    let (mut bytes, mut tag) = (frame, None);
    let mut ethertype_at = 12;
    for _ in 0..DEPTH {
        let ethertype = word(bytes, ethertype_at)?;
        let payload = bytes.get(ethertype_at + 2..)?;
        match ethertype {
            ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => {
                tag = Some(VlanTag::from_tci(word(payload, 0)?));
                ethertype_at += VlanTag::LEN;
            }
            ETHERTYPE_ROCE_V1 => return Some((Core::RoceV1(payload), tag)),
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 if udp_port(payload) == Some(VXLAN_PORT) => {
                bytes = payload.get(udp_at(payload)? + 8 + VXLAN..)?;
                (tag, ethertype_at) = (None, 12);
            }
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Some((Core::Ip(payload), tag)),
            _ => return None,
        }
    }
    None
}

/// Writes an Ethernet header with zero addresses.
fn ethernet(out: &mut Vec<u8>, tag: Option<VlanTag>, is_v6: bool) {
    out.extend_from_slice(&[0; 12]);
    if let Some(tag) = tag {
        out.extend_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
        out.extend_from_slice(&tag.tci().to_be_bytes());
    }
    let ethertype = if is_v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    out.extend_from_slice(&ethertype.to_be_bytes());
}
