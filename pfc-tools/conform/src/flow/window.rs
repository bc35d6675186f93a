//! The requests of a flow that may still matter: those without an answer, and the last of those that have one.

use std::collections::VecDeque;

use feroce_wire::icrc::Sums;
use feroce_wire::{Opcode, Psn};

use crate::rules::PacketRef;

/// A request packet.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Its PSN; of a READ, that of its first response.
    pub psn: Psn,
    /// How many PSNs it takes.
    pub span: u32,
    /// What it is; meaningless if it was not seen.
    pub opcode: Opcode,
    /// When it was first seen.
    pub first: PacketRef,
    /// When it was last sent, in nanoseconds, and by which packet.
    pub last: PacketRef,
    /// When it was last sent.
    pub last_at: u64,
    /// IPv4 identification of the last copy; 0 if that says nothing.
    pub id: u16,
    /// How often it was seen; 0: these PSNs were passed over.
    pub times: u16,
    /// How often without an answer of any kind in between.
    pub unanswered: u16,
    /// Bytes that fill its payload up to a word.
    pub pad: u8,
    /// Its CRCs, which tell whether another packet is a copy.
    pub sums: Sums,
    /// Remote address.
    pub va: u64,
    /// Key of the remote memory; 0 without any.
    pub rkey: u32,
    /// Bytes of the message, as its RETH says.
    pub len: u32,
    /// READ and atomics: how many PSNs are answered; for others, nothing.
    pub answered: u32,
    /// READ: the first of its PSNs that the requester has asked for last.
    pub asked_from: u32,
    /// READ and atomics: the first PSN whose answer was seen to be missing.
    pub lost_from: Option<u32>,
    /// How often repetitions have passed over it since its last copy.
    pub passed: u16,
    /// Its last copy was told to follow a loss.
    pub is_told: bool,
    /// A copy of it has asked for an acknowledgement.
    pub asks: bool,
    /// Atomics: the value that was answered.
    pub value: Option<u64>,
    /// Messages completed ahead of it, counted from some point of the flow.
    pub messages: u32,
    /// Which point that is: counts of different points do not compare. 0: not known.
    pub epoch: u32,
    /// Whether it ends a message.
    pub ends: bool,
}

impl Sent {
    /// PSNs that were passed over.
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
            asked_from: 0,
            lost_from: None,
            passed: 0,
            is_told: false,
            asks: false,
            value: None,
            messages: 0,
            epoch: 0,
            ends: false,
        }
    }

    /// The PSN behind it.
    pub const fn end(&self) -> Psn {
        self.psn.add(self.span)
    }

    /// Whether these PSNs were passed over.
    pub const fn is_missing(&self) -> bool {
        self.times == 0
    }

    /// Whether it was seen, and a repetition has passed over it since.
    pub const fn is_skipped(&self) -> bool {
        !self.is_missing() && self.passed > 0
    }

    /// Messages completed with it.
    pub const fn messages_through(&self) -> u32 {
        self.messages + self.ends as u32
    }

    /// Whether it is answered by more than an acknowledgement, and that has not come yet.
    pub fn lacks_answer(&self) -> bool {
        !self.is_missing() && needs_answer(self.opcode) && self.answered < self.span
    }
}

/// Whether a request is answered by more than an acknowledgement.
pub fn needs_answer(opcode: Opcode) -> bool {
    is_read(opcode) || is_atomic(opcode)
}

/// Whether it is answered by READ responses.
pub fn is_read(opcode: Opcode) -> bool {
    use feroce_wire::Operation::{AtomicWrite, Flush, ReadRequest};
    opcode.info().is_some_and(|info| matches!(info.operation, ReadRequest | Flush | AtomicWrite))
}

/// Whether it is answered by an atomic acknowledgement.
pub fn is_atomic(opcode: Opcode) -> bool {
    use feroce_wire::Operation::{CompareSwap, FetchAdd};
    opcode.info().is_some_and(|info| matches!(info.operation, CompareSwap | FetchAdd))
}

/// Requests in the order of their PSNs, without holes.
#[derive(Debug, Default)]
pub struct Window {
    entries: VecDeque<Sent>,
    /// How many at the front are answered.
    acked: usize,
}

/// How many answered requests are kept, to know their copies.
const HISTORY: usize = 1024;
/// How many are kept in all.
const MOST: usize = 1 << 15;

impl Window {
    /// Whether nothing was sent.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.acked = 0;
    }

    /// Behind the newest request.
    #[inline]
    pub fn push(&mut self, sent: Sent) {
        // What came late may have made them more.
        if self.entries.len() >= MOST {
            self.forget(self.entries.len() + 1 - MOST);
        }
        self.entries.push_back(sent);
    }

    /// Ahead of the oldest request.
    pub fn push_front(&mut self, sent: Sent) {
        self.entries.push_front(sent);
    }

    fn forget(&mut self, count: usize) {
        self.entries.drain(..count);
        self.acked = self.acked.saturating_sub(count);
    }

    /// The PSN of the oldest request that is known.
    pub fn oldest(&self) -> Option<Psn> {
        self.entries.front().map(|sent| sent.psn)
    }

    /// The place of the request that has `psn`.
    pub fn find(&self, psn: Psn) -> Option<usize> {
        let front = self.entries.front()?.psn;
        let back = self.entries.back()?;
        let offset = front.distance_to(psn);
        if offset >= front.distance_to(back.end()) {
            return None;
        }
        // Most are found at the place that PSNs of one packet each would have, or near the end.
        let guess = offset as usize;
        if self.entries.get(guess).is_some_and(|sent| sent.psn == psn) {
            return Some(guess);
        }
        let behind = self.entries.partition_point(|sent| front.distance_to(sent.psn) <= offset);
        behind.checked_sub(1)
    }

    /// The request at a place that [`find`](Self::find) gave.
    pub fn get(&self, place: usize) -> Option<&Sent> {
        self.entries.get(place)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut Sent> {
        self.entries.get_mut(place)
    }

    /// Puts `sent` into the place of PSNs that were passed over; what is left of these stays.
    pub fn fill(&mut self, place: usize, sent: Sent) {
        let Some(hole) = self.entries.get(place).copied() else { return };
        let before = hole.psn.distance_to(sent.psn);
        let after = hole.span.saturating_sub(before + sent.span);
        // A hole is divided as long as there is room: what is passed over stays bounded, whatever comes late.
        if self.entries.len() + 2 > MOST && (before > 0 || after > 0) {
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

    /// Whether the request at `place` is answered.
    pub fn is_acked(&self, place: usize) -> bool {
        place < self.acked
    }

    /// Whether it is the oldest that is not answered.
    pub fn is_oldest(&self, place: usize) -> bool {
        place == self.acked
    }

    /// The requests that are not answered, from the front.
    pub fn unacked(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.entries.range(self.acked..)
    }

    /// The same, to be changed.
    pub fn unacked_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.entries.range_mut(self.acked..)
    }

    /// Everything ahead of `psn` is answered. Older answered ones are forgotten.
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

    /// The newest.
    pub fn newest(&self) -> Option<&Sent> {
        self.entries.back()
    }

    /// The same, to be changed.
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
    fn holes_are_filled_in_any_order() {
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
    fn what_is_kept_is_bounded() {
        let mut window = Window::default();
        for psn in 0..100_000 {
            window.push(sent(psn, 1));
        }
        assert_eq!(window.entries.len(), MOST);
        window.ack_before(Psn::new(99_999));
        assert_eq!((window.entries.len(), window.unacked().count()), (HISTORY + 1, 1));
    }
}
