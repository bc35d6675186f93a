//! READs: their responses, and their retransmissions.

use feroce_wire::{Operation, Position, Psn, Reth};

use super::responder::has_data;
use super::{Found, View};
use crate::inject::trace::{Side, Step};

/// A READ as it arrived at the responder.
#[derive(Debug, Clone, Copy)]
struct ReadRequest {
    number: usize,
    at: u64,
    next: Psn,
    from: Psn,
    end: Psn,
    len: u32,
}

fn read_of(step: &Step<'_>) -> Option<Reth> {
    let is_read = step.packet.info.operation == Operation::ReadRequest;
    step.packet.ext.reth.filter(|_| is_read)
}

pub(super) fn responses(view: &View<'_>, found: &mut Found) {
    let reads = view.steps.iter().filter(|step| step.reaches(Side::Responder));
    let mut reads: Vec<_> = reads
        .filter_map(|step| {
            let (from, len) = (step.psn(), read_of(step)?.dma_len);
            let end = from.add(step.span(view.mtu));
            Some(ReadRequest { number: step.number, at: step.at, next: from, from, end, len })
        })
        .collect();
    let sent = view.steps.iter().filter(|step| {
        let is_response = step.packet.info.operation == Operation::ReadResponse;
        step.is_sent_by(Side::Responder) && is_response && !view.is_unseen(step.psn())
    });
    // Index of the READ whose responses are arriving; earlier ones are complete, or abandoned for a
    // retransmitted one.
    let mut current = 0;
    for step in sent {
        let psn = step.psn();
        let fits = |read: &ReadRequest| read.next == psn && psn.is_before(read.end);
        let slack = view.evidence.slack;
        let known = |read: &ReadRequest| read.at <= step.at + slack;
        let next = reads[current..].iter().position(|read| fits(read) && known(read));
        let Some(next) = next else {
            if !view.is_settled(step.at) {
                continue; // Of a READ that was not recorded.
            }
            let sentence = format!(
                "packet {} is a READ response with PSN {:#x} that no READ requested, or that was \
                 sent before",
                step.number,
                psn.value()
            );
            found.wrong([step.number], sentence);
            continue;
        };
        current += next;
        let read = &mut reads[current];
        read.next = psn.next();
        if let Some(wrong) = mismatch(read, step, view.mtu) {
            found.wrong([read.number, step.number], wrong);
        }
    }
}

/// Counts the READs and atomics whose last response has not arrived.
pub(super) fn depth(view: &View<'_>, found: &mut Found) {
    let Some(accepted) = view.known.connection.depth else { return };
    let mut outstanding: Vec<Psn> = Vec::new();
    let mut newest = Psn::new(view.first_psn);
    for step in &view.steps {
        if step.reaches(Side::Requester) && step.packet.info.is_response() {
            // What a later PSN acknowledges has arrived, or is requested again.
            outstanding.retain(|last| last.is_after(step.psn()));
        }
        let is_request = step.is_sent_by(Side::Requester) && has_data(step.packet.info.operation);
        let last = step.psn().add(step.span(view.mtu) - 1);
        if !is_request || last.is_before(newest) {
            continue;
        }
        newest = last.next();
        outstanding.push(last);
        if outstanding.len() > usize::from(accepted) {
            let sentence = format!(
                "packet {} makes {} READs and atomics outstanding; the responder accepts \
                 {accepted}",
                step.number,
                outstanding.len()
            );
            found.wrong([step.number], sentence);
        }
    }
}

/// Returns how a response differs from what its READ requested.
fn mismatch(read: &ReadRequest, step: &Step<'_>, mtu: u32) -> Option<String> {
    let psn = step.psn();
    let place = read.from.distance_to(psn);
    let is_last = psn.next() == read.end;
    let expected = match (place == 0, is_last) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    };
    let len = if is_last { read.len - place * mtu } else { mtu } as usize;
    let (position, found) = (step.packet.info.position, step.packet.payload.len());
    if position != expected {
        return Some(format!(
            "packet {} is a {position:?} response to packet {} instead of {expected:?}",
            step.number, read.number
        ));
    }
    (found != len).then(|| {
        format!(
            "packet {} has {found} bytes of the response to packet {} instead of {len}",
            step.number, read.number
        )
    })
}

/// Checks retransmitted READs against the original ones.
pub(super) fn recovery(view: &View<'_>, found: &mut Found) {
    let mut reads: Vec<(Psn, Psn, Reth)> = Vec::new();
    let mut redundant = 0;
    let arrived = view.steps.iter().filter(|step| {
        step.reaches(Side::Requester) && step.packet.info.operation == Operation::ReadResponse
    });
    let mut seen = std::collections::BTreeSet::new();
    for step in arrived {
        redundant += u32::from(!seen.insert(step.psn().value()));
    }
    for step in view.steps.iter().filter(|step| step.is_sent_by(Side::Requester)) {
        let Some(reth) = read_of(step) else { continue };
        let (psn, end) = (step.psn(), step.psn().add(step.span(view.mtu)));
        let first =
            reads.iter().find(|(from, until, _)| from.distance_to(psn) < from.distance_to(*until));
        let Some(&(from, until, whole)) = first else {
            reads.push((psn, end, reth));
            continue;
        };
        let skipped = from.distance_to(psn) * view.mtu;
        let expected = Reth {
            va: whole.va.wrapping_add(u64::from(skipped)),
            dma_len: whole.dma_len - skipped,
            ..whole
        };
        if (end, reth) != (until, expected) {
            let sentence = format!(
                "packet {} requests {} bytes at {:#x} again, instead of {} bytes at {:#x}",
                step.number, reth.dma_len, reth.va, expected.dma_len, expected.va
            );
            found.wrong([step.number], sentence);
        }
    }
    // Counted, not reported: a READ may be retransmitted as a whole.
    if redundant > 0 {
        found.counted("duplicate READ responses", u64::from(redundant));
    }
}
