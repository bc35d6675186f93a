//! What the host's administrator, the environment and the command line choose: defaults that a program
//! need not know.
//!
//! Each setting has a name in [`KEYS`]. A value comes from the first of these that gives one: the command
//! line, the environment variable `FEROCE_<NAME>`, the file `/etc/feroce.toml` (or the one that
//! `FEROCE_CONFIG` names; empty for none), the default. [`Settings::load`] reads the file and the
//! environment; [`Settings::device_config`] and [`Settings::connect_options`] apply what came out.

mod keys;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use feroce_congestion::{Params, Rate};
use feroce_wire::PathMtu;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use keys::{KEYS, Key};

use super::{ConnectOptions, DeviceConfig, Driver, PortKind, SourcePort};
use crate::congestion::{CongestionConfig, Control, set_param};
use crate::pfc::{DscpMap, PfcConfig, Priorities, Thresholds};
use crate::port::dpdk::{Address, DpdkConfig, DpdkMemory};

/// The file, if the environment names no other.
pub const FILE: &str = "/etc/feroce.toml";
/// The variable that names another file.
pub const FILE_VARIABLE: &str = "FEROCE_CONFIG";
/// What the variables of settings begin with.
const PREFIX: &str = "FEROCE_";
/// Variables with this prefix that are not settings: the configuration file and captures.
const OTHERS: [&str; 3] = [FILE_VARIABLE, "FEROCE_PCAP", "FEROCE_PCAP_SNAP"];

/// The settings in effect, and where each came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Interfaces that are RDMA devices to programs written for verbs, in order; empty for all usable ones.
    pub interfaces: Vec<String>,
    /// Kind of port.
    pub port_kind: PortKind,
    /// Cores of a device.
    pub cores: usize,
    /// Who turns them; never [`Driver::Manual`].
    pub helper: Driver,
    /// Packets of SENDs and WRITEs that one QP may have outstanding.
    pub window: u32,
    /// Mark data packets ECT(0).
    pub ecn: bool,
    /// What decides over the rates of QPs.
    pub congestion: Control,
    /// Name of the set of its parameters.
    pub congestion_set: &'static str,
    /// Parameters that are not those of the set, by name; every one is sound.
    pub congestion_knobs: Vec<(String, String)>,
    /// Bytes that a QP may send at once.
    pub congestion_burst: u32,
    /// Priorities under flow control.
    pub pfc: Priorities,
    /// When the peer is asked to pause them.
    pub pfc_send: Option<Thresholds>,
    /// The rate that pauses are measured in; `None` takes what the link says.
    pub pfc_rate: Option<Rate>,
    /// What priority a DSCP is, where frames have no VLAN tag.
    pub pfc_dscp: DscpMap,
    /// Path MTU; `None` is the largest that the path carries.
    pub path_mtu: Option<PathMtu>,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 takes the route's.
    pub hop_limit: u8,
    /// UDP source port.
    pub source_port: SourcePort,
    /// Local ACK timeout: 4.096 us * 2^n; 0 waits for ever.
    pub ack_timeout: u8,
    /// Retries after time-outs and sequence errors.
    pub retry_count: u8,
    /// Retries after RNR NAKs; 7 for ever.
    pub rnr_retry: u8,
    /// Code of the time that RNR NAKs ask to wait.
    pub min_rnr_timer: u8,
    /// Whom `feroce perf` turns into once its device is open.
    pub user: Option<String>,
    /// DPDK's device, for [`Device::open`](super::Device::open) where no other is asked for; empty for none.
    pub dpdk_device: String,
    /// Own addresses of a DPDK port.
    pub dpdk_addresses: Vec<Address>,
    /// Routers of a DPDK port.
    pub dpdk_gateways: Vec<IpAddr>,
    /// Largest IP packet of a DPDK port in bytes.
    pub dpdk_mtu: u32,
    /// Where DPDK's packet buffers come from.
    pub dpdk_memory: DpdkMemory,
    /// Arguments for DPDK's EAL besides Feroce's own.
    pub dpdk_eal: Vec<String>,
    origins: BTreeMap<&'static str, Origin>,
}

