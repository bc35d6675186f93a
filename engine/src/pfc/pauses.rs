//! Pauses requested by the neighbour: until when each priority is paused.

use feroce_congestion::Rate;
use feroce_wire::FlowControl;

use super::config::{Priorities, pause_time};
use crate::time::{Duration, Instant};

/// The pauses of each priority. PFC and PAUSE have separate timers, as in a MAC: a priority is
/// paused while either runs.
#[derive(Debug, Clone)]
pub struct Pauses {
    /// Priorities whose PFC pauses are obeyed.
    obeyed: Priorities,
    link_rate: Rate,
    /// Ends of the PFC pauses.
    until: [Instant; 8],
    /// End of the PAUSE pause, which applies to all priorities.
    all_until: Instant,
    /// For each paused priority: the time up to which its pause is counted in `paused`.
    since: [Instant; 8],
    /// Paused priorities, one bit each.
    active: u8,
    /// Total paused time of each priority.
    paused: [Duration; 8],
}

impl Pauses {
    /// No pause yet. PFC is obeyed for the priorities `obeyed`, PAUSE for all. Durations are in bit
    /// times of a link of `link_rate`.
    pub fn new(obeyed: Priorities, link_rate: Rate) -> Self {
        Self {
            obeyed,
            link_rate,
            until: [Instant::ZERO; 8],
            all_until: Instant::ZERO,
            since: [Instant::ZERO; 8],
            active: 0,
            paused: [Duration::ZERO; 8],
        }
    }

    /// Applies a received frame. Returns true if the pause of a priority has ended.
    pub fn on_frame(&mut self, control: FlowControl, now: Instant) -> bool {
        self.advance(now);
        let before = self.active;
        match control {
            FlowControl::Pause { quanta } => {
                self.all_until = now + pause_time(quanta, self.link_rate)
            }
            FlowControl::Pfc { enabled, quanta } => {
                for priority in bits(enabled & self.obeyed.bits()) {
                    self.until[priority] = now + pause_time(quanta[priority], self.link_rate);
                }
            }
        }
        for priority in 0..8 {
            let (bit, is_paused) = (1 << priority, self.end(priority) > now);
            if is_paused && self.active & bit == 0 {
                self.since[priority] = now;
            }
            self.active = if is_paused { self.active | bit } else { self.active & !bit };
        }
        before & !self.active != 0
    }

    /// Ends the pauses that are over at `now`. Returns true if there were any.
    pub fn advance(&mut self, now: Instant) -> bool {
        let before = self.active;
        for priority in bits(before) {
            let end = self.end(priority).min(now);
            self.paused[priority] += end.saturating_since(self.since[priority]);
            self.since[priority] = end;
            if self.end(priority) <= now {
                self.active &= !(1 << priority);
            }
        }
        before != self.active
    }

    /// Returns true if `priority` was paused at the time of the last call.
    #[inline]
    pub fn is_paused(&self, priority: u8) -> bool {
        self.active >> (priority & 7) & 1 == 1
    }

    /// Time at which the first pause ends by its timer; [`Instant::FAR`] without a pause.
    pub fn next_end(&self) -> Instant {
        bits(self.active).map(|priority| self.end(priority)).min().unwrap_or(Instant::FAR)
    }

    /// How long each priority was paused, up to the time of the last call.
    pub const fn paused(&self) -> &[Duration; 8] {
        &self.paused
    }

    /// The end of the pause of `priority`, in the past if there is none.
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

    fn paused(pauses: &Pauses) -> Vec<u8> {
        (0..8).filter(|&p| pauses.is_paused(p)).collect()
    }

    #[test]
    fn a_pause_lasts_for_its_quanta() {
        let mut pauses = pauses(P3);
        assert!(!pauses.on_frame(pfc(P3 | P4, 100), at(50)));
        assert_eq!((paused(&pauses), pauses.next_end()), (vec![3], at(50 + 51_200)));
        assert!(!pauses.advance(at(51_249)));
        assert!(pauses.advance(at(51_250)), "the pause is over");
        assert_eq!((paused(&pauses), pauses.next_end()), (vec![], Instant::FAR));
        assert_eq!(pauses.paused()[3], Duration::from_nanos(51_200));
        assert_eq!(pauses.paused()[4], Duration::ZERO, "not obeyed");
    }

    #[test]
    fn a_new_pause_replaces_the_old_one_and_xon_ends_it() {
        let mut pauses = pauses(P3 | P4);
        pauses.on_frame(pfc(P3 | P4, 1000), at(0));
        assert!(!pauses.on_frame(pfc(P3, 10), at(1000)), "shorter, but still a pause");
        assert_eq!(pauses.next_end(), at(1000 + 5120));
        assert!(pauses.on_frame(pfc(P4, 0), at(2000)));
        assert_eq!(paused(&pauses), [3]);
        assert!(!pauses.on_frame(pfc(P4, 0), at(2000)), "no priority was paused");
        pauses.advance(at(100_000));
        assert_eq!(pauses.paused()[3..5], [6120, 2000].map(Duration::from_nanos));
    }

    #[test]
    fn pause_stops_all_priorities_and_has_its_own_timer() {
        let mut pauses = pauses(P3);
        pauses.on_frame(FlowControl::Pause { quanta: 10 }, at(0));
        assert_eq!(paused(&pauses), [0, 1, 2, 3, 4, 5, 6, 7]);
        pauses.on_frame(pfc(P3, 20), at(1000));
        assert!(pauses.on_frame(FlowControl::Pause { quanta: 0 }, at(2000)));
        assert_eq!((paused(&pauses), pauses.next_end()), (vec![3], at(11_240)));
        assert!(pauses.on_frame(pfc(P3, 0), at(3000)));
        assert_eq!(pauses.paused()[2..4], [2000, 3000].map(Duration::from_nanos));
    }

    proptest! {
        /// A priority is paused exactly while the pause of the last PFC frame for it, or of the
        /// last PAUSE, runs. The counted time is the paused time.
        #[test]
        fn pauses_equal_those_of_a_simple_model(
            frames in proptest::collection::vec(
                (0..5000u64, any::<u8>(), 0..20u16, any::<bool>()),
                0..40,
            ),
        ) {
            let mut pauses = pauses(P3);
            let (mut now, mut until, mut all) = (0, 0, 0);
            let mut paused = 0;
            for (gap, enabled, quanta, is_pause) in frames {
                paused += u64::min(until.max(all), now + gap).saturating_sub(now);
                now += gap;
                let control =
                    if is_pause { FlowControl::Pause { quanta } } else { pfc(enabled, quanta) };
                pauses.on_frame(control, at(now));
                match is_pause {
                    true => all = now + u64::from(quanta) * 512,
                    false if enabled & P3 != 0 => until = now + u64::from(quanta) * 512,
                    false => {}
                }
                prop_assert_eq!(pauses.is_paused(3), until.max(all) > now);
                prop_assert_eq!(pauses.is_paused(2), all > now);
                prop_assert_eq!(pauses.paused()[3], Duration::from_nanos(paused));
            }
        }
    }
}
