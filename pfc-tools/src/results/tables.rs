//! The result tables of a run. Each row holds case and seed, so that files of several runs can be
//! concatenated.

use crate::fabric::measure::{Results, Wait};
use crate::fabric::scenario::{Case, Kind};
use crate::fabric::time::Time;
use crate::run::{CaseResult, GateResult, Verdict};

/// The type of a column. Any value may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// Text.
    Text,
    /// Unsigned integers.
    Count,
    /// Real numbers.
    Real,
    /// Booleans.
    Flag,
}

/// A value in a column of the same type.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// An unsigned integer.
    Count(u64),
    /// A real number.
    Real(f64),
    /// A boolean.
    Flag(bool),
    /// A missing value, in a column of any type.
    Missing,
}

/// Names and types of the columns.
pub type Columns = &'static [(&'static str, Type)];

/// The table that a row belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // Named like the tables.
pub enum Table {
    Gates,
    Runs,
    Flows,
    Ranks,
    Ports,
    Queues,
    Lengths,
    FlowSamples,
    QueueSamples,
}

use Type::{Count, Flag, Real, Text};

/// All tables: file name and columns.
pub const TABLES: [(Table, &str, Columns); 9] = [
    (
        Table::Gates,
        "gates",
        &[
            ("case", Text),
            ("gate", Text),
            ("kind", Text),
            ("reproduces", Text),
            ("value", Real),
            ("published", Real),
            ("ns3", Real),
            ("least", Real),
            ("most", Real),
            ("holds", Flag),
            ("verdict", Text),
            ("unfinished", Count),
            ("explained", Text),
        ],
    ),
    (
        Table::Runs,
        "runs",
        &[
            ("case", Text),
            ("variant", Text),
            ("seed", Count),
            ("ended_ns", Real),
            ("events", Count),
            ("packet_hops", Count),
            ("largest_buffer_bytes", Count),
            ("unfinished_flows", Count),
            ("losses", Text),
        ],
    ),
    (
        Table::Flows,
        "flows",
        &[
            ("case", Text),
            ("seed", Count),
            ("flow", Count),
            ("traffic", Text),
            ("from", Text),
            ("to", Text),
            ("waits", Text),
            ("started_ns", Real),
            ("ended_ns", Real),
            ("size_bytes", Count),
            ("slowdown", Real),
            ("delivered_bytes", Count),
            ("goodput_bps", Real),
            ("mean_alpha", Real),
            ("packets", Count),
            ("retransmitted", Count),
            ("marked", Count),
            ("cnps_sent", Count),
            ("cnps_handled", Count),
            ("naks", Count),
            ("timeouts", Count),
            ("failed", Count),
        ],
    ),
    (
        Table::Ranks,
        "ranks",
        &[
            ("case", Text),
            ("seed", Count),
            ("traffic", Text),
            ("rank", Count),
            ("host", Text),
            ("completion_us", Real),
        ],
    ),
    (
        Table::Ports,
        "ports",
        &[
            ("case", Text),
            ("seed", Count),
            ("node", Text),
            ("peer", Text),
            ("frames", Count),
            ("line_bytes", Count),
            ("wire_bps", Real),
            ("marked", Count),
            ("dropped", Count),
            ("headroom", Count),
            ("pauses_sent", Count),
            ("resumes_sent", Count),
            ("pauses_received", Count),
            ("paused_ns", Real),
            ("lost", Count),
            ("corrupted", Count),
        ],
    ),
    (
        Table::Queues,
        "queues",
        &[
            ("case", Text),
            ("seed", Count),
            ("node", Text),
            ("peer", Text),
            ("mean_bytes", Real),
            ("p50_bytes", Count),
            ("p95_bytes", Count),
            ("p99_bytes", Count),
            ("max_bytes", Count),
        ],
    ),
    (
        Table::Lengths,
        "queue_lengths",
        &[
            ("case", Text),
            ("seed", Count),
            ("node", Text),
            ("peer", Text),
            ("part_of_time", Real),
            ("bytes", Count),
        ],
    ),
    (
        Table::FlowSamples,
        "flow_samples",
        &[
            ("case", Text),
            ("seed", Count),
            ("time_ns", Real),
            ("flow", Count),
            ("delivered_bytes", Count),
            ("rate_bps", Count),
            ("alpha", Real),
        ],
    ),
    (
        Table::QueueSamples,
        "queue_samples",
        &[
            ("case", Text),
            ("seed", Count),
            ("time_ns", Real),
            ("node", Text),
            ("peer", Text),
            ("bytes", Count),
        ],
    ),
];

