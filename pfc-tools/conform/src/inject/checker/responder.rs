//! The responder's behaviour: gaps, duplicates, refusals.

use std::collections::BTreeMap;

use feroce_wire::{NakCode, Opcode, Operation, Psn, RnrTimer, Syndrome};

use super::{Found, View, time};
use crate::inject::trace::{Side, Step};

/// A packet, its time, and a PSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PsnEvent {
    /// Number of the packet.
    pub number: usize,
    /// Time, in nanoseconds.
    pub at: u64,
    /// The PSN in question.
    pub psn: Psn,
}

/// The observed behaviour of a responder.
#[derive(Debug, Default)]
pub struct ResponderHistory {
    /// Packets that revealed a gap, each with the expected PSN.
    pub gaps: Vec<PsnEvent>,
    /// When each gap was closed, if it was.
    pub closed: Vec<Option<u64>>,
    /// NAKs (PSN sequence error) sent.
    pub naks: Vec<PsnEvent>,
    /// RNR NAKs sent.
    pub rnr_naks: Vec<(PsnEvent, RnrTimer)>,
    /// Refusing NAKs sent.
    pub refusals: Vec<(PsnEvent, NakCode)>,
    /// Packets sent after the first refusal, except CNPs.
    pub sent_after_refusal: Vec<usize>,
    /// Duplicate requests that arrived.
    pub duplicates: Vec<PsnEvent>,
    /// Number of requests that arrived ahead of the expected PSN.
    pub ahead: u64,
    /// The expected PSN by time.
    pub expected: Vec<(u64, Psn)>,
    /// The PSN after each executed message.
    pub messages: Vec<Psn>,
    /// From this time on the responder's state is known: from the start of the connection, or from
    /// the first response that acknowledges all recorded requests.
    pub settled: u64,
}

/// The state while following a responder.
struct TraceState {
    history: ResponderHistory,
    expected: Psn,
    in_gap: bool,
    has_failed: bool,
    /// RNR NAKs still to be sent, by PSN.
    not_ready: BTreeMap<u32, usize>,
    refused: Option<Psn>,
    mtu: u32,
}

impl ResponderHistory {
    /// Follows the responder through `steps`.
    pub fn new(steps: &[Step<'_>], from_start: bool, first_psn: u32, mtu: u32) -> Self {
        let settled = if from_start { 0 } else { u64::MAX };
        let mut history = Self { settled, ..Self::default() };
        for step in steps.iter().filter(|step| step.is_sent_by(Side::Responder)) {
            history.add_response(step);
        }
        let mut not_ready = BTreeMap::new();
        for (event, _) in &history.rnr_naks {
            *not_ready.entry(event.psn.value()).or_default() += 1;
        }
        let refused = history.refusals.first().map(|(event, _)| event.psn);
        let expected = Psn::new(first_psn);
        history.expected.push((0, expected));
        let mut state = TraceState {
            history,
            expected,
            in_gap: false,
            has_failed: false,
            not_ready,
            refused,
            mtu,
        };
        for step in steps {
            if step.reaches(Side::Responder) && step.packet.info.is_request() && !state.has_failed {
                state.on_received(step);
            } else if step.is_sent_by(Side::Responder) {
                state.on_sent(step);
            }
        }
        state.history
    }

    fn add_response(&mut self, step: &Step<'_>) {
        let event = PsnEvent { number: step.number, at: step.at, psn: step.psn() };
        if step.packet.bth.opcode == Opcode::CNP {
            return;
        }
        if !self.refusals.is_empty() {
            self.sent_after_refusal.push(step.number);
        }
        match step.packet.ext.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Nak(NakCode::PsnSequence)) => self.naks.push(event),
            Some(Syndrome::RnrNak(timer)) => self.rnr_naks.push((event, timer)),
            Some(Syndrome::Nak(code)) => self.refusals.push((event, code)),
            _ => {}
        }
    }

    /// Returns the PSN expected at `at`.
    pub fn expected_at(&self, at: u64) -> Psn {
        let then = self.expected.partition_point(|(since, _)| *since <= at);
        self.expected[then.saturating_sub(1)].1
    }
}

impl TraceState {
    fn on_sent(&mut self, step: &Step<'_>) {
        let is_positive = step.packet.ext.aeth.is_some_and(|aeth| {
            matches!(aeth.syndrome, Syndrome::Ack(_)) && step.psn().next() == self.expected
        });
        if is_positive && !self.in_gap {
            self.history.settled = self.history.settled.min(step.at);
        }
    }

    fn on_received(&mut self, step: &Step<'_>) {
        let psn = step.psn();
        let event = PsnEvent { number: step.number, at: step.at, psn };
        if psn.is_before(self.expected) {
            self.history.duplicates.push(event);
            return;
        }
        if psn.is_after(self.expected) {
            self.history.ahead += 1;
            if !self.in_gap {
                self.in_gap = true;
                self.history.gaps.push(PsnEvent { psn: self.expected, ..event });
                self.history.closed.push(None);
            }
            return;
        }
        if let Some(closed) = self.history.closed.last_mut().filter(|_| self.in_gap) {
            closed.get_or_insert(step.at);
        }
        self.in_gap = false;
        if let Some(left) = self.not_ready.get_mut(&psn.value()).filter(|left| **left > 0) {
            *left -= 1;
            // Later packets are dropped silently.
            self.in_gap = true;
            return;
        }
        if self.refused == Some(psn) {
            self.has_failed = true;
            return;
        }
        self.expected = psn.add(step.span(self.mtu));
        self.history.expected.push((step.at, self.expected));
        if step.packet.info.position.ends_message() {
            self.history.messages.push(self.expected);
        }
    }
}

