//! Ethernet header.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                     destination address                       |
//! +-------------------------------+-------------------------------+
//! |   ... destination address     |        source address         |
//! +-------------------------------+-------------------------------+
//! |                    ... source address                         |
//! +-------------------------------+-------------------------------+
//! |           EtherType           |
//! +-------------------------------+
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U16,
};

use crate::MacAddr;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Ethernet header, 14 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EthernetHeader {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// EtherType after the addresses: [`ETHERTYPE_VLAN`] in a tagged frame.
    pub ethertype: u16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    dst: [u8; 6],
    src: [u8; 6],
    ethertype: U16,
}

impl From<&View> for EthernetHeader {
    #[inline]
    fn from(view: &View) -> Self {
        Self { dst: MacAddr(view.dst), src: MacAddr(view.src), ethertype: view.ethertype.get() }
    }
}

impl From<&EthernetHeader> for View {
    #[inline]
    fn from(value: &EthernetHeader) -> Self {
        Self { dst: value.dst.0, src: value.src.0, ethertype: value.ethertype.into() }
    }
}

fixed_header!(EthernetHeader, View, "Ethernet header");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd];
        let ethernet = EthernetHeader {
            dst: MacAddr([1, 2, 3, 4, 5, 6]),
            src: MacAddr([7, 8, 9, 10, 11, 12]),
            ethertype: ETHERTYPE_IPV6,
        };
        assert_eq!(EthernetHeader::parse(&bytes), Ok(ethernet));
        assert_eq!(ethernet.to_bytes(), bytes);
    }
}
