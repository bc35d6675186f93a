//! A whole received frame: parsed and checked once, with its fields by name.

mod plain;

use core::net::IpAddr;

use plain::Plain;

use crate::{
    Bth, Ecn, EmitError, EthernetHeader, ExtHeaders, IcrcError, Ipv4Header, Ipv6Header, OpcodeInfo,
    ParseError, Payload, ROCE_PORT, UdpHeader, VlanTag,
    ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN},
    icrc::{self, Sums},
    ipv4,
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

    /// Length of header and payload in bytes, according to the header.
    const fn packet_len(&self) -> usize {
        match self {
            Self::V4(ip) => ip.total_length as usize,
            Self::V6(ip) => Ipv6Header::LEN + ip.payload_length as usize,
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
        match Plain::find(first) {
            Some(plain) => plain.packet(second),
            None => Self::parse_any(first, second),
        }
    }

    /// [`parse`](Self::parse) of any frame. It names the error.
    #[inline(never)] // `parse` needs fewer registers without it.
    fn parse_any(first: &'a [u8], second: &'a [u8]) -> Result<Self, ParseError> {
        let whole = Payload { first, second };
        let lower = Lower::parse(whole)?;
        // The trailer is excluded from here on: no header can extend into it.
        let frame = whole.range(0, lower.end);

        let at = lower.transport_at;
        let bth = Bth::parse(header::<{ Bth::LEN }>(frame, at, "BTH")?)?;
        if bth.version != 0 {
            return Err(ParseError::BthVersion(bth.version));
        }
        let info = bth.opcode.info().ok_or(ParseError::Opcode(bth.opcode.0))?;
        let fixed = Bth::LEN + info.headers_len + icrc::LEN;
        let transport_len = lower.end - at;
        let Some(padded_len) = transport_len.checked_sub(fixed) else {
            return Err(ParseError::Truncated {
                what: info.name,
                need: fixed,
                have: transport_len,
            });
        };
        let at = at + Bth::LEN;
        let ext = headers(frame, at, info.name, info.headers_len)?;
        let ext = ExtHeaders::parse(info.headers, ext)?;

        let pad_len = usize::from(bth.pad);
        let Some(payload_len) = padded_len.checked_sub(pad_len) else {
            return Err(ParseError::Pad { pad: bth.pad, have: padded_len });
        };
        let payload_at = at + info.headers_len;
        let pad_at = payload_at + payload_len;
        let parts = Parts::cut(whole, [lower.ip_at, payload_at, pad_at, lower.end]);

        Ok(Self {
            ethernet: lower.ethernet,
            vlan: lower.vlan,
            ip: lower.ip,
            udp: lower.udp,
            bth,
            info,
            ext,
            payload: parts.payload,
            pad: parts.pad,
            icrc: parts.icrc,
            trailer: parts.trailer,
            covered: parts.covered,
        })
    }

    /// The headers, with neither payload nor the bytes that the ICRC covers.
    #[must_use]
    pub fn headers_only(&self) -> Packet<'static> {
        let none = Payload { first: &[], second: &[] };
        Packet { payload: none, trailer: none, covered: none, ..*self }
    }

    /// These headers with another payload.
    #[must_use]
    pub fn with_payload<'b>(&'b self, payload: Payload<'b>) -> Packet<'b> {
        Packet { payload, ..*self }
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

/// The parts of a frame that are bytes, not headers.
struct Parts<'a> {
    /// IP header to last pad byte.
    covered: Payload<'a>,
    payload: Payload<'a>,
    pad: [u8; 3],
    icrc: u32,
    trailer: Payload<'a>,
}

impl<'a> Parts<'a> {
    /// Cuts `frame` at the offsets of IP header, payload and pad and at the end of the ICRC, which
    /// are in order.
    #[inline]
    fn cut(frame: Payload<'a>, at: [usize; 4]) -> Self {
        let [ip, payload, pad, end] = at;
        let Some((bytes, trailer)) = frame.first.split_at_checked(end) else {
            return Self::cut_split(frame, at);
        };
        let Some((before, &icrc)) = bytes.split_last_chunk() else {
            return Self::cut_split(frame, at);
        };
        let one = |first| Payload { first, second: &[] };
        Self {
            covered: one(&before[ip..]),
            payload: one(&before[payload..pad]),
            pad: if pad == before.len() { [0; 3] } else { few(before[pad..].iter()) },
            icrc: u32::from_le_bytes(icrc),
            trailer: Payload { first: trailer, second: frame.second },
        }
    }

