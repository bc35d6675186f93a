//! History of the share of time for which each pause timer (of a priority, or PAUSE) blocked, one
//! value per update. The share of a priority includes the time blocked by PAUSE.

use std::collections::VecDeque;

use super::super::delta::Delta;
use super::super::timer::TIMERS;

/// A share of 100 %, in thousandths.
pub const FULL: u64 = 1000;
/// Updates kept: more than a terminal has columns.
const MAX_UPDATES: usize = 512;

/// The last updates.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Shares in thousandths, latest first; `None` if no frame was seen yet or the link rate is
    /// unknown, and no NIC counter of pause time increased.
    shares: [VecDeque<Option<u64>>; TIMERS],
    is_known: [bool; TIMERS],
}

impl History {
    /// Adds an update.
    pub fn add(&mut self, delta: &Delta) {
        for (timer, shares) in self.shares.iter_mut().enumerate() {
            self.is_known[timer] |= delta.has(timer);
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss
            )] // 0 to 1000.
            let thousandths = |share: f64| (FULL as f64 * share.clamp(0.0, 1.0)).round() as u64;
            shares.push_front(delta.blocked_time(timer).map(thousandths));
            shares.truncate(MAX_UPDATES);
        }
    }

    /// Returns true if a frame for this timer was ever seen, or counted by the NIC.
    pub const fn is_known(&self, timer: usize) -> bool {
        self.is_known[timer]
    }

    /// Shares of time, in thousandths, for which the timer was blocked; latest first.
    pub fn shares(&self, timer: usize) -> impl Iterator<Item = Option<u64>> + '_ {
        self.shares[timer].iter().copied()
    }
}
