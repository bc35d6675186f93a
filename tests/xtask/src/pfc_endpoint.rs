//! Measures PFC in the endpoint, between two namespaces joined by a veth pair. The endpoint is
//! paced to half of its link rate, and its peer pauses it repeatedly. Expected throughput: the
//! throughput without pauses, times the share of the time without a pause. The throughput of
//! another priority must not change. `feroce pfc decode` computes the share from the frames that
//! were sent.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Result;
use crate::net::Pair;
use crate::process::{Process, output};
use crate::setup::{Work, build, built, feroce_in, need_packages, need_root};
use crate::tally::{Outcome, Tally, Verdict};

/// Number of runs of each row. The median run is judged.
const RUNS: usize = 3;
/// Bytes that the endpoint may send at once.
const BURST: f64 = 4096.0;
/// Traffic class of priority 3, which is paused.
const PAUSED: u8 = 104;
/// Traffic class of priority 0.
const OTHER: u8 = 0;
/// Largest relative difference from the expected throughput.
const BAR: f64 = 0.05;
/// Minimum fraction of the rate that the endpoint must reach without pauses.
const LEAST: f64 = 0.85;
/// Exit code if the machine is too busy to measure.
const SKIPPED: u8 = 77;

/// Options of `xtask pfc-endpoint`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// One rate and one kind of pause, and shorter runs. Exit code 77 if the machine is too busy
    /// even without pauses
    #[arg(long)]
    short: bool,
    /// The folder with feroce (default: it is built)
    #[arg(long, value_name = "FOLDER")]
    bin: Option<PathBuf>,
    /// Seconds of a run (default: 3, with --short 2)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Feroce's ports
    #[arg(value_parser = ["packet", "af_xdp"], default_values = ["packet", "af_xdp"])]
    kinds: Vec<String>,
}

/// Pauses of one kind.
#[derive(Debug, Clone, Copy)]
struct Pause {
    quanta: u32,
    per_second: u32,
}

/// What is measured. Rates are in Mb/s; the link rate is twice the endpoint's rate.
#[derive(Debug, Clone)]
struct Row<'a> {
    kind: &'a str,
    rate: u32,
    traffic_class: u8,
    pause: Option<Pause>,
}

/// The result of a run.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// The share of the time that the pauses leave.
    share: f64,
    /// Throughput in Mb/s.
    got: f64,
}

/// A run against what is expected.
#[derive(Debug, Clone, Copy)]
struct Judged {
    off: f64,
    due: f64,
    got: f64,
}

struct Bench {
    feroce: PathBuf,
    seconds: u32,
    pair: Pair,
    work: Work,
    tally: Tally,
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    need_root()?;
    need_packages(&["iproute2"])?;
    let folder = match &options.bin {
        Some(folder) => std::path::absolute(folder)?,
        None => {
            build(&["--bin", "feroce"])?;
            built()
        }
    };
    let seconds = options.seconds.unwrap_or(if options.short { 2 } else { 3 });
    let rates: &[u32] = if options.short { &[50] } else { &[50, 200] };
    let pauses: &[(u32, u32)] = match options.short {
        true => &[(10_000, 10)],
        false => &[(5000, 20), (10_000, 10), (20_000, 10), (30_000, 20)],
    };
    let mut bench = Bench {
        feroce: feroce_in(&folder),
        seconds,
        pair: Pair::new("pfc", 1500)?,
        work: Work::new()?,
        tally: Tally::new(
            options.kinds.len() * (rates.len() * (pauses.len() + 2) + 1),
            options.json,
        ),
    };
    println!(
        "{:<8} {:>10} {:>8} {:>6} {:>8} {:>8} {:>7}",
        "port", "rate Mb/s", "quanta", "1/s", "due", "got", "off"
    );
    for kind in &options.kinds {
        for &rate in rates {
            if !bench.rate(kind, rate, pauses, options.short)? && options.short {
                bench.tally.finish()?;
                return Ok(SKIPPED);
            }
        }
        bench.check_xon(kind)?;
    }
    bench.tally.finish()?;
    Ok(u8::from(!bench.tally.has_passed()))
}

