//! Congestion control of a device: what is chosen ([`CongestionConfig`]), and what comes of it for a QP
//! ([`RateControl`]) and for the packets it receives ([`Points`]). The state machines are those of the crate
//! `feroce-congestion`; here they meet packets.
//!
//! Who shares a rate:
//! * RC, UC, XRC: a QP has one, for all it sends with data: requests, answers to READs, and what is sent again.
//!   Acknowledgements and CNPs do not wait.
//! * UD: a QP has one, for all its destinations together. A CNP names the QP and no destination, and slows it as a whole.
//! * QP 1, which connection management uses, has none.
//!
//! TIMELY and Swift measure the time from a packet that asks for an acknowledgement to the acknowledgement: they control
//! the requests of RC. What has no acknowledgements - UC, UD, answers to READs - goes at the line's rate then, or at `max_rate`, answers
//! beside requests: a QP with both has that rate for each.
//!
//! Data are ECN-capable (ECT) with DCQCN only: see [`Control::heeds_marks`]. Marks are answered with CNPs by all.

mod sender;
mod delay;
mod notification;

use std::fmt;
use std::str::FromStr;

use feroce_congestion::params::{ParamError, TABLE};
use feroce_congestion::{Controller, Params, Rate};

pub use sender::{RateControl, RateSnapshot};
pub use notification::{Cnp, Points};

use crate::time::Instant;

/// What decides over the rate of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Control {
    /// Nothing: a QP sends as fast as it can, hears no CNP and sends none.
    #[default]
    Off,
    /// DCQCN.
    Dcqcn,
    /// TIMELY.
    Timely,
    /// Swift.
    Swift,
    /// This rate, whatever happens.
    Fixed(Rate),
}

/// Their names, but for the rate.
const NAMES: [(&str, Control); 4] = [
    ("off", Control::Off),
    ("dcqcn", Control::Dcqcn),
    ("timely", Control::Timely),
    ("swift", Control::Swift),
];

impl Control {
    /// What it takes to be read, in words.
    pub const EXPECTS: &str = "`off`, `dcqcn`, `timely`, `swift`, or a fixed rate such as `10Gb/s`";

    /// A sender slows down when its packets are marked: only then do they say that they may be (ECT). A packet that a
    /// switch marks in vain is one that it does not drop, so the queue grows at the cost of those that do slow down.
    pub fn heeds_marks(self) -> bool {
        self == Self::Dcqcn
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, NAMES.iter().find(|(_, control)| control == self)) {
            (Self::Fixed(rate), _) => fmt::Display::fmt(rate, f),
            (_, Some((name, _))) => f.pad(name),
            (_, None) => unreachable!("every other has a name"),
        }
    }
}

/// The text is none of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownControl;

impl FromStr for Control {
    type Err = UnknownControl;
    fn from_str(text: &str) -> Result<Self, UnknownControl> {
        if let Some((_, control)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(*control);
        }
        let rate = feroce_congestion::params::Kind::Rate.parse(text);
        rate.filter(|&rate| rate > 0)
            .map(|rate| Self::Fixed(Rate::from_bps(rate)))
            .ok_or(UnknownControl)
    }
}

/// How a device controls congestion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CongestionConfig {
    /// What decides over rates.
    pub control: Control,
    /// The parameters of all of them. Those of the switch have no meaning here.
    pub params: Params,
    /// Bytes that a QP may send at once when it was silent for long enough, or its core late. No super-frame
    /// of it is longer.
    pub burst: u32,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self { control: Control::Off, params: Params::default(), burst: 64 << 10 }
    }
}

/// The rate of a line that does not know its own, where no highest rate is chosen either.
const UNKNOWN_LINE: Rate = Rate::from_gbps(100);

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// It is off, and stays off: connections that exist are not marked ECN-capable.
    #[error("congestion control is off: open the device with `congestion` = {}", Control::EXPECTS)]
    Off,
    /// It is on, and stays on.
    #[error(
        "congestion control cannot be turned off while the device is open; a fixed rate is a way to undo it"
    )]
    On,
    /// Connections that exist are not marked ECN-capable.
    #[error(
        "the device was opened with `congestion` = {0}, whose packets switches do not mark: open it with `dcqcn`, or with `ecn`, to have that"
    )]
    Unmarked(Control),
    /// Not a way to control congestion.
    #[error("`congestion` is `{value}`, expected {}", Control::EXPECTS)]
    Control {
        /// As asked for.
        value: String,
    },
    /// Not a parameter, or not a value of it.
    #[error("`{name}` = `{value}`: {error}")]
    Param {
        /// As asked for.
        name: String,
        /// As asked for.
        value: String,
        /// What is wrong.
        error: ParamError,
    },
    /// A parameter of a switch.
    #[error("`{0}` is a parameter of switches, which mark; there is none here")]
    Switch(String),
}

