//! Results: rows as perftest prints them, or JSON.

use feroce_engine::counters::Counter;
use feroce_engine::port::fault::FaultStats;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::exchange::{Done, Side};
use super::latency::Latencies;
use super::options::{Plan, Transport};
use crate::failure::Failure;
use crate::open::OpenDevice;
use crate::output;

/// The result of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Message size.
    pub bytes: u32,
    /// Messages on all QPs, in both directions.
    pub iterations: u64,
    /// From the first post to the last completion, at the client.
    pub seconds: f64,
    /// Payload, in both directions.
    pub bits_per_second: f64,
    /// In both directions.
    pub messages_per_second: f64,
    /// Only where latency was measured.
    pub latency: Option<LatencyRow>,
    /// Bytes compared at both ends; only with `--check`.
    pub checked_bytes: Option<u64>,
}

/// Latencies in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Whether these are halves of round trips.
    pub half_round_trip: bool,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
    pub average: f64,
    pub stdev: f64,
}

#[allow(clippy::cast_precision_loss)] // Results have a few digits.
fn real(number: u64) -> f64 {
    number as f64
}

impl Row {
    /// The row of a round in which the two sides did `own` and `peer`. Only sides that tell a time count.
    pub fn new(bytes: u32, own: &Done, peer: &Done) -> Self {
        let sides = [own, peer].into_iter().filter(|side| side.nanos > 0);
        let mut row = Self {
            bytes,
            iterations: 0,
            seconds: real(own.nanos) / 1e9,
            bits_per_second: 0.0,
            messages_per_second: 0.0,
            latency: None,
            checked_bytes: None,
        };
        for side in sides {
            let messages = side.messages.iter().sum::<u64>();
            let rate = real(messages) * 1e9 / real(side.nanos);
            row.iterations += messages;
            row.messages_per_second += rate;
            row.bits_per_second += rate * f64::from(bytes) * 8.0;
        }
        row
    }
}

impl LatencyRow {
    /// The figures of a histogram of round trips.
    pub fn new(latencies: &Latencies, half_round_trip: bool) -> Self {
        let scale = if half_round_trip { 2000.0 } else { 1000.0 };
        let at = |percent| real(latencies.value_at_quantile(percent / 100.0)) / scale;
        Self {
            half_round_trip,
            min: real(latencies.min()) / scale,
            p50: at(50.0),
            p90: at(90.0),
            p99: at(99.0),
            p99_9: at(99.9),
            max: real(latencies.max()) / scale,
            average: latencies.mean() / scale,
            stdev: latencies.stdev() / scale,
        }
    }
}

/// Prints a test as it goes; as JSON, at its end.
#[derive(Debug)]
pub struct Report {
    json: bool,
    gigabits: bool,
    document: Map<String, Value>,
    rows: Vec<Row>,
    latency: bool,
}

const RULE: usize = 108;

impl Report {
    /// For people, or as JSON.
    pub fn new(json: bool, gigabits: bool, plan: &Plan) -> Self {
        let mut document = Map::new();
        document.insert("feroce".into(), json!(env!("CARGO_PKG_VERSION")));
        document.insert("test".into(), json!(plan));
        Self { json, gigabits, document, rows: Vec::new(), latency: plan.latency }
    }

    /// The head of the table. For RoCE: the path MTU, the port, both sides.
    pub fn head(
        &mut self,
        plan: &Plan,
        roce: Option<(u32, &OpenDevice, &Side, &Side)>,
    ) -> Result<(), Failure> {
        if let Some((path_mtu, device, local, remote)) = roce {
            let attributes = device.device.attributes();
            let ends = [
                ("path_mtu", json!(path_mtu)),
                ("port", json!(attributes.port)),
                ("port_reason", json!(attributes.port_reason)),
            ];
            self.document.extend(ends.map(|(name, value)| (name.to_owned(), value)));
            self.document.insert("local".into(), json!(local));
            self.document.insert("remote".into(), json!(remote));
        }
        if self.json {
            return Ok(());
        }
        output::line(&"-".repeat(RULE))?;
        for line in head_lines(plan, roce) {
            output::line(&line)?;
        }
        output::line(&"-".repeat(RULE))?;
        output::line(&self.columns())
    }

    fn columns(&self) -> String {
        let unit = if self.gigabits { "Gb/sec" } else { "MiB/sec" };
        match self.latency {
            true => format!(
                " {:<10} {:<12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
                "#bytes",
                "#iterations",
                "t_min[us]",
                "t_typ[us]",
                "t_max[us]",
                "t_avg[us]",
                "stdev[us]",
                "99%[us]",
                "99.9%[us]"
            ),
            false => format!(
                " {:<10} {:<12} {:>20} {:>16}",
                "#bytes",
                "#iterations",
                format!("BW average[{unit}]"),
                "MsgRate[Mpps]"
            ),
        }
    }

    /// One size.
    pub fn row(&mut self, row: Row) -> Result<(), Failure> {
        let text = self.text(&row);
        self.rows.push(row);
        if self.json { Ok(()) } else { output::line(&text) }
    }

