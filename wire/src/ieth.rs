//! Invalidate extended transport header: the R_Key that a SEND with invalidate invalidates.
//!
//! ```text
//! +---------------------------------------------------------------+
//! |                             R_Key                             |
//! +---------------------------------------------------------------+
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U32,
};

use crate::Key;

/// Invalidate extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ieth {
    /// The key to invalidate.
    pub rkey: Key,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    rkey: U32,
}

impl From<&View> for Ieth {
    #[inline]
    fn from(view: &View) -> Self {
        Self { rkey: Key(view.rkey.get()) }
    }
}

impl From<&Ieth> for View {
    #[inline]
    fn from(value: &Ieth) -> Self {
        Self { rkey: value.rkey.0.into() }
    }
}

fixed_header!(Ieth, View, "IETH");

#[cfg(test)]
mod tests {
    use super::*;

    /// A SEND with invalidate of rdma_rxe, as captured.
    #[test]
    fn captured_bytes() {
        let bytes = [0x08, 0x00, 0x01, 0x2a];
        let ieth = Ieth { rkey: Key::from_parts(0x08_0001, 0x2a) };
        assert_eq!(Ieth::parse(&bytes), Ok(ieth));
        assert_eq!(ieth.to_bytes(), bytes);
    }
}
