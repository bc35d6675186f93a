//! `feroce pfc doctor`: checks an interface for lossless RoCE and names commands that fix problems.
//!
//! The checks are a table in `checks`, evaluated on the collected state of an interface. Nothing is
//! changed.

mod checks;
mod facts;

use std::io::{self, Write};

use serde::Serialize;

use super::outcome::{Failure, Outcome};
use super::report::print_json;
use super::units;
use facts::Facts;

/// Options of `feroce pfc doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Only root can read mlx5's parameters in /sys/kernel/debug.")]
pub struct Options {
    /// Interface to check
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Lossless priority of RoCE
    #[arg(long, value_name = "P", default_value = "3", value_parser = units::priority)]
    priority: u8,
    /// DSCP of RoCE
    #[arg(
        long,
        value_name = "DSCP",
        default_value = "26",
        value_parser = clap::value_parser!(u8).range(..64)
    )]
    dscp: u8,
    /// DSCP of CNPs
    #[arg(
        long,
        value_name = "DSCP",
        default_value = "48",
        value_parser = clap::value_parser!(u8).range(..64)
    )]
    cnp_dscp: u8,
    /// Path MTU of RoCE
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "4096",
        value_parser = ["256", "512", "1024", "2048", "4096"]
    )]
    path_mtu: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The intended RoCE configuration.
#[derive(Debug, Clone, Copy)]
struct Intended {
    priority: u8,
    dscp: u8,
    cnp_dscp: u8,
    path_mtu: u32,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// As it should be.
    Ok,
    /// For information.
    Info,
    /// Works, but not as well as possible.
    Warning,
    /// Not lossless.
    Error,
}

/// The result of a check.
#[derive(Debug)]
struct Verdict {
    severity: Severity,
    found: String,
    /// Alternative commands; which one works depends on the host.
    remedies: Vec<String>,
}

/// A check with its result.
#[derive(Debug, Serialize)]
struct Finding {
    id: &'static str,
    what: &'static str,
    severity: Severity,
    found: String,
    remedies: Vec<String>,
}

/// All results.
#[derive(Debug, Serialize)]
struct Report {
    interface: String,
    worst: Severity,
    findings: Vec<Finding>,
}

/// Checks the interface and prints the results.
///
/// # Errors
/// If the interface does not exist or the output cannot be written.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let Options { priority, dscp, cnp_dscp, ref path_mtu, .. } = *options;
    let path_mtu = path_mtu.parse().expect("a value that the parser accepts");
    let facts = Facts::collect(&options.interface)?;
    let report = examine(&facts, &Intended { priority, dscp, cnp_dscp, path_mtu });
    let mut out = io::stdout().lock();
    match options.json {
        true => print_json(&mut out, &report)?,
        false => show(&mut out, &report)?,
    }
    Ok(Outcome::of(report.worst >= Severity::Warning))
}

fn examine(facts: &Facts, intended: &Intended) -> Report {
    let finding = |check: &checks::Check| {
        let Verdict { severity, found, remedies } = (check.run)(facts, intended)?;
        Some(Finding { id: check.id, what: check.what, severity, found, remedies })
    };
    let findings: Vec<Finding> = checks::CHECKS.iter().filter_map(finding).collect();
    let worst = findings.iter().map(|one| one.severity).max().unwrap_or(Severity::Ok);
    Report { interface: facts.name.clone(), worst, findings }
}

