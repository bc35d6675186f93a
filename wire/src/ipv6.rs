//! IPv6 header.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+---------------+---------------------------------------+
//! |   6   | traffic class |              flow label               |
//! +-------+---------------+-------+---------------+---------------+
//! |        payload length         |  next header  |   hop limit   |
//! +-------------------------------+---------------+---------------+
//! |                  source address (16 bytes)                    |
//! +---------------------------------------------------------------+
//! |                destination address (16 bytes)                 |
//! +---------------------------------------------------------------+
//! ```

use core::net::Ipv6Addr;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::network_endian::{U16, U32},
};

use crate::{Ecn, ParseError};

const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// IPv6 header, 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Header {
    /// Traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Flow label, 20 bits (the upper twelve are dropped when written).
    pub flow_label: u32,
    /// Bytes that follow this header.
    pub payload_length: u16,
    /// Protocol of the payload; 17 = UDP.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    version_class_label: U32,
    payload_length: U16,
    next_header: u8,
    hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}

impl From<&View> for Ipv6Header {
    #[inline]
    fn from(view: &View) -> Self {
        let first = view.version_class_label.get();
        let [high, low, _, _] = first.to_be_bytes();
        Self {
            traffic_class: (high << 4) | (low >> 4),
            flow_label: first & FLOW_LABEL_MASK,
            payload_length: view.payload_length.get(),
            next_header: view.next_header,
            hop_limit: view.hop_limit,
            src: view.src.into(),
            dst: view.dst.into(),
        }
    }
}

impl From<&Ipv6Header> for View {
    #[inline]
    fn from(value: &Ipv6Header) -> Self {
        let first = (6 << 28)
            | (u32::from(value.traffic_class) << 20)
            | (value.flow_label & FLOW_LABEL_MASK);
        Self {
            version_class_label: first.into(),
            payload_length: value.payload_length.into(),
            next_header: value.next_header,
            hop_limit: value.hop_limit,
            src: value.src.octets(),
            dst: value.dst.octets(),
        }
    }
}

impl Ipv6Header {
    /// Length on the wire, in bytes.
    pub const LEN: usize = size_of::<View>();

    /// Reads the header at the front of `bytes`.
    ///
    /// # Errors
    /// [`Truncated`](ParseError::Truncated) or [`IpVersion`](ParseError::IpVersion).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Ok((view, _)) = View::ref_from_prefix(bytes) else {
            return Err(ParseError::Truncated {
                what: "IPv6 header",
                need: Self::LEN,
                have: bytes.len(),
            });
        };
        match bytes[0] >> 4 {
            6 => Ok(view.into()),
            version => Err(ParseError::IpVersion(version)),
        }
    }

    /// The header in `bytes`, whose version is that of this type.
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

    /// The ECN codepoint.
    #[inline]
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_traffic_class(self.traffic_class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0x01, 0x20, 17, 64]);
        bytes[8] = 0xfd;
        bytes[23] = 2;
        bytes[24] = 0xfd;
        bytes[39] = 3;
        let ip = Ipv6Header {
            traffic_class: 0xab,
            flow_label: 0x1_2345,
            payload_length: 0x120,
            next_header: 17,
            hop_limit: 64,
            src: "fd00::2".parse().unwrap(),
            dst: "fd00::3".parse().unwrap(),
        };
        assert_eq!(Ipv6Header::parse(&bytes), Ok(ip));
        assert_eq!(ip.to_bytes(), bytes);
        assert_eq!(ip.ecn(), Ecn::Ce);
        bytes[0] = 0x45;
        assert_eq!(Ipv6Header::parse(&bytes), Err(ParseError::IpVersion(4)));
    }
}
