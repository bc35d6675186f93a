//! The rules of retransmissions: their contents, their causes, their number.

use feroce_wire::Psn;

use super::connection_failure::timed_out;
use super::findings::{Place, hex};
use super::requester::{Request, id_of};
use crate::flow::Pending;
use crate::flow::figures::duration;
use crate::flow::window::{Sent, is_read, needs_data_response};
use crate::rules::RuleId;

/// The retry count if the capture does not show the one of the connection.
const RETRIES: u8 = 7;

impl Request<'_, '_> {
    /// Returns true if a retransmission equals the packet sent before.
    pub(super) fn is_same(&mut self, known: &Sent, psn: Psn, span: u32, late: bool) -> bool {
        let packet = &self.seen.packet;
        let is_copy = known.opcode == packet.bth.opcode;
        if is_read(known.opcode) && is_copy {
            return self.requests_rest(known, psn);
        }
        let is_same = is_copy
            && known.psn == psn
            && known.span == span
            && known.pad == packet.bth.pad
            && (self.seen.is_cut || known.sums.is_equal_after_bth(&self.seen.sums));
        if !is_same {
            self.out.add(RuleId::Same, self.place, || {
                format!(
                    "PSN {} was {} in packet {}; it is now {}, or its contents differ",
                    hex(psn),
                    known.opcode,
                    known.first.number,
                    packet.bth.opcode
                )
            });
            self.adopt(known, psn, span, late);
        }
        is_same
    }

    /// Handles a request that differs from an earlier one with its PSN. One of the two is a stray
    /// packet; if the earlier one was seen once only, the later one takes its place.
    fn adopt(&mut self, known: &Sent, psn: Psn, span: u32, late: bool) {
        // The lower of the two IPv4 identifications: later packets are late otherwise.
        self.channel.newest_id = if late { id_of(self.seen) } else { self.channel.id_before };
        let new = self.sent(psn, false);
        let Some(place) = self.channel.window.find(psn) else { return };
        let is_oldest = self.channel.window.is_oldest(place);
        if known.times > 1 || known.span != span || known.psn != psn || known.answered > 0 {
            return;
        }
        let Some(sent) = self.channel.window.get_mut(place) else { return };
        *sent = Sent {
            first: known.first,
            unanswered: known.unanswered.saturating_add(u16::from(is_oldest)),
            messages: known.messages,
            epoch: known.epoch,
            ..new
        };
    }

    /// Returns true if a retransmitted READ requests the remaining part of the original READ.
    fn requests_rest(&mut self, known: &Sent, psn: Psn) -> bool {
        let Some(reth) = self.seen.packet.ext.reth else { return true };
        let offset = known.psn.distance_to(psn);
        if reth.rkey.value() != known.rkey {
            self.out.add(RuleId::ReadRange, self.place, || {
                format!(
                    "the retransmitted READ with PSN {} has key {:#010x}, but the READ in packet \
                     {} has {:#010x}",
                    hex(psn),
                    reth.rkey.value(),
                    known.first.number,
                    known.rkey
                )
            });
            return false;
        }
        if offset > 0 && self.channel.path_mtu.is_none() {
            return true;
        }
        let skipped = u64::from(offset) * u64::from(self.channel.path_mtu.unwrap_or(0));
        let rest = u64::from(known.len).saturating_sub(skipped);
        let va = known.va.wrapping_add(skipped);
        let is_rest = reth.va == va && u64::from(reth.dma_len) == rest;
        if !is_rest {
            self.out.add(RuleId::ReadRange, self.place, || {
                format!(
                    "the retransmitted READ with PSN {} requests {} bytes at {:#x}, but at this \
                     PSN {rest} bytes at {va:#x} remain of the READ in packet {}",
                    hex(psn),
                    reth.dma_len,
                    reth.va,
                    known.first.number
                )
            });
        }
        is_rest
    }

