//! The congestion control configuration of a device, and changes to it at run time.

use feroce_congestion::params::{self, MARKING, ParamError};
use feroce_congestion::{Control, Params, Rate};

/// The congestion control of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CongestionConfig {
    /// The chosen algorithm or fixed rate.
    pub control: Control,
    /// The parameters of all algorithms. Those of the switch have no effect here.
    pub params: Params,
    /// Bytes that a QP may send at once after a pause in its traffic, or when its core runs late.
    /// Also the largest super-frame of the QP.
    pub burst: u32,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self { control: Control::Off, params: Params::default(), burst: 64 << 10 }
    }
}

/// The assumed rate of a link whose rate is unknown, if `max_rate` is not set either.
const UNKNOWN_LINK_RATE: Rate = Rate::from_gbps(100);

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Congestion control cannot be turned on: the packets of existing connections are not
    /// ECN-capable.
    #[error("congestion control is off: open the device with `congestion` = {}", Control::EXPECTS)]
    Off,
    /// Congestion control cannot be turned off.
    #[error(
        "congestion control cannot be turned off while the device is open; \
         a fixed rate has the same effect"
    )]
    On,
    /// The packets of existing connections are not ECN-capable.
    #[error(
        "the device was opened with `congestion` = {0}, whose packets switches do not mark: \
         to change to an algorithm that needs CNPs, open it with `dcqcn` or with `ecn`"
    )]
    Unmarked(Control),
    /// The algorithm needs telemetry of switches, which only the simulated fabric has.
    #[error("`{0}` needs telemetry of the switches (INT), which only `feroce fabric` has")]
    Telemetry(Control),
    /// The text names no congestion control.
    #[error("`congestion` is `{value}`, expected {}", Control::EXPECTS)]
    Control {
        /// The requested value.
        value: String,
    },
    /// There is no such parameter, or it does not accept the value.
    #[error("`{name}` = `{value}`: {error}")]
    Param {
        /// The requested parameter.
        name: String,
        /// The requested value.
        value: String,
        /// The reason.
        error: ParamError,
    },
    /// The parameter belongs to the switch.
    #[error("`{0}` is a parameter of switches, which mark packets; a device does not use it")]
    Switch(String),
}

impl CongestionConfig {
    /// Sets one parameter by name (Feroce's or NVIDIA's), or `congestion` itself. The device was
    /// opened with the control `opened`; `marked`: its connections send ECN-capable packets.
    /// Congestion control cannot be turned off or on, and an algorithm that needs CNPs requires
    /// `marked`.
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
            if control.needs().telemetry {
                return Err(ChangeError::Telemetry(control));
            }
            if control.is_ecn_capable() && !marked {
                return Err(ChangeError::Unmarked(opened));
            }
            self.control = control;
            return Ok(());
        }
        set_param(&mut self.params, name, value)
    }

    /// The highest rate on a link of `link_rate` bit/s, which is `None` if unknown.
    pub fn link_rate(&self, link_rate: Option<u64>) -> Rate {
        let reaction = &self.params.reaction;
        match (link_rate.filter(|&rate| rate > 0), reaction.max_rate) {
            (Some(rate), _) => reaction.highest(Rate::from_bps(rate)),
            (None, Rate::ZERO) => UNKNOWN_LINK_RATE,
            (None, max_rate) => max_rate,
        }
    }
}

/// Sets a parameter of an endpoint by name.
///
/// # Errors
/// [`ChangeError::Param`], [`ChangeError::Switch`].
pub fn set_param(params: &mut Params, name: &str, value: &str) -> Result<(), ChangeError> {
    if MARKING.iter().any(|param| param.name == name) {
        return Err(ChangeError::Switch(name.to_owned()));
    }
    params.set(name, value).map_err(|error| ChangeError::Param {
        name: name.to_owned(),
        value: value.to_owned(),
        error,
    })
}

