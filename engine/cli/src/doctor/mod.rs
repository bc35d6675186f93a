//! `feroce doctor`: checks the host, an interface and the path to a peer, and names the command
//! that fixes each problem.
//!
//! Input: the options, the settings, the kernel's tables and the process's own limits. Output: a
//! report on standard output and the worst severity. Each check is a row of a table:
//! [`host::CHECKS`], [`interface::CHECKS`], [`conflicts::CHECKS`], [`peer::CHECKS`].
//!
//! The checks change nothing on the host. `--peer` makes the kernel resolve the next hop and sends
//! pings. Only `--open` opens the interface, for a moment.

mod check;
mod conflicts;
mod host;
mod interface;
mod peer;
mod ping;
mod state;

use std::net::{IpAddr, ToSocketAddrs};
use std::rc::Rc;

use clap::{Args, ValueHint};
use feroce_engine::daemon;
use feroce_engine::device::settings::Settings;
use feroce_engine::device::{Device, Sharing};
use feroce_engine::net::{Interface, InterfaceAddress};
use feroce_engine::port::daemon::DaemonPortConfig;

use crate::config::AllFlags;
use crate::failure::{self, Failure};
use crate::{open, output};
pub use check::Severity;
use check::{Finding, Report, Verdict};
use host::Host;
use peer::PathState;
use state::{InterfaceState, is_routable};

/// Options of `feroce doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Run the doctor in the network namespace of the interface, with the user and the limits of the \
program to be started. All settings are checked; port_kind, cores, helper, path_mtu and user \
decide what the checks look at.")]
pub struct Options {
    /// Check only this interface [default: every Ethernet interface with link and address; without
    /// such an interface, those that are up]
    #[arg(short, long, value_name = "IFACE")]
    interface: Option<String>,
    /// Also check the path to this host: an address or a name
    #[arg(
        short,
        long,
        value_name = "HOST",
        requires = "interface",
        value_hint = ValueHint::Hostname,
        value_parser = parse_host)]
    peer: Option<IpAddr>,
    /// Also open the device for a moment, as a program would; some drivers take the link down for
    /// this
    #[arg(long)]
    open: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Settings of the program to be started
    #[command(flatten)]
    settings: AllFlags,
}

/// Parses an address, with a scope (`fe80::1%eth0`) or without, or resolves a host name.
fn parse_host(text: &str) -> Result<IpAddr, String> {
    let unknown =
        |error| format!("{error} (check the name and /etc/resolv.conf, or give the address)");
    let found = (text, 0).to_socket_addrs().map_err(unknown)?.next();
    found.map(|address| address.ip()).ok_or_else(|| "the host has no address".to_owned())
}

