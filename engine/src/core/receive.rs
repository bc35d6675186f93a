//! Frames in: parses a frame, finds the core of its QP, verifies the ICRC there, passes the packet
//! to the QP. A datagram to a multicast group is delivered to every member of the group.

use feroce_wire::{Opcode, PacketView, Qpn, pause};

use super::Core;
use super::congestion::{on_cnp, on_received};
use super::loopback::Loopback;
use super::multicast::Groups;
use super::shared::{CoreShared, Handover};
use super::slot::{Schedule, Slot};
use crate::congestion::CoreCongestion;
use crate::counters::Counter;
use crate::memory::frame_ring::FrameProducer;
use crate::pfc::CorePfc;
use crate::port::{Port, Priority, RxFrame};
use crate::qp::Env;
use crate::time::Instant;

/// The part of a core that a received packet may change.
pub(super) struct Tables<'a> {
    id: usize,
    pub shared: &'a CoreShared,
    pub slots: &'a mut [Option<Box<Slot>>],
    pub schedule: &'a mut Schedule,
    groups: &'a Groups,
    pub congestion: &'a mut Option<Box<CoreCongestion>>,
    pub pfc: &'a mut Option<Box<CorePfc>>,
    /// The QP that received the last packets and is not rescheduled yet, and its slot. Packets
    /// often arrive in runs for one QP, which is rescheduled once per run.
    received: Option<(Qpn, u32)>,
    /// For all packets of the burst.
    env: Env<'a>,
}

/// The sources of received frames, and the rings to the other cores.
pub(super) struct Sources<'a> {
    port: &'a mut dyn Port,
    handover: &'a mut Handover,
    loopback: &'a mut Loopback,
}