/// Step of a queue's cumulative distribution, in thousandths of the time.
const LENGTH_STEP: usize = 5;

/// Receives rows.
pub type Sink<'a> = dyn FnMut(Table, Vec<Value>) -> std::io::Result<()> + 'a;

/// Passes every row of a case to `sink`.
///
/// # Errors
/// Errors of `sink`.
pub fn rows(case: &Case, case_result: &CaseResult, sink: &mut Sink<'_>) -> std::io::Result<()> {
    for gate_result in &case_result.gate_results {
        sink(Table::Gates, gate(case, gate_result))?;
    }
    if case.lossless {
        sink(Table::Gates, lossless(case, case_result))?;
    }
    for (&seed, results) in case.seeds.iter().zip(&case_result.results) {
        let run = Run { case, seed, results };
        sink(Table::Runs, run.whole())?;
        run.flows(sink)?;
        run.ranks(sink)?;
        run.ports(sink)?;
        run.queues(sink)?;
        run.samples(sink)?;
    }
    Ok(())
}

fn gate(case: &Case, gate_result: &GateResult) -> Vec<Value> {
    let GateResult { gate, value, least, most, unfinished, verdict, holds } = gate_result;
    vec![
        case.name.as_str().into(),
        gate.name.as_str().into(),
        gate.kind.map_or(Value::Missing, |kind| kind.name().into()),
        gate.reproduces.as_deref().map_or(Value::Missing, Value::from),
        (*value).into(),
        gate.published.into(),
        gate.ns3.into(),
        (*least).into(),
        (*most).into(),
        Value::Flag(*holds),
        verdict.name().into(),
        unfinished.map_or(Value::Missing, |flows| Value::Count(flows as u64)),
        gate.explained.as_ref().map_or(Value::Missing, |miss| miss.why.as_str().into()),
    ]
}

/// Losslessness as a gate like the others. The value is the number of lost packets; without lost
/// packets, the number of other violations (NAKs, timeouts, failed QPs, a deadlock).
#[allow(clippy::cast_precision_loss)] // Counts below 2^53.
fn lossless(case: &Case, case_result: &CaseResult) -> Vec<Value> {
    let violations = case_result.violations.len() as u64;
    let lost: u64 = case_result.results.iter().map(Results::lost_packets).sum();
    let value = if lost > 0 { lost } else { violations };
    let verdict = if violations == 0 { Verdict::Holds } else { Verdict::Fails };
    vec![
        case.name.as_str().into(),
        "lost packets (lossless network)".into(),
        Kind::Invariant.name().into(),
        Value::Missing,
        Value::Real(value as f64),
        Value::Missing,
        Value::Missing,
        Value::Missing,
        Value::Real(0.0),
        Value::Flag(violations == 0),
        verdict.name().into(),
        Value::Missing,
        Value::Missing,
    ]
}

/// One run of a case.
struct Run<'a> {
    case: &'a Case,
    seed: u64,
    results: &'a Results,
}

