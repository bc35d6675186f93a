//! For which part of the time each priority stood still, look after look.

use std::collections::VecDeque;

use super::super::meter::TIMERS;
use super::super::recent::Recent;

/// All of the time.
pub const FULL: u64 = 1000;
/// Looks that are kept: more than a terminal has columns.
const LOOKS: usize = 512;

/// The last looks.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// In thousandths, the last first; nothing while the rate is unknown.
    shares: [VecDeque<Option<u64>>; TIMERS],
    is_known: [bool; TIMERS],
}

impl History {
    /// A further look.
    pub fn add(&mut self, recent: &Recent) {
        for (timer, shares) in self.shares.iter_mut().enumerate() {
            self.is_known[timer] |= recent.has(timer);
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss
            )] // 0 to 1000.
            let thousandths = |share: f64| (FULL as f64 * share.clamp(0.0, 1.0)).round() as u64;
            shares.push_front(recent.stood_still(timer).map(thousandths));
            shares.truncate(LOOKS);
        }
    }

    /// Whether a timer was ever set or ended.
    pub const fn is_known(&self, timer: usize) -> bool {
        self.is_known[timer]
    }

    /// What a timer stops stood still for so many thousandths of the time, the last look first.
    pub fn shares(&self, timer: usize) -> impl Iterator<Item = Option<u64>> + '_ {
        self.shares[timer].iter().copied()
    }
}
