//! What a port does for itself because no kernel stands behind it: it tells RoCE for its addresses from
//! other frames, answers ARP, neighbour solicitations and echo requests, and asks for its neighbours.
//!
//! Pure: bytes in, bytes out. [`lan`](super::lan) remembers what was heard.

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

/// Shortest Ethernet frame without its checksum, in bytes. Not every driver pads.
const SHORTEST: usize = 60;
/// Hop limit of neighbour discovery: a packet with less came through a router, and does not count.
const ON_LINK: u8 = 255;
const HOP_LIMIT: u8 = 64;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Who a port is on its link.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub mac: MacAddr,
    pub addresses: Vec<Address>,
}

/// What a frame told about a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sighting {
    pub vlan: Option<u16>,
    pub ip: IpAddr,
    pub mac: MacAddr,
    /// It holds against what was known before.
    pub overrides: bool,
}

/// What came of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    /// Length of the answer.
    pub reply: Option<usize>,
    pub sighting: Option<Sighting>,
}

/// A frame behind its link header.
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
        // Tag 0 carries a priority only.
        let vlan = (tag.id != 0).then_some(tag.id);
        let protocol = EthernetProtocol::from(u16::from_be_bytes([c, d]));
        Some(Self { src, vlan, protocol, payload })
    }
}

