//! Builds a network at time zero from a configuration.

use std::collections::BTreeMap;

use feroce_congestion::params::CnpScope;
use feroce_congestion::{Duration, Instant, NotificationPoint, Path, Red};
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rand_xoshiro::{SplitMix64, Xoshiro128PlusPlus};

use super::Fabric;
use super::config::{ConfigError, FabricConfig, FlowConfig, Link, SwitchConfig};
use super::deadlock::Detector;
use super::engine::{self, Engines};
use super::error_model::LinkErrors;
use super::events::{Event, Events};
use super::external::ExternalConfig;
use super::host::receiver::{Notifier, Receiver};
use super::host::sender::Sender;
use super::host::{Flow, Host};
use super::measure::Samples;
use super::packet::Packets;
use super::port::{Node, Port, QueueMonitor};
use super::routing::{mix, routes, wiring};
use super::steps::Steps;
use super::switch::Switch;
use super::switch::buffer::{BufferConfig, SharedBuffer};
use super::telemetry::Telemetry;
use super::time::Time;

/// The component of a network that a random generator belongs to.
#[derive(Clone, Copy)]
enum Part {
    Routes,
    Marking,
    Faults,
}

/// Derives the seed of one component of a run. All components of a run have different seeds: the
/// mixed value holds number and kind in separate bits, and SplitMix64 is a bijection. Components of
/// the same kind also differ between runs with seeds below 256, the usual seeds of `repeat`. With
/// larger seeds, switch 1 of seed 0 draws the same numbers as switch 0 of seed 256. Mixing twice
/// would avoid this, but would change every result published with its seed.
fn seed_of(seed: u64, part: Part, number: u64) -> u64 {
    SplitMix64::seed_from_u64(seed ^ (number << 8 | part as u64)).next_u64()
}

/// Checks that the run measures something, that every packet takes time, and that each flow starts
/// before it stops.
fn check_times(config: &FabricConfig) -> Result<(), ConfigError> {
    if config.warmup >= config.duration {
        let message = "the warm-up is as long as the run, so nothing is measured";
        return Err(ConfigError::about("warmup")(message));
    }
    let packet = &config.packet;
    let shortest = packet.control.min(packet.headers + 1) + packet.gap;
    if config.network.links.iter().any(|link| link.rate.time_of(shortest) == Time::ZERO) {
        let message =
            format!("a packet of {shortest} bytes takes no time, so the run would not end");
        return Err(ConfigError::about("topology.rate")(message));
    }
    let name = |flow: &FlowConfig| {
        let name = |host: u32| config.network.name(host as usize);
        format!("the flow from {} to {}", name(flow.from), name(flow.to))
    };
    match config.flows.iter().find(|flow| flow.stop <= flow.start && !flow.is_held) {
        Some(flow) => {
            Err(ConfigError::of_flow(flow, format!("{} stops before it starts", name(flow))))
        }
        None => Ok(()),
    }
}

impl Fabric {
    /// Builds the network of `config` at time zero.
    ///
    /// # Errors
    /// Parts of the configuration that do not fit together: a buffer smaller than its headroom, a
    /// host without a link, a flow without a path, a queue that does not exist. Also system errors
    /// when engine hosts are opened.
    pub fn new(config: &FabricConfig) -> Result<Self, ConfigError> {
        let mut fabric = Self::without_engines(config)?;
        fabric.open_engines(config)?;
        Ok(fabric)
    }

    /// Checks that the parts of `config` fit together. Opens nothing.
    ///
    /// # Errors
    /// The errors of [`Fabric::new`], except system errors.
    pub fn check(config: &FabricConfig) -> Result<(), ConfigError> {
        Self::without_engines(config)?;
        engine::check(config)
    }

