//! Responder resources: the responses that a responder still has to send, in PSN order; the results
//! of atomics that it keeps for duplicate requests; and its pending ACK or NAK.

use std::collections::VecDeque;

use feroce_wire::{Key, NakCode, Psn, Reth, RnrTimer};

use super::attributes::RD_ATOMIC;
use super::connection::Connection;
use super::segment;
use crate::memory::PdId;

/// Responses, and results of atomics, that every QP has memory for from the start.
const INITIAL_CAPACITY: usize = RD_ATOMIC as usize;

/// A response to a READ, an atomic, a FLUSH or an ATOMIC WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// PSN of the next packet to send.
    pub next: Psn,
    /// PSN of the last packet.
    pub last: Psn,
    /// True if the next packet is the first one of the response.
    pub starts: bool,
    /// The data.
    pub data: ResponseData,
    /// True if the request is a duplicate. Such a response does not count against the responder's
    /// depth: the requester may have received the first response meanwhile, and may have sent new
    /// requests.
    pub is_replay: bool,
}

/// The data of a [`Response`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseData {
    /// READ: memory from `va` on, of which `left` bytes are not sent yet.
    Memory {
        /// Address of the next byte.
        va: u64,
        /// R_Key, checked again for each packet.
        rkey: Key,
        /// Bytes that are not sent yet.
        left: u32,
        /// Protection domain of the memory.
        pd: PdId,
    },
    /// Atomic: the old value.
    Value(u64),
    /// FLUSH or ATOMIC WRITE: no data.
    Empty,
}

impl Response {
    /// The response to the READ request `reth` with the PSN `psn`.
    pub fn read(psn: Psn, reth: &Reth, conn: &Connection) -> Self {
        let count = segment::psn_count(u64::from(reth.dma_len), conn.mtu);
        let (va, rkey, left, pd) = (reth.va, reth.rkey, reth.dma_len, conn.pd);
        let data = ResponseData::Memory { va, rkey, left, pd };
        Self { next: psn, last: psn.add(count - 1), starts: true, data, is_replay: false }
    }

    /// The response to an atomic request with the PSN `psn`, whose old value was `value`.
    pub fn atomic(psn: Psn, value: u64) -> Self {
        let data = ResponseData::Value(value);
        Self { next: psn, last: psn, starts: true, data, is_replay: false }
    }

    /// The response to a FLUSH or ATOMIC WRITE with the PSN `psn`.
    pub fn empty(psn: Psn) -> Self {
        let data = ResponseData::Empty;
        Self { next: psn, last: psn, starts: true, data, is_replay: false }
    }

    /// The same response, to a duplicate request.
    pub fn as_replay(self) -> Self {
        Self { is_replay: true, ..self }
    }
}

/// Responses to be sent, in PSN order.
#[derive(Debug)]
pub struct ResponderResources {
    responses: VecDeque<Response>,
    /// Responses that fit. The memory is allocated in advance.
    capacity: usize,
    /// Replays among the responses.
    replays: usize,
    /// Responses that fit besides those of the depth.
    room_for_replays: usize,
}

/// All responder resources are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourcesExhausted;

impl Default for ResponderResources {
    fn default() -> Self {
        let responses = VecDeque::with_capacity(INITIAL_CAPACITY);
        Self { responses, capacity: INITIAL_CAPACITY, replays: 0, room_for_replays: 0 }
    }
}

impl ResponderResources {
    /// Allocates memory for at least `depth` responses.
    pub fn reserve(&mut self, depth: u8) {
        self.capacity = self.capacity.max(usize::from(depth) + self.room_for_replays);
        self.responses.reserve_exact(self.capacity - self.responses.len());
    }

    /// Allocates memory for replays besides the responses of the depth: with selective repeat, a
    /// requester asks for lost responses while others are outstanding.
    pub fn reserve_for_replays(&mut self) {
        self.room_for_replays = INITIAL_CAPACITY;
        self.reserve(RD_ATOMIC);
    }

    /// Responses waiting that are not replays.
    pub fn first_time(&self) -> usize {
        self.responses.len() - self.replays
    }

    /// Returns true if no response waits.
    pub fn is_empty(&self) -> bool {
        self.responses.is_empty()
    }

