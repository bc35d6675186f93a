//! Settings: values that the administrator of the host, the environment and the command line
//! choose, so that programs need not know them.
//!
//! [`KEYS`] lists all settings. The value of a setting comes from the first of these that has one:
//! the command line, the environment variable `FEROCE_<NAME>`, the configuration file, the default.
//! The file is `/etc/feroce.toml` or the one that `FEROCE_CONFIG` names; an empty `FEROCE_CONFIG`
//! means no file. [`Settings::load`] reads the file and the environment.
//! [`Settings::device_config`] and [`Settings::connect_options`] turn the settings into
//! configurations.

mod keys;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use feroce_congestion::{Params, Rate};
use feroce_wire::PathMtu;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use keys::{KEYS, Key};

use super::{ConnectOptions, DeviceConfig, Driver, PortKind, Sharing, SourcePort};
use crate::congestion::{CongestionConfig, Control, set_param};
use crate::pfc::{DscpMap, PfcConfig, Priorities, Thresholds};
use crate::port::kind::PortConfigs;

/// The configuration file, unless the environment names another one.
pub const FILE: &str = "/etc/feroce.toml";
/// The environment variable that names another configuration file.
pub const FILE_VARIABLE: &str = "FEROCE_CONFIG";
/// Prefix of the environment variables of settings.
const PREFIX: &str = "FEROCE_";
/// Variables with this prefix that are not settings: the configuration file, the level of messages,
/// captures, and the folder with the files of devices.
const OTHERS: [&str; 5] =
    [FILE_VARIABLE, "FEROCE_LOG", "FEROCE_PCAP", "FEROCE_PCAP_SNAP", "FEROCE_SYSVIEW"];

/// The settings in effect and the origin of each value.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Interfaces that verbs applications see as RDMA devices, in order; empty: all usable
    /// interfaces.
    pub interfaces: Vec<String>,
    /// Owner of the interface: this process or a daemon.
    pub sharing: Sharing,
    /// Kind of port.
    pub port_kind: PortKind,
    /// Number of cores of a device.
    pub cores: usize,
    /// Helper threads; never [`Driver::Manual`].
    pub helper: Driver,
    /// Maximum number of outstanding SEND and WRITE packets of a QP.
    pub window: u32,
    /// Maximum number of outstanding SEND and WRITE packets of all QPs of a core at one peer.
    pub peer_window: u32,
    /// Maximum number of outstanding response packets of READs and atomics of all QPs of a core.
    pub read_window: u32,
    /// Maximum number of QPs of a device.
    pub max_qp: u32,
    /// Maximum number of memory regions and windows of a device.
    pub max_mr: u32,
    /// Maximum number of completion queues of a device.
    pub max_cq: u32,
    /// Maximum number of protection domains of a device.
    pub max_pd: u32,
    /// Mark data packets ECT(0).
    pub ecn: bool,
    /// See [`DeviceConfig::selective_repeat`].
    pub selective_repeat: bool,
    /// See [`DeviceConfig::super_frames_to_all`].
    pub super_frames_to_all: bool,
    /// Congestion control algorithm.
    pub congestion: Control,
    /// Name of the set of congestion control parameters.
    pub congestion_set: &'static str,
    /// Congestion control parameters that differ from the set, as names and valid values.
    pub congestion_parameters: Vec<(String, String)>,
    /// Maximum burst of a QP in bytes.
    pub congestion_burst: u32,
    /// Priorities with flow control.
    pub pfc: Priorities,
    /// Fill levels at which the peer is requested to pause these priorities.
    pub pfc_send: Option<Thresholds>,
    /// The link rate that determines pause quanta; `None` uses the rate that the link reports.
    pub pfc_rate: Option<Rate>,
    /// Priority of each DSCP, for frames without a VLAN tag.
    pub pfc_dscp: DscpMap,
    /// Path MTU; `None` is the largest that the path carries.
    pub path_mtu: Option<PathMtu>,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 uses that of the route.
    pub hop_limit: u8,
    /// UDP source port.
    pub source_port: SourcePort,
    /// Local ACK timeout: 4.096 us * 2^n; 0 means no timeout.
    pub ack_timeout: u8,
    /// Code of the shortest local ACK timeout; 0: timeouts are exact.
    pub min_ack_timeout: u8,
    /// Retries after timeouts and sequence errors.
    pub retry_count: u8,
    /// Retries after RNR NAKs; 7 means no limit.
    pub rnr_retry: u8,
    /// Code of the time in RNR NAKs.
    pub min_rnr_timer: u8,
    /// The user that `feroce perf` changes to after opening its device.
    pub user: Option<String>,
    /// The settings of each kind of port.
    pub ports: PortConfigs,
    origins: BTreeMap<&'static str, Origin>,
}

