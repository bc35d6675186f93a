//! The rules of requesters: PSNs, messages, retransmissions.

use feroce_wire::{Operation, Psn};

use super::findings::{Findings, Place, hex};
use crate::flow::figures::duration;
use crate::flow::window::{Sent, is_atomic, is_read};
use crate::flow::{Channel, Message, Service};
use crate::packet::Seen;
use crate::rules::RuleId;

/// A PSN jump of at least this distance does not count as a loss.
const MIN_JUMP: u32 = 1 << 15;
/// Requests may still be on their way for this time after the connection failed, in nanoseconds.
const IN_FLIGHT_TIME: u64 = 100_000_000;

/// A request packet at its place in a flow.
pub(super) struct Request<'s, 'a> {
    pub seen: &'s Seen<'a>,
    pub channel: &'s mut Channel,
    pub place: Place,
    pub out: &'s mut Findings,
}

impl Request<'_, '_> {
    /// Checks the request against the rules, and updates the state of the flow.
    pub fn take(&mut self) {
        let Self { seen, channel, .. } = self;
        let psn = seen.packet.bth.psn;
        channel.figures.seen(seen.at);
        channel.figures.requests += 1;
        self.after_error();
        let late = self.is_late();
        self.settle_jump(psn);
        self.learn_read_span(psn);
        let Some(next) = self.channel.next else { return self.first(psn) };
        let ahead = next.distance_to(psn);
        if ahead == 0 {
            self.newest(psn, 0);
        } else if psn.is_after(next) {
            match ahead < MIN_JUMP {
                true => self.newest(psn, ahead),
                false => self.jump(next, psn),
            }
        } else {
            self.older(psn, late);
        }
    }

    /// Handles the first captured request of the flow.
    fn first(&mut self, psn: Psn) {
        if let Some(expected) = self.channel.agreed.first_psn
            && expected != psn
        {
            self.out.add(RuleId::CmPsn, self.place, || {
                format!(
                    "the first request has PSN {}, but the connection was set up with starting PSN \
                     {}",
                    hex(psn),
                    hex(expected)
                )
            });
            if psn.is_after(expected) {
                self.channel.late_start = Some((expected, self.place.packet, self.seen.at));
            }
        }
        if self.channel.agreed.first_psn == Some(psn) {
            self.channel.msn_base = Some((self.channel.epoch, 0));
            self.channel.message = Message::Between;
        }
        self.channel.next = Some(psn);
        self.newest(psn, 0);
    }

    /// Handles a request newer than all before; `gap` PSNs were skipped.
    fn newest(&mut self, psn: Psn, gap: u32) {
        let first_missing = psn.add(0_u32.wrapping_sub(gap));
        if gap > 0 {
            let hole = Sent::missing(first_missing, gap, self.place.packet, self.seen.at);
            self.channel.window.push(hole);
            self.channel.message = Message::Unknown;
            self.channel.epoch += 1;
            self.skipped(first_missing, psn);
            if self.channel.key.service == Service::Uc {
                self.out.add(RuleId::Loss, self.place, || {
                    format!(
                        "{gap} packets from PSN {} on were lost: UC does not retransmit",
                        hex(hole.psn)
                    )
                });
            }
        }
        if let Some(expected) = self.channel.repeats {
            self.retransmission_skips(expected, first_missing);
        }
        self.sequence();
        self.depth();
        let sent = self.sent(psn, true);
        let (end, messages, ends) = (sent.end(), sent.messages_through(), sent.ends);
        self.channel.window.push(sent);
        self.channel.next = Some(end);
        self.channel.messages = messages;
        self.channel.figures.messages += u64::from(ends);
        self.channel.figures.request_bytes += self.seen.packet.payload.len() as u64;
        self.credits(messages, ends);
        if self.channel.key.service == Service::Uc {
            self.channel.window.ack_before(end);
        }
        self.channel.repeats = None;
        self.channel.unheard = None;
    }

