//! Virtual time in picoseconds, and transmission times.
//!
//! At 40 Gb/s a byte takes 200 ps, so picoseconds represent the usual rates exactly; 2^64 ps are
//! 213 days. The congestion state of hosts counts in nanoseconds. A time is rounded up for it, so
//! that no event is handled before it happens.

use std::fmt;
use std::ops::{Add, Sub};

use feroce_congestion::time::Instant;

/// A point in virtual time, or a time span, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// Later than every event.
    pub const FAR: Self = Self(u64::MAX);

    /// `n` nanoseconds.
    pub const fn from_nanos(n: u64) -> Self {
        Self(n.saturating_mul(1000))
    }

    /// `n` microseconds.
    pub const fn from_micros(n: u64) -> Self {
        Self::from_nanos(n.saturating_mul(1000))
    }

    /// `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self::from_micros(n.saturating_mul(1000))
    }

    /// The time for the congestion state of hosts: nanoseconds, rounded up.
    pub const fn instant(self) -> Instant {
        Instant::from_nanos(self.0.div_ceil(1000))
    }

    /// The virtual time of an `instant` of the congestion state.
    pub const fn from_instant(instant: Instant) -> Self {
        Self::from_nanos(instant.as_nanos())
    }

    /// In seconds, for statistics.
    #[allow(clippy::cast_precision_loss)] // 2^53 ps are 2.5 hours.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }
}

impl Add for Time {
    type Output = Self;
    /// Saturates at [`Time::FAR`].
    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for Time {
    type Output = Self;
    /// Zero if `earlier` is later.
    fn sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Time {
    /// Written in the largest unit without a fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units =
            [(1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "us"), (1000, "ns")];
        match units.iter().find(|(unit, _)| self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}ps", self.0),
        }
    }
}

/// The rate of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRate {
    bits_per_second: u64,
    /// Picoseconds per byte in units of 2^-16, rounded: the error of a 9 KB frame at an odd rate is
    /// at most 0.07 ps.
    per_byte: u64,
}

impl LinkRate {
    /// The lowest rate of a scenario, in bits per second: the longest packet takes less than 2^55
    /// ps.
    pub const SLOWEST: u64 = 1000;
    /// The highest rate of a scenario, in bits per second: a byte still takes a fraction of a
    /// picosecond.
    pub const FASTEST: u64 = 100_000_000_000_000;

    /// A rate of `bits_per_second`, at least 1.
    pub const fn new(bits_per_second: u64) -> Self {
        let bits_per_second = if bits_per_second == 0 { 1 } else { bits_per_second };
        let exact = (8_000_000_000_000_u128 << 16) / bits_per_second as u128;
        #[allow(clippy::cast_possible_truncation)] // 8e12 * 2^16 is below 2^60.
        Self { bits_per_second, per_byte: exact as u64 }
    }

    /// Bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.bits_per_second
    }

    /// Transmission time of `bytes`.
    pub const fn time_of(self, bytes: u32) -> Time {
        #[allow(clippy::cast_possible_truncation)] // 2^32 bytes at 1 kb/s are 2^55 ps.
        Time(((bytes as u128 * self.per_byte as u128) >> 16) as u64)
    }

    /// Duration of `quanta` pause quanta, 512 bit times each.
    pub const fn quanta(self, quanta: u16) -> Time {
        self.time_of(quanta as u32 * 64)
    }

    /// Bytes transmitted in `span`, rounded up.
    pub const fn bytes_in(self, span: Time) -> u64 {
        let bits = span.0 as u128 * self.bits_per_second as u128;
        let bytes = bits.div_ceil(8_000_000_000_000);
        #[allow(clippy::cast_possible_truncation)] // Checked.
        let narrow = if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 };
        narrow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_rates_are_exact() {
        for (gigabits, picoseconds) in [(10, 800), (25, 320), (40, 200), (100, 80), (400, 20)] {
            let rate = LinkRate::new(gigabits * 1_000_000_000);
            assert_eq!(rate.time_of(1500), Time(1500 * picoseconds));
        }
    }

    #[test]
    fn a_quantum_is_512_bit_times() {
        assert_eq!(LinkRate::new(40_000_000_000).quanta(0xffff), Time(65_535 * 12_800));
    }

    #[test]
    fn times_of_hosts_are_rounded_up() {
        assert_eq!(Time(1).instant().as_nanos(), 1);
        assert_eq!(Time(1000).instant().as_nanos(), 1);
        assert_eq!(Time(1001).instant().as_nanos(), 2);
    }

    #[test]
    fn times_print_in_the_largest_unit() {
        let shown =
            [Time::from_millis(1500), Time::from_micros(85), Time(200)].map(|t| t.to_string());
        assert_eq!(shown, ["1500ms", "85us", "200ps"]);
    }
}
