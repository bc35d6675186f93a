//! DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257): the window follows the fraction of marked
//! bytes.

use super::{Algorithm, Control};
use crate::controller::{Ack, CongestionControl, Controller, Figures, Needs, Setup};
use crate::fraction::Fraction;
use crate::params::{Param, range};
use crate::rate::Rate;
use crate::time::{Duration, Instant};

static G: Param = Param::fraction(
    "dctcp_g",
    Fraction::ratio(1, 16),
    range::FRACTION_NOT_0,
    "gain of alpha's moving average",
    "paper: 1/16",
);
static INITIAL_ALPHA: Param = Param::fraction(
    "dctcp_initial_alpha",
    Fraction::ONE,
    range::FRACTION,
    "alpha before the first window",
    "RFC 8257: 1",
);
static FIRST_WINDOW: Param = Param::count(
    "dctcp_first_window",
    10,
    1..=100_000,
    "the first window in packets; slow start doubles it each RTT until the first mark",
    "RFC 6928: 10",
);
static MIN_WINDOW: Param = Param::count(
    "dctcp_min_window",
    2,
    1..=1000,
    "the smallest window in packets",
    "RFC 5681 and Linux: 2",
);
static MAX_WINDOW: Param = Param::count(
    "dctcp_max_window",
    10_000,
    1..=100_000,
    "the largest window in packets",
    "not given",
);
static PACKET: Param = Param::bytes(
    "dctcp_packet",
    1024,
    64..=65_536,
    "bytes per packet: the unit of windows; in the engine, the marked bytes of a CNP",
    "the path MTU",
);

/// DCTCP: the window follows the fraction of marked bytes.
pub static ALGORITHM: Algorithm = Algorithm {
    name: "dctcp",
    params: &[&G, &INITIAL_ALPHA, &FIRST_WINDOW, &MIN_WINDOW, &MAX_WINDOW, &PACKET],
    needs: Needs::ECHO,
    starts_at_rate: false,
    new: |setup| Controller::new(Dctcp::new(setup)),
};

impl Control {
    /// DCTCP.
    pub const DCTCP: Self = Self::Algorithm(&ALGORITHM);
}

/// The DCTCP state of one sender.
#[derive(Clone, Copy, Debug)]
pub struct Dctcp {
    link_rate: Rate,
    g: Fraction,
    packet: u64,
    /// The window and its limits in bytes * 2^16: at a large window, an acknowledgement adds a
    /// fraction of a byte.
    window: u64,
    min: u64,
    max: u64,
    is_slow_start: bool,
    alpha: Fraction,
    /// Acknowledged and marked bytes of the observed window, which began at `since`.
    acknowledged: u64,
    marked: u64,
    since: Instant,
    /// When the window was last cut: packets sent before cut it no further.
    cut: Option<Instant>,
    rtt: Duration,
}

const UNIT: u64 = 1 << 16;

impl Dctcp {
    /// A sender that has sent nothing.
    pub fn new(setup: &Setup<'_>) -> Self {
        let params = setup.params;
        let packet = params.bytes(&PACKET);
        let packets = |param| u64::from(params.count(param)) * packet * UNIT;
        let (min, max) = (packets(&MIN_WINDOW), packets(&MAX_WINDOW).max(packets(&MIN_WINDOW)));
        Self {
            link_rate: setup.highest_rate(),
            g: params.fraction(&G),
            packet,
            window: packets(&FIRST_WINDOW).clamp(min, max),
            min,
            max,
            is_slow_start: true,
            alpha: params.fraction(&INITIAL_ALPHA),
            acknowledged: 0,
            marked: 0,
            since: setup.now,
            cut: None,
            rtt: Duration::ZERO,
        }
    }

    /// The moving average of the fraction of marked bytes.
    pub const fn alpha(&self) -> Fraction {
        self.alpha
    }

    /// alpha = (1 - g) alpha + g F, once per window of data.
    fn end_window(&mut self, now: Instant) {
        let marked = (u128::from(self.marked) << 31) / u128::from(self.acknowledged.max(1));
        let marked = Fraction::from_units(u32::try_from(marked).unwrap_or(u32::MAX));
        self.alpha = self.g.complement().of(self.alpha).saturating_add(self.g.of(marked));
        (self.acknowledged, self.marked, self.since) = (0, 0, now);
    }

    /// Removes the part `by` of the window, because of a packet that was sent at `sent`. At most
    /// once per window of data.
    fn cut(&mut self, by: Fraction, sent: Instant, now: Instant) {
        if !self.is_cut_after(sent) {
            self.window = by.complement().of_u64(self.window).max(self.min);
            self.cut = Some(now);
            self.is_slow_start = false;
        }
    }

    fn is_cut_after(&self, sent: Instant) -> bool {
        self.cut.is_some_and(|cut| sent < cut)
    }

    /// One packet per window of data; in slow start, one per acknowledged packet.
    fn grow(&mut self, bytes: u64) {
        let step = match self.is_slow_start {
            true => u128::from(bytes) * u128::from(UNIT),
            false => {
                let packets = u128::from(bytes) * u128::from(self.packet);
                packets * u128::from(UNIT) * u128::from(UNIT) / u128::from(self.window)
            }
        };
        let step = u64::try_from(step).unwrap_or(u64::MAX);
        self.window = self.window.saturating_add(step).min(self.max);
    }

    fn rtt_ago(&self, now: Instant) -> Instant {
        Ack::new(self.rtt, 0).sent_at(now)
    }
}

impl CongestionControl for Dctcp {
    fn rate(&self) -> Rate {
        self.link_rate
    }

    fn window(&self) -> u64 {
        self.window / UNIT
    }

    fn on_ack(&mut self, ack: &Ack<'_>, now: Instant) {
        self.rtt = ack.rtt;
        self.acknowledged += ack.bytes;
        if ack.is_marked {
            self.marked += ack.bytes;
        }
        let sent = ack.sent_at(now);
        if sent >= self.since {
            self.end_window(now);
        }
        if ack.is_marked {
            self.cut(self.alpha.shift_right(1), sent, now);
        } else if !self.is_cut_after(sent) {
            self.grow(ack.bytes);
        }
    }

    /// In the engine: one packet was marked. It was sent about an RTT ago.
    fn on_cnp(&mut self, now: Instant) {
        self.marked += self.packet;
        self.cut(self.alpha.shift_right(1), self.rtt_ago(now), now);
    }

    fn on_loss(&mut self, now: Instant) {
        self.cut(Fraction::ratio(1, 2), self.rtt_ago(now), now);
    }

    fn figures(&self) -> Figures {
        Figures { target: None, alpha: Some(self.alpha) }
    }
}