    /// Handles a PSN that is far from all others. A second packet near it shows that a new
    /// connection has begun; otherwise it belongs to a stray packet.
    fn jump(&mut self, next: Psn, psn: Psn) {
        let is_reported = !self.seen.packet.info.position.starts_message() || self.is_midway();
        if is_reported {
            self.out.add(RuleId::Jump, self.place, || {
                format!(
                    "PSN {} follows where {} was expected: the distance is too large for a loss",
                    hex(psn),
                    hex(next)
                )
            });
        }
        let agreed = self.channel.agreed;
        let response_qpn = self.channel.response_qpn;
        let mut old = self.channel.start_connection(agreed);
        old.newest_id = old.id_before;
        self.channel.is_agreed = old.is_agreed;
        self.channel.bound_responses = old.bound_responses;
        self.channel.before_jump = Some((Box::new(old), is_reported));
        self.channel.response_qpn = response_qpn;
        self.channel.agreed.first_psn = None;
        self.channel.next = Some(psn);
        self.newest(psn, 0);
    }

    /// Decides with the next request whether a distant PSN began a new connection.
    fn settle_jump(&mut self, psn: Psn) {
        let Some((before, _)) = &self.channel.before_jump else { return };
        let distance = |next: Option<Psn>| {
            next.map_or(u32::MAX, |next| next.distance_to(psn).min(psn.distance_to(next)))
        };
        let [old, new] = [before.next, self.channel.next].map(distance);
        if new < MIN_JUMP && new <= old {
            super::stray::confirm_jump(self.channel, self.place, self.out);
        } else {
            super::stray::undo_jump(self.channel, self.place, self.out);
        }
    }

    /// Returns true if the flow is inside a message or has outstanding requests; then a jump does
    /// not begin a new connection.
    fn is_midway(&self) -> bool {
        matches!(self.channel.message, Message::Within { .. })
            || self.seen.at.saturating_sub(self.channel.figures.last_at) < IN_FLIGHT_TIME
                && self.channel.window.unacked().next().is_some()
    }

    /// Handles a PSN that is not newer than all before.
    fn older(&mut self, psn: Psn, late: bool) {
        let Some(place) = self.channel.window.find(psn) else { return self.unknown(psn, late) };
        let Some(&known) = self.channel.window.get(place) else { return };
        if known.is_missing() {
            return self.fill(place, &known, psn, late);
        }
        let span = self.span();
        let packet = &self.seen.packet;
        let is_copy = known.opcode == packet.bth.opcode
            && (self.seen.is_cut || known.sums.is_equal_after_bth(&self.seen.sums));
        if is_copy && id_of(self.seen).is_some_and(|id| known.id == id) {
            self.out.add(RuleId::Duplicate, self.place, || {
                format!(
                    "PSN {} again, equal to packet {} including its IPv4 identification: the \
                     network or the capture duplicated it",
                    hex(psn),
                    known.last.number
                )
            });
            return;
        }
        if !self.is_same(&known, psn, span, late) {
            return;
        }
        if late {
            self.channel.late_at = Some(self.seen.at);
            if let Some(sent) = self.channel.window.get_mut(place) {
                sent.passed = 0;
                sent.is_loss_reported = false;
            }
            if known.is_loss_reported {
                // Nothing was lost: this packet is the copy counted as lost.
                self.out.remove(RuleId::Loss, Place { packet: known.last, ..self.place });
            }
            self.out.add(RuleId::Reorder, self.place, || {
                format!(
                    "PSN {} arrives {} after packet {}, which was sent later: it was \
                     retransmitted in \
                     the meantime",
                    hex(psn),
                    duration(self.seen.at.saturating_sub(known.last_at)),
                    known.last.number
                )
            });
            return;
        }
        self.repeat(place, &known, psn);
    }

    /// Handles a PSN older than all remembered ones.
    fn unknown(&mut self, psn: Psn, late: bool) {
        let oldest = self.channel.window.oldest().unwrap_or(psn);
        let back = psn.distance_to(oldest);
        if back >= MIN_JUMP {
            let next = self.channel.next.unwrap_or(psn);
            return self.jump(next, psn);
        }
        if self.channel.acked.is_none() {
            // The capture began in the middle of a burst that is now retransmitted.
            let hole = Sent::missing(psn, back, self.place.packet, self.seen.at);
            self.channel.window.push_front(hole);
            return self.older(psn, late);
        }
        self.channel.figures.retransmitted += 1;
        self.channel.repeats = Some(psn.add(self.span()));
    }

