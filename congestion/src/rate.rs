//! Rates in bits per second.

use core::fmt;

use crate::fraction::Fraction;
use crate::time::Duration;

/// A rate in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

const NANOS_PER_SEC: u128 = 1_000_000_000;

impl Rate {
    /// 0 bit/s.
    pub const ZERO: Self = Self(0);

    /// `bits` per second.
    pub const fn from_bps(bits: u64) -> Self {
        Self(bits)
    }

    /// `megabits` per second, of 10^6 bits.
    pub const fn from_mbps(megabits: u64) -> Self {
        Self(megabits * 1_000_000)
    }

    /// `gigabits` per second, of 10^9 bits.
    pub const fn from_gbps(gigabits: u64) -> Self {
        Self(gigabits * 1_000_000_000)
    }

    /// The rate in bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// The rate times `by`, rounded down.
    #[must_use]
    pub const fn scaled(self, by: Fraction) -> Self {
        Self(by.of_u64(self.0))
    }

    /// The sum of both rates.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The rate multiplied by `times`.
    #[must_use]
    pub const fn saturating_mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }

    /// The mean of both rates. Rounded up, so that repeated halving of the distance reaches a
    /// higher rate.
    #[must_use]
    pub const fn midpoint(self, other: Self) -> Self {
        Self((self.0 & other.0) + (self.0 ^ other.0).div_ceil(2))
    }

    /// Time to send `bytes`, rounded up; `None` at rate 0.
    pub fn time_of(self, bytes: u64) -> Option<Duration> {
        let nanobits = u128::from(bytes) * 8 * NANOS_PER_SEC;
        let nanos = (self.0 != 0).then(|| nanobits.div_ceil(u128::from(self.0)))?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Whole bytes sent in `time`.
    pub fn bytes_in(self, time: Duration) -> u64 {
        let nanos = time.as_nanos().min(u128::from(u64::MAX));
        let bytes = nanos * u128::from(self.0) / (8 * NANOS_PER_SEC);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The largest unit that needs no rounding: `40Gb/s`, `2500Mb/s`, `1b/s`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "Gb/s"), (1_000_000, "Mb/s"), (1000, "kb/s")];
        let unit = units.iter().find(|(scale, _)| self.0 != 0 && self.0.is_multiple_of(*scale));
        match unit {
            Some((scale, name)) => write!(f, "{}{name}", self.0 / scale),
            None => write!(f, "{}b/s", self.0),
        }
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