impl Bench {
    /// Measures all rows of a rate. Returns false if the endpoint does not even reach the rate
    /// without pauses; the other rows are left out then if `is_short`.
    fn rate(
        &mut self,
        kind: &str,
        rate: u32,
        pauses: &[(u32, u32)],
        is_short: bool,
    ) -> Result<bool> {
        let mut whole = self.baseline(kind, rate)?;
        let line = format!("{kind:<8} {rate:>10} {:>8} {:>6} {:>8} {whole:8.2}", "none", "-", "-");
        let is_enough = whole > LEAST * f64::from(rate);
        self.end(kind, &format!("{rate} Mb/s, no pauses"), is_enough, &line);
        if !is_enough {
            // Only this figure distinguishes a wrong pacer from a busy machine.
            self.tally.print(&format!(
                "{kind}: not even {rate} Mb/s without pauses: this machine is too busy to measure"
            ));
            if is_short {
                return Ok(false);
            }
        }
        let all = pauses
            .iter()
            .map(|&(quanta, per_second)| (PAUSED, Pause { quanta, per_second }))
            .chain([(OTHER, Pause { quanta: 20_000, per_second: 10 })]);
        for (traffic_class, pause) in all {
            let Pause { quanta, per_second } = pause;
            // Pauses that fill 90 % of their period are for other rates.
            let paused_bits = f64::from(quanta) * 512.0 * f64::from(per_second);
            if traffic_class == PAUSED && paused_bits >= 0.9 * 2e6 * f64::from(rate) {
                continue;
            }
            let row = Row { kind, rate, traffic_class, pause: Some(pause) };
            self.row(&row, &mut whole)?;
        }
        Ok(is_enough)
    }

    /// Measures a row. A row that fails is measured once more, with a new baseline, because the
    /// machine may have been busy.
    fn row(&mut self, row: &Row<'_>, whole: &mut f64) -> Result {
        let mut judged = judge(row, *whole, &self.measure(row)?);
        if judged.off.abs() > BAR {
            *whole = self.baseline(row.kind, row.rate)?;
            judged = judge(row, *whole, &self.measure(row)?);
        }
        let Judged { off, due, got } = judged;
        let pause = row.pause.unwrap_or(Pause { quanta: 0, per_second: 0 });
        let quanta = match row.traffic_class {
            PAUSED => pause.quanta.to_string(),
            _ => "other".to_owned(),
        };
        let is_ok = off.abs() <= BAR;
        let line = format!(
            "{:<8} {:>10} {quanta:>8} {:>6} {due:8.2} {got:8.2} {:6.1}%{}",
            row.kind,
            row.rate,
            pause.per_second,
            100.0 * off,
            if is_ok { "" } else { " !" }
        );
        let what = format!("{} Mb/s, {quanta} quanta, {} per s", row.rate, pause.per_second);
        self.end(row.kind, &what, is_ok, &line);
        Ok(())
    }

    fn end(&mut self, kind: &str, what: &str, is_ok: bool, line: &str) {
        let outcome = Outcome {
            subject: kind.to_owned(),
            what: what.to_owned(),
            case: String::new(),
            verdict: Verdict::of(is_ok),
            seconds: 0.0,
            note: line.to_owned(),
        };
        self.tally.end(outcome, line);
    }

    /// The median throughput without pauses, in Mb/s.
    fn baseline(&self, kind: &str, rate: u32) -> Result<f64> {
        let row = Row { kind, rate, traffic_class: PAUSED, pause: None };
        let mut got: Vec<f64> = self.measure(&row)?.iter().map(|sample| sample.got).collect();
        got.sort_by(f64::total_cmp);
        Ok(got[RUNS / 2])
    }

    fn measure(&self, row: &Row<'_>) -> Result<Vec<Sample>> {
        (1..=RUNS)
            .map(|run| {
                let quanta = row.pause.map_or(0, |pause| pause.quanta);
                let Row { kind, rate, .. } = row;
                self.tally.begin(&format!("{kind}, {rate} Mb/s, {quanta} quanta, run {run}"));
                self.sample(row)
            })
            .collect()
    }

    fn sample(&self, row: &Row<'_>) -> Result<Sample> {
        let frames = self.work.file("frames.pcap");
        let _ = std::fs::remove_file(&frames);
        let server = self.serve(row.kind)?;
        let mut storm = None;
        if let Some(Pause { quanta, per_second }) = row.pause {
            let mut command = self.storm(&format!("{}s", self.seconds + 30), per_second);
            command.args(["--priorities", "3", "--quanta", &quanta.to_string(), "--record"]);
            storm = Some(Process::spawn_into(command.arg(&frames), &self.work.file("sent"))?);
            std::thread::sleep(Duration::from_millis(300));
        }
        let seconds = self.seconds.to_string();
        let figures = self.client(row.kind, row.rate, row.traffic_class, &seconds)?;
        let mut share = 1.0;
        if let Some(mut storm) = storm {
            if !storm.is_running() {
                return Err(std::fs::read_to_string(self.work.file("sent"))?.into());
            }
            storm.stop()?;
            share = self.share_left(2 * row.rate)?;
        }
        if !server.wait()?.success() {
            return Err(std::fs::read_to_string(self.work.file("server"))?.into());
        }
        let bits = figures["rows"][0]["bits_per_second"].as_f64().ok_or("no bits_per_second")?;
        Ok(Sample { share, got: bits / 1e6 })
    }

