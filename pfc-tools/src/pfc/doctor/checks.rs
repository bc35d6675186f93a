//! The checks of `doctor`: the requirements of lossless RoCE on an interface.

use feroce_wire::PathMtu;

use super::facts::{Facts, RdmaPort};
use super::{Intended, Severity, Verdict};
use crate::dcb::{DcbError, Ieee, Selector, Tsa};

/// A check.
pub(super) struct Check {
    /// Identifier, for scripts.
    pub id: &'static str,
    /// What is checked.
    pub what: &'static str,
    /// Runs the check; `None` if it does not apply.
    pub run: fn(&Facts, &Intended) -> Option<Verdict>,
}

/// The checks.
pub(super) const CHECKS: &[Check] = &[
    Check { id: "link", what: "link", run: link },
    Check { id: "mtu", what: "MTU", run: mtu },
    Check { id: "dcb", what: "DCB netlink", run: dcb },
    Check { id: "pfc", what: "lossless priorities", run: pfc },
    Check { id: "pause", what: "PAUSE (802.3x)", run: pause },
    Check { id: "dscp", what: "priority of the RoCE DSCP", run: dscp },
    Check { id: "cnp", what: "priority of CNPs", run: cnp },
    Check { id: "trust", what: "trust mode", run: trust },
    Check { id: "buffer", what: "receive buffer of the lossless priority", run: buffer },
    Check { id: "dcbx", what: "DCBX", run: dcbx },
    Check { id: "ecn", what: "DCQCN in the NIC", run: ecn },
    Check { id: "cc-params", what: "DCQCN parameters", run: cc_params },
    Check { id: "tos", what: "DSCP of librdmacm connections", run: tos },
    Check { id: "counters", what: "flow control counters", run: counters },
];

fn ok(found: impl Into<String>) -> Option<Verdict> {
    Some(Verdict { severity: Severity::Ok, found: found.into(), remedies: Vec::new() })
}

fn info(found: impl Into<String>) -> Option<Verdict> {
    Some(Verdict { severity: Severity::Info, found: found.into(), remedies: Vec::new() })
}

fn bad(severity: Severity, found: impl Into<String>, remedies: &[String]) -> Option<Verdict> {
    Some(Verdict { severity, found: found.into(), remedies: remedies.to_vec() })
}

fn ieee(facts: &Facts) -> Option<&Ieee> {
    facts.dcb.as_ref().ok()
}

fn link(facts: &Facts, _: &Intended) -> Option<Verdict> {
    match facts.is_usable {
        true => ok("up"),
        false => bad(Severity::Error, "down", &[format!("ip link set dev {} up", facts.name)]),
    }
}

fn mtu(facts: &Facts, intended: &Intended) -> Option<Verdict> {
    let (mtu, path) = (facts.mtu, intended.path_mtu);
    match PathMtu::largest_for(mtu).map(PathMtu::bytes) {
        Some(size) if size >= path => ok(format!("{mtu} bytes: enough for path MTU {path}")),
        other => bad(
            Severity::Warning,
            match other {
                Some(size) => format!("{mtu} bytes: enough for path MTU {size}, not for {path}"),
                None => format!("{mtu} bytes: too small for any path MTU"),
            },
            &[format!("ip link set dev {} mtu {}", facts.name, path + PathMtu::OVERHEAD)],
        ),
    }
}

fn dcb(facts: &Facts, _: &Intended) -> Option<Verdict> {
    match &facts.dcb {
        Ok(_) => ok("supported by the driver"),
        Err(DcbError::NotSupported(_)) => {
            let driver = facts.driver.as_deref().unwrap_or("unknown");
            bad(
                Severity::Warning,
                format!(
                    "the kernel returns EOPNOTSUPP: driver {driver} reports no PFC, ETS or DSCP map"
                ),
                &[],
            )
        }
        Err(error) => bad(Severity::Warning, format!("cannot be read: {error}"), &[]),
    }
}

