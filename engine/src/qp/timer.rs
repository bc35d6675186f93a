//! The timers of a QP, in one small table.

use crate::time::{Duration, Instant};

/// A timer of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// The local ACK timeout: the oldest outstanding request is not acknowledged.
    Ack,
    /// The wait that an RNR NAK requested.
    Rnr,
}

const COUNT: usize = Timer::Rnr as usize + 1;

/// The deadlines of a QP's timers.
#[derive(Debug, Clone, Copy)]
pub struct TimerTable {
    deadlines: [Instant; COUNT],
}

impl Default for TimerTable {
    fn default() -> Self {
        Self { deadlines: [Instant::FAR; COUNT] }
    }
}

impl TimerTable {
    /// Starts `timer`, or restarts it.
    #[inline]
    pub fn set(&mut self, timer: Timer, deadline: Instant) {
        self.deadlines[timer as usize] = deadline;
    }

    /// Stops `timer`.
    #[inline]
    pub fn stop(&mut self, timer: Timer) {
        self.deadlines[timer as usize] = Instant::FAR;
    }

    /// Returns true if `timer` is running.
    #[inline]
    pub fn is_running(&self, timer: Timer) -> bool {
        self.deadlines[timer as usize] != Instant::FAR
    }

    /// If the deadline of `timer` has passed, stops the timer and returns the time since the
    /// deadline.
    pub fn take_expired(&mut self, timer: Timer, now: Instant) -> Option<Duration> {
        let deadline = self.deadlines[timer as usize];
        if now < deadline || !self.is_running(timer) {
            return None;
        }
        self.stop(timer);
        Some(now.saturating_since(deadline))
    }

    /// The earliest deadline.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        self.deadlines.iter().copied().min().filter(|&next| next != Instant::FAR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_timer_expires_first_and_once() {
        let mut timers = TimerTable::default();
        assert_eq!(timers.next(), None);
        timers.set(Timer::Ack, Instant::from_nanos(70));
        timers.set(Timer::Rnr, Instant::from_nanos(50));
        assert_eq!(timers.next(), Some(Instant::from_nanos(50)));
        assert_eq!(timers.take_expired(Timer::Rnr, Instant::from_nanos(49)), None);
        let late = timers.take_expired(Timer::Rnr, Instant::from_nanos(52));
        assert_eq!(late, Some(Duration::from_nanos(2)));
        assert_eq!(timers.take_expired(Timer::Rnr, Instant::from_nanos(52)), None);
        assert_eq!(timers.next(), Some(Instant::from_nanos(70)));
        timers.stop(Timer::Ack);
        assert!(!timers.is_running(Timer::Ack));
    }
}
