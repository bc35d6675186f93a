//! What a peer's packets have in common. A forger who does not see them must guess it.
//!
//! Off the path, nobody sees a connection's QP numbers, PSNs and source port, and a packet is taken
//! only if it has all of them. What the connection does not agree on is learned: the Ethernet
//! address and the UDP source port that the packets come from, and that the peer counts messages
//! (MSN). A peer without such a habit is not bound to it, and one that changes it is followed after
//! [`FOLLOW`].

use feroce_wire::PacketView;

use crate::time::{Duration, Instant};

/// A value that occurred this often in a row is a habit.
const STABLE: u8 = 16;

/// A new value is followed when it has come for so long and the habit has not. A QP that is in use
/// gets packets more often, so that a forger cannot take the peer's place. A peer that failed over
/// still repeats its packets then.
const FOLLOW: Duration = Duration::from_millis(5);

/// A property of a peer's packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Habit<T> {
    /// The value of the last packets.
    usual: T,
    /// The value that was refused last, while `is_refusing`.
    refused: T,
    /// When it was refused first, in milliseconds; small, because every QP has three of these.
    since: u32,
    /// How many had the usual value in a row, at most [`STABLE`].
    run: u8,
    /// Another value came, and the usual one did not since.
    is_refusing: bool,
}

impl<T: Copy + Eq + Default> Habit<T> {
    /// Returns true if `value` is the peer's habit.
    #[inline]
    pub fn is_usual(&mut self, value: T) -> bool {
        let is_usual = self.run == STABLE && self.usual == value;
        if is_usual {
            self.is_refusing = false;
        }
        is_usual
    }

    /// Judges a packet with `value` whose PSN is right. Returns false if it must be dropped.
    pub fn judge(&mut self, value: T, now: Instant) -> bool {
        if value == self.usual {
            self.run = (self.run + 1).min(STABLE);
            self.is_refusing = false;
            return true;
        }
        if self.run < STABLE || self.has_come_for_long(value, now) {
            *self = Self { usual: value, run: 1, ..Self::default() };
            return true;
        }
        if !self.is_refusing || self.refused != value {
            (self.refused, self.since, self.is_refusing) = (value, millis(now), true);
        }
        false
    }

    fn has_come_for_long(&self, value: T, now: Instant) -> bool {
        let waited = millis(now).wrapping_sub(self.since);
        self.is_refusing && self.refused == value && u128::from(waited) >= FOLLOW.as_millis()
    }

    /// Judges a packet with `value` whose PSN is wrong: it tells nothing about the peer.
    pub fn allows(&self, value: T) -> bool {
        self.run < STABLE || self.usual == value
    }
}

/// Milliseconds, without the high bits: only differences matter.
fn millis(now: Instant) -> u32 {
    u32::try_from((now.as_nanos() / 1_000_000) & u64::from(u32::MAX)).expect("32 bits")
}

/// Where a packet comes from: the Ethernet address of the sender or the last router, and below it
/// the UDP source port. RNICs derive the port from the QP numbers, so that a connection keeps its
/// path. One word, because every packet compares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Origin(u64);

impl Origin {
    #[inline(always)] // Once per packet.
    pub fn of(packet: &PacketView<'_>) -> Self {
        Self(packet.source_mac_bits() | u64::from(packet.udp().src_port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + micros * 1000)
    }

    fn stable(value: u16) -> Habit<u16> {
        let mut habit = Habit::default();
        assert!((0..u64::from(STABLE)).all(|n| habit.judge(value, at(n))));
        assert!(habit.is_usual(value));
        habit
    }

    #[test]
    fn a_habit_is_learned_and_others_are_refused() {
        let mut habit = stable(7);
        for n in 0..1000 {
            for _ in 0..3 {
                assert!(!habit.judge(8, at(n * 10_000)), "copies, and the habit since the last");
            }
            assert!(!habit.allows(8) && habit.allows(7));
            assert!(habit.is_usual(7));
        }
    }

    #[test]
    fn a_peer_that_changes_its_habit_is_followed() {
        let mut habit = stable(7);
        assert!(!habit.judge(8, at(0)));
        assert!(!habit.judge(9, at(4000)), "a third value is no repetition");
        assert!(!habit.judge(8, at(6000)));
        assert!(!habit.judge(8, at(10_000)));
        assert!(habit.judge(8, at(11_000)));
        assert!(habit.judge(8, at(11_001)));
        assert!(habit.judge(9, at(11_002)), "not stable yet");
    }

    #[test]
    fn a_peer_without_a_habit_is_not_bound() {
        let mut habit = Habit::default();
        for n in 0..1000 {
            let value = (n % 10) as u16;
            assert!(habit.allows(value) && habit.judge(value, at(n)));
        }
    }
}