impl Tables<'_> {
    /// Receives a frame from the port or, if `is_loopback`, one that this core sent to the device
    /// itself. `outboxes`: the rings to the other cores.
    #[inline(always)] // Once per packet.
    fn receive(
        &mut self,
        frame: RxFrame<'_>,
        is_loopback: bool,
        outboxes: &mut [Option<FrameProducer>],
        now: Instant,
    ) {
        // One call for the common frames, so that their parts are written to one place.
        match PacketView::parse_plain(frame.first) {
            Some(packet) => self.receive_packet(&packet, frame, is_loopback, outboxes, now),
            None => self.receive_any(frame, is_loopback, outboxes, now),
        }
    }

    #[inline(never)]
    fn receive_any(
        &mut self,
        frame: RxFrame<'_>,
        is_loopback: bool,
        outboxes: &mut [Option<FrameProducer>],
        now: Instant,
    ) {
        match PacketView::parse_any(frame.first, frame.second) {
            Ok(packet) => self.receive_packet(&packet, frame, is_loopback, outboxes, now),
            Err(_) => self.receive_non_roce(frame, outboxes, now),
        }
    }

    /// Receives `packet`, which is in `frame`.
    #[inline(always)] // As `receive`.
    fn receive_packet(
        &mut self,
        packet: &PacketView<'_>,
        frame: RxFrame<'_>,
        is_loopback: bool,
        outboxes: &mut [Option<FrameProducer>],
        now: Instant,
    ) {
        let qpn = packet.bth().dest_qp;
        let place = match self.received {
            Some((last, slot)) if last == qpn => Some((self.id, slot)),
            _ => self.shared.qpns.locate(qpn),
        };
        match place {
            Some((core, slot)) if core == self.id => {
                if self.verify_icrc(packet) {
                    self.deliver_to(packet, qpn, slot, now);
                }
            }
            Some((core, _)) => hand_over(self.shared, &mut outboxes[core], frame),
            None if qpn == Qpn::MULTICAST => {
                let mut others = self.deliver_to_group(packet, is_loopback, now);
                while others != 0 {
                    let core = others.trailing_zeros() as usize;
                    hand_over(self.shared, &mut outboxes[core], frame);
                    others &= others - 1;
                }
            }
            None => self.shared.counters.count(Counter::RxDiscards),
        }
    }

    /// Receives a frame that is not RoCE: a pause frame, which concerns all cores, or an error.
    #[cold]
    fn receive_non_roce(
        &mut self,
        frame: RxFrame<'_>,
        outboxes: &mut [Option<FrameProducer>],
        now: Instant,
    ) {
        if !self.receive_pause(frame.first, now) {
            self.shared.counters.count(Counter::PortRcvErrors);
            return;
        }
        self.shared.counters.count(Counter::RxPause);
        for outbox in outboxes.iter_mut().filter(|outbox| outbox.is_some()) {
            hand_over(self.shared, outbox, frame);
        }
    }

    /// Applies `frame` if it is a pause frame that this device obeys. Returns true if it is.
    fn receive_pause(&mut self, frame: &[u8], now: Instant) -> bool {
        if self.pfc.is_none() {
            return false;
        }
        let control = pause::inspect(frame, frame.len()).and_then(|seen| seen.obeyed());
        if control.is_some() {
            self.end_run();
            self.update_pauses(control, now);
        }
        control.is_some()
    }

    /// Receives a frame that another core handed over, for QPs of this core.
    fn receive_handed_over(&mut self, frame: &[u8], now: Instant) {
        let parsed = PacketView::parse(frame, &[]);
        let Ok(packet) = &parsed else {
            self.receive_pause(frame, now);
            return;
        };
        match self.shared.qpns.locate(packet.bth().dest_qp) {
            Some((core, slot)) if core == self.id && self.verify_icrc_of_one(packet) => {
                self.deliver_to_one(packet, packet.bth().dest_qp, slot, now);
            }
            None if packet.bth().dest_qp == Qpn::MULTICAST => {
                self.deliver_to_group(packet, false, now);
            }
            _ => {}
        }
    }

    /// Delivers `packet` to the members of its group on this core. Returns the cores of the other
    /// members, one bit each.
    fn deliver_to_group(
        &mut self,
        packet: &PacketView<'_>,
        is_loopback: bool,
        now: Instant,
    ) -> u64 {
        let groups = self.groups;
        let members = groups.members(packet.ip().dst());
        if members.is_empty() {
            self.shared.counters.count(Counter::RxDiscards);
            return 0;
        }
        if !self.verify_icrc_of_one(packet) {
            return 0;
        }
        let sender = packet.ext().deth().map(|deth| deth.src_qp);
        let mut others = 0;
        for member in members {
            if member.core != self.id {
                others |= 1 << member.core;
            } else if !(is_loopback && member.blocks_own && sender == Some(member.qpn)) {
                self.deliver_to_one(packet, member.qpn, member.slot, now);
            }
        }
        others
    }

    /// [`Self::verify_icrc`] for packets that are less frequent than those of [`Self::receive`].
    #[inline(never)]
    fn verify_icrc_of_one(&self, packet: &PacketView<'_>) -> bool {
        self.verify_icrc(packet)
    }

    /// Verifies the ICRC and counts the packet. Returns false if the ICRC is wrong.
    #[inline(always)] // As `deliver_to`.
    fn verify_icrc(&self, packet: &PacketView<'_>) -> bool {
        if !packet.icrc_valid() {
            self.shared.counters.count(Counter::RxIcrcEncapsulated);
            return false;
        }
        let bytes = usize::from(packet.udp().length).saturating_sub(feroce_wire::UdpHeader::LEN);
        self.shared.counters.count(Counter::PortRcvPackets);
        self.shared.counters.add(Counter::PortRcvData, bytes as u64);
        true
    }

    /// Reschedules the QP that received the last packets. Must follow the last packet of a burst.
    fn end_run(&mut self) {
        let Some((_, slot)) = self.received.take() else { return };
        if let Some(place) = self.slots[slot as usize].as_deref_mut() {
            place.reschedule(slot, self.schedule);
        }
    }

    /// [`Self::deliver_to`] for packets that are less frequent than those of [`Self::receive`].
    #[inline(never)]
    fn deliver_to_one(&mut self, packet: &PacketView<'_>, qpn: Qpn, slot: u32, now: Instant) {
        self.deliver_to(packet, qpn, slot, now);
    }

    /// Delivers the verified `packet` to the QP `qpn` in `slot` of this core.
    #[inline(always)] // Once per packet.
    fn deliver_to(&mut self, packet: &PacketView<'_>, qpn: Qpn, slot: u32, now: Instant) {
        if self.received != Some((qpn, slot)) {
            self.end_run();
        }
        let place = self.slots.get_mut(slot as usize).and_then(Option::as_deref_mut);
        let Some(place) = place.filter(|place| place.qp.qpn() == qpn) else {
            self.shared.counters.count(Counter::RxDiscards);
            return;
        };
        self.received = Some((qpn, slot));
        if packet.bth().opcode == Opcode::CNP {
            on_cnp(place, packet, &self.shared.counters, now);
            return; // It is rescheduled, as its next send time may depend on the new rate.
        }
        if let Some(congestion) = self.congestion {
            on_received(congestion, place, packet, &self.shared.counters, self.schedule, now);
        }
        let env = &mut self.env;
        env.start_packet();
        place.qp.handle_packet(packet, env);
        if let (Some(sender), Some(psn)) = (&mut place.sender, env.acked) {
            sender.on_acked(psn, now);
        }
        self.schedule.on_lost_responses(env);
        // The QP acknowledges a message to a program that sleeps before the program can send from
        // another QP, as programs do with XRC. For the same QP, see `qp::transmit_order`. Packets
        // of other cores may still be sent first.
        if place.qp.moves_to_front_after(packet, env) {
            self.end_run();
            self.schedule.move_to_front(slot);
        }
    }
}

