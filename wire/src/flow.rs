//! Header template of a flow, prepared once, and the sealing of frames with it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    EthernetHeader, Ipv4Header, Ipv6Header, MacAddr, ROCE_PORT, UdpHeader, VlanTag,
    ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN},
    icrc, ipv4,
};

const PROTOCOL_UDP: u8 = 17;
/// Header lengths in the type of the length fields.
const IPV4_LEN: u16 = 20;
const IPV6_LEN: u16 = 40;
const _: () = assert!(IPV4_LEN as usize == Ipv4Header::LEN && IPV6_LEN as usize == Ipv6Header::LEN);

/// Addresses and header fields of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowSpec {
    /// Ethernet address of the next hop.
    pub dst_mac: MacAddr,
    /// Ethernet address of the local interface.
    pub src_mac: MacAddr,
    /// 802.1Q tag, if frames are tagged.
    pub vlan: Option<VlanTag>,
    /// IP addresses.
    pub addresses: IpAddresses,
    /// IPv4 TOS or IPv6 traffic class: DSCP in the upper six bits, [`Ecn`](crate::Ecn) in the lower
    /// two.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; unused with IPv4.
    pub flow_label: u32,
    /// UDP source port.
    pub udp_source_port: u16,
    /// A port may combine packets of the flow into super-frames: the peer and every link on the
    /// path accept them, or cut them again.
    pub super_frames: bool,
}

/// Source and destination of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpAddresses {
    /// IPv4.
    V4 {
        /// Source.
        src: Ipv4Addr,
        /// Destination.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Source.
        src: Ipv6Addr,
        /// Destination.
        dst: Ipv6Addr,
    },
}

impl IpAddresses {
    /// Source.
    #[must_use]
    pub const fn src(&self) -> IpAddr {
        match *self {
            Self::V4 { src, .. } => IpAddr::V4(src),
            Self::V6 { src, .. } => IpAddr::V6(src),
        }
    }

    /// Destination.
    #[must_use]
    pub const fn dst(&self) -> IpAddr {
        match *self {
            Self::V4 { dst, .. } => IpAddr::V4(dst),
            Self::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }
}

/// Destination kind of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Audience {
    /// Another host.
    Host,
    /// This host (loopback): source and destination Ethernet address are equal, and no link returns
    /// such a frame.
    Own,
    /// The members of a multicast group.
    Group,
}

impl FlowSpec {
    /// An untagged flow of best effort with hop limit 64 and UDP source port 0xc000, without
    /// super-frames.
    #[must_use]
    pub const fn new(dst_mac: MacAddr, src_mac: MacAddr, addresses: IpAddresses) -> Self {
        Self {
            dst_mac,
            src_mac,
            vlan: None,
            addresses,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
            super_frames: false,
        }
    }

    /// Destination kind of the flow.
    #[must_use]
    pub fn audience(&self) -> Audience {
        let is_group = match self.addresses {
            IpAddresses::V4 { dst, .. } => dst.is_multicast(),
            IpAddresses::V6 { dst, .. } => dst.is_multicast(),
        };
        match (is_group, self.dst_mac == self.src_mac) {
            (true, _) => Audience::Group,
            (false, true) => Audience::Own,
            (false, false) => Audience::Host,
        }
    }
}

const MAX_LEN: usize = EthernetHeader::LEN + VlanTag::LEN + Ipv6Header::LEN + UdpHeader::LEN;

/// Length of the headers of an untagged IPv4 flow.
const PLAIN_LEN: usize = EthernetHeader::LEN + Ipv4Header::LEN + UdpHeader::LEN;

/// Ethernet, IP and UDP headers of a flow, as a template to write in front of transport bytes.
#[derive(Clone, Copy, Debug)]
pub struct FlowHeader {
    spec: FlowSpec,
    audience: Audience,
    /// The headers with lengths, identification and checksum set to 0.
    template: [u8; MAX_LEN],
    /// Bytes of the headers.
    len: u8,
    /// Bytes of Ethernet header and tag.
    ip_at: u8,
    /// IPv4: sum of the 16-bit words of the template's header.
    ip_sum: u32,
}

impl FlowHeader {
    /// Maximum of [`len`](Self::len): Ethernet, tag, IPv6, UDP.
    pub const MAX_LEN: usize = MAX_LEN;

