//! Frames out: QPs with something to send take turns, a quantum each. Ahead of them go those that acknowledge what woke a program.

use feroce_wire::{Audience, FlowHeader, IpAddresses, icrc};

use super::congestion::{count_sent, hold_back};
use super::loopback::Loopback;
use super::multicast::Groups;
use super::pause::{Stays, stays};
use super::{Core, CoreShared, SUPER_FRAME_QUANTUM, TRANSMIT_BURST, TRANSMIT_QUANTUM};
use crate::counters::Counter;
use crate::port::contract::{PATIENCE, Port, Priority};
use crate::qp::Transmit;
use crate::time::Instant;
use crate::verbs::AsyncEvent;

/// Priority of acknowledgements, which go ahead of data where the port has priorities.
const ACKNOWLEDGEMENT_PRIORITY: Priority = Priority::new(6);

impl Core {
    /// Sends until nothing is left, the port is full or the burst is long enough.
    pub(super) fn transmit(&mut self, now: Instant) -> usize {
        let cnps = match self.has_cnps() {
            true => self.send_cnps(now),
            false => 0,
        };
        let mut room = match self.active.is_empty() {
            true => 0,
            false => {
                let kept = self.pfc.as_ref().map_or(0, |pfc| pfc.kept_slots());
                self.port.tx_room().saturating_sub(kept).min(TRANSMIT_BURST)
            }
        };
        let stuck = self.is_port_stuck(room, now);
        let room_before = room;
        let mut sent = 0;
        // Each active QP gets at most one quantum per turn. Behind a full port, some are still looked at: their
        // packets may be for this host.
        let visits = if room == 0 { TRANSMIT_BURST } else { usize::MAX };
        for _ in 0..self.active.len().min(visits) {
            if sent >= TRANSMIT_BURST {
                break;
            }
            let Some(slot) = self.active.pop_front() else { break };
            let (count, more) = self.transmit_from(slot, TRANSMIT_BURST - sent, &mut room, now);
            sent += count;
            let Some(place) = self.slots[slot as usize].as_deref_mut() else { continue };
            place.active = more;
            if place.active {
                self.active.push_back(slot);
            }
            if place.active && stuck {
                place.qp.wait_for_port(now);
                place.rearm(slot, &mut self.wheel);
            }
        }
        self.flush(room_before - room + cnps);
        self.loopback.publish();
        sent + cnps
    }

    /// Whether something has waited longer than [`PATIENCE`] for a port that has `room` now, and nothing went on meanwhile.
    fn is_port_stuck(&mut self, room: usize, now: Instant) -> bool {
        if room > 0 || self.active.is_empty() || self.port.tx_moved() {
            self.full_since = None;
            return false;
        }
        now.saturating_since(*self.full_since.get_or_insert(now)) >= PATIENCE
    }

    /// Sends a quantum of the QP in `slot` at once, before it stops: a program that was told of a message may end the
    /// connection in the same turn, and the peer would wait for ever for an acknowledgement of what has arrived. Datagrams that a program
    /// posts ahead of destroying their QP, as mckey does, are not lost either.
    pub fn settle(&mut self, slot: u32, now: Instant) {
        if !self.slots[slot as usize].as_deref().is_some_and(|place| place.active || place.held) {
            return;
        }
        let room_before = self.port.tx_room().min(TRANSMIT_BURST);
        let mut room = room_before;
        let unpaced = self.stop_pacing(slot);
        self.set_settling(true);
        self.transmit_from(slot, TRANSMIT_BURST, &mut room, now);
        self.set_settling(false);
        self.resume_pacing(slot, unpaced);
        self.flush(room_before - room);
        self.loopback.publish();
    }

