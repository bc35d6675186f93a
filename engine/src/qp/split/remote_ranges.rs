//! Remote address ranges that the peer has already accepted from this QP, so that later requests
//! inside them may be split.

use feroce_wire::Key;

use crate::verbs::RemoteAddr;

/// Keys that are remembered.
const KEYS: usize = 4;

/// Remote ranges, one per key, in which the peer has accepted requests of one kind.
///
/// A key identifies one contiguous range of addresses. Addresses between two accepted requests
/// therefore belong to the same region or window.
#[derive(Debug, Default)]
pub struct RangeSet {
    ranges: [Option<RemoteRange>; KEYS],
    /// Index of the oldest range, which is replaced next.
    oldest: usize,
}

#[derive(Debug, Clone, Copy)]
struct RemoteRange {
    rkey: Key,
    start: u64,
    end: u64,
}

/// The accepted ranges by kind of request.
#[derive(Debug, Default)]
pub struct RemoteRanges {
    /// Ranges of WRITEs.
    pub writes: RangeSet,
    /// Ranges of READs.
    pub reads: RangeSet,
}

impl RangeSet {
    /// Returns true if all `length` bytes from `remote` on lie at or between accepted requests.
    pub fn covers(&self, remote: RemoteAddr, length: u64) -> bool {
        let Some(end) = remote.addr.checked_add(length) else { return false };
        self.ranges.iter().flatten().any(|range| {
            range.rkey == remote.rkey && range.start <= remote.addr && end <= range.end
        })
    }

    /// Records that the peer has accepted a request for `length` bytes at `remote`.
    pub fn record(&mut self, remote: RemoteAddr, length: u64) {
        if length == 0 {
            return; // The peer does not check the key and address of an empty request.
        }
        let RemoteAddr { addr: start, rkey } = remote;
        let end = start.saturating_add(length);
        let known = self.ranges.iter_mut().flatten().find(|range| range.rkey == rkey);
        if let Some(range) = known {
            (range.start, range.end) = (range.start.min(start), range.end.max(end));
            return;
        }
        self.ranges[self.oldest] = Some(RemoteRange { rkey, start, end });
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
    fn exactly_the_range_between_accepted_requests_is_covered() {
        let mut ranges = RangeSet::default();
        assert!(!ranges.covers(at(1, 0), 0));
        ranges.record(at(1, 1000), 100);
        assert!(ranges.covers(at(1, 1000), 100) && !ranges.covers(at(1, 1000), 101));
        ranges.record(at(1, 5000), 8);
        assert!(ranges.covers(at(1, 1000), 4008) && !ranges.covers(at(1, 999), 2));
        assert!(!ranges.covers(at(2, 1000), 1));
        ranges.record(at(1, u64::MAX - 99), 100);
        assert!(
            ranges.covers(at(1, u64::MAX - 49), 49) && !ranges.covers(at(1, u64::MAX - 49), 51)
        );
    }

    #[test]
    fn the_oldest_of_five_keys_is_forgotten() {
        let mut ranges = RangeSet::default();
        (0..5).for_each(|key| ranges.record(at(key, 0), 10));
        let known: Vec<_> = (0..5).filter(|&key| ranges.covers(at(key, 0), 10)).collect();
        assert_eq!(known, [1, 2, 3, 4]);
    }

    #[test]
    fn an_empty_request_records_nothing() {
        let mut ranges = RangeSet::default();
        ranges.record(at(1, 4000), 0);
        ranges.record(at(1, 0), 10);
        assert!(!ranges.covers(at(1, 0), 11));
    }
}
