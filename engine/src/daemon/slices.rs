//! Slices of QP numbers: which client has which.

use std::collections::{BTreeMap, VecDeque};

use feroce_wire::Qpn;

use super::client::ClientId;
use crate::core::SLICE;
use crate::time::{Duration, Instant};

/// Time that the slices of a client that has ended stay unused: longer than its peers retransmit
/// with the default timeout and retry count, and than they remember its connections (TIMEWAIT).
pub(super) const QUARANTINE: Duration = Duration::from_secs(60);

/// The owner of every slice. The first slice, with the reserved QPs 0 and 1, and the last slice,
/// with the multicast QP number, have no owner.
#[derive(Debug)]
pub(super) struct SliceTable {
    /// Indexed by slice.
    owners: Vec<Option<ClientId>>,
    /// Slices without an owner, the one that was free for longest first.
    free: VecDeque<u32>,
    /// Slices of clients that have ended, in the order of their ends.
    quarantined: VecDeque<Quarantined>,
    /// Number of slices that count towards each user's limit: slices in use and in quarantine.
    charged: BTreeMap<u32, u32>,
}

/// A slice whose client has ended.
#[derive(Debug, Clone, Copy)]
struct Quarantined {
    slice: u32,
    user: u32,
    since: Instant,
}

impl SliceTable {
    /// All slices are free. `random` chooses the first slice to be given, so that after a restart
    /// of the daemon the clients get other numbers.
    pub(super) fn new(random: u32) -> Self {
        let count = (1 << 24) / SLICE;
        let usable = count - 2;
        let slice = |step| 1 + (random % usable + step) % usable;
        let free = (0..usable).map(slice).collect();
        let (owners, quarantined) = (vec![None; count as usize], VecDeque::new());
        Self { owners, free, quarantined, charged: BTreeMap::new() }
    }

    /// The client that has `qpn`.
    #[inline]
    pub(super) fn owner(&self, qpn: Qpn) -> Option<ClientId> {
        self.owners[(qpn.value() / SLICE) as usize]
    }

    /// Gives a slice to `client` of `user`, who may have `limit` of them. Returns the first
    /// number of the slice; `None` if no slice is free or the user has reached the limit, with the
    /// slices in quarantine.
    pub(super) fn give(
        &mut self,
        client: ClientId,
        (user, limit): (u32, u32),
        now: Instant,
    ) -> Option<u32> {
        self.end_quarantine(now);
        let charged = self.charged.entry(user).or_default();
        if *charged >= limit {
            return None;
        }
        let slice = self.free.pop_front()?;
        *charged += 1;
        self.owners[slice as usize] = Some(client);
        Some(slice * SLICE)
    }

    /// Takes back all slices of `client`, a client of `user`. They stay unused for [`QUARANTINE`].
    pub(super) fn take_back(&mut self, client: ClientId, user: u32, now: Instant) {
        for (slice, owner) in (0..).zip(&mut self.owners) {
            if *owner == Some(client) {
                *owner = None;
                self.quarantined.push_back(Quarantined { slice, user, since: now });
            }
        }
    }

    /// The users with the QP numbers that count towards each user's limit.
    pub(super) fn charged(&mut self, now: Instant) -> Vec<(u32, u32)> {
        self.end_quarantine(now);
        self.charged.iter().map(|(user, slices)| (*user, slices * SLICE)).collect()
    }

    /// Frees the slices whose quarantine is over.
    fn end_quarantine(&mut self, now: Instant) {
        while let Some(Quarantined { slice, user, since }) = self.quarantined.front().copied()
            && now.saturating_since(since) >= QUARANTINE
        {
            self.quarantined.pop_front();
            self.free.push_back(slice);
            let left = self.charged.get(&user).map_or(0, |charged| charged - 1);
            match left {
                0 => self.charged.remove(&user),
                left => self.charged.insert(user, left),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_have_one_owner_and_return_after_a_while() {
        let now = Instant::from_nanos(5);
        let (a, b) = (ClientId(1), ClientId(2));
        let mut table = SliceTable::new(u32::MAX);
        let any = (0, u32::MAX);
        let first = table.give(a, any, now).unwrap();
        let second = table.give(b, (7, 1), now).unwrap();
        assert_eq!(table.give(b, (7, 1), now), None, "as many as the user may have");
        let owner = |table: &SliceTable, qpn| table.owner(Qpn::masked(qpn));
        assert_eq!(owner(&table, first), Some(a));
        assert_eq!(owner(&table, first + SLICE - 1), Some(a));
        assert_eq!(owner(&table, second), Some(b));
        let mut all = vec![first, second];
        all.extend(std::iter::from_fn(|| table.give(a, any, now)));
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), all[0], *all.last().unwrap()), (65_534, 0x100, 0xff_fe00));
        assert_eq!([Qpn::GSI, Qpn::MULTICAST].map(|qpn| table.owner(qpn)), [None; 2]);
        table.take_back(b, 7, now);
        assert_eq!((owner(&table, second), table.give(a, any, now)), (None, None));
        assert_eq!(
            table.give(b, (7, 1), now),
            None,
            "in quarantine, the slice counts towards the limit"
        );
        assert_eq!(table.charged(now).last(), Some(&(7, SLICE)));
        let later = now + QUARANTINE;
        assert_eq!(table.charged(later).len(), 1, "the slice of user 7 is free");
        assert_eq!(table.give(b, (7, 1), later), Some(second));
    }
}
