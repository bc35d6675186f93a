//! Feroce beside Linux rxe: the same perftest commands, by turns, on both in one guest with two
//! emulated CPUs.

use std::path::Path;

use super::{Bench, Bound, Figure, median};
use crate::Result;
use crate::guest::{Guest, Machine};
use crate::setup::libraries_release;
use Measure::{Bandwidth, Latency, Messages};

/// Number of runs of each command with rxe and with Feroce. The medians are compared.
const ROUNDS: usize = 3;
/// A program that polls needs a CPU, and there are two.
const MACHINE: Machine = Machine { cpus: 2, mib: 700 };
/// Where the script lies in the guest.
const SCRIPT: &str = "/root/peers.sh";
/// Interface MTUs that give the path MTUs 4096 and 1024.
const LARGE: u32 = 4400;
const SMALL: u32 = 1500;

/// What a command measures.
#[derive(Debug, Clone, Copy)]
enum Measure {
    /// MiB/s: the average bandwidth.
    Bandwidth,
    /// Millions per second: the average message rate.
    Messages,
    /// us: the typical latency.
    Latency,
}

impl Measure {
    /// The column of perftest's line of results, from 0, and its unit.
    fn column(self) -> (usize, &'static str) {
        match self {
            Self::Bandwidth => (3, "MiB/s"),
            Self::Messages => (4, "million messages/s"),
            Self::Latency => (4, "us"),
        }
    }
}

/// A figure: what is measured, interface MTU, command, and at least how many times as fast as rxe
/// Feroce must be.
type Row = (&'static str, Measure, u32, &'static str, f64);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("WRITE 64 KiB, MTU 4096", Bandwidth, LARGE, "ib_write_bw -s 65536 -D 4", 2.0),
    ("READ 64 KiB, MTU 4096", Bandwidth, LARGE, "ib_read_bw -s 65536 -D 4", 2.0),
    ("SEND 64 KiB, MTU 4096", Bandwidth, LARGE, "ib_send_bw -s 65536 -D 4", 2.0),
    ("SEND 64 KiB, MTU 4096, asleep", Bandwidth, LARGE, "ib_send_bw -s 65536 -n 2000 -e", 2.0),
    ("WRITE 64 KiB, MTU 1024", Bandwidth, SMALL, "ib_write_bw -s 65536 -D 4", 1.0),
    ("READ 64 KiB, MTU 1024", Bandwidth, SMALL, "ib_read_bw -s 65536 -D 4", 1.0),
    ("SEND 64 KiB, MTU 1024", Bandwidth, SMALL, "ib_send_bw -s 65536 -D 4", 1.0),
    ("SEND 64 B, messages", Messages, LARGE, "ib_send_bw -s 64 -D 4", 1.0),
    ("SEND 64 B, messages, asleep", Messages, LARGE, "ib_send_bw -s 64 -n 50000 -e", 1.0),
    ("SEND 64 B, half-RTT", Latency, LARGE, "ib_send_lat -s 64 -n 5000", 1.0),
    ("SEND 64 B, half-RTT, asleep", Latency, LARGE, "ib_send_lat -s 64 -n 3000 -e", 1.0),
    ("WRITE 64 B, half-RTT", Latency, LARGE, "ib_write_lat -s 64 -n 2000", 1.0),
    ("READ 64 B, RTT", Latency, LARGE, "ib_read_lat -s 64 -n 3000", 1.0),
];

impl Bench {
    /// The figures beside rxe. Only on request: they boot a guest.
    pub(super) fn peers(&mut self) -> Result {
        let chosen: Vec<&Row> = ROWS.iter().filter(|row| self.chooses(&name(row))).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let libraries = libraries_release()?;
        let guest = Guest::with("bench", &self.work, MACHINE)?;
        guest.put(Path::new("tests/rxe/peers.sh"), SCRIPT)?;
        for file in ["libibverbs.so.1", "librdmacm.so.1"] {
            guest.put(&libraries.join(file), &format!("/opt/feroce/{file}"))?;
        }
        guest.run(&format!("sh {SCRIPT} setup"))?;
        for row in chosen {
            let (_, measure, _, _, least) = row;
            let (mut rxe, mut feroce) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                rxe.push(measured(&guest, "rxe", row)?);
                feroce.push(measured(&guest, "feroce", row)?);
            }
            let (rxe, feroce) = (median(&mut rxe), median(&mut feroce));
            let ratio = match measure {
                Measure::Latency => rxe / feroce,
                Measure::Bandwidth | Measure::Messages => feroce / rxe,
            };
            let note = format!("{feroce} against {rxe} {}", measure.column().1);
            self.add(Figure::new(&name(row), Some(ratio), Bound::AtLeast(*least), note), 2);
        }
        Ok(())
    }
}

fn name((what, ..): &Row) -> String {
    format!("peers: {what}, speed / rxe")
}

/// Runs the row's command at both ends of `peer`.
fn measured(guest: &Guest, peer: &str, (_, measure, mtu, line, _): &Row) -> Result<f64> {
    let results = guest.run(&format!("sh {SCRIPT} {peer} {mtu} {line}")).map_err(|error| {
        let printed = guest.shell("tail -n 5 /tmp/server /tmp/client").unwrap_or_default();
        format!("{peer}: {line}: {error}\n{printed}")
    })?;
    let value = results.split_whitespace().nth(measure.column().0);
    let value = value.ok_or_else(|| format!("{peer}: {line} has no result: {results}"))?;
    Ok(value.parse()?)
}
