//! A whole received frame: parsed and checked once, with its fields by name.

mod plain;
mod view;

use core::net::IpAddr;

pub use view::PacketView;

use crate::{
    Bth, Ecn, EmitError, EthernetHeader, ExtHeaders, IcrcError, Ipv4Header, Ipv6Header, OpcodeInfo,
    ParseError, Payload, UdpHeader, VlanTag,
    ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    icrc::{self, Sums},
};

const PROTOCOL_UDP: u8 = 17;

/// The IP header of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpHeader {
    /// IPv4.
    V4(Ipv4Header),
    /// IPv6.
    V6(Ipv6Header),
}

impl IpHeader {
    /// Length on the wire, in bytes.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4Header::LEN,
            Self::V6(_) => Ipv6Header::LEN,
        }
    }

    /// Source address.
    #[inline]
    #[must_use]
    pub const fn src(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.src),
            Self::V6(ip) => IpAddr::V6(ip.src),
        }
    }

    /// Destination address.
    #[inline]
    #[must_use]
    pub const fn dst(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.dst),
            Self::V6(ip) => IpAddr::V6(ip.dst),
        }
    }

    /// TOS or traffic class: DSCP and ECN.
    #[inline]
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(ip) => ip.tos,
            Self::V6(ip) => ip.traffic_class,
        }
    }

    /// The ECN codepoint.
    #[inline]
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_traffic_class(self.traffic_class())
    }

    /// TTL or hop limit.
    #[inline]
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        match self {
            Self::V4(ip) => ip.ttl,
            Self::V6(ip) => ip.hop_limit,
        }
    }

    fn write(&self, out: &mut [u8]) {
        match self {
            Self::V4(ip) => ip.write(out),
            Self::V6(ip) => ip.write(out),
        }
    }
}

/// A RoCEv2 frame. The headers are values and may be changed before [`emit`](Self::emit); payload
/// and trailer are borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Ethernet header; its EtherType is that of the tag in a tagged frame.
    pub ethernet: EthernetHeader,
    /// 802.1Q tag.
    pub vlan: Option<VlanTag>,
    /// IP header.
    pub ip: IpHeader,
    /// UDP header.
    pub udp: UdpHeader,
    /// Base transport header.
    pub bth: Bth,
    /// Row of the opcode table.
    pub info: &'static OpcodeInfo,
    /// Extended headers of the opcode.
    pub ext: ExtHeaders,
    /// Payload without pad.
    pub payload: Payload<'a>,
    /// Pad bytes; the first [`Bth::pad`] count, the others are 0.
    pub pad: [u8; 3],
    /// The ICRC as received.
    pub icrc: u32,
    /// Bytes after the IP packet in the frame: Ethernet padding.
    pub trailer: Payload<'a>,
    /// IP header to last pad byte, as received.
    covered: Payload<'a>,
}

impl<'a> Packet<'a> {
    /// Parses a frame that starts with its Ethernet header and has no FCS. Its bytes are `first`
    /// followed by `second`, which may be empty. All headers must be in `first`; payload, pad, ICRC
    /// and trailer may be in either slice.
    ///
    /// Checked: lengths, the IPv4 header checksum, port, BTH version, opcode. Not checked: the ICRC
    /// (see [`icrc_valid`](Self::icrc_valid)), and the UDP checksum, because the ICRC is stronger.
    /// Whether the payload length fits the opcode depends on the path MTU; the receiver checks it
    /// with [`PayloadRule`](crate::PayloadRule).
    ///
    /// # Errors
    /// The [`ParseError`] of the first field at fault.
    pub fn parse(first: &'a [u8], second: &'a [u8]) -> Result<Self, ParseError> {
        let (packet, trailer) = PacketView::parse_whole(first, second)?;
        Self::new(&packet, trailer)
    }

    fn new(packet: &PacketView<'a>, trailer: Payload<'a>) -> Result<Self, ParseError> {
        Ok(Self {
            ethernet: packet.ethernet(),
            vlan: packet.vlan(),
            ip: packet.ip(),
            udp: packet.udp(),
            bth: packet.bth(),
            info: packet.info,
            ext: ExtHeaders::parse(packet.info.headers, packet.ext)?,
            payload: packet.payload,
            pad: packet.pad(),
            icrc: packet.icrc,
            trailer,
            covered: packet.covered,
        })
    }

    /// Checks the ICRC against the bytes as received; later changes of fields do not count. Under a
    /// fuzzer every ICRC and every IPv4 header checksum is accepted, so that the fuzzer gets past
    /// them.
    ///
    /// # Errors
    /// The computed ICRC and the one in the packet, if they differ.
    #[inline]
    pub fn verify_icrc(&self) -> Result<(), IcrcError> {
        icrc::verify(icrc::icrc(self.covered), self.icrc)
    }

