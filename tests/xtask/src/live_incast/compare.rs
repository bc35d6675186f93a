//! Compares the figures of a run with real packets with those in virtual time.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::scenario::{FRAME, Scenario};
use crate::Result;

/// Largest relative difference.
const BAR: f64 = 0.15;
/// Payload of a full packet in bytes.
const PAYLOAD: f64 = 1024.0;
/// Columns of `feroce fabric live` that must be 0.
const LOSSES: [&str; 6] = ["dropped", "overrun", "lost", "corrupted", "missed", "unroutable"];

/// A run with real packets, whose figures are in files.
#[derive(Debug)]
pub struct Run<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// Number of senders.
    pub count: u32,
    /// The folder with live.txt, live.csv and stat-N.txt.
    pub folder: PathBuf,
}

/// The result of the comparison.
#[derive(Debug)]
pub struct Report {
    table: String,
    largest: f64,
    /// Why the run fails; empty if it passes.
    pub faults: Vec<String>,
}

/// A sender's figures after the warm-up.
#[derive(Debug)]
struct Sender {
    bits_per_second: f64,
    alpha: f64,
    cnps: u64,
    seconds: f64,
    retransmitted: u64,
}

type Row = BTreeMap<String, String>;

impl Report {
    fn new(count: u32) -> Report {
        let head =
            format!("{:17}{:>8}{:>10}{:>12}", format!("{count}:1"), "virtual", "real", "off");
        Report { table: head, largest: 0.0, faults: Vec::new() }
    }

    /// Adds a line of the table. Returns the relative difference.
    fn line(&mut self, name: &str, virtual_time: f64, real: f64) -> f64 {
        let off = (real / virtual_time - 1.0).abs();
        let percent = 100.0 * off;
        let _ = write!(self.table, "\n  {name:15}{virtual_time:8.3}{real:10.3}{percent:10.1} %");
        off
    }

    /// Adds a line that is judged.
    fn judge(&mut self, name: &str, virtual_time: f64, real: f64) {
        let off = self.line(name, virtual_time, real);
        // NaN, of figures that are missing, counts as the largest.
        if off.is_nan() || off > self.largest {
            self.largest = if off.is_nan() { f64::INFINITY } else { off };
        }
    }

    /// The table and the faults.
    pub fn text(&self) -> String {
        let faults = self.faults.iter().map(|fault| format!("\nFAILED: {fault}"));
        self.table.clone() + &faults.collect::<String>()
    }
}

impl Run<'_> {
    /// Compares the run with the figures in the folder `virtual_time`.
    pub fn compare(&self, virtual_time: &Path) -> Result<Report> {
        let case = format!("{}:1", self.count);
        let of_case = |row: &Row| row.get("case") == Some(&case);
        let expected: Vec<Row> =
            rows(&virtual_time.join("flows.csv"))?.into_iter().filter(of_case).collect();
        let warmup = f64::from(self.scenario.warmup);
        let mut senders = Vec::new();
        for n in 1..=self.count {
            let file = self.folder.join(format!("stat-{n}.txt"));
            senders.push(Sender::parse(&std::fs::read_to_string(file)?, warmup)?);
        }
        let column = |name: &str| -> Result<Vec<f64>> {
            expected.iter().map(|row| number(row, name)).collect()
        };
        let mut report = Report::new(self.count);
        self.judge(&mut report, [&column("goodput_bps")?, &column("mean_alpha")?], &senders);
        let queues = rows(&virtual_time.join("queues.csv"))?;
        let queue = queues.iter().find(|row| of_case(row)).ok_or("no queue in virtual time")?;
        let real = mean_queue(&rows(&self.folder.join("live.csv"))?, warmup)?;
        report.line("queue, KB", number(queue, "mean_bytes")? / 1e3, real / 1e3);
        let cnps: u64 = senders.iter().map(|sender| sender.cnps).sum();
        let _ = write!(
            report.table,
            "\nlargest difference {:.1} %, over {:.0} s; {cnps} CNPs",
            100.0 * report.largest,
            senders[0].seconds
        );
        let text = std::fs::read_to_string(self.folder.join("live.txt"))?;
        let (late, faults) = switch_faults(&text, self.scenario.cnp_interval_ms)?;
        let _ =
            write!(report.table, "\n99 % of the time, the switch was at most {late:.3} ms late");
        report.faults.extend(faults);
        self.add_faults(&mut report, &senders);
        Ok(report)
    }

    /// Adds shares, total and alphas.
    fn judge(&self, report: &mut Report, expected: [&[f64]; 2], senders: &[Sender]) {
        let count = f64::from(self.count);
        let [goodputs, alphas] = expected;
        let bits: Vec<f64> = senders.iter().map(|sender| sender.bits_per_second).collect();
        let real_alphas: Vec<f64> = senders.iter().map(|sender| sender.alpha).collect();
        // Which sender gets the largest share is random: shares are compared in descending order.
        let [virtual_shares, real_shares] = [goodputs, bits.as_slice()].map(shares);
        for (n, (one, other)) in (1..).zip(virtual_shares.iter().zip(&real_shares)) {
            report.judge(&format!("share, {n}. of {}", self.count), *one, *other);
        }
        let sum = |values: &[f64]| values.iter().sum::<f64>();
        // Endpoints count frames from the Ethernet header to the ICRC.
        let total = sum(goodputs) / 1e6 * f64::from(FRAME) / PAYLOAD;
        report.judge("total, Mb/s", total, sum(&bits) / 1e6);
        report.judge("alpha, mean", sum(alphas) / count, sum(&real_alphas) / count);
        report.table += "\n  not judged:";
        let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        report.line("alpha, least", least(alphas), least(&real_alphas));
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        report.line("alpha, most", most(alphas), most(&real_alphas));
    }

    fn add_faults(&self, report: &mut Report, senders: &[Sender]) {
        let span = f64::from(self.scenario.duration - self.scenario.warmup);
        for (n, sender) in (1..).zip(senders) {
            // Samples are 0.5 s apart, and the senders do not start at the same time.
            if sender.seconds < 0.9 * span {
                report
                    .faults
                    .push(format!("h{n}: {:.0} of {span} s were measured", sender.seconds));
            }
            if sender.retransmitted > 0 {
                report.faults.push(format!("h{n}: {} packets retransmitted", sender.retransmitted));
            }
        }
        if report.largest > BAR {
            let (largest, bar) = (100.0 * report.largest, 100.0 * BAR);
            report.faults.push(format!("{largest:.1} % is more than {bar} %"));
        }
    }
}

