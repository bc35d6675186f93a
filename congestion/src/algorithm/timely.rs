//! TIMELY (Mittal et al., SIGCOMM 2015, algorithm 1): the rate follows the gradient of round-trip
//! times.

use super::{Algorithm, Control};
use crate::controller::{Ack, CongestionControl, Controller, Needs};
use crate::fraction::Fraction;
use crate::params::{Param, Params, range};
use crate::rate::Rate;
use crate::time::{Duration, Instant};

static ALPHA: Param = Param::fraction(
    "timely_alpha",
    Fraction::ratio(875, 1000),
    range::FRACTION_NOT_0,
    "weight of the newest difference of RTTs",
    "HPCC's TimelyAlpha: 0.875",
);
static BETA: Param = Param::fraction(
    "timely_beta",
    Fraction::ratio(8, 10),
    range::FRACTION,
    "factor of multiplicative decrease",
    "paper: 0.8",
);
static T_LOW: Param = Param::time(
    "timely_t_low",
    Duration::from_micros(50),
    range::TIME,
    "RTT below which the rate rises",
    "paper: 50 us",
);
static T_HIGH: Param = Param::time(
    "timely_t_high",
    Duration::from_micros(500),
    range::TIME,
    "RTT above which the rate falls",
    "paper: 500 us",
);
static MIN_RTT: Param = Param::time(
    "timely_min_rtt",
    Duration::from_micros(20),
    range::TIME,
    "RTT by which the gradient is normalised",
    "paper: 20 us; HPCC's TimelyMinRtt",
);
static DELTA: Param = Param::rate(
    "timely_delta",
    Rate::from_mbps(10),
    range::RATE,
    "rate that a step of additive increase adds",
    "paper: 10 Mb/s",
);
static HAI_AFTER: Param = Param::count(
    "timely_hai_after",
    5,
    1..=1000,
    "consecutive updates between the thresholds without a positive gradient from which on steps \
     are larger",
    "paper: five in a row",
);
static HAI_TIMES: Param = Param::count(
    "timely_hai_times",
    5,
    1..=1000,
    "factor by which these steps are larger",
    "paper: N = 5",
);
static SEGMENT: Param = Param::bytes(
    "timely_segment",
    16_384,
    1..=1 << 30,
    "acknowledged bytes per update",
    "paper: 16 to 64 KB",
);
static MIN_RATE: Param = Param::rate(
    "timely_min_rate",
    Rate::from_mbps(100),
    range::RATE_NOT_0,
    "the lowest rate",
    "paper: not given; HPCC's MIN_RATE: 100 Mb/s",
);

/// TIMELY: the rate follows the gradient of round-trip times.
pub static ALGORITHM: Algorithm = Algorithm {
    name: "timely",
    params: &[
        &ALPHA, &BETA, &T_LOW, &T_HIGH, &MIN_RTT, &DELTA, &HAI_AFTER, &HAI_TIMES, &SEGMENT,
        &MIN_RATE,
    ],
    needs: Needs::ACKS,
    starts_at_rate: false,
    new: |setup| Controller::new(Timely::new(setup.params, setup.highest_rate())),
};

impl Control {
    /// TIMELY.
    pub const TIMELY: Self = Self::Algorithm(&ALGORITHM);
}

/// The parameters in the units of the state.
#[derive(Clone, Copy, Debug)]
struct Rules {
    alpha: Fraction,
    beta: Fraction,
    t_low: Duration,
    t_high: Duration,
    min_rtt: Duration,
    delta: Rate,
    hai_after: u32,
    hai_times: u32,
    segment: u64,
    min_rate: Rate,
}

/// The TIMELY state of one sender.
#[derive(Clone, Copy, Debug)]
pub struct Timely {
    rules: Rules,
    link_rate: Rate,
    rate: Rate,
    /// The RTT of the previous update in ns; 0 before the first.
    previous: u64,
    /// The moving average of RTT differences in ns * 2^16.
    difference: i64,
    /// Consecutive updates between `t_low` and `t_high` without a positive gradient.
    non_rising: u32,
    /// Bytes acknowledged since the last update.
    bytes: u64,
    /// When the rate was last decreased. Packets sent before saw the queue of the old rate.
    decreased: Option<Instant>,
}

