//! Measurements of a run: flows, ports, queues, and samples of rates over time.

pub mod histogram;
pub mod ranks;

use super::Fabric;
use super::config::FabricConfig;
use super::deadlock::Deadlock;
use super::events::Event;
use super::host::sender::SenderCounts;
use super::port::PortCounts;
use super::steps::StepResult;
use super::time::Time;
use histogram::TimeHistogram;

/// State of a flow at the time of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowSample {
    /// Payload bytes delivered since the start.
    pub delivered: u64,
    /// Rate allowed by the flow's controller, in bits per second.
    pub rate: u64,
    /// DCQCN's alpha in units of 2^-31.
    pub alpha: u32,
}

/// Samples taken at regular intervals.
#[derive(Debug, Clone)]
pub struct Samples {
    every: Time,
    keep: bool,
    /// Times of the samples.
    pub times: Vec<Time>,
    /// For each time, one sample of every flow; empty if there are more than
    /// [`MAX_FLOWS`](Self::MAX_FLOWS) flows.
    pub flows: Vec<FlowSample>,
    /// For each time, the length in bytes of every watched queue.
    pub queues: Vec<u64>,
    watched: Vec<u32>,
    /// For each flow, the sum and the number of its alphas after the warm-up.
    alphas: Vec<(u64, u64)>,
}

impl Samples {
    /// Up to this number of flows, each flow is sampled.
    pub const MAX_FLOWS: usize = 1000;

    /// Number of flows that are sampled.
    pub const fn flows_per_time(&self) -> usize {
        self.alphas.len()
    }

    pub(super) fn new(config: &FabricConfig) -> Self {
        Self {
            every: config.sample,
            keep: config.keep_samples,
            times: Vec::new(),
            flows: Vec::new(),
            queues: Vec::new(),
            watched: Vec::new(),
            alphas: match config.flows.len() {
                few @ ..=Self::MAX_FLOWS => vec![(0, 0); few],
                _ => Vec::new(),
            },
        }
    }

    pub(super) fn add_queue(&mut self, port: u32) {
        self.watched.push(port);
    }
}

/// What of a flow waits for other flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Its start.
    Start,
    /// Each message, and perhaps its start.
    Messages,
}

/// Results of a flow. `delivered`, `goodput` and `alpha` count from the end of the warm-up, the
/// counters from the start of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowResult {
    /// Traffic group of the flow.
    pub group: u32,
    /// Number of the flow's closed loop within its traffic group, in which each flow starts when
    /// the previous one has ended; `None` for a flow outside a loop.
    pub chain: Option<u32>,
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Start time; `None` if the flow did not start.
    pub started: Option<Time>,
    /// Time at which the last byte sent was acknowledged.
    pub ended: Option<Time>,
    /// True if the flow was stopped before it had sent everything.
    pub is_truncated: bool,
    /// Time at which the last byte arrived.
    pub arrived: Option<Time>,
    /// What waits for other flows, if anything does.
    pub waits: Option<Wait>,
    /// Payload bytes to send; `None` for an endless flow.
    pub size: Option<u64>,
    /// Standalone completion time: without other traffic. `None` for an endless flow and for a flow
    /// whose messages wait for others.
    pub standalone: Option<Time>,
    /// Payload bytes delivered.
    pub delivered: u64,
    /// Payload bits per second; `None` if everything was delivered before the end of the warm-up,
    /// or the flow has not started.
    pub goodput: Option<f64>,
    /// Mean alpha of DCQCN.
    pub alpha: Option<f64>,
    /// Counters of the sender.
    pub sender: SenderCounts,
    /// Marked packets received.
    pub marked: u64,
    /// CNPs sent by the receiver.
    pub cnps: u64,
    /// Packets received out of sequence.
    pub out_of_sequence: u64,
}

impl FlowResult {
    /// Flow completion time, if everything was sent.
    pub fn completion(&self) -> Option<Time> {
        let ended = self.ended.filter(|_| !self.is_truncated)?;
        Some(ended - self.started?)
    }

    /// Completion time divided by the standalone completion time.
    pub fn slowdown(&self) -> Option<f64> {
        Some(self.completion()?.seconds() / self.standalone?.seconds())
    }
}

