//! Errors of a link: packet loss and bit errors.

use rand_xoshiro::Xoshiro128PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Selects the frames that an error applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorModel {
    /// None.
    #[default]
    None,
    /// Each frame with a probability of n / 2^32.
    Rate(u32),
    /// Every n-th data packet.
    Every(u32),
}

/// The errors of one direction of a link. PFC frames are exempt: repetition would hide their loss
/// in some cases only.
#[derive(Debug, Clone)]
pub(crate) struct LinkErrors {
    loss: ErrorModel,
    corruption: ErrorModel,
    seen: u32,
    random: Xoshiro128PlusPlus,
}

/// The outcome for one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Intact,
    Corrupted,
    Lost,
}

impl LinkErrors {
    /// Errors with random numbers from `seed`; `None` if no frame is ever affected.
    pub fn new(loss: ErrorModel, corruption: ErrorModel, seed: u64) -> Option<Self> {
        let some = loss != ErrorModel::None || corruption != ErrorModel::None;
        some.then(|| Self {
            loss,
            corruption,
            seen: 0,
            random: Xoshiro128PlusPlus::seed_from_u64(seed),
        })
    }

    /// The outcome for the next data packet.
    pub fn next(&mut self) -> Delivery {
        self.seen = self.seen.wrapping_add(1);
        let mut hit = |hits| match hits {
            ErrorModel::None => false,
            ErrorModel::Rate(chance) => self.random.next_u32() < chance,
            ErrorModel::Every(n) => self.seen.is_multiple_of(n),
        };
        if hit(self.loss) {
            Delivery::Lost
        } else if hit(self.corruption) {
            Delivery::Corrupted
        } else {
            Delivery::Intact
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_256th_packet_is_lost() {
        let mut faults = LinkErrors::new(ErrorModel::Every(256), ErrorModel::None, 1).unwrap();
        let lost = (1..=1024).filter(|_| faults.next() == Delivery::Lost).count();
        assert_eq!(lost, 4);
    }

    #[test]
    fn an_error_rate_is_met() {
        let mut faults = LinkErrors::new(ErrorModel::None, ErrorModel::Rate(1 << 29), 7).unwrap();
        let hit = (0..80_000).filter(|_| faults.next() == Delivery::Corrupted).count();
        assert!((9_700..10_300).contains(&hit), "{hit}");
        assert!(LinkErrors::new(ErrorModel::None, ErrorModel::None, 1).is_none());
    }
}