    /// Handles a retransmitted request.
    pub(super) fn repeat(&mut self, place: usize, known: &Sent, psn: Psn) {
        let retries = self.channel.agreed.retry_count.unwrap_or(RETRIES);
        let is_oldest = self.channel.window.is_oldest(place);
        self.channel.figures.retransmitted += 1;
        let continues = self.continues(psn);
        if !continues {
            self.channel.restarted_at = Some(psn);
        }
        self.channel.repeats = Some(psn.add(self.span()));
        self.remember_copy(place, known, psn, is_oldest);
        if is_oldest && known.unanswered == u16::from(retries) + 1 {
            self.too_often(known, psn, retries);
        }
        let is_for_other = self.channel.nak.is_some_and(|nak| nak.psn != psn);
        // A packet that was on its way when a NAK arrived is not a reaction to the NAK.
        let caused = match (continues || known.is_skipped()) && is_for_other {
            true => true,
            false => self.caused_by_nak(psn),
        };
        if known.is_skipped() {
            return self.lost(known, psn);
        }
        if continues || caused || known.lost_from.is_some() {
            return;
        }
        self.without_nak(place, known, psn);
    }

    /// Returns true if `psn` continues a retransmission that has begun.
    pub(super) fn continues(&mut self, psn: Psn) -> bool {
        let Some(expected) = self.channel.repeats else { return false };
        let is_named_by_nak = self.channel.nak.is_some_and(|nak| nak.psn == psn);
        expected == psn || (!is_named_by_nak && self.retransmission_skips(expected, psn))
    }

    fn remember_copy(&mut self, place: usize, known: &Sent, psn: Psn, is_oldest: bool) {
        let Some(sent) = self.channel.window.get_mut(place) else { return };
        sent.times = sent.times.saturating_add(1);
        sent.unanswered = sent.unanswered.saturating_add(u16::from(is_oldest));
        sent.last = self.place.packet;
        sent.last_at = self.seen.at;
        sent.id = id_of(self.seen).unwrap_or(0);
        sent.requested_from = known.psn.distance_to(psn);
        sent.lost_from = None;
        sent.passed = 0;
        sent.is_loss_reported = false;
        sent.requests_ack |= self.seen.packet.bth.ack_req;
        if is_read(sent.opcode) {
            sent.answered = sent.answered.min(sent.requested_from);
        }
    }

    /// Handles a retransmission that continues with `psn` instead of `expected`: the skipped PSNs
    /// are lost or late. Returns true if an unacknowledged request was skipped.
    pub(super) fn retransmission_skips(&mut self, expected: Psn, psn: Psn) -> bool {
        const MAX_SKIPPED: u32 = 256;
        if !expected.is_before(psn) || expected.distance_to(psn) > MAX_SKIPPED {
            return false;
        }
        let (mut at, mut some) = (expected, false);
        // Bounded: a READ of 2^32 bytes ends at the PSN where it begins.
        for _ in 0..MAX_SKIPPED {
            if !at.is_before(psn) {
                break;
            }
            let Some(place) = self.channel.window.find(at) else { break };
            let is_acked = self.channel.window.is_acked(place);
            let Some(sent) = self.channel.window.get_mut(place) else { break };
            sent.passed = if is_acked { 0 } else { sent.passed.saturating_add(1) };
            some |= !is_acked;
            at = sent.end();
        }
        some
    }

    fn lost(&mut self, known: &Sent, psn: Psn) {
        if self.channel.is_disordered(self.seen.at) {
            return;
        }
        self.mark_loss_reported(psn);
        for _ in 0..known.passed {
            self.out.add(RuleId::Loss, self.place, || {
                format!(
                    "the retransmission of PSN {} after packet {} was lost before this capture \
                     point. This packet retransmits it again",
                    hex(psn),
                    known.last.number
                )
            });
        }
    }

    fn too_often(&mut self, known: &Sent, psn: Psn, retries: u8) {
        if self.channel.mismatch.is_some() && self.channel.mig_req_0 {
            return super::vendor_quirks::report(
                self.channel,
                RuleId::QuirkRetry,
                self.place,
                self.out,
            );
        }
        self.out.add(RuleId::RetryCount, self.place, || {
            format!(
                "transmission {} of PSN {} without a response; only {retries} retries are \
                     allowed",
                known.unanswered + 1,
                hex(psn)
            )
        });
    }