    /// Prepares the headers of a flow.
    #[must_use]
    pub fn new(spec: &FlowSpec) -> Self {
        let mut template = [0; MAX_LEN];
        let ip_at = write_ethernet(spec, &mut template);
        let (ip_len, ip_sum) = write_ip(spec, &mut template[ip_at..]);
        let udp = UdpHeader {
            src_port: spec.udp_source_port,
            dst_port: ROCE_PORT,
            length: 0,
            checksum: 0,
        };
        udp.write(&mut template[ip_at + ip_len..]);
        let audience = spec.audience();
        Self {
            spec: *spec,
            audience,
            template,
            len: u8::try_from(ip_at + ip_len + UdpHeader::LEN).expect("at most 66"),
            ip_at: u8::try_from(ip_at).expect("at most 18"),
            ip_sum,
        }
    }

    /// The specification that the template was made from.
    #[must_use]
    pub const fn spec(&self) -> &FlowSpec {
        &self.spec
    }

    /// Destination kind of the flow.
    #[inline]
    #[must_use]
    pub const fn audience(&self) -> Audience {
        self.audience
    }

    /// Returns the same flow with other Ethernet addresses.
    #[inline]
    #[must_use]
    pub fn between(mut self, dst_mac: MacAddr, src_mac: MacAddr) -> Self {
        (self.spec.dst_mac, self.spec.src_mac) = (dst_mac, src_mac);
        self.audience = self.spec.audience();
        self.template[..6].copy_from_slice(&dst_mac.0);
        self.template[6..12].copy_from_slice(&src_mac.0);
        self
    }

    /// Returns the same flow from another UDP source port.
    #[must_use]
    pub fn with_source_port(mut self, port: u16) -> Self {
        let udp = self.len() - UdpHeader::LEN;
        self.spec.udp_source_port = port;
        self.template[udp..udp + 2].copy_from_slice(&port.to_be_bytes());
        self
    }

    /// Length of the headers in front of the BTH, in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // headers are never empty
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Length of a sealed frame with `transport_len` transport bytes.
    #[inline]
    #[must_use]
    pub const fn frame_len(&self, transport_len: usize) -> usize {
        self.len() + transport_len + icrc::LEN
    }

    /// Completes a frame. The caller has written BTH, extended headers, payload and pad at
    /// `frame[self.len()..self.len() + transport_len]`; this function writes the lower headers in
    /// front, with lengths, `ip_id` (IPv4), DF and the IP checksum, and appends the ICRC. The UDP
    /// checksum is 0. Returns the length of the frame, [`frame_len`](Self::frame_len).
    ///
    /// # Panics
    /// If `frame` is shorter than that, `transport_len` is shorter than a BTH, or the packet
    /// exceeds the 65535 bytes that IP can carry.
    #[inline]
    pub fn seal(&self, frame: &mut [u8], transport_len: usize, ip_id: u16) -> usize {
        match self.len() {
            // With constant offsets, most headers need neither checks nor calls.
            PLAIN_LEN => self.seal_at(frame, PLAIN_LEN, EthernetHeader::LEN, transport_len, ip_id),
            len => self.seal_at(frame, len, usize::from(self.ip_at), transport_len, ip_id),
        }
    }

    /// [`seal`](Self::seal), with the length of the headers and the offset of the IP header.
    #[inline(always)] // The compiler knows both in one of the two calls.
    fn seal_at(
        &self,
        frame: &mut [u8],
        len: usize,
        ip_at: usize,
        transport_len: usize,
        ip_id: u16,
    ) -> usize {
        let end = len + transport_len;
        let (covered, rest) = frame.split_at_mut(end);
        let ip_len =
            u16::try_from(end + icrc::LEN - ip_at).expect("an IP packet has at most 65535 bytes");
        self.write_headers(&mut covered[..len], ip_at, ip_len, ip_id);
        let crc = icrc::icrc_in_place(covered, ip_at);
        rest[..icrc::LEN].copy_from_slice(&crc.to_le_bytes());
        end + icrc::LEN
    }

    /// Writes the headers to `head`, with the IP header at `ip_at`, of a packet of `ip_len` bytes.
    #[inline(always)] // As `seal_at`.
    fn write_headers(&self, head: &mut [u8], ip_at: usize, ip_len: u16, ip_id: u16) {
        let len = head.len();
        head.copy_from_slice(&self.template[..len]);
        let (ip, udp) = head[ip_at..].split_at_mut(len - ip_at - UdpHeader::LEN);
        let udp_len = match self.spec.addresses {
            IpAddresses::V4 { .. } => {
                let sum = self.ip_sum + u32::from(ip_len) + u32::from(ip_id);
                ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
                ip[4..6].copy_from_slice(&ip_id.to_be_bytes());
                ip[10..12].copy_from_slice(&ipv4::fold_checksum(sum).to_be_bytes());
                ip_len - IPV4_LEN
            }
            IpAddresses::V6 { .. } => {
                ip[4..6].copy_from_slice(&(ip_len - IPV6_LEN).to_be_bytes());
                ip_len - IPV6_LEN
            }
        };
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    }
}

