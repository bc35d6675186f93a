//! The table of settings: names, valid values, descriptions, and how values are read and shown.

use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use feroce_congestion::{Pacer, Params, params};
use feroce_wire::PathMtu;

use super::{PREFIX, Settings};
use crate::congestion::{Control, set_param};
use crate::device::config::{CORES, CQS, MRS, PDS, QPS, WINDOWS};
use crate::device::{Driver, PortKind, Sharing, SourcePort};
use crate::pfc::{self, DscpMap, Priorities, Thresholds};
use crate::port::kind::{PortOption, PortSetting};
use crate::setting_text::number;

/// The setting whose value is a list of congestion control parameters.
const PARAMETERS: &str = "congestion_parameters";

/// A setting.
#[derive(Debug)]
pub struct Key {
    /// Name in the configuration file.
    pub name: &'static str,
    /// What the setting controls.
    pub about: &'static str,
    source: Source,
}

/// The table that a setting comes from.
#[derive(Debug)]
enum Source {
    Row(&'static Row),
    Port(&'static PortSetting),
}

impl Key {
    /// The environment variable of the setting.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_ascii_uppercase())
    }

    /// The values that the setting takes, for messages.
    pub fn expects(&self) -> &'static str {
        match self.source {
            Source::Row(row) => (row.expects)(),
            Source::Port(row) => row.expects,
        }
    }

    /// What a message says after `text` was refused: the values that the setting takes and, of a
    /// list, what is wrong with which part.
    pub fn refusal(&self, text: &str) -> String {
        let expects = self.expects();
        match self.name {
            PARAMETERS => match parameters(text) {
                Err(part) => format!("{expects} ({part})"),
                Ok(_) => expects.to_owned(),
            },
            _ => expects.to_owned(),
        }
    }

    /// The value in effect, in the form in which it can be set.
    pub fn show(&self, settings: &Settings) -> String {
        match self.source {
            Source::Row(row) => (row.show)(settings),
            Source::Port(row) => (row.show)(&settings.ports),
        }
    }

    /// The command-line option, if the setting is one of a kind of port and has an option.
    pub fn port_option(&self) -> Option<PortOption> {
        match self.source {
            Source::Row(_) => None,
            Source::Port(row) => row.option,
        }
    }

    /// Sets the value; `None` if `text` is not a valid value.
    pub(super) fn set(&self, settings: &mut Settings, text: &str) -> Option<()> {
        match self.source {
            Source::Row(row) => (row.set)(settings, text),
            Source::Port(row) => (row.set)(&mut settings.ports, text),
        }
    }
}

/// Every setting: the rows below, then the settings of each kind of port.
/// `docs/configuration.md` gives the reasons for the defaults.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let rows =
        ROWS.iter().map(|row| Key { name: row.name, about: row.about, source: Source::Row(row) });
    let ports = PortKind::rows().flat_map(|(_, entry)| entry.settings).map(|row| Key {
        name: row.name,
        about: row.about,
        source: Source::Port(row),
    });
    rows.chain(ports).collect()
});

/// A setting that is not specific to one kind of port.
#[derive(Debug)]
struct Row {
    /// See [`Key::name`].
    name: &'static str,
    /// See [`Key::expects`].
    expects: fn() -> &'static str,
    /// See [`Key::about`].
    about: &'static str,
    /// See [`Key::set`].
    set: fn(&mut Settings, &str) -> Option<()>,
    /// See [`Key::show`].
    show: fn(&Settings) -> String,
}

