//! Speed of the fabric: prints the figures that `scripts/bench.sh` reports, one per line. Packet
//! hops are frames that reached the end of a link. Seconds are CPU time: waiting for a CPU does not
//! count, but other programs still take cache and bandwidth of the memory. So each speed is the
//! median of three runs.

mod common;

use std::process::ExitCode;

use common::processor_seconds;
use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::scenario::{Change, Scenario};
use feroce_pfc_tools::scenarios;

/// Every host sends to a host below another leaf.
const LEAVES: &str = r#"
title = "30 hosts"
duration = "8ms"
[topology]
kind = "two-tier"
leaves = 3
spines = 2
hosts = 10
trunk_rate = "200Gb/s"
[[traffic]]
name = "flows"
from = "h1..h30"
to = ["h11..h30", "h1..h10"]
control = "dcqcn"
"#;

/// Every host has eight flows to a host of another pod.
const FAT_TREE: &str = r#"
title = "1,024 hosts"
duration = "1ms"
[topology]
kind = "fat-tree"
ports = 16
[[traffic]]
name = "flows"
from = "h1..h1024"
to = ["h65..h1024", "h1..h64"]
per_pair = 8
control = "dcqcn"
"#;

/// Eight hosts have 1,024 flows each.
const CROWDED: &str = r#"
title = "8 crowded hosts"
duration = "4ms"
[topology]
kind = "single"
hosts = 16
[[traffic]]
name = "flows"
from = "h1..h8"
to = "h9..h16"
per_pair = 1024
control = "dcqcn"
"#;

const NAMES: [&str; 5] = [
    "fabric: 30 light hosts, M hops/s",
    "fabric: 320 light hosts, M hops/s",
    "fabric: 1,024 hosts, 8,192 flows, M hops/s",
    "fabric: 16 hosts, 8,192 flows, M hops/s",
    "fabric: speed, engine / light hosts",
];

/// Millions of packet hops, and seconds of CPU time.
#[derive(Clone, Copy)]
struct Speed {
    hops: f64,
    seconds: f64,
}

impl Speed {
    fn rate(self) -> f64 {
        self.hops / self.seconds
    }
}

fn main() -> ExitCode {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let mut all_ok = true;
    for name in NAMES.into_iter().filter(|name| name.contains(&filter)) {
        let (value, min, note) = if name == NAMES[0] {
            absolute(run(LEAVES, 0, &[]), 5.0)
        } else if name == NAMES[1] {
            absolute(run(&known("web-search"), 0, &[("duration", "3ms")]), 5.0)
        } else if name == NAMES[2] {
            absolute(run(FAT_TREE, 0, &[]), 3.0)
        } else if name == NAMES[3] {
            absolute(run(CROWDED, 0, &[]), 3.0)
        } else {
            let text = known("engine-hosts");
            let [light, engine] = [0, 1].map(|case| run(&text, case, &[]).rate());
            (engine / light, 0.15, format!("{engine:.2} of {light:.2} M hops/s"))
        };
        let word = if value >= min { "ok" } else { "short" };
        all_ok &= value >= min;
        println!("{name:<44} {value:>9.2}  {:>8}  {word:<5}  {note}", format!(">= {min}"));
    }
    if all_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn absolute(speed: Speed, min: f64) -> (f64, f64, String) {
    (speed.rate(), min, format!("{:.1} M hops in {:.2} s", speed.hops, speed.seconds))
}

fn known(name: &str) -> String {
    scenarios::find(name).expect("a built-in scenario").text.to_owned()
}

/// The median of three runs.
fn run(text: &str, case: usize, changes: &[(&str, &str)]) -> Speed {
    let mut speeds = [(); 3].map(|()| run_once(text, case, changes));
    speeds.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    speeds[1]
}

#[allow(clippy::cast_precision_loss)] // Counts below 2^53.
fn run_once(text: &str, case: usize, changes: &[(&str, &str)]) -> Speed {
    let changes: Vec<Change> = changes
        .iter()
        .map(|&(key, value)| Change { key: key.to_owned(), value: value.to_owned() })
        .collect();
    let scenario = Scenario::parse("bench", text, &changes, None).expect("a scenario");
    let config = scenario.cases[case].config(1, false).expect("flows");
    let mut fabric = Fabric::new(&config).expect("a network");
    let before = processor_seconds();
    while !fabric.run(1 << 20) {}
    Speed { hops: fabric.hops() as f64 / 1e6, seconds: processor_seconds() - before }
}
