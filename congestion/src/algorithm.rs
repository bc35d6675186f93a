//! Congestion control algorithms: the registry ([`ALGORITHMS`]) and the choice of a user
//! ([`Control`]).
//!
//! An algorithm is one file in this folder and its line in the registry. The file has the
//! algorithm's state, which implements [`CongestionControl`](crate::CongestionControl), its
//! parameters, and its row, `ALGORITHM`.

use core::fmt;
use core::str::FromStr;

use crate::controller::{Controller, Needs, Setup};
use crate::params::{Kind, Param};
use crate::rate::Rate;

/// A registry row: a congestion control algorithm.
#[derive(Debug)]
pub struct Algorithm {
    /// The name in settings.
    pub name: &'static str,
    /// Its parameters, by which settings and scenarios change it.
    pub params: &'static [&'static Param],
    /// The signals that it needs.
    pub needs: Needs,
    /// A sender may start at another rate than the highest.
    pub starts_at_rate: bool,
    /// Creates the state of a sender that has sent nothing.
    pub new: fn(&Setup<'_>) -> Controller,
}

impl PartialEq for Algorithm {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Algorithm {}

macro_rules! registry {
    ($($module:ident)+) => {
        $(pub mod $module;)+

        /// All algorithms, in the order of the documentation.
        pub static ALGORITHMS: &[&Algorithm] = &[$(&$module::ALGORITHM),+];

        impl Control {
            /// The accepted texts, for error messages and help.
            pub const EXPECTS: &str = concat!(
                "`off`, ",
                $("`", stringify!($module), "`, ",)+
                "or a fixed rate such as `10Gb/s`",
            );
        }
    };
}

// One line per algorithm: the name of its file, which is its name in settings.
registry! {
    dcqcn
    timely
    swift
    dctcp
    hpcc
    powertcp
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
    /// The algorithm, if the user chose one.
    pub const fn algorithm(self) -> Option<&'static Algorithm> {
        match self {
            Self::Algorithm(algorithm) => Some(algorithm),
            Self::Off | Self::Fixed(_) => None,
        }
    }

    /// The signals that a sender must report to its controller.
    pub const fn needs(self) -> Needs {
        match self {
            Self::Algorithm(algorithm) => algorithm.needs,
            Self::Off | Self::Fixed(_) => Needs::NONE,
        }
    }

    /// Returns true if data packets are ECN-capable: the sender slows down for marks. A switch
    /// marks an ECN-capable packet instead of dropping it, so if its sender ignored the mark, the
    /// queue would grow at the cost of the senders that obey.
    pub const fn is_ecn_capable(self) -> bool {
        self.needs().has_marks()
    }

    /// Creates the state of a sender that has sent nothing.
    pub fn controller(self, setup: &Setup<'_>) -> Controller {
        match self {
            Self::Off => Controller::fixed(setup.link_rate),
            Self::Fixed(rate) => Controller::fixed(setup.params.reaction.highest(rate)),
            Self::Algorithm(algorithm) => (algorithm.new)(setup),
        }
    }

    /// Gives the sender with `controller`, which `before` created, another control or other
    /// parameters.
    pub fn replace(self, before: Self, controller: &mut Controller, setup: &Setup<'_>) {
        if self != before || !controller.set_params(setup) {
            *controller = self.controller(setup);
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
