//! The device's counters, compared with the trace.

use feroce_engine::counters::Counter;
use feroce_engine::verbs::Status;
use feroce_wire::{Ecn, Opcode};

use super::{Found, View};
use crate::inject::script::Cause;
use crate::inject::trace::Side;

/// Returns the counters of `side` that the trace of one flow implies, by Feroce's names.
fn implied(view: &View<'_>, side: Side) -> Vec<(&'static str, u64)> {
    let (requester, responder) = (&view.requester, &view.responder);
    let count = |n: usize| n as u64;
    let cnps_sent = view
        .steps
        .iter()
        .filter(|step| step.is_sent_by(side) && step.packet.bth.opcode == Opcode::CNP);
    let marked = view.steps.iter().filter(|step| {
        step.reaches(side)
            && step.packet.ip.ecn() == Ecn::Ce
            && step.packet.bth.opcode != Opcode::CNP
    });
    let (malformed, wrong_icrc) = view.evidence.trace.damaged_at(side);
    let mut all = vec![
        (Counter::NpCnpSent, count(cnps_sent.count())),
        (Counter::NpEcnMarkedRocePackets, count(marked.count())),
        (Counter::RxIcrcEncapsulated, wrong_icrc),
        (Counter::PortRcvErrors, malformed),
    ];
    let timeouts = requester
        .restarts
        .iter()
        .filter(|restart| matches!(restart.cause, Some((Cause::Timeout, _))));
    let sends = view.outcome.map(|outcome| &outcome.sends[..]).unwrap_or_default();
    let given_up = count(sends.iter().filter(|(_, s)| *s == Status::RetryExceeded).count());
    match side {
        // The last timeout causes no retransmission.
        Side::Requester => all.extend([
            (Counter::PacketSeqErr, count(requester.naks.len())),
            (Counter::RnrNakRetryErr, requester.rnr_naks),
            (Counter::LocalAckTimeoutErr, count(timeouts.count()) + given_up),
        ]),
        Side::Responder => all.extend([
            (Counter::OutOfSequence, responder.ahead),
            (Counter::DuplicateRequest, count(responder.duplicates.len())),
            (Counter::OutOfBuffer, count(responder.rnr_naks.len())),
        ]),
    }
    all.into_iter().map(|(counter, expected)| (counter.name(), expected)).collect()
}

/// Returns the same counters by the names and rules of Linux rxe. rxe counts the NAKs that it sends
/// for packets out of sequence, one per gap, and the received NAKs that acknowledge something
/// (`rxe_resp.c`, `rxe_comp.c`).
fn implied_of_rxe(view: &View<'_>, side: Side) -> Vec<(&'static str, u64)> {
    let (requester, responder) = (&view.requester, &view.responder);
    match side {
        Side::Requester => {
            vec![
                ("rcvd_rnr_err", requester.rnr_naks),
                ("rcvd_seq_err", requester.acknowledging_naks),
            ]
        }
        Side::Responder => vec![
            ("duplicate_request", responder.duplicates.len() as u64),
            ("out_of_seq_request", responder.naks.len() as u64),
            ("send_rnr_err", responder.rnr_naks.len() as u64),
        ],
    }
}

pub(super) fn counters(view: &View<'_>, found: &mut Found) {
    let flows = view.evidence.trace.flows();
    if view.flow > 0 || flows > 1 {
        return; // A device counts for all of its QPs together.
    }
    for side in Side::ALL {
        let Some(counted) = &view.evidence.counted[side.index()] else { continue };
        // A counter name that only rxe has.
        let is_rxe = counted.contains_key("out_of_seq_request");
        for (name, expected) in
            if is_rxe { implied_of_rxe(view, side) } else { implied(view, side) }
        {
            let sentence = match counted.get(name) {
                Some(&has) if has == expected => continue,
                Some(has) => {
                    format!("{name} of the {side} is {has}, but the trace shows {expected}")
                }
                None => format!("the {side} has no counter {name}"),
            };
            found.wrong([], sentence);
        }
    }
}
