//! Settings as options of the command line, and `feroce config`: the settings in effect and the
//! source of each.

use clap::{Args, ValueHint};
use comfy_table::{Table, presets};
use feroce_engine::congestion::Control;
use feroce_engine::device::settings::{KEYS, Key, Origin, Settings};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;
use crate::port_flags::PortFlags;
use crate::setting_flag::{Flag, setting};

/// Settings of a connection. `feroce perf` has its own options for them among the options of its
/// test.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Settings (defaults: `feroce config`)")]
pub struct PathFlags {
    /// Path MTU in bytes, or `auto`: the largest that the path carries
    #[arg(short, long, value_name = "BYTES", value_parser = setting("path_mtu"))]
    pub mtu: Option<String>,
    /// Traffic class: DSCP and ECN bits
    #[arg(long, value_name = "N", value_parser = setting("traffic_class"))]
    pub tclass: Option<String>,
    /// Local ACK timeout: 4.096 us * 2^N; 0: never
    #[arg(short = 'u', long, value_name = "N", value_parser = setting("ack_timeout"))]
    pub timeout: Option<String>,
    /// Retries after timeouts and sequence errors
    #[arg(long, value_name = "N", value_parser = setting("retry_count"))]
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
    /// The settings of this process: file, environment and these options.
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

fn set(settings: &mut Settings, flags: &[Flag<'_>]) -> Result<(), Failure> {
    for (key, flag, value) in flags {
        if let Some(value) = value {
            settings.set(key, value, Origin::Flag(flag))?;
        }
    }
    Ok(())
}

/// Settings given as options. An option overrides the environment, which overrides the file.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Settings (defaults: `feroce config`)")]
pub struct SettingFlags {
    /// Owner of the interface: `auto` (the daemon if there is one), `embedded` or `daemon`
    #[arg(long, value_name = "HOW", value_parser = setting("sharing"))]
    pub sharing: Option<String>,
    /// Kind of port: `auto` (the best that the host allows), or a name
    #[arg(long, value_name = "KIND", value_parser = setting("port_kind"))]
    pub port_kind: Option<String>,
    /// Cores of the device; each needs a queue of the interface
    #[arg(long, value_name = "N", value_parser = setting("cores"))]
    pub cores: Option<String>,
    /// Helper threads: `adaptive` (sleep when idle), `spin`, or `spin:CPU,...` (pinned, one CPU per
    /// core)
    #[arg(long, value_name = "HOW", value_parser = setting("helper"))]
    pub helper: Option<String>,
    /// SEND and WRITE packets that one QP may have outstanding
    #[arg(long, value_name = "PACKETS", value_parser = setting("window"))]
    pub window: Option<String>,
    /// SEND and WRITE packets that all QPs of a core may have outstanding at one peer
    #[arg(long, value_name = "PACKETS", value_parser = setting("peer_window"))]
    pub peer_window: Option<String>,
    /// Response packets of READs that all QPs of a core may have outstanding
    #[arg(long, value_name = "PACKETS", value_parser = setting("read_window"))]
    pub read_window: Option<String>,
    /// Shortest local ACK timeout, 4.096 us * 2^N; 0: timeouts are exact
    #[arg(long, value_name = "N", value_parser = setting("min_ack_timeout"))]
    pub min_ack_timeout: Option<String>,
    /// QPs of a device, at most
    #[arg(long, value_name = "N", value_parser = setting("max_qp"))]
    pub max_qp: Option<String>,
    /// Memory regions and windows of a device, at most
    #[arg(long, value_name = "N", value_parser = setting("max_mr"))]
    pub max_mr: Option<String>,
    /// Completion queues of a device, at most
    #[arg(long, value_name = "N", value_parser = setting("max_cq"))]
    pub max_cq: Option<String>,
    /// Protection domains of a device, at most
    #[arg(long, value_name = "N", value_parser = setting("max_pd"))]
    pub max_pd: Option<String>,
    /// Send only lost packets again, to peers that offer it as well
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = setting("selective_repeat")
    )]
    pub selective_repeat: Option<String>,
    /// Send super-frames to every peer on a veth, not only to those that agreed
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = setting("super_frames_to_all")
    )]
    pub super_frames_to_all: Option<String>,
    /// Mark data packets ECT(0), so that switches mark instead of dropping
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = setting("ecn")
    )]
    pub ecn: Option<String>,
    #[arg(
        long,
        value_name = "HOW",
        value_parser = setting("congestion"),
        help = format!("Congestion control of each QP: {}", Control::EXPECTS)
    )]
    pub congestion: Option<String>,
    /// Named set of congestion control parameters
    #[arg(long, value_name = "SET", value_parser = setting("congestion_set"))]
    pub congestion_set: Option<String>,
    /// Parameters that differ from the set, such as `ai_rate=40Mb/s,rpg_time_reset=300`
    #[arg(long, value_name = "LIST", value_parser = setting("congestion_parameters"))]
    pub congestion_parameters: Option<String>,
    /// With congestion control: bytes that a QP may send in one burst
    #[arg(long, value_name = "BYTES", value_parser = setting("congestion_burst"))]
    pub congestion_burst: Option<String>,
    /// Priorities that obey PFC frames: `off`, or a list such as `3,4`
    #[arg(long, value_name = "LIST", value_parser = setting("pfc"))]
    pub pfc: Option<String>,
    /// When to send PFC frames: `off`, or XOFF/XON in percent of the receive ring, such as `50/25`
    #[arg(long, value_name = "XOFF/XON", value_parser = setting("pfc_send"))]
    pub pfc_send: Option<String>,
    /// Link rate that pause times are computed with: `auto`, or a rate such as `10Gb/s`
    #[arg(long, value_name = "RATE", value_parser = setting("pfc_rate"))]
    pub pfc_rate: Option<String>,
    /// Priorities of DSCPs where they differ from DSCP / 8, such as `26:3,48:6`
    #[arg(long, value_name = "MAP", value_parser = setting("pfc_dscp"))]
    pub pfc_dscp: Option<String>,
    /// TTL or hop limit; 0: that of the route
    #[arg(long, value_name = "N", value_parser = setting("hop_limit"))]
    pub hop_limit: Option<String>,
    /// UDP source port: `per_qp` (from a hash of the QP numbers), or one port for all QPs
    #[arg(long, value_name = "PORT", value_parser = setting("source_port"))]
    pub source_port: Option<String>,
    /// Retries when the peer has no receive posted; 7: unlimited
    #[arg(long, value_name = "N", value_parser = setting("rnr_retry"))]
    pub rnr_retry: Option<String>,
    /// Minimum RNR timer code: how long the peer waits when no receive is posted here
    #[arg(long, value_name = "CODE", value_parser = setting("min_rnr_timer"))]
    pub min_rnr_timer: Option<String>,
    /// User to switch to after the device is open; empty to keep the user
    #[arg(
        long,
        value_name = "NAME",
        value_hint = ValueHint::Username,
        value_parser = setting("user")
    )]
    pub user: Option<String>,
    /// Settings of one kind of port each.
    #[command(flatten)]
    pub ports: PortFlags,
}