/// Results of a port.
#[derive(Debug, Clone, PartialEq)]
pub struct PortResult {
    /// Number of its node; hosts come first.
    pub node: usize,
    /// Node at the other end of the link.
    pub peer: usize,
    /// Counters over the whole run.
    pub counts: PortCounts,
    /// Bits per second on the outgoing link, including preambles and inter-frame gaps, after the
    /// warm-up.
    pub wire: f64,
    /// Pause time over the whole run, summed over the priorities.
    pub paused: Time,
}

/// Results of a watched queue after the warm-up.
#[derive(Debug, Clone)]
pub struct QueueResult {
    /// Number of its node.
    pub node: usize,
    /// Node at the other end of the link.
    pub peer: usize,
    /// Queue length over time.
    pub lengths: TimeHistogram,
}

/// All results of a run.
#[derive(Debug, Clone)]
pub struct Results {
    /// End of the warm-up.
    pub counted_from: Time,
    /// End of the run.
    pub ended: Time,
    /// Events processed.
    pub events: u64,
    /// Frames that reached the end of a link.
    pub hops: u64,
    /// Flows.
    pub flows: Vec<FlowResult>,
    /// Ports.
    pub ports: Vec<PortResult>,
    /// Queues.
    pub queues: Vec<QueueResult>,
    /// Packets that hosts dropped because of a wrong ICRC.
    pub corrupted: u64,
    /// Peak buffer usage of each switch, in bytes.
    pub buffers: Vec<u64>,
    /// The deadlock, if one was found.
    pub deadlock: Option<Deadlock>,
    /// What flows waited for.
    pub steps: Vec<StepResult>,
    /// Samples.
    pub samples: Samples,
}

impl Results {
    /// Packets dropped at switches, lost on links, or dropped by hosts because of a wrong ICRC.
    pub fn lost_packets(&self) -> u64 {
        let ports = self.ports.iter().map(|port| port.counts.dropped + port.counts.lost);
        ports.sum::<u64>() + self.corrupted
    }

    /// Events that must not happen in a lossless network, one line for each kind.
    pub fn violations(&self) -> Vec<String> {
        let ports = |count: fn(&PortCounts) -> u64| {
            self.ports.iter().map(|p| count(&p.counts)).sum::<u64>()
        };
        let flows = |count: fn(&SenderCounts) -> u64| {
            self.flows.iter().map(|f| count(&f.sender)).sum::<u64>()
        };
        let kinds = [
            (ports(|c| c.dropped), "packets dropped at switches"),
            (ports(|c| c.lost), "packets lost on links"),
            (self.corrupted, "packets with a wrong ICRC"),
            (flows(|c| c.naks), "NAKs"),
            (flows(|c| c.timeouts), "timeouts"),
            (flows(|c| c.failed), "QPs in error"),
        ];
        kinds.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect()
    }

    /// Number of flows of `group` that have an end but did not reach it: flows that started, and
    /// flows that wait for others, whether they started or not. Completion times do not include
    /// these flows. `None` stands for all groups.
    pub fn unfinished(&self, group: Option<u32>) -> usize {
        let is_unfinished = |flow: &&FlowResult| {
            group.is_none_or(|group| flow.group == group)
                && ((flow.started.is_some() || flow.waits.is_some()) && flow.size.is_some())
                && (flow.ended.is_none() || flow.is_truncated)
        };
        self.flows.iter().filter(is_unfinished).count()
    }
}

impl Fabric {
    pub(super) fn sample(&mut self) {
        let (now, counts) = (self.now.instant(), self.now >= self.warmup);
        let flows = self.flows.iter_mut().zip(&mut self.samples.alphas);
        for (number, (flow, sum)) in flows.enumerate() {
            let (rate, alpha) =
                self.engines.rate(flow.config.from, number, self.now).unwrap_or_else(|| {
                    let rate = flow.sender.rate(now).as_bps();
                    (rate, flow.sender.alpha().map_or(0, |alpha| alpha.units()))
                });
            if counts && flow.sender.started.is_some() && flow.sender.ended.is_none() {
                *sum = (sum.0 + u64::from(alpha), sum.1 + 1);
            }
            if self.samples.keep {
                self.samples.flows.push(FlowSample {
                    delivered: flow.receiver.delivered,
                    rate,
                    alpha,
                });
            }
        }
        if self.samples.keep {
            self.samples.times.push(self.now);
            for &port in &self.samples.watched {
                let watch = self.ports[port as usize].watch.as_ref();
                self.samples.queues.push(watch.map_or(0, |watch| watch.bytes()));
            }
        }
        self.detect_deadlock();
        self.events.push(self.now + self.samples.every, Event::Sample);
    }

