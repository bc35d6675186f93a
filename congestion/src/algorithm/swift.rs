//! Swift (Kumar et al., SIGCOMM 2020, algorithm 1): the window follows the distance of the
//! round-trip time from a target delay.

use super::{Algorithm, Control};
use crate::controller::{Ack, CongestionControl, Controller, Needs, Setup};
use crate::fraction::Fraction;
use crate::params::{Param, range};
use crate::rate::Rate;
use crate::time::{Duration, Instant};

static BASE_TARGET: Param = Param::time(
    "swift_base_target",
    Duration::from_micros(25),
    range::TIME,
    "target delay of one hop at a large window",
    "the operator's; 25 us here",
);
static HOP_SCALE: Param = Param::time(
    "swift_hop_scale",
    Duration::from_micros(1),
    range::TIME_OR_0,
    "addition to the target per hop",
    "the operator's",
);
static HOPS: Param = Param::count(
    "swift_hops",
    0,
    0..=255,
    "switches on the path; 0: those of the path in a fabric, 1 in the engine",
    "paper: the path's, from the TTL",
);
static FS_RANGE: Param = Param::time(
    "swift_fs_range",
    Duration::from_micros(50),
    range::TIME_OR_0,
    "largest addition to the target for a small window",
    "the operator's",
);
static FS_MIN_CWND: Param = Param::count(
    "swift_fs_min_cwnd",
    1,
    1..=1000,
    "the window in tenths of packets up to which the largest addition applies",
    "0.1, as simulators of Swift have it",
);
static FS_MAX_CWND: Param = Param::count(
    "swift_fs_max_cwnd",
    1000,
    2..=100_000,
    "the window in tenths of packets from which nothing is added",
    "100, as simulators of Swift have it",
);
static AI: Param = Param::count(
    "swift_ai",
    10,
    1..=1000,
    "additive increase in tenths of packets per RTT",
    "1.0, as simulators of Swift have it",
);
static BETA: Param = Param::fraction(
    "swift_beta",
    Fraction::ratio(8, 10),
    range::FRACTION,
    "factor of multiplicative decrease",
    "0.8, as simulators of Swift have it",
);
static MAX_MDF: Param = Param::fraction(
    "swift_max_mdf",
    Fraction::ratio(1, 2),
    range::FRACTION,
    "largest part of the window that a decrease removes",
    "0.5, as simulators of Swift have it",
);
static MIN_CWND: Param = Param::count(
    "swift_min_cwnd",
    1,
    1..=1000,
    "the smallest window in thousandths of packets",
    "0.001, as simulators of Swift have it",
);
static MAX_CWND: Param =
    Param::count("swift_max_cwnd", 1000, 1..=100_000, "the largest window in packets", "not given");
static PACKET: Param = Param::bytes(
    "swift_packet",
    1024,
    64..=65_536,
    "bytes per packet: the unit of windows",
    "the path MTU",
);

/// Swift: the window follows the distance of the round-trip time from a target.
pub static ALGORITHM: Algorithm = Algorithm {
    name: "swift",
    params: &[
        &BASE_TARGET,
        &HOP_SCALE,
        &HOPS,
        &FS_RANGE,
        &FS_MIN_CWND,
        &FS_MAX_CWND,
        &AI,
        &BETA,
        &MAX_MDF,
        &MIN_CWND,
        &MAX_CWND,
        &PACKET,
    ],
    needs: Needs::EVERY_ACK,
    starts_at_rate: false,
    new: |setup| Controller::new(Swift::new(setup)),
};

impl Control {
    /// Swift.
    pub const SWIFT: Self = Self::Algorithm(&ALGORITHM);
}

/// The parameters in the units of the state.
#[derive(Clone, Copy, Debug)]
struct Rules {
    base_target: Duration,
    hop_scale: Duration,
    hops: u32,
    fs_range: Duration,
    fs_min_cwnd: u32,
    fs_max_cwnd: u32,
    ai: u32,
    beta: Fraction,
    max_mdf: Fraction,
    min_cwnd: u32,
    max_cwnd: u32,
    packet: u64,
}

/// The Swift state of one sender. A window below one packet is enforced by pacing at
/// [`rate`](CongestionControl::rate).
#[derive(Clone, Copy, Debug)]
pub struct Swift {
    rules: Rules,
    link_rate: Rate,
    /// The window in packets * 2^20.
    cwnd: u64,
    rtt: Duration,
    decreased: Option<Instant>,
}

const UNIT: u64 = 1 << 20;