impl Sender {
    /// The figures after the first `warmup` seconds, from the lines of `feroce stat --watch`.
    fn parse(text: &str, warmup: f64) -> Result<Sender> {
        let mut figures = Vec::new();
        for line in text.lines() {
            let value: Value = serde_json::from_str(line)?;
            figures.push(value["figures"][0].clone());
        }
        let nanos = |figure: &Value| figure["nanos"].as_f64().unwrap_or(f64::NAN);
        let begin = figures.first().map_or(f64::NAN, nanos) + warmup * 1e9;
        figures.retain(|figure| nanos(figure) >= begin);
        let [first, .., last] = figures.as_slice() else {
            return Err("feroce stat reported too few samples after the warm-up".into());
        };
        let rate = |figure: &Value| -> Result<(u64, u64)> {
            let qps = figure["queue_pairs"].as_array().ok_or("no queue_pairs")?;
            let rate = qps.iter().map(|qp| &qp["rate"]).find(|rate| !rate.is_null());
            let rate = rate.ok_or("no QP has a rate")?;
            let field = |name: &str| rate[name].as_u64().ok_or_else(|| format!("no {name}"));
            Ok((field("alpha_ppm")?, field("cnps_handled")?))
        };
        let sent = |figure: &Value| -> f64 {
            let cores = figure["cores"].as_array().map(Vec::as_slice).unwrap_or_default();
            cores.iter().filter_map(|core| core["tx_bytes"].as_f64()).sum()
        };
        let rates = figures.iter().map(rate).collect::<Result<Vec<_>>>()?;
        let alphas = rates.iter().map(|(alpha, _)| *alpha as f64 / 1e6).sum::<f64>();
        let seconds = (nanos(last) - nanos(first)) / 1e9;
        let retransmitted = last["counters"]["retransmitted_packets"].as_u64();
        Ok(Sender {
            bits_per_second: (sent(last) - sent(first)) * 8.0 / seconds,
            alpha: alphas / rates.len() as f64,
            cnps: rates[rates.len() - 1].1 - rates[0].1,
            seconds,
            retransmitted: retransmitted.ok_or("no retransmitted_packets")?,
        })
    }
}

/// The shares of `rates` in their sum, times their number, in descending order.
fn shares(rates: &[f64]) -> Vec<f64> {
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let mut shares: Vec<f64> = rates.iter().map(|rate| rate / mean).collect();
    shares.sort_by(|one, other| other.total_cmp(one));
    shares
}

