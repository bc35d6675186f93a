//! Congestion control algorithms: the registry ([`ALGORITHMS`]), the choice of a user ([`Control`])
//! and the state of an algorithm for one sender ([`Controller`]).
//!
//! Each algorithm is one file in this folder, one row of the registry and one variant of
//! [`Controller`]. Its parameters are rows of [`params::TABLE`](crate::params::TABLE).

pub mod dcqcn;
pub mod swift;
pub mod timely;

use core::fmt;
use core::str::FromStr;

use dcqcn::ReactionPoint;
use swift::Swift;
use timely::Timely;

use crate::params::{Kind, Params, Part};
use crate::rate::Rate;
use crate::time::{Duration, Instant};

/// A registry row: a congestion control algorithm.
#[derive(Debug)]
pub struct Algorithm {
    /// The name in settings.
    pub name: &'static str,
    /// The part of the parameter table that holds its parameters.
    pub part: Part,
    /// Creates the state of a sender that has sent nothing, for a link of the given rate.
    pub new: fn(&Params, Rate, Instant) -> Controller,
    /// The algorithm measures round trips: the sender reports acknowledgements and losses to it.
    pub needs_acks: bool,
    /// The algorithm reacts to CNPs: data packets must be ECN-capable, or no switch marks them.
    pub needs_cnps: bool,
}