    /// Handles a retransmission that no NAK caused.
    fn without_nak(&mut self, place: usize, known: &Sent, psn: Psn) {
        /// An ACK may still be on its way to the requester for this time, in nanoseconds.
        const ACK_DELAY: u64 = 20_000_000;
        /// Every retransmission timer is longer than this, in nanoseconds. The timer of rxe counts
        /// from an earlier packet.
        const MIN_TIMEOUT: u64 = 10_000_000;
        let since = self.seen.at.saturating_sub(known.last_at);
        let is_rxe = self.channel.mig_req_0;
        if self.lacked_response(known) {
            return;
        }
        if !self.channel.window.is_acked(place) {
            if !is_rxe || since >= MIN_TIMEOUT {
                self.channel.figures.timeouts.add(since);
            }
            return self.unanswered(known, psn, since);
        }
        if is_rxe && self.channel.may_still_process_rnr_nak(psn, self.seen.at) {
            return;
        }
        // A response to a later READ or atomic shows the requester that this response was lost,
        // without a timeout.
        let is_passed = needs_data_response(known.opcode)
            && !known.lacks_response()
            && self.channel.acked.is_some_and(|acked| known.end().is_before(acked));
        let waited = self.seen.at.saturating_sub(self.channel.acked_at);
        if is_rxe && !is_passed && (since < MIN_TIMEOUT || waited < ACK_DELAY) {
            return super::vendor_quirks::report(
                self.channel,
                RuleId::QuirkEarly,
                self.place,
                self.out,
            );
        }
        let before = self.channel.unheard.filter(|&(unheard, ..)| unheard == psn);
        let times = before.map_or(1, |(_, times, ..)| times.saturating_add(1));
        self.channel.unheard = Some((psn, times, self.place.packet, self.seen.at));
        let ack = self.channel.last_ack.map_or(0, |ack| ack.number);
        let answer = if needs_data_response(known.opcode) { "response" } else { "ACK" };
        self.out.add(RuleId::AckLoss, self.place, || {
            format!(
                "PSN {} is retransmitted {} after packet {}, although packet {ack} acknowledged \
                 it: the {answer} was lost or late",
                hex(psn),
                duration(since),
                known.last.number
            )
        });
    }

    /// Reports lost responses to a READ that is retransmitted again, although responses to later
    /// requests arrived since its last copy. Returns true if so.
    fn lacked_response(&mut self, known: &Sent) -> bool {
        let next = self.channel.next_response;
        let is_passed = next.is_some_and(|next| known.end().is_before(next));
        if !known.lacks_response()
            || known.times < 2
            || !is_passed
            || self.channel.response_at <= known.last_at
        {
            return false;
        }
        let first = known.psn.add(known.answered);
        self.out.add(RuleId::ResponseLoss, self.place, || {
            format!(
                "the responses with PSN {} to {} to {} in packet {} were lost before this capture \
                 point: this packet requests them again",
                hex(first),
                hex(known.end().prev()),
                known.opcode,
                known.last.number
            )
        });
        true
    }

    /// Records a retransmission of a request without a response. Later responses decide whether the
    /// retransmission was too early.
    fn unanswered(&mut self, known: &Sent, psn: Psn, since: u64) {
        const MAX_PENDING: usize = 64;
        let Place { packet, at, flow } = self.place;
        let pending = &mut self.channel.pending;
        if pending.len() == MAX_PENDING || pending.first().is_some_and(|first| first.psn != psn) {
            timed_out(pending, flow, self.out);
            pending.clear();
        }
        pending.push(Pending { psn, packet, at, since, before: known.last });
        self.channel.again = 0;
    }

    /// Relates the retransmission of `psn` to the last NAK. Returns true if a NAK caused it.
    pub(super) fn caused_by_nak(&mut self, psn: Psn) -> bool {
        self.channel.nak_for = None;
        if let Some(rnr) = &mut self.channel.rnr
            && rnr.psn == psn
            && rnr.is_open
        {
            rnr.is_open = false;
            let rnr = *rnr;
            let waited = self.seen.at.saturating_sub(rnr.at);
            self.channel.figures.rnr_waits.add(waited);
            if waited < rnr.wait {
                self.out.add(RuleId::RnrWait, self.place, || {
                    format!(
                        "PSN {} is retransmitted {} after the RNR NAK in packet {}, but the NAK \
                         requests {}",
                        hex(psn),
                        duration(waited),
                        rnr.packet.number,
                        duration(rnr.wait)
                    )
                });
            }
            self.channel.nak = None;
            return true;
        }
        let Some(nak) = self.channel.nak else { return false };
        self.channel.nak = None;
        if nak.psn == psn {
            self.channel.figures.nak_reaction.add(self.seen.at.saturating_sub(nak.at));
        } else if self.retransmission_skips(nak.psn, psn) {
            self.channel.restarted = Some((nak, self.place.packet, self.seen.at, psn));
        }
        true
    }
}
