//! Selective repeat: what has arrived behind a gap, and which packets the sender sends again.
//!
//! The rules are those of IRN (Mittal et al., Revisiting Network Support for RDMA, SIGCOMM 2018,
//! section 3.1). A receiver keeps packets behind a gap, and answers each with a NAK that names the
//! packet that it expects and the one that has arrived. A sender recovers when it receives a NAK,
//! or when its timer expires: it sends the oldest unacknowledged packet again, and then each packet
//! that is missing before one that has arrived. Recovery ends when everything that was sent before
//! it is acknowledged. A packet that is lost twice is sent again in the next recovery. IRN's limit
//! of packets in flight is the setting `window`, its timeout is `timeout`.

use std::collections::VecDeque;

/// Packets that have arrived, from a packet that has not.
#[derive(Debug, Clone, Default)]
pub(super) struct Arrived {
    /// Number of the first packet that may be missing.
    base: u32,
    /// For each packet from the base on: it has arrived. The last one has.
    has: VecDeque<bool>,
}

impl Arrived {
    pub fn insert(&mut self, psn: u32) {
        let place = (psn - self.base) as usize;
        if self.has.len() <= place {
            self.has.resize(place + 1, false);
        }
        self.has[place] = true;
    }

    pub fn contains(&self, psn: u32) -> bool {
        let place = psn.checked_sub(self.base);
        place.and_then(|place| self.has.get(place as usize)).is_some_and(|&has| has)
    }

    /// One past the last packet that has arrived.
    fn end(&self) -> u32 {
        self.base + u32::try_from(self.has.len()).expect("as many as packet numbers")
    }

    /// Forgets the packets before `base`.
    pub fn advance(&mut self, base: u32) {
        let passed = (base - self.base) as usize;
        self.has.drain(..passed.min(self.has.len()));
        self.base = base;
    }
}

/// The sender's view of a flow with selective repeat.
#[derive(Debug, Clone, Default)]
pub(super) struct Scoreboard {
    arrived: Arrived,
    /// Recovery ends when all packets before this one are acknowledged.
    recovery_end: u32,
    /// The search for lost packets goes on here.
    search: u32,
    /// The packet to send again.
    lost: Option<u32>,
}

impl Scoreboard {
    /// The packet to send again.
    pub fn lost(&self) -> Option<u32> {
        self.lost
    }

    /// All packets before `una` are acknowledged.
    pub fn acknowledge(&mut self, una: u32) {
        self.arrived.advance(una);
        if self.lost.is_some_and(|lost| lost < una) {
            self.find_lost(una);
        }
    }

    /// Packet `psn` has arrived, the oldest unacknowledged one has not. `end` is the next new
    /// packet. Returns true if recovery begins.
    pub fn on_nak(&mut self, psn: u32, end: u32) -> bool {
        self.arrived.insert(psn);
        let begins = self.recovery_end <= self.arrived.base;
        if begins {
            (self.recovery_end, self.lost) = (end, Some(self.arrived.base));
        } else if self.lost.is_none() {
            self.find_lost(self.search);
        }
        begins
    }

    /// Recovers after a timeout: all packets that are missing are sent again.
    pub fn recover(&mut self, end: u32) {
        self.search = self.arrived.base;
        (self.recovery_end, self.lost) = (end, Some(self.arrived.base));
    }

    /// The lost packet was sent again.
    pub fn on_resent(&mut self) {
        let next = self.lost.map_or(0, |psn| psn + 1);
        self.find_lost(self.search.max(next));
    }

    /// Searches for the next lost packet from `from` on.
    fn find_lost(&mut self, from: u32) {
        let end = self.arrived.end();
        let mut missing =
            (from.max(self.arrived.base)..end).filter(|&psn| !self.arrived.contains(psn));
        self.lost = missing.next();
        self.search = self.lost.unwrap_or(from.max(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packets that a sender sends again after these NAKs.
    fn resent(board: &mut Scoreboard) -> Vec<u32> {
        let next = || {
            let lost = board.lost();
            board.on_resent();
            lost
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn only_what_is_missing_is_sent_again_and_once() {
        let mut board = Scoreboard::default();
        board.acknowledge(10);
        assert!(board.on_nak(11, 20));
        assert!(!board.on_nak(14, 20));
        assert_eq!(resent(&mut board), [10, 12, 13]);
        assert!(!board.on_nak(15, 25));
        assert!(resent(&mut board).is_empty());
        assert!(!board.on_nak(17, 25));
        assert_eq!(resent(&mut board), [16]);
        board.acknowledge(18);
        assert!(!board.on_nak(19, 25), "recovery lasts until packet 20 is acknowledged");
        assert_eq!(resent(&mut board), [18]);
        board.acknowledge(20);
        assert!(board.on_nak(22, 25));
        assert_eq!(resent(&mut board), [20, 21]);
    }

    #[test]
    fn a_timeout_repeats_the_oldest_packet_and_what_is_known_to_be_lost() {
        let mut board = Scoreboard::default();
        board.on_nak(2, 5);
        assert_eq!(resent(&mut board), [0, 1]);
        board.recover(5);
        assert_eq!(resent(&mut board), [0, 1]);
        board.recover(5);
        board.acknowledge(3);
        assert!(resent(&mut board).is_empty(), "nothing is known to be lost");
        board.recover(5);
        assert_eq!(resent(&mut board), [3]);
    }
}
