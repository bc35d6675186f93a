//! Plays the requester's part of captures to real endpoints, Feroce in a namespace and Linux rxe in
//! a guest, and compares the responses with the captured ones: `feroce conform replay --live`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use regex::Regex;

use crate::Result;
use crate::guest::{Guest, MTU};
use crate::net::Pair;
use crate::process::run_into;
use crate::setup::{BUILD_PACKAGES, Work, feroce, need_packages, need_root, reserve_hugepages};
use crate::tally::{Outcome, Tally, Verdict};

const TABLE: &str = "tests/captures/replay-live.txt";

/// Options of `xtask replay-live`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Feroce's port
    #[arg(long, value_name = "KIND", default_value = "packet", value_parser = ["packet", "af_xdp"])]
    port: String,
    /// To Feroce only, or to rxe only
    #[arg(long, value_name = "WHICH", value_parser = ["feroce", "rxe"])]
    only: Option<String>,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only captures whose name contains this text
    #[arg(default_value = "")]
    filter: String,
}

/// A capture and the number of requests that are played.
type Row = (String, u64);

/// Runs the command. `$FEROCE_CONFORM` names a `feroce` that is built already.
pub fn main(options: Options) -> Result<u8> {
    let rows = rows(&std::fs::read_to_string(TABLE)?, &options.filter)?;
    if rows.is_empty() {
        eprintln!("no capture's name contains {}", options.filter);
        return Ok(2);
    }
    need_root()?;
    need_packages(BUILD_PACKAGES)?;
    let (feroce, work) = (feroce()?, Work::new()?);
    let plays = [Some("rxe"), Some("feroce")].map(|other| options.only.as_deref() != other);
    let total = rows.len() * plays.iter().filter(|plays| **plays).count();
    let mut player =
        Player { feroce, work, tally: Tally::new(total, options.json), sentences: Vec::new() };
    if plays[0] {
        player.replay_to_feroce(&options.port, &rows)?;
    }
    if plays[1] {
        player.replay_to_rxe(&rows)?;
    }
    player.tally.finish()?;
    println!("{}", player.sentences.join(" "));
    Ok(u8::from(!player.tally.has_passed()))
}

/// The rows of the table whose name contains `filter`.
fn rows(table: &str, filter: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#') && line.contains(filter)) {
        let (file, count) = line.split_once(' ').ok_or_else(|| format!("{TABLE}: {line}"))?;
        rows.push((file.to_owned(), count.parse()?));
    }
    Ok(rows)
}

struct Player {
    feroce: PathBuf,
    work: Work,
    tally: Tally,
    /// A sentence per endpoint.
    sentences: Vec<String>,
}

impl Player {
    /// Plays to Feroce, in two namespaces with a cable between them.
    fn replay_to_feroce(&mut self, port: &str, rows: &[Row]) -> Result {
        let pair = Pair::new("replay", MTU)?;
        pair.plain_frames();
        for (end, interface, number) in [(&pair.a, "v0", 1), (&pair.b, "v1", 2)] {
            end.sysctl(&["net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0"])?;
            end.ip(&format!("-6 address add fd77::{number}/64 dev {interface} nodad"))?;
            end.ip("link set lo up")?;
        }
        let _hugepages = reserve_hugepages(64)?;
        let stack = format!("feroce:{}:v1:{port}", pair.b.name());
        self.play_all(&format!("Feroce ({port})"), pair.a.name(), &stack, rows)
    }

    fn replay_to_rxe(&mut self, rows: &[Row]) -> Result {
        let guest = Guest::new("replay", &self.work)?;
        let engine = guest.engine.name();
        self.play_all("rxe", engine, &format!("rxe:{engine}"), rows)
    }

    /// Plays every capture to `stack` from v0 of `namespace`.
    fn play_all(&mut self, name: &str, namespace: &str, stack: &str, rows: &[Row]) -> Result {
        let mut passed = 0;
        println!("To {name}");
        for (file, expected) in rows {
            let is_v6 = file.contains("_v6_") || file.contains("_v6.");
            let peer = if is_v6 { "fd77::2" } else { "10.77.0.2" };
            let mut command = Command::new("timeout");
            command.arg("120").arg(&self.feroce).args(["conform", "replay"]);
            command.arg(format!("tests/captures/{file}"));
            command.args(["--live", "v0", "--namespace", namespace, "--peer", peer]);
            command.args(["--responder", stack]);
            passed += usize::from(self.play(name, file, *expected, &mut command)?);
        }
        let all = rows.len();
        self.sentences.push(format!("{name} responds to {passed} of {all} captures as captured."));
        Ok(())
    }

    /// Returns true if `expected` requests are played and each has the captured responses.
    fn play(
        &mut self,
        name: &str,
        file: &str,
        expected: u64,
        command: &mut Command,
    ) -> Result<bool> {
        let started = Instant::now();
        self.tally.begin(file);
        let log = self.work.file("out");
        let code = run_into(command, &log)?;
        let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        let played = packets_played(&text)?;
        let ok = code == 0 && played == expected;
        let last = text.lines().last().unwrap_or_default();
        let (line, note) = match ok {
            true => (format!("{:<6} {expected:6}  {file}, {last}", "ok"), String::new()),
            false => {
                let why =
                    format!("exit code {code}, {played} requests played, {expected} expected");
                let lines: Vec<String> =
                    text.lines().map(|line| format!("       {line}")).collect();
                let lines = lines.join("\n");
                (format!("{:<6} {played:6}  {file}: {why}\n{lines}", "FAILED"), why)
            }
        };
        let outcome = Outcome {
            subject: file.to_owned(),
            what: format!("{expected} requests"),
            case: name.to_owned(),
            verdict: Verdict::of(ok),
            seconds: started.elapsed().as_secs_f64(),
            note,
        };
        self.tally.end(outcome, &line);
        Ok(ok)
    }
}

/// The sum of the numbers in front of `packets played`.
fn packets_played(text: &str) -> Result<u64> {
    let numbers = Regex::new("([0-9]+) packets played")?;
    numbers.captures_iter(text).map(|found| Ok(found[1].parse::<u64>()?)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capture_of_the_table_exists() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let table = std::fs::read_to_string(format!("{root}/{TABLE}")).expect("the table");
        let rows = rows(&table, "").expect("names and numbers");
        assert_eq!(rows.len(), 45);
        for (file, _) in rows {
            let path = format!("{root}/tests/captures/{file}");
            assert!(std::path::Path::new(&path).is_file(), "{path}");
        }
    }

    #[test]
    fn played_packets_are_added_up() {
        let text = "a: 12 packets played\nb: 3 packets played, 2 answers\n";
        assert_eq!(packets_played(text).expect("numbers"), 15);
    }
}
