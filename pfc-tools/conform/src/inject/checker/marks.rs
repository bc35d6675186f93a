//! Congestion: CE marks, and the CNPs for them.

use feroce_wire::{Ecn, Opcode};

use super::{Found, View};
use crate::inject::trace::{Side, Step, StepKind};

pub(super) fn cnps(view: &View<'_>, found: &mut Found) {
    for side in Side::ALL {
        let marks: Vec<_> = view
            .steps
            .iter()
            .filter(|step| {
                step.reaches(side)
                    && step.packet.ip.ecn() == Ecn::Ce
                    && step.packet.bth.opcode != Opcode::CNP
            })
            .collect();
        let cnps: Vec<_> = view
            .steps
            .iter()
            .filter(|step| step.is_sent_by(side) && step.packet.bth.opcode == Opcode::CNP)
            .filter(|step| view.is_settled(step.at))
            .collect();
        for cnp in &cnps {
            if !cnp.packet.bth.becn || cnp.packet.payload.len() != 16 {
                let sentence = format!(
                    "packet {} is a malformed CNP: BECN 1 and 16 bytes of 0 are required",
                    cnp.number
                );
                found.wrong([cnp.number], sentence);
            }
            let reason = marks.iter().rev().find(|mark| mark.at <= cnp.at + view.evidence.slack);
            match reason {
                Some(mark) => {
                    found.measured("mark to CNP", cnp.at.saturating_sub(mark.at));
                }
                None => found.wrong(
                    [cnp.number],
                    format!(
                        "packet {} is a CNP of the {side}, but no marked packet arrived there",
                        cnp.number
                    ),
                ),
            }
        }
        for pair in cnps.windows(2) {
            found.measured("CNP to CNP", pair[1].at.saturating_sub(pair[0].at));
        }
        if cnps.len() > marks.len() {
            let sentence =
                format!("{} CNPs of the {side} for {} marked packets", cnps.len(), marks.len());
            found.wrong(cnps.iter().map(|cnp| cnp.number), sentence);
        }
        // Marked acknowledgements without data need no CNP.
        let min = view.expected().and_then(|expect| expect.cnps).unwrap_or_default() as usize;
        let with_data = marks.iter().filter(|mark| !mark.packet.payload.is_empty());
        let first = with_data.clone().map(|mark| mark.number).next();
        if let Some(first) = first
            && cnps.len() < min
        {
            let sentence = format!(
                "{} CNPs of the {side} instead of at least {min}: packet {first} and {} more are \
                 marked",
                cnps.len(),
                with_data.count() - 1
            );
            found.wrong([first], sentence);
        }
    }
    let expected = view.expected().is_some_and(|expect| expect.cnps.is_some());
    let is_marked = |step: &Step<'_>| step.packet.ip.ecn() == Ecn::Ce;
    let mut arrived = view.steps.iter().filter(|step| step.kind == StepKind::Arrived);
    if expected && !arrived.any(is_marked) {
        found.wrong([], "no packet was marked");
    }
}