impl Default for Settings {
    /// The defaults of [`DeviceConfig`] and [`ConnectOptions`].
    fn default() -> Self {
        let (device, connect) = (DeviceConfig::default(), ConnectOptions::default());
        Self {
            interfaces: Vec::new(),
            port_kind: device.port,
            cores: device.cores,
            helper: device.driver,
            window: device.window,
            ecn: device.ecn,
            congestion: device.congestion.control,
            congestion_set: feroce_congestion::params::SETS[0].name,
            congestion_knobs: Vec::new(),
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
            retry_count: connect.retry_cnt,
            rnr_retry: connect.rnr_retry,
            min_rnr_timer: connect.min_rnr_timer,
            user: None,
            dpdk_device: device.dpdk.port,
            dpdk_addresses: device.dpdk.addresses,
            dpdk_gateways: device.dpdk.gateways,
            dpdk_mtu: device.dpdk.mtu,
            dpdk_memory: device.dpdk.memory,
            dpdk_eal: device.dpdk.eal,
            origins: BTreeMap::new(),
        }
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origin {
    /// Nobody chose.
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
    /// An option of the command line, as it is written there.
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

/// Why the settings are not usable. The culprit is whoever wrote them.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the settings in {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
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
        /// What is wrong.
        message: String,
    },
    /// No setting has this name.
    #[error("{origin}: no setting is called `{key}`; there are {}", keys::names())]
    UnknownKey {
        /// Where it is.
        origin: Origin,
        /// The name.
        key: String,
    },
    /// A value is not what the setting takes.
    #[error("{origin}: `{key}` is `{value}`, expected {expected}")]
    Value {
        /// Where it is.
        origin: Origin,
        /// The setting.
        key: &'static str,
        /// As given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
}

impl Settings {
    /// The settings of this process: from the file and the environment.
    ///
    /// # Errors
    /// See [`SettingsError`]. That `/etc/feroce.toml` does not exist is none; that a file which
    /// `FEROCE_CONFIG` names does not exist is one.
    pub fn load() -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        match std::env::var_os(FILE_VARIABLE) {
            None => match settings.take_file(Path::new(FILE)) {
                Err(SettingsError::Read { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound => {}
                other => other?,
            },
            Some(path) if path.is_empty() => {}
            Some(path) => settings.take_file(Path::new(&path))?,
        }
        // Not text: a wrong value of a setting, and nobody else's business.
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        settings.take_environment(variables)?;
        Ok(settings)
    }

    /// The environment variables of this process that look like settings and are none: mistyped, most likely.
    pub fn unknown_variables() -> Vec<String> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter(|name| is_unknown(name)).collect()
    }

    /// Takes what the file `path` gives.
    ///
    /// # Errors
    /// See [`SettingsError`]; what stands ahead of the error in the file has been taken.
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

    /// Takes what the environment `variables` give: those called `FEROCE_` and the name of a setting, in
    /// capitals. An empty one is as good as none.
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

    /// Gives the setting `name` the value that `text` stands for.
    ///
    /// # Errors
    /// [`SettingsError::UnknownKey`], [`SettingsError::Value`].
    pub fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), SettingsError> {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(SettingsError::UnknownKey { origin, key: name.to_owned() });
        };
        if (key.set)(self, text.trim()).is_none() {
            let (value, expected) = (text.to_owned(), (key.expects)());
            return Err(SettingsError::Value { origin, key: key.name, value, expected });
        }
        self.origins.insert(key.name, origin);
        Ok(())
    }

    /// Where the value of the setting `name` came from.
    pub fn origin(&self, name: &str) -> Origin {
        self.origins.get(name).cloned().unwrap_or_default()
    }

