//! Where the peer has let a QP write and read: what it need not be asked about again.

use feroce_wire::Key;

use crate::verbs::RemoteAddr;

/// Keys that are remembered.
const KEYS: usize = 4;

/// Ranges of the peer's memory, one per key, for which it has accepted requests of one kind.
///
/// A key stands for one range of addresses, so what lies between two places that it let the QP at is within, too.
#[derive(Debug, Default)]
pub(in crate::qp) struct Ground {
    ranges: [Option<Range>; KEYS],
    /// The place of the oldest.
    oldest: usize,
}

#[derive(Debug, Clone, Copy)]
struct Range {
    rkey: Key,
    start: u64,
    end: u64,
}

/// The two kinds.
#[derive(Debug, Default)]
pub(in crate::qp) struct Grounds {
    pub writes: Ground,
    pub reads: Ground,
}

impl Ground {
    /// Whether the peer has accepted requests at or around all `length` bytes from `remote` on.
    pub fn covers(&self, remote: RemoteAddr, length: u64) -> bool {
        let Some(end) = remote.addr.checked_add(length) else { return false };
        self.ranges.iter().flatten().any(|range| {
            range.rkey == remote.rkey && range.start <= remote.addr && end <= range.end
        })
    }

    /// Notes that the peer has accepted a request for `length` bytes at `remote`.
    pub fn learn(&mut self, remote: RemoteAddr, length: u64) {
        if length == 0 {
            return; // Nothing was checked.
        }
        let RemoteAddr { addr: start, rkey } = remote;
        let end = start.saturating_add(length);
        let known = self.ranges.iter_mut().flatten().find(|range| range.rkey == rkey);
        if let Some(range) = known {
            (range.start, range.end) = (range.start.min(start), range.end.max(end));
            return;
        }
        self.ranges[self.oldest] = Some(Range { rkey, start, end });
        self.oldest = (self.oldest + 1) % KEYS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(key: u32, addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: Key::from_parts(key, 1) }
    }

    #[test]
    fn what_lies_between_accepted_requests_is_covered_and_no_more() {
        let mut ground = Ground::default();
        assert!(!ground.covers(at(1, 0), 0));
        ground.learn(at(1, 1000), 100);
        assert!(ground.covers(at(1, 1000), 100) && !ground.covers(at(1, 1000), 101));
        ground.learn(at(1, 5000), 8);
        assert!(ground.covers(at(1, 1000), 4008) && !ground.covers(at(1, 999), 2));
        assert!(!ground.covers(at(2, 1000), 1));
        ground.learn(at(1, u64::MAX - 99), 100);
        assert!(
            ground.covers(at(1, u64::MAX - 49), 49) && !ground.covers(at(1, u64::MAX - 49), 51)
        );
    }

    #[test]
    fn the_oldest_of_five_keys_is_forgotten() {
        let mut ground = Ground::default();
        (0..5).for_each(|key| ground.learn(at(key, 0), 10));
        let known: Vec<_> = (0..5).filter(|&key| ground.covers(at(key, 0), 10)).collect();
        assert_eq!(known, [1, 2, 3, 4]);
    }

    #[test]
    fn a_request_for_nothing_teaches_nothing() {
        let mut ground = Ground::default();
        ground.learn(at(1, 4000), 0);
        ground.learn(at(1, 0), 10);
        assert!(!ground.covers(at(1, 0), 11));
    }
}