    /// Ends the warm-up: measurements count from now on.
    pub(super) fn end_warmup(&mut self) {
        for port in &mut self.ports {
            port.counts_before = port.counts;
            if let Some(watch) = &mut port.watch {
                watch.set(watch.bytes(), self.now);
                watch.restart(self.now);
            }
        }
        for flow in &mut self.flows {
            flow.receiver.delivered_before = flow.receiver.delivered;
        }
    }

    /// All results up to now.
    pub fn results(mut self) -> Results {
        self.detect_deadlock();
        self.drain_engines();
        let (now, warmup) = (self.now, self.warmup);
        let owners: Vec<usize> =
            (0..).take(self.ports.len()).map(|port| self.node_of(port)).collect();
        let queues = self.samples.watched.iter().filter_map(|&port| {
            let watched = &mut self.ports[port as usize];
            let (peer, watch) = (owners[watched.peer as usize], watched.watch.as_mut()?);
            watch.set(watch.bytes(), now);
            Some(QueueResult {
                node: owners[port as usize],
                peer,
                lengths: watch.histogram.clone(),
            })
        });
        let queues = queues.collect();
        let ports = self.ports.iter_mut().zip(&owners).map(|(port, &node)| PortResult {
            node,
            peer: owners[port.peer as usize],
            counts: port.counts,
            wire: per_second(port.counts.wire_bytes - port.counts_before.wire_bytes, now - warmup),
            paused: port.pauses.total(now),
        });
        Results {
            counted_from: warmup,
            ended: now,
            events: self.processed,
            hops: self.hops,
            ports: ports.collect(),
            queues,
            flows: self.flow_results(),
            corrupted: self.hosts.iter().map(|host| host.corrupted).sum(),
            buffers: self.switches.iter().map(|switch| switch.buffer.peak_used()).collect(),
            deadlock: self.detector.into_found(),
            steps: self.steps.results(),
            samples: self.samples,
        }
    }

    fn flow_results(&self) -> Vec<FlowResult> {
        let flows = self.flows.iter().enumerate();
        flows
            .map(|(number, flow)| {
                let alphas = self.samples.alphas.get(number);
                let (sender, receiver) = (&flow.sender, &flow.receiver);
                let delivered = receiver.delivered - receiver.delivered_before;
                let from = sender.started.unwrap_or(self.now).max(self.warmup);
                let until = sender.ended.unwrap_or(self.now).min(self.now);
                let messages = flow.config.messages.map(u64::from);
                let size = messages.map(|messages| messages.saturating_mul(flow.config.message));
                let counts = until > from && size.is_none_or(|s| receiver.delivered_before < s);
                FlowResult {
                    group: flow.config.group,
                    chain: flow.config.chain,
                    from: flow.config.from,
                    to: flow.config.to,
                    started: sender.started,
                    ended: sender.ended,
                    is_truncated: sender.is_truncated,
                    arrived: receiver.completed,
                    waits: match (flow.config.released, flow.config.is_held) {
                        (Some(_), _) => Some(Wait::Messages),
                        (None, true) => Some(Wait::Start),
                        (None, false) => None,
                    },
                    size,
                    standalone: messages
                        .filter(|_| flow.config.released.is_none())
                        .map(|messages| self.standalone_fct(flow, messages)),
                    delivered,
                    goodput: counts.then(|| per_second(delivered, until - from)),
                    alpha: sender
                        .alpha()
                        .zip(alphas)
                        .map(|(_, &(sum, count))| mean_alpha(sum, count)),
                    sender: sender.counts,
                    marked: receiver.marked,
                    cnps: receiver.cnps,
                    out_of_sequence: receiver.out_of_sequence,
                }
            })
            .collect()
    }
}

#[allow(clippy::cast_precision_loss)]
fn mean_alpha(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 / f64::from(1_u32 << 31) }
}

/// Converts bytes and a time span to bits per second.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn per_second(bytes: u64, span: Time) -> f64 {
    if span == Time::ZERO { 0.0 } else { bytes as f64 * 8.0 / span.seconds() }
}
