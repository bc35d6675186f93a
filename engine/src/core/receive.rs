//! Frames in: parse, find the QP's core, verify the ICRC there, give the packet to the QP. A datagram to a
//! multicast group goes to every member of the group.

use feroce_wire::{Opcode, Packet, Qpn, pause};

use super::congestion::{Congestion, take_cnp};
use super::loopback::Loopback;
use super::multicast::Groups;
use super::pause::{Pfc, Waiting};
use super::{Core, CoreShared, Slot};
use crate::counters::Counter;
use crate::memory::frame_ring::FrameProducer;
use crate::port::{Priority, RxFrame};
use crate::time::Instant;
use crate::timer_wheel::TimerWheel;
use std::collections::VecDeque;

/// The part of a core that a packet may change.
pub(super) struct Tables<'a> {
    id: usize,
    shared: &'a CoreShared,
    slots: &'a mut [Option<Box<Slot>>],
    active: &'a mut VecDeque<u32>,
    wheel: &'a mut TimerWheel,
    groups: &'a Groups,
    congestion: &'a mut Option<Box<Congestion>>,
    pfc: &'a mut Option<Box<Pfc>>,
}

impl Tables<'_> {
    /// Takes a frame from the port, or one that went out to the device itself: `looped`. `outboxes` lead to
    /// the other cores.
    pub(super) fn take(
        &mut self,
        frame: RxFrame<'_>,
        looped: bool,
        outboxes: &mut [Option<FrameProducer>],
        now: Instant,
    ) {
        // Looked at where it was parsed to: it is large, and copying it would wait until all of it has been written.
        let parsed = Packet::parse(frame.first, frame.second);
        let Ok(packet) = &parsed else {
            self.take_other(frame, outboxes, now);
            return;
        };
        match self.shared.qpns.locate(packet.bth.dest_qp) {
            Some((core, slot)) if core == self.id => self.deliver(packet, slot, now),
            Some((core, _)) => hand_over(self.shared, &mut outboxes[core], frame),
            None if packet.bth.dest_qp == Qpn::MULTICAST => {
                let mut others = self.deliver_to_group(packet, looped, now);
                while others != 0 {
                    let core = others.trailing_zeros() as usize;
                    hand_over(self.shared, &mut outboxes[core], frame);
                    others &= others - 1;
                }
            }
            None => self.shared.counters.count(Counter::RxDiscards),
        }
    }

    /// Takes a frame that is no RoCE: flow control, which is for all cores, or an error.
    #[cold]
    fn take_other(
        &mut self,
        frame: RxFrame<'_>,
        outboxes: &mut [Option<FrameProducer>],
        now: Instant,
    ) {
        if !self.take_pause(frame.first, now) {
            self.shared.counters.count(Counter::PortRcvErrors);
            return;
        }
        self.shared.counters.count(Counter::RxPause);
        for outbox in outboxes.iter_mut().filter(|outbox| outbox.is_some()) {
            hand_over(self.shared, outbox, frame);
        }
    }

    /// Takes `frame` if it is flow control that is obeyed here; whether it is.
    fn take_pause(&mut self, frame: &[u8], now: Instant) -> bool {
        let Self { pfc: Some(pfc), shared, slots, active, wheel, congestion, .. } = self else {
            return false;
        };
        let control = pause::inspect(frame, frame.len()).and_then(|seen| seen.obeyed());
        if control.is_some() {
            pfc.take(control, Waiting { slots, active, wheel, congestion }, shared, now);
        }
        control.is_some()
    }

    /// Takes a frame that another core received, for QPs of this one.
    fn take_handed_over(&mut self, frame: &[u8], now: Instant) {
        let parsed = Packet::parse(frame, &[]);
        let Ok(packet) = &parsed else {
            self.take_pause(frame, now);
            return;
        };
        match self.shared.qpns.locate(packet.bth.dest_qp) {
            Some((core, slot)) if core == self.id => self.deliver(packet, slot, now),
            None if packet.bth.dest_qp == Qpn::MULTICAST => {
                self.deliver_to_group(packet, false, now);
            }
            _ => {}
        }
    }

    /// Gives `packet`, which is for the QP in `slot` of this core, to it.
    fn deliver(&mut self, packet: &Packet<'_>, slot: u32, now: Instant) {
        if self.is_sound(packet) {
            self.give(packet, packet.bth.dest_qp, slot, now);
        }
    }

    /// Gives `packet` to the members of its group on this core. Returns the cores of the others, one bit each.
    fn deliver_to_group(&mut self, packet: &Packet<'_>, looped: bool, now: Instant) -> u64 {
        let groups = self.groups;
        let members = groups.members(packet.ip.dst());
        if members.is_empty() {
            self.shared.counters.count(Counter::RxDiscards);
            return 0;
        }
        if !self.is_sound(packet) {
            return 0;
        }
        let sender = packet.ext.deth.map(|deth| deth.src_qp);
        let mut others = 0;
        for member in members {
            if member.core != self.id {
                others |= 1 << member.core;
            } else if !(looped && member.blocks_own && sender == Some(member.qpn)) {
                self.give(packet, member.qpn, member.slot, now);
            }
        }
        others
    }

    /// Verifies the ICRC, and counts.
    fn is_sound(&self, packet: &Packet<'_>) -> bool {
        let counters = &self.shared.counters;
        if !packet.icrc_valid() {
            counters.count(Counter::RxIcrcEncapsulated);
            return false;
        }
        counters.count(Counter::PortRcvPackets);
        let bytes = usize::from(packet.udp.length).saturating_sub(feroce_wire::UdpHeader::LEN);
        counters.add(Counter::PortRcvData, bytes as u64);
        true
    }

    /// Gives `packet` to the QP `qpn` in `slot` of this core.
    fn give(&mut self, packet: &Packet<'_>, qpn: Qpn, slot: u32, now: Instant) {
        let place = self.slots.get_mut(slot as usize).and_then(Option::as_deref_mut);
        let Some(place) = place.filter(|place| place.qp.qpn() == qpn) else {
            self.shared.counters.count(Counter::RxDiscards);
            return;
        };
        if packet.bth.opcode == Opcode::CNP {
            take_cnp(place, packet, &self.shared.counters, now);
            place.care(slot, self.active, self.wheel); // It may have waited for another rate.
            return;
        }
        if let Some(congestion) = self.congestion {
            congestion.note(place, packet, &self.shared.counters, self.wheel, now);
        }
        let mut env = self.shared.env(now);
        place.qp.handle_packet(packet, &mut env);
        place.care(slot, self.active, self.wheel);
        if place.qp.moves_to_front_after(packet, &env) {
            go_first(slot, self.active);
        }
    }
}

