//! The region or window that a core used last. Most accesses of a core are to the same one.
//!
//! A core keeps a copy of the fields of its slot. The copy is used only while the state of the slot
//! (key, validity and generation) is the one that the copy was made at, because the fields have not
//! changed then. So every check still finds out whether the key is valid at that time.

use std::cell::Cell;
use std::ops::Deref;

use feroce_wire::Key;

use super::key_word::{NO_STATE, State};
use super::region::{Access, AccessError, MrTable, Scope, Target, View};
use crate::time::{Duration, Instant};

/// See the [module](self).
#[derive(Debug)]
pub struct Recent {
    /// State of the slot when it was copied; [`NO_STATE`] without a copy.
    state: Cell<State>,
    slot: Cell<usize>,
    view: Cell<View>,
    /// The copy is dropped in the first turn at or after this time.
    until: Cell<Instant>,
}

/// A copy lives at most for so long, and for one turn: a generation wraps after 2^30 changes of a
/// slot, and each takes more than a nanosecond.
const LIFETIME: Duration = Duration::from_millis(500);

impl Default for Recent {
    fn default() -> Self {
        Self {
            state: Cell::new(NO_STATE),
            slot: Cell::new(0),
            view: Cell::new(View::EMPTY),
            until: Cell::new(Instant::ZERO),
        }
    }
}

impl Recent {
    /// A turn begins at the time `now`: forgets the region if it was used for long.
    #[inline]
    pub fn start_turn(&self, now: Instant) {
        if now >= self.until.get() {
            self.until.set(now + LIFETIME);
            self.forget();
        }
    }

    /// Forgets the region.
    #[inline]
    pub fn forget(&self) {
        self.state.set(NO_STATE);
    }
}

/// The registered memory of a device, as one core accesses it.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    table: &'a MrTable,
    recent: &'a Recent,
}

impl Deref for Memory<'_> {
    type Target = MrTable;

    #[inline]
    fn deref(&self) -> &MrTable {
        self.table
    }
}

impl<'a> Memory<'a> {
    /// The regions and windows of `table`; `recent` belongs to the core and to this table.
    #[inline]
    pub fn new(table: &'a MrTable, recent: &'a Recent) -> Self {
        Self { table, recent }
    }

    /// Checks key, protection domain, rights and, if given, the bounds `(va, len)`.
    ///
    /// # Errors
    /// The first failed check, in that order.
    #[inline]
    pub fn check(
        &self,
        key: Key,
        scope: impl Into<Scope>,
        need: Access,
        range: Option<(u64, u64)>,
    ) -> Result<(), AccessError> {
        self.locate(key, scope.into(), need, range).map(|_| ())
    }

    /// As [`Self::check`]; returns the location of `va`, or of the first byte.
    #[inline(always)] // As `MrTable::view`.
    pub(super) fn locate(
        &self,
        key: Key,
        scope: Scope,
        need: Access,
        range: Option<(u64, u64)>,
    ) -> Result<Target, AccessError> {
        if !self.is_recent(key) {
            self.use_slot_of(key)?;
        }
        self.recent.view.get().target(scope, need, range)
    }

    /// Returns true if the copy is of the slot of `key`, and `key` is valid.
    #[inline(always)]
    fn is_recent(&self, key: Key) -> bool {
        let state = self.recent.state.get();
        let slot = self.table.slots.get(self.recent.slot.get());
        state.is_of(key) && slot.is_some_and(|slot| slot.word().begin() == state)
    }

    #[inline(never)]
    fn use_slot_of(&self, key: Key) -> Result<(), AccessError> {
        self.recent.forget();
        let (view, state) = self.table.view_at(key)?;
        self.recent.view.set(view);
        self.recent.slot.set(self.table.slot_index(key));
        self.recent.state.set(state);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{KeySpace, PdId, Region};

    const PD: PdId = PdId(3);

    fn region(host: u64) -> Region {
        Region { iova: 0, host, len: 16, pd: PD, access: Access::ALL }
    }

    #[test]
    fn a_copy_is_not_used_after_its_slot_has_changed() {
        let table = MrTable::new(4, KeySpace::identity());
        let recent = Recent::default();
        let memory = Memory::new(&table, &recent);
        let at = |key| memory.locate(key, PD.into(), Access::NONE, Some((0, 16)));
        let host = |key| at(key).map(|target| target.host);
        // SAFETY: no byte of the regions is accessed.
        let insert = |host| unsafe { table.insert(&region(host), 1) }.unwrap();
        let (first, second) = (insert(0x1000), insert(0x2000));
        for _ in 0..2 {
            assert_eq!((host(first), host(first)), (Ok(0x1000), Ok(0x1000)));
            assert_eq!(host(second), Ok(0x2000));
        }
        assert_eq!(host(first), Ok(0x1000));
        table.withdraw(first);
        assert_eq!(host(first), Err(AccessError::Key));
        // SAFETY: as above.
        let again = unsafe { table.insert_again(&region(0x3000), first, 1) };
        assert_eq!((again, host(first)), (first, Ok(0x3000)), "the same key, another region");
        recent.forget();
        assert_eq!(host(first), Ok(0x3000));
    }

    #[test]
    fn the_checks_are_those_of_the_table() {
        let table = MrTable::new(4, KeySpace::identity());
        let recent = Recent::default();
        let memory = Memory::new(&table, &recent);
        // SAFETY: no byte of the region is accessed.
        let key = unsafe { table.insert(&region(0x1000), 1) }.unwrap();
        for _ in 0..2 {
            for (pd, need, va, len) in [
                (PD, Access::ALL, 0, 16),
                (PD, Access::ALL, 0, 17),
                (PD, Access::ALL, 16, 1),
                (PD, Access::ALL, u64::MAX, 2),
                (PdId(4), Access::ALL, 0, 16),
                (PD, Access::FLUSH_PERSISTENT, 0, 16),
            ] {
                let range = Some((va, len));
                assert_eq!(memory.check(key, pd, need, range), table.check(key, pd, need, range));
            }
            let other = Key::from_parts(key.index(), 2);
            assert_eq!(memory.check(other, PD, Access::NONE, None), Err(AccessError::Key));
        }
    }
}