impl CongestionConfig {
    /// Sets one parameter by name, ours or NVIDIA's, or `congestion` itself: from `off` to nothing else, and to `dcqcn`
    /// only if the connections of the device, which was `opened` with another control, are `marked` ECN-capable.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn change(
        &mut self,
        opened: Control,
        marked: bool,
        name: &str,
        value: &str,
    ) -> Result<(), ChangeError> {
        if self.control == Control::Off {
            return Err(ChangeError::Off);
        }
        if name == "congestion" {
            let control: Control =
                value.parse().map_err(|_| ChangeError::Control { value: value.to_owned() })?;
            if control == Control::Off {
                return Err(ChangeError::On);
            }
            if control.heeds_marks() && !marked {
                return Err(ChangeError::Unmarked(opened));
            }
            self.control = control;
            return Ok(());
        }
        set_param(&mut self.params, name, value)
    }

    /// The highest rate on a line of `link_rate` bit/s, if that is known.
    pub fn line(&self, link_rate: Option<u64>) -> Rate {
        let reaction = &self.params.reaction;
        match (link_rate.filter(|&rate| rate > 0), reaction.max_rate) {
            (Some(rate), _) => reaction.highest(Rate::from_bps(rate)),
            (None, Rate::ZERO) => UNKNOWN_LINE,
            (None, chosen) => chosen,
        }
    }

    /// A new sender.
    fn controller(&self, line: Rate, now: Instant) -> Controller {
        match self.control {
            Control::Off => Controller::Fixed(line),
            Control::Fixed(rate) => Controller::Fixed(self.params.reaction.highest(rate)),
            Control::Dcqcn => Controller::dcqcn(&self.params, line, now),
            Control::Timely => Controller::timely(&self.params, line),
            Control::Swift => Controller::swift(&self.params, line),
        }
    }
}

/// Sets a parameter of an endpoint by name.
///
/// # Errors
/// [`ChangeError::Param`], [`ChangeError::Switch`].
pub fn set_param(params: &mut Params, name: &str, value: &str) -> Result<(), ChangeError> {
    use feroce_congestion::params::{Part, knob};
    if knob(name).is_some_and(|knob| knob.part == Part::Marking) {
        return Err(ChangeError::Switch(name.to_owned()));
    }
    params.set(name, value).map_err(|error| ChangeError::Param {
        name: name.to_owned(),
        value: value.to_owned(),
        error,
    })
}

/// The parameters of an endpoint by name, as text.
pub fn shown(params: &Params) -> impl Iterator<Item = (&'static str, String)> {
    use feroce_congestion::params::Part;
    let ours = TABLE.iter().filter(|knob| knob.part != Part::Marking);
    ours.map(|knob| (knob.name, knob.show(params).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_by_name_and_rate() {
        for text in ["off", "dcqcn", "timely", "swift", "10Gb/s", "2500Mb/s"] {
            assert_eq!(text.parse::<Control>().unwrap().to_string(), text);
        }
        for bad in ["", "on", "DCQCN", "0", "10", "-1Gb/s"] {
            assert_eq!(bad.parse::<Control>(), Err(UnknownControl), "{bad}");
        }
    }

    #[test]
    fn what_can_be_changed_while_a_device_is_open() {
        let mut config = CongestionConfig::default();
        let opened = Control::Dcqcn;
        assert_eq!(config.change(Control::Off, false, "ai_rate", "1Mb/s"), Err(ChangeError::Off));
        config.control = opened;
        config.change(opened, true, "rp_ai_rate", "7").unwrap();
        assert_eq!(config.params.reaction.ai_rate, Rate::from_mbps(7));
        for (name, control) in [
            ("1Gb/s", Control::Fixed(Rate::from_gbps(1))),
            ("dcqcn", Control::Dcqcn),
            ("swift", Control::Swift),
        ] {
            config.change(opened, true, "congestion", name).unwrap();
            assert_eq!(config.control, control);
        }
        assert_eq!(config.change(opened, true, "congestion", "off"), Err(ChangeError::On));
        // Nobody would hear of marks: there are none.
        let timely = Control::Timely;
        assert_eq!(
            config.change(timely, false, "congestion", "dcqcn"),
            Err(ChangeError::Unmarked(timely))
        );
        // But for the setting `ecn`, which marks them whatever decides over rates.
        assert_eq!(config.change(timely, true, "congestion", "dcqcn"), Ok(()));
        let told =
            |name, value| config.clone().change(opened, true, name, value).unwrap_err().to_string();
        assert!(told("congestion", "fast").contains("expected `off`, `dcqcn`"));
        assert!(told("kmin", "5KB").contains("parameter of switches"));
        assert!(told("colour", "1").contains("`colour` = `1`"));
        assert!(told("g", "2").contains("g takes"));
    }

    #[test]
    fn no_control_goes_beyond_the_highest_rate() {
        let mut config = CongestionConfig::default();
        config.params.reaction.max_rate = Rate::from_gbps(2);
        let line = config.line(Some(25_000_000_000));
        let fixed = Control::Fixed(Rate::from_gbps(5));
        for control in [fixed, Control::Dcqcn, Control::Timely, Control::Swift] {
            config.control = control;
            let rate = config.controller(line, Instant::ZERO).rate();
            assert_eq!(rate, Rate::from_gbps(2), "{control}");
        }
        config.control = Control::Fixed(Rate::from_gbps(1));
        assert_eq!(config.controller(line, Instant::ZERO).rate(), Rate::from_gbps(1));
    }

    #[test]
    fn the_line_is_the_links_or_the_one_chosen() {
        let mut config = CongestionConfig::default();
        assert_eq!(config.line(Some(25_000_000_000)), Rate::from_gbps(25));
        assert_eq!(config.line(None), UNKNOWN_LINE);
        config.params.reaction.max_rate = Rate::from_gbps(10);
        assert_eq!(config.line(None), Rate::from_gbps(10));
        assert_eq!(config.line(Some(25_000_000_000)), Rate::from_gbps(10));
        assert_eq!(config.line(Some(5_000_000_000)), Rate::from_gbps(5));
    }
}