impl SettingFlags {
    /// The settings of this process: file, environment and these options.
    pub fn load(&self) -> Result<Settings, Failure> {
        let mut settings = Settings::load()?;
        set(&mut settings, &self.flags())?;
        Ok(settings)
    }

    /// The first given option that concerns a device or a connection.
    pub fn first_device_option(&self) -> Option<&'static str> {
        let given = self.flags().into_iter().filter(|(key, _, _)| *key != "user");
        given.into_iter().find(|(_, _, value)| value.is_some()).map(|(_, flag, _)| flag)
    }

    fn flags(&self) -> Vec<Flag<'_>> {
        let flags = [
            ("sharing", "--sharing", &self.sharing),
            ("port_kind", "--port-kind", &self.port_kind),
            ("cores", "--cores", &self.cores),
            ("helper", "--helper", &self.helper),
            ("window", "--window", &self.window),
            ("peer_window", "--peer-window", &self.peer_window),
            ("read_window", "--read-window", &self.read_window),
            ("min_ack_timeout", "--min-ack-timeout", &self.min_ack_timeout),
            ("max_qp", "--max-qp", &self.max_qp),
            ("max_mr", "--max-mr", &self.max_mr),
            ("max_cq", "--max-cq", &self.max_cq),
            ("max_pd", "--max-pd", &self.max_pd),
            ("selective_repeat", "--selective-repeat", &self.selective_repeat),
            ("super_frames_to_all", "--super-frames-to-all", &self.super_frames_to_all),
            ("ecn", "--ecn", &self.ecn),
            ("congestion", "--congestion", &self.congestion),
            ("congestion_set", "--congestion-set", &self.congestion_set),
            ("congestion_parameters", "--congestion-parameters", &self.congestion_parameters),
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
    /// Settings, as options of other subcommands
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
        "A setting has the value of its option, else of the environment variable \
         FEROCE_<SETTING>, else of /etc/feroce.toml (or the file that FEROCE_CONFIG names; empty \
         for none), else its default. The file is TOML, one line `setting = value` each:\n\n\
         {}\n\n`feroce config` shows what each setting does; docs/configuration.md explains the \
         defaults.",
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

/// Prints the settings.
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
    table.set_header(["setting", "value", "source", "description"]);
    for row in &rows {
        table.add_row([row.setting, &row.value, &row.from, row.about]);
    }
    output::line(&table.trim_fmt())
}

/// A configuration file in which every setting is commented out.
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
