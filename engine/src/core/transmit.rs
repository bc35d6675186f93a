//! Frames out: QPs with something to send are served round-robin, one quantum each. A QP that
//! acknowledges a message that woke a program is served next.

use feroce_wire::{FlowHeader, icrc};

use super::Core;
use super::congestion::hold_back;
use super::loopback::Loopback;
use super::multicast::Groups;
use super::shared::CoreShared;
use super::slot::Slot;
use super::super_frame::{Path, Quantum, TRANSMIT_BURST};
use crate::congestion::Sent;
use crate::counters::Counter;
use crate::pfc::{CorePfc, PauseGate};
use crate::port::contract::{Port, Priority, STUCK_AFTER};
use crate::qp::Transmit;
use crate::time::Instant;
use crate::verbs::AsyncEvent;

/// Priority of acknowledgements, which are sent ahead of data where the port has priorities.
const ACKNOWLEDGEMENT_PRIORITY: Priority = Priority::new(6);

/// Packets that a QP may send when it stops: four windows of the default size.
const DRAIN_MAX: usize = 1024;

impl Core {
    /// Sends until nothing is left, the port is full or the burst is long enough.
    pub(super) fn transmit(&mut self, now: Instant) -> usize {
        let cnps = match self.cnps_due() {
            Some(_) => self.send_cnps(now),
            None => 0,
        };
        self.give_grants();
        let mut room = match self.schedule.active.is_empty() {
            true => 0,
            false => {
                let reserved = self.pfc.as_ref().map_or(0, |pfc| pfc.reserved_slots());
                self.port.tx_room().saturating_sub(reserved).min(TRANSMIT_BURST)
            }
        };
        let is_stuck = self.is_port_stuck(room, now);
        let room_before = room;
        let mut sent = 0;
        // Each active QP gets at most one quantum per turn. While the port is full, some QPs are
        // still visited: their packets may be for this host.
        let visits = if room == 0 { TRANSMIT_BURST } else { usize::MAX };
        for _ in 0..self.schedule.active.len().min(visits) {
            if sent >= TRANSMIT_BURST {
                break;
            }
            let Some(slot) = self.schedule.active.pop_front() else { break };
            let (count, more) = self.transmit_from(slot, TRANSMIT_BURST - sent, &mut room, now);
            sent += count;
            let Some(place) = self.slots[slot as usize].as_deref_mut() else { continue };
            place.is_active = more;
            if place.is_active {
                self.schedule.active.push_back(slot);
            }
            if place.is_active && is_stuck {
                place.qp.start_timeout_on_stuck_port(now);
                place.rearm(slot, &mut self.schedule);
            }
        }
        self.flush(room_before - room + cnps);
        self.loopback.publish();
        // A QP that had nothing to send leaves its grant to those that wait, for the next turn.
        sent + cnps + usize::from(self.schedule.is_any_ready())
    }

    /// Lets QPs send that waited for the window of their peer, or for the read window.
    fn give_grants(&mut self) {
        while let Some(slot) = self.schedule.peers.next_waiting() {
            let Some(place) = self.slots[slot as usize].as_deref_mut() else { continue };
            self.schedule.peers.grant(&mut place.share);
            place.reschedule(slot, &mut self.schedule);
        }
        while let Some((slot, packets)) = self.schedule.reads.next_waiting() {
            let Some(place) = self.slots[slot as usize].as_deref_mut() else { continue };
            self.schedule.reads.serve(&mut place.read_share, packets);
            place.reschedule(slot, &mut self.schedule);
        }
    }

    /// Returns true if packets have waited longer than [`STUCK_AFTER`] for the port, which has
    /// `room` now, and the port has sent nothing in that time.
    fn is_port_stuck(&mut self, room: usize, now: Instant) -> bool {
        if room > 0 || self.schedule.active.is_empty() || self.port.tx_moved() {
            self.full_since = None;
            return false;
        }
        now.saturating_since(*self.full_since.get_or_insert(now)) >= STUCK_AFTER
    }

    /// Sends what the QP in `slot` may send now, at most [`DRAIN_MAX`] packets, before the QP
    /// stops. A program that was notified of a message may end the connection in the same turn;
    /// without this, the peer would never get the acknowledgement of that message. The same applies
    /// to datagrams that a program posts just before it destroys their QP, as mckey does, and to
    /// the last message before a disconnect: the core may know of that request only by its
    /// doorbell. Packets for which the port, the peer or the send window has no room are lost with
    /// the QP. A request that fails at this end is not completed here: the program stops the QP, so
    /// the request is flushed. If the memory of a READ response has gone, the peer gets a NAK; the
    /// QP is then in ERR for this reason, with an event, before the program stops it.
    pub fn drain(&mut self, slot: u32, now: Instant) {
        self.shared.recent.forget();
        self.handle_doorbells(now);
        let place = self.slots[slot as usize].as_deref_mut();
        let Some(place) = place.filter(|place| place.is_active || place.is_held) else { return };
        place.qp.set_stopping(true);
        let unpaced = self.stop_pacing(slot);
        if let Some(pfc) = &mut self.pfc {
            pfc.set_draining(true);
        }
        let mut drained = 0;
        while drained < DRAIN_MAX {
            let room_before = self.port.tx_room().min(TRANSMIT_BURST);
            let mut room = room_before;
            let (sent, more) = self.transmit_from(slot, TRANSMIT_BURST, &mut room, now);
            self.flush(room_before - room);
            self.loopback.publish();
            drained += sent;
            if sent == 0 || !more {
                break;
            }
        }
        if let Some(pfc) = &mut self.pfc {
            pfc.set_draining(false);
        }
        self.resume_pacing(slot, unpaced);
        if let Some(place) = self.slots[slot as usize].as_deref_mut() {
            place.qp.set_stopping(false);
        }
    }

