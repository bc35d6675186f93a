//! RDMA extended transport header: the remote memory of a WRITE, READ, ATOMIC WRITE or FLUSH.
//!
//! ```text
//! +---------------------------------------------------------------+
//! |                   virtual address (8 bytes)                   |
//! +---------------------------------------------------------------+
//! |                             R_Key                             |
//! +---------------------------------------------------------------+
//! |                          DMA length                           |
//! +---------------------------------------------------------------+
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::network_endian::{U32, U64},
};

use crate::Key;

/// RDMA extended transport header, 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// R_Key of the memory region at the responder.
    pub rkey: Key,
    /// Bytes of the whole message, not of this packet.
    pub dma_len: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    va: U64,
    rkey: U32,
    dma_len: U32,
}

impl From<&View> for Reth {
    #[inline]
    fn from(view: &View) -> Self {
        Self { va: view.va.get(), rkey: Key(view.rkey.get()), dma_len: view.dma_len.get() }
    }
}

impl From<&Reth> for View {
    #[inline]
    fn from(value: &Reth) -> Self {
        Self { va: value.va.into(), rkey: value.rkey.0.into(), dma_len: value.dma_len.into() }
    }
}

fixed_header!(Reth, View, "RETH");

#[cfg(test)]
mod tests {
    use super::*;

    /// An RDMA WRITE of rdma_rxe, as captured.
    #[test]
    fn captured_bytes() {
        let bytes = [
            0x00, 0x00, 0x55, 0x5f, 0x4e, 0x8e, 0xf0, 0x00, 0x00, 0x00, 0x39, 0x6b, 0x00, 0x00,
            0x00, 0x40,
        ];
        let reth = Reth { va: 0x555f_4e8e_f000, rkey: Key(0x396b), dma_len: 64 };
        assert_eq!(Reth::parse(&bytes), Ok(reth));
        assert_eq!(reth.to_bytes(), bytes);
    }
}