    fn text(&self, row: &Row) -> String {
        let head = format!(" {:<10} {:<12}", row.bytes, row.iterations);
        let tail = match &row.latency {
            Some(l) => {
                let times = [l.min, l.p50, l.max, l.average, l.stdev, l.p99, l.p99_9];
                times.map(|time| format!(" {time:>10.2}")).concat()
            }
            None => {
                let bits = row.bits_per_second;
                let rate = if self.gigabits { bits / 1e9 } else { bits / 8.0 / f64::from(1 << 20) };
                format!(" {rate:>20.2} {:>16.6}", row.messages_per_second / 1e6)
            }
        };
        head + &tail
    }

    /// The end: what was checked, and what the device counted.
    pub fn end(mut self, device: Option<&OpenDevice>) -> Result<(), Failure> {
        let checked: Option<u64> = self.rows.iter().map(|row| row.checked_bytes).sum();
        let counters = device.map(counters).unwrap_or_default();
        let faults = device.and_then(OpenDevice::faults);
        if self.json {
            let faults = faults.map(|f| {
                json!({
                    "frames": f.frames, "lost": f.lost, "duplicated": f.duplicated,
                    "reordered": f.reordered, "corrupted": f.corrupted, "marked": f.marked,
                })
            });
            let rest = [
                ("rows", json!(self.rows)),
                ("counters", Value::Object(counters)),
                ("faults", json!(faults)),
            ];
            self.document.extend(rest.map(|(name, value)| (name.to_owned(), value)));
            return output::json(&self.document);
        }
        output::line(&"-".repeat(RULE))?;
        if let Some(bytes) = checked.filter(|_| !self.rows.is_empty()) {
            output::line(&format!(" data check: {bytes} bytes compared, all as sent"))?;
        }
        if let Some(FaultStats { frames, lost, duplicated, reordered, corrupted, marked }) = faults
        {
            output::line(&format!(
                " faults on {frames} sent frames: {lost} lost, {duplicated} duplicated, {reordered} \
                 reordered, {corrupted} corrupted, {marked} marked"
            ))?;
        }
        let told = counters.iter().filter(|(name, _)| !name.starts_with("port_"));
        let told: Vec<String> = told.map(|(name, value)| format!("{name} {value}")).collect();
        if told.is_empty() {
            Ok(())
        } else {
            output::line(&format!(" counters: {}", told.join(", ")))
        }
    }
}

fn head_lines(plan: &Plan, roce: Option<(u32, &OpenDevice, &Side, &Side)>) -> Vec<String> {
    let kind = match (plan.latency, plan.bidirectional) {
        (true, _) if plan.transport == Transport::Roce && plan.op.is_read_or_atomic() => "latency",
        (true, _) => "latency (half round trip)",
        (false, true) => "bidirectional bandwidth",
        (false, false) => "bandwidth",
    };
    let Some((path_mtu, device, local, remote)) = roce else {
        return vec![format!(" kernel TCP {kind}, one stream, one write per message")];
    };
    let end = |name: &str, side: &Side| {
        let qp = side.qps.first().map(|qp| format!("QPN {:#x} PSN {:#x}", qp.qpn, qp.psn));
        format!(" {name:<7} GID {} {}", side.gid, qp.unwrap_or_default())
    };
    let Plan { qps, tx_depth, inline, .. } = plan;
    let attributes = device.device.attributes();
    vec![
        format!(
            " {} {kind}: {qps} QP, depth {tx_depth}, path MTU {path_mtu}, inline {inline}",
            plan.op.name()
        ),
        format!(" device  {}, {}; {}", device.interface, attributes.port, attributes.port_reason),
        end("local", local),
        end("remote", remote),
    ]
}

/// What the device counted, where it is not zero.
fn counters(device: &OpenDevice) -> Map<String, Value> {
    let counts = Counter::ALL.iter().map(|&counter| (counter, device.device.counter(counter)));
    counts
        .filter(|&(_, count)| count > 0)
        .map(|(counter, count)| (counter.name().to_owned(), json!(counter.shown(count))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_add_up_over_directions_and_idle_sides_do_not_count() {
        let own = Done { messages: vec![500, 500], nanos: 1_000_000_000 };
        let idle = Done { messages: vec![0, 0], nanos: 0 };
        let row = Row::new(1000, &own, &idle);
        assert_eq!((row.iterations, row.seconds), (1000, 1.0));
        assert!((row.bits_per_second - 8e6).abs() < 1.0);
        let peer = Done { messages: vec![1000], nanos: 500_000_000 };
        let row = Row::new(1000, &own, &peer);
        assert_eq!(row.iterations, 2000);
        assert!((row.messages_per_second - 3000.0).abs() < 1e-6);
    }

    #[test]
    fn half_round_trips_are_halves() {
        let mut latencies = super::super::latency::histogram();
        for nanos in 1..=1000 {
            latencies.record(nanos * 1000).unwrap();
        }
        let row = LatencyRow::new(&latencies, true);
        assert!((row.min - 0.5).abs() < 0.01 && (row.p50 - 250.0).abs() < 1.0, "{row:?}");
        assert!((row.p99_9 - 499.5).abs() < 1.0 && (row.max - 500.0).abs() < 1.0, "{row:?}");
        let full = LatencyRow::new(&latencies, false);
        assert!((full.p99 - 990.0).abs() < 2.0, "{full:?}");
    }
}