    /// Sends a quantum of packets of the QP in `slot`, at most `most`, and to the link as many as there is `room`
    /// for; how many, and whether it may have more.
    fn transmit_from(
        &mut self,
        slot: u32,
        most: usize,
        room: &mut usize,
        now: Instant,
    ) -> (usize, bool) {
        let Self { port, slots, shared, active, wheel, ip_id, loopback, groups, pfc, .. } = self;
        // A burst that goes on past a message lets its last packet and the next one's first, both longer than the
        // others of a READ response, share a super-frame.
        let alone = active.is_empty();
        let Some(place) = slots[slot as usize].as_deref_mut() else { return (0, false) };
        let mut env = shared.env(now);
        let largest = place.limit(&mut env, &**port);
        let (mut count, mut bytes) = (0, 0);
        let more = loop {
            if count == most {
                break true;
            }
            let Some(flow) = place.qp.next_flow() else { break false };
            let (start, audience) = (flow.len(), flow.audience());
            let is_own = audience == Audience::Own;
            let stays = stays(pfc, is_own, flow.spec(), slot, &mut place.held);
            if stays == Stays::All {
                place.qp.do_local(&mut env);
                break false;
            }
            if !is_own && *room == 0 {
                break true;
            }
            let slot = if is_own { loopback.slot() } else { port.tx_slot() };
            let Some(frame) = slot else { break is_own };
            // What its pacer does not let go waits, off the list of active QPs; its timer brings it back.
            hold_back(&mut place.control, is_own, stays, largest, &mut env);
            let transport = &mut frame[start..];
            let Some(packet) = place.qp.poll_transmit(&mut env, transport) else { break false };
            let Some(flow) = place.qp.flow() else { break false };
            let len = flow.seal(frame, packet.len, *ip_id);
            if !(is_own || packet.is_acknowledgement) {
                count_sent(&mut place.control, &frame[..len], start, now);
            }
            // The identification skips 0, which segmentation does not.
            let super_frames = flow.spec().super_frames;
            let follows = super_frames && count > 0 && *ip_id != 1;
            *ip_id = ip_id.checked_add(1).unwrap_or(1);
            let priority = priority_of(packet);
            if audience == Audience::Group {
                copy_to_members(&mut **port, len, flow, groups, loopback, shared);
            }
            match (is_own, follows) {
                (true, _) => loopback.commit(len, priority),
                (false, true) => port.tx_commit_next(len, priority),
                (false, false) => port.tx_commit(len, priority),
            }
            *room -= usize::from(!is_own);
            shared.counters.add(Counter::LoopedBack, is_own.into());
            shared.count_sent(packet.len + icrc::LEN);
            (count, bytes) = (count + 1, bytes + len);
            let enough = match super_frames {
                true => bytes >= SUPER_FRAME_QUANTUM && !alone,
                false => count >= TRANSMIT_QUANTUM,
            };
            if enough {
                break true;
            }
        };
        place.rearm(slot, wheel);
        (count, more)
    }

    /// Rings the port's doorbell; a port that fails is reported once until it works again.
    pub(super) fn flush(&mut self, sent: usize) {
        match self.port.flush() {
            Ok(()) if sent > 0 && self.port_failed => {
                self.port_failed = false;
                self.shared.events.push(AsyncEvent::PortActive);
            }
            Ok(()) => {}
            Err(error) => {
                self.shared.counters.count(Counter::PortErrors);
                if !self.port_failed {
                    self.port_failed = true;
                    tracing::warn!(core = self.id, %error, "the port cannot send");
                    self.shared.events.push(AsyncEvent::PortError);
                }
            }
        }
    }
}

/// Acknowledgements go ahead of data.
fn priority_of(packet: Transmit) -> Priority {
    match packet.is_acknowledgement {
        true => ACKNOWLEDGEMENT_PRIORITY,
        false => Priority::default(),
    }
}

/// A datagram to a group, the first `len` bytes of the slot that `port` gave last, also goes to the members that this device has itself.
fn copy_to_members(
    port: &mut dyn Port,
    len: usize,
    flow: &FlowHeader,
    groups: &Groups,
    loopback: &mut Loopback,
    shared: &CoreShared,
) {
    let group = match flow.spec().addresses {
        IpAddresses::V4 { dst, .. } => dst.into(),
        IpAddresses::V6 { dst, .. } => dst.into(),
    };
    if groups.members(group).is_empty() {
        return;
    }
    // Until it is committed, the port gives the same slot again.
    let Some(frame) = port.tx_slot() else { return };
    shared.counters.count(match loopback.copy(&frame[..len]) {
        true => Counter::LoopedBack,
        false => Counter::RxHandoverDropped,
    });
}
