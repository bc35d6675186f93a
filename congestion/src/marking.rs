//! DCQCN's congestion point: which packets a switch marks. RED on the instantaneous queue length.

use crate::fraction::Fraction;
use crate::params::{BeyondKmax, MarkingParams};

/// RED marking of a queue: probability 0 up to Kmin, `pmax` at Kmax, linear between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Red {
    kmin: u32,
    kmax: u32,
    pmax: Fraction,
    beyond: BeyondKmax,
}

impl Red {
    /// RED with these thresholds. If Kmin is not below Kmax, marking is a cut-off: every packet
    /// above Kmax is marked.
    pub const fn new(params: &MarkingParams) -> Self {
        let MarkingParams { kmin, kmax, pmax, beyond_kmax, mark_at: _ } = *params;
        Self { kmin: if kmin < kmax { kmin } else { kmax }, kmax, pmax, beyond: beyond_kmax }
    }

    /// Returns true if a packet that finds a queue of `queue` bytes is marked; `random` is uniform
    /// over all `u32`.
    pub fn mark(&self, queue: u64, random: u32) -> bool {
        match self.region(queue) {
            Region::None => false,
            Region::All => true,
            // Same result as `probability(queue).happens(random)`, without the division.
            Region::Slope { above } => {
                let scaled = u128::from(random >> 1) * u128::from(self.kmax - self.kmin);
                scaled < u128::from(self.pmax.units()) * u128::from(above)
            }
        }
    }

    /// The probability that a packet that finds a queue of `queue` bytes is marked.
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
