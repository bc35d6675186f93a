//! Many QPs that send bulk data into one receive ring, each with a full window, compared with one.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Bench, Bound, Figure};
use crate::Result;
use crate::net::Pair;
use crate::process::Process;
use crate::setup::{build_release, feroce_in};

/// Kinds of ports, as `feroce perf --port-kind` names them.
const KINDS: [&str; 2] = ["af_xdp", "packet"];
/// Numbers of QPs.
const QPS: [u32; 3] = [200, 1000, 10_000];
/// Length of a run.
const SECONDS: u32 = 20;
/// Most packets that may be sent again, as a part of all.
const MOST_AGAIN: f64 = 0.01;

/// A run of `feroce perf`.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// In Gb/s.
    rate: f64,
    /// Packets sent again, as a part of all.
    again: f64,
}

impl Bench {
    /// The rates of many QPs, alone and beside two busy loops.
    pub(super) fn bulk(&mut self, release: &Path) -> Result {
        for (beside, least) in [("", 0.9), (", beside two busy loops", 0.7)] {
            for kind in KINDS {
                let name = |qps| format!("bulk: {qps} QPs / one{beside}, {kind}");
                let chosen: Vec<u32> =
                    QPS.into_iter().filter(|&qps| self.chooses(&name(qps))).collect();
                if chosen.is_empty() {
                    continue;
                }
                build_release(&["--bin", "feroce"])?;
                let pair = Pair::new("bench", 9000)?;
                let _load: Vec<Process> = match beside.is_empty() {
                    true => Vec::new(),
                    false => (0..2).map(|_| busy_loop()).collect::<Result<_>>()?,
                };
                let run = |qps| self.bulk_run(&pair, release, kind, qps);
                // One QP before and after: the machine is shared.
                let before = run(1)?;
                let many = chosen.iter().map(|&qps| run(qps)).collect::<Result<Vec<_>>>()?;
                let one = f64::midpoint(before.rate, run(1)?.rate);
                for (&qps, Run { rate, again }) in chosen.iter().zip(many) {
                    let note = format!("{rate:.2} of {one:.2} Gb/s, {again:.5} sent again");
                    let value = (again <= MOST_AGAIN).then_some(rate / one);
                    self.add(Figure::new(&name(qps), value, Bound::AtLeast(least), note), 2);
                }
            }
        }
        Ok(())
    }

    /// 64 KiB WRITEs at `qps` QPs.
    fn bulk_run(&self, pair: &Pair, release: &Path, kind: &str, qps: u32) -> Result<Run> {
        let feroce = feroce_in(release);
        let common = ["perf", "--json", "--port-kind", kind];
        let mut server = pair.b.command(&feroce.display().to_string());
        let log = self.work.file("bulk-server");
        let server = Process::spawn_into(server.args(common).args(["-i", "v1"]), &log)?;
        super::wait_for_server(pair)?;
        let mut client = pair.a.command(&feroce.display().to_string());
        client.args(common).args(["-i", "v0", "--op", "write", "-s", "65536"]);
        client.args(["-q", &qps.to_string(), "-D", &SECONDS.to_string(), crate::net::SECOND]);
        let done = client.stdin(Stdio::null()).output()?;
        let server = server.wait()?;
        if !done.status.success() || !server.success() {
            let why = String::from_utf8_lossy(&done.stderr).into_owned();
            return Err(format!("{kind}, {qps} QPs: {why}").into());
        }
        let report: Value = serde_json::from_slice(&done.stdout)?;
        let count = |name: &str| report["counters"][name].as_f64().unwrap_or(0.0);
        let bits = report["rows"][0]["bits_per_second"].as_f64().ok_or("no rate")?;
        let again = count("retransmitted_packets") / count("port_xmit_packets").max(1.0);
        Ok(Run { rate: bits / 1e9, again })
    }
}

/// Starts a process that takes as much of a CPU as it gets. It ends with the result.
fn busy_loop() -> Result<Process> {
    Process::spawn(Command::new("sh").args(["-c", "while :; do :; done"]))
}
