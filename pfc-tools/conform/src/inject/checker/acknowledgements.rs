//! Acknowledgements: their order, their PSNs, their MSNs.

use feroce_wire::{Opcode, Psn, Syndrome};

use super::responder::has_data;
use super::{Found, View};
use crate::inject::trace::{Side, Step};

/// The ACKs (positive, without data) in the order of sending.
fn acks<'a>(view: &'a View<'_>) -> impl Iterator<Item = &'a Step<'a>> {
    view.steps.iter().filter(|step| {
        let is_positive =
            step.packet.ext.aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_)));
        let is_ack = step.packet.bth.opcode == Opcode::RC_ACKNOWLEDGE;
        step.is_sent_by(Side::Responder) && is_ack && is_positive
    })
}

pub(super) fn ack_order(view: &View<'_>, found: &mut Found) {
    let mut newest: Option<(usize, Psn)> = None;
    for step in acks(view) {
        let psn = step.psn();
        match newest {
            Some((number, before)) if psn.is_before(before) => found.wrong(
                [number, step.number],
                format!(
                    "packet {} acknowledges PSN {:#x}, but packet {number} already acknowledged \
                     {:#x}",
                    step.number,
                    psn.value(),
                    before.value()
                ),
            ),
            _ => newest = Some((step.number, psn)),
        }
    }
}

pub(super) fn ack_justified(view: &View<'_>, found: &mut Found) {
    for step in acks(view).filter(|step| view.is_settled(step.at)) {
        let expected = view.responder.expected_at(step.at);
        if !step.psn().is_before(expected) {
            let sentence = format!(
                "packet {} acknowledges PSN {:#x}, but {:#x} has not arrived",
                step.number,
                step.psn().value(),
                expected.value()
            );
            found.wrong([step.number], sentence);
        }
    }
}

pub(super) fn msn(view: &View<'_>, found: &mut Found) {
    // The messages before the recording: none, or as many as the MSNs so far allow.
    let mut before = view.known.from_start.then_some((0, 0));
    for step in acks(view).filter(|step| !view.is_unseen(step.psn())) {
        let Some(aeth) = step.packet.ext.aeth else { continue };
        let until =
            |psn: Psn| view.responder.messages.iter().filter(|end| !end.is_after(psn)).count();
        let min = until(step.psn().next());
        let max = until(view.responder.expected_at(step.at));
        let msn = aeth.msn.value();
        let possible = (less(msn, max.max(min)), less(msn, min));
        let (least, most) = before.unwrap_or(possible);
        // Both intervals are short beside the 2^24 values of an MSN.
        let behind = |one: u32, other: u32| Psn::new(one).is_before(Psn::new(other));
        if behind(most, possible.0) || behind(possible.1, least) {
            let sentence = format!(
                "packet {} has MSN {}, but {min} messages are complete up to its PSN",
                step.number,
                less(msn, least as usize)
            );
            found.wrong([step.number], sentence);
            continue;
        }
        let later = if behind(least, possible.0) { possible.0 } else { least };
        let earlier = if behind(possible.1, most) { possible.1 } else { most };
        before = Some((later, earlier));
    }
}

/// An MSN less a count, modulo 2^24.
fn less(msn: u32, count: usize) -> u32 {
    msn.wrapping_sub(u32::try_from(count).unwrap_or(u32::MAX)) & 0xff_ffff
}

/// Checks that duplicates with an acknowledge request get an ACK. READs and atomics are checked
/// elsewhere.
pub(super) fn duplicates_acknowledged(view: &View<'_>, found: &mut Found) {
    let refused = view.responder.refusals.first().map(|(mark, _)| mark.at);
    for duplicate in &view.responder.duplicates {
        let request = view
            .steps
            .iter()
            .find(|step| step.number == duplicate.number && step.reaches(Side::Responder));
        let requests_ack = request
            .is_some_and(|step| step.packet.bth.ack_req && !has_data(step.packet.info.operation));
        let is_alive = refused.is_none_or(|at| at > duplicate.at);
        if !requests_ack || !is_alive {
            continue;
        }
        let response = view.steps.iter().find(|step| {
            step.is_sent_by(Side::Responder)
                && step.packet.info.is_response()
                && step.at + view.evidence.slack >= duplicate.at
                && !step.psn().is_before(duplicate.psn)
        });
        match response {
            Some(step) => {
                found.measured("duplicate to ACK", step.at.saturating_sub(duplicate.at));
            }
            None if view.is_cut_off(duplicate.at) || view.is_unseen(duplicate.psn) => {}
            None => found.wrong(
                [duplicate.number],
                format!(
                    "packet {} (PSN {:#x}), a duplicate with an acknowledge request, gets no ACK",
                    duplicate.number,
                    duplicate.psn.value()
                ),
            ),
        }
    }
}