/// Writes Ethernet header and tag; returns their length.
fn write_ethernet(spec: &FlowSpec, out: &mut [u8]) -> usize {
    let ip_type = match spec.addresses {
        IpAddresses::V4 { .. } => ETHERTYPE_IPV4,
        IpAddresses::V6 { .. } => ETHERTYPE_IPV6,
    };
    let ethernet = EthernetHeader {
        dst: spec.dst_mac,
        src: spec.src_mac,
        ethertype: spec.vlan.map_or(ip_type, |_| ETHERTYPE_VLAN),
    };
    ethernet.write(out);
    let Some(tag) = spec.vlan else {
        return EthernetHeader::LEN;
    };
    out[14..16].copy_from_slice(&tag.tci().to_be_bytes());
    out[16..18].copy_from_slice(&ip_type.to_be_bytes());
    EthernetHeader::LEN + VlanTag::LEN
}

/// Writes the IP header without the fields that differ per packet. Returns its length and, for
/// IPv4, the sum of its words.
fn write_ip(spec: &FlowSpec, out: &mut [u8]) -> (usize, u32) {
    match spec.addresses {
        IpAddresses::V4 { src, dst } => {
            let ip = Ipv4Header {
                tos: spec.traffic_class,
                total_length: 0,
                identification: 0,
                reserved_flag: false,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: spec.hop_limit,
                protocol: PROTOCOL_UDP,
                checksum: 0,
                src,
                dst,
            };
            ip.write(out);
            (Ipv4Header::LEN, ipv4::sum_words(&ip.to_bytes()))
        }
        IpAddresses::V6 { src, dst } => {
            let ip = Ipv6Header {
                traffic_class: spec.traffic_class,
                flow_label: spec.flow_label,
                payload_length: 0,
                next_header: PROTOCOL_UDP,
                hop_limit: spec.hop_limit,
                src,
                dst,
            };
            ip.write(out);
            (Ipv6Header::LEN, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::{Bth, Packet};

    fn spec() -> FlowSpec {
        let addresses = IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        FlowSpec { traffic_class: 2, ..FlowSpec::new(MacAddr([1; 6]), MacAddr([2; 6]), addresses) }
    }

    #[test]
    fn a_flow_between_other_ethernet_addresses_equals_a_new_one() {
        let flow = FlowHeader::new(&spec());
        assert_eq!(flow.audience(), Audience::Host);
        let own = spec().src_mac;
        for (dst, audience) in [(MacAddr([7; 6]), Audience::Host), (own, Audience::Own)] {
            let moved = flow.between(dst, own);
            let made = FlowHeader::new(&FlowSpec { dst_mac: dst, ..spec() });
            assert_eq!((moved.template, moved.spec()), (made.template, made.spec()));
            assert_eq!((moved.audience(), made.audience()), (audience, audience));
        }
        let group = IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [239, 1, 2, 3].into() };
        let group = FlowSpec { addresses: group, ..spec() };
        assert_eq!(FlowHeader::new(&group).audience(), Audience::Group);
    }

    #[test]
    #[should_panic(expected = "mid > len")]
    fn a_frame_without_room_for_the_headers_panics() {
        FlowHeader::new(&spec()).seal(&mut [0; 50], Bth::LEN, 0);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_frame_without_room_for_the_icrc_panics() {
        FlowHeader::new(&spec()).seal(&mut [0; 42 + 12 + 3], Bth::LEN, 0);
    }

    #[test]
    #[should_panic(expected = "at most 65535")]
    fn a_packet_too_long_for_ip_panics() {
        FlowHeader::new(&spec()).seal(&mut [0; 70_000], 65_504, 0);
    }

    #[test]
    fn the_longest_packet_is_valid() {
        let flow = FlowHeader::new(&spec());
        let mut frame = std::vec![0; 70_000];
        frame[flow.len()] = crate::Opcode::RC_SEND_ONLY.0;
        let len = flow.seal(&mut frame, 65_503, 0);
        let packet = Packet::parse(&frame[..len], &[]).unwrap();
        assert!(packet.icrc_valid());
        assert_eq!(flow.spec(), &spec());
    }
}
