//! Numbers from 0 to 1 in fixed point: alpha, g, marking probabilities.

use core::fmt;

/// A number from 0 to 1, in units of 2^-31.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fraction(u32);

const UNIT_BITS: u32 = 31;

impl Fraction {
    /// The number 0.
    pub const ZERO: Self = Self(0);
    /// The number 1.
    pub const ONE: Self = Self(1 << UNIT_BITS);

    /// `numerator / denominator`, rounded down, at most 1.
    ///
    /// # Panics
    ///
    /// If `denominator` is 0.
    pub const fn ratio(numerator: u32, denominator: u32) -> Self {
        Self::from_wide(((numerator as u64) << UNIT_BITS) / denominator as u64)
    }

    /// `units` times 2^-31, at most 1.
    pub const fn from_units(units: u32) -> Self {
        Self::from_wide(units as u64)
    }

    /// The value in units of 2^-31.
    pub const fn units(self) -> u32 {
        self.0
    }

    /// 1 minus this fraction.
    pub const fn complement(self) -> Self {
        Self(Self::ONE.0 - self.0)
    }

    /// The product with `other`, rounded down.
    pub const fn of(self, other: Self) -> Self {
        Self::from_wide((self.0 as u64 * other.0 as u64) >> UNIT_BITS)
    }

    /// The product with `n`, rounded down.
    pub const fn of_u64(self, n: u64) -> u64 {
        #[allow(clippy::cast_possible_truncation)] // At most `n`.
        let part = ((n as u128 * self.0 as u128) >> UNIT_BITS) as u64;
        part
    }

    /// The sum, at most 1.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self::from_wide(self.0 as u64 + other.0 as u64)
    }

    /// This fraction shifted right by `bits`: divided by 2^`bits`, rounded down.
    pub const fn shift_right(self, bits: u32) -> Self {
        if bits > UNIT_BITS { Self::ZERO } else { Self(self.0 >> bits) }
    }

    /// This fraction shifted left by `bits`: multiplied by 2^`bits`, at most 1.
    pub const fn saturating_shift_left(self, bits: u32) -> Self {
        let bits = if bits > UNIT_BITS { UNIT_BITS } else { bits };
        Self::from_wide((self.0 as u64) << bits)
    }

    /// Returns true with this probability, for a `random` that is uniform over all `u32`.
    pub const fn happens(self, random: u32) -> bool {
        random >> 1 < self.0
    }

    #[allow(clippy::cast_possible_truncation)] // At most 2^31.
    const fn from_wide(units: u64) -> Self {
        if units >= Self::ONE.0 as u64 { Self::ONE } else { Self(units as u32) }
    }
}

/// Nine decimals, or the requested precision if that is less.
impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let billionths = (u64::from(self.0) * 1_000_000_000 + (1 << (UNIT_BITS - 1))) >> UNIT_BITS;
        let precision = f.precision().unwrap_or(9).min(9);
        let scale = 10u64.pow(9 - u32::try_from(precision).unwrap_or(9));
        let rounded = (billionths + scale / 2) / scale;
        let whole = 1_000_000_000 / scale;
        match precision {
            0 => write!(f, "{rounded}"),
            _ => write!(f, "{}.{:0precision$}", rounded / whole, rounded % whole),
        }
    }
}

impl fmt::Debug for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
