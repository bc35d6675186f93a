//! `feroce doctor`: what is wrong with this host, an interface, or the way to a peer, and what to do.
//!
//! A check is a row of a table: [`host::CHECKS`], [`interface::CHECKS`], [`sharing::CHECKS`],
//! [`peer::CHECKS`]. Nothing is set by looking, though neighbours and peers are asked; only `--open` takes the
//! interface, for a moment.

mod echo;
mod host;
mod interface;
mod peer;
mod sharing;

use std::net::{IpAddr, ToSocketAddrs};
use std::rc::Rc;

use clap::{Args, ValueHint};
use feroce_engine::device::settings::Settings;
use feroce_engine::device::{Device, PortKind};
use feroce_engine::net::{Interface, InterfaceAddress};
use serde::Serialize;

use crate::config::AllFlags;
use crate::failure::{self, Failure};
use crate::{open, output};
use host::Host;
use interface::Place;

/// Options of `feroce doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Run it in the network namespace of the interface, as the user and with the limits of the program that is to run. Of the \
settings, port_kind, cores, helper, path_mtu and user decide what is looked at; all are checked.\n\n\
Exit codes: 0 nothing worse than a remark, 1 could not look, 2 wrong usage, 3 warnings, 4 errors.")]
pub struct Options {
    /// Only this interface [default: every Ethernet interface of the network namespace that has a link and an address, or else
    /// that is up]
    #[arg(short, long, value_name = "IFACE")]
    interface: Option<String>,
    /// Also the way to this host: an address or a name
    #[arg(short, long, value_name = "HOST", requires = "interface", value_hint = ValueHint::Hostname, value_parser = parse_host)]
    peer: Option<IpAddr>,
    /// Also open the device for a moment, as a program would: a driver may take its link down for that
    #[arg(long)]
    open: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Settings of the program that is to run
    #[command(flatten)]
    settings: AllFlags,
}

