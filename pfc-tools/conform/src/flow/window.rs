//! The requests of a flow that are kept: all outstanding ones and the newest completed ones.

use std::collections::VecDeque;

use feroce_wire::icrc::Sums;
use feroce_wire::{Opcode, Psn};

use crate::rules::PacketRef;

/// A request packet.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// PSN; for a READ, the PSN of its first response.
    pub psn: Psn,
    /// Number of PSNs.
    pub span: u32,
    /// Opcode; meaningless for a gap.
    pub opcode: Opcode,
    /// The first packet with it.
    pub first: PacketRef,
    /// The last packet with it.
    pub last: PacketRef,
    /// Time of the last packet, in nanoseconds.
    pub last_at: u64,
    /// IPv4 identification of the last copy; 0 if it does not distinguish packets.
    pub id: u16,
    /// Number of captured copies; 0 for a gap.
    pub times: u16,
    /// Number of consecutive copies without any response.
    pub unanswered: u16,
    /// Pad count of the payload, in bytes.
    pub pad: u8,
    /// CRCs, to recognise copies.
    pub sums: Sums,
    /// Remote address.
    pub va: u64,
    /// Remote key; 0 if the request has none.
    pub rkey: u32,
    /// DMA length in the RETH, in bytes.
    pub len: u32,
    /// For READs and atomics: number of PSNs with a response; 0 for other requests.
    pub answered: u32,
    /// For READs: offset of the first PSN requested by the last copy.
    pub requested_from: u32,
    /// For READs and atomics: offset of the first missing response.
    pub lost_from: Option<u32>,
    /// How often retransmissions skipped it since its last copy.
    pub passed: u16,
    /// True if the loss of the copy before the last one was reported.
    pub is_loss_reported: bool,
    /// True if a copy requested an acknowledgement.
    pub requests_ack: bool,
    /// For atomics: the value in the response.
    pub value: Option<u64>,
    /// Number of messages completed before it, counted within the epoch.
    pub messages: u32,
    /// Number of the counting epoch; counts of different epochs do not compare. 0 means unknown.
    pub epoch: u32,
    /// True if it completes a message.
    pub ends: bool,
}

impl Sent {
    /// Creates an entry for a gap: PSNs that were not captured.
    pub const fn missing(psn: Psn, span: u32, shown_by: PacketRef, at: u64) -> Self {
        Self {
            psn,
            span,
            opcode: Opcode(0),
            first: shown_by,
            last: shown_by,
            last_at: at,
            id: 0,
            times: 0,
            unanswered: 0,
            pad: 0,
            sums: Sums { head: 0, icrc: 0, behind: 0 },
            va: 0,
            rkey: 0,
            len: 0,
            answered: 0,
            requested_from: 0,
            lost_from: None,
            passed: 0,
            is_loss_reported: false,
            requests_ack: false,
            value: None,
            messages: 0,
            epoch: 0,
            ends: false,
        }
    }

    /// Returns the PSN after it.
    pub const fn end(&self) -> Psn {
        self.psn.add(self.span)
    }

    /// Returns true for a gap.
    pub const fn is_missing(&self) -> bool {
        self.times == 0
    }

    /// Returns true if it was captured and a retransmission has skipped it since.
    pub const fn is_skipped(&self) -> bool {
        !self.is_missing() && self.passed > 0
    }

    /// Returns the number of messages completed with it.
    pub const fn messages_through(&self) -> u32 {
        self.messages + self.ends as u32
    }

    /// Returns true if it needs a response with data that has not arrived completely.
    pub fn lacks_response(&self) -> bool {
        !self.is_missing() && needs_data_response(self.opcode) && self.answered < self.span
    }
}

/// Returns true if a request needs a response with data.
pub fn needs_data_response(opcode: Opcode) -> bool {
    is_read(opcode) || is_atomic(opcode)
}

/// Returns true if the responses to a request are READ responses.
pub fn is_read(opcode: Opcode) -> bool {
    use feroce_wire::Operation::{AtomicWrite, Flush, ReadRequest};
    opcode.info().is_some_and(|info| matches!(info.operation, ReadRequest | Flush | AtomicWrite))
}

/// Returns true if the response to a request is an atomic acknowledgement.
pub fn is_atomic(opcode: Opcode) -> bool {
    use feroce_wire::Operation::{CompareSwap, FetchAdd};
    opcode.info().is_some_and(|info| matches!(info.operation, CompareSwap | FetchAdd))
}

/// Requests in PSN order, without holes: gaps have entries of their own.
#[derive(Debug, Default)]
pub struct Window {
    entries: VecDeque<Sent>,
    /// Number of completed entries at the front.
    acked: usize,
}

/// The number of completed requests that are kept, to recognise their copies.
const HISTORY: usize = 1024;
/// Maximum number of entries kept.
const MAX_ENTRIES: usize = 1 << 15;