    fn without_engines(config: &FabricConfig) -> Result<Self, ConfigError> {
        check_times(config)?;
        let (ports, numbers) = ports(config).map_err(ConfigError::about("topology"))?;
        let mut fabric = Self {
            now: Time::ZERO,
            events: Events::new(),
            packets: Packets::new(),
            telemetry: Telemetry::default(),
            switches: switches(config, &numbers).map_err(ConfigError::about("switch.buffer"))?,
            hosts: hosts(config, &numbers).map_err(ConfigError::about("topology"))?,
            ports,
            flows: Vec::new(),
            notifiers: Vec::new(),
            packet: config.packet,
            host: config.host,
            congestion: config.congestion,
            cnp_priority: config.congestion.notification.cnp_priority.min(7),
            pause_response: config.switch.pfc.response,
            duration: config.duration,
            warmup: config.warmup,
            finished: 0,
            processed: 0,
            hops: 0,
            samples: Samples::new(config),
            detector: Detector::default(),
            external: ExternalConfig { nic_buffer: 0, nics_obey: false },
            departures: Vec::new(),
            engines: Engines::default(),
            steps: Steps::default(),
        };
        fabric.watch(config, &numbers).map_err(ConfigError::about("measure.queues"))?;
        fabric.add_flows(config)?;
        fabric.add_steps(config)?;
        fabric.events.push(config.warmup, Event::WarmupEnd);
        fabric.events.push(config.sample, Event::Sample);
        Ok(fabric)
    }

    fn watch(&mut self, config: &FabricConfig, numbers: &[Vec<u32>]) -> Result<(), String> {
        for &(node, next, priority) in &config.watch {
            let port = numbers[node].iter().copied().find(|&port| {
                let peer = self.ports[port as usize].peer;
                numbers[next].contains(&peer)
            });
            let name = |node| config.network.name(node);
            let port =
                port.ok_or_else(|| format!("no link joins {} and {}", name(node), name(next)))?;
            self.ports[port as usize].watch = Some(Box::new(QueueMonitor::new(priority)));
            self.samples.add_queue(port);
        }
        Ok(())
    }

    fn add_flows(&mut self, config: &FabricConfig) -> Result<(), ConfigError> {
        let mut scopes = BTreeMap::new();
        let params = &config.congestion.notification;
        let mut per_pair = BTreeMap::<(u32, u32), u32>::new();
        let mut chains = BTreeMap::new();
        for (number, flow) in (0_u32..).zip(&config.flows) {
            let name = |host: u32| config.network.name(host as usize);
            if flow.from == flow.to {
                let message = format!("{} sends to itself", name(flow.from));
                return Err(ConfigError::of_flow(flow, message));
            }
            let nth = per_pair.entry((flow.from, flow.to)).or_default();
            let chain = flow.chain.map(|chain| (flow.group, chain));
            let previous = chain.and_then(|chain| chains.insert(chain, number));
            // The transfers of a closed loop share one QP, so they take the same path.
            *nth += u32::from(previous.is_none());
            let entropy = match previous {
                None => mix(mix(flow.from ^ mix(flow.to ^ mix(*nth)))),
                Some(previous) => self.flows[previous as usize].sender.entropy,
            };
            let sender = Sender::new(flow, &config.host, &config.packet, entropy);
            let receiver = Receiver::new(flow, &config.host, &config.packet);
            let scope = match params.cnp_scope {
                CnpScope::Qp => (flow.to, flow.from, number),
                CnpScope::IpPair => (flow.to, flow.from, 0),
                CnpScope::Port => (flow.to, 0, 0),
            };
            let notifiers = &mut self.notifiers;
            let notifier = *scopes.entry(scope).or_insert_with(|| {
                let point = NotificationPoint::new(params);
                notifiers.push(Notifier { point, flow: number, wake_at: Instant::FAR });
                u32::try_from(notifiers.len() - 1).unwrap_or(u32::MAX)
            });
            self.flows.push(Flow::new(*flow, sender, receiver, notifier));
            match previous {
                Some(previous) => {
                    self.flows[previous as usize].successor = Some(number);
                    self.flows[number as usize].predecessor = Some(previous);
                }
                None if flow.is_held => {}
                None => self.events.push(flow.start, Event::Start { flow: number }),
            }
            self.find_path(flow.from, flow.to, entropy)
                .map_err(|what| format!("{what} from {} to {}", name(flow.from), name(flow.to)))
                .map_err(|message| ConfigError::of_flow(flow, message))?;
        }
        Ok(())
    }

    /// The nodes that a flow's packets visit, from its sender to its receiver.
    pub fn path(&self, flow: usize) -> Vec<usize> {
        let flow = &self.flows[flow];
        let reached = |port: &u32| self.node_of(self.ports[*port as usize].peer);
        std::iter::once(flow.config.from as usize)
            .chain(self.path_of(flow).iter().map(reached))
            .collect()
    }

