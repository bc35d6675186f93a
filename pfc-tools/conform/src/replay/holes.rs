//! Holes of a capture: requests that the responder got and the capture does not have.
//!
//! The engine's QP that stands for one end does not have them either. Behind a hole it starts anew
//! with the next message.

use std::collections::BTreeMap;

use feroce_engine::qp::Service;
use feroce_wire::Psn;

use super::align::{Kind, ResponseId};
use super::lanes::{Captured, Lane, read_span};
use super::messages::{Messages, Place};

/// A hole in the requests of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Place of the first missing packet.
    pub start: Place,
    /// Place of the first message that begins behind the hole, if one does.
    pub resume: Option<Place>,
    /// PSN of the first missing packet.
    pub first_psn: Psn,
    /// Index of the lane's first request behind the hole.
    pub first_after: usize,
    /// PSN of the last response ahead of the hole.
    pub answered: Option<Psn>,
}

impl Hole {
    /// Returns true if a request at `place` is in the hole, or is the rest of a message that begins
    /// in it.
    pub fn contains(&self, place: Place) -> bool {
        place >= self.start && self.resume.is_none_or(|resume| place < resume)
    }

    /// Returns true if the request of a response with `psn` is in the hole.
    pub fn contains_psn(&self, psn: Psn) -> bool {
        psn.offset_from(self.first_psn) >= 0 && self.explains(psn)
    }

    /// Returns true if the request of a response with `psn` is in the hole or ahead of it.
    pub fn explains(&self, psn: Psn) -> bool {
        let after = Place::from(psn.offset_from(self.first_psn));
        self.resume.is_none_or(|resume| after < resume - self.start)
    }
}

/// Returns the holes of `lane`, in order. UC and datagrams have no responses that could show them.
pub fn holes(lane: &Lane, frames: &[Captured], messages: &Messages) -> Vec<Hole> {
    if lane.service != Service::Rc {
        return Vec::new();
    }
    // Of each place, its number of PSNs and its first packet.
    let mut sent: BTreeMap<Place, (u32, usize)> = BTreeMap::new();
    for (at, (&place, &index)) in messages.places.iter().zip(&lane.requests).enumerate() {
        let span = read_span(&frames[index].packet(), lane.mtu.bytes());
        let known = sent.entry(place).or_insert((span, at));
        known.0 = span.max(known.0);
    }
    let mut holes: Vec<Hole> = Vec::new();
    let mut next = sent.keys().next().copied().unwrap_or(0);
    let mut highest = 0;
    for (&place, &(span, at)) in &sent {
        let is_known = holes.last().is_some_and(|hole| hole.contains(place));
        // A later place that came earlier is a wrong PSN, or reordering.
        if place > next && !is_known && at >= highest {
            holes.extend(hole(lane, frames, messages, (next, place), at));
        }
        next = next.max(place + Place::from(span));
        highest = highest.max(at);
    }
    holes
}

/// Returns the hole between two places of `lane`, if the responder got what is missing. `behind` is
/// the index of the first request behind it among those of the lane.
fn hole(
    lane: &Lane,
    frames: &[Captured],
    messages: &Messages,
    (start, end): (Place, Place),
    behind: usize,
) -> Option<Hole> {
    let ahead = behind.checked_sub(1)?;
    let next = messages.places.get(behind + 1);
    if messages.places[ahead] >= start || next.is_some_and(|next| (start..=end).contains(next)) {
        return None; // As above.
    }
    let first_after = lane.requests[behind];
    let later = lane.responses.partition_point(|&index| index < first_after);
    let (first_psn, end_psn) = (messages.psn(start), messages.psn(end));
    let responses = lane.responses[later..].iter();
    let mut responses = responses.map(|&index| ResponseId::of(&frames[index].packet()));
    let shows_arrival = responses.find_map(|response| match response.kind {
        // The responder has not got what is missing.
        Kind::Sequence if response.psn == first_psn => Some(false),
        Kind::Sequence | Kind::Rnr => (!response.psn.is_before(end_psn)).then_some(true),
        _ => (!response.psn.is_before(first_psn)).then_some(true),
    });
    if shows_arrival != Some(true) {
        return None;
    }
    let resume = messages.list.partition_point(|message| message.start < end);
    let resume = messages.list.get(resume).map(|message| message.start);
    let hole = Hole { start, resume, first_psn, first_after, answered: None };
    let psns = lane.responses[..later].iter().map(|&index| frames[index].packet().bth.psn);
    let answered = psns.rev().find(|&psn| !hole.contains_psn(psn));
    Some(Hole { answered, ..hole })
}
