//! The flow control configuration of a device: priorities, thresholds and the DSCP map, with their
//! texts.

use std::fmt;
use std::str::FromStr;

use feroce_congestion::Rate;
use feroce_congestion::params::Kind;
use feroce_wire::FlowSpec;
use feroce_wire::pause::QUANTUM_BITS;

use crate::time::Duration;

/// The flow control configuration of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PfcConfig {
    /// Priorities whose pauses are obeyed, and that the neighbour is requested to pause. If empty,
    /// flow control is off and pause frames are ignored.
    pub priorities: Priorities,
    /// When the neighbour is requested to pause; `None` for never.
    pub thresholds: Option<Thresholds>,
    /// The link rate, which defines the length of a pause quantum; `None` uses the rate that the
    /// link reports.
    pub rate: Option<Rate>,
    /// The priority of each DSCP.
    pub dscp: DscpMap,
}

impl PfcConfig {
    /// Returns true if flow control is on for any priority.
    pub fn is_on(&self) -> bool {
        self.priorities != Priorities::default()
    }

    /// The rate that defines a pause quantum, on a link that reports `link_rate` bit/s; `None` if
    /// unknown.
    pub fn link_rate(&self, link_rate: Option<u64>) -> Option<Rate> {
        self.rate.or_else(|| link_rate.filter(|&rate| rate > 0).map(Rate::from_bps))
    }

    /// The error message if this configuration cannot be used on a link that reports `link_rate`
    /// bit/s.
    pub fn error(&self, link_rate: Option<u64>) -> Option<&'static str> {
        let rules = [
            (
                !self.is_on() && self.thresholds.is_some(),
                "pfc_send needs priorities to pause: choose them by pfc",
            ),
            (
                self.is_on() && self.link_rate(link_rate).is_none(),
                "the link does not report its rate, which defines the length of a pause: \
                 choose it by pfc_rate",
            ),
        ];
        rules.into_iter().find(|(is_broken, _)| *is_broken).map(|(_, error)| error)
    }

    /// The priority of the packets of `flow`.
    #[inline]
    pub(crate) fn priority(&self, flow: &FlowSpec) -> u8 {
        match flow.vlan {
            Some(tag) => tag.pcp & 7,
            None => self.dscp.0[usize::from(flow.traffic_class >> 2)],
        }
    }
}

/// The duration of `quanta` pause quanta on a link of `link_rate`.
pub(super) fn pause_time(quanta: u16, link_rate: Rate) -> Duration {
    let bits = u128::from(quanta) * u128::from(QUANTUM_BITS);
    let nanos = bits * 1_000_000_000 / u128::from(link_rate.as_bps().max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The text is not a valid value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// A set of the eight priorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priorities(u8);

const OFF: &str = "off";

impl Priorities {
    /// The accepted texts, for error messages and help.
    pub const EXPECTS: &str = "`off`, or priorities from 0 to 7 separated by commas";

    /// The priorities whose bits are set; priority 0 is the lowest bit.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// One bit per priority.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Priorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = (0..8).filter(|p| self.0 >> p & 1 == 1).map(|p: u8| p.to_string());
        match self.0 {
            0 => f.pad(OFF),
            _ => f.pad(&chosen.collect::<Vec<_>>().join(",")),
        }
    }
}

impl FromStr for Priorities {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        if text == OFF {
            return Ok(Self::default());
        }
        let bit = |text: &str| priority(text).map(|p| 1 << p);
        let bits = text.split(',').map(bit).try_fold(0, |bits, bit| bit.map(|bit: u8| bits | bit));
        bits.map(Self).ok_or(Malformed)
    }
}

fn priority(text: &str) -> Option<u8> {
    text.trim().parse().ok().filter(|p| *p < 8)
}

/// Fill levels of a core's receive ring, in per cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// At this level or above, the neighbour is requested to pause.
    pub xoff: u8,
    /// At this level or below, the pause is ended.
    pub xon: u8,
}

impl Thresholds {
    /// The accepted texts, for error messages and help.
    pub const EXPECTS: &str = "`off`, or XOFF/XON in per cent of the receive ring, as `50/25`";

    /// Parses `off` (`None`) or thresholds.
    ///
    /// # Errors [`Malformed`] for any other text, or if a threshold is out of range: XOFF is 1 to
    /// 99, XON below XOFF.
    pub fn parse(text: &str) -> Result<Option<Self>, Malformed> {
        if text == OFF {
            return Ok(None);
        }
        let (xoff, xon) = text.split_once('/').ok_or(Malformed)?;
        let number = |text: &str| text.trim().parse::<u8>().map_err(|_| Malformed);
        let thresholds = Self { xoff: number(xoff)?, xon: number(xon)? };
        let is_valid = thresholds.xoff < 100 && thresholds.xon < thresholds.xoff;
        is_valid.then_some(Some(thresholds)).ok_or(Malformed)
    }

    /// The value as text.
    pub fn show(thresholds: Option<Self>) -> String {
        thresholds.map_or_else(|| OFF.to_owned(), |Self { xoff, xon }| format!("{xoff}/{xon}"))
    }
}

