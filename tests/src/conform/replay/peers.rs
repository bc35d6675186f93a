//! What a capture says of the time that another responder may take: what was on its way when it answered.

use std::collections::BTreeMap;

use feroce_engine::verbs::SendOp;
use feroce_wire::Psn;

use super::align::Answer;
use super::asked::Asked;
use super::lanes::{Captured, Lane};
use super::messages::Messages;

/// See the [module](self).
#[derive(Debug)]
pub struct Peers {
    /// PSN with which each message counts as completed, and index of the request that makes it whole.
    whole: Vec<(Psn, usize)>,
    /// Index of the request that each captured answer is for.
    causes: Vec<usize>,
}

impl Peers {
    /// Of the lane.
    pub fn of(lane: &Lane, frames: &[Captured]) -> Self {
        let messages = Messages::of(lane, frames);
        let mut first_at = BTreeMap::new();
        for (&place, &index) in messages.places.iter().zip(&lane.requests) {
            first_at.entry(place).or_insert(index);
        }
        let whole = messages.list.iter().filter_map(|message| {
            // A READ counts from its first response on.
            let is_read = matches!(message.op, SendOp::Read(_));
            let last = if is_read { message.start } else { message.end() - 1 };
            Some((messages.psn(last), *first_at.get(&last)?))
        });
        Self { whole: whole.collect(), causes: causes(lane, frames) }
    }

    /// How many messages behind `psn` may have completed when the request `until` was the last that had been sent.
    pub fn behind(&self, psn: Psn, until: usize) -> u32 {
        let behind = |&&(last, at): &&(Psn, usize)| psn.is_before(last) && at <= until;
        self.whole.iter().filter(behind).count().try_into().unwrap_or(u32::MAX)
    }

    /// Index of the request that the captured answer at the place `at` among those of the lane is for.
    pub fn cause(&self, at: usize) -> usize {
        self.causes[at]
    }
}

fn causes(lane: &Lane, frames: &[Captured]) -> Vec<usize> {
    let mut asked = Asked::default();
    let mut next = 0;
    let cause = |&index: &usize| {
        while lane.requests.get(next).is_some_and(|&request| request < index) {
            asked.ask(lane, frames, next);
            next += 1;
        }
        let answer = Answer::of(&frames[index].packet());
        asked.cause(answer.psn, answer.kind).map_or(0, |cause| lane.requests[cause])
    };
    lane.responses.iter().map(cause).collect()
}
