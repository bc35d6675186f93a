//! The rules of responders: acknowledgements, NAKs, responses.

use feroce_wire::{Aeth, NakCode, Operation, Psn, Syndrome};

use super::findings::{Findings, Place, hex};
use crate::flow::figures::duration;
use crate::flow::window::Sent;
use crate::flow::{Channel, Nak, Pending, Rnr};
use crate::packet::Seen;
use crate::rules::RuleId;

/// A response at its place in a flow.
pub(super) struct Response<'s, 'a> {
    pub seen: &'s Seen<'a>,
    pub channel: &'s mut Channel,
    pub place: Place,
    pub out: &'s mut Findings,
}

impl Response<'_, '_> {
    /// Checks the response against the rules, and updates the state of the flow.
    pub fn take(&mut self) {
        let packet = &self.seen.packet;
        self.channel.figures.seen(self.seen.at);
        self.channel.figures.responses += 1;
        self.channel.figures.response_bytes += packet.payload.len() as u64;
        if packet.bth.ack_req {
            self.out.add(RuleId::AckFlag, self.place, || {
                format!("{} has the acknowledge request bit set", packet.info.name)
            });
        }
        if packet.bth.solicited {
            self.out.add(RuleId::Solicited, self.place, || {
                format!("{} requests a solicited event", packet.info.name)
            });
        }
        self.after_error();
        if self.channel.has_only_responses() {
            return self.without_requests();
        }
        super::stray::settle_jump(self.channel, packet.bth.psn, self.place, self.out);
        self.notice_hole(packet.bth.psn);
        match packet.info.operation {
            Operation::ReadResponse => self.read_response(),
            Operation::AtomicAcknowledge => self.atomic(),
            _ => self.acknowledge(),
        }
        self.channel.response_at = self.seen.at;
    }

    /// Checks that nothing follows a NAK that failed the connection. Responses to earlier requests
    /// may have been overtaken by the NAK.
    fn after_error(&mut self) {
        let Some((psn, by, at)) = self.channel.failed else { return };
        if self.seen.packet.bth.psn.is_before(psn) {
            return;
        }
        let name = self.seen.packet.info.name;
        let since = self.seen.at.saturating_sub(at);
        self.out.add(RuleId::AnswerAfterError, self.place, || {
            format!(
                "{name} {} after packet {} refused PSN {} and failed the connection",
                duration(since),
                by.number,
                hex(psn)
            )
        });
    }

