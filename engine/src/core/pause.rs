//! Flow control in the turn of a core: packets of paused priorities wait, and the neighbour is
//! requested to pause while the port's receive ring is full.
//!
//! A QP whose priority is paused leaves the list of active QPs and joins the held QPs, so that the
//! core does not spin. The end of the pause, by frame or by timer, reactivates it. The core that
//! receives a pause frame forwards it to the other cores: each of them sends, so each must obey it.

use feroce_wire::FlowControl;

use super::Core;
use super::receive::Tables;
use crate::counters::Counter;
use crate::memory::frame_ring::FrameProducer;
use crate::port::Priority;
use crate::time::Instant;

/// Pause frames are sent before all other frames, where the port has priorities.
const PRIORITY: Priority = Priority::new(7);

/// The counters of the paused time of each priority, in microseconds.
const PAUSED: [Counter; 8] = [
    Counter::RxPaused0,
    Counter::RxPaused1,
    Counter::RxPaused2,
    Counter::RxPaused3,
    Counter::RxPaused4,
    Counter::RxPaused5,
    Counter::RxPaused6,
    Counter::RxPaused7,
];

impl Tables<'_> {
    /// Applies the received pause frame `control`; without one, ends the pauses that are over. QPs
    /// and CNPs whose pause has ended may be sent again.
    pub(super) fn update_pauses(&mut self, control: Option<FlowControl>, now: Instant) {
        let Some(pfc) = self.pfc else { return };
        let has_ended = match control {
            Some(control) => pfc.on_frame(control, now),
            None => pfc.advance(now),
        };
        if has_ended {
            for slot in pfc.drain_held() {
                if let Some(place) = self.slots[slot as usize].as_deref_mut() {
                    place.is_held = false;
                    place.reschedule(slot, self.schedule);
                }
            }
            if let Some(congestion) = self.congestion {
                congestion.cnps.resume();
            }
        }
        let counters = &self.shared.counters;
        for (counter, paused) in PAUSED.into_iter().zip(pfc.paused_times().into_iter().flatten()) {
            let micros = u64::try_from(paused.as_micros()).unwrap_or(u64::MAX);
            counters.add(counter, micros - counters.get(counter));
        }
        self.schedule.set_pause_timer(pfc.next_event(now));
    }
}

impl Core {
    /// The timer of pauses has fired.
    #[cold]
    pub(super) fn expire_pauses(&mut self, now: Instant) {
        self.split(now).0.update_pauses(None, now);
    }

    /// Requests a pause from the neighbour, or ends it, by the fill level of the port's receive
    /// ring after `received` frames were taken from the ring.
    #[inline]
    pub(super) fn request_pause_by_fill(&mut self, received: usize, now: Instant) {
        if self.pfc.as_ref().is_some_and(|pfc| pfc.must_check_fill(received)) {
            self.check_fill(now);
        }
    }

    fn check_fill(&mut self, now: Instant) {
        let Self { pfc: Some(pfc), port, shared, handover, .. } = self else { return };
        let Some(fill) = port.rx_fill() else { return };
        // Frames for QPs of other cores leave the port's ring at once: the rings to those cores
        // count, too.
        let handed_over = handover.outbox.iter_mut().flatten().map(FrameProducer::fill).max();
        let fill = fill.max(handed_over.unwrap_or(0));
        let Some(request) = pfc.due_request(fill, now) else { return };
        let with_frame = pfc.needs_frame(request);
        if with_frame {
            let src = port.attributes().mac;
            let Some(slot) = port.tx_slot() else { return }; // The next turn tries again.
            let frame = pfc.frame(request, src);
            slot[..frame.len()].copy_from_slice(&frame);
            port.tx_commit(frame.len(), PRIORITY);
            shared.counters.count(Counter::TxPause);
            self.flush(1);
        }
        let Self { pfc: Some(pfc), schedule, .. } = self else { return };
        pfc.on_requested(request, with_frame, fill, now);
        schedule.set_pause_timer(pfc.next_event(now));
    }
}