impl Swift {
    /// A sender with the largest window.
    pub fn new(setup: &Setup<'_>) -> Self {
        let (params, link_rate) = (setup.params, setup.highest_rate());
        let rules = Rules {
            base_target: params.time(&BASE_TARGET),
            hop_scale: params.time(&HOP_SCALE),
            hops: match params.count(&HOPS) {
                0 => setup.path.hops.unwrap_or(1),
                hops => hops,
            },
            fs_range: params.time(&FS_RANGE),
            fs_min_cwnd: params.count(&FS_MIN_CWND),
            fs_max_cwnd: params.count(&FS_MAX_CWND),
            ai: params.count(&AI),
            beta: params.fraction(&BETA),
            max_mdf: params.fraction(&MAX_MDF),
            min_cwnd: params.count(&MIN_CWND),
            max_cwnd: params.count(&MAX_CWND),
            packet: params.bytes(&PACKET),
        };
        let cwnd = u64::from(rules.max_cwnd) * UNIT;
        Self { rules, link_rate, cwnd, rtt: Duration::ZERO, decreased: None }
    }

    /// The target delay.
    pub fn target(&self) -> Duration {
        let Rules { base_target, hop_scale, hops, .. } = self.rules;
        base_target + hop_scale * hops + self.flow_scaling()
    }

    fn can_decrease(&self, now: Instant) -> bool {
        self.decreased.is_none_or(|last| now.saturating_since(last) >= self.rtt)
    }

    fn increase(&mut self, bytes: u64) {
        let packets = u128::from(bytes) * u128::from(UNIT) / u128::from(self.rules.packet.max(1));
        let step = packets * u128::from(self.rules.ai) / 10;
        let step =
            if self.cwnd >= UNIT { step * u128::from(UNIT) / u128::from(self.cwnd) } else { step };
        let max_cwnd = u64::from(self.rules.max_cwnd) * UNIT;
        self.cwnd = self.cwnd.saturating_add(u64::try_from(step).unwrap_or(u64::MAX)).min(max_cwnd);
    }

    fn decrease(&mut self, by: Fraction, now: Instant) {
        let min_cwnd = u64::from(self.rules.min_cwnd) * UNIT / 1000;
        let before = self.cwnd;
        self.cwnd = by.complement().of_u64(before).max(min_cwnd);
        if self.cwnd < before {
            self.decreased = Some(now);
        }
    }

    /// The addition to the target for a small window: many flows with small windows build a queue.
    fn flow_scaling(&self) -> Duration {
        let Rules { fs_range, fs_min_cwnd, fs_max_cwnd, .. } = self.rules;
        // The argument is in tenths of packets * 2^20, like the window times ten.
        let inverse_root = |tenths: u64| (1u64 << 40) / tenths.isqrt().max(1);
        let min = inverse_root(u64::from(fs_max_cwnd) << 20);
        let max = inverse_root(u64::from(fs_min_cwnd) << 20).max(min);
        let current = inverse_root(self.cwnd * 10).clamp(min, max);
        let nanos =
            fs_range.as_nanos() * u128::from(current - min) / u128::from((max - min).max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl CongestionControl for Swift {
    /// Maximum of outstanding bytes: at least one packet.
    fn window(&self) -> u64 {
        let bytes = u128::from(self.cwnd) * u128::from(self.rules.packet) / u128::from(UNIT);
        u64::try_from(bytes).unwrap_or(u64::MAX).max(self.rules.packet)
    }

    /// The pacing rate: the link rate unless the window is below one packet.
    fn rate(&self) -> Rate {
        let nanos = self.rtt.as_nanos();
        if self.cwnd >= UNIT || nanos == 0 {
            return self.link_rate;
        }
        let bits = u128::from(self.rules.packet) * 8 * u128::from(self.cwnd) * 1_000_000_000;
        let rate = bits / u128::from(UNIT) / nanos;
        Rate::from_bps(u64::try_from(rate).unwrap_or(u64::MAX).max(1)).min(self.link_rate)
    }

    fn on_ack(&mut self, ack: &Ack<'_>, now: Instant) {
        let Ack { rtt, bytes, .. } = *ack;
        self.rtt = rtt;
        let target = self.target();
        if rtt < target {
            self.increase(bytes);
        } else if self.can_decrease(now) {
            let over = (rtt - target).as_nanos();
            let part = Fraction::from_units(narrow((over << 31) / rtt.as_nanos().max(1)));
            let by = self.rules.beta.of(part).min(self.rules.max_mdf);
            self.decrease(by, now);
        }
    }

    fn on_loss(&mut self, now: Instant) {
        if self.can_decrease(now) {
            self.decrease(self.rules.max_mdf, now);
        }
    }
}

fn narrow(units: u128) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
