//! Hosts that run the engine: each has a device in virtual time, with its own core, QPs and rates,
//! on a shm port. The other end of the shm port is the host's NIC in the fabric.
//!
//! A host is polled when a frame arrives for it, when its own deadline expires, and when its NIC
//! has room again. The host sends real frames. The fabric sees their size, priority (DSCP), ECN
//! bits and destination; marks and corruption are applied to the bytes of a frame when it reaches
//! its destination. Flows are RC WRITEs.
//!
//! The NIC takes a few frames from the ring, and more only when the link has transmitted some. So a
//! pause stops the core, as a full ring does on every port.

mod host;

use std::collections::BTreeMap;

use feroce_engine::memory::arena::Arena;
use feroce_engine::port::Port as _;
use feroce_wire::{Ecn, Opcode, Operation, Packet as WirePacket, Syndrome};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::Fabric;
use super::config::{ConfigError, FabricConfig, FlowConfig};
use super::events::Event;
use super::packet::{Flags, Kind, Packet, PacketId};
use super::port::Node;
use super::time::Time;
use crate::frame::{damage, mark, size_on_link};
use host::{EngineHost, FlowEvent, MAX_MESSAGE, host_of};

/// Frames queued in a NIC before it stops taking more.
const NIC_FRAMES: u32 = 4;

/// Descriptors that an engine host holds open, and descriptors that the rest of the process needs.
const DESCRIPTORS: u64 = 12;
const OTHER_DESCRIPTORS: u64 = 64;

/// Checks the flows of engine hosts: both ends are engines, all flows of one host have the same
/// congestion control, and messages are not too long.
pub(super) fn check(config: &FabricConfig) -> Result<(), ConfigError> {
    let is_engine = |host: u32| config.engines.contains(&host);
    let name = |host: u32| config.network.name(host as usize);
    for flow in &config.flows {
        if is_engine(flow.from) != is_engine(flow.to) {
            let (from, to) = (name(flow.from), name(flow.to));
            let message = format!("{from} sends to {to}, but only one of them is an engine host");
            return Err(ConfigError::about("host.engine")(message));
        }
        if is_engine(flow.from) && flow.message > MAX_MESSAGE {
            let message = flow.message;
            let message =
                format!("a message of {message} bytes; engine hosts send at most {MAX_MESSAGE}");
            return Err(ConfigError::of_flow(flow, message));
        }
    }
    let mut controls = BTreeMap::new();
    let ends = config.flows.iter().flat_map(|flow| [(flow.from, flow), (flow.to, flow)]);
    for (host, flow) in ends.filter(|(host, _)| is_engine(*host)) {
        if *controls.entry(host).or_insert(flow.control) != flow.control {
            let message =
                format!("all flows of an engine host ({}) need the same `control`", name(host));
            return Err(ConfigError::of_flow(flow, message));
        }
    }
    Ok(())
}

