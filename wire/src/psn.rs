//! Packet sequence number: 24 bits that wrap, ordered by the half window.

use core::fmt;

const MODULUS: u32 = 1 << 24;
const MASK: u32 = MODULUS - 1;
const HALF: u32 = 1 << 23;

/// A packet sequence number. There is no `Ord`: PSNs wrap, so their order depends on a window; the
/// comparisons are called "before" and "after".
///
/// Of two PSNs exactly 2^23 apart (half the PSN space), each is *before* the other, because the
/// duplicate half of a responder's window is larger by this one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`.
    #[inline]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// The number, below 2^24.
    #[inline]
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// `count` packets later.
    #[inline]
    #[must_use]
    #[allow(clippy::should_implement_trait)] // adds a count, not another Psn
    pub const fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The next packet.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The previous packet.
    #[inline]
    #[must_use]
    pub const fn prev(self) -> Self {
        self.add(MASK)
    }

    /// Packets from `self` forward to `later`, 0 to 2^24 - 1.
    #[inline]
    #[must_use]
    pub const fn distance_to(self, later: Self) -> u32 {
        later.0.wrapping_sub(self.0) & MASK
    }

    /// Signed distance from `base` to `self`, from -2^23 to 2^23 - 1; negative if `self` is before
    /// `base`.
    #[inline]
    #[must_use]
    pub const fn offset_from(self, base: Self) -> i32 {
        // Bit 23 becomes the sign bit; the arithmetic shift back extends it.
        ((self.0.wrapping_sub(base.0) << 8).cast_signed()) >> 8
    }

    /// Returns true if `self` is in the half of the PSN space before `other`.
    #[inline]
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_to(other).wrapping_sub(1) < HALF
    }

    /// Returns true if `self` is in the half of the PSN space after `other`, excluding `other` and
    /// the number opposite to it.
    #[inline]
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.offset_from(other) > 0
    }

    /// Returns true if `self` equals `other` or is before it.
    #[inline]
    #[must_use]
    pub const fn at_or_before(self, other: Self) -> bool {
        self.distance_to(other) <= HALF
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
