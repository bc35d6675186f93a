//! What a peer's packets have in common. A forger who does not see them must guess it.
//!
//! Off the path, nobody sees a connection's QP numbers, PSNs and source port, and a packet is taken
//! only if it has all of them. What the connection does not agree on is learned: the Ethernet
//! address and the UDP source port that the packets come from, and that the peer counts messages
//! (MSN). A peer without such a habit is not bound to it, and one that changes it is followed.

use feroce_wire::{MacAddr, Packet, Psn};

/// A value that occurred this often in a row is a habit.
const STABLE: u8 = 16;

/// A property of a peer's packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Habit<T> {
    /// The value of the last packets.
    usual: T,
    /// How many had it in a row, at most [`STABLE`].
    run: u8,
    /// The value that was refused last, and how far the QP was then.
    refused: Option<(T, Psn)>,
}

impl<T: Copy + Eq> Habit<T> {
    /// Returns true if `value` is the peer's habit.
    #[inline]
    pub fn is_usual(&self, value: T) -> bool {
        self.run == STABLE && self.usual == value
    }

    /// Judges a packet with `value` whose PSN is right. Returns false if it must be dropped. A peer
    /// whose habit has changed is followed when a second packet comes and none of its old habit
    /// came in between: then `progress`, the expected PSN, is still the same.
    pub fn judge(&mut self, value: T, progress: Psn) -> bool {
        if value == self.usual {
            self.run = (self.run + 1).min(STABLE);
            return true;
        }
        let is_new = self.refused == Some((value, progress));
        if self.run == STABLE && !is_new {
            self.refused = Some((value, progress));
            return false;
        }
        *self = Self { usual: value, run: 1, refused: None };
        true
    }

    /// Judges a packet with `value` whose PSN is wrong: it tells nothing about the peer.
    pub fn allows(&self, value: T) -> bool {
        self.run < STABLE || self.usual == value
    }
}

/// Where a packet comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Origin {
    /// Ethernet address of the sender or the last router.
    mac: MacAddr,
    /// UDP source port. RNICs derive it from the QP numbers, so that a connection keeps its path.
    port: u16,
}

impl Origin {
    #[inline]
    pub fn of(packet: &Packet<'_>) -> Self {
        Self { mac: packet.ethernet.src, port: packet.udp.src_port }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stable(value: u16) -> Habit<u16> {
        let mut habit = Habit::default();
        assert!((0..u32::from(STABLE)).all(|n| habit.judge(value, Psn::new(n))));
        assert!(habit.is_usual(value));
        habit
    }

    #[test]
    fn a_habit_is_learned_and_others_are_refused() {
        let mut habit = stable(7);
        for n in 0..1000 {
            assert!(!habit.judge(8, Psn::new(100 + n)), "the peer has made progress in between");
            assert!(!habit.allows(8) && habit.allows(7));
            assert!(habit.judge(7, Psn::new(100 + n)));
        }
    }

    #[test]
    fn a_peer_that_changes_its_habit_loses_one_packet() {
        let mut habit = stable(7);
        assert!(!habit.judge(8, Psn::new(100)));
        assert!(!habit.judge(9, Psn::new(100)), "a third value is no repetition");
        assert!(!habit.judge(8, Psn::new(100)));
        assert!(habit.judge(8, Psn::new(100)));
        assert!(habit.judge(8, Psn::new(101)));
        assert!(habit.judge(9, Psn::new(102)), "not stable yet");
    }

    #[test]
    fn a_peer_without_a_habit_is_not_bound() {
        let mut habit = Habit::default();
        for n in 0..1000 {
            let value = (n % 10) as u16;
            assert!(habit.allows(value) && habit.judge(value, Psn::new(n)));
        }
    }
}