    /// A configuration with these settings, and the defaults for everything else.
    pub fn device_config(&self) -> DeviceConfig {
        DeviceConfig {
            port: self.port_kind,
            cores: self.cores,
            driver: self.helper.clone(),
            window: self.window,
            ecn: self.ecn,
            congestion: self.congestion_config(),
            pfc: PfcConfig {
                priorities: self.pfc,
                thresholds: self.pfc_send,
                rate: self.pfc_rate,
                dscp: self.pfc_dscp,
            },
            dpdk: DpdkConfig {
                gateways: self.dpdk_gateways.clone(),
                mtu: self.dpdk_mtu,
                memory: self.dpdk_memory,
                eal: self.dpdk_eal.clone(),
                ..DpdkConfig::new(self.dpdk_device.clone(), self.dpdk_addresses.clone())
            },
            ..DeviceConfig::default()
        }
    }

    fn congestion_config(&self) -> CongestionConfig {
        let mut params = Params::named(self.congestion_set).unwrap_or_default();
        for (name, value) in &self.congestion_knobs {
            // What a knob takes does not depend on the others: it was taken when it was set.
            let taken = set_param(&mut params, name, value);
            debug_assert!(taken.is_ok(), "{name} = {value}");
        }
        CongestionConfig { control: self.congestion, params, burst: self.congestion_burst }
    }

    /// Options with these settings, and the defaults for everything else.
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

/// Whether `variable` looks like that of a setting and is none.
fn is_unknown(variable: &str) -> bool {
    variable.starts_with(PREFIX)
        && !OTHERS.contains(&variable)
        && !KEYS.iter().any(|key| key.variable() == variable)
}

/// A value of the file as one would give it in the environment; what is no single value as it stands in
/// the file, which no setting takes.
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

    fn told(text: &str) -> String {
        from_file(text).expect_err("a bad file").to_string()
    }

    #[test]
    fn without_anybody_choosing_the_defaults_are_the_engines() {
        let settings = Settings::default();
        let (config, default) = (settings.device_config(), DeviceConfig::default());
        assert_eq!(format!("{config:?}"), format!("{default:?}"));
        let (options, default) = (settings.connect_options(), ConnectOptions::default());
        assert_eq!(format!("{options:?}"), format!("{default:?}"));
        assert!(KEYS.iter().all(|key| settings.origin(key.name) == Origin::Default));
    }

