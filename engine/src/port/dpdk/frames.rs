//! Frames that a port without a kernel interface handles itself. It distinguishes RoCE frames to
//! its addresses from others, answers ARP requests, neighbour solicitations and echo requests, and
//! writes requests for its neighbours.
//!
//! This module only parses and writes bytes; [`neighbours`](super::neighbours) keeps the state.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use feroce_wire::ethernet::ETHERTYPE_VLAN;
use feroce_wire::{EthernetHeader, MacAddr, ROCE_PORT, VlanTag};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr,
    Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
};

use super::config::{Address, LINK_HEADERS};
use crate::net::multicast_mac;

/// Shortest Ethernet frame without its checksum, in bytes. Not every driver pads frames.
const SHORTEST: usize = 60;
/// Hop limit of neighbour discovery. Packets with a lower one came through a router and are
/// ignored.
const ON_LINK: u8 = 255;
const HOP_LIMIT: u8 = 64;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The local addresses of a port.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub mac: MacAddr,
    pub addresses: Vec<Address>,
}

/// The Ethernet address of a neighbour, learnt from a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sighting {
    pub vlan: Option<u16>,
    pub ip: IpAddr,
    pub mac: MacAddr,
    /// True if it replaces an address known before.
    pub overrides: bool,
}

/// The result of handling a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handled {
    /// Length of the response, if there is one.
    pub response: Option<usize>,
    pub sighting: Option<Sighting>,
}

/// A parsed link header with its payload.
struct Link<'a> {
    src: MacAddr,
    vlan: Option<u16>,
    protocol: EthernetProtocol,
    payload: &'a [u8],
}

impl<'a> Link<'a> {
    fn parse(frame: &'a [u8]) -> Option<Self> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let src = MacAddr(ethernet.src_addr().0);
        let (protocol, payload) = (ethernet.ethertype(), ethernet.payload());
        if u16::from(protocol) != ETHERTYPE_VLAN {
            return Some(Self { src, vlan: None, protocol, payload });
        }
        let (&[a, b, c, d], payload) = payload.split_first_chunk()?;
        let tag = VlanTag::from_tci(u16::from_be_bytes([a, b]));
        // A tag with VLAN id 0 carries only a priority.
        let vlan = (tag.id != 0).then_some(tag.id);
        let protocol = EthernetProtocol::from(u16::from_be_bytes([c, d]));
        Some(Self { src, vlan, protocol, payload })
    }
}

