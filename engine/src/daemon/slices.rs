//! Slices of QP numbers: which client has which.

use std::collections::VecDeque;

use feroce_wire::Qpn;

use super::client::ClientId;
use crate::core::SLICE;
use crate::time::{Duration, Instant};

/// Time that the slices of a client that has ended stay unused: longer than its peers retransmit
/// with the default timeout and retry count, and than they remember its connections (TIMEWAIT).
pub(super) const QUARANTINE: Duration = Duration::from_secs(60);

/// The owner of every slice. The first slice, with the reserved QPs 0 and 1, and the last, with the
/// number of multicast, belong to nobody.
#[derive(Debug)]
pub(super) struct SliceTable {
    /// By slice.
    owners: Vec<Option<ClientId>>,
    /// Slices without an owner, the one that was free for longest first, and since when.
    free: VecDeque<(u32, Instant)>,
}

impl SliceTable {
    /// All slices are free. `drawn`: a random number, which chooses the first: after a restart of
    /// the daemon the clients get other numbers.
    pub(super) fn new(drawn: u32) -> Self {
        let count = (1 << 24) / SLICE;
        let usable = count - 2;
        let slice = |step| 1 + (drawn % usable + step) % usable;
        let free = (0..usable).map(|step| (slice(step), Instant::ZERO)).collect();
        Self { owners: vec![None; count as usize], free }
    }

    /// The client that has `qpn`.
    #[inline]
    pub(super) fn owner(&self, qpn: Qpn) -> Option<ClientId> {
        self.owners[(qpn.value() / SLICE) as usize]
    }

    /// Gives a slice to `client`. Returns its first number; `None` if none is free.
    pub(super) fn give(&mut self, client: ClientId, now: Instant) -> Option<u32> {
        let (slice, _) = self.free.pop_front_if(|(_, free_since)| {
            *free_since == Instant::ZERO || now.saturating_since(*free_since) >= QUARANTINE
        })?;
        self.owners[slice as usize] = Some(client);
        Some(slice * SLICE)
    }

    /// Takes all slices of `client` back.
    pub(super) fn take_back(&mut self, client: ClientId, now: Instant) {
        for (slice, owner) in (0..).zip(&mut self.owners) {
            if *owner == Some(client) {
                *owner = None;
                self.free.push_back((slice, now));
            }
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
        let first = table.give(a, now).unwrap();
        let second = table.give(b, now).unwrap();
        let owner = |table: &SliceTable, qpn| table.owner(Qpn::masked(qpn));
        assert_eq!(owner(&table, first), Some(a));
        assert_eq!(owner(&table, first + SLICE - 1), Some(a));
        assert_eq!(owner(&table, second), Some(b));
        let mut all = vec![first, second];
        all.extend(std::iter::from_fn(|| table.give(a, now)));
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), all[0], *all.last().unwrap()), (65_534, 0x100, 0xff_fe00));
        assert_eq!([Qpn::GSI, Qpn::MULTICAST].map(|qpn| table.owner(qpn)), [None; 2]);
        table.take_back(b, now);
        assert_eq!((owner(&table, second), table.give(a, now)), (None, None));
        assert_eq!(table.give(a, now + QUARANTINE), Some(second));
    }
}
