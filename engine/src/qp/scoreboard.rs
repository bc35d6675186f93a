//! The scoreboard of a requester with selective repeat: which packets the peer has received, and
//! which responses have arrived, behind the oldest one that is missing (RFC 6675 calls it so).
//!
//! ```text
//!   una ............. executed ................. end
//!   responses may     request packets may be
//!   be missing        missing
//! ```
//! A packet that is missing is lost once the peer has received a packet that was sent after it: the
//! peer receives packets in order, as a rule. If packets overtake each other, one is sent again
//! that was not lost, which does no harm.
//!
//! If all packets from some point on are lost, no later packet shows it. But a packet that is sent
//! again and acknowledged does: it was sent after them. So the last of them, the suspect, is sent
//! again, and its acknowledgement or NAK tells which ones are missing (as the tail loss probe of
//! RFC 8985 does).

use feroce_wire::{Psn, Sack};

/// PSNs that the scoreboard covers, from the oldest unacknowledged one.
pub(super) const SPAN: u32 = Sack::SPAN;

const WORDS: usize = SPAN as usize / 64;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Scoreboard {
    /// Something may be missing. Otherwise all fields are as in a new scoreboard.
    is_active: bool,
    /// All request packets before this one were executed.
    executed: Psn,
    /// The newest map of the peer, and the PSN that it counts from.
    expected: Psn,
    sack: Sack,
    /// Responses that have arrived; one bit for each PSN of the span.
    stored: Bits,
    /// The last PSNs of READs and atomics whose responses have all arrived.
    complete: Bits,
    /// For each PSN of the span: 0, or if it was sent again, the distance from it to the first
    /// packet that had not been sent then.
    marks: [u16; SPAN as usize],
    /// The last packet that was sent before one that was sent again and acknowledged.
    suspect: Option<Psn>,
    /// Where the search for lost packets continues: request and PSN.
    search: Search,
}

/// A set of PSNs of the span.
#[derive(Debug, Default)]
struct Bits {
    words: [u64; WORDS],
    count: u32,
}

impl Bits {
    fn contains(&self, psn: Psn) -> bool {
        self.words[slot(psn) / 64] & 1 << (slot(psn) % 64) != 0
    }

    fn insert(&mut self, psn: Psn) {
        self.count += u32::from(!self.contains(psn));
        self.words[slot(psn) / 64] |= 1 << (slot(psn) % 64);
    }

    /// Returns true if `count` is the number of PSNs in the set.
    fn is_counted(&self) -> bool {
        self.count == self.words.iter().map(|word| word.count_ones()).sum::<u32>()
    }

    fn remove(&mut self, psn: Psn) {
        self.count -= u32::from(self.contains(psn));
        self.words[slot(psn) / 64] &= !(1 << (slot(psn) % 64));
    }
}

/// The search for lost packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// At the oldest request: there is news.
    Start,
    /// At this request and PSN.
    At(u32, Psn),
    /// No packet is lost, as far as is known.
    Done,
}

