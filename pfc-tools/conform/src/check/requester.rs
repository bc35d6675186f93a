//! The rules of requesters: PSNs, messages, repetitions.

use feroce_wire::{Operation, Psn, Transport};

use super::figures::duration;
use super::findings::{Findings, Place};
use crate::flow::window::{Sent, is_atomic, is_read, needs_answer};
use crate::flow::{Channel, Message, Pending};
use crate::packet::Seen;
use crate::rules::RuleId;

/// A jump of PSNs that is no loss any more.
const JUMP: u32 = 1 << 15;
/// How long after the end of a connection requests may still be on their way, in nanoseconds.
const GRACE: u64 = 100_000_000;
/// Repetitions of a request, unless the connection was made with fewer.
const RETRIES: u8 = 7;

/// A request packet at its place in a flow.
pub(super) struct Request<'s, 'a> {
    pub seen: &'s Seen<'a>,
    pub channel: &'s mut Channel,
    pub place: Place,
    pub out: &'s mut Findings,
}

impl Request<'_, '_> {
    /// Holds it against the rules, and remembers it.
    pub fn take(&mut self) {
        let Self { seen, channel, .. } = self;
        let psn = seen.packet.bth.psn;
        channel.transport = Some(seen.packet.info.transport);
        channel.figures.seen(seen.at);
        channel.figures.requests += 1;
        self.after_error();
        let late = self.is_late();
        self.settle_span(psn);
        let Some(next) = self.channel.next else { return self.first(psn) };
        let ahead = next.distance_to(psn);
        if ahead == 0 {
            self.newest(psn, 0);
        } else if psn.is_after(next) {
            match ahead < JUMP {
                true => self.newest(psn, ahead),
                false => self.jump(next, psn),
            }
        } else {
            self.older(psn, late);
        }
    }

    /// The first request of the flow that was captured.
    fn first(&mut self, psn: Psn) {
        if let Some(due) = self.channel.agreed.first_psn
            && due != psn
        {
            self.out.add(RuleId::CmPsn, self.place, || {
                format!("the first request has PSN {}; the other side asked for {} when the connection was made", hex(psn), hex(due))
            });
        }
        if self.channel.agreed.first_psn == Some(psn) {
            self.channel.msn_base = Some((self.channel.epoch, 0));
            self.channel.message = Message::Between;
        }
        self.channel.next = Some(psn);
        self.newest(psn, 0);
    }

