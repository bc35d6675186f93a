//! The congestion point: which packets a switch marks (RED on the length of a queue as it is).

use crate::fraction::Fraction;
use crate::params::{BeyondKmax, MarkingParams};

/// RED on a queue: nothing up to Kmin, `pmax` at Kmax, linear between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Red {
    kmin: u32,
    kmax: u32,
    pmax: Fraction,
    beyond: BeyondKmax,
}

impl Red {
    /// With these thresholds. Kmin equal to Kmax, or above it, is a cut-off: everything is marked above Kmax.
    pub const fn new(params: &MarkingParams) -> Self {
        let MarkingParams { kmin, kmax, pmax, beyond_kmax, mark_at: _ } = *params;
        Self { kmin: if kmin < kmax { kmin } else { kmax }, kmax, pmax, beyond: beyond_kmax }
    }

    /// Whether a packet that sees a queue of `queue` bytes is marked; `random` is uniform over all `u32`.
    pub fn mark(&self, queue: u64, random: u32) -> bool {
        match self.region(queue) {
            Region::None => false,
            Region::All => true,
            // As `probability(queue).happens(random)`, without the division.
            Region::Slope { above } => {
                let scaled = u128::from(random >> 1) * u128::from(self.kmax - self.kmin);
                scaled < u128::from(self.pmax.units()) * u128::from(above)
            }
        }
    }

    /// The probability that a packet that sees a queue of `queue` bytes is marked.
    pub fn probability(&self, queue: u64) -> Fraction {
        match self.region(queue) {
            Region::None => Fraction::ZERO,
            Region::All => Fraction::ONE,
            Region::Slope { above } => {
                let units = u128::from(self.pmax.units()) * u128::from(above);
                let units = units.div_ceil(u128::from(self.kmax - self.kmin));
                Fraction::from_units(u32::try_from(units).unwrap_or(u32::MAX))
            }
        }
    }

    fn region(&self, queue: u64) -> Region {
        let is_slope = self.beyond == BeyondKmax::Slope && self.kmin < self.kmax;
        if queue <= u64::from(self.kmin) {
            Region::None
        } else if queue > u64::from(self.kmax) && !is_slope {
            Region::All
        } else {
            Region::Slope { above: queue - u64::from(self.kmin) }
        }
    }
}

enum Region {
    None,
    Slope { above: u64 },
    All,
}
