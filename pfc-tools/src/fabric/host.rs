//! A host: a NIC whose flows share a link. It sends responses before data and obeys pauses.

mod active;
pub mod receiver;
mod selective;
pub mod sender;

use feroce_congestion::{Instant, Marks, Path};
use feroce_engine::memory::ahead::fetch;

use super::Fabric;
use super::config::FlowConfig;
use super::events::Event;
use super::packet::{Flags, Kind, Packet, PacketId};
use super::time::Time;
use active::{Active, ActiveFlows};
use receiver::{Notifier, Receiver, Response};
use sender::{SendDecision, Sender};

/// A host.
#[derive(Debug)]
pub(crate) struct Host {
    /// Number of its port within the fabric.
    pub port: u32,
    active: ActiveFlows,
    /// Index of the flow to serve first (round robin).
    turn: usize,
    /// Packets with a wrong ICRC.
    pub corrupted: u64,
    /// Frames in the NIC of an engine host.
    pub waiting: u32,
}

impl Host {
    pub fn new(port: u32) -> Self {
        Self { port, active: ActiveFlows::new(), turn: 0, corrupted: 0, waiting: 0 }
    }

    /// Fetches what the next transmission needs into the processor's cache.
    #[inline]
    pub fn prepare(&self) {
        self.active.prepare(self.turn);
    }

    /// The flow whose turn it is.
    #[inline]
    pub fn likely_next(&self) -> Option<u32> {
        self.active.get(self.turn).map(|active| active.flow)
    }
}

/// Both ends of a flow, what is used for every packet together: a run with many flows waits for
/// memory.
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct Flow {
    pub config: FlowConfig,
    /// Its index among the active flows of its host, while it is active.
    place: Option<usize>,
    /// The notifier that sends its CNPs.
    pub notifier: u32,
    pub receiver: Receiver,
    pub sender: Sender,
    /// The previous flow on the same QP: this flow starts when that one has finished.
    pub predecessor: Option<u32>,
    /// The flow that starts when this one has finished.
    pub successor: Option<u32>,
}

impl Flow {
    pub const fn new(
        config: FlowConfig,
        sender: Sender,
        receiver: Receiver,
        notifier: u32,
    ) -> Self {
        Self { config, place: None, notifier, receiver, sender, predecessor: None, successor: None }
    }

    /// Fetches what the receiver uses for every packet into the processor's cache: of the flow, the
    /// line with its hosts, priority, place and notifier.
    #[inline]
    pub fn fetch_receiver(flows: &[Self], number: u32) {
        if let Some(flow) = flows.get(number as usize) {
            fetch(&flow.config.from, 64);
            fetch(&flow.receiver, 64);
            fetch(&flow.sender, 64);
        }
    }

    /// Fetches what the sender uses for every packet, up to the first counters; not the state of
    /// its congestion control.
    #[inline]
    pub fn fetch_sender(flows: &[Self], number: u32) {
        if let Some(flow) = flows.get(number as usize) {
            fetch(&flow.config.from, 64);
            fetch(&flow.sender, Sender::HOT);
        }
    }
}

impl Fabric {
    /// Transmits the next packet of a host when its link is free. Returns true if a packet was
    /// sent.
    pub(super) fn host_sends(&mut self, host: u32, port: u32) -> bool {
        let out = &mut self.ports[port as usize];
        if out.backlog() != 0
            && let Some(id) = out.dequeue(&mut self.packets, self.now)
        {
            self.transmit(port, id);
            return true;
        }
        let waiting = out.pauses.waiting(self.now);
        let now = self.now.instant();
        let nic = &self.hosts[host as usize];
        let (turn, count) = (nic.turn, nic.active.len());
        if nic.active.priorities() & !waiting == 0 {
            return false;
        }
        for (mut from, to) in [(turn, count), (0, turn)] {
            while let Some(place) = self.hosts[host as usize].active.first(from, to, self.now) {
                from = place + 1;
                let nic = &mut self.hosts[host as usize];
                let Some(active) = nic.active.get(place) else { break };
                if waiting >> active.priority & 1 == 1 {
                    continue;
                }
                match self.flows[active.flow as usize].sender.poll(now) {
                    SendDecision::Later(at) => nic.active.set(place, Time::from_instant(at)),
                    SendDecision::Send => {
                        nic.turn = if from < count { from } else { 0 };
                        self.send_data(active.flow, port);
                        return true;
                    }
                }
            }
        }
        false
    }

