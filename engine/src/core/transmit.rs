//! Frames out: QPs with something to send take turns, a quantum each.

use feroce_wire::icrc;

use super::{Core, SUPER_FRAME_QUANTUM, TRANSMIT_BURST, TRANSMIT_QUANTUM};
use crate::counters::Counter;
use crate::port::Priority;
use crate::time::Instant;
use crate::verbs::AsyncEvent;

/// Priority of acknowledgements, which go ahead of data where the port has priorities.
const ACKNOWLEDGEMENT_PRIORITY: Priority = Priority::new(6);

impl Core {
    /// Sends until nothing is left, the port is full or the burst is long enough.
    pub(super) fn transmit(&mut self, now: Instant) -> usize {
        let room = match self.active.is_empty() {
            true => 0,
            false => self.port.tx_room().min(TRANSMIT_BURST),
        };
        let mut sent = 0;
        // Each active QP gets at most one quantum per turn.
        for _ in 0..self.active.len() {
            if sent >= room {
                break;
            }
            let Some(slot) = self.active.pop_front() else { break };
            let (count, more) = self.transmit_from(slot, room - sent, now);
            sent += count;
            let Some(place) = self.slots[slot as usize].as_deref_mut() else { continue };
            place.active = more;
            if place.active {
                self.active.push_back(slot);
            }
        }
        self.flush(sent);
        sent
    }

    /// Sends a quantum of packets of the QP in `slot`, or as many as there is `room` for; how many, and whether
    /// it may have more.
    fn transmit_from(&mut self, slot: u32, room: usize, now: Instant) -> (usize, bool) {
        let Self { port, slots, shared, active, wheel, ip_id, .. } = self;
        // A burst that goes on past a message lets its last packet and the next one's first, both longer than the
        // others of a READ response, share a super-frame.
        let alone = active.is_empty();
        let Some(place) = slots[slot as usize].as_deref_mut() else { return (0, false) };
        let mut env = shared.env(now);
        let (mut count, mut bytes) = (0, 0);
        let more = loop {
            if count == room {
                break true;
            }
            let Some(header) = place.qp.flow().map(feroce_wire::FlowHeader::len) else {
                break false;
            };
            let Some(frame) = port.tx_slot() else { break false };
            let Some(packet) = place.qp.poll_transmit(&mut env, &mut frame[header..]) else {
                break false;
            };
            let Some(flow) = place.qp.flow() else { break false };
            let len = flow.seal(frame, packet.len, *ip_id);
            // The identification skips 0, which segmentation does not.
            let super_frames = flow.spec().super_frames;
            let follows = super_frames && count > 0 && *ip_id != 1;
            *ip_id = ip_id.checked_add(1).unwrap_or(1);
            let priority = match packet.is_acknowledgement {
                true => ACKNOWLEDGEMENT_PRIORITY,
                false => Priority::default(),
            };
            match follows {
                true => port.tx_commit_next(len, priority),
                false => port.tx_commit(len, priority),
            }
            shared.counters.count(Counter::PortXmitPackets);
            shared.counters.add(Counter::PortXmitData, (packet.len + icrc::LEN) as u64);
            count += 1;
            bytes += len;
            let enough = match super_frames {
                true => bytes >= SUPER_FRAME_QUANTUM,
                false => count >= TRANSMIT_QUANTUM,
            };
            if enough && !alone {
                break true;
            }
        };
        place.rearm(slot, wheel);
        (count, more)
    }

    /// Rings the port's doorbell; a port that fails is reported once until it works again.
    fn flush(&mut self, sent: usize) {
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