impl Own {
    /// Returns true if `ip` in `vlan` is a local address.
    pub fn has(&self, vlan: Option<u16>, ip: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.ip == ip && own.vlan == vlan)
    }

    /// Returns true if the headers of `frame` are those of RoCEv2 to a local address. The core
    /// checks whether the frame is complete.
    #[inline]
    pub fn is_roce(&self, frame: &[u8]) -> bool {
        let check = || {
            let link = Link::parse(frame)?;
            let packet = link.payload;
            let (to, protocol, udp) = match link.protocol {
                EthernetProtocol::Ipv4 => {
                    let head = packet.first_chunk::<20>()?;
                    let fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff;
                    let to = Ipv4Addr::new(head[16], head[17], head[18], head[19]);
                    let udp = packet.get(usize::from(head[0] & 0xf) * 4..)?;
                    (IpAddr::V4(to), (fragment == 0).then_some(head[9])?, udp)
                }
                EthernetProtocol::Ipv6 => {
                    let (head, udp) = packet.split_first_chunk::<40>()?;
                    let to = head.last_chunk::<16>()?;
                    (IpAddr::V6(Ipv6Addr::from(*to)), head[6], udp)
                }
                _ => return None,
            };
            let port = u16::from_be_bytes([*udp.get(2)?, *udp.get(3)?]);
            let is_udp = protocol == u8::from(IpProtocol::Udp);
            Some(is_udp && port == ROCE_PORT && self.has(link.vlan, to))
        };
        check().unwrap_or(false)
    }

    /// Handles a frame that is not RoCE and writes the response, if any, to `out`. `None` if the
    /// frame is not for this port.
    pub fn handle(&self, frame: &[u8], out: &mut [u8]) -> Option<Handled> {
        let link = Link::parse(frame)?;
        match link.protocol {
            EthernetProtocol::Arp => self.handle_arp(&link, out),
            EthernetProtocol::Ipv4 => self.handle_ipv4(&link, out),
            EthernetProtocol::Ipv6 => self.handle_ipv6(&link, out),
            _ => None,
        }
    }

    fn handle_arp(&self, link: &Link<'_>, out: &mut [u8]) -> Option<Handled> {
        let packet = ArpPacket::new_checked(link.payload).ok()?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: their_mac,
            source_protocol_addr: them,
            target_protocol_addr: target,
            ..
        } = ArpRepr::parse(&packet).ok()?
        else {
            return None;
        };
        let sighting = self.sighting(link.vlan, them.into(), their_mac.as_bytes(), true);
        let is_for_us = operation == ArpOperation::Request && self.has(link.vlan, target.into());
        let answer = || {
            let repr = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: EthernetAddress(self.mac.0),
                source_protocol_addr: target,
                target_hardware_addr: their_mac,
                target_protocol_addr: them,
            };
            self.write_arp(MacAddr(their_mac.0), link.vlan, &repr, out)
        };
        Some(Handled { response: is_for_us.then(answer), sighting })
    }

    fn handle_ipv4(&self, link: &Link<'_>, out: &mut [u8]) -> Option<Handled> {
        let caps = ChecksumCapabilities::default();
        let packet = Ipv4Packet::new_checked(link.payload).ok()?;
        let (them, us) = (packet.src_addr(), packet.dst_addr());
        let is_ours = packet.next_header() == IpProtocol::Icmp
            && packet.verify_checksum()
            && !packet.more_frags()
            && packet.frag_offset() == 0
            && self.has(link.vlan, us.into());
        let icmp = Icmpv4Packet::new_checked(is_ours.then(|| packet.payload())?).ok()?;
        let Icmpv4Repr::EchoRequest { ident, seq_no, data } =
            Icmpv4Repr::parse(&icmp, &caps).ok()?
        else {
            return None;
        };
        let response = Icmpv4Repr::EchoReply { ident, seq_no, data };
        let ip = Ipv4Repr {
            src_addr: us,
            dst_addr: them,
            next_header: IpProtocol::Icmp,
            payload_len: response.buffer_len(),
            hop_limit: HOP_LIMIT,
        };
        let at = self.write_link(link.src, link.vlan, EthernetProtocol::Ipv4, out);
        let len = at + ip.buffer_len() + ip.payload_len;
        let body = out.get_mut(at..len)?;
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut *body), &caps);
        response.emit(&mut Icmpv4Packet::new_unchecked(&mut body[ip.buffer_len()..]), &caps);
        Some(Handled { response: Some(padded(out, len)), sighting: None })
    }

    fn handle_ipv6(&self, link: &Link<'_>, out: &mut [u8]) -> Option<Handled> {
        let packet = Ipv6Packet::new_checked(link.payload).ok()?;
        let (them, us) = (packet.src_addr(), packet.dst_addr());
        let is_icmp = packet.next_header() == IpProtocol::Icmpv6;
        let icmp = Icmpv6Packet::new_checked(is_icmp.then(|| packet.payload())?).ok()?;
        let repr = Icmpv6Repr::parse(&them, &us, &icmp, &ChecksumCapabilities::default()).ok()?;
        match repr {
            Icmpv6Repr::EchoRequest { ident, seq_no, data } if self.has(link.vlan, us.into()) => {
                let response = Icmpv6Repr::EchoReply { ident, seq_no, data };
                let path = Ipv6Path { from: us, to: them, hop_limit: HOP_LIMIT };
                let response = self.write_icmpv6(link.src, link.vlan, path, &response, out);
                Some(Handled { response, sighting: None })
            }
            Icmpv6Repr::Ndisc(ndisc) if packet.hop_limit() == ON_LINK => {
                self.handle_ndisc(link, them, &ndisc, out)
            }
            _ => None,
        }
    }

    fn handle_ndisc(
        &self,
        link: &Link<'_>,
        them: Ipv6Addr,
        ndisc: &NdiscRepr<'_>,
        out: &mut [u8],
    ) -> Option<Handled> {
        match *ndisc {
            NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
                let is_for_us = self.has(link.vlan, target_addr.into());
                let mac = lladdr.as_ref().map(|address| address.as_bytes());
                let sighting = mac.and_then(|mac| self.sighting(link.vlan, them.into(), mac, true));
                // A solicitation without a source address is duplicate address detection for a
                // local address. The advertisement is sent to all nodes.
                let (to, to_mac, flags) = match them.is_unspecified() {
                    true => {
                        (ALL_NODES, multicast_mac(ALL_NODES.into()), NdiscNeighborFlags::OVERRIDE)
                    }
                    false => (
                        them,
                        sighting.map_or(link.src, |sighting| sighting.mac),
                        NdiscNeighborFlags::OVERRIDE | NdiscNeighborFlags::SOLICITED,
                    ),
                };
                let answer = || {
                    let repr = self.advertisement(target_addr, flags);
                    let path = Ipv6Path { from: target_addr, to, hop_limit: ON_LINK };
                    self.write_icmpv6(to_mac, link.vlan, path, &repr, out)
                };
                Some(Handled { response: is_for_us.then(answer).flatten(), sighting })
            }
            NdiscRepr::NeighborAdvert { flags, target_addr, lladdr: Some(mac) } => {
                let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
                let sighting =
                    self.sighting(link.vlan, target_addr.into(), mac.as_bytes(), overrides);
                Some(Handled { response: None, sighting })
            }
            _ => None,
        }
    }

    /// A sighting, if the addresses are unicast and not local.
    fn sighting(
        &self,
        vlan: Option<u16>,
        ip: IpAddr,
        mac: &[u8],
        overrides: bool,
    ) -> Option<Sighting> {
        let mac = MacAddr(mac.try_into().ok()?);
        let is_host = !ip.is_unspecified() && !ip.is_multicast() && !self.has(vlan, ip);
        (is_host && !mac.is_multicast() && mac != MacAddr::default()).then_some(Sighting {
            vlan,
            ip,
            mac,
            overrides,
        })
    }

    /// Writes a request for the Ethernet address of `target`, sent from `own`; `None` if the
    /// address families differ.
    pub fn request(&self, own: &Address, target: IpAddr, out: &mut [u8]) -> Option<usize> {
        match (own.ip, target) {
            (IpAddr::V4(own_ip), IpAddr::V4(target)) => {
                let repr = self.arp_request(own_ip, target);
                Some(self.write_arp(MacAddr::BROADCAST, own.vlan, &repr, out))
            }
            (IpAddr::V6(own_ip), IpAddr::V6(target)) => {
                let to = solicited_node(target);
                let repr = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
                    target_addr: target,
                    lladdr: Some(EthernetAddress(self.mac.0).into()),
                });
                let path = Ipv6Path { from: own_ip, to, hop_limit: ON_LINK };
                self.write_icmpv6(multicast_mac(to.into()), own.vlan, path, &repr, out)
            }
            _ => None,
        }
    }

    /// Writes an announcement of `own`, for hosts that knew another Ethernet address for it.
    pub fn announce(&self, own: &Address, out: &mut [u8]) -> Option<usize> {
        match own.ip {
            IpAddr::V4(ip) => {
                let repr = self.arp_request(ip, ip);
                Some(self.write_arp(MacAddr::BROADCAST, own.vlan, &repr, out))
            }
            IpAddr::V6(ip) => {
                let repr = self.advertisement(ip, NdiscNeighborFlags::OVERRIDE);
                let path = Ipv6Path { from: ip, to: ALL_NODES, hop_limit: ON_LINK };
                self.write_icmpv6(multicast_mac(ALL_NODES.into()), own.vlan, path, &repr, out)
            }
        }
    }

    fn arp_request(&self, own: Ipv4Addr, target: Ipv4Addr) -> ArpRepr {
        ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: EthernetAddress(self.mac.0),
            source_protocol_addr: own,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: target,
        }
    }

    fn advertisement(&self, own: Ipv6Addr, flags: NdiscNeighborFlags) -> Icmpv6Repr<'static> {
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
            flags,
            target_addr: own,
            lladdr: Some(EthernetAddress(self.mac.0).into()),
        })
    }

    /// Writes the Ethernet header and the VLAN tag. Returns the offset of the packet.
    fn write_link(
        &self,
        to: MacAddr,
        vlan: Option<u16>,
        protocol: EthernetProtocol,
        out: &mut [u8],
    ) -> usize {
        let ethertype = vlan.map_or(protocol.into(), |_| ETHERTYPE_VLAN);
        EthernetHeader { dst: to, src: self.mac, ethertype }.write(out);
        let Some(id) = vlan else { return EthernetHeader::LEN };
        let tag = VlanTag { id, pcp: 0, dei: false };
        let at = EthernetHeader::LEN;
        out[at..at + 2].copy_from_slice(&tag.tci().to_be_bytes());
        out[at + 2..at + 4].copy_from_slice(&u16::from(protocol).to_be_bytes());
        LINK_HEADERS
    }

    fn write_arp(&self, to: MacAddr, vlan: Option<u16>, repr: &ArpRepr, out: &mut [u8]) -> usize {
        let at = self.write_link(to, vlan, EthernetProtocol::Arp, out);
        let len = at + repr.buffer_len();
        repr.emit(&mut ArpPacket::new_unchecked(&mut out[at..len]));
        padded(out, len)
    }

    /// `None` if `out` is too short.
    fn write_icmpv6(
        &self,
        to: MacAddr,
        vlan: Option<u16>,
        path: Ipv6Path,
        repr: &Icmpv6Repr<'_>,
        out: &mut [u8],
    ) -> Option<usize> {
        let ip = Ipv6Repr {
            src_addr: path.from,
            dst_addr: path.to,
            next_header: IpProtocol::Icmpv6,
            payload_len: repr.buffer_len(),
            hop_limit: path.hop_limit,
        };
        let at = self.write_link(to, vlan, EthernetProtocol::Ipv6, out);
        let len = at + ip.buffer_len() + ip.payload_len;
        let body = out.get_mut(at..len)?;
        ip.emit(&mut Ipv6Packet::new_unchecked(&mut *body));
        let mut packet = Icmpv6Packet::new_unchecked(&mut body[ip.buffer_len()..]);
        repr.emit(&path.from, &path.to, &mut packet, &ChecksumCapabilities::default());
        Some(padded(out, len))
    }
}