    /// The node that has `port`, numbered as in [`config::Network`](super::config::Network).
    pub(super) fn node_of(&self, port: u32) -> usize {
        match self.ports[port as usize].node {
            Node::Switch(number) => self.hosts.len() + number as usize,
            Node::Host(number) | Node::External(number) | Node::Engine(number) => number as usize,
        }
    }

    /// The egress ports on a flow's path.
    pub(super) fn path_of(&self, flow: &Flow) -> Vec<u32> {
        let path = self.find_path(flow.config.from, flow.config.to, flow.sender.entropy);
        path.unwrap_or_default() // Checked when the flow was added.
    }

    /// The path of a flow without traffic, as its congestion control knows it.
    pub(super) fn base_path(&self, flow: &Flow) -> Path {
        let (there, gap) = (self.path_of(flow), self.packet.gap);
        let back = self.find_path(flow.config.to, flow.config.from, !flow.sender.entropy);
        let back = back.unwrap_or_else(|_| there.clone());
        let time = |ports: &[u32], bytes: u32| {
            let ports = ports.iter().map(|&port| &self.ports[port as usize]);
            ports.map(|port| port.rate.time_of(bytes).0 + port.delay.0).sum::<u64>()
        };
        let full = self.packet.payload + self.packet.headers;
        let trip = time(&there, full + gap) + time(&back, self.packet.control + gap);
        let trip = Time(trip + self.host.ack_delay.0);
        Path {
            hops: u32::try_from(there.len()).ok().map(|links| links.saturating_sub(1)),
            base_rtt: Some(Duration::from_nanos(trip.instant().as_nanos())),
        }
    }

    /// The egress ports on the path between two hosts; an error if the path does not reach the
    /// receiver.
    fn find_path(&self, from: u32, to: u32, entropy: u32) -> Result<Vec<u32>, &'static str> {
        let mut last = self.hosts[from as usize].port;
        let mut path = vec![last];
        // A path without a loop visits each port once.
        while path.len() <= self.ports.len() {
            let entered = &self.ports[self.ports[last as usize].peer as usize];
            let Node::Switch(number) = entered.node else {
                let end = self.ports[self.hosts[to as usize].port as usize].node;
                return if entered.node == end { Ok(path) } else { Err("no route leads") };
            };
            let switch = &self.switches[number as usize];
            let out = switch.routes.port(entered.local, to, entropy).ok_or("no route leads")?;
            last = switch.ports[usize::from(out)];
            path.push(last);
        }
        Err("the routes form a loop")
    }
}

/// Builds all ports, and for each node the list of its port numbers.
fn ports(config: &FabricConfig) -> Result<(Vec<Port>, Vec<Vec<u32>>), String> {
    let network = &config.network;
    let hosts = network.hosts.len();
    let mut numbers = vec![Vec::new(); hosts + network.switches.len()];
    let mut ports: Vec<Port> = Vec::new();
    for (number, link) in (0_u64..).zip(&network.links) {
        for (end, other) in [(link.a, link.b), (link.b, link.a)] {
            if end == other {
                return Err(format!("a link joins {0} to itself", network.name(end)));
            }
            let index = u32::try_from(end).unwrap_or(u32::MAX);
            let node = match end.checked_sub(hosts) {
                None => Node::Host(index),
                Some(_) => Node::Switch(index - u32::try_from(hosts).unwrap_or(u32::MAX)),
            };
            let own: &mut Vec<u32> = &mut numbers[end];
            let local = u16::try_from(own.len()).map_err(|_| "a node has at most 65535 ports")?;
            own.push(u32::try_from(ports.len()).map_err(|_| "too many ports")?);
            let mut port = Port::new(node, local, link.rate, link.delay, config.switch.scheduling);
            let seed = seed_of(config.seed, Part::Faults, number * 2 + u64::from(end == link.b));
            port.faults = LinkErrors::new(link.loss, link.corruption, seed).map(Box::new);
            ports.push(port);
        }
        let last = u32::try_from(ports.len() - 1).unwrap_or(u32::MAX);
        ports[last as usize].peer = last - 1;
        ports[last as usize - 1].peer = last;
    }
    Ok((ports, numbers))
}

