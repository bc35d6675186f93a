//! Immediate data: four bytes that a message carries into the completion of the receiver.
//!
//! ```text
//! +---------------------------------------------------------------+
//! |                        immediate data                         |
//! +---------------------------------------------------------------+
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U32,
};

/// Immediate data, 4 bytes. Verbs passes them as bytes in network order; field 0 is their
/// big-endian number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImmDt(pub u32);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    data: U32,
}

impl From<&View> for ImmDt {
    #[inline]
    fn from(view: &View) -> Self {
        Self(view.data.get())
    }
}

impl From<&ImmDt> for View {
    #[inline]
    fn from(value: &ImmDt) -> Self {
        Self { data: value.0.into() }
    }
}

fixed_header!(ImmDt, View, "ImmDt");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let bytes = [0x12, 0x34, 0x56, 0x78];
        assert_eq!(ImmDt::parse(&bytes), Ok(ImmDt(0x1234_5678)));
        assert_eq!(ImmDt(0x1234_5678).to_bytes(), bytes);
    }
}
