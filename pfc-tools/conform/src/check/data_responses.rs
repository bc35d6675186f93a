//! The rules of responses that carry data: READ responses and atomic acknowledgements.

use feroce_wire::{Operation, PathMtu, PayloadRule, Position, Psn, Syndrome};

use super::findings::hex;
use super::responder::Response;
use crate::flow::window::{Sent, is_atomic, is_read, needs_data_response};
use crate::rules::RuleId;

impl Response<'_, '_> {
    pub fn read_response(&mut self) {
        let packet = &self.seen.packet;
        let psn = packet.bth.psn;
        let Some(place) = self.channel.window.find(psn) else {
            return self.no_request_has_psn(psn);
        };
        let Some(&sent) = self.channel.window.get(place) else { return };
        if sent.is_missing() {
            return;
        }
        if !is_read(sent.opcode) {
            return self.wrong_kind(&sent, psn);
        }
        self.learn_mtu(place);
        let Some(&sent) = self.channel.window.get(place) else { return };
        let offset = sent.psn.distance_to(psn);
        self.follows(&sent, offset);
        if offset > 0 || sent.psn != self.channel.window.oldest().unwrap_or(sent.psn) {
            self.before_read(&sent);
        }
        self.position(&sent, offset);
        self.length(&sent, offset);
        if let Some(aeth) = packet.ext.aeth {
            self.count_at_least(&sent, aeth.msn.value());
            if !matches!(aeth.syndrome, Syndrome::Ack(_)) {
                self.out.add(RuleId::Syndrome, self.place, || {
                    format!("{} with {}", packet.info.name, aeth.syndrome)
                });
            }
        }
        self.progress(place, &sent, offset);
    }

    /// Checks that responses arrive in PSN order, or restart at a PSN that was requested again.
    /// Skipped PSNs are lost responses.
    fn follows(&mut self, sent: &Sent, offset: u32) {
        const NEAR: u32 = 1 << 12;
        let psn = self.seen.packet.bth.psn;
        let mut expected = self.channel.next_response.unwrap_or_else(|| {
            let oldest = self.channel.window.unacked().find(|sent| sent.lacks_response());
            oldest.map_or(psn, |sent| sent.psn.add(sent.answered))
        });
        if psn.is_before(expected) {
            if sent.times == 1 {
                return; // A late or a duplicate response.
            }
            // The responses to a retransmission begin where the retransmission began.
            let restart = self
                .channel
                .restarted_at
                .filter(|restart| restart.at_or_before(psn) && restart.distance_to(psn) <= NEAR);
            expected = restart.unwrap_or_else(|| sent.psn.add(sent.requested_from.min(offset)));
        }
        self.channel.restarted_at = None;
        self.channel.next_response = Some(psn.next());
        if expected.distance_to(psn) > NEAR {
            return;
        }
        let is_hole = self
            .channel
            .hole
            .is_some_and(|(start, _)| expected.at_or_before(start) && start.at_or_before(psn));
        while expected.is_before(psn) {
            let Some(place) = self.channel.window.find(expected) else { break };
            let Some(known) = self.channel.window.get_mut(place) else { break };
            let end = if known.end().is_before(psn) { known.end() } else { psn };
            if !expected.is_before(end) {
                break;
            }
            if !known.is_missing() && needs_data_response(known.opcode) {
                known.lost_from = Some(known.psn.distance_to(expected));
                let (opcode, request) = (known.opcode, known.last.number);
                if is_hole {
                    expected = end;
                    continue;
                }
                self.out.add(RuleId::ResponseLoss, self.place, || {
                    format!(
                        "the responses with PSN {} to {} to {opcode} in packet {request} were lost \
                         before this capture point",
                        hex(expected),
                        hex(end.prev())
                    )
                });
            }
            expected = end;
        }
    }

    /// A response to a READ acknowledges all requests before the READ.
    fn before_read(&mut self, sent: &Sent) {
        if self.channel.acked.is_none_or(|acked| acked.is_before(sent.psn)) {
            self.through(sent.psn.prev());
        }
    }

    fn no_request_has_psn(&mut self, psn: Psn) {
        if self.channel.acked.is_none()
            && self.channel.window.oldest().is_none_or(|oldest| psn.is_before(oldest))
        {
            return; // The capture began after its READ.
        }
        self.out.add(RuleId::AckUnsent, self.place, || {
            format!(
                "{} with PSN {}, but no request has this PSN",
                self.seen.packet.info.name,
                hex(psn)
            )
        });
        self.remember_unsent(psn);
    }

    fn wrong_kind(&mut self, sent: &Sent, psn: Psn) {
        let name = self.seen.packet.info.name;
        self.out.add(RuleId::Kind, self.place, || {
            format!(
                "{name} for PSN {}, but packet {} is a {} request",
                hex(psn),
                sent.first.number,
                sent.opcode
            )
        });
    }

