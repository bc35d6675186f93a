//! Which answers a request waits for: all that were captured ahead of it.

use std::collections::BTreeMap;

use crate::conform::replay::align::{Answer, Kind};
use crate::conform::replay::lanes::{Captured, Lane, read_span};

/// A captured answer that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awaited {
    /// What is to be said.
    pub answer: Answer,
    /// The request that it answers, by its place among those of the lane: only what comes after that was sent counts.
    pub cause: usize,
    /// Number of the captured packet.
    pub number: u64,
}

/// Which request an answer with a PSN is for.
#[derive(Debug, Default)]
pub struct Asked {
    by_psn: BTreeMap<u32, usize>,
    last: Option<usize>,
}

impl Asked {
    /// The request at the place `at` among those of the lane is sent.
    pub fn ask(&mut self, lane: &Lane, frames: &[Captured], at: usize) {
        let packet = frames[lane.requests[at]].packet();
        for step in 0..read_span(&packet, lane.mtu.bytes()) {
            self.by_psn.insert(packet.bth.psn.add(step).value(), at);
        }
        self.last = Some(at);
    }

    /// The request that `answer` is for, of those that were sent: what is missing is told of a later one.
    pub fn cause(&self, answer: &Answer) -> Option<usize> {
        match answer.kind {
            Kind::Sequence => self.last,
            _ => self.by_psn.get(&answer.psn.value()).copied().or(self.last),
        }
    }
}

/// What each request of the lane waits for, by its place, and last, what the end does. Requests for which `is_played` is
/// false are not sent: nothing is said to them.
pub fn causes(
    lane: &Lane,
    frames: &[Captured],
    is_played: impl Fn(usize) -> bool,
) -> Vec<Vec<Awaited>> {
    let mut waits = Vec::new();
    let mut asked = Asked::default();
    let mut answers = lane.responses.iter().copied().peekable();
    let mut refused = None;
    let ends = lane.requests.iter().copied().chain([usize::MAX]);
    for (at, request) in ends.enumerate() {
        let mut awaited = Vec::new();
        while let Some(index) = answers.next_if(|&index| index < request) {
            let answer = Answer::of(&frames[index].packet());
            // A NAK behind an RNR NAK is a habit of one peer's.
            let is_habit = answer.kind == Kind::Sequence && refused == Some(answer.psn);
            if answer.kind != Kind::Sequence {
                refused = (answer.kind == Kind::Rnr).then_some(answer.psn);
            }
            let cause = asked.cause(&answer).filter(|&cause| !is_habit && is_played(cause));
            let number = frames[index].number;
            awaited.extend(cause.map(|cause| Awaited { answer, cause, number }));
        }
        waits.push(awaited);
        if at < lane.requests.len() {
            asked.ask(lane, frames, at);
        }
    }
    waits
}