fn hosts(config: &FabricConfig, numbers: &[Vec<u32>]) -> Result<Vec<Host>, String> {
    let names = config.network.hosts.iter();
    names
        .zip(numbers)
        .map(|(name, ports)| match ports[..] {
            [port] => Ok(Host::new(port)),
            _ => Err(format!("{name} has {} links; a host has one", ports.len())),
        })
        .collect()
}

fn switches(config: &FabricConfig, numbers: &[Vec<u32>]) -> Result<Vec<Switch>, String> {
    let hosts = config.network.hosts.len();
    #[allow(clippy::cast_possible_truncation)] // Only the upper half of the seed is needed.
    let salt = (seed_of(config.seed, Part::Routes, 0) >> 32) as u32;
    let all = routes(&wiring(&config.network), hosts, salt, &config.network.routing);
    let params = &config.congestion.marking;
    (0_u64..)
        .zip(&config.network.switches)
        .zip(all)
        .zip(&numbers[hosts..])
        .map(|(((number, switch), routes), own)| {
            let name = |e| format!("{switch}: {e}");
            let buffer = SharedBuffer::new(buffer(config), own.len()).map_err(name)?;
            check_lossy_queues(config, &buffer).map_err(name)?;
            Ok(Switch {
                ports: own.clone(),
                buffer,
                routes,
                marking: config.switch.ecn.then(|| (Red::new(params), params.mark_at)),
                random: Xoshiro128PlusPlus::seed_from_u64(seed_of(
                    config.seed,
                    Part::Marking,
                    number,
                )),
                refresh_at: vec![[Time::ZERO; 8]; own.len()],
                pfc: config.switch.pfc,
                unroutable: 0,
            })
        })
        .collect()
}

/// Returns an error if a lossy queue can never accept a full packet.
fn check_lossy_queues(config: &FabricConfig, buffer: &SharedBuffer) -> Result<(), String> {
    let frame = u64::from(config.packet.payload + config.packet.headers);
    let capacity = buffer.threshold() + config.switch.guaranteed;
    let lossy = |flow: &FlowConfig| config.switch.lossless >> flow.priority & 1 == 0;
    if capacity < frame && config.flows.iter().any(lossy) {
        return Err(format!(
            "a lossy queue holds at most {capacity} bytes, less than a packet of {frame}"
        ));
    }
    Ok(())
}

/// The buffer configuration of a switch.
fn buffer(config: &FabricConfig) -> BufferConfig {
    let SwitchConfig { buffer, guaranteed, alpha, threshold, lossless, .. } = config.switch;
    let frame = u64::from(config.packet.payload + config.packet.headers);
    let needed = config.network.links.iter().map(|link| headroom(config, link)).max();
    BufferConfig {
        total: buffer,
        guaranteed,
        headroom: config.switch.headroom.or(needed).unwrap_or(0),
        alpha,
        threshold,
        resume_offset: config.switch.resume_offset.unwrap_or(2 * frame),
        lossless,
    }
}

/// Headroom: the bytes that can still arrive after the decision to pause. It covers one frame ahead
/// of the PFC frame, the PFC frame itself, the round-trip propagation delay, the response time, one
/// frame whose transmission began before the pause took effect, and one frame for rounding.
pub(super) fn headroom(config: &FabricConfig, link: &Link) -> u64 {
    let frame = u64::from(config.packet.payload + config.packet.headers + config.packet.gap);
    let control = u64::from(config.packet.control + config.packet.gap);
    let path = link.delay + link.delay + config.switch.pfc.response;
    link.rate.bytes_in(path).saturating_add(3 * frame + control)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn components_have_different_seeds() {
        let parts = [Part::Routes, Part::Marking, Part::Faults];
        let all: BTreeSet<u64> = parts
            .iter()
            .flat_map(|&part| (0..1000).map(move |number| seed_of(7, part, number)))
            .collect();
        assert_eq!(all.len(), 3 * 1000);
        for part in parts {
            let runs = (0..256).flat_map(|seed| (0..20).map(move |n| seed_of(seed, part, n)));
            assert_eq!(runs.collect::<BTreeSet<u64>>().len(), 256 * 20);
        }
    }
}
