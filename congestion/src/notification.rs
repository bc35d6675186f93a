//! DCQCN's notification point: when a receiver of marked packets sends a CNP.

use crate::params::{CnpTiming, NotificationParams};
use crate::time::{Duration, Instant};

/// The receiver side of DCQCN: the state of one CNP interval. A QP, a pair of IP addresses or a
/// port has such an interval.
#[derive(Clone, Copy, Debug)]
pub struct NotificationPoint {
    timing: CnpTiming,
    /// A marked packet arrived for which no CNP was sent.
    marked: bool,
    interval: Duration,
    /// End of the running interval; [`Instant::FAR`] if none runs.
    ends: Instant,
}

impl NotificationPoint {
    /// A notification point that has received no packet.
    pub const fn new(params: &NotificationParams) -> Self {
        let NotificationParams { cnp_timing, cnp_interval, .. } = *params;
        Self { timing: cnp_timing, marked: false, interval: cnp_interval, ends: Instant::FAR }
    }

    /// A packet arrived; `marked`: with ECN codepoint CE. Returns true if a CNP must be sent now.
    pub fn on_packet(&mut self, marked: bool, now: Instant) -> bool {
        match self.timing {
            CnpTiming::EveryMark => marked,
            CnpTiming::Gap => marked && self.start_gap(now),
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

    /// Ends the interval if it is over at `now`. Returns true if a CNP must be sent now, because a
    /// marked packet arrived in that interval.
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

    /// Next time to call [`advance`](Self::advance); [`Instant::FAR`] if a packet must arrive
    /// first.
    pub fn next_event(&self) -> Instant {
        if self.marked { self.ends } else { Instant::FAR }
    }

    /// Starts a gap. Returns false if a gap is already running.
    fn start_gap(&mut self, now: Instant) -> bool {
        let open = self.ends == Instant::FAR || now >= self.ends;
        if open {
            self.ends = now + self.interval;
        }
        open
    }

    /// End of the period that contains `now`.
    fn next_period(&self, now: Instant) -> Instant {
        let interval = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let late = now.as_nanos() - self.ends.as_nanos();
        Instant::from_nanos(now.as_nanos().saturating_add(interval - late % interval))
    }
}
