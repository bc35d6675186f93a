//! Output of results: rows in the format of perftest, or JSON.

use std::time::Duration;

use feroce_engine::counters::Counter;
use feroce_engine::port::fault::FaultStats;
use serde_json::{Map, Value, json};

use super::message::Side;
use super::plan::{Plan, Transport};
use super::results::Row;
use crate::failure::Failure;
use crate::open::OpenDevice;
use crate::output;

/// Prints rows as they are measured; as JSON, one document at the end.
#[derive(Debug)]
pub struct Report {
    json: bool,
    gigabits: bool,
    document: Map<String, Value>,
    rows: Vec<Row>,
    latency: bool,
}

const RULE: usize = 108;
/// QPs of each side in the JSON: the first of them.
const QPS_SHOWN: usize = 100;

impl Report {
    /// A report as text or JSON.
    pub fn new(json: bool, gigabits: bool, plan: &Plan) -> Self {
        let mut document = Map::new();
        document.insert("feroce".into(), json!(env!("CARGO_PKG_VERSION")));
        document.insert("test".into(), json!(plan));
        Self { json, gigabits, document, rows: Vec::new(), latency: plan.latency }
    }

    /// Adds the times for creating and for connecting the QPs and the buffers.
    pub fn setup(&mut self, [created, connected]: [Duration; 2]) {
        let (create, connect) = (created.as_secs_f64(), connected.as_secs_f64());
        let times = json!({ "create_seconds": create, "connect_seconds": connect });
        self.document.insert("setup".into(), times);
    }

    /// Prints the head of the table. For RoCE: the path MTU, the device, both sides.
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
            let shown = |side: &Side| {
                let qps = side.qps.iter().take(QPS_SHOWN).copied().collect();
                json!(Side { qps, ..side.clone() })
            };
            self.document.insert("local".into(), shown(local));
            self.document.insert("remote".into(), shown(remote));
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

    /// Adds the row of a message size.
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

    /// Prints the end of the report: bytes checked, and counters of the device.
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
            output::line(&format!(" data check: {bytes} bytes compared, all correct"))?;
        }
        if let Some(FaultStats { frames, lost, duplicated, reordered, corrupted, marked }) = faults
        {
            output::line(&format!(
                " faults on {frames} sent frames: {lost} lost, {duplicated} duplicated, \
                 {reordered} reordered, {corrupted} corrupted, {marked} marked"
            ))?;
        }
        let detail = counters.iter().filter(|(name, _)| !name.starts_with("port_"));
        let detail: Vec<String> = detail.map(|(name, value)| format!("{name} {value}")).collect();
        if detail.is_empty() {
            Ok(())
        } else {
            output::line(&format!(" counters: {}", detail.join(", ")))
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

/// The device's counters that are not zero.
fn counters(device: &OpenDevice) -> Map<String, Value> {
    let counts = Counter::ALL.iter().map(|&counter| (counter, device.device.counter(counter)));
    counts
        .filter(|&(_, count)| count > 0)
        .map(|(counter, count)| (counter.name().to_owned(), json!(counter.shown(count))))
        .collect()
}
