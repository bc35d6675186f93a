//! PowerTCP (Addanki et al., NSDI 2022, algorithm 1): the window follows the power, the product of
//! voltage (bytes in flight) and current (their rate), of the most loaded link.

use super::{Algorithm, Control};
use crate::controller::{Ack, CongestionControl, Controller, Hop, Needs, Setup};
use crate::fraction::Fraction;
use crate::params::{Param, range};
use crate::rate::Rate;
use crate::telemetry::{BYTE, LOAD, PathLoad, narrow};
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

/// The PowerTCP state of one sender.
#[derive(Clone, Debug)]
pub struct PowerTcp {
    gamma: Fraction,
    link_rate: Rate,
    /// Windows in bytes * 2^16: what an update adds, the window, its largest value, and the window
    /// of one RTT ago.
    beta: u64,
    window: u64,
    max: u64,
    old: u64,
    /// The smoothed power as a multiple of the power of a full link without a queue.
    path: PathLoad,
    /// When `old` last changed.
    updated: Instant,
}

impl PowerTcp {
    /// A sender at the link rate that has sent nothing.
    pub fn new(setup: &Setup<'_>) -> Self {
        let params = setup.params;
        let link_rate = setup.highest_rate();
        let path = PathLoad::new(params.time(&BASE_RTT), setup.path);
        let first = path.bytes_at(link_rate) * BYTE;
        let beta = (first / u64::from(params.count(&FLOWS))).max(1);
        Self {
            gamma: params.fraction(&GAMMA),
            link_rate,
            beta,
            window: first,
            // The equilibrium of a lone flow. More is never seen in the network: the queue is that
            // of the sender.
            max: first + beta,
            old: first,
            path,
            updated: setup.now,
        }
    }

    /// UPDATEWINDOW: w = gamma (w_old / power + beta) + (1 - gamma) w_old. The paper has w in place
    /// of the last w_old, which each acknowledgement of an RTT changes: gamma then damps nothing,
    /// and two flows oscillate below the equilibrium. The authors' simulator has w_old.
    fn compute(&mut self) {
        let scaled = u128::from(self.old) * u128::from(LOAD);
        let aim = narrow(scaled / u128::from(self.path.load.max(1)));
        let newest = self.gamma.of_u64(aim.saturating_add(self.beta));
        let kept = self.gamma.complement().of_u64(self.old);
        self.window = newest.saturating_add(kept).clamp(1, self.max);
    }
}

/// NORMPOWER: the power of a hop: current (growth of the queue and sent bytes, per time) times
/// voltage (queue and bandwidth-delay product), as a multiple of that of a full link without a
/// queue.
fn power(hop: &Hop, before: &Hop, time: u64, base_rtt: u64) -> u64 {
    let capacity = |time: u64| u128::from(hop.rate.as_bps()) * u128::from(time);
    let bits = |bytes: u64| u128::from(bytes) * 8 * 1_000_000_000;
    let arrived = (hop.queue + hop.sent).saturating_sub(before.queue + before.sent);
    let unit = u128::from(LOAD);
    let current = bits(arrived) * unit / capacity(time).max(1);
    let bdp = capacity(base_rtt).max(1);
    let voltage = (bits(hop.queue) + bdp) * unit / bdp;
    narrow(current.saturating_mul(voltage) / unit)
}

impl CongestionControl for PowerTcp {
    /// The window per base RTT, at most the link rate.
    fn rate(&self) -> Rate {
        self.path.rate_of(self.window).min(self.link_rate)
    }

    fn window(&self) -> u64 {
        self.window.div_ceil(BYTE)
    }

    fn on_ack(&mut self, ack: &Ack<'_>, now: Instant) {
        if ack.hops.is_empty() {
            return;
        }
        if self.path.take(ack.hops, power) {
            self.compute();
        }
        // UPDATEOLD: once per RTT. The packet was sent with the window of the last update or later.
        if ack.sent_at(now) >= self.updated {
            (self.old, self.updated) = (self.window, now);
        }
    }
}
