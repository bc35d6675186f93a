//! Datagram extended transport header: source QP and Q_Key of a UD packet.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                             Q_Key                             |
//! +---------------+-----------------------------------------------+
//! |   reserved    |                   source QP                   |
//! +---------------+-----------------------------------------------+
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U32,
};

use crate::{Qkey, Qpn};

/// Datagram extended transport header, 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deth {
    /// Must equal the Q_Key of the receiving QP.
    pub qkey: Qkey,
    /// Eight bits before the QP number: sent as 0, ignored when received.
    pub reserved: u8,
    /// The sending QP.
    pub src_qp: Qpn,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    qkey: U32,
    reserved_and_qp: U32,
}

impl From<&View> for Deth {
    #[inline]
    fn from(view: &View) -> Self {
        let [reserved, ..] = view.reserved_and_qp.to_bytes();
        Self {
            qkey: Qkey(view.qkey.get()),
            reserved,
            src_qp: Qpn::masked(view.reserved_and_qp.get()),
        }
    }
}

impl From<&Deth> for View {
    #[inline]
    fn from(value: &Deth) -> Self {
        Self {
            qkey: value.qkey.0.into(),
            reserved_and_qp: ((u32::from(value.reserved) << 24) | value.src_qp.value()).into(),
        }
    }
}

fixed_header!(Deth, View, "DETH");

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram of rdma_rxe, as captured, with a reserved byte added.
    #[test]
    fn captured_bytes() {
        let bytes = [0x11, 0x11, 0x11, 0x11, 0x5a, 0x00, 0x00, 0x37];
        let deth = Deth { qkey: Qkey(0x1111_1111), reserved: 0x5a, src_qp: Qpn::masked(0x37) };
        assert_eq!(Deth::parse(&bytes), Ok(deth));
        assert_eq!(deth.to_bytes(), bytes);
    }
}