    fn learn_mtu(&mut self, place: usize) {
        let packet = &self.seen.packet;
        let mtu = u32::try_from(packet.payload.len()).ok().and_then(PathMtu::from_bytes);
        let (None, PayloadRule::PathMtu, Some(mtu)) =
            (self.channel.path_mtu, packet.info.payload, mtu)
        else {
            return;
        };
        self.channel.path_mtu = Some(mtu.bytes());
        let sent = self.channel.window.get(place).copied();
        if let (Some(sent), Some(newest)) = (sent, self.channel.window.newest().copied())
            && sent.psn == newest.psn
        {
            self.channel.widen_newest(sent.len.div_ceil(mtu.bytes()).max(1));
        }
    }

    fn position(&mut self, sent: &Sent, offset: u32) {
        let info = self.seen.packet.info;
        let ends = offset + 1 == sent.span;
        let starts = offset == sent.requested_from;
        let fits = match info.position {
            Position::Only => ends && starts,
            Position::First => !ends && starts,
            Position::Middle => !ends && !starts,
            Position::Last => ends && !starts,
        };
        let is_known = sent.span > 1 || self.channel.path_mtu.is_some() || sent.len <= 256;
        // After a retransmitted READ, responses to either copy may be on their way.
        let may_be_older = sent.times > 1 && info.position.ends_message() == ends;
        if is_known && !fits && !may_be_older {
            self.out.add(RuleId::ReadSequence, self.place, || {
                format!(
                    "{} is response {} of {} to the READ in packet {}",
                    info.name,
                    offset + 1,
                    sent.span,
                    sent.last.number
                )
            });
        }
    }

    fn length(&mut self, sent: &Sent, offset: u32) {
        let Some(mtu) = self.channel.path_mtu.or((sent.len <= 256).then_some(256)) else { return };
        let is_read =
            sent.opcode.info().is_some_and(|info| info.operation == Operation::ReadRequest);
        let expected = if offset + 1 == sent.span {
            sent.len.wrapping_sub(offset.wrapping_mul(mtu))
        } else {
            mtu
        };
        let len = self.seen.packet.payload.len();
        if is_read && len as u64 != u64::from(expected) {
            self.out.add(RuleId::ReadLength, self.place, || {
                format!(
                    "response {} of {} to the READ in packet {} has {len} bytes instead of \
                     {expected}",
                    offset + 1,
                    sent.span,
                    sent.last.number
                )
            });
        }
    }

    /// Records how many responses to the READ have arrived.
    fn progress(&mut self, place: usize, sent: &Sent, offset: u32) {
        if offset > sent.answered {
            if let Some(known) = self.channel.window.get_mut(place) {
                known.lost_from = Some(sent.answered);
            }
        } else if offset < sent.answered && sent.times == 1 {
            self.repeated_response(sent, offset);
        }
        if offset == 0 && sent.times == 1 && sent.answered == 0 {
            self.channel.figures.response_times.add(self.seen.at.saturating_sub(sent.last_at));
        }
        let Some(known) = self.channel.window.get_mut(place) else { return };
        known.answered = known.answered.max(offset + 1);
        known.unanswered = 0;
        if known.answered == known.span
            && self.channel.acked.is_none_or(|acked| acked.is_before(known.end()))
        {
            let end = known.end();
            self.through(end.prev());
        }
    }

    fn repeated_response(&mut self, sent: &Sent, offset: u32) {
        let psn = sent.psn.add(offset);
        if sent.lost_from == Some(offset) {
            self.out.add(RuleId::Reorder, self.place, || {
                format!("the response with PSN {} was delayed, not lost", hex(psn))
            });
        } else {
            self.out.add(RuleId::Duplicate, self.place, || {
                format!(
                    "the response with PSN {} arrives twice, without a second request",
                    hex(psn)
                )
            });
        }
    }

    pub fn atomic(&mut self) {
        let packet = &self.seen.packet;
        let psn = packet.bth.psn;
        let Some(place) = self.channel.window.find(psn) else {
            return self.no_request_has_psn(psn);
        };
        let Some(&sent) = self.channel.window.get(place) else { return };
        if sent.is_missing() {
            return;
        }
        if !is_atomic(sent.opcode) {
            return self.wrong_kind(&sent, psn);
        }
        self.follows(&sent, 0);
        self.before_read(&sent);
        if let Some(aeth) = packet.ext.aeth {
            self.count_at_least(&sent, aeth.msn.value());
            if !matches!(aeth.syndrome, Syndrome::Ack(_)) {
                self.out.add(RuleId::Syndrome, self.place, || {
                    format!("{} with {}", packet.info.name, aeth.syndrome)
                });
            }
        }
        let value = packet.ext.atomic_ack.map(|ack| ack.original);
        if let (Some(first), Some(value)) = (sent.value, value)
            && first != value
        {
            self.out.add(RuleId::AtomicReplay, self.place, || {
                format!(
                    "the response to the atomic with PSN {} carries {value:#x}, an earlier one \
                     carried {first:#x}: the responder executed the atomic twice",
                    hex(psn)
                )
            });
        }
        if sent.times == 1 {
            self.channel.figures.response_times.add(self.seen.at.saturating_sub(sent.last_at));
        }
        let Some(known) = self.channel.window.get_mut(place) else { return };
        known.value = known.value.or(value);
        known.answered = 1;
        known.unanswered = 0;
        if self.channel.acked.is_none_or(|acked| acked.is_before(psn.next())) {
            self.through(psn);
        }
    }
}