const SCALE_BITS: u32 = 16;

impl Timely {
    /// A sender on a link of `link_rate`, starting at that rate.
    pub fn new(params: &Params, link_rate: Rate) -> Self {
        let rules = Rules {
            alpha: params.fraction(&ALPHA),
            beta: params.fraction(&BETA),
            t_low: params.time(&T_LOW),
            t_high: params.time(&T_HIGH),
            min_rtt: params.time(&MIN_RTT),
            delta: params.rate(&DELTA),
            hai_after: params.count(&HAI_AFTER),
            hai_times: params.count(&HAI_TIMES),
            segment: params.bytes(&SEGMENT),
            min_rate: params.rate(&MIN_RATE),
        };
        Self {
            rules,
            link_rate,
            rate: link_rate,
            previous: 0,
            difference: 0,
            non_rising: 0,
            bytes: 0,
            decreased: None,
        }
    }

    /// Changes the rate for the RTT of a packet that was sent at `sent`.
    fn update(&mut self, rtt: u64, sent: Instant, now: Instant) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let Rules { beta, t_low, t_high, min_rtt, .. } = self.rules;
        let (low, high, floor) = (nanos(t_low), nanos(t_high), nanos(min_rtt).max(1));
        if rtt < low {
            self.non_rising = 0;
            self.increase(1);
        } else if rtt > high {
            self.non_rising = 0;
            // 1 - high / rtt.
            self.decrease(beta.of(part(rtt - high, rtt)), sent, now);
        } else if self.difference <= 0 {
            self.non_rising = self.non_rising.saturating_add(1);
            let times =
                if self.non_rising >= self.rules.hai_after { self.rules.hai_times } else { 1 };
            self.increase(times);
        } else {
            self.non_rising = 0;
            let gradient = part(self.difference.unsigned_abs(), floor << SCALE_BITS);
            self.decrease(beta.of(gradient), sent, now);
        }
    }

    fn increase(&mut self, times: u32) {
        let step = self.rules.delta.saturating_mul(times.into());
        self.rate = self.rate.saturating_add(step).min(self.link_rate);
    }

    /// At most once per RTT: with a decrease per update, hundreds of updates that see one queue
    /// would multiply.
    fn decrease(&mut self, by: Fraction, sent: Instant, now: Instant) {
        if self.decreased.is_some_and(|last| sent < last) {
            return;
        }
        self.decreased = Some(now);
        let floor = self.rules.min_rate.min(self.link_rate);
        self.rate = self.rate.scaled(by.complement()).max(floor);
    }
}

impl CongestionControl for Timely {
    fn rate(&self) -> Rate {
        self.rate
    }

    fn on_ack(&mut self, ack: &Ack<'_>, now: Instant) {
        self.bytes += ack.bytes;
        if self.bytes < self.rules.segment {
            return;
        }
        self.bytes %= self.rules.segment;
        let rtt = u64::try_from(ack.rtt.as_nanos()).unwrap_or(u64::MAX).clamp(1, MAX_RTT);
        let previous = core::mem::replace(&mut self.previous, rtt);
        if previous != 0 {
            let newest = (signed(rtt) - signed(previous)) << SCALE_BITS;
            let kept = weighted(self.difference, self.rules.alpha.complement());
            self.difference = kept + weighted(newest, self.rules.alpha);
        }
        self.update(rtt, ack.sent_at(now), now);
    }
}

/// Longer RTTs are treated as this one, so that RTT differences times 2^SCALE_BITS fit an `i64`.
/// In ns: about 18 minutes.
const MAX_RTT: u64 = 1 << 40;

#[allow(clippy::cast_possible_wrap)] // At most MAX_RTT.
const fn signed(rtt: u64) -> i64 {
    rtt as i64
}

fn weighted(n: i64, by: Fraction) -> i64 {
    let part = by.of_u64(n.unsigned_abs());
    let part = i64::try_from(part).unwrap_or(i64::MAX);
    if n < 0 { -part } else { part }
}

/// `n / of`, at most 1.
fn part(n: u64, of: u64) -> Fraction {
    let units = (u128::from(n) << 31) / u128::from(of.max(1));
    Fraction::from_units(u32::try_from(units).unwrap_or(u32::MAX))
}