    /// The response that the next packet belongs to.
    #[inline]
    pub fn front(&mut self) -> Option<&mut Response> {
        self.responses.front_mut()
    }

    /// Returns true if a response to be sent includes the packet with `psn`.
    pub fn will_send(&self, psn: Psn) -> bool {
        let covers = |r: &Response| r.next.at_or_before(psn) && psn.at_or_before(r.last);
        self.responses.iter().any(covers)
    }

    /// Inserts a response in PSN order. A replay replaces the response to the same request. Any
    /// other response replaces a replay if the resources are exhausted.
    ///
    /// # Errors
    /// [`ResourcesExhausted`].
    pub fn insert(&mut self, response: Response) -> Result<(), ResourcesExhausted> {
        let is_full = self.responses.len() == self.capacity;
        let replaced = match response.is_replay {
            true => self.responses.iter().position(|r| r.last == response.last),
            false if is_full => self.responses.iter().position(|r| r.is_replay),
            false => None,
        };
        if let Some(at) = replaced {
            self.remove(at);
        } else if is_full {
            return Err(ResourcesExhausted);
        }
        let goes_before = |r: &Response| !response.next.is_before(r.next);
        if self.responses.back().is_none_or(goes_before) {
            self.responses.push_back(response); // The usual case.
        } else {
            let at = self.responses.iter().rposition(goes_before).map_or(0, |last| last + 1);
            self.responses.insert(at, response);
        }
        self.replays += usize::from(response.is_replay);
        Ok(())
    }

    /// Removes the response at the front, which must exist.
    pub fn pop(&mut self) {
        let popped = self.responses.pop_front().expect("a response at the front");
        self.replays -= usize::from(popped.is_replay);
    }

    /// Checks what holds between two calls of a QP that expects `expected`: the responses belong to
    /// requests that were executed, and are in PSN order. The one at the front may have passed
    /// others while it was sent.
    ///
    /// # Panics
    /// If something does not hold, in builds with debug assertions.
    pub fn check_invariants(&self, expected: Psn) {
        debug_assert!(self.responses.len() <= self.capacity);
        for response in &self.responses {
            debug_assert!(response.next.at_or_before(response.last), "sent: {response:?}");
            debug_assert!(response.last.is_before(expected), "not executed: {response:?}");
        }
        let replays = self.responses.iter().filter(|response| response.is_replay).count();
        debug_assert_eq!(replays, self.replays);
        let is_sorted =
            self.responses.iter().skip(1).is_sorted_by(|a, b| !b.next.is_before(a.next));
        debug_assert!(is_sorted, "{:?}", self.responses);
    }

    fn remove(&mut self, at: usize) {
        let removed = self.responses.remove(at);
        self.replays -= usize::from(removed.is_some_and(|response| response.is_replay));
    }

    /// Removes all responses.
    pub fn clear(&mut self) {
        self.responses.clear();
        self.replays = 0;
    }
}

/// Results of the last atomics, for duplicate requests: an atomic is never executed twice (C9-105).
#[derive(Debug)]
pub struct AtomicReplay {
    /// Position in the request stream (see [`AtomicReplay::save`]) and result.
    results: VecDeque<(u64, u64)>,
    /// Results that are kept. The memory is allocated in advance.
    capacity: usize,
}

impl Default for AtomicReplay {
    fn default() -> Self {
        let results = VecDeque::with_capacity(INITIAL_CAPACITY);
        Self { results, capacity: INITIAL_CAPACITY }
    }
}

impl AtomicReplay {
    /// Allocates memory for the results of at least `depth` atomics.
    pub fn reserve(&mut self, depth: u8) {
        self.capacity = self.capacity.max(depth.into());
        self.results.reserve_exact(self.capacity - self.results.len());
    }

    /// Keeps the result of the atomic at `position`, a count of PSNs that does not wrap.
    pub fn save(&mut self, position: u64, result: u64) {
        if self.results.len() == self.capacity {
            self.results.pop_front();
        }
        self.results.push_back((position, result));
    }

    /// The result of the atomic at `position`, if it is still kept.
    pub fn find(&self, position: u64) -> Option<u64> {
        self.results.iter().find(|(at, _)| *at == position).map(|(_, result)| *result)
    }

