//! Frames in: parse, find the QP's core, verify the ICRC there, give the packet to the QP.

use feroce_wire::Packet;

use super::{Core, CoreShared, Slot};
use crate::counters::Counter;
use crate::port::{Priority, RxFrame};
use crate::time::Instant;
use crate::timer_wheel::TimerWheel;
use std::collections::VecDeque;

/// The part of a core that a packet may change.
struct Tables<'a> {
    shared: &'a CoreShared,
    slots: &'a mut [Option<Box<Slot>>],
    active: &'a mut VecDeque<u32>,
    wheel: &'a mut TimerWheel,
}

impl Tables<'_> {
    /// Gives `packet`, which is for the QP in `slot` of this core, to it.
    fn deliver(&mut self, packet: &Packet<'_>, slot: u32, now: Instant) {
        let counters = &self.shared.counters;
        if !packet.icrc_valid() {
            counters.count(Counter::RxIcrcEncapsulated);
            return;
        }
        counters.count(Counter::PortRcvPackets);
        let bytes = usize::from(packet.udp.length).saturating_sub(feroce_wire::UdpHeader::LEN);
        counters.add(Counter::PortRcvData, bytes as u64);
        let place = self.slots.get_mut(slot as usize).and_then(Option::as_deref_mut);
        let Some(place) = place.filter(|place| place.qp.qpn() == packet.bth.dest_qp) else {
            counters.count(Counter::RxDiscards);
            return;
        };
        let mut env = self.shared.env(now);
        place.qp.handle_packet(packet, &mut env);
        place.care(slot, self.active, self.wheel);
    }
}

impl Core {
    /// Takes a burst of frames from the port.
    pub(super) fn receive(&mut self, now: Instant) -> usize {
        let count = self.port.rx_burst();
        if count == 0 {
            return 0;
        }
        let Self { id, port, shared, slots, active, wheel, handover, .. } = self;
        let mut tables = Tables { shared, slots, active, wheel };
        for index in 0..count {
            let frame = port.rx_frame(index);
            let packet = match Packet::parse(frame.first, frame.second) {
                Ok(packet) => packet,
                Err(_) => {
                    tables.shared.counters.count(Counter::PortRcvErrors);
                    continue;
                }
            };
            match tables.shared.qpns.locate(packet.bth.dest_qp) {
                Some((core, slot)) if core == *id => tables.deliver(&packet, slot, now),
                Some((core, _)) => hand_over(tables.shared, &mut handover.outbox[core], frame),
                None => tables.shared.counters.count(Counter::RxDiscards),
            }
        }
        for outbox in handover.outbox.iter_mut().flatten() {
            outbox.publish();
        }
        count
    }

    /// Takes the frames that other cores received for QPs of this one.
    pub(super) fn receive_handed_over(&mut self, now: Instant) -> usize {
        let mut done = 0;
        let Self { id, shared, slots, active, wheel, handover, .. } = self;
        let mut tables = Tables { shared, slots, active, wheel };
        for inbox in &mut handover.inbox {
            let count = inbox.burst();
            done += count;
            for index in 0..count {
                let (frame, _) = inbox.frame(index);
                let Ok(packet) = Packet::parse(frame, &[]) else { continue };
                if let Some((core, slot)) = tables.shared.qpns.locate(packet.bth.dest_qp)
                    && core == *id
                {
                    tables.deliver(&packet, slot, now);
                }
            }
        }
        done
    }
}

/// Copies `frame` to the ring of the core that owns its QP.
fn hand_over(
    shared: &CoreShared,
    outbox: &mut Option<crate::memory::frame_ring::FrameProducer>,
    frame: RxFrame<'_>,
) {
    let slot = outbox.as_mut().and_then(|outbox| outbox.slot());
    let Some(slot) = slot.filter(|slot| slot.len() >= frame.len()) else {
        shared.counters.count(Counter::RxHandoverDropped);
        return;
    };
    let (first, rest) = slot.split_at_mut(frame.first.len());
    first.copy_from_slice(frame.first);
    rest[..frame.second.len()].copy_from_slice(frame.second);
    if let Some(outbox) = outbox {
        outbox.commit(frame.len(), Priority::default());
    }
    shared.counters.count(Counter::RxHandedOver);
}