/// An address, with a scope (`fe80::1%eth0`) or without, or what the host's resolver knows it by.
fn parse_host(text: &str) -> Result<IpAddr, String> {
    let found = (text, 0).to_socket_addrs().map_err(|error| error.to_string())?.next();
    found.map(|address| address.ip()).ok_or_else(|| "it has no address".to_owned())
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Info,
    /// It will work, worse than it could or not with everybody.
    Warning,
    /// It will not work.
    Error,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// What a check says.
#[derive(Debug)]
pub struct Verdict {
    severity: Severity,
    found: String,
    remedy: Option<String>,
}

impl Verdict {
    fn ok(found: impl Into<String>) -> Option<Self> {
        Some(Self { severity: Severity::Ok, found: found.into(), remedy: None })
    }

    fn info(found: impl Into<String>) -> Option<Self> {
        Some(Self { severity: Severity::Info, found: found.into(), remedy: None })
    }

    fn warning(found: impl Into<String>, remedy: impl Into<String>) -> Option<Self> {
        let (found, remedy) = (found.into(), Some(remedy.into()));
        Some(Self { severity: Severity::Warning, found, remedy })
    }

    fn error(found: impl Into<String>, remedy: impl Into<String>) -> Option<Self> {
        let (found, remedy) = (found.into(), Some(remedy.into()));
        Some(Self { severity: Severity::Error, found, remedy })
    }
}

/// A row of the tables: what is looked at in an `S`.
pub struct Check<S: ?Sized> {
    /// Its name, for scripts.
    id: &'static str,
    /// What is looked at.
    what: &'static str,
    /// Looks; `None` where the question does not arise.
    run: fn(&S) -> Option<Verdict>,
}

/// A check's answer.
#[derive(Debug, Serialize)]
struct Finding {
    id: &'static str,
    what: &'static str,
    interface: Option<String>,
    severity: Severity,
    found: String,
    remedy: Option<String>,
}

/// All answers.
#[derive(Debug, Serialize)]
struct Report {
    worst: Severity,
    findings: Vec<Finding>,
}

impl Report {
    fn take<S>(&mut self, interface: Option<&str>, checks: &[Check<S>], subject: &S) {
        for check in checks {
            if let Some(verdict) = (check.run)(subject) {
                self.add(interface, (check.id, check.what), verdict);
            }
        }
    }

    fn add(
        &mut self,
        interface: Option<&str>,
        (id, what): (&'static str, &'static str),
        verdict: Verdict,
    ) {
        let Verdict { severity, found, remedy } = verdict;
        self.worst = self.worst.max(severity);
        let interface = interface.map(str::to_owned);
        self.findings.push(Finding { id, what, interface, severity, found, remedy });
    }
}

/// Looks around; the answer is the worst that was found.
///
/// # Errors
/// When it cannot look: the kernel's tables cannot be read, or the output not be written.
pub fn run(options: &Options) -> Result<Severity, Failure> {
    let mut report = Report { worst: Severity::Ok, findings: Vec::new() };
    let host = Rc::new(Host::look(options.settings.load()));
    let to_open =
        options.open.then(|| open::interface(options.interface.as_ref(), host.settings()));
    let to_open = to_open.transpose()?;
    report.take(None, host::CHECKS, &host);
    let names = match &options.interface {
        _ if host.settings().port_kind == PortKind::Dpdk => {
            look_at_dpdk(options.peer, to_open.as_deref(), host.settings(), &mut report)?;
            Vec::new()
        }
        Some(name) => vec![name.clone()],
        None => candidates(&mut report)?,
    };
    for name in &names {
        let place = Rc::new(Place::look(name, &host));
        report.take(Some(name), interface::CHECKS, &*place);
        report.take(Some(name), sharing::CHECKS, &*place);
        if let Some(ip) = options.peer {
            report.take(Some(name), peer::CHECKS, &peer::Way::look(&place, ip));
        }
        if to_open.is_some() {
            report.add(Some(name), OPENING, try_open(name, host.settings()));
        }
    }
    match options.json {
        true => output::json(&report)?,
        false => show(&report)?,
    }
    Ok(report.worst)
}

/// What `--open` does.
const OPENING: (&str, &str) = ("open", "opening the device");

/// Checks whose errors keep a program written for verbs from opening its device.
const OBSTACLES: [&str; 11] = [
    "port",
    "privilege",
    "kernel",
    "interface",
    "link",
    "address",
    "queues",
    "memlock",
    "owner",
    "xdp-program",
    "udp-4791",
];

/// What will keep a program from opening `interfaces` as its devices, and what helps, a line each.
pub fn obstacles(settings: &Settings, interfaces: &[Interface]) -> Vec<String> {
    let mut report = Report { worst: Severity::Ok, findings: Vec::new() };
    let host = Rc::new(Host::look(Ok(settings.clone())));
    report.take(None, host::CHECKS, &host);
    for interface in interfaces {
        let place = Place::look(&interface.name, &host);
        report.take(Some(&interface.name), interface::CHECKS, &place);
        report.take(Some(&interface.name), sharing::CHECKS, &place);
    }
    // Another owner ends sooner or later: a warning there, and an obstacle now.
    let is_obstacle = |finding: &Finding| {
        let severe = finding.severity == Severity::Error || finding.id == "owner";
        severe && finding.remedy.is_some() && OBSTACLES.contains(&finding.id)
    };
    let found = report.findings.into_iter().filter(is_obstacle).map(|finding| {
        let place = finding.interface.map_or_else(String::new, |name| format!("{name}: "));
        let remedy = match finding.id {
            // Capabilities of a file would make the loader ignore Feroce's libraries.
            "privilege" => "`sudo feroce run`, or a user namespace: `unshare -Urn`".to_owned(),
            _ => finding.remedy.unwrap_or_default(),
        };
        format!("{place}{}: {} -> {remedy}", finding.what, finding.found)
    });
    found.collect()
}

/// The interfaces worth a look: those that are up, with a link and an address that routers know, or else with a link, or else all
/// that are up. A host has others that nobody wants, such as ports of bridges. VLAN sub-interfaces are served by the interface that
/// carries their frames.
fn candidates(report: &mut Report) -> Result<Vec<String>, Failure> {
    let all = Interface::list()?;
    let addresses = InterfaceAddress::list()?;
    let has_address = |one: &Interface| {
        let mut own = one.vlan_children(&all).map(|vlan| vlan.index).chain([one.index]);
        own.any(|index| {
            let mut its = addresses.iter().filter(|address| address.interface == index);
            its.any(|address| interface::is_routable(address.ip))
        })
    };
    let all = all.iter().filter(|one| !one.loopback && one.vlan.is_none());
    let rank = |one: &Interface| match (one.up, one.carrier) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 2 + u8::from(has_address(one)),
    };
    let ranked: Vec<_> = all.map(|one| (rank(one), one.name.as_str())).collect();
    let best = ranked.iter().map(|(rank, _)| *rank).max().unwrap_or(0);
    let (taken, left): (Vec<_>, Vec<_>) =
        ranked.into_iter().partition(|(rank, _)| best > 0 && *rank == best);
    let why = ["set down", "no carrier", "no address that routers know"];
    let left: Vec<_> = left
        .into_iter()
        .map(|(rank, name)| format!("{name} ({})", why[usize::from(rank)]))
        .collect();
    let about = ("interface", "an interface to work on");
    if taken.is_empty() {
        let found = match left.is_empty() {
            true => "no Ethernet interface in this network namespace".to_owned(),
            false => format!("every Ethernet interface is down: {}", left.join(", ")),
        };
        let remedy = "run it in the network namespace of the interface (`ip netns exec NAME feroce doctor`), or \
                      `ip link set dev IFACE up`";
        report.add(None, about, Verdict::error(found, remedy).expect("one"));
    } else if !left.is_empty() {
        let found = format!("not looked at without `-i`: {}", left.join(", "));
        report.add(None, about, Verdict::info(found).expect("one"));
    }
    Ok(taken.into_iter().map(|(_, name)| name.to_owned()).collect())
}

