//! Which responses must arrive before a request is sent: all responses captured before it, and the
//! responses to READs of memory that the request changes. Without a fence a responder may execute
//! the change first; the captured responder executed the READ first.

use std::ops::Range;

use feroce_wire::{Key, Operation, Packet};

use crate::replay::align::{Kind, ResponseId};
use crate::replay::lanes::{Captured, Lane, read_span};
use crate::replay::response_cause::SentRequests;

/// A captured response to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awaited {
    /// The expected response.
    pub response: ResponseId,
    /// The request that caused it, by its index among those of the lane: only responses after this
    /// request count.
    pub cause: usize,
    /// Number of the captured packet.
    pub number: u64,
}

/// For each request of the lane, returns the responses to wait for before the request is sent. The
/// last entry holds the responses to wait for at the end. Requests for which `is_played` is false
/// are not sent and get no responses.
pub fn causes(
    lane: &Lane,
    frames: &[Captured],
    is_played: impl Fn(usize) -> bool,
) -> Vec<Vec<Awaited>> {
    let mut waits = Vec::new();
    let mut requests = SentRequests::default();
    let mut responses = lane.responses.iter().copied().peekable();
    let mut refused = None;
    let mut reads: Vec<(Memory, Last)> = Vec::new();
    let ends = lane.requests.iter().copied().chain([usize::MAX]);
    for (at, request) in ends.enumerate() {
        let mut awaited = Vec::new();
        while let Some(index) = responses.next_if(|&index| index < request) {
            let response = ResponseId::of(&frames[index].packet());
            // A NAK after an RNR NAK is a deviation of one peer.
            let is_deviation = response.kind == Kind::Sequence && refused == Some(response.psn);
            if response.kind != Kind::Sequence {
                refused = (response.kind == Kind::Rnr).then_some(response.psn);
            }
            let cause = requests
                .cause(response.psn, response.kind)
                .filter(|&cause| !is_deviation && is_played(cause));
            let number = frames[index].number;
            awaited.extend(cause.map(|cause| Awaited { response, cause, number }));
        }
        if at < lane.requests.len() {
            requests.add(lane, frames, at);
            let packet = frames[request].packet();
            let changed = memory(&packet).filter(|_| is_played(at));
            match (packet.info.operation, changed) {
                (Operation::ReadRequest, Some(read)) => {
                    reads.extend(last_response(lane, frames, at).map(|last| (read, last)));
                }
                (_, Some((key, range))) => {
                    reads.retain(|(_, last)| last.index > request); // Others were waited for.
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

/// A key and a range of addresses.
type Memory = (Key, Range<u64>);

/// Returns the memory that a request reads or changes; for a message, all of it at its first
/// packet.
fn memory(packet: &Packet<'_>) -> Option<Memory> {
    let reth = packet.ext.reth.map(|reth| (reth.rkey, reth.va, u64::from(reth.dma_len)));
    let atomic = packet.ext.atomic_eth.map(|eth| (eth.rkey, eth.va, 8));
    let (key, va, len) = reth.or(atomic)?;
    Some((key, va..va.saturating_add(len)))
}

/// The last response to a READ.
struct Last {
    index: usize,
    awaited: Awaited,
}

/// Returns the captured response that is the last one to the READ at index `at`.
fn last_response(lane: &Lane, frames: &[Captured], at: usize) -> Option<Last> {
    let request = lane.requests[at];
    let packet = frames[request].packet();
    let last = packet.bth.psn.add(read_span(&packet, lane.mtu.bytes()) - 1);
    let behind = lane.responses.partition_point(|&index| index <= request);
    lane.responses[behind..].iter().find_map(|&index| {
        let response = ResponseId::of(&frames[index].packet());
        let is_last = response.kind == Kind::Read && response.psn == last;
        let awaited = Awaited { response, cause: at, number: frames[index].number };
        is_last.then_some(Last { index, awaited })
    })
}
