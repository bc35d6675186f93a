//! A received frame whose parts are found and checked, with its fields still in its bytes.

use core::fmt;

use super::{IpHeader, PROTOCOL_UDP, few};
use crate::{
    Bth, EthernetHeader, ExtView, Ipv4Header, Ipv6Header, OpcodeInfo, ParseError, Payload,
    ROCE_PORT, UdpHeader, VlanTag,
    ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN},
    icrc, ipv4,
};

/// Bytes of UDP header and BTH, which follow each other.
pub(super) const TRANSPORT: usize = UdpHeader::LEN + Bth::LEN;

/// The IP header of either version, in its bytes.
#[derive(Clone, Copy)]
pub(super) enum IpBytes<'a> {
    V4(&'a [u8; Ipv4Header::LEN]),
    V6(&'a [u8; Ipv6Header::LEN]),
}

/// A received RoCEv2 frame: where its parts are. A header is read from the bytes when it is asked
/// for, so that a receiver pays for the fields that it uses. [`Packet`](super::Packet) has all
/// fields as values.
#[derive(Clone, Copy)]
pub struct PacketView<'a> {
    pub(super) ethernet: &'a [u8; EthernetHeader::LEN],
    /// What follows the Ethernet header in a tagged frame.
    pub(super) vlan: Option<&'a [u8; VlanTag::LEN]>,
    pub(super) ip: IpBytes<'a>,
    pub(super) transport: &'a [u8; TRANSPORT],
    /// The extended headers.
    pub(super) ext: &'a [u8],
    /// Row of the opcode table.
    pub info: &'static OpcodeInfo,
    /// Payload without pad.
    pub payload: Payload<'a>,
    /// IP header to last pad byte.
    pub(super) covered: Payload<'a>,
    /// The ICRC as received.
    pub icrc: u32,
}

impl<'a> PacketView<'a> {
    /// The Ethernet header; its EtherType is that of the tag in a tagged frame.
    #[inline(always)] // As `Bth::from`.
    #[must_use]
    pub fn ethernet(&self) -> EthernetHeader {
        EthernetHeader::from_bytes(self.ethernet)
    }

    /// The bytes of the Ethernet source address, in the upper bytes of a number.
    #[inline(always)] // As `Bth::from`.
    #[must_use]
    pub fn source_mac_bits(&self) -> u64 {
        let address_and_type = self.ethernet.last_chunk().expect("more than 8 bytes");
        u64::from_be_bytes(*address_and_type) & !0xffff
    }

    /// The 802.1Q tag.
    #[inline]
    #[must_use]
    pub fn vlan(&self) -> Option<VlanTag> {
        self.vlan.map(|tag| VlanTag::from_tci(u16::from_be_bytes([tag[0], tag[1]])))
    }

    /// The IP header.
    #[inline(always)] // As `Bth::from`.
    #[must_use]
    pub fn ip(&self) -> IpHeader {
        match self.ip {
            IpBytes::V4(bytes) => IpHeader::V4(Ipv4Header::from_bytes(bytes)),
            IpBytes::V6(bytes) => IpHeader::V6(Ipv6Header::from_bytes(bytes)),
        }
    }

    /// The UDP header.
    #[inline(always)] // As `Bth::from`.
    #[must_use]
    pub fn udp(&self) -> UdpHeader {
        UdpHeader::from_bytes(self.transport.first_chunk().expect("UDP is in front of the BTH"))
    }

    /// The base transport header.
    #[inline(always)] // As `Bth::from`.
    #[must_use]
    pub fn bth(&self) -> Bth {
        Bth::from_bytes(self.transport.last_chunk().expect("the BTH is behind UDP"))
    }

    /// The extended headers of the opcode.
    #[inline(always)] // As `Bth::from`.
    #[must_use]
    pub fn ext(&self) -> ExtView<'a> {
        ExtView::new(self.info, self.ext)
    }

    /// Pad bytes; the first [`Bth::pad`] count, the others are 0.
    pub(super) fn pad(&self) -> [u8; 3] {
        let len = self.covered.len();
        let pad = self.covered.range(len - usize::from(self.bth().pad), len);
        few(pad.slices().into_iter().flatten())
    }

    /// Returns true if the ICRC is right; see [`Packet::verify_icrc`](super::Packet::verify_icrc).
    #[inline]
    #[must_use]
    pub fn icrc_valid(&self) -> bool {
        icrc::verify(icrc::icrc(self.covered), self.icrc).is_ok()
    }

    /// Length in bytes of the frame to the end of the ICRC.
    #[must_use]
    pub fn len_to_icrc(&self) -> usize {
        let tag = if self.vlan.is_some() { VlanTag::LEN } else { 0 };
        EthernetHeader::LEN + tag + self.covered.len() + icrc::LEN
    }

    /// Copies the frame, to the end of the ICRC, to the front of `out`. Returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`len_to_icrc`](Self::len_to_icrc).
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let icrc = self.icrc.to_le_bytes();
        let tag = self.vlan.map_or(&[][..], |tag| tag);
        let [first, second] = self.covered.slices();
        let mut at = 0;
        for part in [&self.ethernet[..], tag, first, second, &icrc] {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        at
    }
}

