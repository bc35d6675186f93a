//! A switch: stores packets in a shared buffer, marks them (ECN), queues them, and pauses senders
//! (PFC).

pub mod buffer;

use feroce_congestion::params::MarkAt;
use feroce_congestion::{Hop, Rate, Red};
use rand_xoshiro::Xoshiro128PlusPlus;
use rand_xoshiro::rand_core::Rng;

use super::Fabric;
use super::config::PfcConfig;
use super::events::Event;
use super::packet::{Flags, Kind, Packet, PacketId};
use super::routing::Routes;
use super::time::Time;
use buffer::{Admission, SharedBuffer};

/// A switch.
#[derive(Debug)]
pub(crate) struct Switch {
    /// Numbers of its ports within the fabric.
    pub ports: Vec<u32>,
    pub buffer: SharedBuffer,
    pub routes: Routes,
    pub marking: Option<(Red, MarkAt)>,
    pub random: Xoshiro128PlusPlus,
    /// For each port and priority, the time at which its pause must be repeated.
    pub refresh_at: Vec<[Time; 8]>,
    pub pfc: PfcConfig,
    /// Packets without a route.
    pub unroutable: u64,
}

impl Switch {
    /// Returns true if a packet at a queue of `queue` bytes must be marked.
    #[inline]
    fn marks(&mut self, queue: u64, at: MarkAt) -> bool {
        match &self.marking {
            Some((red, when)) if *when == at => red.mark(queue, self.random.next_u32()),
            _ => false,
        }
    }
}

impl Fabric {
    /// Handles a packet that arrives at `port`.
    pub(super) fn switch_receives(&mut self, number: u32, port: u32, id: PacketId) {
        let switch = &mut self.switches[number as usize];
        let packet = self.packets.get_mut(id);
        let local = self.ports[port as usize].local;
        let Some(out) = switch.routes.port(local, packet.to, packet.entropy) else {
            switch.unroutable += 1;
            self.packets.remove(id);
            return;
        };
        match switch.buffer.admit(usize::from(local), packet.priority(), packet.size) {
            Admission::Shared => {}
            Admission::Headroom => self.ports[port as usize].counts.headroom += 1,
            Admission::Dropped => {
                self.ports[port as usize].counts.dropped += 1;
                self.packets.remove(id);
                return;
            }
        }
        packet.ingress = local;
        let priority = packet.priority();
        let egress = switch.ports[usize::from(out)];
        let to = &mut self.ports[egress as usize];
        if packet.has(Flags::ECN_CAPABLE)
            && !packet.has(Flags::MARKED)
            && switch.marks(to.queued(priority), MarkAt::Enqueue)
        {
            packet.flags |= Flags::MARKED;
            to.counts.marked += 1;
        }
        to.enqueue(priority, id, &mut self.packets, self.now);
        if switch.buffer.pauses(usize::from(local), priority) {
            self.send_pause(number, port, priority, true);
        }
        self.try_transmit(egress);
    }

    /// Transmits the next packet of `port` when its link is free. Returns true if a packet was
    /// sent.
    pub(super) fn switch_sends(&mut self, number: u32, port: u32) -> bool {
        let out = &mut self.ports[port as usize];
        let Some(id) = out.dequeue(&mut self.packets, self.now) else { return false };
        let switch = &mut self.switches[number as usize];
        let packet = self.packets.get_mut(id);
        let (priority, ingress) = (packet.priority(), usize::from(packet.ingress));
        if packet.has(Flags::ECN_CAPABLE)
            && !packet.has(Flags::MARKED)
            && switch.marks(out.queued(priority), MarkAt::Dequeue)
        {
            packet.flags |= Flags::MARKED;
            out.counts.marked += 1;
        }
        if packet.has(Flags::TELEMETRY) && matches!(packet.kind(), Kind::Data { .. }) {
            let hop = Hop {
                queue: out.queued(priority),
                sent: out.counts.wire_bytes,
                at: self.now.instant(),
                rate: Rate::from_bps(out.rate.bits_per_second()),
            };
            self.telemetry.record(id, hop);
        }
        switch.buffer.release(ingress, priority, packet.size);
        let resumes = switch.buffer.resumes(ingress, priority);
        let from = switch.ports[ingress];
        self.transmit(port, id);
        if resumes {
            self.send_pause(number, from, priority, false);
        }
        true
    }

    /// Pauses or resumes a priority of the sender connected to `port`.
    fn send_pause(&mut self, number: u32, port: u32, priority: u8, stop: bool) {
        let pfc = self.switches[number as usize].pfc;
        let (enabled, quanta) = (1 << priority, if stop { pfc.quanta } else { 0 });
        let kind = Kind::Pfc { enabled, paused: if stop { enabled } else { 0 }, quanta };
        let id = self.packets.add(Packet::new(kind, u32::MAX, u32::MAX, self.packet.control, 7));
        let to = &mut self.ports[port as usize];
        to.control.push(id, &mut self.packets);
        if stop {
            to.counts.pauses_sent += 1;
        } else {
            to.counts.resumes_sent += 1;
        }
        if stop && pfc.repeat {
            let half = Time(to.rate.quanta(pfc.quanta).0 / 2);
            let local = usize::from(to.local);
            let at = self.now + half;
            self.switches[number as usize].refresh_at[local][usize::from(priority)] = at;
            self.events.push(at, Event::Refresh { port, priority });
        }
        self.try_transmit(port);
    }

    /// Repeats a pause after half its time, if it is still needed.
    pub(super) fn refresh(&mut self, number: u32, port: u32, priority: u8) {
        let local = usize::from(self.ports[port as usize].local);
        let switch = &self.switches[number as usize];
        let is_due = switch.refresh_at[local][usize::from(priority)] == self.now;
        if is_due && switch.buffer.is_paused(local, priority) {
            self.send_pause(number, port, priority, true);
        }
    }
}