    /// A command in the namespace of v1 (`b`) or v0, with a higher priority than other processes.
    fn at(&self, b: bool, variables: &[(&str, String)]) -> Command {
        let namespace = if b { &self.pair.b } else { &self.pair.a };
        let mut command = namespace.command("nice");
        command.args(["-n", "-19"]).arg(&self.feroce);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn storm(&self, duration: &str, per_second: u32) -> Command {
        let mut command = self.at(true, &[]);
        command.args(["pfc", "send", "storm", "v1", "--for", duration]);
        command.args(["--per-second", &per_second.to_string()]);
        command
    }

    fn serve(&self, kind: &str) -> Result<Process> {
        let mut command = self.at(true, &[("FEROCE_PORT_KIND", kind.to_owned())]);
        let server =
            Process::spawn_into(command.args(["perf", "-i", "v1"]), &self.work.file("server"))?;
        self.pair.b.wait_for_port(18515)?;
        Ok(server)
    }

    /// Runs the paced client, on a link of twice its rate; returns its JSON.
    fn client(&self, kind: &str, rate: u32, traffic_class: u8, seconds: &str) -> Result<Value> {
        let mut command = self.at(
            false,
            &[
                ("FEROCE_PORT_KIND", kind.to_owned()),
                ("FEROCE_PFC", "3".to_owned()),
                ("FEROCE_PFC_RATE", format!("{}Mb/s", 2 * rate)),
                ("FEROCE_CONGESTION", format!("{rate}Mb/s")),
                ("FEROCE_CONGESTION_BURST", BURST.to_string()),
                ("FEROCE_WINDOW", "64".to_owned()),
            ],
        );
        command.args(["perf", "-i", "v0", "10.77.0.2", "--json", "-s", "4096"]);
        command.args(["--tx-depth", "16", "-m", "1024", "-u", "18"]);
        command.args(["--tclass", &traffic_class.to_string(), "-D", seconds]);
        let result = command.output()?;
        if !result.status.success() {
            return Err(String::from_utf8_lossy(&result.stderr).into_owned().into());
        }
        Ok(serde_json::from_slice(&result.stdout)?)
    }

    /// The share of the time that the pauses that were sent leave on a link of `rate` Mb/s.
    fn share_left(&self, rate: u32) -> Result<f64> {
        let mut command = Command::new(&self.feroce);
        command.args(["pfc", "decode"]).arg(self.work.file("frames.pcap"));
        let text = output(command.args(["--rate", &format!("{rate}M"), "--json"]))?;
        let last: Value = serde_json::from_str(text.lines().last().ok_or("decode said nothing")?)?;
        let senders = last["summary"]["senders"].as_array().ok_or("no senders")?;
        let [sender] = senders.as_slice() else { return Err("not one sender".into()) };
        let share = sender["priorities"]["3"]["share"].as_f64().ok_or("no share")?;
        Ok(1.0 - share)
    }

    /// A pause of 3.4 s, 65535 quanta at 10 Mb/s, must end at once with XON, which the storm sends
    /// at its end.
    fn check_xon(&mut self, kind: &str) -> Result {
        let server = self.serve(kind)?;
        let started = Instant::now();
        let storm = Process::spawn_into(&mut self.storm("2500ms", 20), &self.work.file("sent"))?;
        std::thread::sleep(Duration::from_millis(500));
        self.client(kind, 5, PAUSED, "0.1")?;
        let took = started.elapsed().as_millis();
        storm.wait()?;
        server.wait()?;
        let line = format!(
            "{kind}: a pause that XON ended after 2500 ms delayed a transfer of 100 ms until \
             {took} ms had passed"
        );
        self.end(kind, "XON", (2500..5000).contains(&took), &line);
        Ok(())
    }
}

/// Returns the median run by difference from the expected throughput. After each pause, the pacer
/// sends a burst that it saved up.
fn judge(row: &Row<'_>, whole: f64, samples: &[Sample]) -> Judged {
    let per_second = row.pause.map_or(0, |pause| pause.per_second);
    let burst = f64::from(per_second) * BURST * 8.0 / 1e6;
    let mut judged: Vec<Judged> = samples
        .iter()
        .map(|Sample { share, got }| {
            let due = if row.traffic_class == PAUSED { share * whole + burst } else { whole };
            Judged { off: got / due - 1.0, due, got: *got }
        })
        .collect();
    judged.sort_by(|one, other| one.off.total_cmp(&other.off));
    judged[(judged.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_run_is_judged_by_the_time_that_the_pauses_leave() {
        let pause = Some(Pause { quanta: 10_000, per_second: 10 });
        let mut row = Row { kind: "packet", rate: 50, traffic_class: PAUSED, pause };
        let samples = [30.0, 25.0, 10.0].map(|got| Sample { share: 0.5, got });
        let Judged { off, due, got } = judge(&row, 50.0, &samples);
        assert!((due - 25.327_68).abs() < 1e-9 && got == 25.0 && (off + 0.012_94).abs() < 1e-4);
        row.traffic_class = OTHER;
        assert_eq!(judge(&row, 50.0, &samples).due, 50.0);
    }
}