    /// Handles a response to requests that were not captured: a NAK that fails the connection
    /// counts without its request, and so do RNR NAKs.
    fn without_requests(&mut self) {
        let psn = self.seen.packet.bth.psn;
        match self.seen.packet.ext.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Nak(NakCode::PsnSequence | NakCode::InvalidRdRequest)) => {}
            Some(Syndrome::Nak(code)) => self.refuse(psn, code),
            Some(Syndrome::RnrNak(timer)) => self.wait_for_receive(psn, timer.nanos(), false),
            _ => {}
        }
    }

    fn acknowledge(&mut self) {
        let Some(Aeth { syndrome, msn }) = self.seen.packet.ext.aeth else { return };
        let psn = self.seen.packet.bth.psn;
        match syndrome {
            Syndrome::Ack(code) => {
                if self.positive(psn) {
                    self.count(psn, msn.value(), true);
                    self.credits(psn, code);
                }
            }
            Syndrome::RnrNak(timer) => {
                self.channel.figures.rnr_naks += 1;
                if self.in_range(psn, "an RNR NAK") {
                    self.count(psn, msn.value(), false);
                    self.not_ready(psn, timer.nanos());
                }
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                self.channel.figures.naks += 1;
                self.expects_earlier(psn);
                if self.in_range(psn, "a NAK (PSN sequence)") {
                    self.count(psn, msn.value(), false);
                    self.out_of_sequence(psn);
                }
            }
            Syndrome::Nak(code) if code != NakCode::InvalidRdRequest => {
                if self.in_range(psn, "a NAK") {
                    self.count(psn, msn.value(), false);
                    self.refuse(psn, code);
                }
            }
            Syndrome::Nak(_) | Syndrome::Reserved(_) => {
                let byte = syndrome.to_byte();
                self.out.add(RuleId::Syndrome, self.place, || {
                    format!("syndrome {byte:#04x} is not defined for RoCE")
                });
            }
        }
    }

    /// Handles an ACK of everything up to `psn`. Returns true if the ACK is plausible.
    fn positive(&mut self, psn: Psn) -> bool {
        let Some(next) = self.channel.next else { return false };
        let oldest = self.channel.window.oldest().unwrap_or(next);
        if self.channel.acked.is_none() && psn.is_before(oldest) {
            self.before_first(psn, oldest);
            return false;
        }
        if !psn.is_before(next) {
            self.out.add(RuleId::AckUnsent, self.place, || {
                format!(
                    "PSN {} is acknowledged, but the newest PSN sent is {}",
                    hex(psn),
                    hex(next.prev())
                )
            });
            self.remember_unsent(psn);
            return false;
        }
        if let Some(acked) = self.channel.acked
            && psn.next().is_before(acked)
        {
            let by = self.channel.last_ack.map_or(0, |ack| ack.number);
            self.out.add(RuleId::AckBack, self.place, || {
                format!(
                    "PSN {} is acknowledged, but packet {by} already acknowledged {}",
                    hex(psn),
                    hex(acked.prev())
                )
            });
            return false;
        }
        if let Some(place) = self.channel.window.find(psn)
            && let Some(&sent) = self.channel.window.get(place)
        {
            let offset = sent.psn.distance_to(psn);
            if sent.lacks_response() && sent.answered <= offset && sent.times == 1 {
                // Marks it as completed, so that it is reported once.
                if let Some(sent) = self.channel.window.get_mut(place) {
                    sent.answered = sent.span;
                }
                self.out.add(RuleId::Kind, self.place, || {
                    format!(
                        "{} with PSN {} (packet {}) is answered by an ACK without data",
                        sent.opcode,
                        hex(psn),
                        sent.first.number
                    )
                });
            } else if sent.times == 1 && !self.channel.window.is_acked(place) {
                self.channel.figures.response_times.add(self.seen.at.saturating_sub(sent.last_at));
            }
        }
        self.resolve_pending(psn);
        self.through(psn);
        true
    }

    /// Decides about pending retransmissions that no NAK caused. They were needless if the same PSN
    /// is acknowledged twice, if the acknowledged PSN was not retransmitted yet, or if its request
    /// requested no acknowledgement: then the first copies had arrived. They were needed if a
    /// request sent after them is acknowledged.
    fn resolve_pending(&mut self, psn: Psn) {
        let first = self.channel.pending.first().copied();
        let Some(first) = first.filter(|first| first.psn.at_or_before(psn)) else { return };
        let acked = self.at(psn).filter(|sent| !sent.is_missing());
        if acked.is_some_and(|sent| first.packet < sent.first) {
            let old = std::mem::take(&mut self.channel.pending);
            return super::connection_failure::timed_out(&old, self.place.flow, self.out);
        }
        if !self.channel.mig_req_0 {
            return;
        }
        let count = self.copies(&first, psn, acked.is_some_and(|sent| !sent.requests_ack));
        if count > 0 {
            self.channel.pending.drain(..count);
            let place = Place { packet: first.packet, at: first.at, ..self.place };
            super::vendor_quirks::report(self.channel, RuleId::QuirkEarly, place, self.out);
        }
    }

    /// Returns how many pending retransmissions an ACK of `psn` shows to have been needless. rxe
    /// acknowledges each duplicate packet, so as many ACKs as the retransmission has packets belong
    /// to one copy.
    fn copies(&mut self, first: &Pending, psn: Psn, no_ack_requested: bool) -> usize {
        let repeats = self.channel.repeats;
        if no_ack_requested || repeats.is_some_and(|repeats| !psn.is_before(repeats)) {
            return self.channel.pending.len();
        }
        if self.channel.acked != Some(psn.next()) {
            return 0;
        }
        let packets = repeats.map_or(1, |repeats| first.psn.distance_to(repeats).max(1));
        self.channel.again += 1;
        usize::from((self.channel.again - 1).is_multiple_of(packets))
    }

    /// Handles an ACK that is older than the first captured request.
    fn before_first(&mut self, psn: Psn, oldest: Psn) {
        let nothing = Psn::new(0).prev();
        let is_rxe = psn == nothing && self.channel.mig_req_0;
        let is_repeated = self.channel.window.unacked().next().is_some_and(|sent| sent.times > 1);
        if is_rxe && oldest != Psn::new(0) {
            self.out.add(RuleId::QuirkAckFirst, self.place, || {
                format!(
                    "PSN {} is acknowledged, but the oldest PSN sent is {}: rxe has received \
                     nothing yet and treats the request as a duplicate",
                    hex(psn),
                    hex(oldest)
                )
            });
        }
        if is_rxe || is_repeated {
            self.channel.mismatch.get_or_insert((self.place.packet, None));
        }
    }

    /// Acknowledges everything up to `psn`, except READs and atomics whose responses are missing.
    pub fn through(&mut self, psn: Psn) {
        let end = psn.next();
        self.restarted(end);
        let mut limit = end;
        let mut lacking = None;
        let hole = self.channel.hole;
        for sent in self.channel.window.unacked_mut() {
            if !sent.psn.is_before(end) {
                break;
            }
            if sent.is_missing() {
                let (psn, span, shown_by) = (sent.psn, sent.span, sent.first.number);
                if super::hole::contains(hole, psn) {
                    let place = Place { packet: sent.first, at: sent.last_at, ..self.place };
                    super::hole::report(place, psn, span, self.out);
                    continue;
                }
                self.out.add(RuleId::Unseen, self.place, || {
                    format!(
                        "{span} PSNs from {} on are acknowledged but were never captured (packet \
                         {shown_by} has a later PSN): the requester skipped them, or the capture \
                         missed them",
                        hex(psn)
                    )
                });
            } else if sent.lacks_response() && sent.end().at_or_before(end) {
                lacking = Some(*sent);
                limit = sent.psn.add(sent.answered);
                break;
            }
        }
        if let Some(sent) = lacking {
            self.missing_responses(&sent, limit);
        }
        self.channel.window.ack_before(limit);
        if self.channel.acked.is_none_or(|acked| acked.is_before(end)) {
            self.channel.acked = Some(end);
            self.channel.last_ack = Some(self.place.packet);
            self.channel.acked_at = self.seen.at;
            self.channel.again = 0;
            self.channel.nak_for = None;
            self.channel.mismatch = None;
        }
        if self.channel.rnr.is_some_and(|rnr| rnr.psn.is_before(end)) {
            self.channel.end_rnr();
        }
    }

    /// Reports a PSN that a NAK named and that is acknowledged without a retransmission.
    fn restarted(&mut self, end: Psn) {
        let Some((nak, packet, at, psn)) = self.channel.restarted else { return };
        if !nak.psn.is_before(end) {
            return;
        }
        self.channel.restarted = None;
        if self.at(nak.psn).is_some_and(|sent| sent.is_skipped()) && !self.channel.is_disordered(at)
        {
            self.out.add(RuleId::Restart, Place { packet, at, ..self.place }, || {
                format!(
                    "after the NAK in packet {} the requester restarts at PSN {} instead of {}",
                    nak.packet.number,
                    hex(psn),
                    hex(nak.psn)
                )
            });
        }
    }

    /// Reports missing responses to a READ or atomic, which a later response reveals.
    fn missing_responses(&mut self, sent: &Sent, from: Psn) {
        let place = self.channel.window.find(sent.psn);
        let Some(known) = place.and_then(|place| self.channel.window.get_mut(place)) else {
            return;
        };
        if known.lost_from.replace(known.answered).is_some() {
            return;
        }
        // Responses with data have been checked for gaps already.
        if self.seen.packet.info.operation != Operation::Acknowledge {
            return;
        }
        self.channel.next_response = Some(sent.end());
        let expected = sent.end().prev();
        self.out.add(RuleId::ResponseLoss, self.place, || {
            format!(
                "the responses with PSN {} to {} to the request in packet {} were lost before this \
                 capture point: this packet answers a later request",
                hex(from),
                hex(expected),
                sent.last.number
            )
        });
    }

    /// Returns true if a NAK may name `psn`. Then everything before `psn` is acknowledged.
    fn in_range(&mut self, psn: Psn, what: &str) -> bool {
        let Some(next) = self.channel.next else { return false };
        let oldest = self.channel.acked.or(self.channel.window.oldest()).unwrap_or(next);
        if self.channel.acked.is_none() && psn.is_before(oldest) {
            return false;
        }
        if psn.is_before(oldest) || !psn.is_before(next) {
            self.out.add(RuleId::NakRange, self.place, || {
                format!(
                    "{what} for PSN {}, but the outstanding PSNs are {} to {}",
                    hex(psn),
                    hex(oldest),
                    hex(next.prev())
                )
            });
            return false;
        }
        if oldest.is_before(psn) {
            self.through(psn.prev());
        }
        for sent in self.channel.window.unacked_mut() {
            sent.unanswered = 0;
        }
        true
    }

    fn at(&self, psn: Psn) -> Option<Sent> {
        self.channel.window.get(self.channel.window.find(psn)?).copied()
    }

    fn out_of_sequence(&mut self, psn: Psn) {
        let Some(sent) = self.at(psn) else { return };
        let behind_rnr = self.channel.rnr.is_some_and(|rnr| rnr.psn == psn && rnr.is_open);
        if behind_rnr && self.channel.mig_req_0 {
            self.out.add(RuleId::QuirkRnrNak, self.place, || {
                format!("a NAK (PSN sequence) for PSN {}, which already got an RNR NAK", hex(psn))
            });
            return;
        }
        if behind_rnr || self.channel.nak_for == Some(psn) {
            self.out.add(RuleId::NakOnce, self.place, || {
                format!(
                    "another NAK for PSN {}, which was not retransmitted since the previous NAK",
                    hex(psn)
                )
            });
            return;
        }
        self.channel.nak_for = Some(psn);
        self.channel.nak = Some(Nak { psn, packet: self.place.packet, at: self.seen.at });
        let later = self
            .channel
            .window
            .find(sent.end())
            .and_then(|place| self.channel.window.get(place))
            .copied();
        let Some(later) = later else {
            self.out.add(RuleId::NakSpurious, self.place, || {
                format!(
                    "a NAK for PSN {}, but packet {} has this PSN and no later PSN was sent that \
                     could reveal a gap",
                    hex(psn),
                    sent.last.number
                )
            });
            return;
        };
        let shown_at = if sent.is_missing() { sent.last_at } else { later.last_at };
        self.channel.figures.nak_generation.add(self.seen.at.saturating_sub(shown_at));
        let arrived_late = later.last < sent.last && !later.is_missing();
        let is_disordered = self.channel.is_disordered(self.seen.at);
        if !sent.is_missing() && !sent.is_skipped() && !arrived_late && !is_disordered {
            self.out.add(RuleId::LossBeyond, self.place, || {
                format!(
                    "the responder did not get PSN {} (packet {}): it was lost, damaged or delayed \
                     after this capture point",
                    hex(psn),
                    sent.last.number
                )
            });
        }
    }

    fn not_ready(&mut self, psn: Psn, wait: u64) {
        let Some(sent) = self.at(psn) else { return };
        let info = sent.opcode.info();
        let takes = info.is_some_and(|info| {
            info.operation == Operation::Send || info.headers.contains(feroce_wire::Headers::IMM)
        });
        self.wait_for_receive(psn, wait, true);
        if !takes && !sent.is_missing() {
            self.out.add(RuleId::RnrKind, self.place, || {
                format!("an RNR NAK for PSN {}, but {} consumes no receive", hex(psn), sent.opcode)
            });
            return;
        }
        let times = self.channel.rnr.map_or(1, |rnr| rnr.times);
        self.out.add(RuleId::Rnr, self.place, || {
            format!(
                "no receive is posted for PSN {} (packet {}): RNR NAK {times} for it makes the \
                 requester wait {}",
                hex(psn),
                sent.last.number,
                duration(wait)
            )
        });
    }

    fn wait_for_receive(&mut self, psn: Psn, wait: u64, is_open: bool) {
        let before = self.channel.rnr.filter(|rnr| rnr.psn == psn);
        let times = before.map_or(1, |rnr| rnr.times.saturating_add(1));
        let packet = self.place.packet;
        self.channel.rnr = Some(Rnr { psn, packet, at: self.seen.at, wait, times, is_open });
    }

    fn refuse(&mut self, psn: Psn, code: NakCode) {
        if self.channel.failed.is_some() {
            return;
        }
        self.channel.failed = Some((psn, self.place.packet, self.seen.at));
        let (rule, why) = match code {
            NakCode::InvalidRequest => (RuleId::InvalidRequest, "as an invalid request"),
            NakCode::RemoteAccess => (RuleId::RemoteAccess, "with a remote access error"),
            _ => (RuleId::RemoteOperation, "with a remote operational error"),
        };
        let sent = self.at(psn);
        self.out.add(rule, self.place, || {
            let request = sent.map_or_else(String::new, |sent| {
                let memory = match sent.rkey {
                    0 => String::new(),
                    key => format!(" of {} bytes at {:#x} with key {key:#010x}", sent.len, sent.va),
                };
                format!(": {}{memory}, packet {}", sent.opcode, sent.last.number)
            });
            format!(
                "the responder refuses PSN {} {why}{request}. The connection has failed",
                hex(psn)
            )
        });
    }

    /// Checks the MSN. It counts messages: those up to and including `psn` if `through` is true,
    /// else those before `psn`.
    fn count(&mut self, psn: Psn, msn: u32, through: bool) {
        let Some(sent) = self.at(psn).filter(|sent| sent.epoch != 0) else { return };
        let count = if through { sent.messages_through() } else { sent.messages };
        self.settle_late_start(msn, count);
        match self.channel.msn_base {
            Some((epoch, base)) if epoch == sent.epoch => {
                let expected = base.wrapping_add(count) & 0xff_ffff;
                if expected != msn {
                    self.out.add(RuleId::Msn, self.place, || {
                        format!("the MSN is {msn}, but {expected} messages are complete")
                    });
                }
            }
            _ => self.channel.msn_base = Some((sent.epoch, msn.wrapping_sub(count) & 0xff_ffff)),
        }
    }

    /// Checks the MSN of a response to a READ, which may be sent when later requests are already
    /// complete.
    pub fn count_at_least(&mut self, sent: &Sent, msn: u32) {
        let Some((epoch, base)) = self.channel.msn_base else { return };
        if epoch != sent.epoch || epoch != self.channel.epoch {
            return;
        }
        let above = msn.wrapping_sub(base.wrapping_add(sent.messages_through())) & 0xff_ffff;
        let max = self.channel.messages.wrapping_sub(sent.messages_through());
        if above > max {
            let expected = base.wrapping_add(sent.messages_through()) & 0xff_ffff;
            self.out.add(RuleId::Msn, self.place, || {
                format!(
                    "the MSN is {msn}, but at least {expected} and at most {} messages are \
                     complete",
                    expected + max
                )
            });
        }
    }

    fn credits(&mut self, psn: Psn, code: feroce_wire::CreditCode) {
        let Some(sent) = self.at(psn).filter(|sent| sent.epoch == self.channel.epoch) else {
            return;
        };
        if self.channel.agreed.flow_control {
            self.channel.credit_limit =
                code.credits().map(|credits| sent.messages_through() + credits);
        } else if code.credits() == Some(0) {
            super::vendor_quirks::report(self.channel, RuleId::QuirkCredits, self.place, self.out);
        }
    }
}