    #[test]
    fn every_value_that_is_shown_is_one_that_is_taken() {
        let mut settings = Settings::default();
        for key in KEYS {
            let shown = (key.show)(&settings);
            settings.set(key.name, &shown, Origin::Flag("-")).unwrap();
            assert_eq!((key.show)(&settings), (key.show)(&Settings::default()), "{}", key.name);
        }
        assert_eq!(settings.user, None);
        assert_eq!(settings.device_config().window, DeviceConfig::default().window);
        for key in KEYS {
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
        let file = "# Lossless class\ntraffic_class = 0x6a\nhop_limit = 3\n\ncores = 4\necn = true\nhelper = \"spin:1,2,3,5\"\n\
                    path_mtu = 1024\nsource_port = 50000\nack_timeout = 16\nretry_count = 3\nrnr_retry = 2\nmin_rnr_timer = 1\n\
                    window = 512\ncongestion = \"dcqcn\"\ncongestion_set = \"nvidia\"\n\
                    congestion_knobs = \"rpg_ai_rate=7, cnp_scope=port\"\ncongestion_burst = 3000\npfc = 3\npfc_send = \"60/30\"\npfc_rate = \"25Gb/s\"\npfc_dscp = \"26:5\"\nport_kind = \"af_xdp\"\nuser = \"nobody\"\ninterfaces = \"eth0, eth1.5\"\n\
                    dpdk_device = \"net_memif0,role=client\"\ndpdk_addresses = \"10.0.0.1/24, fd00::1/64@7\"\n\
                    dpdk_gateways = \"10.0.0.254\"\ndpdk_mtu = 1500\ndpdk_memory = 256\ndpdk_eal = \"-l 1  -v\"\n";
        let settings = from_file(file).unwrap();
        let config = settings.device_config();
        assert_eq!((config.cores, config.ecn, config.window), (4, true, 512));
        let congestion = config.congestion;
        assert_eq!((congestion.control, congestion.burst), (Control::Dcqcn, 3000));
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
        let dpdk = config.dpdk;
        assert_eq!(dpdk.port, "net_memif0,role=client");
        let addresses = dpdk.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(addresses, ["10.0.0.1/24", "fd00::1/64@7"]);
        assert_eq!(dpdk.gateways, [IpAddr::from([10, 0, 0, 254])]);
        assert_eq!((dpdk.mtu, dpdk.memory), (1500, DpdkMemory::Ordinary { mib: 256 }));
        assert_eq!(dpdk.eal, ["-l", "1", "-v"]);
        assert_eq!(settings.interfaces, ["eth0", "eth1.5"]);
        assert_eq!(settings.origin("cores").to_string(), "/etc/feroce.toml:5");
    }

    #[test]
    fn later_ones_win_and_say_so() {
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
    fn the_environment_writes_numbers_as_people_do() {
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
    fn to_stay_whom_one_is_can_be_asked_for() {
        let mut settings = from_file("user = \"nobody\"\n").unwrap();
        settings.set("user", "", Origin::Flag("--user")).unwrap();
        assert_eq!(settings.user, None);
    }

    #[test]
    fn a_mistyped_variable_is_noticed() {
        for known in ["FEROCE_WINDOW", "FEROCE_CONFIG", "FEROCE_PCAP", "PATH", "feroce_x"] {
            assert!(!is_unknown(known), "{known}");
        }
        assert!(is_unknown("FEROCE_WINDWO") && is_unknown("FEROCE_PORT"));
    }

    #[test]
    fn errors_name_file_line_key_and_what_was_expected() {
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
            ("congestion = \"on\"", "expected `off`, `dcqcn`, `timely`, `swift`, or a fixed rate"),
            ("congestion_set = \"cisco\"", "expected paper, ns3-rdma"),
            ("congestion_knobs = \"kmin=5KB\"", "`congestion_knobs` is `kmin=5KB`"),
            (
                "congestion_knobs = \"ai_rate=fast\"",
                "expected parameters by Feroce's or NVIDIA's names",
            ),
            ("congestion_burst = 0", "expected 1 to 268435456 bytes"),
            ("pfc = \"8\"", "expected `off`, or priorities from 0 to 7"),
            ("pfc_send = \"25/50\"", "`pfc_send` is `25/50`, expected `off`, or XOFF/XON"),
            ("pfc_rate = 10", "expected `auto`"),
            ("pfc_dscp = \"26\"", "expected `default`"),
            ("helper = \"manual\"", "`helper` is `manual`"),
            ("port_kind = \"ib\"", "expected auto, af_xdp"),
            ("dpdk_device = \",role=client\"", "`dpdk_device` is `,role=client`"),
            ("dpdk_addresses = \"10.0.0.1\"", "expected own addresses, each with its prefix"),
            ("dpdk_gateways = \"10.0.0.1/24\"", "`dpdk_gateways` is `10.0.0.1/24`"),
            ("dpdk_mtu = 100", "expected 576 to 9600"),
            ("dpdk_memory = 1", "expected `hugepages` or"),
            ("dpdk_eal = \"0 -l\"", "`dpdk_eal` is `0 -l`"),
            ("a = 1\nb = = 2\n", "/etc/feroce.toml:2: "),
            ("ecn = true\necn = false\n", "/etc/feroce.toml:2: "),
        ];
        for (file, expected) in bad {
            let told = told(file);
            assert!(told.contains(expected), "{file:?}: {told}");
        }
        let mut settings = Settings::default();
        let bad = [("FEROCE_WINDOW".to_owned(), "many".to_owned())];
        let told = settings.take_environment(bad.into_iter()).unwrap_err().to_string();
        assert!(told.starts_with("FEROCE_WINDOW: `window` is `many`, expected 32 to"), "{told}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let told = Settings::default().take_file(Path::new("/nonexistent/feroce.toml"));
        let told = told.unwrap_err().to_string();
        assert!(told.contains("/nonexistent/feroce.toml"), "{told}");
    }
}
