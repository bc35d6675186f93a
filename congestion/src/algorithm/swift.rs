//! Swift (Kumar et al., SIGCOMM 2020, algorithm 1): the window follows the distance of the
//! round-trip time from a target delay.

use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::time::{Duration, Instant};

/// The parameters of Swift.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwiftParams {
    /// Target delay for a large window.
    pub base_target: Duration,
    /// Addition to the target per hop.
    pub hop_scale: Duration,
    /// Hops of the path.
    pub hops: u8,
    /// Largest addition to the target for a small window.
    pub fs_range: Duration,
    /// The window, in tenths of packets, up to which the largest addition applies.
    pub fs_min_cwnd: u32,
    /// The window, in tenths of packets, from which nothing is added.
    pub fs_max_cwnd: u32,
    /// Additive increase, in tenths of packets per RTT.
    pub ai: u32,
    /// Factor of multiplicative decrease.
    pub beta: Fraction,
    /// Largest part of the window that one decrease removes.
    pub max_mdf: Fraction,
    /// The smallest window, in thousandths of packets.
    pub min_cwnd: u32,
    /// The largest window, in packets.
    pub max_cwnd: u32,
    /// Bytes per packet: the unit of windows.
    pub packet: u32,
}

impl SwiftParams {
    /// The values of the paper where it gives them.
    pub const PAPER: Self = Self {
        base_target: Duration::from_micros(25),
        hop_scale: Duration::from_micros(1),
        hops: 1,
        fs_range: Duration::from_micros(50),
        fs_min_cwnd: 1,
        fs_max_cwnd: 1000,
        ai: 10,
        beta: Fraction::ratio(8, 10),
        max_mdf: Fraction::ratio(1, 2),
        min_cwnd: 1,
        max_cwnd: 1000,
        packet: 1024,
    };
}

/// The Swift state of one sender. A window below one packet is enforced by pacing at
/// [`rate`](Self::rate).
#[derive(Clone, Copy, Debug)]
pub struct Swift {
    params: SwiftParams,
    link_rate: Rate,
    /// The window in packets * 2^20.
    cwnd: u64,
    rtt: Duration,
    decreased: Option<Instant>,
}

const UNIT: u64 = 1 << 20;

impl Swift {
    /// A sender on a link of `link_rate`, with the largest window.
    pub const fn new(params: &SwiftParams, link_rate: Rate) -> Self {
        let cwnd = params.max_cwnd as u64 * UNIT;
        Self { params: *params, link_rate, cwnd, rtt: Duration::ZERO, decreased: None }
    }

    /// Maximum of outstanding bytes: at least one packet.
    pub fn window(&self) -> u64 {
        let bytes = u128::from(self.cwnd) * u128::from(self.params.packet) / u128::from(UNIT);
        u64::try_from(bytes).unwrap_or(u64::MAX).max(self.params.packet.into())
    }

    /// The pacing rate: the link rate unless the window is below one packet.
    pub fn rate(&self) -> Rate {
        let nanos = self.rtt.as_nanos();
        if self.cwnd >= UNIT || nanos == 0 {
            return self.link_rate;
        }
        let bits = u128::from(self.params.packet) * 8 * u128::from(self.cwnd) * 1_000_000_000;
        let rate = bits / u128::from(UNIT) / nanos;
        Rate::from_bps(u64::try_from(rate).unwrap_or(u64::MAX).max(1)).min(self.link_rate)
    }

    /// The target delay.
    pub fn target(&self) -> Duration {
        let SwiftParams { base_target, hop_scale, hops, .. } = self.params;
        base_target + hop_scale * u32::from(hops) + self.flow_scaling()
    }

    /// `bytes` were acknowledged; the last of them were sent `rtt` ago.
    pub fn on_ack(&mut self, rtt: Duration, bytes: u64, now: Instant) {
        self.rtt = rtt;
        let target = self.target();
        if rtt < target {
            self.increase(bytes);
        } else if self.can_decrease(now) {
            let over = (rtt - target).as_nanos();
            let part = Fraction::from_units(narrow((over << 31) / rtt.as_nanos().max(1)));
            let by = self.params.beta.of(part).min(self.params.max_mdf);
            self.decrease(by, now);
        }
    }

    /// Packets were lost, as a NAK or a timeout showed.
    pub fn on_loss(&mut self, now: Instant) {
        if self.can_decrease(now) {
            self.decrease(self.params.max_mdf, now);
        }
    }

    fn can_decrease(&self, now: Instant) -> bool {
        self.decreased.is_none_or(|last| now.saturating_since(last) >= self.rtt)
    }

    fn increase(&mut self, bytes: u64) {
        let packets = u128::from(bytes) * u128::from(UNIT) / u128::from(self.params.packet.max(1));
        let step = packets * u128::from(self.params.ai) / 10;
        let step =
            if self.cwnd >= UNIT { step * u128::from(UNIT) / u128::from(self.cwnd) } else { step };
        let max_cwnd = u64::from(self.params.max_cwnd) * UNIT;
        self.cwnd = self.cwnd.saturating_add(u64::try_from(step).unwrap_or(u64::MAX)).min(max_cwnd);
    }

    fn decrease(&mut self, by: Fraction, now: Instant) {
        let min_cwnd = u64::from(self.params.min_cwnd) * UNIT / 1000;
        let before = self.cwnd;
        self.cwnd = by.complement().of_u64(before).max(min_cwnd);
        if self.cwnd < before {
            self.decreased = Some(now);
        }
    }

    /// The addition to the target for a small window: many flows with small windows build a queue.
    fn flow_scaling(&self) -> Duration {
        let SwiftParams { fs_range, fs_min_cwnd, fs_max_cwnd, .. } = self.params;
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

fn narrow(units: u128) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