impl Scoreboard {
    pub(super) fn new() -> Self {
        let zero = Psn::new(0);
        Self {
            is_active: false,
            executed: zero,
            expected: zero,
            sack: Sack::default(),
            stored: Bits::default(),
            complete: Bits::default(),
            marks: [0; SPAN as usize],
            suspect: None,
            search: Search::Done,
        }
    }

    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Something is missing at `una` or behind it.
    pub(super) fn activate(&mut self, una: Psn) {
        if !self.is_active {
            (self.is_active, self.executed, self.expected) = (true, una, una);
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        if self.is_active {
            *self = Self::new();
        }
    }

    /// All packets before `una` are done, which were not before. The search starts over: the span
    /// covers other packets now, and the request where it was may be complete.
    pub(super) fn advance(&mut self, from: Psn, una: Psn) {
        if !self.is_active {
            return;
        }
        let mut suspect = self.suspect;
        for distance in 0..from.distance_to(una).min(SPAN) {
            let psn = from.add(distance);
            let mark = std::mem::take(&mut self.marks[slot(psn)]);
            if mark > 0 {
                let last = psn.add(u32::from(mark)).prev();
                suspect = suspect.filter(|&other| last.is_before(other)).or(Some(last));
            }
            self.stored.remove(psn);
            self.complete.remove(psn);
        }
        let suspect = suspect.filter(|&last| una.at_or_before(last));
        if !una.is_before(self.end()) {
            self.clear();
            if suspect.is_none() {
                return;
            }
            self.activate(una);
        }
        (self.suspect, self.search) = (suspect, Search::Start);
    }

    /// The suspect, once, unless a later packet has arrived.
    pub(super) fn take_suspect(&mut self) -> Option<Psn> {
        let end = self.end();
        self.suspect.take().filter(|&last| end.at_or_before(last))
    }

    /// All request packets before this one were executed.
    pub(super) fn executed(&self) -> Psn {
        self.executed
    }

    /// The peer has executed all request packets before `psn`.
    pub(super) fn set_executed(&mut self, psn: Psn) {
        if self.executed.is_before(psn) {
            self.executed = psn;
            self.search = Search::Start;
            // A map that is behind must not appear to be ahead after half the PSN space.
            if !psn.is_before(self.expected.add(self.sack.last())) {
                (self.expected, self.sack) = (psn, Sack::default());
            }
        }
    }

    /// Takes the map of a NAK for `expected`. Maps may overtake each other.
    pub(super) fn set_sack(&mut self, expected: Psn, sack: Sack) {
        self.set_executed(expected);
        if self.expected == expected {
            self.sack.merge(&sack);
        } else if self.expected.is_before(expected) {
            (self.expected, self.sack) = (expected, sack);
        } else {
            return;
        }
        self.search = Search::Start;
    }

    /// One past the last packet that the peer is known to have received.
    pub(super) fn end(&self) -> Psn {
        let end = self.expected.add(self.sack.last() + 1);
        let has_map = self.sack.last() > 0;
        if has_map && self.executed.is_before(end) { end } else { self.executed }
    }

    /// The peer has received this request packet, but has not executed it yet.
    pub(super) fn is_received(&self, psn: Psn) -> bool {
        self.expected.is_before(psn) && self.sack.contains(self.expected.distance_to(psn))
    }

    /// Packets from `base` on that the peer has received and not executed.
    pub(super) fn received_from(&self, base: Psn) -> u32 {
        match self.expected.is_before(base) {
            true => self.sack.count_from(self.expected.distance_to(base)),
            false => self.sack.count_from(1),
        }
    }

    /// The response `psn`, less than [`SPAN`] after the oldest unacknowledged PSN, has arrived.
    pub(super) fn set_stored(&mut self, psn: Psn) {
        self.stored.insert(psn);
    }

    /// All responses to the READ or atomic that ends with the PSN `last` have arrived.
    pub(super) fn set_complete(&mut self, last: Psn) {
        self.complete.insert(last);
    }

    /// READs and atomics all of whose responses have arrived, behind a missing one.
    pub(super) fn complete_reads(&self) -> u8 {
        u8::try_from(self.complete.count).unwrap_or(u8::MAX)
    }

    /// Responses that have arrived behind a missing one.
    pub(super) fn stored_responses(&self) -> u32 {
        self.stored.count
    }

    /// Returns true if the response `psn`, `distance` PSNs after the oldest unacknowledged one, has
    /// arrived.
    pub(super) fn is_stored(&self, psn: Psn, distance: u32) -> bool {
        distance < SPAN && self.stored.contains(psn)
    }

    /// Returns true if `psn`, which is missing, is lost: a packet before `end` was sent after it,
    /// and has been received. `distance`: from the oldest unacknowledged PSN.
    pub(super) fn is_lost(&self, psn: Psn, distance: u32, end: Psn) -> bool {
        let mark = if distance < SPAN { self.marks[slot(psn)] } else { 0 };
        psn.is_before(end) && psn.distance_to(end) > u32::from(mark)
    }

    /// The packets from `psn` to `end` are sent again; `sent_end` was not sent yet.
    pub(super) fn mark_sent(&mut self, una: Psn, psn: Psn, end: Psn, sent_end: Psn) {
        for distance in 0..psn.distance_to(end) {
            let psn = psn.add(distance);
            if una.distance_to(psn) >= SPAN {
                break;
            }
            let mark = u16::try_from(psn.distance_to(sent_end)).unwrap_or(u16::MAX);
            self.marks[slot(psn)] = mark;
        }
    }

    /// Checks what holds between two calls of a QP.
    ///
    /// # Panics
    /// If something does not hold, in builds with debug assertions.
    pub(super) fn check_invariants(&self) {
        let Self { stored, complete, .. } = self;
        debug_assert!(stored.is_counted() && complete.is_counted(), "a count is wrong: {self:?}");
        debug_assert!(complete.count <= stored.count, "complete without a response: {self:?}");
        if !self.is_active {
            let is_empty = stored.count == 0 && self.suspect.is_none() && self.sack.last() == 0;
            debug_assert!(is_empty && self.search == Search::Done, "not cleared: {self:?}");
        }
    }

    pub(super) fn search(&self) -> Search {
        self.search
    }

    pub(super) fn set_search(&mut self, search: Search) {
        self.search = search;
    }
}

fn slot(psn: Psn) -> usize {
    (psn.value() % SPAN) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(value: u32) -> Psn {
        Psn::new(value)
    }

    /// A scoreboard across the wrap: PSN 0xff_fffe is missing, and `distances` behind it are not.
    fn board(distances: &[u32]) -> Scoreboard {
        let mut board = Scoreboard::new();
        board.activate(psn(0xff_fff0));
        let mut sack = Sack::default();
        distances.iter().for_each(|&distance| sack.insert(distance));
        board.set_sack(psn(0xff_fffe), sack);
        board
    }

    /// RFC 6675.
    #[test]
    fn a_map_says_what_was_received_and_lost() {
        let board = board(&[1, 3, 4]);
        assert_eq!((board.executed(), board.end()), (psn(0xff_fffe), psn(3)));
        let received = [0xff_fffd, 0xff_fffe, 0xff_ffff, 0, 1, 2, 3];
        let received = received.map(|value| board.is_received(psn(value)));
        assert_eq!(received, [false, false, true, false, true, true, false]);
        let lost = [0, 2, 3].map(|value| board.is_lost(psn(value), 16 + value, board.end()));
        assert_eq!(lost, [true, true, false]);
        assert_eq!(
            [0xff_fff0, 0xff_ffff, 0, 2, 3].map(|base| board.received_from(psn(base))),
            [3, 3, 2, 1, 0]
        );
    }

    #[test]
    fn a_packet_sent_again_is_lost_again_when_a_later_one_arrives() {
        let mut board = board(&[1, 3, 4]);
        board.mark_sent(psn(0xff_fff0), psn(0), psn(1), psn(10));
        for (end, lost) in [(3, false), (10, false), (11, true)] {
            assert_eq!(board.is_lost(psn(0), 16, psn(end)), lost, "{end}");
        }
    }

    #[test]
    fn an_older_map_is_not_taken_and_progress_ends_the_search() {
        let mut board = board(&[1, 3, 4]);
        board.set_search(Search::Done);
        board.set_sack(psn(0xff_fff8), Sack::default());
        assert_eq!((board.end(), board.search()), (psn(3), Search::Done));
        board.set_sack(psn(0xff_fffe), Sack::default());
        assert_eq!(
            (board.end(), board.search()),
            (psn(3), Search::Start),
            "one that was overtaken"
        );
        board.set_search(Search::Done);
        board.set_executed(psn(1));
        assert_eq!(board.search(), Search::Start);
        board.set_search(Search::At(7, psn(2)));
        board.advance(psn(0xff_fff0), psn(2));
        assert!(board.is_active() && board.search() == Search::Start);
        board.advance(psn(2), psn(3));
        assert!(!board.is_active() && board.search() == Search::Done);
    }

    #[test]
    fn responses_are_counted_until_they_are_acknowledged() {
        let mut board = board(&[]);
        for value in [2, 3, 3] {
            board.set_stored(psn(value));
        }
        board.set_complete(psn(3));
        board.set_executed(psn(0x100));
        assert_eq!((board.stored_responses(), board.complete_reads()), (2, 1));
        assert!(board.is_stored(psn(3), 19) && !board.is_stored(psn(4), 20));
        assert!(!board.is_stored(psn(2 + SPAN), 18 + SPAN), "another PSN with the same place");
        board.advance(psn(0xff_fff0), psn(3));
        assert_eq!((board.stored_responses(), board.complete_reads()), (1, 1));
        board.advance(psn(3), psn(4));
        assert_eq!((board.stored_responses(), board.complete_reads()), (0, 0));
    }
}
