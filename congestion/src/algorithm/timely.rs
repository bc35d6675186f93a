//! TIMELY (Mittal et al., SIGCOMM 2015, algorithm 1): the rate follows the gradient of round-trip
//! times.

use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::time::{Duration, Instant};

/// The parameters of TIMELY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimelyParams {
    /// Weight of the newest difference of RTTs in its moving average.
    pub alpha: Fraction,
    /// Factor of multiplicative decrease.
    pub beta: Fraction,
    /// RTT below which the rate rises regardless of the gradient.
    pub t_low: Duration,
    /// RTT above which the rate falls regardless of the gradient.
    pub t_high: Duration,
    /// RTT by which the gradient is normalised.
    pub min_rtt: Duration,
    /// Rate added by a step of additive increase.
    pub delta: Rate,
    /// Consecutive updates between `t_low` and `t_high` without a positive gradient from which on
    /// steps are larger.
    pub hai_after: u32,
    /// Factor by which these steps are larger.
    pub hai_times: u32,
    /// Acknowledged bytes per update (one segment).
    pub segment: u32,
    /// The lowest rate.
    pub min_rate: Rate,
}

impl TimelyParams {
    /// The values of the paper where it gives them; `alpha` is that of HPCC's simulator.
    pub const PAPER: Self = Self {
        alpha: Fraction::ratio(875, 1000),
        beta: Fraction::ratio(8, 10),
        t_low: Duration::from_micros(50),
        t_high: Duration::from_micros(500),
        min_rtt: Duration::from_micros(20),
        delta: Rate::from_mbps(10),
        hai_after: 5,
        hai_times: 5,
        segment: 16_384,
        min_rate: Rate::from_mbps(1),
    };
}

/// The TIMELY state of one sender.
#[derive(Clone, Copy, Debug)]
pub struct Timely {
    params: TimelyParams,
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
}

const SCALE_BITS: u32 = 16;

impl Timely {
    /// A sender on a link of `link_rate`, starting at that rate.
    pub const fn new(params: &TimelyParams, link_rate: Rate) -> Self {
        let params = *params;
        Self {
            params,
            link_rate,
            rate: link_rate,
            previous: 0,
            difference: 0,
            non_rising: 0,
            bytes: 0,
        }
    }

    /// The rate.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// `bytes` were acknowledged; the last of them were sent `rtt` ago.
    pub fn on_ack(&mut self, rtt: Duration, bytes: u64, _now: Instant) {
        self.bytes += bytes;
        if self.bytes < u64::from(self.params.segment) {
            return;
        }
        self.bytes %= u64::from(self.params.segment);
        let rtt = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX).clamp(1, MAX_RTT);
        let previous = core::mem::replace(&mut self.previous, rtt);
        if previous != 0 {
            let newest = (signed(rtt) - signed(previous)) << SCALE_BITS;
            let kept = weighted(self.difference, self.params.alpha.complement());
            self.difference = kept + weighted(newest, self.params.alpha);
        }
        self.update(rtt);
    }

    fn update(&mut self, rtt: u64) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let TimelyParams { beta, t_low, t_high, min_rtt, .. } = self.params;
        let (low, high, floor) = (nanos(t_low), nanos(t_high), nanos(min_rtt).max(1));
        if rtt < low {
            self.non_rising = 0;
            self.increase(1);
        } else if rtt > high {
            self.non_rising = 0;
            // 1 - high / rtt.
            self.decrease(beta.of(part(rtt - high, rtt)));
        } else if self.difference <= 0 {
            self.non_rising = self.non_rising.saturating_add(1);
            let times =
                if self.non_rising >= self.params.hai_after { self.params.hai_times } else { 1 };
            self.increase(times);
        } else {
            self.non_rising = 0;
            let gradient = part(self.difference.unsigned_abs(), floor << SCALE_BITS);
            self.decrease(beta.of(gradient));
        }
    }

    fn increase(&mut self, times: u32) {
        let step = self.params.delta.saturating_mul(times.into());
        self.rate = self.rate.saturating_add(step).min(self.link_rate);
    }

    fn decrease(&mut self, by: Fraction) {
        let floor = self.params.min_rate.min(self.link_rate);
        self.rate = self.rate.scaled(by.complement()).max(floor);
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
