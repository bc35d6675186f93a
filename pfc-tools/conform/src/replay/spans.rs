//! Requests by the PSNs that they name. They are kept as ranges, because a READ in a capture may
//! name millions of PSNs.

use std::collections::BTreeMap;

use feroce_wire::Psn;

/// PSNs have 24 bits.
const MASK: u32 = 0xff_ffff;
/// Number of ranges that begin at or before a PSN and are searched for it.
const MAX_RANGES: usize = 64;

/// Ranges of PSNs, each with a number.
#[derive(Debug, Default)]
pub struct Spans(BTreeMap<u32, (u32, usize)>);

impl Spans {
    /// Adds `psns` PSNs from `first` on, with a `number` that is not below those before.
    pub fn add(&mut self, first: Psn, psns: u32, number: usize) {
        let range = self.0.entry(first.value()).or_insert((psns, number));
        *range = (range.0.max(psns), number);
    }

    /// Returns the highest number of a range that contains `psn`.
    pub fn last_of(&self, psn: Psn) -> Option<usize> {
        let psn = psn.value();
        let before = self.0.range(..=psn).rev().chain(self.0.range(psn + 1..).rev());
        let containing = before
            .take(MAX_RANGES)
            .filter(|&(start, (psns, _))| psn.wrapping_sub(*start) & MASK < *psns);
        containing.map(|(_, &(_, number))| number).max()
    }
}