/// The QP in `slot` acknowledges a message that woke a program ahead of what the program may send from another QP, as it does with XRC;
/// for the same QP, see `qp::transmit_order`. What other cores send is not held back.
#[cold]
fn go_first(slot: u32, active: &mut VecDeque<u32>) {
    if let Some(at) = active.iter().rposition(|&other| other == slot) {
        active.remove(at);
        active.push_front(slot);
    }
}

impl Core {
    /// Takes a burst of frames from the port.
    pub(super) fn receive(&mut self, now: Instant) -> usize {
        let count = self.port.rx_burst();
        if count == 0 {
            return 0;
        }
        let Self {
            id, port, shared, slots, active, wheel, groups, congestion, pfc, handover, ..
        } = self;
        let mut tables = Tables { id: *id, shared, slots, active, wheel, groups, congestion, pfc };
        for index in 0..count {
            tables.take(port.rx_frame(index), false, &mut handover.outbox, now);
        }
        self.publish_handed_over();
        count
    }

    /// Takes the frames that other cores received for QPs of this one.
    pub(super) fn receive_handed_over(&mut self, now: Instant) -> usize {
        let mut done = 0;
        let Self { id, shared, slots, active, wheel, groups, congestion, pfc, handover, .. } = self;
        let mut tables = Tables { id: *id, shared, slots, active, wheel, groups, congestion, pfc };
        for inbox in &mut handover.inbox {
            let count = inbox.burst();
            done += count;
            for index in 0..count {
                tables.take_handed_over(inbox.frame(index).0, now);
            }
        }
        done
    }

    /// What frames that went out to the device itself are taken with.
    pub(super) fn looped_tables(
        &mut self,
    ) -> (Tables<'_>, &mut Loopback, &mut [Option<FrameProducer>]) {
        let Self {
            id,
            shared,
            slots,
            active,
            wheel,
            groups,
            congestion,
            pfc,
            handover,
            loopback,
            ..
        } = self;
        let tables = Tables { id: *id, shared, slots, active, wheel, groups, congestion, pfc };
        (tables, loopback, &mut handover.outbox)
    }

    /// Shows other cores what was handed over to them.
    pub(super) fn publish_handed_over(&mut self) {
        for outbox in self.handover.outbox.iter_mut().flatten() {
            outbox.publish();
        }
    }
}

/// Copies `frame` to the ring of the core that owns its QP.
fn hand_over(shared: &CoreShared, outbox: &mut Option<FrameProducer>, frame: RxFrame<'_>) {
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
