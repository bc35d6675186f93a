//! PowerTCP (Addanki et al., NSDI 2022, algorithm 1): the window follows the power, the product of
//! voltage (bytes in flight) and current (their rate), of the most loaded link.

use alloc::vec::Vec;

use super::{Algorithm, Control};
use crate::controller::{Ack, CongestionControl, Controller, Hop, Needs, Setup};
use crate::fraction::Fraction;
use crate::params::{Param, range};
use crate::rate::Rate;
use crate::time::{Duration, Instant};

static GAMMA: Param = Param::fraction(
    "powertcp_gamma",
    Fraction::ratio(9, 10),
    range::FRACTION_NOT_0,
    "weight of the newest window (gamma)",
    "paper: 0.9",
);
static FLOWS: Param = Param::count(
    "powertcp_flows",
    10,
    1..=100_000,
    "flows that a host's link is expected to have (N): an update adds the N-th part of the link's \
     bandwidth-delay product (beta)",
    "authors' code: 10",
);
static BASE_RTT: Param = Param::time(
    "powertcp_base_rtt",
    Duration::ZERO,
    range::TIME_OR_0,
    "base RTT (tau); 0: the path's",
    "paper: the largest RTT of the network",
);

/// PowerTCP: the window follows the power of the most loaded link.
pub static ALGORITHM: Algorithm = Algorithm {
    name: "powertcp",
    params: &[&GAMMA, &FLOWS, &BASE_RTT],
    needs: Needs::TELEMETRY,
    starts_at_rate: false,
    new: |setup| Controller::new(PowerTcp::new(setup)),
};

impl Control {
    /// PowerTCP.
    pub const POWERTCP: Self = Self::Algorithm(&ALGORITHM);
}

/// The base RTT of an unknown path.
const UNKNOWN_BASE_RTT: Duration = Duration::from_micros(13);

/// The PowerTCP state of one sender.
#[derive(Clone, Debug)]
pub struct PowerTcp {
    gamma: Fraction,
    link_rate: Rate,
    /// The base RTT in ns.
    base_rtt: u64,
    /// Windows in bytes * 2^16: what an update adds, the window, its largest value, and the window
    /// of one RTT ago.
    beta: u64,
    window: u64,
    max: u64,
    old: u64,
    /// The smoothed power as a multiple of the power of a full link without a queue; in units of
    /// 2^-20.
    power: u64,
    /// The telemetry of the previous acknowledgement.
    hops: Vec<Hop>,
    /// When `old` last changed.
    updated: Instant,
}

const UNIT: u64 = 1 << 16;
const POWER_UNIT: u64 = 1 << 20;

/// The hops for which a sender has memory from the start.
const USUAL_HOPS: usize = 8;

impl PowerTcp {
    /// A sender at the link rate that has sent nothing.
    pub fn new(setup: &Setup<'_>) -> Self {
        let params = setup.params;
        let base_rtt = match params.time(&BASE_RTT) {
            Duration::ZERO => setup.path.base_rtt.unwrap_or(UNKNOWN_BASE_RTT),
            time => time,
        };
        let link_rate = setup.highest_rate();
        let first = link_rate.bytes_in(base_rtt).max(1) * UNIT;
        let beta = (first / u64::from(params.count(&FLOWS))).max(1);
        Self {
            gamma: params.fraction(&GAMMA),
            link_rate,
            base_rtt: u64::try_from(base_rtt.as_nanos()).unwrap_or(u64::MAX).max(1),
            beta,
            window: first,
            // The equilibrium of a lone flow. More is never seen in the network: the queue is that
            // of the sender.
            max: first + beta,
            old: first,
            power: POWER_UNIT,
            hops: Vec::with_capacity(USUAL_HOPS),
            updated: setup.now,
        }
    }

    /// NORMPOWER: the smoothed power of the path, from two acknowledgements.
    fn measure(&mut self, hops: &[Hop]) {
        let (mut most, mut over) = (0, 0);
        for (hop, before) in hops.iter().zip(&self.hops) {
            let time = u64::try_from((hop.at - before.at).as_nanos()).unwrap_or(u64::MAX);
            if time == 0 {
                continue;
            }
            let power = power(hop, before, time, self.base_rtt);
            if power > most {
                (most, over) = (power, time);
            }
        }
        let over = over.min(self.base_rtt);
        let parts = |part: u64, time: u64| u128::from(part) * u128::from(time);
        let sum = parts(self.power, self.base_rtt - over) + parts(most, over);
        self.power = narrow(sum / u128::from(self.base_rtt));
    }

    /// UPDATEWINDOW: w = gamma (w_old / power + beta) + (1 - gamma) w.
    fn compute(&mut self) {
        let scaled = u128::from(self.old) * u128::from(POWER_UNIT);
        let aim = narrow(scaled / u128::from(self.power.max(1)));
        let newest = self.gamma.of_u64(aim.saturating_add(self.beta));
        let kept = self.gamma.complement().of_u64(self.window);
        self.window = newest.saturating_add(kept).clamp(1, self.max);
    }
}

/// The power of a hop: current (growth of the queue and sent bytes, per time) times voltage (queue
/// and bandwidth-delay product), as a multiple of that of a full link without a queue.
fn power(hop: &Hop, before: &Hop, time: u64, base_rtt: u64) -> u64 {
    let capacity = |time: u64| u128::from(hop.rate.as_bps()) * u128::from(time);
    let bits = |bytes: u64| u128::from(bytes) * 8 * 1_000_000_000;
    let arrived = (hop.queue + hop.sent).saturating_sub(before.queue + before.sent);
    let unit = u128::from(POWER_UNIT);
    let current = bits(arrived) * unit / capacity(time).max(1);
    let bdp = capacity(base_rtt).max(1);
    let voltage = (bits(hop.queue) + bdp) * unit / bdp;
    narrow(current.saturating_mul(voltage) / unit)
}

fn narrow(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

impl CongestionControl for PowerTcp {
    /// The window per base RTT, at most the link rate.
    fn rate(&self) -> Rate {
        let bits = u128::from(self.window) * 8 * 1_000_000_000 / u128::from(UNIT);
        Rate::from_bps(narrow(bits / u128::from(self.base_rtt))).min(self.link_rate)
    }

    fn window(&self) -> u64 {
        self.window.div_ceil(UNIT)
    }

    fn on_ack(&mut self, ack: &Ack<'_>, now: Instant) {
        if ack.hops.is_empty() {
            return;
        }
        if self.hops.len() == ack.hops.len() {
            self.measure(ack.hops);
            self.compute();
        }
        self.hops.clear();
        self.hops.extend_from_slice(ack.hops);
        // UPDATEOLD: once per RTT. The packet was sent with the window of the last update or later.
        if ack.sent_at(now) >= self.updated {
            (self.old, self.updated) = (self.window, now);
        }
    }
}