impl Default for Settings {
    /// The defaults of [`DeviceConfig`] and [`ConnectOptions`].
    fn default() -> Self {
        let (device, connect) = (DeviceConfig::default(), ConnectOptions::default());
        Self {
            interfaces: Vec::new(),
            sharing: device.sharing,
            port_kind: device.port,
            cores: device.cores,
            helper: device.driver,
            window: device.window,
            peer_window: device.peer_window,
            read_window: device.read_window,
            max_qp: device.max_qp,
            max_mr: device.max_mr,
            max_cq: device.max_cq,
            max_pd: device.max_pd,
            ecn: device.ecn,
            selective_repeat: device.selective_repeat,
            super_frames_to_all: device.super_frames_to_all,
            congestion: device.congestion.control,
            congestion_set: feroce_congestion::params::SETS[0].name,
            congestion_parameters: Vec::new(),
            congestion_burst: device.congestion.burst,
            pfc: device.pfc.priorities,
            pfc_send: device.pfc.thresholds,
            pfc_rate: device.pfc.rate,
            pfc_dscp: device.pfc.dscp,
            path_mtu: connect.path_mtu,
            traffic_class: connect.traffic_class,
            hop_limit: connect.hop_limit,
            source_port: connect.source_port,
            ack_timeout: connect.timeout,
            min_ack_timeout: device.min_ack_timeout,
            retry_count: connect.retry_cnt,
            rnr_retry: connect.rnr_retry,
            min_rnr_timer: connect.min_rnr_timer,
            user: None,
            ports: device.ports,
            origins: BTreeMap::new(),
        }
    }
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origin {
    /// The default.
    #[default]
    Default,
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// An option of the command line, as written there.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.pad("default"),
            Self::File { path, line } => f.pad(&format!("{}:{line}", path.display())),
            Self::Environment(name) => f.pad(name),
            Self::Flag(name) => f.pad(name),
        }
    }
}

/// Why the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the settings in {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error of the parser.
        message: String,
    },
    /// No setting has this name.
    #[error("{origin}: no setting is called `{key}`; settings are {}", keys::names())]
    UnknownKey {
        /// Origin of the setting.
        origin: Origin,
        /// The name.
        key: String,
    },
    /// A value is invalid for its setting.
    #[error("{origin}: `{key}` is `{value}`, expected {expected}")]
    Value {
        /// Origin of the setting.
        origin: Origin,
        /// The setting.
        key: &'static str,
        /// The value as given.
        value: String,
        /// The values that the setting takes.
        expected: String,
    },
}