/// Every setting that is not specific to one kind of port.
static ROWS: &[Row] = &[
    Row {
        name: "interfaces",
        expects: || "`all`, or names of interfaces separated by commas",
        about: "interfaces that verbs applications see as RDMA devices",
        set: |settings, text| interfaces(text).map(|names| settings.interfaces = names),
        show: |settings| match settings.interfaces.as_slice() {
            [] => ALL.to_owned(),
            names => names.join(","),
        },
    },
    Row {
        name: "sharing",
        expects: || "`auto`, `embedded` or `daemon`",
        about: "owner of the interface: the daemon (`feroce up`) if there is one, always the \
                program, or always the daemon",
        set: |settings, text| {
            let found = Sharing::NAMES.iter().find(|(name, _)| *name == text);
            found.map(|(_, sharing)| settings.sharing = *sharing)
        },
        show: |settings| {
            let found = Sharing::NAMES.iter().find(|(_, sharing)| *sharing == settings.sharing);
            found.map_or_else(String::new, |(name, _)| (*name).to_owned())
        },
    },
    Row {
        name: "port_kind",
        expects: || &PORT_KINDS,
        about: "kind of port, which receives and sends frames",
        set: |settings, text| text.parse().ok().map(|kind| settings.port_kind = kind),
        show: |settings| settings.port_kind.to_string(),
    },
    Row {
        name: "cores",
        expects: || "1 to 64",
        about: "number of cores of a device; each needs a queue of the interface",
        set: |settings, text| {
            let range = *CORES.start() as u64..=*CORES.end() as u64;
            number(text, range).map(|cores: usize| settings.cores = cores)
        },
        show: |settings| settings.cores.to_string(),
    },
    Row {
        name: "helper",
        expects: || "`adaptive`, `spin` or `spin:CPU,...`",
        about: "helper threads: sleeping when idle, spinning, or spinning on a CPU per core",
        set: |settings, text| helper(text).map(|helper| settings.helper = helper),
        show: |settings| show_helper(&settings.helper),
    },
    Row {
        name: "window",
        expects: || "32 to 1048576 packets",
        about: "maximum number of outstanding SEND and WRITE packets of a QP",
        set: |settings, text| limit(text, WINDOWS).map(|window| settings.window = window),
        show: |settings| settings.window.to_string(),
    },
    Row {
        name: "peer_window",
        expects: || "32 to 1048576 packets",
        about: "maximum number of outstanding SEND and WRITE packets of all QPs of a core at one \
                peer; at least `window`",
        set: |settings, text| limit(text, WINDOWS).map(|window| settings.peer_window = window),
        show: |settings| settings.peer_window.to_string(),
    },
    Row {
        name: "read_window",
        expects: || "32 to 1048576 packets",
        about: "maximum number of outstanding response packets of READs and atomics of all QPs of \
                a core",
        set: |settings, text| limit(text, WINDOWS).map(|window| settings.read_window = window),
        show: |settings| settings.read_window.to_string(),
    },
    Row {
        name: "max_qp",
        expects: || "1 to 1048576 QPs",
        about: "maximum number of QPs",
        set: |settings, text| limit(text, QPS).map(|limit| settings.max_qp = limit),
        show: |settings| settings.max_qp.to_string(),
    },
    Row {
        name: "max_mr",
        expects: || "1 to 8388608 regions",
        about: "maximum number of memory regions and windows together",
        set: |settings, text| limit(text, MRS).map(|limit| settings.max_mr = limit),
        show: |settings| settings.max_mr.to_string(),
    },
    Row {
        name: "max_cq",
        expects: || "1 to 2097152 CQs",
        about: "maximum number of completion queues",
        set: |settings, text| limit(text, CQS).map(|limit| settings.max_cq = limit),
        show: |settings| settings.max_cq.to_string(),
    },
    Row {
        name: "max_pd",
        expects: || "1 to 1048576 PDs",
        about: "maximum number of protection domains",
        set: |settings, text| limit(text, PDS).map(|limit| settings.max_pd = limit),
        show: |settings| settings.max_pd.to_string(),
    },
    Row {
        name: "selective_repeat",
        expects: || "true or false",
        about: "agree with peers that offer it, too, to send only lost packets again",
        set: |settings, text| flag(text).map(|offers| settings.selective_repeat = offers),
        show: |settings| settings.selective_repeat.to_string(),
    },
    Row {
        name: "super_frames_to_all",
        expects: || "true or false",
        about: "send super-frames to every peer on a veth, not only to those that agreed",
        set: |settings, text| flag(text).map(|all| settings.super_frames_to_all = all),
        show: |settings| settings.super_frames_to_all.to_string(),
    },
    Row {
        name: "ecn",
        expects: || "true or false",
        about: "mark data packets ECT(0), so that switches mark packets instead of dropping them",
        set: |settings, text| flag(text).map(|ecn| settings.ecn = ecn),
        show: |settings| settings.ecn.to_string(),
    },
    Row {
        name: "congestion",
        expects: || Control::EXPECTS,
        about: "congestion control of QPs; unless off, marked packets are answered with CNPs; \
                dcqcn also marks data packets ECT(0)",
        set: |settings, text| text.parse().ok().map(|control| settings.congestion = control),
        show: |settings| settings.congestion.to_string(),
    },
    Row {
        name: "congestion_set",
        expects: || &SETS,
        about: "set of congestion control parameters, which `congestion_parameters` changes",
        set: |settings, text| congestion_set(text).map(|set| settings.congestion_set = set),
        show: |settings| settings.congestion_set.to_owned(),
    },
    Row {
        name: PARAMETERS,
        expects: || "parameters by Feroce's or NVIDIA's names: `ai_rate=40Mb/s, cnp_scope=port`",
        about: "congestion control parameters that differ from the set",
        set: |settings, text| {
            parameters(text).ok().map(|parameters| settings.congestion_parameters = parameters)
        },
        show: |settings| {
            let pairs = settings
                .congestion_parameters
                .iter()
                .map(|(name, value)| format!("{name}={value}"));
            pairs.collect::<Vec<_>>().join(", ")
        },
    },
    Row {
        name: "congestion_burst",
        expects: || "1 to 268435456 bytes",
        about: "with congestion control: maximum burst of a QP in bytes, after a delay",
        set: |settings, text| {
            number(text, 1..=u64::from(Pacer::MAX_BURST))
                .map(|bytes| settings.congestion_burst = bytes)
        },
        show: |settings| settings.congestion_burst.to_string(),
    },
    Row {
        name: "pfc",
        expects: || Priorities::EXPECTS,
        about: "priorities that obey flow-control frames (PFC)",
        set: |settings, text| text.parse().ok().map(|priorities| settings.pfc = priorities),
        show: |settings| settings.pfc.to_string(),
    },
    Row {
        name: "pfc_send",
        expects: || Thresholds::EXPECTS,
        about: "receive fill levels at which the peer is requested to pause and to resume",
        set: |settings, text| Thresholds::parse(text).ok().map(|send| settings.pfc_send = send),
        show: |settings| Thresholds::show(settings.pfc_send),
    },
    Row {
        name: "pfc_rate",
        expects: || pfc::RATE_EXPECTS,
        about: "link rate, which determines the duration of pauses",
        set: |settings, text| pfc::parse_rate(text).ok().map(|rate| settings.pfc_rate = rate),
        show: |settings| pfc::show_rate(settings.pfc_rate),
    },
    Row {
        name: "pfc_dscp",
        expects: || DscpMap::EXPECTS,
        about: "priority of each DSCP, for frames without a VLAN tag",
        set: |settings, text| text.parse().ok().map(|map| settings.pfc_dscp = map),
        show: |settings| settings.pfc_dscp.to_string(),
    },
    Row {
        name: "path_mtu",
        expects: || "`auto`, 256, 512, 1024, 2048 or 4096",
        about: "path MTU in bytes; auto is the largest that the path carries",
        set: |settings, text| path_mtu(text).map(|mtu| settings.path_mtu = mtu),
        show: |settings| settings.path_mtu.map_or_else(|| "auto".to_owned(), |mtu| mtu.to_string()),
    },
    Row {
        name: "traffic_class",
        expects: || "0 to 255",
        about: "DSCP and ECN bits: DSCP is the value divided by 4",
        set: |settings, text| number(text, 0..=255).map(|class| settings.traffic_class = class),
        show: |settings| settings.traffic_class.to_string(),
    },
    Row {
        name: "hop_limit",
        expects: || "0 to 255",
        about: "TTL or hop limit; 0 uses that of the route",
        set: |settings, text| number(text, 0..=255).map(|limit| settings.hop_limit = limit),
        show: |settings| settings.hop_limit.to_string(),
    },
    Row {
        name: "source_port",
        expects: || "`per_qp` or 1 to 65535",
        about: "UDP source port: from a hash of the QP numbers, or the same for all QPs",
        set: |settings, text| source_port(text).map(|port| settings.source_port = port),
        show: |settings| match settings.source_port {
            SourcePort::PerQp => PER_QP.to_owned(),
            SourcePort::Fixed(port) => port.to_string(),
        },
    },
    Row {
        name: "ack_timeout",
        expects: || "0 to 31",
        about: "local ACK timeout, 4.096 us * 2^N; 0 means no timeout",
        set: |settings, text| number(text, 0..=31).map(|timeout| settings.ack_timeout = timeout),
        show: |settings| settings.ack_timeout.to_string(),
    },
    Row {
        name: "min_ack_timeout",
        expects: || "0 to 31",
        about: "shortest local ACK timeout of this host, 4.096 us * 2^N; 0 means exact timeouts",
        set: |settings, text| number(text, 0..=31).map(|min| settings.min_ack_timeout = min),
        show: |settings| settings.min_ack_timeout.to_string(),
    },
    Row {
        name: "retry_count",
        expects: || "0 to 7",
        about: "retries after timeouts and sequence errors",
        set: |settings, text| number(text, 0..=7).map(|count| settings.retry_count = count),
        show: |settings| settings.retry_count.to_string(),
    },
    Row {
        name: "rnr_retry",
        expects: || "0 to 7",
        about: "retries when the peer has no receive posted; 7 means no limit",
        set: |settings, text| number(text, 0..=7).map(|count| settings.rnr_retry = count),
        show: |settings| settings.rnr_retry.to_string(),
    },
    Row {
        name: "min_rnr_timer",
        expects: || "0 to 31",
        about: "code of the time that a peer waits if no receive is posted here",
        set: |settings, text| number(text, 0..=31).map(|code| settings.min_rnr_timer = code),
        show: |settings| settings.min_rnr_timer.to_string(),
    },
    Row {
        name: "user",
        expects: || "a user name, or empty for no change",
        about: "user that `feroce perf` changes to after opening its device",
        set: |settings, text| {
            settings.user = (!text.is_empty()).then(|| text.to_owned());
            Some(())
        },
        show: |settings| settings.user.clone().unwrap_or_default(),
    },
];