    /// Removes all results.
    pub fn clear(&mut self) {
        self.results.clear();
    }
}

/// An ACK or NAK to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingAck {
    /// ACK: every packet before the expected PSN has arrived.
    Ack,
    /// The same, sent although the QP is in ERR: the connection ended without a NAK that would
    /// acknowledge the earlier requests.
    LastAck,
    /// NAK, PSN sequence error: the expected packet is missing.
    SequenceNak,
    /// RNR NAK: no receive is posted for the expected packet.
    RnrNak(RnrTimer),
    /// NAK with this code: the packet with this PSN is rejected.
    Nak(NakCode, Psn),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::attributes::MAX_RD_ATOMIC;

    fn response(next: u32, last: u32) -> Response {
        let (next, last) = (Psn::new(next), Psn::new(last));
        let data = ResponseData::Value(0);
        Response { next, last, starts: true, data, is_replay: false }
    }

    #[test]
    fn responses_stay_in_psn_order_across_the_wrap() {
        let mut resources = ResponderResources::default();
        for (next, last) in [(2, 5), (0xff_fff0, 0xff_ffff), (6, 6), (0, 1)] {
            resources.insert(response(next, last)).unwrap();
        }
        assert!(resources.will_send(Psn::new(0xff_fff1)) && resources.will_send(Psn::new(6)));
        assert!(!resources.will_send(Psn::new(7)));
        let mut order = Vec::new();
        while let Some(front) = resources.front() {
            order.push(front.next.value());
            resources.pop();
        }
        assert_eq!(order, [0xff_fff0, 0, 2, 6]);
    }

    #[test]
    fn exhausted_resources_refuse_a_response() {
        let mut resources = ResponderResources::default();
        for n in 0..u32::from(RD_ATOMIC) {
            resources.insert(response(n, n)).unwrap();
        }
        assert_eq!(resources.insert(response(99, 99)), Err(ResourcesExhausted));
        resources.pop();
        assert_eq!(resources.insert(response(99, 99)), Ok(()));
    }

    #[test]
    fn memory_is_reserved_for_a_larger_depth_and_kept() {
        let (mut resources, mut replay) = (ResponderResources::default(), AtomicReplay::default());
        for depth in [MAX_RD_ATOMIC, 1] {
            resources.reserve(depth);
            replay.reserve(depth);
        }
        for n in 0..MAX_RD_ATOMIC {
            resources.insert(response(n.into(), n.into())).unwrap();
            replay.save(n.into(), 7);
        }
        assert_eq!(resources.insert(response(99, 99)), Err(ResourcesExhausted));
        assert_eq!(replay.find(0), Some(7));
    }

    #[test]
    fn replays_are_replaced_and_replace() {
        let mut resources = ResponderResources::default();
        for n in 0..u32::from(RD_ATOMIC) {
            resources.insert(Response { is_replay: n < 2, ..response(n, n) }).unwrap();
        }
        let all = usize::from(RD_ATOMIC);
        assert_eq!(resources.first_time(), all - 2);
        let replay = |next, last| response(next, last).as_replay();
        assert_eq!(resources.insert(replay(200, 200)), Err(ResourcesExhausted));
        resources.insert(response(100, 104)).unwrap();
        assert_eq!((resources.first_time(), resources.will_send(Psn::new(0))), (all - 1, false));
        resources.insert(replay(102, 104)).unwrap();
        assert_eq!((resources.first_time(), resources.will_send(Psn::new(101))), (all - 2, false));
        assert!(resources.will_send(Psn::new(102)));
    }

    #[test]
    fn only_the_newest_results_are_kept() {
        let mut replay = AtomicReplay::default();
        assert_eq!(replay.find(0), None);
        let newest = 3 + INITIAL_CAPACITY as u64;
        for n in 0..=newest {
            replay.save(n, n * 10);
        }
        assert_eq!(replay.find(3), None);
        assert_eq!(replay.find(4), Some(40));
        assert_eq!(replay.find(newest), Some(newest * 10));
        replay.clear();
        assert_eq!(replay.find(newest), None);
    }
}