/// No kernel knows DPDK's devices: what can be told of one is whether it opens.
fn look_at_dpdk(
    peer: Option<IpAddr>,
    to_open: Option<&str>,
    settings: &Settings,
    report: &mut Report,
) -> Result<(), Failure> {
    if peer.is_some() {
        return Err(Failure::Usage(
            "--peer asks the kernel for the way, and the kind of port is dpdk, past the kernel: `feroce perf` says what fails"
                .to_owned(),
        ));
    }
    if let Some(name) = to_open {
        report.add(Some(name), OPENING, try_open(name, settings));
        return Ok(());
    }
    let found = "not looked at: `--open` tries to open one, and says what is wrong";
    report.add(None, ("interface", "devices of DPDK's"), Verdict::info(found).expect("one"));
    Ok(())
}

/// Opens the device as a program with these settings would.
fn try_open(name: &str, settings: &Settings) -> Verdict {
    let verdict = match Device::open(name, settings.device_config()) {
        Ok(device) => {
            let attributes = device.attributes();
            Verdict::ok(format!("opens as {} ({})", attributes.port, attributes.port_reason))
        }
        Err(error) => Verdict::error(failure::chain(&error), "what the message says"),
    };
    verdict.expect("one")
}

fn show(report: &Report) -> Result<(), Failure> {
    let mut place = None;
    for finding in &report.findings {
        if place != Some(&finding.interface) {
            place = Some(&finding.interface);
            output::line(&format!("{}:", finding.interface.as_deref().unwrap_or("this host")))?;
        }
        let Finding { id, what, severity, found, .. } = finding;
        output::line(&format!("  {:<8} {id:<16} {what}: {found}", severity.name()))?;
        if let Some(remedy) = &finding.remedy {
            output::line(&format!("{:28}-> {remedy}", ""))?;
        }
    }
    let count = |severity| report.findings.iter().filter(|one| one.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let some =
        |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    output::line(&format!("{}, {}", some(errors, "error"), some(warnings, "warning")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique() {
        let mut ids: Vec<_> = host::CHECKS.iter().map(|check| check.id).collect();
        ids.extend(interface::CHECKS.iter().map(|check| check.id));
        ids.extend(sharing::CHECKS.iter().map(|check| check.id));
        ids.extend(peer::CHECKS.iter().map(|check| check.id));
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "{ids:?}");
    }

    #[test]
    fn hosts_are_addresses_and_names() {
        assert_eq!(parse_host("10.0.0.1"), Ok(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(parse_host("fe80::7%lo").map(|ip| ip.to_string()), Ok("fe80::7".to_owned()));
        assert!(parse_host("localhost").is_ok_and(|ip| ip.is_loopback()));
        assert!(parse_host("no such host").is_err());
    }

    #[test]
    fn the_worst_counts() {
        let mut report = Report { worst: Severity::Ok, findings: Vec::new() };
        for verdict in [Verdict::warning("w", "r"), Verdict::error("e", "r"), Verdict::info("i")] {
            report.add(None, ("id", "what"), verdict.unwrap());
        }
        assert_eq!(report.worst, Severity::Error);
    }
}