/// The names of the kinds of port, for messages.
static PORT_KINDS: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<_> = PortKind::NAMES.iter().map(|(name, _)| *name).collect();
    names.join(", ")
});

/// The names of the sets of congestion control parameters, for messages.
static SETS: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<_> = params::SETS.iter().map(|set| set.name).collect();
    names.join(", ")
});

const PER_QP: &str = "per_qp";
const ALL: &str = "all";

fn interfaces(text: &str) -> Option<Vec<String>> {
    if text == ALL {
        return Some(Vec::new());
    }
    let is_name = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-@+".contains(c))
    };
    text.split(',').map(|name| Some(name.trim()).filter(is_name).map(str::to_owned)).collect()
}

/// The names of all settings, for messages.
pub(super) fn names() -> String {
    let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
    names.join(", ")
}

/// Reads a number in `range`.
fn limit(text: &str, range: RangeInclusive<u32>) -> Option<u32> {
    number(text, u64::from(*range.start())..=u64::from(*range.end()))
}

fn flag(text: &str) -> Option<bool> {
    let words = [(true, ["true", "yes", "on", "1"]), (false, ["false", "no", "off", "0"])];
    let found = words.iter().find(|(_, words)| words.iter().any(|w| text.eq_ignore_ascii_case(w)));
    found.map(|(value, _)| *value)
}