    /// Handles a late request: its PSN belongs to a gap.
    fn fill(&mut self, place: usize, hole: &Sent, psn: Psn, late: bool) {
        let sent = Sent {
            span: self.span().min(hole.end().value().wrapping_sub(psn.value()) & 0xff_ffff),
            ..self.sent(psn, false)
        };
        self.channel.window.fill(place, sent);
        self.channel.figures.request_bytes += self.seen.packet.payload.len() as u64;
        let since = self.seen.at.saturating_sub(hole.last_at);
        if late {
            return self.arrived_late(hole, psn);
        }
        let continues = self.continues(psn);
        let is_for_other = self.channel.nak.is_some_and(|nak| nak.psn != psn);
        // The NAK shows that the packet was missed; a reaction to the NAK ends its state.
        let is_named = self.channel.nak_for.is_some_and(|named| named.at_or_before(psn));
        // A packet that was on its way when a NAK arrived is not a reaction to the NAK.
        if !(continues && is_for_other) {
            self.caused_by_nak(psn);
        }
        let has_no_evidence = self.channel.newest_id.is_none() && !is_named;
        if has_no_evidence && since < 1_000_000 && !continues {
            return self.arrived_late(hole, psn);
        }
        self.channel.figures.retransmitted += 1;
        self.channel.repeats = Some(sent.end());
        if self.channel.is_disordered(self.seen.at) {
            return;
        }
        self.mark_loss_reported(psn);
        for _ in 0..=hole.passed {
            self.out.add(RuleId::Loss, self.place, || {
                format!(
                    "PSN {} was lost before this capture point: packet {} already carries a later \
                     PSN. This packet retransmits it {} later",
                    hex(psn),
                    hole.last.number,
                    duration(since)
                )
            });
        }
    }

    fn arrived_late(&mut self, hole: &Sent, psn: Psn) {
        self.channel.late_at = Some(self.seen.at);
        self.out.add(RuleId::Reorder, self.place, || {
            format!(
                "PSN {} was not lost: it arrives {} late, after packet {}",
                hex(psn),
                duration(self.seen.at.saturating_sub(hole.last_at)),
                hole.last.number
            )
        });
    }

    /// Marks that the loss of the previous copy of `psn` is reported.
    pub(super) fn mark_loss_reported(&mut self, psn: Psn) {
        let place = self.channel.window.find(psn);
        if let Some(sent) = place.and_then(|place| self.channel.window.get_mut(place)) {
            sent.is_loss_reported = true;
        }
    }

    /// Checks the number of outstanding READs and atomics.
    fn depth(&mut self) {
        // In a gap, responses may be missing as well.
        let Some(depth) = self.channel.agreed.depth.filter(|_| self.channel.gap.is_none()) else {
            return;
        };
        let opcode = self.seen.packet.bth.opcode;
        if !is_read(opcode) && !is_atomic(opcode) {
            return;
        }
        // The capture may miss responses to what was sent before a hole.
        let hole = self.channel.hole;
        let is_known = |sent: &&Sent| hole.is_none_or(|(start, _)| !sent.psn.is_before(start));
        let all = self.channel.window.unacked();
        let outstanding = all.filter(is_known).filter(|sent| sent.lacks_response()).count();
        if outstanding >= usize::from(depth) {
            self.out.add(RuleId::Outstanding, self.place, || {
                format!(
                    "{} while {outstanding} READs and atomics are outstanding, but the responder \
                     accepts {depth} at a time",
                    self.seen.packet.info.name
                )
            });
        }
    }

    /// Checks the end-to-end credits. `messages` counts the messages including that of this
    /// request; `ends` is true if the request completes it.
    fn credits(&mut self, messages: u32, ends: bool) {
        let takes = self.seen.packet.info.operation == Operation::Send
            || self.seen.packet.ext.imm.is_some();
        let Some(limit) =
            self.channel.credit_limit.filter(|_| self.channel.agreed.flow_control && takes)
        else {
            return;
        };
        // One message more is allowed as a probe.
        let beyond = limit.wrapping_add(1).wrapping_sub(messages);
        if ends && beyond > u32::MAX / 2 {
            self.out.add(RuleId::Credits, self.place, || {
                format!(
                    "message {messages} of the flow is sent, but the credits of packet {} end at \
                     message {limit}",
                    self.channel.last_ack.map_or(0, |ack| ack.number)
                )
            });
        }
    }

