//! The settings as a table: name, what it takes, what it is for, how it is read and shown.

use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use feroce_wire::PathMtu;

use super::{PREFIX, Settings};
use crate::device::config::{MAX_CORES, MAX_WINDOW, MIN_WINDOW};
use crate::device::{Driver, PortKind, SourcePort};

/// A setting.
#[derive(Debug)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// The values that it takes.
    pub expects: fn() -> &'static str,
    /// What it sets.
    pub about: &'static str,
    /// Reads a value; `None` if it is none.
    pub(super) set: fn(&mut Settings, &str) -> Option<()>,
    /// The value in effect, as it would be written.
    pub show: fn(&Settings) -> String,
}

impl Key {
    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_ascii_uppercase())
    }
}

/// Every setting. The reasons for the defaults are in `docs/configuration.md`.
pub const KEYS: &[Key] = &[
    Key {
        name: "interfaces",
        expects: || "`all`, or names of interfaces separated by commas",
        about: "interfaces that are RDMA devices to programs written for verbs",
        set: |settings, text| interfaces(text).map(|names| settings.interfaces = names),
        show: |settings| match settings.interfaces.as_slice() {
            [] => ALL.to_owned(),
            names => names.join(","),
        },
    },
    Key {
        name: "port",
        expects: || &PORT_KINDS,
        about: "how frames come and go",
        set: |settings, text| text.parse().ok().map(|port| settings.port = port),
        show: |settings| settings.port.to_string(),
    },
    Key {
        name: "cores",
        expects: || "1 to 64",
        about: "cores of a device; each needs a queue of the interface",
        set: |settings, text| {
            number(text, 1..=MAX_CORES as u64).map(|cores: usize| settings.cores = cores)
        },
        show: |settings| settings.cores.to_string(),
    },
    Key {
        name: "helper",
        expects: || "`adaptive`, `spin` or `spin:CPU,...`",
        about: "helper threads: sleeping when idle, spinning, or spinning on a CPU per core",
        set: |settings, text| helper(text).map(|helper| settings.helper = helper),
        show: |settings| show_helper(&settings.helper),
    },
    Key {
        name: "window",
        expects: || "32 to 1048576 packets",
        about: "packets of SENDs and WRITEs that one QP may have outstanding",
        set: |settings, text| {
            let range = u64::from(MIN_WINDOW)..=u64::from(MAX_WINDOW);
            number(text, range).map(|window| settings.window = window)
        },
        show: |settings| settings.window.to_string(),
    },
    Key {
        name: "ecn",
        expects: || "true or false",
        about: "mark data packets ECT(0), so that switches mark instead of dropping",
        set: |settings, text| text.parse().ok().map(|ecn| settings.ecn = ecn),
        show: |settings| settings.ecn.to_string(),
    },
    Key {
        name: "path_mtu",
        expects: || "`auto`, 256, 512, 1024, 2048 or 4096",
        about: "path MTU in bytes; auto is the largest that the path carries",
        set: |settings, text| path_mtu(text).map(|mtu| settings.path_mtu = mtu),
        show: |settings| settings.path_mtu.map_or_else(|| "auto".to_owned(), |mtu| mtu.to_string()),
    },
    Key {
        name: "traffic_class",
        expects: || "0 to 255",
        about: "DSCP and ECN bits: DSCP is the value divided by 4",
        set: |settings, text| number(text, 0..=255).map(|class| settings.traffic_class = class),
        show: |settings| settings.traffic_class.to_string(),
    },
    Key {
        name: "hop_limit",
        expects: || "0 to 255",
        about: "TTL or hop limit; 0 takes the route's",
        set: |settings, text| number(text, 0..=255).map(|limit| settings.hop_limit = limit),
        show: |settings| settings.hop_limit.to_string(),
    },
    Key {
        name: "source_port",
        expects: || "`per_qp` or 1 to 65535",
        about: "UDP source port: from a hash of the QP numbers, or the same for all",
        set: |settings, text| source_port(text).map(|port| settings.source_port = port),
        show: |settings| match settings.source_port {
            SourcePort::PerQp => PER_QP.to_owned(),
            SourcePort::Fixed(port) => port.to_string(),
        },
    },
    Key {
        name: "ack_timeout",
        expects: || "0 to 31",
        about: "local ACK timeout, 4.096 us * 2^N; 0 waits for ever",
        set: |settings, text| number(text, 0..=31).map(|timeout| settings.ack_timeout = timeout),
        show: |settings| settings.ack_timeout.to_string(),
    },
    Key {
        name: "retry_count",
        expects: || "0 to 7",
        about: "retries after time-outs and sequence errors",
        set: |settings, text| number(text, 0..=7).map(|count| settings.retry_count = count),
        show: |settings| settings.retry_count.to_string(),
    },
    Key {
        name: "rnr_retry",
        expects: || "0 to 7",
        about: "retries when the peer has no receive posted; 7 for ever",
        set: |settings, text| number(text, 0..=7).map(|count| settings.rnr_retry = count),
        show: |settings| settings.rnr_retry.to_string(),
    },
    Key {
        name: "min_rnr_timer",
        expects: || "0 to 31",
        about: "code of the time that a peer waits when it finds no receive posted here",
        set: |settings, text| number(text, 0..=31).map(|code| settings.min_rnr_timer = code),
        show: |settings| settings.min_rnr_timer.to_string(),
    },
    Key {
        name: "user",
        expects: || "the name of a user",
        about: "whom `feroce perf` turns into once its device is open",
        set: |settings, text| (!text.is_empty()).then(|| settings.user = Some(text.to_owned())),
        show: |settings| settings.user.clone().unwrap_or_else(|| "(unchanged)".to_owned()),
    },
];

/// The kinds of port, in words.
static PORT_KINDS: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<_> = PortKind::NAMES.iter().map(|(name, _)| *name).collect();
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

/// The names, for those who mistype one.
pub(super) fn names() -> String {
    let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
    names.join(", ")
}

fn number<T: TryFrom<u64>>(text: &str, range: RangeInclusive<u64>) -> Option<T> {
    let number = text.parse().ok().filter(|number| range.contains(number))?;
    T::try_from(number).ok()
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
        Driver::Manual => "manual".to_owned(), // Only a program can choose it, and only for itself.
    }
}

fn path_mtu(text: &str) -> Option<Option<PathMtu>> {
    match text {
        "auto" => Some(None),
        bytes => PathMtu::from_bytes(bytes.parse().ok()?).map(Some),
    }
}

fn source_port(text: &str) -> Option<SourcePort> {
    match text {
        PER_QP => Some(SourcePort::PerQp),
        port => port.parse::<NonZeroU16>().ok().map(SourcePort::Fixed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_by_name() {
        for good in ["adaptive", "spin", "spin:1,3"] {
            assert_eq!(show_helper(&helper(good).unwrap()), good);
        }
        for bad in ["spin:", "spin:a", "lazy", "adaptive:1"] {
            assert_eq!(helper(bad), None, "{bad}");
        }
    }
}