    /// A request that is newer than all before; `gap` PSNs between were passed over.
    fn newest(&mut self, psn: Psn, gap: u32) {
        let behind = psn.add(0_u32.wrapping_sub(gap));
        if gap > 0 {
            let hole = Sent::missing(behind, gap, self.place.packet, self.seen.at);
            self.channel.window.push(hole);
            self.channel.message = Message::Unknown;
            self.channel.epoch += 1;
            if self.channel.transport == Some(Transport::Uc) {
                self.out.add(RuleId::Loss, self.place, || {
                    format!(
                        "{gap} packets from PSN {} on never came: UC repeats nothing",
                        hex(hole.psn)
                    )
                });
            }
        }
        if let Some(due) = self.channel.repeats {
            self.passed_over(due, behind);
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
        if matches!(self.channel.transport, Some(Transport::Uc)) {
            self.channel.window.ack_before(end);
        }
        self.channel.repeats = None;
    }

    fn jump(&mut self, next: Psn, psn: Psn) {
        if !self.seen.packet.info.position.starts_message() || self.is_midway() {
            self.out.add(RuleId::Jump, self.place, || {
                format!(
                    "PSN {} comes where {} was due: too far away to be a loss",
                    hex(psn),
                    hex(next)
                )
            });
        }
        let agreed = self.channel.agreed;
        let answers = self.channel.answers;
        self.channel.begin_anew(agreed);
        self.channel.answers = answers;
        self.channel.agreed.first_psn = None;
        self.channel.next = Some(psn);
        self.newest(psn, 0);
    }

    /// Whether the flow is in the middle of something: then it does not begin anew.
    fn is_midway(&self) -> bool {
        matches!(self.channel.message, Message::Within { .. })
            || self.seen.at.saturating_sub(self.channel.figures.last_at) < GRACE
                && self.channel.window.unacked().next().is_some()
    }

    /// A PSN that has been passed.
    fn older(&mut self, psn: Psn, late: bool) {
        let Some(place) = self.channel.window.find(psn) else { return self.unknown(psn, late) };
        let Some(&known) = self.channel.window.get(place) else { return };
        if known.is_missing() {
            return self.fill(place, &known, psn, late);
        }
        let span = self.span();
        if id_of(self.seen).is_some_and(|id| known.id == id) {
            self.out.add(RuleId::Duplicate, self.place, || {
                format!("PSN {} again, the same packet as {} down to its IPv4 identification: the network, or the capture, has doubled it", hex(psn), known.last.number)
            });
            return;
        }
        if late {
            self.channel.late_at = Some(self.seen.at);
            if let Some(sent) = self.channel.window.get_mut(place) {
                sent.passed = 0;
                sent.is_told = false;
            }
            if known.is_told {
                // Nothing was lost: this is the copy that was missed.
                self.out.take_back(RuleId::Loss, Place { packet: known.last, ..self.place });
            }
            self.out.add(RuleId::Reorder, self.place, || {
                format!("PSN {} comes {} after packet {}, which was sent later: it was repeated in the meantime", hex(psn), duration(self.seen.at.saturating_sub(known.last_at)), known.last.number)
            });
            return;
        }
        if self.is_same(&known, psn, span) {
            self.repeat(place, &known, psn);
        }
    }

    /// A PSN older than all that is remembered.
    fn unknown(&mut self, psn: Psn, late: bool) {
        let oldest = self.channel.window.oldest().unwrap_or(psn);
        let back = psn.distance_to(oldest);
        if back >= JUMP {
            let next = self.channel.next.unwrap_or(psn);
            return self.jump(next, psn);
        }
        if self.channel.acked.is_none() {
            // The capture began in the middle of a burst that is sent again.
            let hole = Sent::missing(psn, back, self.place.packet, self.seen.at);
            self.channel.window.push_front(hole);
            return self.older(psn, late);
        }
        self.channel.figures.repeated += 1;
        self.channel.repeats = Some(psn.add(self.span()));
    }

    /// PSNs that were passed over, at last.
    fn fill(&mut self, place: usize, hole: &Sent, psn: Psn, late: bool) {
        let sent = Sent {
            span: self.span().min(hole.end().value().wrapping_sub(psn.value()) & 0xff_ffff),
            ..self.sent(psn, false)
        };
        self.channel.window.fill(place, sent);
        self.channel.figures.request_bytes += self.seen.packet.payload.len() as u64;
        let since = self.seen.at.saturating_sub(hole.last_at);
        if late {
            return self.came_late(hole, psn);
        }
        let goes_on = self.goes_on(psn);
        let is_for_other = self.channel.nak.is_some_and(|nak| nak.psn != psn);
        // What was under way when a NAK came is no reaction to it.
        if !(goes_on && is_for_other) {
            self.react(psn);
        }
        let says_nothing = self.channel.newest_id.is_none() && self.channel.nak_for.is_none();
        if says_nothing && since < 1_000_000 && !goes_on {
            return self.came_late(hole, psn);
        }
        self.channel.figures.repeated += 1;
        self.channel.repeats = Some(sent.end());
        if self.channel.is_disordered(self.seen.at) {
            return;
        }
        self.tell_of(psn);
        for _ in 0..=hole.passed {
            self.out.add(RuleId::Loss, self.place, || {
                format!("PSN {} did not come this far the first time: packet {} has a later one, and {} after that this one repeats it", hex(psn), hole.last.number, duration(since))
            });
        }
    }

    fn came_late(&mut self, hole: &Sent, psn: Psn) {
        self.channel.late_at = Some(self.seen.at);
        self.out.add(RuleId::Reorder, self.place, || {
            format!(
                "PSN {} was not lost: it arrived {} late, after packet {}",
                hex(psn),
                duration(self.seen.at.saturating_sub(hole.last_at)),
                hole.last.number
            )
        });
    }

    /// That a copy of `psn` was lost ahead of this one is told.
    fn tell_of(&mut self, psn: Psn) {
        let place = self.channel.window.find(psn);
        if let Some(sent) = place.and_then(|place| self.channel.window.get_mut(place)) {
            sent.is_told = true;
        }
    }

    /// Whether a repetition is what was sent before.
    fn is_same(&mut self, known: &Sent, psn: Psn, span: u32) -> bool {
        let packet = &self.seen.packet;
        let is_copy = known.opcode == packet.bth.opcode;
        if is_read(known.opcode) && is_copy {
            return self.asks_for_rest(known, psn);
        }
        let is_same = is_copy
            && known.psn == psn
            && known.span == span
            && known.pad == packet.bth.pad
            && (self.seen.is_cut || known.sums.is_same_behind(&self.seen.sums));
        if !is_same {
            self.out.add(RuleId::Same, self.place, || {
                format!(
                    "PSN {} was {} in packet {}, and is now {}, or has other contents",
                    hex(psn),
                    known.opcode,
                    known.first.number,
                    packet.bth.opcode
                )
            });
        }
        is_same
    }

    /// Whether a READ that is sent again asks for what is left of it.
    fn asks_for_rest(&mut self, known: &Sent, psn: Psn) -> bool {
        let Some(reth) = self.seen.packet.ext.reth else { return true };
        let offset = known.psn.distance_to(psn);
        if offset > 0 && self.channel.path_mtu.is_none() {
            return true;
        }
        let skipped = u64::from(offset) * u64::from(self.channel.path_mtu.unwrap_or(0));
        let rest = u64::from(known.len).saturating_sub(skipped);
        let va = known.va.wrapping_add(skipped);
        let is_rest = reth.va == va && u64::from(reth.dma_len) == rest;
        if !is_rest {
            self.out.add(RuleId::ReadRange, self.place, || {
                format!("the READ with PSN {} is sent again from address {:#x} for {} bytes; packet {} leaves {rest} bytes at {va:#x} for this PSN", hex(psn), reth.va, reth.dma_len, known.first.number)
            });
        }
        is_rest
    }

    /// A request that is sent again.
    fn repeat(&mut self, place: usize, known: &Sent, psn: Psn) {
        let retries = self.channel.agreed.retry_count.unwrap_or(RETRIES);
        let is_oldest = self.channel.window.is_oldest(place);
        self.channel.figures.repeated += 1;
        let goes_on = self.goes_on(psn);
        self.channel.repeats = Some(psn.add(self.span()));
        self.remember_copy(place, known, psn, is_oldest);
        if is_oldest && known.unanswered == u16::from(retries) + 1 {
            self.too_often(known, psn, retries);
        }
        let is_for_other = self.channel.nak.is_some_and(|nak| nak.psn != psn);
        // What was under way when a NAK came is no reaction to it.
        let caused = match (goes_on || known.is_skipped()) && is_for_other {
            true => true,
            false => self.react(psn),
        };
        if known.is_skipped() {
            return self.lost(known, psn);
        }
        if goes_on || caused || known.lost_from.is_some() {
            return;
        }
        self.without_nak(place, known, psn);
    }

    /// Whether a repetition that is under way goes on with `psn`.
    fn goes_on(&mut self, psn: Psn) -> bool {
        let Some(due) = self.channel.repeats else { return false };
        let is_asked = self.channel.nak.is_some_and(|nak| nak.psn == psn);
        due == psn || (!is_asked && self.passed_over(due, psn))
    }

    fn remember_copy(&mut self, place: usize, known: &Sent, psn: Psn, is_oldest: bool) {
        let Some(sent) = self.channel.window.get_mut(place) else { return };
        sent.times = sent.times.saturating_add(1);
        sent.unanswered = sent.unanswered.saturating_add(u16::from(is_oldest));
        sent.last = self.place.packet;
        sent.last_at = self.seen.at;
        sent.id = id_of(self.seen).unwrap_or(0);
        sent.asked_from = known.psn.distance_to(psn);
        sent.lost_from = None;
        sent.passed = 0;
        sent.is_told = false;
        sent.asks |= self.seen.packet.bth.ack_req;
        if is_read(sent.opcode) {
            sent.answered = sent.answered.min(sent.asked_from);
        }
    }

    /// A repetition goes on with `psn` where `due` was due: what is between was lost, or comes later. Whether it is so.
    fn passed_over(&mut self, due: Psn, psn: Psn) -> bool {
        const MOST: u32 = 256;
        if !due.is_before(psn) || due.distance_to(psn) > MOST {
            return false;
        }
        let (mut at, mut some) = (due, false);
        // No more than so many: a READ of 2^32 bytes ends where it begins.
        for _ in 0..MOST {
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
        self.tell_of(psn);
        for _ in 0..known.passed {
            self.out.add(RuleId::Loss, self.place, || {
                format!("PSN {} did not come this far when it was repeated after packet {}: the repetition passes over it, and this packet repeats it once more", hex(psn), known.last.number)
            });
        }
    }

    fn too_often(&mut self, known: &Sent, psn: Psn, retries: u8) {
        if self.channel.mismatch.is_some() && self.channel.mig_req_0 {
            return super::quirks::tell(self.channel, RuleId::QuirkRetry, self.place, self.out);
        }
        self.out.add(RuleId::RetryCount, self.place, || {
            format!("PSN {} is sent for the {}th time without an answer: {retries} repetitions are allowed", hex(psn), known.unanswered + 1)
        });
    }

    /// A repetition that nobody has asked for.
    fn without_nak(&mut self, place: usize, known: &Sent, psn: Psn) {
        /// An acknowledgement that is younger was on its way when the requester repeated, in nanoseconds.
        const ON_ITS_WAY: u64 = 20_000_000;
        /// No timer of an endpoint is that short: rxe counts from what it sent before, in nanoseconds.
        const TOO_SOON: u64 = 10_000_000;
        let since = self.seen.at.saturating_sub(known.last_at);
        let is_rxe = self.channel.mig_req_0;
        if !self.channel.window.is_acked(place) {
            if !is_rxe || since >= TOO_SOON {
                self.channel.figures.timeouts.add(since);
            }
            return self.unanswered(known, psn, since);
        }
        if is_rxe && self.channel.was_refused(psn, self.seen.at) {
            return;
        }
        // A later answer to a READ or atomic tells the requester that this one was lost: it need not wait for a timer.
        let is_passed = needs_answer(known.opcode)
            && !known.lacks_answer()
            && self.channel.acked.is_some_and(|acked| known.end().is_before(acked));
        let waited = self.seen.at.saturating_sub(self.channel.acked_at);
        if is_rxe && !is_passed && (since < TOO_SOON || waited < ON_ITS_WAY) {
            return super::quirks::tell(self.channel, RuleId::QuirkEarly, self.place, self.out);
        }
        let ack = self.channel.last_ack.map_or(0, |ack| ack.number);
        self.out.add(RuleId::AckLoss, self.place, || {
            format!("PSN {} is sent again {} after packet {}, though it was acknowledged by packet {ack} at the latest: that did not arrive, or too late", hex(psn), duration(since), known.last.number)
        });
    }

    /// Nothing has answered `psn` yet: what its answers will be tells whether the repetition came too early.
    fn unanswered(&mut self, known: &Sent, psn: Psn, since: u64) {
        const MOST: usize = 64;
        let Place { packet, at, flow } = self.place;
        let pending = &mut self.channel.pending;
        if pending.len() == MOST || pending.first().is_some_and(|first| first.psn != psn) {
            timed_out(pending, flow, self.out);
            pending.clear();
        }
        pending.push(Pending { psn, packet, at, since, before: known.last });
        self.channel.again = 0;
    }

    /// What the repetition of `psn` has to do with the last NAK; whether it was caused by one.
    fn react(&mut self, psn: Psn) -> bool {
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
                        "PSN {} is sent again {} after the RNR NAK in packet {}, which asks for {}",
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
        } else if self.passed_over(nak.psn, psn) {
            self.channel.restarted = Some((nak, self.place.packet, self.seen.at, psn));
        }
        true
    }

    /// READs and atomics under way.
    fn depth(&mut self) {
        let Some(depth) = self.channel.agreed.depth else { return };
        let opcode = self.seen.packet.bth.opcode;
        if !is_read(opcode) && !is_atomic(opcode) {
            return;
        }
        let under_way = self.channel.window.unacked().filter(|sent| sent.lacks_answer()).count();
        if under_way >= usize::from(depth) {
            self.out.add(RuleId::Outstanding, self.place, || {
                format!("{} while {under_way} READs and atomics are under way: the responder answers {depth} at a time", self.seen.packet.info.name)
            });
        }
    }

    /// A request with which `messages` are complete, one of them ended by it if it `ends` one.
    fn credits(&mut self, messages: u32, ends: bool) {
        let takes = self.seen.packet.info.operation == Operation::Send
            || self.seen.packet.ext.imm.is_some();
        let Some(limit) =
            self.channel.credit_limit.filter(|_| self.channel.agreed.flow_control && takes)
        else {
            return;
        };
        // One more may go out to probe.
        let beyond = limit.wrapping_add(1).wrapping_sub(messages);
        if ends && beyond > u32::MAX / 2 {
            self.out.add(RuleId::Credits, self.place, || {
                format!("message {messages} of the flow goes out; the credits of packet {} reach to message {limit}", self.channel.last_ack.map_or(0, |ack| ack.number))
            });
        }
    }

    fn after_error(&mut self) {
        let Some((psn, by, at)) = self.channel.failed else { return };
        let since = self.seen.at.saturating_sub(at);
        if since > GRACE {
            self.out.add(RuleId::AfterError, self.place, || {
                format!(
                    "a request {} after packet {} has refused PSN {} and ended the connection",
                    duration(since),
                    by.number,
                    hex(psn)
                )
            });
        }
    }

    /// PSNs that the request takes; 1 for a READ on a path whose MTU nobody knows yet.
    fn span(&self) -> u32 {
        let packet = &self.seen.packet;
        match (packet.info.operation, packet.ext.reth, self.channel.path_mtu) {
            (Operation::ReadRequest, Some(reth), Some(mtu)) => reth.dma_len.div_ceil(mtu).max(1),
            _ => 1,
        }
    }

    /// The PSN behind a READ tells the path MTU.
    fn settle_span(&mut self, psn: Psn) {
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

    #[inline(always)] // It goes where it is kept: a copy would stall on the stores before it.
    fn sent(&self, psn: Psn, counts: bool) -> Sent {
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
            asks: packet.bth.ack_req,
            ..Sent::missing(psn, 1, self.place.packet, self.seen.at)
        }
    }

    /// Whether the packet was sent before others that have been captured, by its IPv4 identification. Remembers that.
    fn is_late(&mut self) -> bool {
        let Some(id) = id_of(self.seen) else { return false };
        let ahead =
            self.channel.newest_id.is_none_or(|newest| id.wrapping_sub(newest).cast_signed() > 0);
        if ahead {
            self.channel.newest_id = Some(id);
        }
        !ahead && self.channel.newest_id != Some(id)
    }
}

/// A request was sent again, so often, and not too early.
pub(super) fn timed_out(pending: &[Pending], flow: Option<u32>, out: &mut Findings) {
    for &Pending { psn, packet, at, since, before } in pending {
        out.add(RuleId::Timeout, Place { packet, at, flow }, || {
            format!(
                "PSN {} is sent again {} after packet {}: nothing has answered it",
                hex(psn),
                duration(since),
                before.number
            )
        });
    }
}

/// The IPv4 identification; `None` if it says nothing.
fn id_of(seen: &Seen<'_>) -> Option<u16> {
    match seen.packet.ip {
        feroce_wire::IpHeader::V4(ip) if ip.identification != 0 => Some(ip.identification),
        _ => None,
    }
}

/// A PSN, as packet analysers and this program print it.
pub(super) fn hex(psn: Psn) -> String {
    format!("{:#08x}", psn.value())
}
