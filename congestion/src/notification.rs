//! The notification point: when a receiver of marked packets sends a CNP.

use crate::params::{CnpTiming, NotificationParams};
use crate::time::{Duration, Instant};

/// The receiver's side of DCQCN, of whatever shares one CNP interval.
#[derive(Clone, Copy, Debug)]
pub struct NotificationPoint {
    timing: CnpTiming,
    /// A mark was seen that no CNP has told of.
    marked: bool,
    interval: Duration,
    /// The end of the running interval; [`Instant::FAR`] if none runs.
    ends: Instant,
}

impl NotificationPoint {
    /// One that has seen no packet.
    pub const fn new(params: &NotificationParams) -> Self {
        let NotificationParams { cnp_timing, cnp_interval, .. } = *params;
        Self { timing: cnp_timing, marked: false, interval: cnp_interval, ends: Instant::FAR }
    }

    /// A packet came, `marked` with CE or not. Whether to send a CNP now.
    pub fn on_packet(&mut self, marked: bool, now: Instant) -> bool {
        match self.timing {
            CnpTiming::EveryMark => marked,
            CnpTiming::Gap => marked && self.opens(now),
            CnpTiming::Window => {
                let due = self.advance(now);
                if due {
                    self.marked |= marked;
                } else if marked && self.ends == Instant::FAR {
                    self.ends = now + self.interval;
                    return true;
                } else {
                    self.marked |= marked;
                }
                due
            }
            CnpTiming::Periodic => {
                let first = self.ends == Instant::FAR;
                let due = self.advance(now);
                self.marked |= marked;
                if first {
                    self.ends = now + self.interval;
                    return core::mem::take(&mut self.marked);
                }
                due
            }
        }
    }

    /// Whether to send a CNP now, because an interval with a mark in it has ended by `now`.
    pub fn advance(&mut self, now: Instant) -> bool {
        if now < self.ends {
            return false;
        }
        let due = core::mem::take(&mut self.marked);
        self.ends = match self.timing {
            CnpTiming::Periodic => self.next_period(now),
            CnpTiming::Window if due => now + self.interval,
            _ => Instant::FAR,
        };
        due
    }

    /// When to call [`advance`](Self::advance) next; [`Instant::FAR`] if a packet must come first.
    pub fn next_event(&self) -> Instant {
        if self.marked { self.ends } else { Instant::FAR }
    }

    /// Whether no gap is running; then one begins.
    fn opens(&mut self, now: Instant) -> bool {
        let open = self.ends == Instant::FAR || now >= self.ends;
        if open {
            self.ends = now + self.interval;
        }
        open
    }

    /// The first end of a period after `now`.
    fn next_period(&self, now: Instant) -> Instant {
        let interval = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let late = now.as_nanos() - self.ends.as_nanos();
        Instant::from_nanos(now.as_nanos().saturating_add(interval - late % interval))
    }
}