impl Window {
    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.acked = 0;
    }

    /// Adds a request after the newest one.
    #[inline]
    pub fn push(&mut self, sent: Sent) {
        // Late packets may have split gaps and added entries.
        if self.entries.len() >= MAX_ENTRIES {
            self.forget(self.entries.len() + 1 - MAX_ENTRIES);
        }
        self.entries.push_back(sent);
    }

    /// Adds a request before the oldest one.
    pub fn push_front(&mut self, sent: Sent) {
        self.entries.push_front(sent);
    }

    fn forget(&mut self, count: usize) {
        self.entries.drain(..count);
        self.acked = self.acked.saturating_sub(count);
    }

    /// Returns the PSN of the oldest known request.
    pub fn oldest(&self) -> Option<Psn> {
        self.entries.front().map(|sent| sent.psn)
    }

    /// Returns the index of the request that contains `psn`.
    pub fn find(&self, psn: Psn) -> Option<usize> {
        let front = self.entries.front()?.psn;
        let back = self.entries.back()?;
        let offset = front.distance_to(psn);
        if offset >= front.distance_to(back.end()) {
            return None;
        }
        // Most requests are at the index that single-PSN requests would have, or near the end.
        let expected = offset as usize;
        if self.entries.get(expected).is_some_and(|sent| sent.psn == psn) {
            return Some(expected);
        }
        let next = self.entries.partition_point(|sent| front.distance_to(sent.psn) <= offset);
        next.checked_sub(1)
    }

    /// Returns the request at an index returned by [`find`](Self::find).
    pub fn get(&self, place: usize) -> Option<&Sent> {
        self.entries.get(place)
    }

    /// Returns the request at an index, to be changed.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut Sent> {
        self.entries.get_mut(place)
    }

    /// Replaces a part of the gap at `place` by `sent`; the rest of the gap stays.
    pub fn fill(&mut self, place: usize, sent: Sent) {
        let Some(hole) = self.entries.get(place).copied() else { return };
        let before = hole.psn.distance_to(sent.psn);
        let after = hole.span.saturating_sub(before + sent.span);
        // A gap is split only while there is room: the number of entries stays bounded.
        if self.entries.len() + 2 > MAX_ENTRIES && (before > 0 || after > 0) {
            return;
        }
        self.entries[place] = sent;
        if after > 0 {
            let rest = Sent { psn: sent.end(), span: after, ..hole };
            self.entries.insert(place + 1, rest);
        }
        if before > 0 {
            self.entries.insert(place, Sent { span: before, ..hole });
        }
    }

    /// Returns true if the request at `place` is completed.
    pub fn is_acked(&self, place: usize) -> bool {
        place < self.acked
    }

    /// Returns true if the request at `place` is the oldest outstanding one.
    pub fn is_oldest(&self, place: usize) -> bool {
        place == self.acked
    }

    /// Returns the outstanding requests, oldest first.
    pub fn unacked(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.entries.range(self.acked..)
    }

    /// Returns the outstanding requests, to be changed.
    pub fn unacked_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.entries.range_mut(self.acked..)
    }

    /// Marks everything before `psn` as completed, and removes old completed requests.
    pub fn ack_before(&mut self, psn: Psn) {
        while let Some(sent) = self.entries.get(self.acked)
            && sent.end().at_or_before(psn)
        {
            self.acked += 1;
        }
        if self.acked > 2 * HISTORY {
            self.forget(self.acked - HISTORY);
        }
    }

    /// Returns the newest request.
    pub fn newest(&self) -> Option<&Sent> {
        self.entries.back()
    }

    /// Returns the newest request, to be changed.
    pub fn newest_mut(&mut self) -> Option<&mut Sent> {
        self.entries.back_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: PacketRef = PacketRef { file: 0, number: 1 };

    fn sent(psn: u32, span: u32) -> Sent {
        Sent { times: 1, ..Sent::missing(Psn::new(psn), span, AT, 0) }
    }

    fn psns(window: &Window) -> Vec<(u32, u32, bool)> {
        let row = |sent: &Sent| (sent.psn.value(), sent.span, sent.is_missing());
        window.entries.iter().map(row).collect()
    }

    #[test]
    fn a_request_is_found_by_each_of_its_psns() {
        let mut window = Window::default();
        window.push(sent(0xff_fffe, 1));
        window.push(sent(0xff_ffff, 4));
        window.push(sent(3, 1));
        let found: Vec<_> = [0xff_fffd, 0xff_fffe, 0xff_ffff, 0, 2, 3, 4]
            .map(|psn| window.find(Psn::new(psn)))
            .into();
        assert_eq!(found, [None, Some(0), Some(1), Some(1), Some(1), Some(2), None]);
        window.ack_before(Psn::new(2));
        assert_eq!(window.unacked().count(), 2, "a READ is answered with its last response");
        window.ack_before(Psn::new(3));
        assert_eq!(window.unacked().count(), 1);
    }

    #[test]
    fn gaps_are_filled_in_any_order() {
        let mut window = Window::default();
        window.push(sent(1, 1));
        window.push(Sent::missing(Psn::new(2), 4, AT, 0));
        window.push(sent(6, 1));
        let place = window.find(Psn::new(3)).unwrap();
        window.fill(place, sent(3, 1));
        let due = [(1, 1, false), (2, 1, true), (3, 1, false), (4, 2, true), (6, 1, false)];
        assert_eq!(psns(&window), due);
        window.fill(1, sent(2, 1));
        window.fill(3, sent(4, 2));
        assert!(psns(&window).iter().all(|row| !row.2));
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let mut window = Window::default();
        for psn in 0..100_000 {
            window.push(sent(psn, 1));
        }
        assert_eq!(window.entries.len(), MAX_ENTRIES);
        window.ack_before(Psn::new(99_999));
        assert_eq!((window.entries.len(), window.unacked().count()), (HISTORY + 1, 1));
    }
}
