//! Accepted connections that the peer has not confirmed yet. A host that sends requests and never
//! confirms must neither fill the memory nor keep others out, and its address may be forged.
//! Therefore their number is limited, by source and in all; beyond the limit the oldest is given
//! up. An honest peer confirms within a round trip.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Endpoint;
use super::types::{CmId, EventKind, Status};
use crate::time::Instant;

/// Maximum number of one source. More than a host confirms late when it starts thousands of
/// connections at once; few enough that they need some megabytes.
pub(super) const PER_SOURCE: usize = 2048;

/// Maximum number of all sources.
pub(super) const TOTAL: usize = 4096;

/// The half-open connections of an endpoint, by source and age.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    added: u64,
    /// Source, and the age as a number that grows.
    members: BTreeMap<CmId, (IpAddr, u64)>,
    sources: BTreeMap<IpAddr, BTreeMap<u64, CmId>>,
    /// The sources by their rank.
    ranks: BTreeSet<(Rank, IpAddr)>,
}

/// What makes a source the one that must give up a connection: the number of its connections, then
/// the age of its oldest.
type Rank = (usize, std::cmp::Reverse<u64>);

impl HalfOpen {
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Adds `id`. Returns the connection that must be given up for it: the oldest of its source, or
    /// of the source that has most. The caller removes it.
    #[must_use]
    pub fn add(&mut self, id: CmId, source: IpAddr) -> Option<CmId> {
        let is_source_full = self.count(source) >= PER_SOURCE;
        let most = || self.ranks.last().map(|&(_, source)| source);
        let from = match self.members.len() >= TOTAL {
            _ if is_source_full => Some(source),
            true => most(),
            false => None,
        };
        let oldest = from.and_then(|from| self.sources.get(&from)?.values().next().copied());
        self.added += 1;
        self.members.insert(id, (source, self.added));
        let before = self.rank(source);
        self.sources.entry(source).or_default().insert(self.added, id);
        self.rank_again(source, before);
        oldest
    }

    /// Removes `id`, if it is there.
    pub fn remove(&mut self, id: CmId) {
        let Some((source, age)) = self.members.remove(&id) else { return };
        let before = self.rank(source);
        if let Some(members) = self.sources.get_mut(&source) {
            members.remove(&age);
            if members.is_empty() {
                self.sources.remove(&source);
            }
        }
        self.rank_again(source, before);
    }

    fn count(&self, source: IpAddr) -> usize {
        self.sources.get(&source).map_or(0, BTreeMap::len)
    }

    fn rank(&self, source: IpAddr) -> Option<Rank> {
        let members = self.sources.get(&source)?;
        let oldest = members.keys().next()?;
        Some((members.len(), std::cmp::Reverse(*oldest)))
    }

    /// The rank of `source` was `before`.
    fn rank_again(&mut self, source: IpAddr, before: Option<Rank>) {
        before.map(|rank| self.ranks.remove(&(rank, source)));
        self.ranks.extend(self.rank(source).map(|rank| (rank, source)));
    }
}

impl Endpoint {
    /// The connection `id` waits for its RTU from now on.
    pub(super) fn await_rtu(&mut self, id: CmId, source: IpAddr, now: Instant) {
        if let Some(oldest) = self.half_open.add(id, source) {
            self.give_up_unconfirmed(oldest, now);
            self.remove_if_over(oldest);
        }
    }

    /// Gives up an accepted connection that the peer has not confirmed.
    pub(super) fn give_up_unconfirmed(&mut self, id: CmId, now: Instant) {
        self.send_rej_timeout(id);
        self.push_event(id, EventKind::Unreachable, Status::TimedOut, Vec::new());
        self.reset(id);
        self.cache_stale_rej(id, now + self.copy_window(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> CmId {
        CmId::from_number(u32::try_from(number).unwrap())
    }

    fn source(number: usize) -> IpAddr {
        IpAddr::from(u32::try_from(number).unwrap().to_be_bytes())
    }

    #[test]
    fn the_oldest_of_a_full_source_goes_and_others_stay() {
        let mut half_open = HalfOpen::default();
        assert_eq!(half_open.add(id(1), source(7)), None);
        for n in 0..PER_SOURCE {
            assert_eq!(half_open.add(id(100 + n), source(8)), None);
        }
        half_open.remove(id(100));
        assert_eq!(half_open.add(id(2), source(8)), None, "one was confirmed");
        assert_eq!(half_open.add(id(3), source(8)), Some(id(101)));
        half_open.remove(id(101));
        assert_eq!(half_open.len(), 1 + PER_SOURCE);
        assert_eq!(half_open.add(id(4), source(7)), None);
    }

    #[test]
    fn among_equals_the_oldest_goes() {
        let mut half_open = HalfOpen::default();
        for n in 0..TOTAL {
            assert_eq!(half_open.add(id(n), source(TOTAL - n)), None);
        }
        assert_eq!(half_open.add(id(TOTAL), source(0xff00_0000)), Some(id(0)));
        half_open.remove(id(0));
        assert_eq!(half_open.add(id(TOTAL + 1), source(0xff00_0001)), Some(id(1)));
    }

    #[test]
    fn the_source_that_has_most_makes_room_for_others() {
        let mut half_open = HalfOpen::default();
        for n in 0..PER_SOURCE {
            assert_eq!(half_open.add(id(n), source(1)), None);
        }
        for n in PER_SOURCE..TOTAL {
            assert_eq!(half_open.add(id(n), source(n)), None);
        }
        for n in 0..5 {
            assert_eq!(half_open.add(id(TOTAL + n), source(TOTAL + n)), Some(id(n)));
            half_open.remove(id(n));
            assert_eq!(half_open.len(), TOTAL);
        }
        (0..TOTAL + 5).for_each(|n| half_open.remove(id(n)));
        assert_eq!((half_open.len(), half_open.sources.len(), half_open.ranks.len()), (0, 0, 0));
    }
}
