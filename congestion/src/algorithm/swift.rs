//! Swift (Kumar et al., SIGCOMM 2020, algorithm 1): a window by the distance of the delay from a target.

use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::time::{Duration, Instant};

/// The parameters of Swift.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwiftParams {
    /// Target delay for a large window.
    pub base_target: Duration,
    /// What each hop adds to it.
    pub hop_scale: Duration,
    /// Hops of the path.
    pub hops: u8,
    /// What a small window adds to the target at most.
    pub fs_range: Duration,
    /// The window, in tenths of packets, at which that most is added.
    pub fs_min_cwnd: u32,
    /// The window, in tenths of packets, from which nothing is added.
    pub fs_max_cwnd: u32,
    /// Additive increase, in tenths of packets per RTT.
    pub ai: u32,
    /// Factor of multiplicative decrease.
    pub beta: Fraction,
    /// The largest part that a decrease takes.
    pub max_mdf: Fraction,
    /// The smallest window, in thousandths of packets.
    pub min_cwnd: u32,
    /// The largest window, in packets.
    pub max_cwnd: u32,
    /// Bytes of a packet, in which windows are counted.
    pub packet: u32,
}

impl SwiftParams {
    /// Those of the paper, where it tells.
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

/// A sender's window by Swift. A window below a packet is kept by pacing: [`rate`](Self::rate).
#[derive(Clone, Copy, Debug)]
pub struct Swift {
    params: SwiftParams,
    line: Rate,
    /// In packets * 2^20.
    cwnd: u64,
    rtt: Duration,
    decreased: Option<Instant>,
}

const UNIT: u64 = 1 << 20;

impl Swift {
    /// A sender on a line of `line`, with the largest window.
    pub const fn new(params: &SwiftParams, line: Rate) -> Self {
        let cwnd = params.max_cwnd as u64 * UNIT;
        Self { params: *params, line, cwnd, rtt: Duration::ZERO, decreased: None }
    }

    /// Bytes that may be outstanding: at least a packet.
    pub fn window(&self) -> u64 {
        let bytes = u128::from(self.cwnd) * u128::from(self.params.packet) / u128::from(UNIT);
        u64::try_from(bytes).unwrap_or(u64::MAX).max(self.params.packet.into())
    }

    /// The rate to pace with: the line's unless the window is below a packet.
    pub fn rate(&self) -> Rate {
        let nanos = self.rtt.as_nanos();
        if self.cwnd >= UNIT || nanos == 0 {
            return self.line;
        }
        let bits = u128::from(self.params.packet) * 8 * u128::from(self.cwnd) * 1_000_000_000;
        let rate = bits / u128::from(UNIT) / nanos;
        Rate::from_bps(u64::try_from(rate).unwrap_or(u64::MAX).max(1)).min(self.line)
    }

    /// The delay to reach.
    pub fn target(&self) -> Duration {
        let SwiftParams { base_target, hop_scale, hops, .. } = self.params;
        base_target + hop_scale * u32::from(hops) + self.flow_scaling()
    }

    /// `bytes` were acknowledged, the last of them after `rtt`.
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

    /// Packets were lost: a NAK or a time-out said so.
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
        let most = u64::from(self.params.max_cwnd) * UNIT;
        self.cwnd = self.cwnd.saturating_add(u64::try_from(step).unwrap_or(u64::MAX)).min(most);
    }

    fn decrease(&mut self, by: Fraction, now: Instant) {
        let least = u64::from(self.params.min_cwnd) * UNIT / 1000;
        let before = self.cwnd;
        self.cwnd = by.complement().of_u64(before).max(least);
        if self.cwnd < before {
            self.decreased = Some(now);
        }
    }

    /// What a small window adds to the target: many flows make a queue by their number.
    fn flow_scaling(&self) -> Duration {
        let SwiftParams { fs_range, fs_min_cwnd, fs_max_cwnd, .. } = self.params;
        // Of tenths of packets * 2^20, as is a window times ten.
        let inverse_root = |tenths: u64| (1u64 << 40) / tenths.isqrt().max(1);
        let least = inverse_root(u64::from(fs_max_cwnd) << 20);
        let most = inverse_root(u64::from(fs_min_cwnd) << 20).max(least);
        let here = inverse_root(self.cwnd * 10).clamp(least, most);
        let nanos =
            fs_range.as_nanos() * u128::from(here - least) / u128::from((most - least).max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

fn narrow(units: u128) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