impl Core {
    /// Splits the core into the part that a received packet may change and the sources of packets.
    pub(super) fn split(&mut self, now: Instant) -> (Tables<'_>, Sources<'_>) {
        let Self { id, shared, slots, schedule, groups, congestion, pfc, .. } = self;
        let tables = Tables {
            id: *id,
            shared,
            slots,
            schedule,
            groups,
            congestion,
            pfc,
            received: None,
            env: shared.env(now),
        };
        let Self { port, handover, loopback, .. } = self;
        (tables, Sources { port: &mut **port, handover, loopback })
    }

    /// Receives a burst of frames from the port. Returns their number.
    pub(super) fn receive(&mut self, now: Instant) -> usize {
        let count = self.port.rx_burst();
        if count == 0 {
            return 0;
        }
        let (mut tables, Sources { port, handover, .. }) = self.split(now);
        for index in 0..count {
            tables.receive(port.rx_frame(index), false, &mut handover.outbox, now);
        }
        tables.end_run();
        handover.publish();
        count
    }

    /// Receives the frames that other cores handed over. Returns their number.
    pub(super) fn receive_handed_over(&mut self, now: Instant) -> usize {
        let (mut tables, Sources { handover, .. }) = self.split(now);
        let mut done = 0;
        for inbox in &mut handover.inbox {
            let count = inbox.burst();
            done += count;
            for index in 0..count {
                tables.receive_handed_over(inbox.frame(index).0, now);
            }
        }
        tables.end_run();
        done
    }

    /// Receives the frames that this turn sent to the device itself. Returns their number.
    pub(super) fn receive_loopback(&mut self, now: Instant) -> usize {
        let count = self.loopback.burst();
        if count == 0 {
            return 0;
        }
        let (mut tables, Sources { handover, loopback, .. }) = self.split(now);
        for index in 0..count {
            let frame = RxFrame { first: loopback.frame(index), second: &[] };
            tables.receive(frame, true, &mut handover.outbox, now);
        }
        tables.end_run();
        handover.publish();
        count
    }
}

/// Copies `frame` to the ring of the core that has its QP.
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
        outbox.commit(frame.len(), Priority::default(), false);
    }
    shared.counters.count(Counter::RxHandedOver);
}