impl Settings {
    /// The settings of this process, from the file and the environment. A process with more
    /// privileges than its caller (`AT_SECURE`) ignores the environment.
    ///
    /// # Errors
    /// See [`SettingsError`]. A missing `/etc/feroce.toml` is not an error; a missing file that
    /// `FEROCE_CONFIG` names is one.
    pub fn load() -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        match crate::environment::var_os(FILE_VARIABLE) {
            None => match settings.take_file(Path::new(FILE)) {
                Err(SettingsError::Read { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound => {}
                other => other?,
            },
            Some(path) if path.is_empty() => {}
            Some(path) => settings.take_file(Path::new(&path))?,
        }
        // A value that is not Unicode is an invalid value of a setting. Other variables do not
        // matter.
        let variables = crate::environment::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        settings.take_environment(variables)?;
        Ok(settings)
    }

    /// The environment variables of this process whose names begin like those of settings, but
    /// which name no setting: probably mistyped.
    pub fn unknown_variables() -> Vec<String> {
        let names = crate::environment::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter(|name| is_unknown(name)).collect()
    }

    /// Applies the settings of the file `path`.
    ///
    /// # Errors
    /// See [`SettingsError`]. The settings before the error in the file are applied.
    pub fn take_file(&mut self, path: &Path) -> Result<(), SettingsError> {
        let failed = |source| SettingsError::Read { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        self.take_toml(path, &text)
    }

    fn take_toml(&mut self, path: &Path, text: &str) -> Result<(), SettingsError> {
        let line = |at: usize| text.as_bytes().iter().take(at).filter(|&&b| b == b'\n').count() + 1;
        let document = DeTable::parse(text).map_err(|error| SettingsError::Syntax {
            path: path.to_owned(),
            line: line(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        for (name, value) in document.get_ref() {
            let origin = Origin::File { path: path.to_owned(), line: line(name.span().start) };
            self.set(name.get_ref(), &text_of(value, text), origin)?;
        }
        Ok(())
    }

    /// Applies the settings of the environment `variables`, whose names are `FEROCE_` and the name
    /// of a setting in capitals. Empty variables are ignored.
    ///
    /// # Errors
    /// [`SettingsError::Value`].
    pub fn take_environment(
        &mut self,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<(), SettingsError> {
        for (name, value) in variables {
            let key = KEYS.iter().find(|key| key.variable() == name && !value.is_empty());
            if let Some(key) = key {
                self.set(key.name, &value, Origin::Environment(name))?;
            }
        }
        Ok(())
    }

    /// Sets the setting `name` to the value in `text`.
    ///
    /// # Errors
    /// [`SettingsError::UnknownKey`], [`SettingsError::Value`].
    pub fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), SettingsError> {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(SettingsError::UnknownKey { origin, key: name.to_owned() });
        };
        if key.set(self, text.trim()).is_none() {
            let (value, expected) = (text.to_owned(), key.refusal(text));
            return Err(SettingsError::Value { origin, key: key.name, value, expected });
        }
        self.origins.insert(key.name, origin);
        Ok(())
    }

    /// The origin of the value of the setting `name`.
    pub fn origin(&self, name: &str) -> Origin {
        self.origins.get(name).cloned().unwrap_or_default()
    }

    /// A device configuration with these settings and otherwise default values.
    pub fn device_config(&self) -> DeviceConfig {
        DeviceConfig {
            sharing: self.sharing,
            port: self.port_kind,
            cores: self.cores,
            driver: self.helper.clone(),
            window: self.window,
            peer_window: self.peer_window,
            read_window: self.read_window,
            min_ack_timeout: self.min_ack_timeout,
            max_qp: self.max_qp,
            max_mr: self.max_mr,
            max_cq: self.max_cq,
            max_pd: self.max_pd,
            ecn: self.ecn,
            selective_repeat: self.selective_repeat,
            super_frames_to_all: self.super_frames_to_all,
            congestion: self.congestion_config(),
            pfc: PfcConfig {
                priorities: self.pfc,
                thresholds: self.pfc_send,
                rate: self.pfc_rate,
                dscp: self.pfc_dscp,
            },
            ports: self.ports.clone(),
            ..DeviceConfig::default()
        }
    }

    fn congestion_config(&self) -> CongestionConfig {
        let mut params = Params::named(self.congestion_set).unwrap_or_default();
        for (name, value) in &self.congestion_parameters {
            // The value was valid when it was set, and validity does not depend on other
            // parameters.
            let applied = set_param(&mut params, name, value);
            debug_assert!(applied.is_ok(), "{name} = {value}");
        }
        CongestionConfig { control: self.congestion, params, burst: self.congestion_burst }
    }

    /// Connection options with these settings and otherwise default values.
    pub fn connect_options(&self) -> ConnectOptions {
        ConnectOptions {
            path_mtu: self.path_mtu,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            source_port: self.source_port,
            timeout: self.ack_timeout,
            retry_cnt: self.retry_count,
            rnr_retry: self.rnr_retry,
            min_rnr_timer: self.min_rnr_timer,
            ..ConnectOptions::default()
        }
    }
}

/// Returns true if `variable` begins like the variables of settings, but names no setting.
fn is_unknown(variable: &str) -> bool {
    variable.starts_with(PREFIX)
        && !OTHERS.contains(&variable)
        && !KEYS.iter().any(|key| key.variable() == variable)
}

/// A value of the file in the form of an environment variable. Arrays and tables, which no setting
/// takes, keep the form of the file.
fn text_of(value: &Spanned<DeValue<'_>>, file: &str) -> String {
    match value.get_ref() {
        DeValue::String(text) => text.clone().into_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Integer(number) => match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => number.as_str().to_owned(),
        },
        _ => file.get(value.span()).unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    fn from_file(text: &str) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        settings.take_toml(Path::new("/etc/feroce.toml"), text).map(|()| settings)
    }

    fn error_of(text: &str) -> String {
        from_file(text).expect_err("a bad file").to_string()
    }

    #[test]
    fn default_settings_give_default_configurations() {
        let settings = Settings::default();
        let (config, default) = (settings.device_config(), DeviceConfig::default());
        assert_eq!(format!("{config:?}"), format!("{default:?}"));
        let (options, default) = (settings.connect_options(), ConnectOptions::default());
        assert_eq!(format!("{options:?}"), format!("{default:?}"));
        assert!(KEYS.iter().all(|key| settings.origin(key.name) == Origin::Default));
    }

    #[test]
    fn every_shown_value_can_be_set() {
        let mut settings = Settings::default();
        for key in KEYS.iter() {
            let shown = key.show(&settings);
            settings.set(key.name, &shown, Origin::Flag("-")).unwrap();
            assert_eq!(key.show(&settings), key.show(&Settings::default()), "{}", key.name);
        }
        assert_eq!(settings.user, None);
        assert_eq!(settings.device_config().window, DeviceConfig::default().window);
        for key in KEYS.iter() {
            let taken = settings.set(key.name, "?!", Origin::Flag("-"));
            assert!(
                matches!(taken, Err(SettingsError::Value { .. })) || key.name == "user",
                "{}",
                key.name
            );
        }
    }

    #[test]
    fn a_file_reaches_the_device_and_the_connection() {
        let file = "# Lossless class\ntraffic_class = 0x6a\nhop_limit = 3\n\n\
                    cores = 4\necn = true\n\
                    helper = \"spin:1,2,3,5\"\n\
                    path_mtu = 1024\nsource_port = 50000\nack_timeout = 16\n\
                    retry_count = 3\nrnr_retry = 2\nmin_rnr_timer = 1\n\
                    window = 512\ncongestion = \"dcqcn\"\ncongestion_set = \"nvidia\"\n\
                    congestion_parameters = \"rpg_ai_rate=7, cnp_scope=port\"\n\
                    congestion_burst = 3000\npfc = 3\npfc_send = \"60/30\"\n\
                    pfc_rate = \"25Gb/s\"\npfc_dscp = \"26:5\"\nport_kind = \"af_xdp\"\n\
                    user = \"nobody\"\ninterfaces = \"eth0, eth1.5\"\n";
        let settings = from_file(file).unwrap();
        let config = settings.device_config();
        assert_eq!((config.cores, config.ecn, config.window), (4, true, 512));
        let congestion = config.congestion;
        assert_eq!((congestion.control, congestion.burst), (Control::DCQCN, 3000));
        let pfc = config.pfc;
        assert_eq!(pfc.priorities, Priorities::from_bits(8));
        assert_eq!(pfc.thresholds, Some(Thresholds { xoff: 60, xon: 30 }));
        assert_eq!((pfc.rate, pfc.dscp), (Some(Rate::from_gbps(25)), "26:5".parse().unwrap()));
        let mut params = Params::named("nvidia").unwrap();
        params.set("ai_rate", "7Mb/s").unwrap();
        params.set("cnp_scope", "port").unwrap();
        assert_eq!(congestion.params, params);
        assert_eq!(config.driver, Driver::SpinningHelper(vec![1, 2, 3, 5]));
        assert_eq!(config.port, PortKind::AfXdp);
        let options = settings.connect_options();
        assert_eq!((options.traffic_class, options.hop_limit), (106, 3));
        assert_eq!(options.path_mtu, Some(PathMtu::Mtu1024));
        assert_eq!(options.source_port, SourcePort::Fixed(50_000.try_into().unwrap()));
        assert_eq!((options.timeout, options.retry_cnt, options.rnr_retry), (16, 3, 2));
        assert_eq!(options.min_rnr_timer, 1);
        assert_eq!(settings.user.as_deref(), Some("nobody"));
        assert_eq!(settings.interfaces, ["eth0", "eth1.5"]);
        assert_eq!(settings.origin("cores").to_string(), "/etc/feroce.toml:5");
    }

    #[test]
    fn later_sources_win_and_are_named() {
        let mut settings = from_file("retry_count = 3\nack_timeout = 10\n").unwrap();
        let environment = [("FEROCE_RETRY_COUNT", "4"), ("FEROCE_OTHER", "x"), ("PATH", "/bin")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        settings.take_environment(environment.into_iter()).unwrap();
        assert_eq!((settings.retry_count, settings.ack_timeout), (4, 10));
        assert_eq!(settings.origin("retry_count").to_string(), "FEROCE_RETRY_COUNT");
        settings.set("retry_count", "5", Origin::Flag("--retry")).unwrap();
        assert_eq!(settings.retry_count, 5);
        assert_eq!(settings.origin("retry_count").to_string(), "--retry");
        assert_eq!(settings.origin("ack_timeout").to_string(), "/etc/feroce.toml:2");
    }

    #[test]
    fn the_environment_accepts_usual_forms_of_numbers_and_flags() {
        let taken = |name: &str, value: &str| {
            let mut settings = from_file("user = \"nobody\"\necn = true\n").unwrap();
            let variables = [(format!("FEROCE_{name}"), value.to_owned())];
            settings.take_environment(variables.into_iter()).unwrap();
            settings
        };
        assert_eq!(taken("TRAFFIC_CLASS", "0x6a").traffic_class, 106);
        assert_eq!(taken("PATH_MTU", "0x400").path_mtu, Some(PathMtu::Mtu1024));
        let port = NonZeroU16::new(0xc000).expect("not zero");
        assert_eq!(taken("SOURCE_PORT", "0xc000").source_port, SourcePort::Fixed(port));
        for no in ["false", "0", "no", "OFF"] {
            assert!(!taken("ECN", no).ecn, "{no}");
        }
        for yes in ["true", "1", "Yes", "on", ""] {
            assert!(taken("ECN", yes).ecn, "{yes}");
        }
        assert_eq!(taken("USER", "").user.as_deref(), Some("nobody"));
    }

    #[test]
    fn an_empty_user_means_no_change() {
        let mut settings = from_file("user = \"nobody\"\n").unwrap();
        settings.set("user", "", Origin::Flag("--user")).unwrap();
        assert_eq!(settings.user, None);
    }

    #[test]
    fn mistyped_variables_are_reported() {
        for known in ["FEROCE_WINDOW", "FEROCE_CONFIG", "FEROCE_LOG", "PATH", "feroce_x"] {
            assert!(!is_unknown(known), "{known}");
        }
        assert!(is_unknown("FEROCE_WINDWO") && is_unknown("FEROCE_PORT"));
    }

    #[test]
    fn errors_name_file_line_key_and_expected_values() {
        let bad = [
            ("\n\ncolour = 1\n", "/etc/feroce.toml:3: no setting is called `colour`"),
            ("retry_count = 8", "/etc/feroce.toml:1: `retry_count` is `8`, expected 0 to 7"),
            ("\nretry_count = -1", "/etc/feroce.toml:2: `retry_count` is `-1`"),
            ("hop_limit = [1]", "/etc/feroce.toml:1: `hop_limit` is `[1]`"),
            ("path_mtu = 1500", "expected `auto`, 256, 512, 1024, 2048 or 4096"),
            ("source_port = 0", "`source_port` is `0`"),
            ("cores = 65", "`cores` is `65`"),
            ("cores = 1.5", "`cores` is `1.5`"),
            ("ecn = 2", "expected true or false"),
            ("congestion = \"on\"", Control::EXPECTS),
            ("congestion_set = \"cisco\"", "expected paper, ns3-rdma"),
            ("congestion_parameters = \"kmin=5KB\"", "`congestion_parameters` is `kmin=5KB`"),
            ("congestion_parameters = \"g\"", "`ai_rate=40Mb/s, cnp_scope=port` (`g` is not NAME"),
            ("congestion_parameters = \"g=1/16,speed=1\"", "(`speed` = `1`: no parameter of cong"),
            ("congestion_parameters = \"ai_rate=fast\"", "`fast`: ai_rate takes 0 to 10000Gb/s ("),
            ("congestion_burst = 0", "expected 1 to 268435456 bytes"),
            ("pfc = \"8\"", "expected `off`, or priorities from 0 to 7"),
            ("pfc_send = \"25/50\"", "`pfc_send` is `25/50`, expected `off`, or XOFF/XON"),
            ("pfc_rate = 10", "expected `auto`"),
            ("pfc_dscp = \"26\"", "expected `default`"),
            ("helper = \"manual\"", "`helper` is `manual`"),
            ("port_kind = \"ib\"", "expected auto, af_xdp"),
            ("a = 1\nb = = 2\n", "/etc/feroce.toml:2: "),
            ("ecn = true\necn = false\n", "/etc/feroce.toml:2: "),
        ];
        for (file, expected) in bad {
            let message = error_of(file);
            assert!(message.contains(expected), "{file:?}: {message}");
        }
        let mut settings = Settings::default();
        let bad = [("FEROCE_WINDOW".to_owned(), "many".to_owned())];
        let message = settings.take_environment(bad.into_iter()).unwrap_err().to_string();
        assert!(
            message.starts_with("FEROCE_WINDOW: `window` is `many`, expected 32 to"),
            "{message}"
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let message = Settings::default().take_file(Path::new("/nonexistent/feroce.toml"));
        let message = message.unwrap_err().to_string();
        assert!(message.contains("/nonexistent/feroce.toml"), "{message}");
    }
}