/// The parameters of an endpoint as pairs of name and value.
pub fn shown(values: &Params) -> impl Iterator<Item = (&'static str, String)> {
    let of_endpoints = params::all().filter(|param| !MARKING.contains(param));
    of_endpoints.map(|param| (param.name, param.show(values).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use feroce_congestion::{Path, Setup, UnknownControl};

    fn first_rate(config: &CongestionConfig, link_rate: Rate) -> Rate {
        let (params, now, path) = (&config.params, Instant::ZERO, Path::UNKNOWN);
        let setup = Setup { params, link_rate, now, path };
        config.control.controller(&setup).rate()
    }

    #[test]
    fn controls_parse_by_name_and_rate() {
        for text in ["off", "dcqcn", "timely", "swift", "dctcp", "10Gb/s", "2500Mb/s"] {
            assert_eq!(text.parse::<Control>().unwrap().to_string(), text);
        }
        for bad in ["", "on", "DCQCN", "0", "10", "-1Gb/s"] {
            assert_eq!(bad.parse::<Control>(), Err(UnknownControl), "{bad}");
        }
    }

    #[test]
    fn changes_to_an_open_device() {
        let mut config = CongestionConfig::default();
        let opened = Control::DCQCN;
        assert_eq!(config.change(Control::Off, false, "ai_rate", "1Mb/s"), Err(ChangeError::Off));
        config.control = opened;
        config.change(opened, true, "rp_ai_rate", "7").unwrap();
        assert_eq!(config.params.reaction.ai_rate, Rate::from_mbps(7));
        for (name, control) in [
            ("1Gb/s", Control::Fixed(Rate::from_gbps(1))),
            ("dcqcn", Control::DCQCN),
            ("swift", Control::SWIFT),
        ] {
            config.change(opened, true, "congestion", name).unwrap();
            assert_eq!(config.control, control);
        }
        assert_eq!(config.change(opened, true, "congestion", "off"), Err(ChangeError::On));
        // The packets are not ECN-capable: no switch marks them.
        let timely = Control::TIMELY;
        assert_eq!(
            config.change(timely, false, "congestion", "dcqcn"),
            Err(ChangeError::Unmarked(timely))
        );
        for control in [Control::HPCC, Control::POWERTCP] {
            let refused = config.change(opened, true, "congestion", &control.to_string());
            assert_eq!(refused, Err(ChangeError::Telemetry(control)));
        }
        // With the setting `ecn`, packets are ECN-capable under any control.
        assert_eq!(config.change(timely, true, "congestion", "dcqcn"), Ok(()));
        let error =
            |name, value| config.clone().change(opened, true, name, value).unwrap_err().to_string();
        assert!(error("congestion", "fast").contains("expected `off`, `dcqcn`"));
        assert!(error("kmin", "5KB").contains("parameter of switches"));
        assert!(error("colour", "1").contains("`colour` = `1`"));
        assert!(error("g", "2").contains("g takes"));
    }

    #[test]
    fn no_control_exceeds_max_rate() {
        let mut config = CongestionConfig::default();
        config.params.reaction.max_rate = Rate::from_gbps(2);
        let link_rate = config.link_rate(Some(25_000_000_000));
        let fixed = Control::Fixed(Rate::from_gbps(5));
        for control in [fixed, Control::DCQCN, Control::TIMELY, Control::SWIFT] {
            config.control = control;
            let rate = first_rate(&config, link_rate);
            assert_eq!(rate, Rate::from_gbps(2), "{control}");
        }
        config.control = Control::Fixed(Rate::from_gbps(1));
        assert_eq!(first_rate(&config, link_rate), Rate::from_gbps(1));
    }

    #[test]
    fn link_rate_is_the_lower_of_link_and_max_rate() {
        let mut config = CongestionConfig::default();
        assert_eq!(config.link_rate(Some(25_000_000_000)), Rate::from_gbps(25));
        assert_eq!(config.link_rate(None), UNKNOWN_LINK_RATE);
        config.params.reaction.max_rate = Rate::from_gbps(10);
        assert_eq!(config.link_rate(None), Rate::from_gbps(10));
        assert_eq!(config.link_rate(Some(25_000_000_000)), Rate::from_gbps(10));
        assert_eq!(config.link_rate(Some(5_000_000_000)), Rate::from_gbps(5));
    }
}
