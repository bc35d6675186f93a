//! The local ACK timer: how long a requester waits for an acknowledgement before it sends again.
//!
//! The timeout that a program asks for is 4.096 us * 2^n, which may be far below the time for which
//! a core that shares its CPU does not run. So the timer has two rules that hardware does not need:
//!
//! 1. It is never shorter than a minimum of some milliseconds, as the timers of most RNICs are. The
//!    peer's core may be the one that does not run.
//! 2. Time in which its own core did not run does not count: acknowledgements that arrived in this
//!    time are still in the receive ring when the timer fires. A timer that fires late runs on for
//!    as long as it was late, at most for the timeout, and only once.
//!
//! A minimum of 0 turns both rules off, for tests of conformance.

use super::attributes::ack_timeout;
use super::timer::{Timer, TimerTable};
use crate::time::{Duration, Instant};

/// A timer is late if it fires more than this part of the timeout after its deadline.
const LATE_PART: u32 = 8;

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct AckTimer {
    /// In nanoseconds; 0: no timeout.
    timeout: u64,
    /// Code of the shortest timeout; 0: the timer is exact.
    min: u8,
    /// The timer was late since it started.
    is_extended: bool,
}

impl AckTimer {
    /// Without a timeout. `min`: code of the shortest timeout.
    pub fn new(min: u8) -> Self {
        Self { timeout: 0, min, is_extended: false }
    }

    /// Sets the timeout for the code `code`; 0: no timeout.
    pub fn set_timeout(&mut self, code: u8) {
        let code = if code == 0 { 0 } else { code.max(self.min) };
        let timeout = ack_timeout(code).unwrap_or(Duration::ZERO);
        self.timeout = u64::try_from(timeout.as_nanos()).expect("at most 2.5 hours");
    }

    /// The timeout; `None`: wait without limit.
    #[inline]
    pub fn timeout(&self) -> Option<Duration> {
        (self.timeout > 0).then_some(Duration::from_nanos(self.timeout))
    }

    /// Starts the timer, or restarts it. Without a timeout, no effect.
    #[inline]
    pub fn start(&mut self, timers: &mut TimerTable, now: Instant) {
        if let Some(timeout) = self.timeout() {
            timers.set(Timer::Ack, now + timeout);
            self.is_extended = false;
        }
    }

    /// Returns true if the timer has expired. A timer that was late runs on instead.
    pub fn take_expired(&mut self, timers: &mut TimerTable, now: Instant) -> bool {
        let Some(late) = timers.take_expired(Timer::Ack, now) else { return false };
        let timeout = Duration::from_nanos(self.timeout);
        if self.min == 0 || self.is_extended || late * LATE_PART < timeout {
            return true;
        }
        timers.set(Timer::Ack, now + late.min(timeout));
        self.is_extended = true;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    /// A timer for the code `code`, started at time 0.
    fn started(min: u8, code: u8) -> (AckTimer, TimerTable) {
        let (mut timer, mut timers) = (AckTimer::new(min), TimerTable::default());
        timer.set_timeout(code);
        timer.start(&mut timers, at(0));
        (timer, timers)
    }

    #[test]
    fn a_timeout_is_not_shorter_than_the_minimum() {
        let micros = |min, code| {
            let (_, timers) = started(min, code);
            timers.next().map(|deadline| deadline.as_nanos() / 1000)
        };
        assert_eq!(micros(11, 8), Some(8388));
        assert_eq!(micros(11, 14), Some(67_108));
        assert_eq!(micros(0, 8), Some(1048));
        assert_eq!(micros(11, 0), None, "no timeout");
    }

    #[test]
    fn a_timer_that_fires_late_runs_on_once() {
        let (mut timer, mut timers) = started(11, 11);
        let timeout = timer.timeout().unwrap();
        assert!(!timer.take_expired(&mut timers, at(8388)), "8388.608 us");
        assert!(!timer.take_expired(&mut timers, at(12_000)));
        assert_eq!(timers.next(), Some(at(12_000) + (at(12_000) - at(0) - timeout)));
        assert!(timer.take_expired(&mut timers, at(30_000)), "only once");
        timer.start(&mut timers, at(30_000));
        assert!(!timer.take_expired(&mut timers, at(60_000)));
        assert_eq!(timers.next(), Some(at(60_000) + timeout), "at most the timeout");
    }

    #[test]
    fn a_timer_that_is_a_little_late_or_exact_expires() {
        let (mut timer, mut timers) = started(11, 11);
        assert!(timer.take_expired(&mut timers, at(9000)));
        let (mut timer, mut timers) = started(0, 11);
        assert!(timer.take_expired(&mut timers, at(12_000)));
    }
}
