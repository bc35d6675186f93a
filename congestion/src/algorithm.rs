//! What decides over a sender's rate: one of a closed set, with the same events.

pub mod dcqcn;
pub mod swift;
pub mod timely;

use crate::params::Params;
use crate::rate::Rate;
use dcqcn::ReactionPoint;
use swift::Swift;
use crate::time::{Duration, Instant};
use timely::Timely;

/// A sender's congestion control.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // One per QP, in place.
pub enum Controller {
    /// A rate that nothing changes.
    Fixed(Rate),
    /// DCQCN's reaction point.
    Dcqcn(ReactionPoint),
    /// TIMELY.
    Timely(Timely),
    /// Swift.
    Swift(Swift),
}

impl Controller {
    /// DCQCN with these parameters, on a line of `line`.
    pub fn dcqcn(params: &Params, line: Rate, now: Instant) -> Self {
        Self::Dcqcn(ReactionPoint::new(params, line, now))
    }

    /// TIMELY with these parameters, on a line of `line`.
    pub const fn timely(params: &Params, line: Rate) -> Self {
        Self::Timely(Timely::new(&params.timely, params.reaction.highest(line)))
    }

    /// Swift with these parameters, on a line of `line`.
    pub const fn swift(params: &Params, line: Rate) -> Self {
        Self::Swift(Swift::new(&params.swift, params.reaction.highest(line)))
    }

    /// `bytes` were sent.
    #[inline]
    pub fn on_sent(&mut self, bytes: u64, now: Instant) {
        if let Self::Dcqcn(point) = self {
            point.on_sent(bytes, now);
        }
    }

    /// `bytes` were acknowledged, the last of them `rtt` after they were sent.
    pub fn on_ack(&mut self, rtt: Duration, bytes: u64, now: Instant) {
        match self {
            Self::Timely(timely) => timely.on_ack(rtt, bytes, now),
            Self::Swift(swift) => swift.on_ack(rtt, bytes, now),
            Self::Fixed(_) | Self::Dcqcn(_) => {}
        }
    }

    /// A CNP came.
    pub fn on_cnp(&mut self, now: Instant) {
        if let Self::Dcqcn(point) = self {
            point.on_cnp(now);
        }
    }

    /// Packets were lost: a NAK or a time-out said so.
    pub fn on_loss(&mut self, now: Instant) {
        if let Self::Swift(swift) = self {
            swift.on_loss(now);
        }
    }

    /// Runs the timers that are due.
    #[inline]
    pub fn advance(&mut self, now: Instant) {
        if let Self::Dcqcn(point) = self {
            point.advance(now);
        }
    }

    /// When the rate may next change by itself; [`Instant::FAR`] if it does not.
    #[inline]
    pub fn next_event(&self) -> Instant {
        match self {
            Self::Dcqcn(point) => point.next_event(),
            Self::Fixed(_) | Self::Timely(_) | Self::Swift(_) => Instant::FAR,
        }
    }

    /// The rate, as of the last call that had a time.
    #[inline]
    pub fn rate(&self) -> Rate {
        match self {
            Self::Fixed(rate) => *rate,
            Self::Dcqcn(point) => point.rate(),
            Self::Timely(timely) => timely.rate(),
            Self::Swift(swift) => swift.rate(),
        }
    }

    /// Bytes that may be outstanding; `u64::MAX` where only the rate counts.
    #[inline]
    pub fn window(&self) -> u64 {
        match self {
            Self::Swift(swift) => swift.window(),
            Self::Fixed(_) | Self::Dcqcn(_) | Self::Timely(_) => u64::MAX,
        }
    }
}
