//! IPv4 header without options.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+-------------------------------+
//! |   4   |   5   |      TOS      |         total length          |
//! +-------+-------+---------------+-+-+-+-------------------------+
//! |        identification         |0|D|M|     fragment offset     |
//! +---------------+---------------+-+-+-+-------------------------+
//! |      TTL      | protocol (17) |        header checksum        |
//! +---------------+---------------+-------------------------------+
//! |                        source address                         |
//! +---------------------------------------------------------------+
//! |                      destination address                      |
//! +---------------------------------------------------------------+
//! ```

use core::net::Ipv4Addr;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U16,
};

use crate::{Ecn, ParseError};

const RESERVED_FLAG: u16 = 0x8000;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

/// IPv4 header, 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Header {
    /// Type of service: DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_length: u16,
    /// Identification. Covered by the ICRC.
    pub identification: u16,
    /// The reserved flag bit.
    pub reserved_flag: bool,
    /// DF (don't fragment), set in RoCEv2 packets.
    pub dont_fragment: bool,
    /// MF: more fragments follow.
    pub more_fragments: bool,
    /// Fragment offset in units of 8 bytes, 13 bits.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload; 17 = UDP.
    pub protocol: u8,
    /// Header checksum as received, or to be written (see
    /// [`computed_checksum`](Self::computed_checksum)).
    pub checksum: u16,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    version_ihl: u8,
    tos: u8,
    total_length: U16,
    identification: U16,
    flags_offset: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    src: [u8; 4],
    dst: [u8; 4],
}

impl From<&View> for Ipv4Header {
    #[inline]
    fn from(view: &View) -> Self {
        let flags = view.flags_offset.get();
        Self {
            tos: view.tos,
            total_length: view.total_length.get(),
            identification: view.identification.get(),
            reserved_flag: flags & RESERVED_FLAG != 0,
            dont_fragment: flags & DONT_FRAGMENT != 0,
            more_fragments: flags & MORE_FRAGMENTS != 0,
            fragment_offset: flags & OFFSET_MASK,
            ttl: view.ttl,
            protocol: view.protocol,
            checksum: view.checksum.get(),
            src: view.src.into(),
            dst: view.dst.into(),
        }
    }
}

impl From<&Ipv4Header> for View {
    #[inline]
    fn from(value: &Ipv4Header) -> Self {
        let flag = |set: bool, bit: u16| if set { bit } else { 0 };
        let flags_offset = flag(value.reserved_flag, RESERVED_FLAG)
            | flag(value.dont_fragment, DONT_FRAGMENT)
            | flag(value.more_fragments, MORE_FRAGMENTS)
            | (value.fragment_offset & OFFSET_MASK);
        Self {
            version_ihl: 0x45,
            tos: value.tos,
            total_length: value.total_length.into(),
            identification: value.identification.into(),
            flags_offset: flags_offset.into(),
            ttl: value.ttl,
            protocol: value.protocol,
            checksum: value.checksum.into(),
            src: value.src.octets(),
            dst: value.dst.octets(),
        }
    }
}

impl Ipv4Header {
    /// Length on the wire, in bytes.
    pub const LEN: usize = size_of::<View>();

    /// Reads the header at the front of `bytes`. The checksum is kept, not checked.
    ///
    /// # Errors
    /// [`Truncated`](ParseError::Truncated), [`IpVersion`](ParseError::IpVersion) or
    /// [`IpHeaderLength`](ParseError::IpHeaderLength) (options).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Ok((view, _)) = View::ref_from_prefix(bytes) else {
            return Err(ParseError::Truncated {
                what: "IPv4 header",
                need: Self::LEN,
                have: bytes.len(),
            });
        };
        match (view.version_ihl >> 4, view.version_ihl & 0xf) {
            (4, 5) => Ok(view.into()),
            (4, words) => Err(ParseError::IpHeaderLength(words)),
            (version, _) => Err(ParseError::IpVersion(version)),
        }
    }

    /// The header in `bytes`, whose version and header length are those of this type.
    #[inline]
    pub(crate) fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let view: &View = zerocopy::transmute_ref!(bytes);
        Self::from(view)
    }

    /// The header as it goes on the wire.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        zerocopy::transmute!(View::from(self))
    }

    /// Writes the header at the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`LEN`](Self::LEN).
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        out[..Self::LEN].copy_from_slice(&self.to_bytes());
    }

    /// The checksum computed from the other fields.
    #[inline]
    #[must_use]
    pub fn computed_checksum(&self) -> u16 {
        let zeroed = Self { checksum: 0, ..*self };
        fold_checksum(sum_words(&zeroed.to_bytes()))
    }

    /// Returns true if this is a fragment of a larger packet.
    #[inline]
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// The ECN codepoint.
    #[inline]
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_traffic_class(self.tos)
    }
}

