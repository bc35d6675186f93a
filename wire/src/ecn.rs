//! Explicit congestion notification: the low two bits of the IPv4 TOS or IPv6 traffic class (RFC
//! 3168).

/// The ECN codepoint of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The endpoints do not use ECN: a congested switch drops.
    NotEct,
    /// ECN-capable, codepoint 1.
    Ect1,
    /// ECN-capable, codepoint 0: sent by ConnectX.
    Ect0,
    /// Congestion experienced: a switch marked the packet.
    Ce,
}

impl Ecn {
    /// The codepoint of a TOS or traffic class byte.
    #[inline]
    #[must_use]
    pub const fn from_traffic_class(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The two bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::NotEct => 0,
            Self::Ect1 => 1,
            Self::Ect0 => 2,
            Self::Ce => 3,
        }
    }

    /// Returns `traffic_class` with its ECN bits replaced by this codepoint.
    #[inline]
    #[must_use]
    pub const fn set_in(self, traffic_class: u8) -> u8 {
        (traffic_class & !3) | self.bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codepoints_are_the_low_two_bits() {
        for (bits, ecn) in [(0, Ecn::NotEct), (1, Ecn::Ect1), (2, Ecn::Ect0), (3, Ecn::Ce)] {
            assert_eq!(ecn.bits(), bits);
            assert_eq!(Ecn::from_traffic_class(0xb8 | bits), ecn);
            assert_eq!(ecn.set_in(0xbb), 0xb8 | bits, "DSCP stays");
        }
    }
}