/// Runs the checks and prints the report. Returns the worst severity.
///
/// # Errors
/// If the kernel's tables cannot be read, or the output cannot be written.
pub fn run(options: &Options) -> Result<Severity, Failure> {
    let mut report = Report { worst: Severity::Ok, findings: Vec::new() };
    let host = Rc::new(Host::read(options.settings.load()));
    let to_open =
        options.open.then(|| open::interface(options.interface.as_ref(), host.settings()));
    let to_open = to_open.transpose()?;
    report.take(None, host::CHECKS, &host);
    let names = match &options.interface {
        _ if !host.settings().port_kind.is_on_kernel() => {
            check_without_kernel(options.peer, to_open.as_deref(), host.settings(), &mut report)?;
            Vec::new()
        }
        Some(name) => vec![name.clone()],
        None => candidates(&mut report)?,
    };
    for name in &names {
        let state = Rc::new(InterfaceState::read(name, &host));
        report.take(Some(name), interface::CHECKS, &*state);
        report.take(Some(name), conflicts::CHECKS, &*state);
        if let Some(ip) = options.peer {
            report.take(Some(name), peer::CHECKS, &PathState::read(&state, ip));
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

/// Id and title of the check that `--open` adds.
const OPENING: (&str, &str) = ("open", "opening the device");

/// Checks whose errors prevent a verbs application from opening its device.
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

/// The problems that prevent a program from opening `interfaces` as its devices, with remedies, one
/// line each.
pub fn obstacles(settings: &Settings, interfaces: &[Interface]) -> Vec<String> {
    let mut report = Report { worst: Severity::Ok, findings: Vec::new() };
    // A daemon has what its programs need.
    let own = interfaces.iter().filter(|interface| !has_daemon(settings, &interface.name));
    let interfaces: Vec<&Interface> = own.collect();
    if interfaces.is_empty() {
        return Vec::new();
    }
    let host = Rc::new(Host::read(Ok(settings.clone())));
    report.take(None, host::CHECKS, &host);
    for interface in interfaces {
        let state = InterfaceState::read(&interface.name, &host);
        report.take(Some(&interface.name), interface::CHECKS, &state);
        report.take(Some(&interface.name), conflicts::CHECKS, &state);
    }
    // For the doctor, another owner is a warning: it ends sooner or later. Here it is an obstacle.
    let is_obstacle = |finding: &Finding| {
        let severe = finding.severity == Severity::Error || finding.id == "owner";
        severe && finding.remedy.is_some() && OBSTACLES.contains(&finding.id)
    };
    let found = report.findings.into_iter().filter(is_obstacle).map(|finding| {
        let prefix = finding.interface.map_or_else(String::new, |name| format!("{name}: "));
        let remedy = match finding.id {
            // The loader ignores Feroce's libraries if the program file has capabilities.
            "privilege" => "`sudo feroce run`, or a user namespace: `unshare -Urn`".to_owned(),
            _ => finding.remedy.unwrap_or_default(),
        };
        format!("{prefix}{}: {} -> {remedy}", finding.what, finding.found)
    });
    found.collect()
}

/// Returns true if a program with these settings uses a daemon on `interface`.
fn has_daemon(settings: &Settings, interface: &str) -> bool {
    let sockets = settings.ports.get::<DaemonPortConfig>().sockets(interface);
    settings.sharing != Sharing::Embedded && sockets.iter().any(|socket| daemon::is_served(socket))
}

/// The interfaces to check: those that are up with link and a routable address; without any, those
/// with link; without any, those that are up. Others, such as ports of bridges, are rarely meant. A
/// VLAN sub-interface is covered by the interface that carries its frames.
fn candidates(report: &mut Report) -> Result<Vec<String>, Failure> {
    let all = Interface::list()?;
    let addresses = InterfaceAddress::list()?;
    let has_address = |one: &Interface| {
        let mut own = one.vlan_children(&all).map(|vlan| vlan.index).chain([one.index]);
        own.any(|index| {
            let mut its = addresses.iter().filter(|address| address.interface == index);
            its.any(|address| is_routable(address.ip))
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
    let why = ["set down", "no carrier", "no routable address"];
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
        let remedy = "run feroce in the network namespace of the interface (`ip netns exec NAME \
                      feroce doctor`), or `ip link set dev IFACE up`";
        report.add(None, about, Verdict::error(found, remedy).expect("one"));
    } else if !left.is_empty() {
        let found = format!("not checked without `-i`: {}", left.join(", "));
        report.add(None, about, Verdict::info(found).expect("one"));
    }
    Ok(taken.into_iter().map(|(_, name)| name.to_owned()).collect())
}

/// Checks a device of a port without a kernel interface. The kernel has no information about it, so
/// the only check is whether it opens.
fn check_without_kernel(
    peer: Option<IpAddr>,
    to_open: Option<&str>,
    settings: &Settings,
    report: &mut Report,
) -> Result<(), Failure> {
    if peer.is_some() {
        return Err(Failure::Usage(format!(
            "--peer needs the routes of the kernel, and port {} bypasses the kernel: \
             `feroce perf` reports what fails",
            settings.port_kind
        )));
    }
    if let Some(name) = to_open {
        report.add(Some(name), OPENING, try_open(name, settings));
        return Ok(());
    }
    let found = "not checked: `--open` opens a device and reports errors";
    report.add(None, ("interface", "devices of the port"), Verdict::info(found).expect("one"));
    Ok(())
}

/// Opens the device as a program with these settings would.
fn try_open(name: &str, settings: &Settings) -> Verdict {
    let verdict = match Device::open(name, settings.device_config()) {
        Ok(device) => {
            let attributes = device.attributes();
            Verdict::ok(format!("opens as {} ({})", attributes.port, attributes.port_reason))
        }
        Err(error) => Verdict::error(failure::chain(&error), "see the message"),
    };
    verdict.expect("one")
}

fn show(report: &Report) -> Result<(), Failure> {
    let mut interface = None;
    for finding in &report.findings {
        if interface != Some(&finding.interface) {
            interface = Some(&finding.interface);
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
    use std::os::fd::AsRawFd;

    use feroce_engine::device::settings::Origin;

    use super::*;

    #[test]
    fn ids_are_unique() {
        let mut ids: Vec<_> = host::CHECKS.iter().map(|check| check.id).collect();
        ids.extend(interface::CHECKS.iter().map(|check| check.id));
        ids.extend(conflicts::CHECKS.iter().map(|check| check.id));
        ids.extend(peer::CHECKS.iter().map(|check| check.id));
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "{ids:?}");
    }

    /// A container: the daemon's socket is mounted, and the interface is another one.
    #[test]
    fn nothing_prevents_a_program_from_using_a_mounted_daemon() {
        use nix::sys::socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
        };
        let path = std::env::temp_dir().join(format!("feroce-doctor-{}", std::process::id()));
        let kind = SockType::SeqPacket;
        let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        let mut settings = Settings::default();
        let text = path.to_str().unwrap();
        settings.set("daemon_socket", text, Origin::Flag("--daemon-socket")).unwrap();
        let container = Interface::read("lo").unwrap();
        let none: [String; 0] = [];
        assert_eq!(obstacles(&settings, std::slice::from_ref(&container)), none);
        settings.sharing = Sharing::Embedded;
        assert!(!has_daemon(&settings, "lo"));
        settings.sharing = Sharing::Auto;
        drop(listener);
        assert!(!has_daemon(&settings, "lo"), "no process listens");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn hosts_are_addresses_and_names() {
        assert_eq!(parse_host("10.0.0.1"), Ok(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(parse_host("fe80::7%lo").map(|ip| ip.to_string()), Ok("fe80::7".to_owned()));
        assert!(parse_host("localhost").is_ok_and(|ip| ip.is_loopback()));
        assert!(parse_host("no such host").is_err());
    }
}
