//! HPCC (Li et al., SIGCOMM 2019, algorithm 1): the window follows the bytes in flight that the
//! switches report.

use super::{Algorithm, Control};
use crate::controller::{Ack, CongestionControl, Controller, Hop, Needs, Setup};
use crate::fraction::Fraction;
use crate::params::{Param, range};
use crate::rate::Rate;
use crate::telemetry::{BYTE, LOAD, PathLoad, narrow};
use crate::time::{Duration, Instant};

static ETA: Param = Param::fraction(
    "hpcc_eta",
    Fraction::ratio(95, 100),
    range::FRACTION_NOT_0,
    "target utilisation",
    "paper: 95%",
);
static MAX_STAGE: Param = Param::count(
    "hpcc_max_stage",
    5,
    0..=1000,
    "RTTs of additive increase before a multiplicative one",
    "paper: 5",
);
static AI: Param = Param::bytes(
    "hpcc_ai",
    80,
    0..=1 << 30,
    "bytes that an additive increase adds to the window (W_AI)",
    "paper: 80 bytes",
);
static BASE_RTT: Param = Param::time(
    "hpcc_base_rtt",
    Duration::ZERO,
    range::TIME_OR_0,
    "base RTT (T); 0: the path's",
    "paper: slightly above the largest base RTT of the network",
);
static MIN_RATE: Param = Param::rate(
    "hpcc_min_rate",
    Rate::from_mbps(100),
    range::RATE_NOT_0,
    "the lowest rate",
    "HPCC's MIN_RATE: 100 Mb/s",
);

/// HPCC: the window follows the bytes in flight that the switches report.
pub static ALGORITHM: Algorithm = Algorithm {
    name: "hpcc",
    params: &[&ETA, &MAX_STAGE, &AI, &BASE_RTT, &MIN_RATE],
    needs: Needs::TELEMETRY,
    starts_at_rate: false,
    new: |setup| Controller::new(Hpcc::new(setup)),
};

impl Control {
    /// HPCC.
    pub const HPCC: Self = Self::Algorithm(&ALGORITHM);
}

/// The HPCC state of one sender.
#[derive(Clone, Debug)]
pub struct Hpcc {
    eta: u64,
    max_stage: u32,
    ai: u64,
    /// The window and its limits in bytes * 2^16.
    window: u64,
    min: u64,
    max: u64,
    /// The reference window (W^c), by which a window is computed: it changes once per RTT, so that
    /// all acknowledgements of an RTT react to one state of the network.
    reference: u64,
    stage: u32,
    /// U: bytes in flight on the most loaded link, as a part of its bandwidth times the base RTT.
    path: PathLoad,
    /// When the reference window last changed.
    updated: Instant,
}

impl Hpcc {
    /// A sender at the link rate that has sent nothing.
    pub fn new(setup: &Setup<'_>) -> Self {
        let params = setup.params;
        let path = PathLoad::new(params.time(&BASE_RTT), setup.path);
        let max = path.bytes_at(setup.highest_rate()) * BYTE;
        let min = (path.bytes_at(params.rate(&MIN_RATE)) * BYTE).min(max);
        Self {
            eta: u64::from(params.fraction(&ETA).units()) >> 11,
            max_stage: params.count(&MAX_STAGE),
            ai: params.bytes(&AI) * BYTE,
            window: max,
            min,
            max,
            reference: max,
            stage: 0,
            path,
            updated: setup.now,
        }
    }

    /// ComputeWind: the window for U; with `is_update`, also the reference window.
    fn compute(&mut self, is_update: bool) {
        let multiplies = self.path.load >= self.eta || self.stage >= self.max_stage;
        let from = match multiplies {
            true => {
                let scaled = u128::from(self.reference) * u128::from(self.eta);
                narrow(scaled / u128::from(self.path.load.max(1)))
            }
            false => self.reference,
        };
        self.window = from.saturating_add(self.ai).clamp(self.min, self.max);
        if is_update {
            self.stage = if multiplies { 0 } else { self.stage + 1 };
            self.reference = self.window;
        }
    }
}

/// MeasureInflight: the part of U that a hop causes.
fn load(hop: &Hop, before: &Hop, time: u64, base_rtt: u64) -> u64 {
    let queue = hop.queue.min(before.queue);
    share(hop.sent.saturating_sub(before.sent), hop.rate, time)
        .saturating_add(share(queue, hop.rate, base_rtt))
}

/// `bytes` as a part of what a link of `rate` sends in `nanos`, in units of 2^-20.
fn share(bytes: u64, rate: Rate, nanos: u64) -> u64 {
    let capacity = u128::from(rate.as_bps()) * u128::from(nanos);
    narrow(u128::from(bytes) * 8 * 1_000_000_000 * u128::from(LOAD) / capacity.max(1))
}

impl CongestionControl for Hpcc {
    /// The window per base RTT.
    fn rate(&self) -> Rate {
        self.path.rate_of(self.window)
    }

    fn window(&self) -> u64 {
        self.window.div_ceil(BYTE)
    }

    fn on_ack(&mut self, ack: &Ack<'_>, now: Instant) {
        if ack.hops.is_empty() {
            return;
        }
        // The packet was sent with the present reference window.
        let is_update = ack.sent_at(now) >= self.updated;
        let is_comparable = self.path.take(ack.hops, load);
        if is_comparable {
            self.compute(is_update);
        }
        if is_update || !is_comparable {
            self.updated = now;
        }
    }
}
