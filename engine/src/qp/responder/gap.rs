//! Packets ahead of the expected one: a gap. Go-back-N drops them, selective repeat holds them.

use std::sync::Arc;

use feroce_wire::{PacketView, Psn};

use super::ahead::{Ahead, AheadPool, PacketsAhead};
use super::{Responder, Verdict};
use crate::counters::Counter;
use crate::qp::connection::Connection;
use crate::qp::env::Env;
use crate::qp::requester::MAX_READS;
use crate::qp::responder_resources::PendingAck;

impl Responder {
    /// Holds packets ahead of the expected one from now on, in memory from `pool`.
    pub(in crate::qp) fn hold_ahead(&mut self, pool: Arc<AheadPool>) {
        self.ahead = Some(Box::new(PacketsAhead::new(pool)));
        self.resources.reserve_for_replays();
        // READs and atomics behind a missing response go on.
        self.replay.reserve(MAX_READS);
    }

    /// Returns true if packets ahead of the expected one are held now.
    #[inline]
    pub(super) fn has_held(&self) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| !ahead.is_empty())
    }

    /// Drops the packets ahead of the expected one.
    pub(super) fn drop_ahead(&mut self) {
        self.last_dropped = None;
        if let Some(ahead) = &mut self.ahead {
            ahead.clear();
        }
    }

    /// Handles a packet ahead of the expected one.
    pub(super) fn handle_gap(&mut self, packet: &PacketView<'_>, env: &mut Env<'_>) -> Verdict {
        env.counters.count(Counter::OutOfSequence);
        // No NAK follows a NAK that makes the peer go back.
        if !self.gap_reported && self.must_report_gap(packet, env) {
            self.pending_ack = Some(PendingAck::SequenceNak);
        }
        Verdict::Continue
    }

    /// Holds or drops a packet ahead of the expected one. Returns true if the peer must be told:
    /// with go-back-N once per gap; with selective repeat once per gap, and when the peer asks,
    /// because the NAK says what has arrived.
    fn must_report_gap(&mut self, packet: &PacketView<'_>, env: &Env<'_>) -> bool {
        let held = self.ahead.as_mut().map(|ahead| ahead.hold(packet, self.epsn));
        match held {
            Some(Ahead::Held { opens_gap }) => {
                env.counters.count(Counter::HeldPackets);
                opens_gap || packet.bth().ack_req
            }
            Some(Ahead::Known) => packet.bth().ack_req,
            Some(Ahead::Dropped) if self.has_held() => {
                let psn = packet.bth().psn;
                let is_first = self.last_dropped.is_none();
                if self.last_dropped.is_none_or(|last| last.is_before(psn)) {
                    self.last_dropped = Some(psn);
                }
                is_first
            }
            Some(Ahead::Dropped) | None => {
                self.gap_reported = true;
                true
            }
        }
    }

    /// Executes the held packets that are expected now; the packet before them was executed. Then
    /// the peer learns what has arrived. `acknowledged`: the last SEND or WRITE before all of them.
    #[cold]
    pub(super) fn handle_held(
        &mut self,
        acknowledged: Psn,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        let mut executed = 0;
        // A QP that must go to ERR does so at the end of this call.
        while env.fatal_event.is_none() {
            let Some(ahead) = &mut self.ahead else { break };
            let Some(held) = ahead.take(self.epsn) else { break };
            let verdict = self.handle_expected(&held.packet(), conn, env);
            if let Some(ahead) = &mut self.ahead {
                ahead.release(held);
            }
            if verdict != Verdict::Continue || self.gap_reported {
                return verdict; // It was rejected, and the NAK is scheduled.
            }
            executed += 1;
        }
        let is_gap_left = self.has_held();
        if (is_gap_left && executed == 0) || matches!(self.pending_ack, Some(PendingAck::Nak(..))) {
            return Verdict::Continue; // Nothing new, or something worse.
        }
        // The peer must go back, because it does not know which packets were dropped.
        let dropped = self.last_dropped.filter(|_| !is_gap_left);
        self.gap_reported = dropped.is_some_and(|last| !last.is_before(self.epsn));
        self.last_dropped = self.last_dropped.filter(|_| is_gap_left);
        self.pending_ack = if is_gap_left || self.gap_reported {
            Some(PendingAck::SequenceNak)
        } else if self.last_send_or_write != acknowledged {
            Some(PendingAck::Ack)
        } else {
            None // The responses say what has arrived.
        };
        Verdict::Continue
    }
}