impl fmt::Debug for PacketView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketView")
            .field("name", &self.info.name)
            .field("ip", &self.ip())
            .field("bth", &self.bth())
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// The packet of a frame of any kind, and the bytes after it. It names the error.
#[inline(never)] // The callers need fewer registers without it.
pub(super) fn find<'a>(
    first: &'a [u8],
    second: &'a [u8],
) -> Result<(PacketView<'a>, Payload<'a>), ParseError> {
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
        return Err(ParseError::Truncated { what: info.name, need: fixed, have: transport_len });
    };
    let at = at + Bth::LEN;
    let ext = headers(frame, at, info.name, info.headers_len)?;

    let pad_len = usize::from(bth.pad);
    let Some(payload_len) = padded_len.checked_sub(pad_len) else {
        return Err(ParseError::Pad { pad: bth.pad, have: padded_len });
    };
    let payload_at = at + info.headers_len;
    let pad_at = payload_at + payload_len;
    let icrc_at = lower.end - icrc::LEN;
    let icrc = frame.range(icrc_at, lower.end);
    let packet = PacketView {
        ethernet: lower.ethernet,
        vlan: lower.vlan,
        ip: lower.ip,
        transport: header(frame, lower.transport_at - UdpHeader::LEN, "BTH")?,
        ext,
        info,
        payload: frame.range(payload_at, pad_at),
        covered: frame.range(lower.ip_at, icrc_at),
        icrc: u32::from_le_bytes(few(icrc.slices().into_iter().flatten())),
    };
    Ok((packet, whole.split_at(lower.end).1))
}

/// The layers below the transport.
struct Lower<'a> {
    ethernet: &'a [u8; EthernetHeader::LEN],
    vlan: Option<&'a [u8; VlanTag::LEN]>,
    ip: IpBytes<'a>,
    ip_at: usize,
    transport_at: usize,
    /// Offset after the ICRC, where the IP packet ends.
    end: usize,
}

impl<'a> Lower<'a> {
    #[inline]
    fn parse(frame: Payload<'a>) -> Result<Self, ParseError> {
        let ethernet = header(frame, 0, "Ethernet header")?;
        let (vlan, ethertype, ip_at) = match EthernetHeader::from_bytes(ethernet).ethertype {
            ETHERTYPE_VLAN => {
                let tag: &[u8; VlanTag::LEN] = header(frame, EthernetHeader::LEN, "802.1Q tag")?;
                let inner = u16::from_be_bytes([tag[2], tag[3]]);
                (Some(tag), inner, EthernetHeader::LEN + VlanTag::LEN)
            }
            other => (None, other, EthernetHeader::LEN),
        };
        let (ip, header_len, stated) = match ethertype {
            ETHERTYPE_IPV4 => {
                let bytes = header(frame, ip_at, "IPv4 header")?;
                (IpBytes::V4(bytes), Ipv4Header::LEN, check_v4(bytes)?)
            }
            ETHERTYPE_IPV6 => {
                let bytes = header(frame, ip_at, "IPv6 header")?;
                (IpBytes::V6(bytes), Ipv6Header::LEN, check_v6(bytes)?)
            }
            other => return Err(ParseError::EtherType(other)),
        };

        let udp_at = ip_at + header_len;
        let udp = UdpHeader::parse(header::<{ UdpHeader::LEN }>(frame, udp_at, "UDP header")?)?;
        if udp.dst_port != ROCE_PORT {
            return Err(ParseError::NotRoce(udp.dst_port));
        }
        let have = frame.len() - ip_at;
        if stated > have || stated < header_len + UdpHeader::LEN {
            return Err(ParseError::IpLength { stated, have });
        }
        let end = ip_at + stated;
        let (stated, have) = (usize::from(udp.length), end - udp_at);
        if stated != have {
            return Err(ParseError::UdpLength { stated, have });
        }
        Ok(Self { ethernet, vlan, ip, ip_at, transport_at: udp_at + UdpHeader::LEN, end })
    }
}

/// Checks an IPv4 header. Returns the length of header and payload that it states.
fn check_v4(bytes: &[u8; Ipv4Header::LEN]) -> Result<usize, ParseError> {
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
    Ok(usize::from(ip.total_length))
}

/// As [`check_v4`].
fn check_v6(bytes: &[u8; Ipv6Header::LEN]) -> Result<usize, ParseError> {
    let ip = Ipv6Header::parse(bytes)?;
    if ip.next_header != PROTOCOL_UDP {
        return Err(ParseError::NotUdp(ip.next_header));
    }
    Ok(Ipv6Header::LEN + usize::from(ip.payload_length))
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