impl PartialEq for Algorithm {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Algorithm {}

macro_rules! registry {
    ($($(#[$doc:meta])* $id:ident = $name:literal { $($field:ident: $value:expr),+ $(,)? })+) => {
        $($(#[$doc])* pub static $id: Algorithm = Algorithm { name: $name, $($field: $value),+ };)+

        /// All algorithms, in the order of the documentation.
        pub static ALGORITHMS: &[&Algorithm] = &[$(&$id),+];

        impl Control {
            $($(#[$doc])* pub const $id: Self = Self::Algorithm(&$id);)+

            /// The accepted texts, for error messages and help.
            pub const EXPECTS: &str = concat!(
                "`off`, ",
                $("`", $name, "`, ",)+
                "or a fixed rate such as `10Gb/s`",
            );
        }
    };
}

registry! {
    /// DCQCN: the rate follows CNPs.
    DCQCN = "dcqcn" {
        part: Part::Reaction,
        new: Controller::dcqcn,
        needs_acks: false,
        needs_cnps: true,
    }
    /// TIMELY: the rate follows the gradient of round-trip times.
    TIMELY = "timely" {
        part: Part::Timely,
        new: |params, link_rate, _| Controller::timely(params, link_rate),
        needs_acks: true,
        needs_cnps: false,
    }
    /// Swift: the window follows the distance of the round-trip time from a target.
    SWIFT = "swift" {
        part: Part::Swift,
        new: |params, link_rate, _| Controller::swift(params, link_rate),
        needs_acks: true,
        needs_cnps: false,
    }
}

/// The congestion control that a user chooses for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Control {
    /// None: a QP sends as fast as it can, ignores CNPs and sends none.
    #[default]
    Off,
    /// A fixed rate, which no feedback changes.
    Fixed(Rate),
    /// An algorithm of the registry.
    Algorithm(&'static Algorithm),
}

const OFF: &str = "off";

impl Control {
    /// Returns true if acknowledgements and losses must be reported to the controller.
    pub const fn needs_acks(self) -> bool {
        matches!(self, Self::Algorithm(algorithm) if algorithm.needs_acks)
    }

    /// Returns true if the sender slows down for CNPs. Only such a sender may send ECN-capable
    /// packets: a switch marks an ECN-capable packet instead of dropping it, so if its sender
    /// ignored the mark, the queue would grow at the cost of the senders that obey.
    pub const fn needs_cnps(self) -> bool {
        matches!(self, Self::Algorithm(algorithm) if algorithm.needs_cnps)
    }

    /// Creates the state of a sender that has sent nothing.
    pub fn controller(self, params: &Params, link_rate: Rate, now: Instant) -> Controller {
        match self {
            Self::Off => Controller::Fixed(link_rate),
            Self::Fixed(rate) => Controller::Fixed(params.reaction.highest(rate)),
            Self::Algorithm(algorithm) => (algorithm.new)(params, link_rate, now),
        }
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad(OFF),
            Self::Fixed(rate) => fmt::Display::fmt(rate, f),
            Self::Algorithm(algorithm) => f.pad(algorithm.name),
        }
    }
}

/// The text names no congestion control; [`Control::EXPECTS`] lists the accepted texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownControl;

impl FromStr for Control {
    type Err = UnknownControl;
    fn from_str(text: &str) -> Result<Self, UnknownControl> {
        if text == OFF {
            return Ok(Self::Off);
        }
        if let Some(algorithm) = ALGORITHMS.iter().find(|algorithm| algorithm.name == text) {
            return Ok(Self::Algorithm(algorithm));
        }
        let rate = Kind::Rate.parse(text).filter(|&rate| rate > 0);
        rate.map(|rate| Self::Fixed(Rate::from_bps(rate))).ok_or(UnknownControl)
    }
}

/// The congestion control state of one sender. The sender reports events; the controller returns
/// a rate and a window.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // One per QP, stored inline.
pub enum Controller {
    /// A fixed rate.
    Fixed(Rate),
    /// DCQCN's reaction point.
    Dcqcn(ReactionPoint),
    /// TIMELY.
    Timely(Timely),
    /// Swift.
    Swift(Swift),
}

impl Controller {
    /// DCQCN on a link of `link_rate`.
    pub fn dcqcn(params: &Params, link_rate: Rate, now: Instant) -> Self {
        Self::Dcqcn(ReactionPoint::new(params, link_rate, now))
    }

    /// TIMELY on a link of `link_rate`.
    pub const fn timely(params: &Params, link_rate: Rate) -> Self {
        Self::Timely(Timely::new(&params.timely, params.reaction.highest(link_rate)))
    }

    /// Swift on a link of `link_rate`.
    pub const fn swift(params: &Params, link_rate: Rate) -> Self {
        Self::Swift(Swift::new(&params.swift, params.reaction.highest(link_rate)))
    }

    /// Switches to `control` with other parameters at `now`. DCQCN keeps its rate if it stays
    /// DCQCN; everything else starts over.
    pub fn reconfigure(
        &mut self,
        control: Control,
        params: &Params,
        link_rate: Rate,
        now: Instant,
    ) {
        let new = control.controller(params, link_rate, now);
        match (&mut *self, &new) {
            (Self::Dcqcn(point), Self::Dcqcn(_)) => point.set_params(params, link_rate, now),
            _ => *self = new,
        }
    }

    /// DCQCN's reaction point; `None` for other controllers.
    pub const fn reaction_point(&self) -> Option<&ReactionPoint> {
        match self {
            Self::Dcqcn(point) => Some(point),
            _ => None,
        }
    }

    /// `bytes` were sent.
    #[inline]
    pub fn on_sent(&mut self, bytes: u64, now: Instant) {
        match self {
            Self::Dcqcn(point) => point.on_sent(bytes, now),
            Self::Fixed(_) | Self::Timely(_) | Self::Swift(_) => {}
        }
    }

    /// `bytes` were acknowledged; the last of them were sent `rtt` ago.
    pub fn on_ack(&mut self, rtt: Duration, bytes: u64, now: Instant) {
        match self {
            Self::Timely(timely) => timely.on_ack(rtt, bytes, now),
            Self::Swift(swift) => swift.on_ack(rtt, bytes, now),
            Self::Fixed(_) | Self::Dcqcn(_) => {}
        }
    }

    /// A CNP arrived.
    pub fn on_cnp(&mut self, now: Instant) {
        match self {
            Self::Dcqcn(point) => point.on_cnp(now),
            Self::Fixed(_) | Self::Timely(_) | Self::Swift(_) => {}
        }
    }

    /// Packets were lost, as a NAK or a timeout showed.
    pub fn on_loss(&mut self, now: Instant) {
        match self {
            Self::Swift(swift) => swift.on_loss(now),
            Self::Fixed(_) | Self::Dcqcn(_) | Self::Timely(_) => {}
        }
    }

    /// Runs the timers that are due.
    #[inline]
    pub fn advance(&mut self, now: Instant) {
        match self {
            Self::Dcqcn(point) => point.advance(now),
            Self::Fixed(_) | Self::Timely(_) | Self::Swift(_) => {}
        }
    }

    /// Next time at which a timer may change the rate; [`Instant::FAR`] if no timer will.
    #[inline]
    pub fn next_event(&self) -> Instant {
        match self {
            Self::Dcqcn(point) => point.next_event(),
            Self::Fixed(_) | Self::Timely(_) | Self::Swift(_) => Instant::FAR,
        }
    }

    /// The rate at the time of the last event or [`advance`](Self::advance).
    #[inline]
    pub fn rate(&self) -> Rate {
        match self {
            Self::Fixed(rate) => *rate,
            Self::Dcqcn(point) => point.rate(),
            Self::Timely(timely) => timely.rate(),
            Self::Swift(swift) => swift.rate(),
        }
    }

    /// Maximum of outstanding bytes; `u64::MAX` for controllers that limit only the rate.
    #[inline]
    pub fn window(&self) -> u64 {
        match self {
            Self::Swift(swift) => swift.window(),
            Self::Fixed(_) | Self::Dcqcn(_) | Self::Timely(_) => u64::MAX,
        }
    }
}