/// Priorities as `3` or `3, 4`, or `none`.
fn list(priorities: impl Iterator<Item = u8>) -> String {
    let all: Vec<String> = priorities.map(|priority| priority.to_string()).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

fn pfc(facts: &Facts, intended: &Intended) -> Option<Verdict> {
    let (name, priority) = (&facts.name, intended.priority);
    let pfc = ieee(facts)?.pfc;
    let flags: Vec<&str> = (0..8).map(|p| if p == priority { "1" } else { "0" }).collect();
    let remedies = [
        format!("dcb pfc set dev {name} prio-pfc all:off {priority}:on"),
        format!("mlnx_qos -i {name} --pfc {}", flags.join(",")),
    ];
    let Some(pfc) = pfc else {
        return bad(Severity::Error, "the driver supports DCB but not PFC", &[]);
    };
    let found = list(pfc.priorities());
    match pfc.enabled {
        enabled if enabled == 1 << priority => {
            ok(format!("{priority}; the device supports up to {}", pfc.capable))
        }
        enabled if enabled >> priority & 1 == 0 => bad(
            Severity::Error,
            format!("{found}; the RoCE priority {priority} is missing"),
            &remedies,
        ),
        _ => bad(
            Severity::Warning,
            format!("{found}; RoCE needs one, and each lossless priority reserves headroom"),
            &remedies,
        ),
    }
}

fn pause(facts: &Facts, _: &Intended) -> Option<Verdict> {
    let (rx, tx) = facts.pauses?;
    let has_pfc = ieee(facts).and_then(|ieee| ieee.pfc).is_some_and(|pfc| pfc.enabled != 0);
    let off = [format!("ethtool -A {} autoneg off rx off tx off", facts.name)];
    let state = |on: bool| if on { "on" } else { "off" };
    let found = format!("receive {}, send {}", state(rx), state(tx));
    match (rx || tx, has_pfc) {
        (false, _) => ok(found),
        (true, true) => bad(
            Severity::Error,
            format!(
                "{found}, but PFC is on: a link uses PFC or PAUSE, and PAUSE stops all priorities"
            ),
            &off,
        ),
        (true, false) => bad(
            Severity::Warning,
            format!("{found}: PAUSE stops all priorities, including that of CNPs"),
            &off,
        ),
    }
}

fn dscp_commands(name: &str, dscp: u8, priority: u8) -> [String; 2] {
    [
        format!("dcb app replace dev {name} dscp-prio {dscp}:{priority}"),
        format!("mlnx_qos -i {name} --trust dscp --dscp2prio set,{dscp},{priority}"),
    ]
}

fn dscp(facts: &Facts, intended: &Intended) -> Option<Verdict> {
    let Intended { dscp, priority, .. } = *intended;
    let remedies = dscp_commands(&facts.name, dscp, priority);
    match ieee(facts)?.priority_of_dscp(dscp) {
        Some(found) if found == priority => ok(format!("DSCP {dscp} is priority {found}")),
        Some(found) => bad(
            Severity::Error,
            format!("DSCP {dscp} is priority {found}, not the lossless {priority}"),
            &remedies,
        ),
        None => bad(
            Severity::Warning,
            format!("no table entry for DSCP {dscp}: the driver's default applies"),
            &remedies,
        ),
    }
}

fn cnp(facts: &Facts, intended: &Intended) -> Option<Verdict> {
    let (name, dscp) = (&facts.name, intended.cnp_dscp);
    let ieee = ieee(facts)?;
    match ieee.priority_of_dscp(dscp) {
        Some(found) if found == intended.priority => bad(
            Severity::Warning,
            format!("DSCP {dscp} is priority {found}: CNPs wait in the same queue as RoCE data"),
            &dscp_commands(name, dscp, 6),
        ),
        Some(found) => match ieee.ets {
            Some(ets)
                if ets.tsa[usize::from(ets.class_of[usize::from(found)] & 7)] != Tsa::Strict =>
            {
                bad(
                    Severity::Warning,
                    format!("DSCP {dscp} is priority {found}, but its traffic class is not strict"),
                    &[format!(
                        "dcb ets set dev {name} tc-tsa {found}:strict prio-tc {found}:{found}"
                    )],
                )
            }
            _ => ok(format!("DSCP {dscp} is priority {found}")),
        },
        None => bad(
            Severity::Warning,
            format!("no table entry for DSCP {dscp}"),
            &dscp_commands(name, dscp, 6),
        ),
    }
}

fn trust(facts: &Facts, _: &Intended) -> Option<Verdict> {
    let trust = ieee(facts)?.trust.as_ref()?;
    match trust.first() {
        Some(Selector::Dscp) => ok("DSCP"),
        _ => bad(
            Severity::Warning,
            "DSCP is not evaluated first, but only the DSCP sets the priority of routed packets",
            &[
                format!("dcb apptrust set dev {} order dscp pcp", facts.name),
                format!("mlnx_qos -i {} --trust dscp", facts.name),
            ],
        ),
    }
}

fn buffer(facts: &Facts, intended: &Intended) -> Option<Verdict> {
    let buffers = ieee(facts)?.buffers?;
    let priority = usize::from(intended.priority);
    let own = buffers.buffer_of[priority];
    let size = buffers.sizes.get(usize::from(own)).copied().unwrap_or(0);
    let is_shared = (0..8).any(|p| p != priority && buffers.buffer_of[p] == own);
    let found = format!("buffer {own} of {size} bytes");
    let free = (0..8).find(|buffer| !buffers.buffer_of.contains(buffer)).unwrap_or(1);
    match (is_shared, size) {
        (false, 1..) => ok(found),
        _ => bad(
            Severity::Warning,
            format!("{found}: shared with other priorities, or of size 0"),
            &[format!("dcb buffer set dev {} prio-buffer {priority}:{free}", facts.name)],
        ),
    }
}

fn dcbx(facts: &Facts, _: &Intended) -> Option<Verdict> {
    let name = &facts.name;
    let is_willing = ieee(facts).and_then(|ieee| ieee.ets).is_some_and(|ets| ets.willing);
    let daemons = facts.files.daemons.join(", ");
    match facts.dcbx {
        Some(dcbx) if dcbx.firmware => bad(
            Severity::Warning,
            "the NIC's firmware negotiates and may override the settings of this host",
            &[format!("dcb dcbx set dev {name} host ieee"), format!("mlnx_qos -i {name} -d os")],
        ),
        _ if facts.files.daemons.iter().any(|daemon| daemon != "lldpd") => bad(
            Severity::Warning,
            format!(
                "{daemons} is running and may override the settings of this host{}",
                if is_willing { ": ETS is willing" } else { "" }
            ),
            &[
                format!("lldptool -T -i {name} -V PFC willing=no"),
                format!("lldptool -T -i {name} -V ETS-CFG willing=no"),
            ],
        ),
        Some(_) => ok("set by the host, without negotiation"),
        None if daemons.is_empty() => None,
        None => info(format!("{daemons} is running")),
    }
}

fn ecn(facts: &Facts, intended: &Intended) -> Option<Verdict> {
    let Intended { priority, .. } = *intended;
    let state = |side: &str| facts.files.ecn.get(&(side.to_owned(), priority)).copied();
    let off: Vec<&str> =
        ["rp", "np"].into_iter().filter(|side| state(side) == Some(false)).collect();
    let echo = |side: &&str| {
        format!("echo 1 > /sys/class/net/{}/ecn/roce_{side}/enable/{priority}", facts.name)
    };
    if !off.is_empty() {
        let found = format!("off for priority {priority}: {}", off.join(" and "));
        return bad(Severity::Error, found, &off.iter().map(echo).collect::<Vec<_>>());
    }
    state("rp").and(state("np")).and_then(|_| ok(format!("on for priority {priority}")))
}

fn cc_params(facts: &Facts, _: &Intended) -> Option<Verdict> {
    info(format!("in {}", facts.files.cc_params.as_ref()?.display()))
}

fn tos(facts: &Facts, intended: &Intended) -> Option<Verdict> {
    let RdmaPort { device, port } = facts.files.rdma.as_ref()?;
    // ECT(0) in the lower two bits: switches drop packets without ECT instead of marking them.
    let tos = intended.dscp << 2 | 2;
    let remedy = [format!("cma_roce_tos -d {device} -p {port} -t {tos}")];
    match facts.files.roce_tos {
        Some(found) if found == tos => ok(format!("DSCP {}, ECT(0)", intended.dscp)),
        Some(found) => bad(
            Severity::Warning,
            format!("type of service {found}: DSCP {}, ECN bits {}", found >> 2, found & 3),
            &remedy,
        ),
        None => bad(Severity::Info, "unknown: no entry in /sys/kernel/config/rdma_cm", &remedy),
    }
}

fn counters(facts: &Facts, _: &Intended) -> Option<Verdict> {
    if facts.counters.is_empty() {
        return None;
    }
    let all: Vec<String> =
        facts.counters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    info(all.join(", "))
}
