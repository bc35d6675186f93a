//! FLUSH extended transport header (memory placement extensions): the placement that the data of
//! earlier WRITEs must have reached before the FLUSH is acknowledged. The RETH after it names the
//! bytes.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------+---+-------+
//! |                     reserved                      |SEL|  PLT  |
//! +---------------------------------------------------+---+-------+
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U32,
};

/// Required placement of flushed data, a set of four bits. A responder refuses unknown bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlacementType(pub u8);

impl PlacementType {
    /// Global visibility: visible to every agent of the responder's host.
    pub const GLOBAL: Self = Self(0b01);
    /// Persistence: preserved across a power failure.
    pub const PERSISTENT: Self = Self(0b10);

    /// Returns true if all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Which bytes are flushed, two bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Selectivity {
    /// The bytes that the RETH names.
    #[default]
    Range,
    /// The whole memory region of the R_Key.
    Region,
    /// A reserved value: 2 or 3.
    Reserved(u8),
}

impl Selectivity {
    /// From the low two bits of `bits`.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Range,
            1 => Self::Region,
            other => Self::Reserved(other),
        }
    }

    /// The two bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Range => 0,
            Self::Region => 1,
            Self::Reserved(bits) => bits & 3,
        }
    }
}

/// FLUSH extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Feth {
    /// The upper 26 bits: sent as 0, ignored when received.
    pub reserved: u32,
    /// Selectivity level: which bytes.
    pub selectivity: Selectivity,
    /// Required placement.
    pub placement: PlacementType,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    bits: U32,
}

impl From<&View> for Feth {
    #[inline]
    fn from(view: &View) -> Self {
        let [.., low] = view.bits.to_bytes();
        Self {
            reserved: view.bits.get() >> 6,
            selectivity: Selectivity::from_bits(low >> 4),
            placement: PlacementType(low & 0xf),
        }
    }
}

impl From<&Feth> for View {
    #[inline]
    fn from(value: &Feth) -> Self {
        let selectivity = u32::from(value.selectivity.bits()) << 4;
        let placement = u32::from(value.placement.0 & 0xf);
        Self { bits: ((value.reserved << 6) | selectivity | placement).into() }
    }
}

fixed_header!(Feth, View, "FETH");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let bytes = [0x00, 0x00, 0x00, 0x12];
        let feth = Feth {
            reserved: 0,
            selectivity: Selectivity::Region,
            placement: PlacementType::PERSISTENT,
        };
        assert_eq!(Feth::parse(&bytes), Ok(feth));
        assert_eq!(feth.to_bytes(), bytes);
    }

    #[test]
    fn placement_is_a_set() {
        let both = PlacementType(0b11);
        assert!(both.contains(PlacementType::GLOBAL) && both.contains(PlacementType::PERSISTENT));
        assert!(!PlacementType::GLOBAL.contains(both));
    }
}