fn helper(text: &str) -> Option<Driver> {
    match text.split_once(':') {
        None if text == "adaptive" => Some(Driver::Helper),
        None if text == "spin" => Some(Driver::SpinningHelper(Vec::new())),
        Some(("spin", cpus)) => {
            let cpus = cpus.split(',').map(|cpu| cpu.trim().parse().ok());
            cpus.collect::<Option<Vec<_>>>().map(Driver::SpinningHelper)
        }
        _ => None,
    }
}

fn show_helper(helper: &Driver) -> String {
    match helper {
        Driver::Helper => "adaptive".to_owned(),
        Driver::SpinningHelper(cpus) if cpus.is_empty() => "spin".to_owned(),
        Driver::SpinningHelper(cpus) => {
            let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
            format!("spin:{}", cpus.join(","))
        }
        Driver::Manual => "manual".to_owned(), // Only a program can choose this driver.
    }
}

fn path_mtu(text: &str) -> Option<Option<PathMtu>> {
    match text {
        "auto" => Some(None),
        bytes => PathMtu::from_bytes(number(bytes, 256..=4096)?).map(Some),
    }
}

fn source_port(text: &str) -> Option<SourcePort> {
    match text {
        PER_QP => Some(SourcePort::PerQp),
        port => NonZeroU16::new(number(port, 1..=0xffff)?).map(SourcePort::Fixed),
    }
}

/// Reads the name of a set of congestion control parameters.
fn congestion_set(text: &str) -> Option<&'static str> {
    params::SETS.iter().map(|set| set.name).find(|name| *name == text)
}

/// Reads congestion control parameters with valid values. An error says what is wrong with the
/// first invalid one.
fn parameters(text: &str) -> Result<Vec<(String, String)>, String> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let parameter = |pair: &str| {
        let pair = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not NAME=VALUE"))?;
        let (name, value) = (pair.0.trim(), pair.1.trim());
        set_param(&mut Params::default(), name, value).map_err(|error| error.to_string())?;
        Ok((name.to_owned(), value.to_owned()))
    };
    pairs.map(parameter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_are_read_by_name() {
        for good in ["adaptive", "spin", "spin:1,3"] {
            assert_eq!(show_helper(&helper(good).unwrap()), good);
        }
        for bad in ["spin:", "spin:a", "lazy", "adaptive:1"] {
            assert_eq!(helper(bad), None, "{bad}");
        }
    }
}