const AUTO: &str = "auto";

/// The accepted texts of `pfc_rate`, for error messages and help.
pub const RATE_EXPECTS: &str =
    "`auto` (the rate that the link reports), or a rate such as `10Gb/s`";

/// Parses `auto` (`None`) or a rate.
///
/// # Errors
/// [`Malformed`] for any other text.
pub fn parse_rate(text: &str) -> Result<Option<Rate>, Malformed> {
    if text == AUTO {
        return Ok(None);
    }
    let rate = Kind::Rate.parse(text).filter(|&rate| rate > 0);
    rate.map(|rate| Some(Rate::from_bps(rate))).ok_or(Malformed)
}

/// The value as text.
pub fn show_rate(rate: Option<Rate>) -> String {
    rate.map_or_else(|| AUTO.to_owned(), |rate| rate.to_string())
}

/// The priority of each DSCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DscpMap([u8; 64]);

impl DscpMap {
    /// The accepted texts, for error messages and help.
    pub const EXPECTS: &str = "`default` (DSCP / 8), or the differences as DSCP:PRIORITY, \
                               separated by commas: `26:3, 48:6`";
    const DEFAULT: &str = "default";
}

impl Default for DscpMap {
    /// The upper three bits of the DSCP, the default of switches.
    fn default() -> Self {
        let mut map = [0; 64];
        (0..).zip(&mut map).for_each(|(dscp, priority): (u8, _)| *priority = dscp >> 3);
        Self(map)
    }
}

impl fmt::Display for DscpMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = self.0.iter().zip(Self::default().0).enumerate();
        let changed = both.filter(|(_, (own, default))| *own != default);
        let pairs: Vec<_> = changed.map(|(dscp, (own, _))| format!("{dscp}:{own}")).collect();
        match pairs.is_empty() {
            true => f.pad(Self::DEFAULT),
            false => f.pad(&pairs.join(", ")),
        }
    }
}

impl FromStr for DscpMap {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut map = Self::default();
        if text == Self::DEFAULT {
            return Ok(map);
        }
        for pair in text.split(',') {
            let (dscp, to) = pair.split_once(':').ok_or(Malformed)?;
            let dscp: usize = dscp.trim().parse().map_err(|_| Malformed)?;
            let place = map.0.get_mut(dscp).ok_or(Malformed)?;
            *place = priority(to).ok_or(Malformed)?;
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_parse_back_as_they_are_shown() {
        for text in ["off", "3", "0,3,7"] {
            assert_eq!(text.parse::<Priorities>().unwrap().to_string(), text);
        }
        assert_eq!("3, 4".parse(), Ok(Priorities::from_bits(0x18)));
        for bad in ["", "8", "3,", "-1", "on", "3 4"] {
            assert_eq!(bad.parse::<Priorities>(), Err(Malformed), "{bad}");
        }
        for text in ["off", "50/25", "1/0", "99/98"] {
            assert_eq!(Thresholds::show(Thresholds::parse(text).unwrap()), text);
        }
        for bad in ["", "50", "25/50", "50/50", "100/50", "0/0", "a/b", "50/25/1"] {
            assert_eq!(Thresholds::parse(bad), Err(Malformed), "{bad}");
        }
        for text in ["auto", "100Mb/s", "10Gb/s"] {
            assert_eq!(show_rate(parse_rate(text).unwrap()), text);
        }
        for bad in ["", "0", "10", "fast"] {
            assert_eq!(parse_rate(bad), Err(Malformed), "{bad}");
        }
        for text in ["default", "26:5, 48:0"] {
            assert_eq!(text.parse::<DscpMap>().unwrap().to_string(), text);
        }
        for bad in ["", "64:1", "1:8", "1", "1:1,", "a:1"] {
            assert_eq!(bad.parse::<DscpMap>(), Err(Malformed), "{bad}");
        }
    }

    #[test]
    fn a_quantum_is_512_bit_times() {
        assert_eq!(pause_time(1, Rate::from_gbps(10)), Duration::from_nanos(51));
        assert_eq!(pause_time(1000, Rate::from_gbps(10)), Duration::from_nanos(51_200));
        assert_eq!(pause_time(u16::MAX, Rate::from_mbps(100)), Duration::from_nanos(335_539_200));
    }

    #[test]
    fn inconsistent_settings_are_reported() {
        let on = PfcConfig { priorities: Priorities::from_bits(8), ..PfcConfig::default() };
        assert_eq!((PfcConfig::default().error(None), on.error(Some(1))), (None, None));
        assert!(on.error(None).unwrap().contains("pfc_rate"));
        assert_eq!(PfcConfig { rate: Some(Rate::from_gbps(1)), ..on }.error(None), None);
        let thresholds = Thresholds::parse("50/25").unwrap();
        let error = PfcConfig { thresholds, ..PfcConfig::default() }.error(Some(1)).unwrap();
        assert!(error.contains("pfc_send"), "{error}");
    }
}
