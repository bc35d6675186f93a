//! What a run has measured: flows, ports, queues, and samples of rates over time.

pub mod histogram;

use super::Fabric;
use super::config::FabricConfig;
use super::deadlock::Deadlock;
use super::events::Event;
use super::host::sender::SenderCounts;
use super::port::PortCounts;
use super::time::Time;
use histogram::TimeHistogram;

/// A flow at the time of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowSample {
    /// Payload bytes that have arrived since the beginning.
    pub delivered: u64,
    /// The rate that its controller allows, in bits per second.
    pub rate: u64,
    /// DCQCN's alpha in units of 2^-31.
    pub alpha: u32,
}

/// What was seen at regular times.
#[derive(Debug, Clone)]
pub struct Samples {
    every: Time,
    keep: bool,
    /// When.
    pub times: Vec<Time>,
    /// Of every flow, one time after the other; of none if there are more than [`MOST_FLOWS`](Self::MOST_FLOWS).
    pub flows: Vec<FlowSample>,
    /// Of every watched queue, its bytes, one time after the other.
    pub queues: Vec<u64>,
    watched: Vec<u32>,
    /// Sums of alphas after the warm-up, and how many.
    alphas: Vec<(u64, u64)>,
}

impl Samples {
    /// Most flows that are looked at one by one.
    pub const MOST_FLOWS: usize = 1000;

    /// How many flows there are samples of.
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
                few @ ..=Self::MOST_FLOWS => vec![(0, 0); few],
                _ => Vec::new(),
            },
        }
    }

    pub(super) fn add_queue(&mut self, port: u32) {
        self.watched.push(port);
    }
}

/// A flow's figures. Bytes and rates count from the end of the warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowResult {
    /// Which traffic it belongs to.
    pub group: u32,
    /// Which closed loop of it.
    pub chain: Option<u32>,
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// When it began, if it did.
    pub started: Option<Time>,
    /// When the last byte that it sent was acknowledged.
    pub ended: Option<Time>,
    /// It was stopped before it had sent all.
    pub is_cut: bool,
    /// Payload bytes to send; `None` for no end.
    pub size: Option<u64>,
    /// How long these would take alone.
    pub alone: Option<Time>,
    /// Payload bytes that arrived.
    pub delivered: u64,
    /// Bits of payload per second; `None` if all had arrived before figures counted, or it has not begun.
    pub goodput: Option<f64>,
    /// DCQCN's mean alpha.
    pub alpha: Option<f64>,
    /// What the sender counted, of the whole run.
    pub sender: SenderCounts,
    /// Marked packets that arrived.
    pub marked: u64,
    /// CNPs sent for it.
    pub cnps: u64,
    /// Packets that arrived after a gap.
    pub out_of_sequence: u64,
}

impl FlowResult {
    /// How long it took, if all was sent.
    pub fn completion(&self) -> Option<Time> {
        let ended = self.ended.filter(|_| !self.is_cut)?;
        Some(ended - self.started?)
    }

    /// How many times as long it took as it would have alone.
    pub fn slowdown(&self) -> Option<f64> {
        Some(self.completion()?.seconds() / self.alone?.seconds())
    }
}

/// A port's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct PortResult {
    /// Its node's number, hosts first.
    pub node: usize,
    /// The node at the other end.
    pub peer: usize,
    /// Of the whole run.
    pub counts: PortCounts,
    /// Bits per second on the line out of it, with preambles and gaps, after the warm-up.
    pub wire: f64,
    /// How long its priorities were paused, added up.
    pub paused: Time,
}

/// A watched queue's figures after the warm-up.
#[derive(Debug, Clone)]
pub struct QueueResult {
    /// The node's number.
    pub node: usize,
    /// The node at the other end of the line.
    pub peer: usize,
    /// Its length over time.
    pub lengths: TimeHistogram,
}

/// All figures of a run.
#[derive(Debug, Clone)]
pub struct Results {
    /// From when figures count.
    pub counted_from: Time,
    /// When it ended.
    pub ended: Time,
    /// Events that happened.
    pub events: u64,
    /// Frames that reached the end of a line.
    pub hops: u64,
    /// Flows.
    pub flows: Vec<FlowResult>,
    /// Ports.
    pub ports: Vec<PortResult>,
    /// Queues.
    pub queues: Vec<QueueResult>,
    /// Packets that hosts dropped because of a wrong ICRC.
    pub corrupted: u64,
    /// Most bytes that each switch's buffer held.
    pub buffers: Vec<u64>,
    /// Queues that wait for each other for ever.
    pub deadlock: Option<Deadlock>,
    /// Samples.
    pub samples: Samples,
}

impl Results {
    /// What may not happen in a lossless network, and has: a line for each kind.
    pub fn losses(&self) -> Vec<String> {
        let ports = |count: fn(&PortCounts) -> u64| {
            self.ports.iter().map(|p| count(&p.counts)).sum::<u64>()
        };
        let flows = |count: fn(&SenderCounts) -> u64| {
            self.flows.iter().map(|f| count(&f.sender)).sum::<u64>()
        };
        let kinds = [
            (ports(|c| c.dropped), "packets dropped at switches"),
            (ports(|c| c.lost), "packets lost on lines"),
            (self.corrupted, "packets with a wrong ICRC"),
            (flows(|c| c.naks), "NAKs"),
            (flows(|c| c.timeouts), "time-outs"),
            (flows(|c| c.failed), "QPs in error"),
        ];
        kinds.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect()
    }

    /// Flows of `group` that began, have an end and did not reach it: what is said of how long flows took leaves them
    /// out. `None` for all groups.
    pub fn unfinished(&self, group: Option<u32>) -> usize {
        let is_cut = |flow: &&FlowResult| {
            group.is_none_or(|group| flow.group == group)
                && (flow.started.is_some() && flow.size.is_some())
                && (flow.ended.is_none() || flow.is_cut)
        };
        self.flows.iter().filter(is_cut).count()
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
        self.look_for_deadlock();
        self.events.push(self.now + self.samples.every, Event::Sample);
    }

    /// Figures count from now on.
    pub(super) fn warm(&mut self) {
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

    /// All figures until now.
    pub fn results(mut self) -> Results {
        self.look_for_deadlock();
        self.settle_engines();
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
            wire: per_second(port.counts.line_bytes - port.counts_before.line_bytes, now - warmup),
            paused: port.pauses.total(now),
        });
        Results {
            counted_from: warmup,
            ended: now,
            events: self.happened,
            hops: self.hops,
            ports: ports.collect(),
            queues,
            flows: self.flow_results(),
            corrupted: self.hosts.iter().map(|host| host.corrupted).sum(),
            buffers: self.switches.iter().map(|switch| switch.buffer.most_used()).collect(),
            deadlock: self.detector.into_found(),
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
                    is_cut: sender.is_cut,
                    size,
                    alone: messages.map(|messages| self.time_alone(flow, messages)),
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

/// Bits per second.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn per_second(bytes: u64, span: Time) -> f64 {
    if span == Time::ZERO { 0.0 } else { bytes as f64 * 8.0 / span.seconds() }
}
