//! IEEE 802.1Q tag, which follows EtherType 0x8100. The ICRC does not cover it.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-----+-+-----------------------+-------------------------------+
//! | PCP |D|        VLAN id        |   EtherType of what follows   |
//! +-----+-+-----------------------+-------------------------------+
//! ```

/// An 802.1Q tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// VLAN identifier, 12 bits (the upper four are dropped when written).
    pub id: u16,
    /// Priority code point, 3 bits: the class that PFC pauses.
    pub pcp: u8,
    /// Drop eligible.
    pub dei: bool,
}

impl VlanTag {
    /// Bytes that a tag adds to a frame, including its second EtherType.
    pub const LEN: usize = 4;

    /// Parses the 16 bits after EtherType 0x8100.
    #[inline]
    #[must_use]
    pub const fn from_tci(tci: u16) -> Self {
        let [high, _] = tci.to_be_bytes();
        Self { id: tci & 0x0fff, pcp: high >> 5, dei: tci & 0x1000 != 0 }
    }

    /// The 16 bits after EtherType 0x8100.
    #[inline]
    #[must_use]
    pub const fn tci(self) -> u16 {
        ((self.pcp as u16) << 13) | ((self.dei as u16) << 12) | (self.id & 0x0fff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let tag = VlanTag { id: 0xabc, pcp: 5, dei: true };
        assert_eq!(tag.tci(), 0xbabc);
        assert_eq!(VlanTag::from_tci(0xbabc), tag);
    }
}