/// The sum of the 16-bit words of a header, carries kept above bit 15 (RFC 1071).
#[inline]
pub(crate) fn sum_words(header: &[u8; Ipv4Header::LEN]) -> u32 {
    let (pairs, _) = header.as_chunks::<4>();
    let sum: u64 = pairs.iter().map(|pair| u64::from(u32::from_be_bytes(*pair))).sum();
    #[allow(clippy::cast_possible_truncation)] // the halves of a sum of five
    let (high, low) = ((sum >> 16) as u32, sum as u32 & 0xffff);
    high + low
}

/// Returns true if the checksum of `header` is right. The sum of the words does not depend on the
/// byte order, but for the order of its own bytes.
#[inline(always)] // A few instructions, once per packet.
pub(crate) fn has_valid_checksum(header: &[u8; Ipv4Header::LEN]) -> bool {
    let (pairs, _) = header.as_chunks::<4>();
    let sum: u64 = pairs.iter().map(|pair| u64::from(u32::from_ne_bytes(*pair))).sum();
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    // All ones are one of two forms of zero. The other one occurs only if all words are 0.
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// The header checksum of a sum of words.
#[inline]
#[allow(clippy::cast_possible_truncation)] // two folds reduce a sum of a few words below 2^16
pub(crate) const fn fold_checksum(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    !(((once & 0xffff) + (once >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An acknowledgement of a ConnectX, as captured.
    const CAPTURED: [u8; 20] = [
        0x45, 0x02, 0x00, 0x30, 0x9d, 0x4e, 0x40, 0x00, 0x40, 0x11, 0x19, 0xe4, 0xc0, 0xaa, 0x01,
        0x02, 0xc0, 0xaa, 0x01, 0x32,
    ];

    #[test]
    fn captured_bytes() {
        let ip = Ipv4Header {
            tos: 2,
            total_length: 48,
            identification: 0x9d4e,
            reserved_flag: false,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: 17,
            checksum: 0x19e4,
            src: [192, 170, 1, 2].into(),
            dst: [192, 170, 1, 50].into(),
        };
        assert_eq!(Ipv4Header::parse(&CAPTURED), Ok(ip));
        assert_eq!(ip.to_bytes(), CAPTURED);
        assert_eq!(ip.computed_checksum(), 0x19e4);
        assert_eq!(ip.ecn(), Ecn::Ect0);
    }

    #[test]
    fn other_versions_and_options_are_refused() {
        let mut bytes = CAPTURED;
        bytes[0] = 0x46;
        assert_eq!(Ipv4Header::parse(&bytes), Err(ParseError::IpHeaderLength(6)));
        bytes[0] = 0x65;
        assert_eq!(Ipv4Header::parse(&bytes), Err(ParseError::IpVersion(6)));
    }

    #[test]
    fn fragments_are_recognised() {
        let whole = Ipv4Header::parse(&CAPTURED).unwrap();
        let first = Ipv4Header { more_fragments: true, ..whole };
        let last = Ipv4Header { fragment_offset: 185, ..whole };
        assert!(!whole.is_fragment() && first.is_fragment() && last.is_fragment());
        assert_eq!(last.to_bytes()[6..8], [0x40, 185]);
    }

    #[test]
    fn a_checksum_is_valid_if_the_sum_of_all_words_is_all_ones() {
        assert!(has_valid_checksum(&CAPTURED));
        for at in 0..CAPTURED.len() {
            for bit in 0..8 {
                let mut changed = CAPTURED;
                changed[at] ^= 1 << bit;
                assert!(!has_valid_checksum(&changed), "bit {bit} of byte {at}");
            }
        }
        for byte in 0..=255u8 {
            let mut header = [byte; Ipv4Header::LEN];
            let sum_is_zero =
                |header: &[u8; Ipv4Header::LEN]| fold_checksum(sum_words(header)) == 0;
            assert_eq!(has_valid_checksum(&header), sum_is_zero(&header), "{byte}");
            header[10..12].fill(0);
            let checksum = fold_checksum(sum_words(&header));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            assert_eq!(has_valid_checksum(&header), sum_is_zero(&header), "{byte}");
        }
    }
}
