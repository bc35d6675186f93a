//! AIMD: a CNP halves the rate, and a timer adds to it.

use super::Algorithm;
use crate::controller::{CongestionControl, Controller, Needs, Setup};
use crate::fraction::Fraction;
use crate::params::{Param, range};
use crate::rate::Rate;
use crate::time::{Duration, Instant};

static STEP: Param = Param::rate(
    "aimd_step",
    Rate::from_mbps(40),
    range::RATE_NOT_0,
    "rate that each period adds",
    "chosen for this example",
);
static PERIOD: Param = Param::time(
    "aimd_period",
    Duration::from_micros(50),
    range::TIME,
    "time between two increases, and shortest time between two cuts",
    "chosen for this example",
);

/// AIMD: a CNP halves the rate, and a timer adds to it.
pub static ALGORITHM: Algorithm = Algorithm {
    name: "aimd",
    params: &[&STEP, &PERIOD],
    needs: Needs::CNPS,
    starts_at_rate: false,
    new: |setup| Controller::new(Aimd::new(setup)),
};

/// The AIMD state of one sender.
#[derive(Clone, Debug)]
struct Aimd {
    step: Rate,
    period: Duration,
    highest: Rate,
    rate: Rate,
    /// A CNP before this time is ignored.
    next_cut: Instant,
    /// `FAR` at the highest rate.
    next_increase: Instant,
}

impl Aimd {
    fn new(setup: &Setup<'_>) -> Self {
        Self {
            step: setup.params.rate(&STEP),
            period: setup.params.time(&PERIOD),
            highest: setup.highest_rate(),
            rate: setup.highest_rate(),
            next_cut: setup.now,
            next_increase: Instant::FAR,
        }
    }
}

impl CongestionControl for Aimd {
    fn rate(&self) -> Rate {
        self.rate
    }

    fn on_cnp(&mut self, now: Instant) {
        if now < self.next_cut {
            return;
        }
        self.rate = self.rate.scaled(Fraction::ratio(1, 2)).max(self.step).min(self.highest);
        self.next_cut = now + self.period;
        self.next_increase = now + self.period;
    }

    fn next_timer(&self) -> Instant {
        self.next_increase
    }

    /// Each period that has ended adds a step: the sender may have been silent for several.
    fn on_timer(&mut self, now: Instant) {
        while self.next_increase <= now && self.rate < self.highest {
            self.rate = self.rate.saturating_add(self.step).min(self.highest);
            self.next_increase += self.period;
        }
        if self.rate == self.highest {
            self.next_increase = Instant::FAR;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::Path;
    use crate::params::Params;

    #[test]
    fn a_cnp_halves_the_rate_and_each_period_adds_a_step() {
        let us = |micros: u64| Instant::from_nanos(micros * 1000);
        let (params, link_rate) = (Params::default(), Rate::from_gbps(10));
        let path = Path::UNKNOWN; // or the hops and the base RTT of a path
        let setup = Setup { params: &params, link_rate, now: us(0), path };
        let mut aimd = (ALGORITHM.new)(&setup);
        aimd.on_cnp(us(1000));
        assert_eq!(aimd.rate(), Rate::from_gbps(5));
        aimd.on_cnp(us(1049));
        assert_eq!(aimd.rate(), Rate::from_gbps(5), "within the period");
        assert_eq!(aimd.next_event(), us(1050));
        aimd.advance(us(1099));
        assert_eq!(aimd.rate(), Rate::from_mbps(5040));
        // The timers that have ended run before a CNP.
        aimd.on_cnp(us(1150));
        assert_eq!(aimd.rate(), Rate::from_mbps(2560));
        aimd.advance(us(1_000_000));
        assert_eq!((aimd.rate(), aimd.next_event()), (link_rate, Instant::FAR));
    }
}
