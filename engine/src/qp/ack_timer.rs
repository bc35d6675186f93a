//! The local ACK timer: how long a requester waits for an acknowledgement before it sends again.
//!
//! A program may ask for a timeout of 4.096 us * 2^n (C9-141). A core that shares its CPU may be
//! descheduled for much longer. So the timer has rules:
//!
//! 1. It is never shorter than a minimum, as in hardware: the core of the peer may be descheduled.
//! 2. Acknowledgements that arrived while this core was descheduled may still wait in the receive
//!    ring when the timer fires. A core handles what has arrived before its timers, one burst per
//!    turn. If more frames wait, or if the timer fires late, the timer runs on once: for as long as
//!    it was late, at least for an eighth of the timeout and at most for the timeout.
//!
//! 3. After a NAK, the peer is there, and the path loses packets. A responder sends one NAK per
//!    gap, so if the repeated packet is lost again, nothing but the timer tells; nor if the next
//!    NAK is lost. So the timer fires early: after a NAK, after 1 ms, 2 ms and so on up to the
//!    timeout, until there is progress; for 100 ms after a NAK, beginning with 2 ms. An early
//!    timeout is no retry.
//!
//! A minimum of 0 turns these rules off, for tests of conformance.

use super::attributes::ack_timeout;
use super::timer::{Timer, TimerTable};
use crate::time::{Duration, Instant};

/// A timer is late if it fires at least this part of the timeout after its deadline.
const LATE_PART: u32 = 8;

/// The first early timeout.
const EARLY: u64 = 1_000_000;

/// Time for which a path that has lost a packet counts as lossy.
const LOSSY: Duration = Duration::from_millis(100);

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct AckTimer {
    /// In nanoseconds; 0: no timeout.
    timeout: u64,
    /// Code of the shortest timeout; 0: the timer is exact.
    min: u8,
    /// The timer runs on after its deadline.
    is_extended: bool,
    /// The timer fires early, [`EARLY`] times two to this power after its start.
    early: Option<u8>,
    /// The path is lossy until then.
    lossy_until: Instant,
}

impl AckTimer {
    /// Without a timeout. `min`: code of the shortest timeout.
    pub fn new(min: u8) -> Self {
        Self { timeout: 0, min, is_extended: false, early: None, lossy_until: Instant::ZERO }
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

    /// Starts the timer. Without a timeout, no effect.
    #[inline]
    pub fn start(&mut self, timers: &mut TimerTable, now: Instant) {
        if self.timeout > 0 {
            self.early = self.early.filter(|_| now < self.lossy_until);
            timers.set(Timer::Ack, now + self.current());
            self.is_extended = false;
        }
    }

    /// There was progress.
    #[inline]
    pub fn on_progress(&mut self, now: Instant) {
        self.early = (now < self.lossy_until).then_some(1);
    }

    /// Lets the timer fire early until there is progress: the requester goes back after a NAK.
    pub fn fire_early(&mut self, now: Instant) {
        if self.min > 0 {
            (self.early, self.lossy_until) = (Some(0), now + LOSSY);
        }
    }

    /// Returns true if the timeout that has expired was an early one.
    pub fn take_early(&mut self) -> bool {
        let is_early = self.early.is_some_and(|count| EARLY << count < self.timeout);
        self.early = self.early.filter(|_| is_early).map(|count| count + 1);
        is_early
    }

    /// The time after which the timer fires now.
    fn current(&self) -> Duration {
        let early = self.early.map_or(self.timeout, |count| (EARLY << count).min(self.timeout));
        Duration::from_nanos(early)
    }

    /// Returns true if the timer has expired. A timer that fires late, or while received frames
    /// wait (`frames_wait`), runs on instead.
    pub fn take_expired(
        &mut self,
        timers: &mut TimerTable,
        frames_wait: bool,
        now: Instant,
    ) -> bool {
        let Some(late) = timers.take_expired(Timer::Ack, now) else { return false };
        let timeout = self.current();
        let short = timeout / LATE_PART;
        if self.min == 0 || self.is_extended || (late < short && !frames_wait) {
            return true;
        }
        timers.set(Timer::Ack, now + late.clamp(short, timeout));
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
        assert!(!timer.take_expired(&mut timers, false, at(8388)), "8388.608 us");
        assert!(!timer.take_expired(&mut timers, false, at(12_000)));
        assert_eq!(timers.next(), Some(at(12_000) + (at(12_000) - at(0) - timeout)));
        assert!(timer.take_expired(&mut timers, false, at(30_000)), "only once");
        timer.start(&mut timers, at(30_000));
        assert!(!timer.take_expired(&mut timers, false, at(60_000)));
        assert_eq!(timers.next(), Some(at(60_000) + timeout), "at most the timeout");
    }

    #[test]
    fn a_timer_that_is_a_little_late_or_exact_expires() {
        let (mut timer, mut timers) = started(11, 11);
        assert!(timer.take_expired(&mut timers, false, at(9000)));
        let (mut timer, mut timers) = started(0, 11);
        assert!(timer.take_expired(&mut timers, true, at(12_000)));
    }

    #[test]
    fn after_a_nak_the_timer_fires_early_until_there_is_progress() {
        let (mut timer, mut timers) = started(11, 11);
        timer.fire_early(at(0));
        for (started, fires) in [(0, 1000), (1000, 3000), (3000, 7000), (7000, 15_000)] {
            timer.start(&mut timers, at(started));
            assert!(timer.take_expired(&mut timers, false, at(fires)));
            assert!(timer.take_early(), "at {fires} us");
        }
        timer.start(&mut timers, at(15_000));
        assert!(!timer.take_expired(&mut timers, false, at(23_000)));
        assert!(timer.take_expired(&mut timers, false, at(23_389)) && !timer.take_early());
        timer.fire_early(at(20_000));
        timer.on_progress(at(21_000));
        timer.start(&mut timers, at(21_000));
        assert_eq!(timers.next(), Some(at(23_000)), "the path is lossy");
        timer.start(&mut timers, at(120_000));
        assert_eq!(timers.next(), Some(at(120_000) + timer.timeout().unwrap()));
        assert!(!timer.take_early());

        let (mut exact, mut timers) = started(0, 11);
        exact.fire_early(at(0));
        exact.start(&mut timers, at(0));
        assert_eq!(timers.next(), Some(at(0) + exact.timeout().unwrap()), "no early timeouts");
    }

    #[test]
    fn a_timer_runs_on_while_received_frames_wait() {
        let (mut timer, mut timers) = started(11, 11);
        assert!(!timer.take_expired(&mut timers, true, at(8389)));
        assert_eq!(timers.next(), Some(at(8389) + timer.timeout().unwrap() / 8));
        assert!(timer.take_expired(&mut timers, true, at(9500)), "only once");
    }
}