/// Raises the limit of open descriptors if `hosts` engine hosts need it. Raises it to the hard
/// limit, since other parts of the process need descriptors too.
fn raise_descriptor_limit(hosts: usize) -> Result<(), String> {
    let needed = hosts as u64 * DESCRIPTORS + OTHER_DESCRIPTORS;
    let failed = |error: Errno| format!("cannot change the limit of open descriptors: {error}");
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
    if soft >= needed {
        return Ok(());
    }
    if hard < needed {
        return Err(format!(
            "{hosts} engine hosts need {needed} open descriptors; the limit is {hard} \
             (`ulimit -Hn`)"
        ));
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(failed)
}

/// The flows that start or end at a host, with their numbers.
fn flows_of(config: &FabricConfig, host: u32) -> Vec<(u32, FlowConfig)> {
    let flows = (0..).zip(config.flows.iter().copied());
    flows.filter(|(_, flow)| flow.from == host || flow.to == host).collect()
}

/// All engine hosts of a fabric.
#[derive(Debug, Default)]
pub(super) struct Engines {
    hosts: Vec<Option<Box<EngineHost>>>,
    /// For each flow, the indexes of its QPs at the sender and at the receiver.
    places: Vec<Option<(usize, usize)>>,
    /// Frames in flight, indexed by the number of their packet.
    frames: Vec<Vec<u8>>,
    flow_events: Vec<FlowEvent>,
}

impl Engines {
    /// Current rate and alpha of a flow, in bit/s and units of 2^-31; `None` for a flow of a
    /// simulated host and without congestion control.
    pub fn rate(&self, from: u32, flow: usize, now: Time) -> Option<(u64, u32)> {
        let (place, _) = (*self.places.get(flow)?)?;
        self.hosts[from as usize].as_ref()?.ends[place].rate(now.instant())
    }

    fn host(&mut self, host: u32) -> &mut EngineHost {
        self.hosts[host as usize].as_mut().expect("only engine hosts have ports of engines")
    }
}

impl Fabric {
    /// Opens the engine hosts of `config` and connects the QPs of their flows.
    ///
    /// # Errors
    /// The errors of [`check`], and refusals by the engine or the system.
    pub(super) fn open_engines(&mut self, config: &FabricConfig) -> Result<(), ConfigError> {
        check(config)?;
        let mut used: Vec<u32> =
            config.flows.iter().flat_map(|flow| [flow.from, flow.to]).collect();
        used.sort_unstable();
        used.dedup();
        used.retain(|host| config.engines.contains(host));
        if used.is_empty() {
            return Ok(());
        }
        raise_descriptor_limit(used.len())
            .and_then(|()| self.make_engines(config, &used))
            .and_then(|()| self.connect_engines(config))
            .map_err(ConfigError::about("host.engine"))
    }

    fn make_engines(&mut self, config: &FabricConfig, used: &[u32]) -> Result<(), String> {
        self.engines.hosts.resize_with(config.network.hosts.len(), || None);
        self.engines.places.resize(config.flows.len(), None);
        let arena = Arena::new(used.len() * PORT_BYTES)
            .map_err(|error| format!("cannot allocate memory for ports: {error}"))?;
        for &host in used {
            let own = flows_of(config, host);
            let port = self.hosts[host as usize].port as usize;
            let engine = EngineHost::new(config, host, self.ports[port].rate, &own, &arena)?;
            self.engines.hosts[host as usize] = Some(Box::new(engine));
            self.ports[port].node = Node::Engine(host);
        }
        Ok(())
    }

    fn connect_engines(&mut self, config: &FabricConfig) -> Result<(), String> {
        for (number, flow) in (0_u32..).zip(&config.flows) {
            if !config.engines.contains(&flow.from) {
                continue;
            }
            let place = |host: u32| {
                let engine = self.engines.hosts[host as usize].as_ref()?;
                engine.ends.iter().position(|end| end.flow == number)
            };
            let (Some(from), Some(to)) = (place(flow.from), place(flow.to)) else { continue };
            self.engines.places[number as usize] = Some((from, to));
            let sender = self.engines.host(flow.from).endpoint(from)?;
            let receiver = self.engines.host(flow.to).endpoint(to)?;
            let ack_priority = config.host.ack_priority.unwrap_or(flow.priority);
            self.engines.host(flow.from).connect(from, &receiver, config, flow.priority)?;
            self.engines.host(flow.to).connect(to, &sender, config, ack_priority)?;
        }
        Ok(())
    }

    /// Transmits the next frame of an engine host when its link is free. Returns true if a frame
    /// was sent.
    pub(super) fn engine_sends(&mut self, host: u32, port: u32) -> bool {
        let Some(id) = self.ports[port as usize].dequeue(&mut self.packets, self.now) else {
            return false;
        };
        self.hosts[host as usize].waiting -= 1;
        self.transmit(port, id);
        if self.engines.host(host).is_blocked {
            self.poll_engine(host);
        }
        true
    }

    /// Delivers a frame to an engine host.
    pub(super) fn engine_receives(&mut self, host: u32, id: PacketId) {
        let packet = *self.packets.get(id);
        self.packets.remove(id);
        let frame = &mut self.engines.frames[id.index()];
        if packet.has(Flags::MARKED) {
            mark(frame);
        }
        if packet.has(Flags::CORRUPTED) {
            damage(frame);
        }
        let now = self.now.instant();
        let engine = self.engines.hosts[host as usize].as_mut().expect("an engine's port");
        engine.deliver(frame);
        engine.device.turn(now);
        let received = engine.new_received();
        let flow = &mut self.flows[packet.flow as usize];
        self.hosts[host as usize].corrupted += received.damaged;
        flow.sender.counts.naks += received.naks;
        flow.sender.counts.cnps += received.cnps;
        flow.receiver.out_of_sequence += received.out_of_sequence;
        if matches!(packet.kind(), Kind::Data { .. }) {
            flow.receiver.marked += received.marked;
        }
        let messages = flow.receiver.messages;
        flow.receiver.take(received.writes);
        let is_message = flow.receiver.messages != messages;
        self.run_engine(host);
        if is_message {
            self.message_arrived(packet.flow);
        }
    }

    /// Handles an expired deadline of an engine host.
    pub(super) fn wake_engine(&mut self, host: u32) {
        let wakes_at = &mut self.engines.host(host).wakes_at;
        if *wakes_at == self.now {
            *wakes_at = Time::FAR;
            self.run_engine(host);
        }
    }

    /// Starts a flow of an engine host. Returns false if the flow's host is not an engine.
    pub(super) fn start_engine(&mut self, number: u32) -> bool {
        let place = self.engines.places.get(number as usize).copied().flatten();
        let Some((place, _)) = place else { return false };
        let flow = self.flows[number as usize].config;
        let remote = self.engines.host(flow.to).target();
        self.engines.host(flow.from).start(place, &flow, remote);
        self.run_engine(flow.from);
        true
    }

    /// Stops a flow of an engine host. Returns false if the flow's host is not an engine.
    pub(super) fn stop_engine(&mut self, number: u32) -> bool {
        let place = self.engines.places.get(number as usize).copied().flatten();
        let Some((place, _)) = place else { return false };
        let from = self.flows[number as usize].config.from;
        self.flows[number as usize].sender.is_truncated |= self.engines.host(from).stop(place);
        self.engine_finishes(number);
        self.run_engine(from);
        true
    }

    fn engine_finishes(&mut self, number: u32) {
        let ended = &mut self.flows[number as usize].sender.ended;
        if ended.is_none() {
            *ended = Some(self.now);
            self.finished += 1;
            self.flow_ended(number);
        }
    }

    /// Polls an engine host and starts the transmission of its frames.
    fn run_engine(&mut self, host: u32) {
        self.poll_engine(host);
        let port = self.hosts[host as usize].port;
        if self.ports[port as usize].backlog() != 0 {
            self.try_transmit(port);
        }
    }

    /// Polls an engine host until there is nothing more to do at the current time, or its NIC is
    /// full.
    fn poll_engine(&mut self, host: u32) {
        let now = self.now.instant();
        loop {
            let engine = self.engines.host(host);
            let done = engine.device.turn(now);
            let taken = self.take_frames(host);
            let engine = self.engines.hosts[host as usize].as_mut().expect("an engine's port");
            let reaped = engine.reap(&mut self.engines.flow_events);
            if reaped {
                continue; // The new WRITEs rang the doorbell.
            }
            let next = engine.device.next_deadline(now);
            let is_full = self.hosts[host as usize].waiting >= NIC_FRAMES;
            let waits = next.is_some_and(|next| next <= now);
            if waits && (done > 0 || taken > 0) && !is_full {
                continue;
            }
            engine.is_blocked = is_full || waits;
            let next = next.filter(|_| !waits).map_or(Time::FAR, Time::from_instant);
            if next < engine.wakes_at {
                engine.wakes_at = next;
                self.events.push(next, Event::Engine { host });
            }
            break;
        }
        for at in 0..self.engines.flow_events.len() {
            match self.engines.flow_events[at] {
                FlowEvent::Finished(flow) => self.engine_finishes(flow),
                FlowEvent::Failed(flow) => {
                    let timeouts = self.engines.host(host).new_timeouts();
                    let counts = &mut self.flows[flow as usize].sender.counts;
                    counts.timeouts += timeouts;
                    counts.failed += 1;
                }
            }
        }
        self.engines.flow_events.clear();
        self.count_timeouts(host);
    }

    /// Counts timeouts of an engine host that no retransmitted packet has accounted for.
    fn count_timeouts(&mut self, host: u32) {
        let engine = self.engines.host(host);
        let timeouts = engine.new_timeouts();
        if timeouts > 0
            && let Some(flow) = engine.most_retried(self.now.instant())
        {
            self.flows[flow as usize].sender.counts.timeouts += timeouts;
        }
    }

    /// Performs and counts the work that is due at engine hosts although their NICs are full.
    pub(super) fn drain_engines(&mut self) {
        let now = self.now.instant();
        for host in (0..).take(self.engines.hosts.len()) {
            if let Some(engine) = &self.engines.hosts[host as usize] {
                engine.device.turn(now);
                self.poll_engine(host);
            }
        }
    }

    /// Moves frames from an engine host's ring into its NIC until the NIC is full. Returns their
    /// number.
    fn take_frames(&mut self, host: u32) -> usize {
        let mut taken = 0;
        while self.hosts[host as usize].waiting < NIC_FRAMES {
            let count = self.engines.host(host).nic_port.rx_burst();
            if count == 0 {
                break;
            }
            for index in 0..count {
                self.take_frame(host, index);
            }
            taken += count;
        }
        taken
    }

    fn take_frame(&mut self, host: u32, index: usize) {
        let engine = self.engines.hosts[host as usize].as_ref().expect("an engine's port");
        let bytes = engine.nic_port.rx_frame(index).first;
        let Ok(seen) = WirePacket::parse(bytes, &[]) else { return };
        let Some(to) = host_of(seen.ip.dst()) else { return };
        let peer = self.engines.hosts.get(to as usize).and_then(Option::as_ref);
        let end = peer.and_then(|peer| Some(&peer.ends[peer.place(seen.bth.dest_qp)?]));
        let Some(number) = end.map(|end| end.flow) else { return };
        let psn = seen.bth.psn.value();
        let kind = match (seen.bth.opcode, seen.info.operation, seen.ext.aeth) {
            (Opcode::CNP, ..) => Kind::Cnp,
            (_, Operation::Write, _) => Kind::Data { psn, sent: self.now },
            (.., Some(aeth)) if matches!(aeth.syndrome, Syndrome::Nak(_)) => {
                Kind::Nak { psn, arrived: psn }
            }
            _ => Kind::Ack { psn, sent: self.now },
        };
        let size = size_on_link(bytes.len());
        let mut packet = Packet::new(kind, number, to, size, seen.ip.traffic_class() >> 5);
        packet.flags.set(Flags::ECN_CAPABLE, seen.ip.ecn() != Ecn::NotEct);
        // ECMP hashes the same entropy as for a simulated host, so the flow takes the same path.
        let entropy = self.flows[number as usize].sender.entropy;
        packet.entropy = if matches!(kind, Kind::Data { .. }) { entropy } else { !entropy };
        let id = self.packets.add(packet);
        let frames = &mut self.engines.frames;
        if frames.len() <= id.index() {
            frames.resize_with(id.index() + 1, Vec::new);
        }
        frames[id.index()].clear();
        frames[id.index()].extend_from_slice(bytes);
        self.count_frame(host, number, kind);
        let port = self.hosts[host as usize].port;
        self.hosts[host as usize].waiting += 1;
        self.ports[port as usize].enqueue(packet.priority(), id, &mut self.packets, self.now);
    }

    /// Counts a frame that leaves an engine host.
    fn count_frame(&mut self, host: u32, number: u32, kind: Kind) {
        let flow = &mut self.flows[number as usize];
        match kind {
            Kind::Data { psn, .. } => {
                let Some((place, _)) = self.engines.places[number as usize] else { return };
                let engine = self.engines.hosts[host as usize].as_mut().expect("an engine's port");
                let end = &mut engine.ends[place];
                let psn = feroce_wire::Psn::new(psn);
                flow.sender.counts.packets += 1;
                if psn.is_before(end.sent_end) {
                    flow.sender.counts.retransmitted += 1;
                    flow.sender.counts.timeouts += engine.new_timeouts();
                } else {
                    end.sent_end = psn.next();
                }
            }
            Kind::Cnp => flow.receiver.cnps += 1,
            _ => {}
        }
    }
}

/// Memory for the rings of one port, both directions.
const PORT_BYTES: usize = 64 << 10;