    fn send_data(&mut self, number: u32, port: u32) {
        let (now, flow) = (self.now, &mut self.flows[number as usize]);
        let was_idle = !flow.sender.is_outstanding();
        let psn = flow.sender.next_psn();
        let mut packet = Packet::new(
            Kind::Data { psn, sent: now },
            number,
            flow.config.to,
            flow.sender.next_size(),
            flow.config.priority,
        );
        packet.entropy = flow.sender.entropy;
        packet.flags.set(Flags::ECN_CAPABLE, flow.sender.ecn_capable);
        packet.flags.set(Flags::RETRANSMITTED, flow.sender.sends_again());
        packet.flags.set(Flags::TELEMETRY, flow.sender.needs.telemetry);
        packet.flags.set(Flags::ACK_REQUESTED, flow.sender.on_sent(now));
        let check_at = flow.sender.next_check(now.instant());
        if was_idle {
            flow.sender.progress_at = now;
        }
        let timer = flow.sender.arm(now);
        let (host, place) = (flow.config.from, flow.place);
        if let Some(place) = place {
            self.hosts[host as usize].active.set(place, Time::from_instant(check_at));
        }
        if let Some(at) = timer {
            self.events.push(at, Event::Timeout { flow: number });
        }
        let id = self.packets.add(packet);
        if packet.has(Flags::TELEMETRY) {
            self.telemetry.start(id);
        }
        self.transmit(port, id);
    }

    /// The next time at which a host's port may have something to send.
    pub(super) fn host_next(&mut self, host: u32, port: u32) -> Time {
        let out = &mut self.ports[port as usize];
        let waiting = out.pauses.waiting(self.now);
        let nic = &self.hosts[host as usize];
        let mut next = nic.active.next_check(waiting);
        if out.backlog() & !waiting != 0 {
            next = self.now;
        }
        if waiting != 0 {
            let wanted = out.backlog() | nic.active.priorities();
            next = next.min(out.pauses.first_end(wanted).unwrap_or(Time::FAR));
        }
        next
    }

    /// Handles a packet that arrives at a host.
    pub(super) fn host_receives(&mut self, host: u32, id: PacketId) {
        let packet = *self.packets.get(id);
        self.packets.remove(id);
        if packet.has(Flags::CORRUPTED) {
            self.hosts[host as usize].corrupted += 1;
            return;
        }
        let now = self.now.instant();
        match packet.kind() {
            Kind::Data { psn, sent } => self.data_arrives(id, &packet, psn, sent),
            Kind::Ack { psn, sent } => {
                let (at, flow) = (self.now, &mut self.flows[packet.flow as usize]);
                let hops = if packet.has(Flags::TELEMETRY) { self.telemetry.of(id) } else { &[] };
                if flow.sender.on_ack(psn, sent, packet.flags, hops, at) {
                    self.finish(packet.flow);
                } else {
                    self.reschedule(packet.flow);
                }
            }
            Kind::Nak { psn, arrived } => {
                self.flows[packet.flow as usize].sender.on_nak(psn, arrived, self.now);
                self.reschedule(packet.flow);
            }
            Kind::Cnp => {
                self.flows[packet.flow as usize].sender.on_cnp(now);
                self.reschedule(packet.flow);
            }
            Kind::Pfc { .. } | Kind::Frame => {}
        }
    }

    fn data_arrives(&mut self, id: PacketId, packet: &Packet, psn: u32, sent: Time) {
        let flow = &mut self.flows[packet.flow as usize];
        flow.receiver.note_arrival(packet.has(Flags::MARKED));
        let messages = flow.receiver.messages;
        // A mark that acknowledgements echo causes no CNP.
        let notifies = packet.has(Flags::MARKED) && flow.sender.needs.marks != Marks::Echo;
        let response = flow.receiver.on_data(psn, packet.has(Flags::ACK_REQUESTED));
        let is_message = flow.receiver.messages != messages;
        let point = flow.notifier;
        let notifier = &mut self.notifiers[point as usize];
        if notifies {
            notifier.flow = packet.flow;
        }
        if notifier.point.on_packet(notifies, self.now.instant()) {
            self.send_cnp(point);
        }
        self.arm_notifier(point);
        if let Some(response) = response {
            let kind = match response {
                Response::Ack(psn) => Kind::Ack { psn, sent },
                Response::Nak { expected, arrived } => Kind::Nak { psn: expected, arrived },
            };
            self.send_response(id, packet, kind);
        }
        if is_message {
            self.message_arrived(packet.flow);
        }
    }

    fn send_response(&mut self, data: PacketId, to: &Packet, kind: Kind) {
        let flow = &self.flows[to.flow as usize];
        let priority = self.host.ack_priority.unwrap_or(flow.config.priority);
        let (from, back) = (flow.config.to, flow.config.from);
        let mut packet = Packet::new(kind, to.flow, back, self.packet.control, priority);
        packet.entropy = !flow.sender.entropy;
        packet.flags = to.flags & Flags::ECHOED;
        let id = self.packets.add(packet);
        if packet.has(Flags::TELEMETRY) {
            self.telemetry.answer(data, id);
        }
        self.respond(from, id, self.host.ack_delay);
    }