    /// Sends a quantum of packets of the QP in `slot`: at most `most` packets, and to the link at
    /// most `room`. Returns how many were sent, and whether the QP may have more.
    fn transmit_from(
        &mut self,
        slot: u32,
        most: usize,
        room: &mut usize,
        now: Instant,
    ) -> (usize, bool) {
        let Self {
            port, slots, shared, schedule, ip_id, loopback, groups, pfc, link_sets_id, ..
        } = self;
        let Some(place) = slots[slot as usize].as_deref_mut() else { return (0, false) };
        let mut env = shared.env(now);
        let largest = place.set_limits(&mut env, &**port, schedule);
        let mut quantum = Quantum::new(schedule.active.is_empty());
        let (mut path, is_connected) = (Path::default(), place.qp.is_connected());
        // Without congestion control and flow control, no packet waits.
        let is_limited = place.sender.is_some() || pfc.is_some();
        let more = loop {
            if quantum.packets() == most {
                break true;
            }
            if quantum.packets() == 0 || !is_connected {
                let Some(flow) = place.qp.next_flow() else { break false };
                path = Path::of(flow);
            }
            let Path { start, is_loopback, super_frames, .. } = path;
            let gate = gate(pfc, is_loopback, slot, place);
            if gate == PauseGate::HoldAll {
                place.qp.execute_local_requests(&mut env);
                break false;
            }
            if !is_loopback && *room == 0 {
                break true;
            }
            let free = if is_loopback { loopback.slot() } else { port.tx_slot() };
            let Some(mut frame) = free else { break is_loopback };
            // A QP that waits for its pacer leaves the list of active QPs; its timer reactivates
            // it.
            if is_limited {
                hold_back(&mut place.sender, is_loopback, gate, largest, &mut env);
            }
            let transport = &mut frame[start..];
            let packet = place.next_packet(slot, &mut env, transport, schedule);
            let Some(packet) = packet else { break false };
            let Some(flow) = place.qp.flow() else { break false };
            let joins_previous = quantum.joins_previous(super_frames, *ip_id);
            let mut id = *ip_id;
            if *link_sets_id && !is_loopback {
                let len = packet.len + icrc::LEN;
                id = port.tx_identification(len, joins_previous).unwrap_or(id);
                frame = port.tx_slot().expect("the slot that was not committed");
            }
            let len = flow.seal(frame, packet.len, id);
            *ip_id = ip_id.checked_add(1).unwrap_or(1);
            if path.is_group {
                copy_to_members(&mut **port, len, flow, groups, loopback, shared);
            }
            commit(&mut **port, loopback, is_loopback, (len, priority_of(&packet), joins_previous));
            *room -= usize::from(!is_loopback);
            let ends = quantum.count(path, len, packet.len + icrc::LEN);
            place.on_sent(&packet.sent, len, is_loopback, &mut schedule.peers, now);
            if ends {
                break true;
            }
        };
        shared.counters.add(Counter::TxLoopback, quantum.looped as u64);
        shared.count_sent(quantum.packets(), quantum.transport_bytes);
        place.end_quantum(slot, more, &env, schedule);
        (quantum.packets(), more)
    }

    /// Rings the port's doorbell. A port that fails is reported once until it works again.
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

/// The gate for the next packet of the QP in `place`, whose headers are known.
#[inline]
fn gate(
    pfc: &mut Option<Box<CorePfc>>,
    is_loopback: bool,
    slot: u32,
    place: &mut Slot,
) -> PauseGate {
    let Some(pfc) = pfc.as_mut().filter(|_| !is_loopback) else { return PauseGate::Pass };
    let Some(flow) = place.qp.flow() else { return PauseGate::Pass };
    pfc.gate(flow.spec(), slot, &mut place.is_held)
}

/// Commits the frame in the slot that the port or `loopback` returned last.
#[inline]
fn commit(
    port: &mut dyn Port,
    loopback: &mut Loopback,
    is_loopback: bool,
    (len, priority, joins_previous): (usize, Priority, bool),
) {
    match (is_loopback, joins_previous) {
        (true, _) => loopback.commit(len, priority),
        (false, true) => port.tx_commit_next(len, priority),
        (false, false) => port.tx_commit(len, priority),
    }
}

fn priority_of(packet: &Transmit) -> Priority {
    match packet.sent {
        Sent::Acknowledgement => ACKNOWLEDGEMENT_PRIORITY,
        Sent::Response | Sent::Request(_) => Priority::default(),
    }
}

/// Copies a multicast datagram to the members of its group on this device. The datagram is the
/// first `len` bytes of the slot that `port` returned last.
fn copy_to_members(
    port: &mut dyn Port,
    len: usize,
    flow: &FlowHeader,
    groups: &Groups,
    loopback: &mut Loopback,
    shared: &CoreShared,
) {
    let group = flow.spec().addresses.dst();
    if groups.members(group).is_empty() {
        return;
    }
    // The port returns the same slot until it is committed.
    let Some(frame) = port.tx_slot() else { return };
    shared.counters.count(match loopback.copy(&frame[..len]) {
        true => Counter::TxLoopback,
        false => Counter::RxHandoverDropped,
    });
}