/// How late the switch was, in milliseconds, for 99 % of the time, and its departures from the
/// scenario: late forwarding, lost frames. `text` is the table of `feroce fabric live`.
fn switch_faults(text: &str, cnp_interval_ms: f64) -> Result<(f64, Vec<String>)> {
    let mut lines: Vec<&str> = text.lines().collect();
    let last = lines.pop().ok_or("feroce fabric live printed nothing")?;
    let late = last.split("99 % ").nth(1).and_then(|rest| rest.split(',').next());
    let late = late.ok_or_else(|| format!("no lateness: {last}"))?.parse::<f64>()? / 1e3;
    let limit = cnp_interval_ms / 10.0;
    let mut faults = Vec::new();
    if late > limit {
        faults.push(format!("late by more than {limit} ms, a tenth of the CNP interval"));
    }
    let mut rows = lines.iter().map(|line| line.split_whitespace());
    let names: Vec<&str> = rows.next().ok_or("no table of feroce fabric live")?.collect();
    for row in rows {
        let row: BTreeMap<&str, &str> = names.iter().copied().zip(row).collect();
        for name in LOSSES {
            let lost = row.get(name).ok_or_else(|| format!("no column {name}"))?;
            if *lost != "0" {
                faults.push(format!("{}: {lost} {name}", row.get("host").unwrap_or(&"?")));
            }
        }
    }
    Ok((late, faults))
}

/// Mean length of the queue to the receiver after the warm-up, in bytes.
fn mean_queue(rows: &[Row], warmup: f64) -> Result<f64> {
    let mut queues = Vec::new();
    for row in rows.iter().filter(|row| row.get("host").is_some_and(|host| host == "h9")) {
        if number(row, "microseconds")? > warmup * 1e6 {
            queues.push(number(row, "queue")?);
        }
    }
    Ok(queues.iter().sum::<f64>() / queues.len() as f64)
}

fn number(row: &Row, name: &str) -> Result<f64> {
    Ok(row.get(name).ok_or_else(|| format!("no column {name}"))?.parse()?)
}

/// The rows of a CSV file, by column.
fn rows(path: &Path) -> Result<Vec<Row>> {
    let mut reader = csv::Reader::from_path(path)?;
    reader.deserialize().map(|row| Ok(row?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_relative_to_the_mean_and_in_order() {
        assert_eq!(shares(&[1.0, 3.0]), [1.5, 0.5]);
    }

    #[test]
    fn a_sender_is_measured_after_its_warm_up() {
        let line = |seconds: u64, bytes: u64, alpha: u64| {
            let rate = serde_json::json!({"alpha_ppm": alpha, "cnps_handled": seconds});
            serde_json::json!({"figures": [{
                "nanos": seconds * 1_000_000_000, "cores": [{"tx_bytes": bytes}],
                "queue_pairs": [{"rate": null}, {"rate": rate}],
                "counters": {"retransmitted_packets": 2},
            }]})
            .to_string()
        };
        let text = [line(1, 0, 9), line(3, 1000, 100_000), line(5, 5000, 300_000)].join("\n");
        let sender = Sender::parse(&text, 2.0).expect("three samples");
        assert_eq!((sender.bits_per_second, sender.seconds, sender.cnps), (16_000.0, 2.0, 2));
        assert!((sender.alpha - 0.2).abs() < 1e-9 && sender.retransmitted == 2);
        assert!(Sender::parse(&text, 4.0).is_err(), "one sample has no duration");
    }

    #[test]
    fn a_late_or_lossy_switch_is_a_fault() {
        let head = "host dropped overrun lost corrupted missed unroutable\n";
        let late = "late by (us): 50 % 1.0, 99 % 30.5, 99.9 % 50, max 900";
        let (ms, faults) =
            switch_faults(&format!("{head}h1 0 0 0 0 0 0\n{late}"), 20.0).expect("a table");
        assert!((ms - 0.0305).abs() < 1e-9 && faults.is_empty());
        let (_, faults) =
            switch_faults(&format!("{head}h1 0 0 3 0 0 1\n{late}"), 0.1).expect("a table");
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[0].contains("late") && faults[1] == "h1: 3 lost", "{faults:?}");
    }

    #[test]
    fn a_difference_above_the_bar_fails() {
        let mut report = Report::new(2);
        report.judge("alpha", 0.10, 0.11);
        assert!((report.largest - 0.1).abs() < 1e-9);
        report.judge("alpha", 0.0, 0.0);
        assert!(report.largest.is_infinite(), "a missing figure is no agreement");
    }
}