/// Addresses and hop limit of an IPv6 packet.
#[derive(Clone, Copy)]
struct Ipv6Path {
    from: Ipv6Addr,
    to: Ipv6Addr,
    hop_limit: u8,
}

/// Pads a short frame with zeros. Returns the length of the frame.
pub(super) fn padded(out: &mut [u8], len: usize) -> usize {
    if len < SHORTEST {
        out[len..SHORTEST].fill(0);
    }
    len.max(SHORTEST)
}

/// The solicited-node multicast group of `ip` (RFC 4291, 2.7.1).
fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., low_a, low_b] = ip.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | low_a & 0xff, low_b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own() -> Own {
        let address = |text: &str| text.parse().unwrap();
        let addresses = ["10.0.0.1/24", "fd00::1/64", "10.0.1.1/24@100", "fd01::1/64@100"];
        Own { mac: MacAddr([2, 0, 0, 0, 0, 1]), addresses: addresses.map(address).into() }
    }

    /// Another host on the same link; its addresses are higher by one.
    fn peer() -> Own {
        let address = |text: &str| text.parse().unwrap();
        let addresses = ["10.0.0.2/24", "fd00::2/64", "10.0.1.2/24@100", "fd01::2/64@100"];
        Own { mac: MacAddr([2, 0, 0, 0, 0, 2]), addresses: addresses.map(address).into() }
    }

    #[test]
    fn a_request_is_answered_by_its_target() {
        let (own, peer) = (own(), peer());
        for (ours, theirs) in own.addresses.iter().zip(&peer.addresses) {
            let (mut request, mut answer) = ([0; 128], [0; 128]);
            let len = own.request(ours, theirs.ip, &mut request).unwrap();
            let handled = peer.handle(&request[..len], &mut answer).unwrap();
            let seen = |sender: &Own, address: &Address| Sighting {
                vlan: address.vlan,
                ip: address.ip,
                mac: sender.mac,
                overrides: true,
            };
            assert_eq!(
                handled.sighting,
                Some(seen(&own, ours)),
                "the sender of the request is seen"
            );
            let outcome = own.handle(&answer[..handled.response.unwrap()], &mut request).unwrap();
            assert_eq!(outcome, Handled { response: None, sighting: Some(seen(&peer, theirs)) });
        }
    }

    #[test]
    fn an_announcement_is_a_sighting_without_a_response() {
        let (own, peer) = (own(), peer());
        for theirs in &peer.addresses {
            let (mut frame, mut answer) = ([0; 128], [0; 128]);
            let len = peer.announce(theirs, &mut frame).unwrap();
            let handled = own.handle(&frame[..len], &mut answer).unwrap();
            assert_eq!(handled.response, None);
            assert_eq!(
                handled.sighting.map(|sighting| (sighting.ip, sighting.mac)),
                Some((theirs.ip, peer.mac))
            );
        }
    }

    #[test]
    fn requests_are_answered_only_in_their_vlan() {
        let (own, peer) = (own(), peer());
        let (mut request, mut answer) = ([0; 128], [0; 128]);
        let untagged = peer.addresses[2].ip;
        let len = own.request(&own.addresses[0], untagged, &mut request).unwrap();
        assert_eq!(peer.handle(&request[..len], &mut answer).unwrap().response, None);
    }

    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..200);
        let real = (
            0..4usize,
            any::<bool>(),
            proptest::collection::vec((0..120usize, any::<u8>()), 0..6),
            0..130usize,
        );
        let damaged = real.prop_map(|(at, is_request, changes, len)| {
            let (own, peer) = (own(), peer());
            let mut frame = vec![0; 128];
            let written = match is_request {
                true => peer.request(&peer.addresses[at], own.addresses[at].ip, &mut frame),
                false => peer.announce(&peer.addresses[at], &mut frame),
            };
            frame.truncate(written.unwrap().max(60));
            for (at, value) in changes {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            frame.truncate(len);
            frame
        });
        prop_oneof![bytes, damaged]
    }

    proptest! {
        /// No frame causes a panic, and no response is longer than its buffer.
        #[test]
        fn any_bytes_are_handled(frame in frames()) {
            let own = own();
            let mut out = [0; 2048];
            own.is_roce(&frame);
            if let Some(Handled { response: Some(len), .. }) = own.handle(&frame, &mut out) {
                prop_assert!((SHORTEST..=out.len()).contains(&len));
                prop_assert_eq!(&out[6..12], &own.mac.0[..]);
            }
        }
    }
}
