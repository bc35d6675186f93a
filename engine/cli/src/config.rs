//! Settings on the command line, and `feroce config`: which values are in effect, and where each came from.

use clap::{Args, ValueHint};
use comfy_table::{Table, presets};
use feroce_engine::device::settings::{KEYS, Key, Origin, Settings};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;
use crate::port_flags::PortFlags;

/// Settings of the path, which `feroce perf` has among the options of its test.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Settings (defaults: `feroce config`)")]
pub struct PathFlags {
    /// Path MTU in bytes, or `auto`: the largest that the path carries
    #[arg(short, long, value_name = "BYTES", value_parser = of("path_mtu"))]
    pub mtu: Option<String>,
    /// Traffic class: DSCP and ECN bits
    #[arg(long, value_name = "N", value_parser = of("traffic_class"))]
    pub tclass: Option<String>,
    /// Local ACK timeout, 4.096 us * 2^N; 0 waits for ever
    #[arg(short = 'u', long, value_name = "N", value_parser = of("ack_timeout"))]
    pub timeout: Option<String>,
    /// Retries after time-outs and sequence errors
    #[arg(long, value_name = "N", value_parser = of("retry_count"))]
    pub retry: Option<String>,
}

/// Every setting as an option.
#[derive(Debug, Default, Args)]
pub struct AllFlags {
    #[command(flatten)]
    settings: SettingFlags,
    #[command(flatten)]
    path: PathFlags,
}

impl AllFlags {
    /// The settings of this process: file, environment, and these.
    pub fn load(&self) -> Result<Settings, Failure> {
        let mut settings = self.settings.load()?;
        let flags = [
            ("path_mtu", "--mtu", &self.path.mtu),
            ("traffic_class", "--tclass", &self.path.tclass),
            ("ack_timeout", "--timeout", &self.path.timeout),
            ("retry_count", "--retry", &self.path.retry),
        ];
        set(&mut settings, &flags)?;
        Ok(settings)
    }
}

/// A setting's name, its option, and what that was given.
pub(crate) type Flag<'a> = (&'static str, &'static str, &'a Option<String>);

fn set(settings: &mut Settings, flags: &[Flag<'_>]) -> Result<(), Failure> {
    for (key, flag, value) in flags {
        if let Some(value) = value {
            settings.set(key, value, Origin::Flag(flag))?;
        }
    }
    Ok(())
}

/// Settings given as options: they win over the environment, which wins over the file.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Settings (defaults: `feroce config`)")]
pub struct SettingFlags {
    /// How frames come and go: `auto` (the best there is), or the kind of a port
    #[arg(long, value_name = "KIND", value_parser = of("port_kind"))]
    pub port_kind: Option<String>,
    /// Cores of the device; each needs a queue of the interface
    #[arg(long, value_name = "N", value_parser = of("cores"))]
    pub cores: Option<String>,
    /// Helper threads: `adaptive` (sleep when idle), `spin`, or `spin:CPU,...` (pinned, a CPU per core)
    #[arg(long, value_name = "HOW", value_parser = of("helper"))]
    pub helper: Option<String>,
    /// Packets of SENDs and WRITEs that one QP may have outstanding
    #[arg(long, value_name = "PACKETS", value_parser = of("window"))]
    pub window: Option<String>,
    /// Mark data packets ECT(0), so that switches mark instead of dropping
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = of("ecn"))]
    pub ecn: Option<String>,
    /// What decides how fast a QP sends: `off`, `dcqcn`, `timely`, `swift`, or a fixed rate such as `10Gb/s`
    #[arg(long, value_name = "HOW", value_parser = of("congestion"))]
    pub congestion: Option<String>,
    /// Set of parameters of congestion control
    #[arg(long, value_name = "SET", value_parser = of("congestion_set"))]
    pub congestion_set: Option<String>,
    /// Parameters that differ from the set's, as `ai_rate=40Mb/s,rpg_time_reset=300`
    #[arg(long, value_name = "LIST", value_parser = of("congestion_knobs"))]
    pub congestion_knobs: Option<String>,
    /// With congestion control: bytes that a QP may send at once
    #[arg(long, value_name = "BYTES", value_parser = of("congestion_burst"))]
    pub congestion_burst: Option<String>,
    /// Priorities that pause when a frame of flow control asks for it: `off`, or as `3,4`
    #[arg(long, value_name = "LIST", value_parser = of("pfc"))]
    pub pfc: Option<String>,
    /// When to ask the peer to pause them: `off`, or XOFF/XON in per cent of the receive ring, as `50/25`
    #[arg(long, value_name = "XOFF/XON", value_parser = of("pfc_send"))]
    pub pfc_send: Option<String>,
    /// Rate of the link that pauses are measured in: `auto`, or as `10Gb/s`
    #[arg(long, value_name = "RATE", value_parser = of("pfc_rate"))]
    pub pfc_rate: Option<String>,
    /// Priority of DSCPs where it is not DSCP / 8, as `26:3,48:6`
    #[arg(long, value_name = "MAP", value_parser = of("pfc_dscp"))]
    pub pfc_dscp: Option<String>,
    /// TTL or hop limit; 0 takes the route's
    #[arg(long, value_name = "N", value_parser = of("hop_limit"))]
    pub hop_limit: Option<String>,
    /// UDP source port: `per_qp` (from a hash of the QP numbers), or the same for all
    #[arg(long, value_name = "PORT", value_parser = of("source_port"))]
    pub source_port: Option<String>,
    /// Retries when the peer has no receive posted; 7 for ever
    #[arg(long, value_name = "N", value_parser = of("rnr_retry"))]
    pub rnr_retry: Option<String>,
    /// Code of the time that the peer waits when it finds no receive posted here
    #[arg(long, value_name = "CODE", value_parser = of("min_rnr_timer"))]
    pub min_rnr_timer: Option<String>,
    /// Whom to turn into once the device is open; empty to stay
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Username, value_parser = of("user"))]
    pub user: Option<String>,
    /// Settings of one kind of port each.
    #[command(flatten)]
    pub ports: PortFlags,
}

