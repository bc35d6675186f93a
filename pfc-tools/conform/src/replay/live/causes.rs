//! Which answers a request waits for: all that were captured ahead of it, and those to READs whose memory it changes. Without a
//! fence a responder may do that first: the captured one had read before.

use std::ops::Range;

use feroce_wire::{Key, Operation, Packet};

use crate::replay::align::{Answer, Kind};
use crate::replay::asked::Asked;
use crate::replay::lanes::{Captured, Lane, read_span};

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
    let mut reads: Vec<(Memory, Last)> = Vec::new();
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
            let cause =
                asked.cause(answer.psn, answer.kind).filter(|&cause| !is_habit && is_played(cause));
            let number = frames[index].number;
            awaited.extend(cause.map(|cause| Awaited { answer, cause, number }));
        }
        if at < lane.requests.len() {
            asked.ask(lane, frames, at);
            let packet = frames[request].packet();
            let changed = memory(&packet).filter(|_| is_played(at));
            match (packet.info.operation, changed) {
                (Operation::ReadRequest, Some(read)) => {
                    reads.extend(answered(lane, frames, at).map(|last| (read, last)));
                }
                (_, Some((key, range))) => {
                    reads.retain(|(_, last)| last.index > request); // The others have been waited for.
                    let touches = |((read, part), _): &(Memory, Last)| {
                        *read == key && part.start < range.end && range.start < part.end
                    };
                    let touched = reads.extract_if(.., |read| touches(read));
                    awaited.extend(touched.map(|(_, last)| last.awaited));
                }
                _ => {}
            }
        }
        waits.push(awaited);
    }
    waits
}

/// A key, and the addresses used with it.
type Memory = (Key, Range<u64>);

/// What a request reads or changes; of a message, all when it begins.
fn memory(packet: &Packet<'_>) -> Option<Memory> {
    let reth = packet.ext.reth.map(|reth| (reth.rkey, reth.va, u64::from(reth.dma_len)));
    let atomic = packet.ext.atomic_eth.map(|eth| (eth.rkey, eth.va, 8));
    let (key, va, len) = reth.or(atomic)?;
    Some((key, va..va.saturating_add(len)))
}

/// The last answer to a READ.
struct Last {
    index: usize,
    awaited: Awaited,
}

/// The captured answer that is the last to the READ at the place `at`.
fn answered(lane: &Lane, frames: &[Captured], at: usize) -> Option<Last> {
    let request = lane.requests[at];
    let packet = frames[request].packet();
    let last = packet.bth.psn.add(read_span(&packet, lane.mtu.bytes()) - 1);
    let behind = lane.responses.partition_point(|&index| index <= request);
    lane.responses[behind..].iter().find_map(|&index| {
        let answer = Answer::of(&frames[index].packet());
        let is_last = answer.kind == Kind::Read && answer.psn == last;
        let awaited = Awaited { answer, cause: at, number: frames[index].number };
        is_last.then_some(Last { index, awaited })
    })
}