impl Run<'_> {
    /// Prepends case and seed to `values`.
    fn row(&self, values: impl IntoIterator<Item = Value>) -> Vec<Value> {
        let head = [self.case.name.as_str().into(), Value::Count(self.seed)];
        head.into_iter().chain(values).collect()
    }

    fn name(&self, node: usize) -> Value {
        self.case.network().name(node).into()
    }

    fn whole(&self) -> Vec<Value> {
        let Results { ended, events, hops, buffers, .. } = self.results;
        let largest = buffers.iter().copied().max().unwrap_or(0);
        let losses = self.results.violations().join("; ");
        vec![
            self.case.name.as_str().into(),
            self.case.variant.as_deref().map_or(Value::Missing, Value::from),
            Value::Count(self.seed),
            nanos(*ended),
            Value::Count(*events),
            Value::Count(*hops),
            Value::Count(largest),
            Value::Count(self.results.unfinished(None) as u64),
            Value::Text(losses),
        ]
    }

    fn flows(&self, sink: &mut Sink<'_>) -> std::io::Result<()> {
        for (number, flow) in (0..).zip(&self.results.flows) {
            let values = [
                Value::Count(number),
                self.case.groups[flow.group as usize].as_str().into(),
                self.name(flow.from as usize),
                self.name(flow.to as usize),
                match flow.waits {
                    None => Value::Missing,
                    Some(Wait::Start) => "start".into(),
                    Some(Wait::Messages) => "messages".into(),
                },
                flow.started.map_or(Value::Missing, nanos),
                flow.ended.map_or(Value::Missing, nanos),
                flow.size.map_or(Value::Missing, Value::Count),
                flow.slowdown().into(),
                Value::Count(flow.delivered),
                flow.goodput.into(),
                flow.alpha.into(),
                Value::Count(flow.sender.packets),
                Value::Count(flow.sender.retransmitted),
                Value::Count(flow.marked),
                Value::Count(flow.cnps),
                Value::Count(flow.sender.cnps),
                Value::Count(flow.sender.naks),
                Value::Count(flow.sender.timeouts),
                Value::Count(flow.sender.failed),
            ];
            sink(Table::Flows, self.row(values))?;
        }
        Ok(())
    }

    /// The ranks of the collectives.
    fn ranks(&self, sink: &mut Sink<'_>) -> std::io::Result<()> {
        for (group, name, hosts) in self.case.collectives() {
            let ranks = self.results.ranks(Some(group));
            for (number, &host) in (0..).zip(hosts) {
                let own = ranks.iter().find(|rank| rank.host == host);
                let completion = own.and_then(|rank| rank.completion);
                let values = [
                    name.into(),
                    Value::Count(number),
                    self.name(host as usize),
                    completion.map(|time| time.seconds() * 1e6).into(),
                ];
                sink(Table::Ranks, self.row(values))?;
            }
        }
        Ok(())
    }

    fn ports(&self, sink: &mut Sink<'_>) -> std::io::Result<()> {
        for port in &self.results.ports {
            let counts = &port.counts;
            let values = [
                self.name(port.node),
                self.name(port.peer),
                Value::Count(counts.frames),
                Value::Count(counts.wire_bytes),
                Value::Real(port.wire),
                Value::Count(counts.marked),
                Value::Count(counts.dropped),
                Value::Count(counts.headroom),
                Value::Count(counts.pauses_sent),
                Value::Count(counts.resumes_sent),
                Value::Count(counts.pauses_received),
                nanos(port.paused),
                Value::Count(counts.lost),
                Value::Count(counts.corrupted),
            ];
            sink(Table::Ports, self.row(values))?;
        }
        Ok(())
    }

    fn queues(&self, sink: &mut Sink<'_>) -> std::io::Result<()> {
        for queue in &self.results.queues {
            let (node, peer) = (self.name(queue.node), self.name(queue.peer));
            let lengths = &queue.lengths;
            let quantiles =
                [500, 950, 990].map(|permille| Value::Count(lengths.quantile(permille)));
            let ends = [node.clone(), peer.clone(), Value::Real(lengths.mean())];
            let values = ends.into_iter().chain(quantiles).chain([Value::Count(lengths.max())]);
            sink(Table::Queues, self.row(values))?;
            for permille in (0..=1000_u16).step_by(LENGTH_STEP) {
                let part = Value::Real(f64::from(permille) / 1000.0);
                let bytes = Value::Count(lengths.quantile(u64::from(permille)));
                sink(Table::Lengths, self.row([node.clone(), peer.clone(), part, bytes]))?;
            }
        }
        Ok(())
    }

    fn samples(&self, sink: &mut Sink<'_>) -> std::io::Result<()> {
        let samples = &self.results.samples;
        let (flows, queues) = (samples.flows_per_time(), self.results.queues.len());
        for (number, &at) in samples.times.iter().enumerate() {
            for (flow, sample) in (0..).zip(&samples.flows[number * flows..(number + 1) * flows]) {
                let values = [
                    nanos(at),
                    Value::Count(flow),
                    Value::Count(sample.delivered),
                    Value::Count(sample.rate),
                    Value::Real(f64::from(sample.alpha) / f64::from(1_u32 << 31)),
                ];
                sink(Table::FlowSamples, self.row(values))?;
            }
            for (queue, &bytes) in
                self.results.queues.iter().zip(&samples.queues[number * queues..])
            {
                let (node, peer) = (self.name(queue.node), self.name(queue.peer));
                sink(Table::QueueSamples, self.row([nanos(at), node, peer, Value::Count(bytes)]))?;
            }
        }
        Ok(())
    }
}

/// Nanoseconds with a fraction.
#[allow(clippy::cast_precision_loss)] // Runs are shorter than 2^53 ps.
fn nanos(time: Time) -> Value {
    Value::Real(time.0 as f64 / 1000.0)
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Option<f64>> for Value {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::Missing, Self::Real)
    }
}