fn show(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(out, "{}:", report.interface)?;
    for Finding { id, what, severity, found, remedies } in &report.findings {
        let severity = format!("{severity:?}").to_lowercase();
        writeln!(out, "  {severity:<8} {id:<10} {what}: {found}")?;
        for (number, remedy) in remedies.iter().enumerate() {
            writeln!(out, "{:22}{} {remedy}", "", if number == 0 { "->" } else { "or" })?;
        }
    }
    let count = |severity| report.findings.iter().filter(|one| one.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    writeln!(out, "{errors} errors, {warnings} warnings")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::facts::{Files, RdmaPort};
    use super::*;
    use crate::dcb::{App, Buffers, DcbError, Dcbx, Ets, Ieee, Pfc, Selector};

    const INTENDED: Intended = Intended { priority: 3, dscp: 26, cnp_dscp: 48, path_mtu: 4096 };

    fn dscp(protocol: u16, priority: u8) -> App {
        App { selector: Selector::Dscp, protocol, priority }
    }

    /// A correctly configured host.
    fn right() -> Facts {
        let buffers = Buffers { buffer_of: [0, 0, 0, 1, 0, 0, 0, 0], sizes: [99; 8], total: 999 };
        let ieee = Ieee {
            pfc: Some(Pfc { capable: 8, enabled: 1 << 3, ..Pfc::default() }),
            ets: Some(Ets { class_of: [0, 1, 2, 3, 4, 5, 6, 7], ..Ets::default() }),
            apps: vec![dscp(26, 3), dscp(48, 6)],
            buffers: Some(buffers),
            trust: Some(vec![Selector::Dscp]),
            ..Ieee::default()
        };
        let ecn = ["rp", "np"].map(|side| ((side.to_owned(), 3), true)).into();
        Facts {
            name: "eth0".to_owned(),
            mtu: 4200,
            is_usable: true,
            driver: Some("mlx5_core".to_owned()),
            pauses: Some((false, false)),
            counters: [("rx_prio3_pause".to_owned(), 7)].into(),
            dcb: Ok(ieee),
            dcbx: Some(Dcbx::from(0x09)),
            files: Files {
                rdma: Some(RdmaPort { device: "mlx5_0".to_owned(), port: "1".to_owned() }),
                ecn,
                roce_tos: Some(106),
                ..Files::default()
            },
        }
    }

    /// Warnings and errors, each with its first command.
    fn complaints(facts: &Facts) -> Vec<(&'static str, Severity, String)> {
        let found = examine(facts, &INTENDED).findings.into_iter();
        found
            .filter(|one| one.severity >= Severity::Warning)
            .map(|one| (one.id, one.severity, one.remedies.into_iter().next().unwrap_or_default()))
            .collect()
    }

    #[test]
    fn a_correct_host_has_no_warnings() {
        assert_eq!(complaints(&right()), []);
        assert_eq!(examine(&right(), &INTENDED).worst, Severity::Info);
    }

    /// A fault of a correct host, the expected finding, and its command.
    type Fault = (fn(&mut Facts, &mut Ieee), &'static str, Severity, &'static str);

    const FAULTS: [Fault; 14] = [
        (|f, _| f.is_usable = false, "link", Severity::Error, "ip link set dev eth0 up"),
        (|f, _| f.mtu = 1500, "mtu", Severity::Warning, "ip link set dev eth0 mtu 4184"),
        (
            |_, i| i.pfc = Some(Pfc::default()),
            "pfc",
            Severity::Error,
            "dcb pfc set dev eth0 prio-pfc all:off 3:on",
        ),
        (
            |_, i| i.pfc = Some(Pfc { enabled: 0x18, ..Pfc::default() }),
            "pfc",
            Severity::Warning,
            "dcb pfc set dev eth0 prio-pfc all:off 3:on",
        ),
        (
            |f, _| f.pauses = Some((true, false)),
            "pause",
            Severity::Error,
            "ethtool -A eth0 autoneg off rx off tx off",
        ),
        (
            |_, i| i.apps[0].priority = 0,
            "dscp",
            Severity::Error,
            "dcb app replace dev eth0 dscp-prio 26:3",
        ),
        (
            |_, i| i.apps.retain(|app| app.protocol != 26),
            "dscp",
            Severity::Warning,
            "dcb app replace dev eth0 dscp-prio 26:3",
        ),
        (
            |_, i| i.apps[1].priority = 3,
            "cnp",
            Severity::Warning,
            "dcb app replace dev eth0 dscp-prio 48:6",
        ),
        (
            |_, i| i.ets.as_mut().expect("ETS").tsa[6] = crate::dcb::Tsa::Ets,
            "cnp",
            Severity::Warning,
            "dcb ets set dev eth0 tc-tsa 6:strict prio-tc 6:6",
        ),
        (
            |_, i| i.trust = Some(vec![Selector::Pcp]),
            "trust",
            Severity::Warning,
            "dcb apptrust set dev eth0 order dscp pcp",
        ),
        (
            |_, i| i.buffers.as_mut().expect("buffers").buffer_of[4] = 1,
            "buffer",
            Severity::Warning,
            "dcb buffer set dev eth0 prio-buffer 3:2",
        ),
        (
            |f, _| f.files.daemons.push("lldpad".to_owned()),
            "dcbx",
            Severity::Warning,
            "lldptool -T -i eth0 -V PFC willing=no",
        ),
        (
            |f, _| f.files.ecn.extend([(("rp".to_owned(), 3), false)]),
            "ecn",
            Severity::Error,
            "echo 1 > /sys/class/net/eth0/ecn/roce_rp/enable/3",
        ),
        (
            |f, _| f.files.roce_tos = Some(0),
            "tos",
            Severity::Warning,
            "cma_roce_tos -d mlx5_0 -p 1 -t 106",
        ),
    ];

    #[test]
    fn each_fault_is_found_with_its_command() {
        for (change, id, severity, remedy) in FAULTS {
            let mut facts = right();
            let mut ieee = facts.dcb.as_ref().expect("DCB").clone();
            change(&mut facts, &mut ieee);
            facts.dcb = Ok(ieee);
            assert_eq!(complaints(&facts), [(id, severity, remedy.to_owned())]);
        }
    }

    #[test]
    fn a_driver_without_dcb_gives_one_warning() {
        let facts = Facts { dcb: Err(DcbError::NotSupported("eth0".to_owned())), ..right() };
        let found = complaints(&facts);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "dcb");
        let report = examine(&facts, &INTENDED);
        let dcb = report.findings.iter().find(|one| one.id == "dcb").expect("the DCB check");
        assert!(dcb.found.contains("EOPNOTSUPP") && dcb.found.contains("mlx5_core"));
    }

    #[test]
    fn files_of_a_host_are_read() {
        let root = std::env::temp_dir().join(format!("feroce-doctor-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let file = root.join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        };
        put("proc/17/comm", "lldpad\n");
        put("proc/18/comm", "sh\n");
        put("sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0", "eth1\n");
        // The second port; its first GID has been deleted.
        put("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth2\n");
        put("sys/class/infiniband/mlx5_0/ports/2/gid_attrs/ndevs/1", "eth0\n");
        put("sys/class/net/eth0/ecn/roce_rp/enable/3", "1\n");
        put("sys/class/net/eth0/ecn/roce_np/enable/3", "0\n");
        put("sys/kernel/config/rdma_cm/mlx5_0/ports/2/default_roce_tos", "106\n");
        put("sys/kernel/debug/mlx5/0000:01:00.0/cc_params/rp_gd", "11\n");
        let link = root.join("sys/class/net/eth0/device");
        std::os::unix::fs::symlink("../../../0000:01:00.0", link).expect("a link");
        let found = Files::read(&root, "eth0");
        let nothing = Files::read(Path::new("/nonexistent"), "eth0");
        fs::remove_dir_all(&root).expect("it was made");
        let ecn = [(("np".to_owned(), 3), false), (("rp".to_owned(), 3), true)];
        let port = RdmaPort { device: "mlx5_0".to_owned(), port: "2".to_owned() };
        assert_eq!((found.daemons, found.rdma), (vec!["lldpad".into()], Some(port)));
        assert_eq!((found.ecn, found.roce_tos), (ecn.into(), Some(106)));
        assert!(found.cc_params.is_some_and(|folder| folder.ends_with("0000:01:00.0/cc_params")));
        assert_eq!(nothing, Files::default());
    }
}
