//! Atomic extended transport headers: operands of an atomic request, and the original value.
//!
//! ```text
//! AtomicETH                                  AtomicAckETH
//! +-------------------------------+          +-------------------------------+
//! |   virtual address (8 bytes)   |          |   original value (8 bytes)    |
//! +-------------------------------+          +-------------------------------+
//! |       R_Key (4 bytes)         |
//! +-------------------------------+
//! |    swap or add (8 bytes)      |
//! +-------------------------------+
//! |      compare (8 bytes)        |
//! +-------------------------------+
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::network_endian::{U32, U64},
};

use crate::Key;

/// Atomic extended transport header, 28 bytes. Operands are numbers; each side stores them in
/// its own byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Virtual address of the eight bytes at the responder.
    pub va: u64,
    /// R_Key of the memory region at the responder.
    pub rkey: Key,
    /// The new value (Compare Swap) or the addend (Fetch Add).
    pub swap_or_add: u64,
    /// The value to compare with (Compare Swap only).
    pub compare: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    va: U64,
    rkey: U32,
    swap_or_add: U64,
    compare: U64,
}

impl From<&View> for AtomicEth {
    #[inline]
    fn from(view: &View) -> Self {
        Self {
            va: view.va.get(),
            rkey: Key(view.rkey.get()),
            swap_or_add: view.swap_or_add.get(),
            compare: view.compare.get(),
        }
    }
}

impl From<&AtomicEth> for View {
    #[inline]
    fn from(value: &AtomicEth) -> Self {
        Self {
            va: value.va.into(),
            rkey: value.rkey.0.into(),
            swap_or_add: value.swap_or_add.into(),
            compare: value.compare.into(),
        }
    }
}

fixed_header!(AtomicEth, View, "AtomicETH");

/// Atomic acknowledge extended transport header, 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub original: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AckView {
    original: U64,
}

impl From<&AckView> for AtomicAckEth {
    #[inline]
    fn from(view: &AckView) -> Self {
        Self { original: view.original.get() }
    }
}

impl From<&AtomicAckEth> for AckView {
    #[inline]
    fn from(value: &AtomicAckEth) -> Self {
        Self { original: value.original.into() }
    }
}

fixed_header!(AtomicAckEth, AckView, "AtomicAckETH");

#[cfg(test)]
mod tests {
    use super::*;

    /// A Fetch Add of rdma_rxe, as captured.
    #[test]
    fn captured_bytes_of_a_request() {
        let bytes = [
            0x00, 0x00, 0x55, 0x84, 0xef, 0x50, 0x50, 0x00, 0x00, 0x00, 0x3c, 0xf6, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        ];
        let atomic =
            AtomicEth { va: 0x5584_ef50_5000, rkey: Key(0x3cf6), swap_or_add: 1, compare: 0 };
        assert_eq!(AtomicEth::parse(&bytes), Ok(atomic));
        assert_eq!(atomic.to_bytes(), bytes);
    }

    /// The captured acknowledgement of that request.
    #[test]
    fn captured_bytes_of_its_response() {
        let bytes = [0x2c, 0xe7, 0x6d, 0x18, 0xba, 0x97, 0x8a, 0xb1];
        let answer = AtomicAckEth { original: 0x2ce7_6d18_ba97_8ab1 };
        assert_eq!(AtomicAckEth::parse(&bytes), Ok(answer));
        assert_eq!(answer.to_bytes(), bytes);
    }
}