impl Own {
    /// Whether `ip` in `vlan` is ours.
    pub fn has(&self, vlan: Option<u16>, ip: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.ip == ip && own.vlan == vlan)
    }

    /// Whether `frame` says that it is RoCEv2 for one of our addresses. Whether it is whole, whoever takes it sees.
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

    /// Listens to a frame that is not RoCE, and writes the answer to `out` if it has one. `None` if the frame
    /// is not for us.
    pub fn hear(&self, frame: &[u8], out: &mut [u8]) -> Option<Heard> {
        let link = Link::parse(frame)?;
        match link.protocol {
            EthernetProtocol::Arp => self.hear_arp(&link, out),
            EthernetProtocol::Ipv4 => self.hear_ipv4(&link, out),
            EthernetProtocol::Ipv6 => self.hear_ipv6(&link, out),
            _ => None,
        }
    }

    fn hear_arp(&self, link: &Link<'_>, out: &mut [u8]) -> Option<Heard> {
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
        let asks_us = operation == ArpOperation::Request && self.has(link.vlan, target.into());
        let answer = || {
            let repr = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: EthernetAddress(self.mac.0),
                source_protocol_addr: target,
                target_hardware_addr: their_mac,
                target_protocol_addr: them,
            };
            self.lay_arp(MacAddr(their_mac.0), link.vlan, &repr, out)
        };
        Some(Heard { reply: asks_us.then(answer), sighting })
    }

    fn hear_ipv4(&self, link: &Link<'_>, out: &mut [u8]) -> Option<Heard> {
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
        let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
        let ip = Ipv4Repr {
            src_addr: us,
            dst_addr: them,
            next_header: IpProtocol::Icmp,
            payload_len: reply.buffer_len(),
            hop_limit: HOP_LIMIT,
        };
        let at = self.lay_link(link.src, link.vlan, EthernetProtocol::Ipv4, out);
        let len = at + ip.buffer_len() + ip.payload_len;
        let body = out.get_mut(at..len)?;
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut *body), &caps);
        reply.emit(&mut Icmpv4Packet::new_unchecked(&mut body[ip.buffer_len()..]), &caps);
        Some(Heard { reply: Some(padded(out, len)), sighting: None })
    }

    fn hear_ipv6(&self, link: &Link<'_>, out: &mut [u8]) -> Option<Heard> {
        let packet = Ipv6Packet::new_checked(link.payload).ok()?;
        let (them, us) = (packet.src_addr(), packet.dst_addr());
        let is_icmp = packet.next_header() == IpProtocol::Icmpv6;
        let icmp = Icmpv6Packet::new_checked(is_icmp.then(|| packet.payload())?).ok()?;
        let repr = Icmpv6Repr::parse(&them, &us, &icmp, &ChecksumCapabilities::default()).ok()?;
        match repr {
            Icmpv6Repr::EchoRequest { ident, seq_no, data } if self.has(link.vlan, us.into()) => {
                let reply = Icmpv6Repr::EchoReply { ident, seq_no, data };
                let way = Way { from: us, to: them, hop_limit: HOP_LIMIT };
                let reply = self.lay_icmpv6(link.src, link.vlan, way, &reply, out);
                Some(Heard { reply, sighting: None })
            }
            Icmpv6Repr::Ndisc(ndisc) if packet.hop_limit() == ON_LINK => {
                self.hear_ndisc(link, them, &ndisc, out)
            }
            _ => None,
        }
    }

    fn hear_ndisc(
        &self,
        link: &Link<'_>,
        them: Ipv6Addr,
        ndisc: &NdiscRepr<'_>,
        out: &mut [u8],
    ) -> Option<Heard> {
        match *ndisc {
            NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
                let asks_us = self.has(link.vlan, target_addr.into());
                let mac = lladdr.as_ref().map(|address| address.as_bytes());
                let sighting = mac.and_then(|mac| self.sighting(link.vlan, them.into(), mac, true));
                // Whoever asks without an address tries out whether ours is free: it is not, for all to hear.
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
                    let way = Way { from: target_addr, to, hop_limit: ON_LINK };
                    self.lay_icmpv6(to_mac, link.vlan, way, &repr, out)
                };
                Some(Heard { reply: asks_us.then(answer).flatten(), sighting })
            }
            NdiscRepr::NeighborAdvert { flags, target_addr, lladdr: Some(mac) } => {
                let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
                let sighting =
                    self.sighting(link.vlan, target_addr.into(), mac.as_bytes(), overrides);
                Some(Heard { reply: None, sighting })
            }
            _ => None,
        }
    }

    /// A sighting of somebody else who can be one host.
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

    /// Writes the question who has `target`, asked from `own`; `None` if they are of different families.
    pub fn ask(&self, own: &Address, target: IpAddr, out: &mut [u8]) -> Option<usize> {
        match (own.ip, target) {
            (IpAddr::V4(own_ip), IpAddr::V4(target)) => {
                let repr = self.arp_request(own_ip, target);
                Some(self.lay_arp(MacAddr::BROADCAST, own.vlan, &repr, out))
            }
            (IpAddr::V6(own_ip), IpAddr::V6(target)) => {
                let to = solicited_node(target);
                let repr = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
                    target_addr: target,
                    lladdr: Some(EthernetAddress(self.mac.0).into()),
                });
                let way = Way { from: own_ip, to, hop_limit: ON_LINK };
                self.lay_icmpv6(multicast_mac(to.into()), own.vlan, way, &repr, out)
            }
            _ => None,
        }
    }

    /// Writes that `own` is here, for those who knew it elsewhere.
    pub fn announce(&self, own: &Address, out: &mut [u8]) -> Option<usize> {
        match own.ip {
            IpAddr::V4(ip) => {
                let repr = self.arp_request(ip, ip);
                Some(self.lay_arp(MacAddr::BROADCAST, own.vlan, &repr, out))
            }
            IpAddr::V6(ip) => {
                let repr = self.advertisement(ip, NdiscNeighborFlags::OVERRIDE);
                let way = Way { from: ip, to: ALL_NODES, hop_limit: ON_LINK };
                self.lay_icmpv6(multicast_mac(ALL_NODES.into()), own.vlan, way, &repr, out)
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

    /// Writes Ethernet header and tag; returns where the packet begins.
    fn lay_link(
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

    fn lay_arp(&self, to: MacAddr, vlan: Option<u16>, repr: &ArpRepr, out: &mut [u8]) -> usize {
        let at = self.lay_link(to, vlan, EthernetProtocol::Arp, out);
        let len = at + repr.buffer_len();
        repr.emit(&mut ArpPacket::new_unchecked(&mut out[at..len]));
        padded(out, len)
    }

    /// `None` if `out` is too short.
    fn lay_icmpv6(
        &self,
        to: MacAddr,
        vlan: Option<u16>,
        way: Way,
        repr: &Icmpv6Repr<'_>,
        out: &mut [u8],
    ) -> Option<usize> {
        let ip = Ipv6Repr {
            src_addr: way.from,
            dst_addr: way.to,
            next_header: IpProtocol::Icmpv6,
            payload_len: repr.buffer_len(),
            hop_limit: way.hop_limit,
        };
        let at = self.lay_link(to, vlan, EthernetProtocol::Ipv6, out);
        let len = at + ip.buffer_len() + ip.payload_len;
        let body = out.get_mut(at..len)?;
        ip.emit(&mut Ipv6Packet::new_unchecked(&mut *body));
        let mut packet = Icmpv6Packet::new_unchecked(&mut body[ip.buffer_len()..]);
        repr.emit(&way.from, &way.to, &mut packet, &ChecksumCapabilities::default());
        Some(padded(out, len))
    }
}

/// What an IPv6 header says besides what it carries.
#[derive(Clone, Copy)]
struct Way {
    from: Ipv6Addr,
    to: Ipv6Addr,
    hop_limit: u8,
}

/// Fills a short frame up with zeroes; returns its length then.
pub(super) fn padded(out: &mut [u8], len: usize) -> usize {
    if len < SHORTEST {
        out[len..SHORTEST].fill(0);
    }
    len.max(SHORTEST)
}

/// The group in which `ip` is asked for (RFC 4291, 2.7.1).
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

    /// Somebody else on the same link, with the same addresses but one higher.
    fn peer() -> Own {
        let address = |text: &str| text.parse().unwrap();
        let addresses = ["10.0.0.2/24", "fd00::2/64", "10.0.1.2/24@100", "fd01::2/64@100"];
        Own { mac: MacAddr([2, 0, 0, 0, 0, 2]), addresses: addresses.map(address).into() }
    }

    #[test]
    fn a_question_of_one_is_answered_by_the_other() {
        let (own, peer) = (own(), peer());
        for (ours, theirs) in own.addresses.iter().zip(&peer.addresses) {
            let (mut question, mut answer) = ([0; 128], [0; 128]);
            let len = own.ask(ours, theirs.ip, &mut question).unwrap();
            let heard = peer.hear(&question[..len], &mut answer).unwrap();
            let seen = |who: &Own, address: &Address| Sighting {
                vlan: address.vlan,
                ip: address.ip,
                mac: who.mac,
                overrides: true,
            };
            assert_eq!(heard.sighting, Some(seen(&own, ours)), "who asks is seen");
            let answered = own.hear(&answer[..heard.reply.unwrap()], &mut question).unwrap();
            assert_eq!(answered, Heard { reply: None, sighting: Some(seen(&peer, theirs)) });
        }
    }

    #[test]
    fn an_announcement_is_a_sighting_and_asks_nothing() {
        let (own, peer) = (own(), peer());
        for theirs in &peer.addresses {
            let (mut frame, mut answer) = ([0; 128], [0; 128]);
            let len = peer.announce(theirs, &mut frame).unwrap();
            let heard = own.hear(&frame[..len], &mut answer).unwrap();
            assert_eq!(heard.reply, None);
            assert_eq!(
                heard.sighting.map(|sighting| (sighting.ip, sighting.mac)),
                Some((theirs.ip, peer.mac))
            );
        }
    }

    #[test]
    fn questions_stay_in_their_vlan() {
        let (own, peer) = (own(), peer());
        let (mut question, mut answer) = ([0; 128], [0; 128]);
        let untagged = peer.addresses[2].ip;
        let len = own.ask(&own.addresses[0], untagged, &mut question).unwrap();
        assert_eq!(peer.hear(&question[..len], &mut answer).unwrap().reply, None);
    }

    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..200);
        let real = (
            0..4usize,
            any::<bool>(),
            proptest::collection::vec((0..120usize, any::<u8>()), 0..6),
            0..130usize,
        );
        let spoilt = real.prop_map(|(at, asks, changes, len)| {
            let (own, peer) = (own(), peer());
            let mut frame = vec![0; 128];
            let written = match asks {
                true => peer.ask(&peer.addresses[at], own.addresses[at].ip, &mut frame),
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
        prop_oneof![bytes, spoilt]
    }

    proptest! {
        /// Whatever comes from the network is heard without a panic, and no answer is longer than its room.
        #[test]
        fn any_bytes_are_heard(frame in frames()) {
            let own = own();
            let mut out = [0; 2048];
            own.is_roce(&frame);
            if let Some(Heard { reply: Some(len), .. }) = own.hear(&frame, &mut out) {
                prop_assert!((SHORTEST..=out.len()).contains(&len));
                prop_assert_eq!(&out[6..12], &own.mac.0[..]);
            }
        }
    }
}
