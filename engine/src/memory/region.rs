//! The table of registered memory regions, and the access check.
//!
//! Every core reads the table while the program registers and deregisters. A slot is published by
//! storing its key last, and withdrawn by invalidating the key first. The slot is reused only after
//! every core has finished the turn in which it may have read the old entry (the device takes each
//! core's token once). So a reader that found the key valid may use the other fields until its turn
//! ends.
//!
//! Memory windows ([`window`](super::window)) are slots of the same table, and the cores themselves
//! change them. Therefore a reader looks at the [key word](super::key_word) again after it has read
//! the other fields.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use feroce_wire::Key;
use zerocopy::FromZeros;

use super::key::KeySpace;
use super::key_word::{KeyWord, State};
pub use super::rights::{Access, AccessError, PdId, Region, Scope};
use crate::fresh::{FreshNumbers, REUSE};

/// Kind of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A region of ordinary memory.
    Plain = 0,
    /// A region whose pages may be unmapped and mapped again.
    OnDemand = 1,
    /// A region that discards writes and reads as zeros.
    Null = 2,
    /// A type 1 window: usable by every QP of its domain.
    Window1 = 3,
    /// A type 2 window: usable by the QP it was bound on.
    Window2 = 4,
}

impl Kind {
    #[inline]
    const fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::Plain,
            1 => Self::OnDemand,
            2 => Self::Null,
            3 => Self::Window1,
            _ => Self::Window2,
        }
    }

    pub(super) const fn is_window(self) -> bool {
        matches!(self, Self::Window1 | Self::Window2)
    }
}

/// Flag in a region's window count: no more windows may be bound, because the region is about to be
/// deregistered.
const CLOSED: u32 = 1 << 31;

#[derive(Debug, FromZeros)]
pub(super) struct Slot {
    /// See [`KeyWord`].
    state: AtomicU64,
    iova: AtomicU64,
    host: AtomicU64,
    len: AtomicU64,
    pd: AtomicU32,
    access: AtomicU32,
    kind: AtomicU32,
    /// Of a region: number of windows bound to it, and [`CLOSED`].
    windows: AtomicU32,
    /// Of a bound window: the slot of its region.
    pub(super) parent: AtomicU32,
    /// Of a type 2 window: the QP it is bound on.
    pub(super) qp: AtomicU32,
}

/// The fields of a slot with a valid key.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) region: Region,
    pub(super) kind: Kind,
    qp: u32,
}

impl View {
    /// A region without bytes.
    pub(super) const EMPTY: Self = {
        let region = Region { iova: 0, host: 0, len: 0, pd: PdId(0), access: Access::NONE };
        Self { region, kind: Kind::Plain, qp: 0 }
    };

    /// Checks protection domain, rights and, if given, the bounds `(va, len)`. Returns the location
    /// of `va`, or of the first byte.
    #[inline(always)] // As `MrTable::view`.
    pub(super) fn target(
        self,
        scope: Scope,
        need: Access,
        range: Option<(u64, u64)>,
    ) -> Result<Target, AccessError> {
        let Self { region, kind, qp } = self;
        if region.pd != scope.pd {
            return Err(AccessError::ProtectionDomain);
        }
        if !region.access.contains(need) {
            return Err(AccessError::Rights);
        }
        match kind {
            Kind::Plain | Kind::OnDemand | Kind::Null => {}
            Kind::Window1 | Kind::Window2 => match scope.peer_of {
                Some(through) if kind == Kind::Window2 && through.value() != qp => {
                    return Err(AccessError::OtherQp);
                }
                Some(_) => {}
                None => return Err(AccessError::Key), // Local requests cannot use windows.
            },
        }
        let (va, len) = range.unwrap_or((region.iova, 0));
        // Only subtractions: the sum of numbers from a peer may wrap at the end of the address
        // space.
        let offset = va.checked_sub(region.iova).ok_or(AccessError::Bounds)?;
        let room = region.len.checked_sub(offset).ok_or(AccessError::Bounds)?;
        if len > room {
            return Err(AccessError::Bounds);
        }
        Ok(Target { host: region.host + offset, kind })
    }
}

