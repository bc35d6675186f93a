//! UDP header.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------------------------------+-------------------------------+
//! |          source port          |   destination port (4791)     |
//! +-------------------------------+-------------------------------+
//! |            length             |           checksum            |
//! +-------------------------------+-------------------------------+
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U16,
};

/// The UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// UDP header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpHeader {
    /// Source port: entropy for multi-path switches, constant for a flow.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub length: u16,
    /// Checksum; 0: none, which RoCEv2 endpoints send (also over IPv6), because the ICRC protects
    /// more.
    pub checksum: u16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    src_port: U16,
    dst_port: U16,
    length: U16,
    checksum: U16,
}

impl From<&View> for UdpHeader {
    #[inline]
    fn from(view: &View) -> Self {
        Self {
            src_port: view.src_port.get(),
            dst_port: view.dst_port.get(),
            length: view.length.get(),
            checksum: view.checksum.get(),
        }
    }
}

impl From<&UdpHeader> for View {
    #[inline]
    fn from(value: &UdpHeader) -> Self {
        Self {
            src_port: value.src_port.into(),
            dst_port: value.dst_port.into(),
            length: value.length.into(),
            checksum: value.checksum.into(),
        }
    }
}

fixed_header!(UdpHeader, View, "UDP header");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let bytes = [0xfa, 0x4f, 0x12, 0xb7, 0x00, 0x1c, 0xbe, 0xef];
        let udp = UdpHeader { src_port: 64079, dst_port: ROCE_PORT, length: 28, checksum: 0xbeef };
        assert_eq!(UdpHeader::parse(&bytes), Ok(udp));
        assert_eq!(udp.to_bytes(), bytes);
    }
}
