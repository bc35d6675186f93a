//! Fetches what coming events need into the processor's cache. A large network does not fit there,
//! and its run spends most of its time waiting for memory.
//!
//! What an event needs is found step by step: its port and its packet, where they lead to, and so
//! on. So each of the next events is looked at several times while it comes nearer.

use feroce_engine::memory::ahead::{fetch, fetch_element};

use super::Fabric;
use super::events::{Event, LOOK_AHEAD};
use super::host::receiver::Notifier;
use super::host::{Flow, Host};
use super::packet::{Kind, Packet};
use super::port::{Node, Port};

/// The number of scheduled events stands for the size of the network: with fewer, it usually fits
/// the cache, and looking ahead costs more than it gains: 11 % with 9,000 events on an AMD EPYC.
const MANY: u64 = 1 << 14;

/// The steps are taken so many events before the event.
const STEPS: [usize; 4] = [LOOK_AHEAD, 9, 6, 3];

impl Fabric {
    /// Fetches memory for events that come soon. Changes nothing.
    #[inline]
    pub(super) fn look_ahead(&self) {
        if self.events.scheduled() - self.processed < MANY {
            return;
        }
        if let Some(event) = self.events.ahead(STEPS[0]) {
            match event {
                Event::Arrive { at, packet } => {
                    self.packets.prepare(packet);
                    fetch(&self.ports[at as usize].node, size_of::<Node>());
                }
                Event::Wake { port } => self.ports[port as usize].fetch(),
                _ => {}
            }
        }
        self.follow(STEPS[1], Self::packet_leads_to, Self::port_leads_to);
        self.follow(STEPS[2], Self::packet_leads_on_to, Self::port_leads_on_to);
        self.follow(STEPS[3], |_, _, _| {}, Self::flow_of_port);
    }

    /// Calls `packet` with the port and the packet of an arrival that comes after `others` other
    /// events, or `port` with a port that may transmit then.
    #[inline]
    fn follow(
        &self,
        others: usize,
        packet: impl Fn(&Self, &Port, &Packet),
        port: impl Fn(&Self, &Port),
    ) {
        match self.events.ahead(others) {
            Some(Event::Arrive { at, packet: id }) => {
                packet(self, &self.ports[at as usize], self.packets.get(id));
            }
            Some(Event::Wake { port: number }) => port(self, &self.ports[number as usize]),
            _ => {}
        }
    }

    /// A switch: the counters of its buffer, and the route. A host: the flow.
    #[inline]
    fn packet_leads_to(&self, port: &Port, packet: &Packet) {
        match (port.node, packet.kind()) {
            (_, Kind::Pfc { .. }) => {} // Has no destination: the port takes it.
            (Node::Switch(number), _) => {
                let switch = &self.switches[number as usize];
                switch.buffer.prepare(usize::from(port.local), packet.priority());
                switch.routes.prepare(port.local, packet.to);
            }
            (Node::Host(_), Kind::Data { .. }) => Flow::fetch_receiver(&self.flows, packet.flow),
            (Node::Host(_), _) => Flow::fetch_sender(&self.flows, packet.flow),
            (Node::External(_) | Node::Engine(_), _) => {}
        }
    }

    /// A switch: the egress port. A host that receives data: the notification point.
    #[inline]
    fn packet_leads_on_to(&self, port: &Port, packet: &Packet) {
        match (port.node, packet.kind()) {
            (_, Kind::Pfc { .. }) => {}
            (Node::Switch(number), _) => {
                let switch = &self.switches[number as usize];
                if let Some(out) = switch.routes.port(port.local, packet.to, packet.entropy) {
                    self.ports[switch.ports[usize::from(out)] as usize].fetch();
                }
            }
            (Node::Host(_), Kind::Data { .. }) => {
                let notifier = self.flows[packet.flow as usize].notifier;
                fetch_element(&self.notifiers, notifier as usize, size_of::<Notifier>());
            }
            _ => {}
        }
    }

    /// A switch: the first packets of its queues. A host: its state.
    #[inline]
    fn port_leads_to(&self, port: &Port) {
        match port.node {
            Node::Switch(_) => port.prepare(&self.packets),
            Node::Host(number) => fetch_element(&self.hosts, number as usize, size_of::<Host>()),
            Node::External(_) | Node::Engine(_) => {}
        }
    }

    /// A switch: the counters of the first packet's ingress queue. A host: when its flows may send.
    #[inline]
    fn port_leads_on_to(&self, port: &Port) {
        match port.node {
            Node::Switch(number) => {
                if let Some(packet) = port.first(&self.packets) {
                    let buffer = &self.switches[number as usize].buffer;
                    buffer.prepare(usize::from(packet.ingress), packet.priority());
                }
            }
            Node::Host(number) => self.hosts[number as usize].prepare(),
            Node::External(_) | Node::Engine(_) => {}
        }
    }

    /// The flow that a host sends from next.
    #[inline]
    fn flow_of_port(&self, port: &Port) {
        if let Node::Host(number) = port.node
            && let Some(flow) = self.hosts[number as usize].likely_next()
        {
            Flow::fetch_sender(&self.flows, flow);
        }
    }
}