    fn send_cnp(&mut self, point: u32) {
        let number = self.notifiers[point as usize].flow;
        let flow = &mut self.flows[number as usize];
        flow.receiver.cnps += 1;
        let (from, back) = (flow.config.to, flow.config.from);
        let mut packet =
            Packet::new(Kind::Cnp, number, back, self.packet.control, self.cnp_priority);
        packet.entropy = !flow.sender.entropy;
        let id = self.packets.add(packet);
        self.respond(from, id, self.host.cnp_delay);
    }

    fn respond(&mut self, host: u32, packet: PacketId, delay: Time) {
        if delay > Time::ZERO {
            self.events.push(self.now + delay, Event::Response { host, packet });
        } else {
            self.enqueue_response(host, packet);
        }
    }

    /// Queues a response that is ready to be sent.
    pub(super) fn enqueue_response(&mut self, host: u32, id: PacketId) {
        let port = self.hosts[host as usize].port;
        let priority = self.packets.get(id).priority();
        self.ports[port as usize].enqueue(priority, id, &mut self.packets, self.now);
        self.try_transmit(port);
    }

    fn arm_notifier(&mut self, point: u32) {
        let Notifier { point: state, wake_at, .. } = &mut self.notifiers[point as usize];
        let next = state.next_event();
        if next != Instant::FAR && *wake_at != next {
            *wake_at = next;
            self.events.push(Time::from_instant(next).max(self.now), Event::Notify { point });
        }
    }

    /// Handles the end of a notification point's interval.
    pub(super) fn notify(&mut self, point: u32) {
        let now = self.now.instant();
        let notifier = &mut self.notifiers[point as usize];
        if notifier.wake_at > now {
            return;
        }
        notifier.wake_at = Instant::FAR;
        if notifier.point.advance(now) {
            self.send_cnp(point);
        }
        self.arm_notifier(point);
    }

    /// Starts a flow.
    pub(super) fn start(&mut self, number: u32) {
        let link_rate = {
            let host = &self.hosts[self.flows[number as usize].config.from as usize];
            self.ports[host.port as usize].rate
        };
        let now = self.now;
        let previous = self.flows[number as usize].predecessor;
        let previous = previous.map(|previous| self.flows[previous as usize].sender.clone());
        let flow = &self.flows[number as usize];
        let path = match flow.config.control.algorithm() {
            Some(_) => self.base_path(flow),
            None => Path::UNKNOWN,
        };
        let flow = &mut self.flows[number as usize];
        flow.sender.start(link_rate, path, &self.congestion, now);
        if let Some(previous) = previous {
            flow.sender.continue_from(&previous);
        }
        if flow.config.stop < Time::FAR {
            self.events.push(flow.config.stop, Event::Stop { flow: number });
        }
        if self.start_engine(number) {
            return;
        }
        let flow = &mut self.flows[number as usize];
        let host = &mut self.hosts[flow.config.from as usize];
        let active = Active { flow: number, priority: flow.config.priority };
        flow.place = Some(host.active.push(active, now));
        let port = host.port;
        self.try_transmit(port);
    }

    /// Stops a flow: it sends no new packets.
    pub(super) fn stop(&mut self, number: u32) {
        if !self.stop_engine(number) && self.flows[number as usize].sender.stop() {
            self.finish(number);
        }
    }

    /// Finishes a flow: all its data has been acknowledged.
    fn finish(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        let Some(place) = flow.place.take() else { return };
        flow.sender.ended = Some(self.now);
        self.finished += 1;
        if let Some(successor) = flow.successor.filter(|_| self.now < flow.config.stop) {
            self.events.push(self.now, Event::Start { flow: successor });
        }
        let host = &mut self.hosts[flow.config.from as usize];
        host.active.swap_remove(place);
        host.turn = if host.turn < host.active.len() { host.turn } else { 0 };
        if let Some(moved) = host.active.get(place) {
            self.flows[moved.flow as usize].place = Some(place);
        }
        self.flow_ended(number);
    }

    /// Handles a flow's retransmission timer.
    pub(super) fn timeout(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        if let Some(at) = flow.sender.on_timer(self.now) {
            self.events.push(at, Event::Timeout { flow: number });
        }
        self.reschedule(number);
    }

    /// Recomputes when a flow may send next, after a change of its state.
    pub(super) fn reschedule(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        let Some(place) = flow.place else { return };
        let check_at = Time::from_instant(flow.sender.next_check(self.now.instant()));
        let host = &mut self.hosts[flow.config.from as usize];
        let before = host.active.check_at(place);
        host.active.set(place, check_at);
        if check_at < before {
            let port = host.port;
            self.try_transmit(port);
        }
    }
}