    /// As [`cut`](Self::cut), of a frame whose packet is in both slices.
    fn cut_split(frame: Payload<'a>, [ip, payload, pad, end]: [usize; 4]) -> Self {
        let icrc = end - icrc::LEN;
        let bytes = |part: Payload<'a>| part.first.iter().chain(part.second);
        Self {
            covered: frame.range(ip, icrc),
            payload: frame.range(payload, pad),
            pad: few(bytes(frame.range(pad, icrc))),
            icrc: u32::from_le_bytes(few(bytes(frame.range(icrc, end)))),
            trailer: frame.split_at(end).1,
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

/// The layers below the transport.
struct Lower {
    ethernet: EthernetHeader,
    vlan: Option<VlanTag>,
    ip: IpHeader,
    udp: UdpHeader,
    ip_at: usize,
    transport_at: usize,
    /// Offset after the ICRC, where the IP packet ends.
    end: usize,
}

impl Lower {
    #[inline]
    fn parse(frame: Payload<'_>) -> Result<Self, ParseError> {
        let ethernet = header::<{ EthernetHeader::LEN }>(frame, 0, "Ethernet header")?;
        let ethernet = EthernetHeader::parse(ethernet)?;
        let (vlan, ethertype, ip_at) = if ethernet.ethertype == ETHERTYPE_VLAN {
            let bytes = header::<{ VlanTag::LEN }>(frame, EthernetHeader::LEN, "802.1Q tag")?;
            let tag = VlanTag::from_tci(u16::from_be_bytes([bytes[0], bytes[1]]));
            let inner = u16::from_be_bytes([bytes[2], bytes[3]]);
            (Some(tag), inner, EthernetHeader::LEN + VlanTag::LEN)
        } else {
            (None, ethernet.ethertype, EthernetHeader::LEN)
        };
        let ip = match ethertype {
            ETHERTYPE_IPV4 => IpHeader::V4(parse_v4(header(frame, ip_at, "IPv4 header")?)?),
            ETHERTYPE_IPV6 => IpHeader::V6(parse_v6(header(frame, ip_at, "IPv6 header")?)?),
            other => return Err(ParseError::EtherType(other)),
        };

        let udp_at = ip_at + ip.header_len();
        let udp = UdpHeader::parse(header::<{ UdpHeader::LEN }>(frame, udp_at, "UDP header")?)?;
        if udp.dst_port != ROCE_PORT {
            return Err(ParseError::NotRoce(udp.dst_port));
        }
        let stated = ip.packet_len();
        let have = frame.len() - ip_at;
        if stated > have || stated < ip.header_len() + UdpHeader::LEN {
            return Err(ParseError::IpLength { stated, have });
        }
        let end = ip_at + stated;
        let (stated, have) = (usize::from(udp.length), end - udp_at);
        if stated != have {
            return Err(ParseError::UdpLength { stated, have });
        }
        Ok(Self { ethernet, vlan, ip, udp, ip_at, transport_at: udp_at + UdpHeader::LEN, end })
    }
}

#[inline]
fn parse_v4(bytes: &[u8; Ipv4Header::LEN]) -> Result<Ipv4Header, ParseError> {
    let ip = Ipv4Header::parse(bytes)?;
    // With the checksum included, the sum is 0 for both one's complement forms of zero.
    let sum = ipv4::fold_checksum(ipv4::sum_words(bytes));
    if sum != 0 && !cfg!(fuzzing) {
        let (expected, found) = (ip.computed_checksum(), ip.checksum);
        return Err(ParseError::IpChecksum { expected, found });
    }
    if ip.is_fragment() {
        return Err(ParseError::Fragment);
    }
    if ip.protocol != PROTOCOL_UDP {
        return Err(ParseError::NotUdp(ip.protocol));
    }
    Ok(ip)
}

#[inline]
fn parse_v6(bytes: &[u8; Ipv6Header::LEN]) -> Result<Ipv6Header, ParseError> {
    let ip = Ipv6Header::parse(bytes)?;
    if ip.next_header != PROTOCOL_UDP {
        return Err(ParseError::NotUdp(ip.next_header));
    }
    Ok(ip)
}

/// The header `what` at offset `at`; it must be in the first slice.
#[inline]
fn header<'a, const LEN: usize>(
    frame: Payload<'a>,
    at: usize,
    what: &'static str,
) -> Result<&'a [u8; LEN], ParseError> {
    let header = frame.first.get(at..).and_then(<[u8]>::first_chunk);
    header.ok_or_else(|| missing(frame, at, what, LEN))
}

/// The `len` bytes of the headers `what` at offset `at`; they must be in the first slice.
#[inline]
fn headers<'a>(
    frame: Payload<'a>,
    at: usize,
    what: &'static str,
    len: usize,
) -> Result<&'a [u8], ParseError> {
    frame.first.get(at..at + len).ok_or_else(|| missing(frame, at, what, len))
}

/// Why the first slice lacks the `need` bytes of `what` at offset `at`.
#[cold]
fn missing(frame: Payload<'_>, at: usize, what: &'static str, need: usize) -> ParseError {
    if frame.len() < at + need {
        let have = frame.len().saturating_sub(at);
        return ParseError::Truncated { what, need, have };
    }
    ParseError::HeadersSplit { need: at + need, have: frame.first.len() }
}