impl SettingFlags {
    /// The settings of this process: file, environment, and these.
    pub fn load(&self) -> Result<Settings, Failure> {
        let mut settings = Settings::load()?;
        set(&mut settings, &self.flags())?;
        Ok(settings)
    }

    /// The first that is given and is about a device or a connection.
    pub fn of_rdma(&self) -> Option<&'static str> {
        let given = self.flags().into_iter().filter(|(key, _, _)| *key != "user");
        given.into_iter().find(|(_, _, value)| value.is_some()).map(|(_, flag, _)| flag)
    }

    fn flags(&self) -> Vec<Flag<'_>> {
        let flags = [
            ("port_kind", "--port-kind", &self.port_kind),
            ("cores", "--cores", &self.cores),
            ("helper", "--helper", &self.helper),
            ("window", "--window", &self.window),
            ("ecn", "--ecn", &self.ecn),
            ("congestion", "--congestion", &self.congestion),
            ("congestion_set", "--congestion-set", &self.congestion_set),
            ("congestion_knobs", "--congestion-knobs", &self.congestion_knobs),
            ("congestion_burst", "--congestion-burst", &self.congestion_burst),
            ("pfc", "--pfc", &self.pfc),
            ("pfc_send", "--pfc-send", &self.pfc_send),
            ("pfc_rate", "--pfc-rate", &self.pfc_rate),
            ("pfc_dscp", "--pfc-dscp", &self.pfc_dscp),
            ("hop_limit", "--hop-limit", &self.hop_limit),
            ("source_port", "--source-port", &self.source_port),
            ("rnr_retry", "--rnr-retry", &self.rnr_retry),
            ("min_rnr_timer", "--min-rnr-timer", &self.min_rnr_timer),
            ("user", "--user", &self.user),
        ];
        flags.into_iter().chain(self.ports.flags()).collect()
    }
}

/// A value for the setting `name`, as text.
pub(crate) fn of(
    name: &'static str,
) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| taken(name, text).map(|_| text.to_owned())
}

/// A value for the setting `name`, as `read` finds it there.
pub fn value_of<T: 'static>(
    name: &'static str,
    read: fn(&Settings) -> T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| taken(name, text).map(|settings| read(&settings))
}

/// The defaults with one value taken from `text`.
fn taken(name: &'static str, text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    let key = KEYS.iter().find(|key| key.name == name).expect("in the table");
    let taken = settings.set(name, text, Origin::Default);
    taken.map(|()| settings).map_err(|_| format!("expected {}", key.expects()))
}

/// Options of `feroce config`.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print a configuration file with every setting and its default, commented out
    #[arg(long, conflicts_with = "json")]
    example: bool,
    /// As on the command line of a program
    #[command(flatten)]
    settings: AllFlags,
}

fn after_help() -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for key in KEYS.iter() {
        table.add_row([key.name, key.expects()]);
    }
    format!(
        "A setting comes from an option, else from the environment variable FEROCE_<SETTING>, else from \
         /etc/feroce.toml (or the file that FEROCE_CONFIG names; empty for none), else it has its default. \
         The file is TOML, a line `setting = value` each:\n\n{}\n\n`feroce config` says what each sets, docs/configuration.md why it is so.",
        table.trim_fmt()
    )
}

/// A setting in effect.
#[derive(Debug, Serialize)]
struct Row {
    setting: &'static str,
    value: String,
    from: String,
    about: &'static str,
}

/// Shows the settings.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.example {
        return output::line(&example());
    }
    let settings = options.settings.load()?;
    let row = |key: &Key| Row {
        setting: key.name,
        value: key.show(&settings),
        from: settings.origin(key.name).to_string(),
        about: key.about,
    };
    let rows: Vec<_> = KEYS.iter().map(row).collect();
    if options.json {
        return output::json(&rows);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["setting", "value", "from", "what it sets"]);
    for row in &rows {
        table.add_row([row.setting, &row.value, &row.from, row.about]);
    }
    output::line(&table.trim_fmt())
}

/// A file of which any line may be uncommented, and changed.
fn example() -> String {
    let defaults = Settings::default();
    let mut text =
        "# Settings of Feroce: /etc/feroce.toml. Each line below is the default.\n".to_owned();
    for key in KEYS.iter() {
        let value = key.show(&defaults);
        let is_bare = value.parse::<u64>().is_ok() || value.parse::<bool>().is_ok();
        let value = if is_bare { value } else { format!("{value:?}") };
        text += &format!("\n# {}: {}\n#{} = {value}\n", key.about, key.expects(), key.name);
    }
    text.trim_end().to_owned()
}
