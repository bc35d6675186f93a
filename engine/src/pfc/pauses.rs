//! Pauses that the neighbour has asked for: until when each priority waits.

use feroce_congestion::Rate;
use feroce_wire::FlowControl;

use super::{Priorities, span};
use crate::time::{Duration, Instant};

/// Until when each priority waits. PFC and PAUSE have timers of their own, as in a MAC: a priority waits while one of the two runs.
#[derive(Debug, Clone)]
pub struct Pauses {
    /// Priorities whose PFC is obeyed.
    obeyed: Priorities,
    line: Rate,
    /// By PFC.
    until: [Instant; 8],
    /// By PAUSE.
    all_until: Instant,
    /// Of waiting priorities, since when that is not in `paused`.
    since: [Instant; 8],
    waiting: u8,
    paused: [Duration; 8],
}

impl Pauses {
    /// None yet. Pauses of `obeyed` count, in bit times of a link of the rate `line`; and PAUSE, which is about all priorities.
    pub fn new(obeyed: Priorities, line: Rate) -> Self {
        Self {
            obeyed,
            line,
            until: [Instant::ZERO; 8],
            all_until: Instant::ZERO,
            since: [Instant::ZERO; 8],
            waiting: 0,
            paused: [Duration::ZERO; 8],
        }
    }

    /// Takes a frame; whether a priority that waited goes on.
    pub fn take(&mut self, control: FlowControl, now: Instant) -> bool {
        self.advance(now);
        let before = self.waiting;
        match control {
            FlowControl::Pause { quanta } => self.all_until = now + span(quanta, self.line),
            FlowControl::Pfc { enabled, quanta } => {
                for priority in bits(enabled & self.obeyed.bits()) {
                    self.until[priority] = now + span(quanta[priority], self.line);
                }
            }
        }
        for priority in 0..8 {
            let (bit, waits) = (1 << priority, self.end(priority) > now);
            if waits && self.waiting & bit == 0 {
                self.since[priority] = now;
            }
            self.waiting = if waits { self.waiting | bit } else { self.waiting & !bit };
        }
        before & !self.waiting != 0
    }

    /// Ends the pauses whose time is over; whether there were any.
    pub fn advance(&mut self, now: Instant) -> bool {
        let before = self.waiting;
        for priority in bits(before) {
            let end = self.end(priority).min(now);
            self.paused[priority] += end.saturating_since(self.since[priority]);
            self.since[priority] = end;
            if self.end(priority) <= now {
                self.waiting &= !(1 << priority);
            }
        }
        before != self.waiting
    }

    /// Whether `priority` waits, as of the last call with a time.
    #[inline]
    pub fn holds(&self, priority: u8) -> bool {
        self.waiting >> (priority & 7) & 1 == 1
    }

    /// When the first pause ends by itself; [`Instant::FAR`] if there is none.
    pub fn next_end(&self) -> Instant {
        bits(self.waiting).map(|priority| self.end(priority)).min().unwrap_or(Instant::FAR)
    }

    /// For how long each priority was paused, up to the last call with a time.
    pub const fn paused(&self) -> &[Duration; 8] {
        &self.paused
    }

    fn end(&self, priority: usize) -> Instant {
        self.until[priority].max(self.all_until)
    }
}

fn bits(set: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |p| set >> p & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const P3: u8 = 1 << 3;
    const P4: u8 = 1 << 4;

    /// A quantum is 512 ns.
    fn pauses(obeyed: u8) -> Pauses {
        Pauses::new(Priorities::from_bits(obeyed), Rate::from_gbps(1))
    }

    fn pfc(enabled: u8, quanta: u16) -> FlowControl {
        FlowControl::Pfc { enabled, quanta: [quanta; 8] }
    }

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn waiting(pauses: &Pauses) -> Vec<u8> {
        (0..8).filter(|&p| pauses.holds(p)).collect()
    }

    #[test]
    fn a_pause_holds_for_its_quanta() {
        let mut pauses = pauses(P3);
        assert!(!pauses.take(pfc(P3 | P4, 100), at(50)));
        assert_eq!((waiting(&pauses), pauses.next_end()), (vec![3], at(50 + 51_200)));
        assert!(!pauses.advance(at(51_249)));
        assert!(pauses.advance(at(51_250)), "it goes on");
        assert_eq!((waiting(&pauses), pauses.next_end()), (vec![], Instant::FAR));
        assert_eq!(pauses.paused()[3], Duration::from_nanos(51_200));
        assert_eq!(pauses.paused()[4], Duration::ZERO, "not obeyed");
    }

    #[test]
    fn a_new_pause_replaces_the_old_one_and_xon_ends_it() {
        let mut pauses = pauses(P3 | P4);
        pauses.take(pfc(P3 | P4, 1000), at(0));
        assert!(!pauses.take(pfc(P3, 10), at(1000)), "shorter, and still one");
        assert_eq!(pauses.next_end(), at(1000 + 5120));
        assert!(pauses.take(pfc(P4, 0), at(2000)));
        assert_eq!(waiting(&pauses), [3]);
        assert!(!pauses.take(pfc(P4, 0), at(2000)), "nothing waited");
        pauses.advance(at(100_000));
        assert_eq!(pauses.paused()[3..5], [6120, 2000].map(Duration::from_nanos));
    }

    #[test]
    fn pause_stops_all_and_has_a_timer_of_its_own() {
        let mut pauses = pauses(P3);
        pauses.take(FlowControl::Pause { quanta: 10 }, at(0));
        assert_eq!(waiting(&pauses), [0, 1, 2, 3, 4, 5, 6, 7]);
        pauses.take(pfc(P3, 20), at(1000));
        assert!(pauses.take(FlowControl::Pause { quanta: 0 }, at(2000)));
        assert_eq!((waiting(&pauses), pauses.next_end()), (vec![3], at(11_240)));
        assert!(pauses.take(pfc(P3, 0), at(3000)));
        assert_eq!(pauses.paused()[2..4], [2000, 3000].map(Duration::from_nanos));
    }

    proptest! {
        /// A priority waits if and only if the last frame about it, or the last PAUSE, reaches that far; what is counted is the
        /// time that it waited.
        #[test]
        fn it_is_as_if_every_frame_were_remembered(
            frames in proptest::collection::vec((0..5000u64, any::<u8>(), 0..20u16, any::<bool>()), 0..40),
        ) {
            let mut pauses = pauses(P3);
            let (mut now, mut until, mut all) = (0, 0, 0);
            let mut paused = 0;
            for (gap, enabled, quanta, is_pause) in frames {
                paused += u64::min(until.max(all), now + gap).saturating_sub(now);
                now += gap;
                let control =
                    if is_pause { FlowControl::Pause { quanta } } else { pfc(enabled, quanta) };
                pauses.take(control, at(now));
                match is_pause {
                    true => all = now + u64::from(quanta) * 512,
                    false if enabled & P3 != 0 => until = now + u64::from(quanta) * 512,
                    false => {}
                }
                prop_assert_eq!(pauses.holds(3), until.max(all) > now);
                prop_assert_eq!(pauses.holds(2), all > now);
                prop_assert_eq!(pauses.paused()[3], Duration::from_nanos(paused));
            }
        }
    }
}
