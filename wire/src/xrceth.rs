//! XRC extended transport header: the shared receive queue that an XRC request uses.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-----------------------------------------------+
//! |   reserved    |           shared receive queue                |
//! +---------------+-----------------------------------------------+
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U32,
};

/// XRC extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct XrcEth {
    /// Eight bits before the number: sent as 0, ignored when received.
    pub reserved: u8,
    /// Number of the shared receive queue, 24 bits (the upper eight are dropped when written).
    pub srqn: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    reserved_and_srqn: U32,
}

impl From<&View> for XrcEth {
    #[inline]
    fn from(view: &View) -> Self {
        let [reserved, ..] = view.reserved_and_srqn.to_bytes();
        Self { reserved, srqn: view.reserved_and_srqn.get() & 0x00ff_ffff }
    }
}

impl From<&XrcEth> for View {
    #[inline]
    fn from(value: &XrcEth) -> Self {
        Self {
            reserved_and_srqn: ((u32::from(value.reserved) << 24) | (value.srqn & 0x00ff_ffff))
                .into(),
        }
    }
}

fixed_header!(XrcEth, View, "XRCETH");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let bytes = [0x7e, 0x12, 0x34, 0x56];
        let xrceth = XrcEth { reserved: 0x7e, srqn: 0x12_3456 };
        assert_eq!(XrcEth::parse(&bytes), Ok(xrceth));
        assert_eq!(xrceth.to_bytes(), bytes);
    }
}
