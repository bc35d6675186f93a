//! The PFC state of a transmitter: the time until which each priority is paused. IEEE 802.1Qbb: a
//! pause lasts for its quanta, a new pause replaces it, and zero quanta end it.

use super::time::{LinkRate, Time};

/// Pause state of the eight priorities of a port.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)] // What is used for every packet comes last: see `Port`.
pub(crate) struct Pauses {
    until: [Time; 8],
    since: [Time; 8],
    /// Total time of ended pauses, for each priority.
    paused: [Time; 8],
    /// The priorities that wait, one bit each.
    waiting: u8,
}

impl Pauses {
    /// Applies a PFC frame that takes effect now.
    pub fn take(&mut self, enabled: u8, paused: u8, quanta: u16, rate: LinkRate, now: Time) {
        let quanta =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|p| if paused >> p & 1 == 1 { quanta } else { 0 });
        self.take_each(enabled, &quanta, rate, now, |_, _, _| {});
    }

    /// Applies a frame with quanta for each priority. Calls `ended` for each pause that has ended,
    /// with its priority, start and end.
    pub fn take_each(
        &mut self,
        enabled: u8,
        quanta: &[u16; 8],
        rate: LinkRate,
        now: Time,
        mut ended: impl FnMut(usize, Time, Time),
    ) {
        self.expire(now, &mut ended);
        for priority in (0..8_usize).filter(|p| enabled >> p & 1 == 1) {
            let (bit, span) = (1 << priority, rate.quanta(quanta[priority]));
            let pauses = span > Time::ZERO;
            match (self.waiting & bit != 0, pauses) {
                (false, true) => self.since[priority] = now,
                (true, false) => self.end(priority, now, &mut ended),
                _ => {}
            }
            if pauses {
                self.until[priority] = now + span;
                self.waiting |= bit;
            }
        }
    }

    fn end(&mut self, priority: usize, at: Time, ended: &mut impl FnMut(usize, Time, Time)) {
        self.waiting &= !(1 << priority);
        ended(priority, self.since[priority], at);
        self.paused[priority] = self.paused[priority] + (at - self.since[priority]);
    }

    /// The priorities paused now, one bit each.
    #[inline]
    pub fn waiting(&mut self, now: Time) -> u8 {
        self.expire(now, |_, _, _| {});
        self.waiting
    }

    /// Ends expired pauses and calls `ended` for each.
    #[inline]
    pub fn expire(&mut self, now: Time, mut ended: impl FnMut(usize, Time, Time)) {
        if self.waiting != 0 {
            for priority in 0..8 {
                if self.waiting >> priority & 1 == 1 && self.until[priority] <= now {
                    self.end(priority, self.until[priority], &mut ended);
                }
            }
        }
    }

    /// Start of the current pause of a priority, if it is paused.
    pub fn since(&self, priority: usize) -> Option<Time> {
        (self.waiting >> priority & 1 == 1).then(|| self.since[priority])
    }

    /// Start and end of the current pause of a priority, if it is paused.
    pub fn span(&self, priority: usize) -> Option<(Time, Time)> {
        self.since(priority).map(|since| (since, self.until[priority]))
    }

    /// Time since which a priority has been paused without interruption, if it is paused now.
    pub fn waits_since(&mut self, priority: u8, now: Time) -> Option<Time> {
        (self.waiting(now) >> priority & 1 == 1).then(|| self.since[usize::from(priority)])
    }

    /// End of the first pause among `priorities`.
    pub fn first_end(&self, priorities: u8) -> Option<Time> {
        let waiting = self.waiting & priorities;
        (0..8).filter(|p| waiting >> p & 1 == 1).map(|p| self.until[p]).min()
    }

    /// Total pause time until `now`, summed over the priorities.
    pub fn total(&mut self, now: Time) -> Time {
        let waiting = self.waiting(now);
        (0..8).fold(Time::ZERO, |sum, p| {
            let open = if waiting >> p & 1 == 1 { now - self.since[p] } else { Time::ZERO };
            sum + self.paused[p] + open
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quantum is 12.8 ns.
    const RATE: LinkRate = LinkRate::new(40_000_000_000);
    const P3: u8 = 1 << 3;
    const P4: u8 = 1 << 4;

    #[test]
    fn a_pause_lasts_exactly_its_quanta() {
        let mut pauses = Pauses::default();
        pauses.take(P3, P3, 100, RATE, Time::from_nanos(50));
        assert_eq!(pauses.first_end(0xff), Some(Time::from_nanos(50 + 1280)));
        assert_eq!(pauses.waiting(Time::from_nanos(50)), P3);
        assert_eq!(pauses.waiting(Time(1_329_999)), P3);
        assert_eq!(pauses.waiting(Time(1_330_000)), 0);
        assert_eq!(pauses.total(Time::from_millis(1)), Time::from_nanos(1280));
    }

    #[test]
    fn a_new_pause_replaces_the_old_one_and_zero_ends_it() {
        let mut pauses = Pauses::default();
        pauses.take(P3 | P4, P3 | P4, 100, RATE, Time::ZERO);
        pauses.take(P3, P3, 10, RATE, Time::from_nanos(100));
        assert_eq!(pauses.waiting(Time::from_nanos(228)), P4, "100 + 10 quanta are 228 ns");
        pauses.take(P4, 0, 0, RATE, Time::from_nanos(300));
        assert_eq!(pauses.waiting(Time::from_nanos(300)), 0);
        assert_eq!(pauses.total(Time::from_nanos(300)), Time::from_nanos(228 + 300));
    }

    #[test]
    fn priorities_not_enabled_are_unaffected() {
        let mut pauses = Pauses::default();
        pauses.take(P3, P3, 1000, RATE, Time::ZERO);
        pauses.take(P4, P4 | P3, 1, RATE, Time::ZERO);
        assert_eq!(pauses.waiting(Time::from_nanos(13)), P3);
    }
}