    /// Returns true if [`verify_icrc`](Self::verify_icrc) succeeds.
    #[inline]
    #[must_use]
    pub fn icrc_valid(&self) -> bool {
        self.verify_icrc().is_ok()
    }

    /// The ICRC computed from the bytes as received.
    #[inline]
    #[must_use]
    pub fn computed_icrc(&self) -> u32 {
        icrc::icrc(self.covered)
    }

    /// The ICRC computed from the bytes as received, and its parts.
    #[inline]
    #[must_use]
    pub fn sums(&self) -> Sums {
        icrc::sums(self.covered)
    }

    /// Bytes of the frame, trailer included.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        let vlan = if self.vlan.is_some() { VlanTag::LEN } else { 0 };
        EthernetHeader::LEN
            + vlan
            + self.ip.header_len()
            + UdpHeader::LEN
            + Bth::LEN
            + ExtHeaders::len(self.ext.present())
            + self.payload.len()
            + usize::from(self.bth.pad)
            + icrc::LEN
            + self.trailer.len()
    }

    /// Writes the frame from its fields to the front of `out`. Returns its length. Nothing is
    /// computed: lengths, checksums and ICRC are written as the fields say, so a parsed packet
    /// gives back the bytes it was parsed from.
    ///
    /// # Errors
    /// If `out` is too short, the opcode unknown, its extended headers are not exactly those that
    /// are `Some`, or the pad is above 3.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let info = self.bth.opcode.info();
        let headers = info.ok_or(EmitError::Opcode(self.bth.opcode.0))?.headers;
        let pad = self.pad.get(..usize::from(self.bth.pad));
        let pad = pad.ok_or(EmitError::Pad(self.bth.pad))?;
        let need = self.frame_len();
        if out.len() < need {
            return Err(EmitError::BufferTooShort { need, have: out.len() });
        }
        if headers != self.ext.present() {
            return Err(EmitError::Headers);
        }

        let mut at = 0;
        self.ethernet.write(out);
        at += EthernetHeader::LEN;
        if let Some(tag) = self.vlan {
            let inner = match self.ip {
                IpHeader::V4(_) => ETHERTYPE_IPV4,
                IpHeader::V6(_) => ETHERTYPE_IPV6,
            };
            out[at..at + 2].copy_from_slice(&tag.tci().to_be_bytes());
            out[at + 2..at + 4].copy_from_slice(&inner.to_be_bytes());
            at += VlanTag::LEN;
        }
        self.ip.write(&mut out[at..]);
        at += self.ip.header_len();
        self.udp.write(&mut out[at..]);
        at += UdpHeader::LEN;
        self.bth.write(&mut out[at..]);
        at += Bth::LEN;
        at += self.ext.write(headers, &mut out[at..])?;
        self.payload.copy_to(&mut out[at..]);
        at += self.payload.len();
        out[at..at + pad.len()].copy_from_slice(pad);
        at += pad.len();
        out[at..at + icrc::LEN].copy_from_slice(&self.icrc.to_le_bytes());
        at += icrc::LEN;
        self.trailer.copy_to(&mut out[at..]);
        Ok(at + self.trailer.len())
    }
}

impl<'a> PacketView<'a> {
    /// Parses a frame of the most frequent kind: untagged, IPv4 without options, the packet in
    /// `frame`. `None`: another frame, or one with an error, for [`parse_any`](Self::parse_any).
    #[inline(always)] // The parts are written where the caller wants them.
    #[must_use]
    pub fn parse_plain(frame: &'a [u8]) -> Option<Self> {
        plain::find(frame).map(|(packet, _)| packet)
    }

    /// As [`parse`](Self::parse), without looking for the most frequent kind first.
    ///
    /// # Errors
    /// The [`ParseError`] of the first field at fault.
    pub fn parse_any(first: &'a [u8], second: &'a [u8]) -> Result<Self, ParseError> {
        view::find(first, second).map(|(packet, _)| packet)
    }

    /// Parses a frame; see [`Packet::parse`].
    ///
    /// # Errors
    /// The [`ParseError`] of the first field at fault.
    pub fn parse(first: &'a [u8], second: &'a [u8]) -> Result<Self, ParseError> {
        Self::parse_whole(first, second).map(|(packet, _)| packet)
    }

    /// [`parse`](Self::parse), with the bytes after the IP packet.
    fn parse_whole(first: &'a [u8], second: &'a [u8]) -> Result<(Self, Payload<'a>), ParseError> {
        match plain::find(first) {
            Some((packet, trailer)) => Ok((packet, Payload { first: trailer, second })),
            None => view::find(first, second),
        }
    }
}

/// Up to `N` bytes, followed by zeros.
#[inline]
fn few<'a, const N: usize>(bytes: impl Iterator<Item = &'a u8>) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(bytes) {
        *to = *from;
    }
    out
}