    fn after_error(&mut self) {
        if let Some((by, at)) = self.channel.ended {
            let since = self.seen.at.saturating_sub(at);
            if since > IN_FLIGHT_TIME {
                self.out.add(RuleId::CmEnded, self.place, || {
                    format!(
                        "a request {} after the DREP in packet {} ended the connection",
                        duration(since),
                        by.number
                    )
                });
            }
        }
        let Some((psn, by, at)) = self.channel.failed else { return };
        let since = self.seen.at.saturating_sub(at);
        if since > IN_FLIGHT_TIME {
            self.out.add(RuleId::AfterError, self.place, || {
                format!(
                    "a request {} after packet {} refused PSN {} and failed the connection",
                    duration(since),
                    by.number,
                    hex(psn)
                )
            });
        }
    }

    /// Returns the number of PSNs that the request takes: 1 for a READ while the path MTU is
    /// unknown.
    pub(super) fn span(&self) -> u32 {
        let packet = &self.seen.packet;
        match (packet.info.operation, packet.ext.reth, self.channel.path_mtu) {
            (Operation::ReadRequest, Some(reth), Some(mtu)) => reth.dma_len.div_ceil(mtu).max(1),
            _ => 1,
        }
    }

    /// Learns the path MTU from the PSN that follows a READ.
    fn learn_read_span(&mut self, psn: Psn) {
        if self.channel.path_mtu.is_some() {
            return;
        }
        let Some(newest) = self.channel.window.newest().filter(|sent| is_read(sent.opcode)) else {
            return;
        };
        let distance = newest.psn.distance_to(psn);
        let len = newest.len;
        let takes = |mtu: &feroce_wire::PathMtu| len.div_ceil(mtu.bytes()).max(1) == distance;
        let mut fit = feroce_wire::PathMtu::ALL.into_iter().filter(takes);
        let Some(mtu) = fit.next() else { return };
        self.channel.widen_newest(distance);
        if fit.next().is_none() {
            self.channel.path_mtu = Some(mtu.bytes());
        }
    }

    #[inline(always)] // Builds the value in place: a copy would stall on the preceding stores.
    pub(super) fn sent(&self, psn: Psn, counts: bool) -> Sent {
        let packet = &self.seen.packet;
        let reth = packet.ext.reth.unwrap_or_default();
        Sent {
            psn,
            span: self.span(),
            opcode: packet.bth.opcode,
            first: self.place.packet,
            last: self.place.packet,
            last_at: self.seen.at,
            id: id_of(self.seen).unwrap_or(0),
            times: 1,
            unanswered: 1,
            pad: packet.bth.pad,
            sums: self.seen.sums,
            va: packet.ext.atomic_eth.map_or(reth.va, |atomic| atomic.va),
            rkey: packet.ext.atomic_eth.map_or(reth.rkey, |atomic| atomic.rkey).value(),
            len: reth.dma_len,
            messages: if counts { self.channel.messages } else { 0 },
            epoch: if counts { self.channel.epoch } else { 0 },
            ends: packet.info.position.ends_message(),
            requests_ack: packet.bth.ack_req,
            ..Sent::missing(psn, 1, self.place.packet, self.seen.at)
        }
    }

    /// Returns true if the packet was sent before another captured one, by its IPv4 identification.
    fn is_late(&mut self) -> bool {
        self.channel.id_before = self.channel.newest_id;
        let Some(id) = id_of(self.seen) else { return false };
        let ahead =
            self.channel.newest_id.is_none_or(|newest| id.wrapping_sub(newest).cast_signed() > 0);
        if ahead {
            self.channel.newest_id = Some(id);
        }
        !ahead && self.channel.newest_id != Some(id)
    }
}

/// Returns the IPv4 identification, or `None` if it does not distinguish packets.
pub(super) fn id_of(seen: &Seen<'_>) -> Option<u16> {
    match seen.packet.ip {
        feroce_wire::IpHeader::V4(ip) if ip.identification != 0 => Some(ip.identification),
        _ => None,
    }
}