/// Location of the bytes of an allowed access.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) host: u64,
    pub(super) kind: Kind,
}

impl Slot {
    /// The word that guards the other fields.
    #[inline]
    pub(super) fn word(&self) -> KeyWord<'_> {
        KeyWord(&self.state)
    }

    pub(super) fn kind(&self) -> Kind {
        Kind::from_bits(self.kind.load(Ordering::Relaxed))
    }

    pub(super) fn pd(&self) -> PdId {
        PdId(self.pd.load(Ordering::Relaxed))
    }

    /// Stores all fields except the state. The caller has claimed the slot.
    pub(super) fn write(&self, region: &Region, kind: Kind) {
        self.iova.store(region.iova, Ordering::Relaxed);
        self.host.store(region.host, Ordering::Relaxed);
        self.len.store(region.len, Ordering::Relaxed);
        self.pd.store(region.pd.0, Ordering::Relaxed);
        self.access.store(region.access.0, Ordering::Relaxed);
        self.kind.store(kind as u32, Ordering::Relaxed);
    }

    /// Counts one more window bound to this region. Returns false if the region is closed.
    pub(super) fn add_window(&self) -> bool {
        let more = |count| (count & CLOSED == 0).then_some(count + 1);
        self.windows.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// Counts one window less.
    pub(super) fn remove_window(&self) {
        self.windows.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn has_windows(&self) -> bool {
        self.windows.load(Ordering::Acquire) & !CLOSED != 0
    }
}

/// All memory regions and windows of a device, by key.
#[derive(Debug)]
pub struct MrTable {
    pub(super) slots: Box<[Slot]>,
    space: KeySpace,
    free: Mutex<FreeSlots>,
    /// Held during an atomic operation on an on-demand region, which the kernel executes as a read
    /// and a write.
    pub(super) on_demand_atomics: Mutex<()>,
}

/// Free slot numbers.
#[derive(Debug)]
struct FreeSlots {
    fresh: FreshNumbers,
    /// Numbers that were given back, oldest first, so that a key is not reused soon.
    former: VecDeque<u32>,
}

impl FreeSlots {
    fn take(&mut self) -> Result<u32, TableFull> {
        let fresh = if self.former.len() < REUSE { self.fresh.take() } else { None };
        fresh.or_else(|| self.former.pop_front()).ok_or(TableFull)
    }
}

/// No slot is free, or a given key's slot is in use or outside the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFull;

impl MrTable {
    /// Makes a table for `capacity` regions whose keys come from `space`.
    ///
    /// # Panics
    /// If `capacity` is more than 2^24, the number of key indices, or there is no address space for
    /// it.
    pub fn new(capacity: u32, space: KeySpace) -> Self {
        assert!(capacity <= 1 << 24, "a key index has 24 bits");
        Self {
            // Zeroed memory of the kernel is not resident until it is used.
            slots: Slot::new_vec_zeroed(capacity as usize).expect("memory").into_boxed_slice(),
            space,
            free: Mutex::new(FreeSlots {
                fresh: FreshNumbers::new(capacity),
                former: VecDeque::new(),
            }),
            on_demand_atomics: Mutex::new(()),
        }
    }

    /// Publishes `region` under a new key with the variant `variant` (a random byte).
    ///
    /// # Safety
    /// The memory `region.host .. + region.len` stays mapped, readable and (with a write right)
    /// writable until [`MrTable::withdraw`] has been called and every core has ended its turn. The
    /// engine and its peers read and write it as a device would: no Rust reference exists to bytes
    /// that a peer may write.
    ///
    /// # Errors
    /// [`TableFull`].
    pub unsafe fn insert(&self, region: &Region, variant: u8) -> Result<Key, TableFull> {
        let index = self.lock_free().take()?;
        let key = Key::from_parts(self.space.index_of(index), variant);
        self.publish(index, key, region);
        Ok(key)
    }

    /// Publishes `region` under a given key, for replaying captures.
    ///
    /// # Safety
    /// As for [`MrTable::insert`].
    ///
    /// # Errors
    /// [`TableFull`] if the key's slot is in use or outside the table.
    pub unsafe fn insert_with_key(&self, region: &Region, key: Key) -> Result<(), TableFull> {
        let slot = self.space.slot_of(key.index());
        let mut free = self.lock_free();
        if !free.fresh.take_number(slot) {
            let at = free.former.iter().position(|&s| s == slot).ok_or(TableFull)?;
            free.former.remove(at);
        }
        drop(free);
        self.publish(slot, key, region);
        Ok(())
    }

    /// Takes a free slot, to be published later, and returns it with its key.
    pub(super) fn take_slot(&self, variant: u8) -> Result<(&Slot, Key), TableFull> {
        let slot = self.lock_free().take()?;
        let key = Key::from_parts(self.space.index_of(slot), variant);
        Ok((&self.slots[slot as usize], key))
    }

    /// Invalidates `key`. Its slot stays in use until [`MrTable::release`].
    pub fn withdraw(&self, key: Key) {
        let Some(slot) = self.slot(key) else { return };
        let before = slot.word().wait_and_claim();
        slot.word().publish(before, key, false);
    }

    /// Frees the slot of a withdrawn key. Called when no core can still be using it.
    pub fn release(&self, key: Key) {
        self.lock_free().former.push_back(self.space.slot_of(key.index()));
    }

    /// Publishes `region` in the slot of `old` under a key with another variant. `old` is a
    /// withdrawn region that no core can still be using.
    ///
    /// # Safety
    /// As for [`MrTable::insert`].
    pub unsafe fn insert_again(&self, region: &Region, old: Key, variant: u8) -> Key {
        let key = Key::from_parts(old.index(), variant);
        self.publish(self.space.slot_of(old.index()), key, region);
        key
    }

    /// Closes the region `key`: no more windows can be bound to it. Returns false, and changes
    /// nothing, if windows are bound.
    pub fn close(&self, key: Key) -> bool {
        let Some(slot) = self.slot(key) else { return false };
        slot.windows.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Closes the region even if windows are bound; returns true if some are.
    pub fn force_close(&self, key: Key) -> bool {
        let slot = self.slot(key);
        slot.is_some_and(|slot| slot.windows.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED != 0)
    }

    /// Returns the fields of the slot of `key`, if the key is valid.
    #[inline(always)] // Else the fields are returned through memory, once per packet and check.
    pub(super) fn view(&self, key: Key) -> Result<View, AccessError> {
        self.view_at(key).map(|(view, _)| view)
    }

    /// As [`Self::view`], with the state of the slot that the fields belong to.
    #[inline(always)]
    pub(super) fn view_at(&self, key: Key) -> Result<(View, State), AccessError> {
        let slot = self.slot(key).ok_or(AccessError::Key)?;
        let state = slot.word().begin();
        if !state.is_of(key) {
            return Err(AccessError::Key);
        }
        let region = Region {
            iova: slot.iova.load(Ordering::Relaxed),
            host: slot.host.load(Ordering::Relaxed),
            len: slot.len.load(Ordering::Relaxed),
            pd: slot.pd(),
            access: Access(slot.access.load(Ordering::Relaxed)),
        };
        let view = View { region, kind: slot.kind(), qp: slot.qp.load(Ordering::Relaxed) };
        slot.word().is_still(state).then_some((view, state)).ok_or(AccessError::Key)
    }

    /// Returns the region or window of `key`, if the key is valid.
    ///
    /// # Errors
    /// [`AccessError::Key`].
    pub fn find(&self, key: Key) -> Result<Region, AccessError> {
        self.view(key).map(|view| view.region)
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
    #[inline(always)] // As `view`.
    pub(super) fn locate(
        &self,
        key: Key,
        scope: Scope,
        need: Access,
        range: Option<(u64, u64)>,
    ) -> Result<Target, AccessError> {
        self.view(key)?.target(scope, need, range)
    }

    fn publish(&self, index: u32, key: Key, region: &Region) {
        let kind = match region.access.contains(Access::ON_DEMAND) {
            true => Kind::OnDemand,
            false => Kind::Plain,
        };
        self.publish_as(index, key, region, kind);
    }

    fn publish_as(&self, index: u32, key: Key, region: &Region, kind: Kind) {
        let slot = &self.slots[index as usize];
        let before = slot.word().claim().expect("only the thread that took a free slot changes it");
        slot.write(region, kind);
        slot.windows.store(0, Ordering::Relaxed);
        slot.word().publish(before, key, true);
    }

    /// Publishes a region of `pd` at all addresses that discards writes and reads as zeros.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn insert_null(&self, pd: PdId, variant: u8) -> Result<Key, TableFull> {
        let index = self.lock_free().take()?;
        let key = Key::from_parts(self.space.index_of(index), variant);
        self.publish_as(index, key, &Region::null(pd), Kind::Null);
        Ok(key)
    }

    #[inline]
    pub(super) fn slot(&self, key: Key) -> Option<&Slot> {
        self.slots.get(self.slot_index(key))
    }

    #[inline]
    pub(super) fn slot_index(&self, key: Key) -> usize {
        self.space.slot_of(key.index()) as usize
    }

    /// The slots that were ever used.
    pub(super) fn used_slots(&self) -> &[Slot] {
        let end = self.lock_free().fresh.end();
        &self.slots[..end as usize]
    }

    fn lock_free(&self) -> std::sync::MutexGuard<'_, FreeSlots> {
        self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Makes a table with one region of `len` zeroed bytes at iova 0. The bytes are leaked, so tests
/// need no `unsafe`.
#[cfg(test)]
pub(crate) fn leaked_table(len: usize, pd: PdId, access: Access) -> (MrTable, Key) {
    let bytes = Box::leak(vec![0u8; len].into_boxed_slice());
    let host = bytes.as_mut_ptr().expose_provenance() as u64;
    let region = Region { iova: 0, host, len: len as u64, pd, access };
    let table = MrTable::new(4, KeySpace::identity());
    // SAFETY: the bytes are leaked, so they stay mapped, and no other reference to them exists.
    let key = unsafe { table.insert(&region, 1) }.expect("an empty table");
    (table, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers around every power of two at which arithmetic of some width wraps.
    fn edges() -> Vec<u64> {
        let centres = [0, u64::MAX, 1 << 63, 1 << 32, 1 << 31, 1 << 12];
        let centres = &centres[..if cfg!(miri) { 1 } else { 6 }]; // Miri is slow.
        let near = |centre: u64| [-2, -1, 0, 1, 2].map(|by| centre.wrapping_add_signed(by));
        let mut all: Vec<u64> = centres.iter().copied().flat_map(near).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The bounds of the access check, compared with sums of 128 bits, for all edges of four
    /// numbers: start and length of the region, start and length of the access.
    #[test]
    fn bounds_are_those_of_unbounded_numbers() {
        let pd = PdId(1);
        let scope = Scope::from(pd);
        let (mut allowed, mut refused) = (0, 0);
        for iova in edges() {
            for len in edges() {
                let region = Region { iova, host: 0, len, pd, access: Access::ALL };
                let view = View { region, ..View::EMPTY };
                let end = u128::from(iova) + u128::from(len);
                for va in edges() {
                    for length in edges() {
                        let found = view.target(scope, Access::NONE, Some((va, length)));
                        let fits = va >= iova && u128::from(va) + u128::from(length) <= end;
                        match found {
                            Ok(target) => assert_eq!((fits, target.host), (true, va - iova)),
                            Err(error) => assert_eq!((fits, error), (false, AccessError::Bounds)),
                        }
                        *if fits { &mut allowed } else { &mut refused } += 1;
                    }
                }
            }
        }
        assert!(allowed > 50 && refused > 50, "{allowed} {refused}");
    }
}
