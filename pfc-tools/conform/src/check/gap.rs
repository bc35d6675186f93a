//! Gaps in the requests: the responses decide whether the network lost packets or the capture has a
//! hole.

use feroce_wire::{Psn, Syndrome};

use super::findings::Place;
use super::requester::Request;
use super::responder::Response;
use crate::rules::RuleId;

impl Request<'_, '_> {
    /// Notes that PSNs from `missing` up to `psn` were skipped. If they were already acknowledged,
    /// the responder got them: this is a hole of the capture.
    pub(super) fn skipped(&mut self, missing: Psn, psn: Psn) {
        let unsent = std::mem::take(&mut self.channel.unsent);
        let is_skipped = |acked: Psn| !acked.is_before(missing) && acked.is_before(psn);
        if !unsent.iter().any(|&(acked, ..)| is_skipped(acked)) {
            self.channel.gap.get_or_insert(missing);
            return;
        }
        self.channel.hole = Some((missing, psn));
        for (_, packet, at) in unsent.into_iter().filter(|&(acked, ..)| is_skipped(acked)) {
            self.out.remove(RuleId::AckUnsent, Place { packet, at, ..self.place });
        }
    }
}

impl Response<'_, '_> {
    /// Decides about a gap in the requests. If the first response after it is beyond the last
    /// request before it, the responder got the missing requests.
    pub(super) fn notice_hole(&mut self, psn: Psn) {
        let Some(start) = self.channel.gap.take() else { return };
        let Some(next) = self.channel.next else { return };
        let syndrome = self.seen.packet.ext.aeth.map(|aeth| aeth.syndrome);
        let is_positive = matches!(syndrome, None | Some(Syndrome::Ack(_)));
        if is_positive && !psn.is_before(start) && psn.is_before(next) {
            self.channel.hole = Some((start, next));
        }
    }

    /// Decides whether the capture misses the first requests of a connection: then the responder
    /// has completed more messages (`msn`) than were captured (`count`).
    pub(super) fn settle_late_start(&mut self, msn: u32, count: u32) {
        let Some((psn, packet, at)) = self.channel.late_start.take() else { return };
        if msn <= count {
            return;
        }
        let place = Place { packet, at, ..self.place };
        self.out.remove(RuleId::CmPsn, place);
        let first = self.channel.window.oldest().unwrap_or(psn);
        super::hole::report(place, psn, psn.distance_to(first), self.out);
    }

    /// Remembers the report of an acknowledgement of a PSN that was not captured yet.
    pub(super) fn remember_unsent(&mut self, psn: Psn) {
        const MAX_UNSENT: usize = 64;
        if self.channel.unsent.len() < MAX_UNSENT {
            self.channel.unsent.push((psn, self.place.packet, self.seen.at));
        }
    }

    /// Remembers a NAK (PSN sequence) that names a PSN before the first request: the two sides
    /// start with different PSNs.
    pub(super) fn expects_earlier(&mut self, psn: Psn) {
        let is_first = self.channel.acked.is_none();
        if is_first && self.channel.window.oldest().is_some_and(|oldest| psn.is_before(oldest)) {
            self.channel.mismatch.get_or_insert((self.place.packet, Some(psn)));
        }
    }
}
