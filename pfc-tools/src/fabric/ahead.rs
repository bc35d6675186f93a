//! Fetches what coming events need into the processor's cache. A large network does not fit there,
//! and its run spends most of its time waiting for memory.

use feroce_engine::memory::ahead::fetch_element;

use super::Fabric;
use super::events::Event;
use super::host::Flow;
use super::packet::{Kind, PacketId};
use super::port::Node;

/// The port and packet of an event are fetched so many events before it. Both numbers count events
/// of one slot of the queue.
const FIRST: usize = 6;
/// Where its packet goes next, and what its port sends next, is fetched so many events before it.
const SECOND: usize = 3;

impl Fabric {
    /// Fetches memory for events that come soon. Changes nothing.
    #[inline]
    pub(super) fn look_ahead(&self) {
        match self.events.ahead(FIRST) {
            Some(Event::Arrive { at, packet }) => {
                self.packets.prepare(packet);
                fetch_element(&self.ports, at as usize, 128);
            }
            Some(Event::Wake { port }) => fetch_element(&self.ports, port as usize, 384),
            _ => {}
        }
        match self.events.ahead(SECOND) {
            Some(Event::Arrive { at, packet }) => self.follow(at, packet),
            Some(Event::Wake { port }) => self.ports[port as usize].prepare(&self.packets),
            _ => {}
        }
    }

    /// Fetches where a packet that arrives at the port `at` goes.
    #[inline]
    fn follow(&self, at: u32, packet: PacketId) {
        let (packet, port) = (self.packets.get(packet), &self.ports[at as usize]);
        if matches!(packet.kind, Kind::Pfc { .. }) {
            return; // Has no destination: the port takes it.
        }
        match port.node {
            Node::Switch(number) => {
                let switch = &self.switches[number as usize];
                if let Some(out) = switch.routes.port(port.local, packet.to, packet.entropy) {
                    fetch_element(&self.ports, switch.ports[usize::from(out)] as usize, 384);
                }
                switch.buffer.prepare(usize::from(port.local), packet.priority);
            }
            Node::Host(_) => fetch_element(&self.flows, packet.flow as usize, size_of::<Flow>()),
            Node::External(_) | Node::Engine(_) => {}
        }
    }
}