pub(super) fn nak_generation(view: &View<'_>, found: &mut Found) {
    let ResponderHistory { gaps, closed, naks, .. } = &view.responder;
    let mut naks = naks.iter().filter(|nak| view.is_settled(nak.at)).peekable();
    for (gap, closed) in gaps.iter().zip(closed).filter(|(gap, _)| view.is_settled(gap.at)) {
        // A NAK for another PSN belongs to another gap, or to none.
        let nak = naks.next_if(|nak| nak.psn == gap.psn && nak.at + view.evidence.slack >= gap.at);
        match nak {
            Some(nak) => {
                found.measured("gap to NAK", nak.at.saturating_sub(gap.at));
                while let Some(more) =
                    naks.next_if(|more| more.psn == gap.psn && !belong_to_two_gaps(view, nak, more))
                {
                    let sentence = format!(
                        "a second NAK for PSN {:#x} (packets {} and {}) without a retransmission \
                         in between: one NAK per gap is allowed",
                        gap.psn.value(),
                        nak.number,
                        more.number
                    );
                    found.wrong([nak.number, more.number], sentence);
                }
            }
            // A gap that was closed before the NAK could be sent needs none.
            None if closed.is_some_and(|at| at <= gap.at + view.evidence.slack) => {}
            None if view.is_cut_off(gap.at) => {}
            None => found.wrong(
                [gap.number],
                format!(
                    "no NAK for PSN {:#x}, which is missing when packet {} arrives",
                    gap.psn.value(),
                    gap.number
                ),
            ),
        }
    }
    for nak in naks {
        let sentence = format!(
            "a NAK for PSN {:#x} (packet {}), but no such gap is open",
            nak.psn.value(),
            nak.number
        );
        found.wrong([nak.number], sentence);
    }
    let Some(expected) = view.expected().and_then(|expect| expect.naks.as_ref()) else { return };
    let sent: Vec<_> = view.responder.naks.iter().map(|nak| view.relative(nak.psn)).collect();
    if sent != *expected {
        found.wrong(
            view.responder.naks.iter().map(|nak| nak.number),
            format!("NAKs for the PSNs {sent:?} instead of {expected:?}"),
        );
    }
}

/// Returns true if the gap of two NAKs was closed between them: then they belong to two gaps.
fn belong_to_two_gaps(view: &View<'_>, one: &PsnEvent, other: &PsnEvent) -> bool {
    view.responder.gaps.iter().filter(|gap| gap.psn == one.psn && gap.at <= other.at).count() > 1
}

pub(super) fn refusal(view: &View<'_>, found: &mut Found) {
    let ResponderHistory { refusals, sent_after_refusal, .. } = &view.responder;
    let expected = view.expected().and_then(|expect| expect.refused);
    match (refusals.first(), expected) {
        (None, None) => {}
        // Without control of the endpoints, a program may have asked for what it may not have.
        (Some(_), _) if view.outcome.is_none() => {}
        (None, Some(code)) => found.wrong([], format!("the NAK ({code}) is missing")),
        (Some((event, code)), None) => {
            found.wrong([event.number], format!("packet {} is a NAK ({code})", event.number));
        }
        (Some((event, code)), Some(expected)) if *code != expected => found.wrong(
            [event.number],
            format!("packet {} is a NAK ({code}) instead of ({expected})", event.number),
        ),
        _ => {}
    }
    if let (Some((refused, _)), [first, ..]) = (refusals.first(), &sent_after_refusal[..]) {
        let sentence = format!(
            "packet {first} is sent after the refusal in packet {}, which fails the connection",
            refused.number
        );
        found.wrong(sent_after_refusal.iter().copied(), sentence);
    }
}

pub(super) fn rnr_naks(view: &View<'_>, found: &mut Found) {
    let sent = &view.responder.rnr_naks;
    let numbers = || sent.iter().map(|(event, _)| event.number);
    match view.script.expect.rnr_naks {
        // Without control of the endpoints, receives may be missing at any time.
        _ if view.outcome.is_none() => {}
        None | Some(0) if sent.is_empty() => {}
        None | Some(0) => found.wrong(numbers(), "an RNR NAK, although receives are posted"),
        Some(min) if sent.len() < min as usize => {
            found.wrong(numbers(), format!("{} RNR NAKs instead of at least {min}", sent.len()));
        }
        Some(_) => {}
    }
    for (event, timer) in sent {
        let Some(code) = view.known.connection.rnr_timer else { continue };
        if timer.code() != code {
            let sentence = format!(
                "packet {} has an RNR timer of {}, but the timer code of the QP is {}",
                event.number,
                time(timer.nanos()),
                code
            );
            found.wrong([event.number], sentence);
        }
    }
}

/// Returns true if the response to a request carries data.
pub(super) fn has_data(operation: Operation) -> bool {
    matches!(operation, Operation::ReadRequest | Operation::FetchAdd | Operation::CompareSwap)
}
