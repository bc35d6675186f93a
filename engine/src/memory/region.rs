//! Registered memory regions: the table behind the door.
//!
//! The table is read by every core while the program registers and deregisters. A slot is published
//! by storing its key last and withdrawn by clearing the key first; it is used again only after
//! every core has finished the turn in which it may have seen the old entry (the device takes each
//! core's token once). So a reader that found the key may trust the other fields until its turn ends.
//!
//! Memory windows ([`window`](super::window)) have slots of the same table, which the cores themselves change.
//! So the key lies in one word with a generation that counts changes: a reader looks at it again once it
//! has the other fields, and takes nothing that was put together from two of them.

use std::ops::{BitOr, BitOrAssign};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use feroce_wire::{Key, Qpn};

use super::access::AccessError;
use super::key::KeySpace;

/// A protection domain's number. Regions and QPs of different domains never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// On whose behalf memory is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// The protection domain that the memory must be of.
    pub pd: PdId,
    /// The QP through which a peer asks; `None` for the program's own requests. Windows are for peers.
    pub peer_of: Option<Qpn>,
}

impl From<PdId> for Scope {
    fn from(pd: PdId) -> Self {
        Self { pd, peer_of: None }
    }
}

/// Rights of a memory region, a window or a QP, with the bit values of `ibv_access_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(u32);

impl Access {
    /// Local reads only (which are always allowed).
    pub const NONE: Self = Self(0);
    /// The engine may write the region for its own program: receives, READ data, atomic results.
    pub const LOCAL_WRITE: Self = Self(1);
    /// A peer may RDMA WRITE. Needs [`Access::LOCAL_WRITE`].
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// A peer may RDMA READ.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// A peer may use atomics. Needs [`Access::LOCAL_WRITE`].
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Windows may be bound to the region.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Addresses count from zero instead of from the first byte's address. Not a right.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// Pages may come and go while the memory is registered. Not a right.
    pub const ON_DEMAND: Self = Self(1 << 6);
    /// The memory is of huge pages: a hint, which is not needed here. Not a right.
    pub const HUGETLB: Self = Self(1 << 7);
    /// A peer may FLUSH to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// A peer may FLUSH to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 9);
    /// Accesses may pass each other: a permission, of which no use is made. Not a right.
    pub const RELAXED_ORDERING: Self = Self(1 << 20);
    /// A peer may invalidate the key with SEND WITH INVALIDATE.
    ///
    /// Verbs know this of fast-registered regions and type 2 windows; the bit is Feroce's own.
    pub const REMOTE_INVALIDATE: Self = Self(1 << 30);
    /// All rights to memory that forgets when the power goes.
    pub const ALL: Self = Self(0x11f | 1 << 30);
    /// Rights that a QP gives to its peer, or a window to whoever has its key.
    pub const REMOTE: Self = Self(0x30e);
    /// Every bit that means something.
    const KNOWN: Self = Self(0x3ff | 1 << 20 | 1 << 30);

    /// The rights whose bits are set in `bits`; `None` if a bit is unknown.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !Self::KNOWN.0 == 0 { Some(Self(bits)) } else { None }
    }

    /// The bits, as in `ibv_access_flags`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The rights of `self` that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True if a right of `other` is in `self`.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// True if every right of `other` is in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, rhs: Self) {
        self.0 |= rhs.0;
    }
}

/// What is registered: `len` bytes of the program at `host`, known to peers as `iova..iova + len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Address by which work requests and peers name the first byte.
    pub iova: u64,
    /// Address of the first byte in this process.
    pub host: u64,
    /// Length in bytes.
    pub len: u64,
    /// Protection domain.
    pub pd: PdId,
    /// Rights.
    pub access: Access,
}

/// What a slot of the table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A region of ordinary memory.
    Plain = 0,
    /// A region whose pages may come and go.
    OnDemand = 1,
    /// A region that swallows what is written and reads as zeros.
    Null = 2,
    /// A type 1 window: for every QP of its domain.
    Window1 = 3,
    /// A type 2 window: for the QP it was bound on.
    Window2 = 4,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Plain, Self::OnDemand, Self::Null, Self::Window1, Self::Window2];

    pub(super) const fn is_window(self) -> bool {
        matches!(self, Self::Window1 | Self::Window2)
    }
}

/// In a slot's state, above the 32 bits of the key: the key is valid.
pub(super) const VALID: u64 = 1 << 32;
/// Somebody is changing the slot.
const BUSY: u64 = 1 << 33;
/// One in the count of changes, which takes the rest and wraps.
const GENERATION: u64 = 1 << 34;

/// In a region's count of windows: it takes no more, because it is about to go.
const CLOSED: u32 = 1 << 31;

#[derive(Debug)]
pub(super) struct Slot {
    /// Key, [`VALID`], [`BUSY`], generation.
    pub(super) state: AtomicU64,
    iova: AtomicU64,
    host: AtomicU64,
    len: AtomicU64,
    pd: AtomicU32,
    access: AtomicU32,
    kind: AtomicU32,
    /// Of a region, the windows bound to it, and [`CLOSED`].
    windows: AtomicU32,
    /// Of a window, the slot of the region it is bound to.
    pub(super) parent: AtomicU32,
    /// Of a type 2 window, the QP it is bound on.
    pub(super) qp: AtomicU32,
}

/// What a valid key names.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) region: Region,
    pub(super) kind: Kind,
    qp: u32,
}

/// Where the bytes of an access that was allowed lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) host: u64,
    pub(super) kind: Kind,
}

impl Slot {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        let half = || AtomicU32::new(0);
        Self {
            state: word(),
            iova: word(),
            host: word(),
            len: word(),
            pd: half(),
            access: half(),
            kind: half(),
            windows: half(),
            parent: half(),
            qp: half(),
        }
    }

    /// Makes the key invalid and the slot the caller's to change, and returns the state before. `None` if
    /// somebody else is changing it.
    pub(super) fn claim(&self) -> Option<u64> {
        let before = self.state.load(Ordering::Relaxed);
        if before & BUSY != 0 {
            return None;
        }
        let claimed = before & !VALID | BUSY;
        let taken =
            self.state.compare_exchange(before, claimed, Ordering::AcqRel, Ordering::Relaxed);
        fence(Ordering::Release); // What is stored now is not seen before the claim.
        taken.ok()
    }

    /// Ends a change that [`Slot::claim`] began with `before`.
    pub(super) fn settle(&self, before: u64, key: Key, valid: bool) {
        let generation = (before & !(GENERATION - 1)).wrapping_add(GENERATION);
        let valid = if valid { VALID } else { 0 };
        self.state.store(generation | valid | u64::from(key.value()), Ordering::Release);
    }

    /// Undoes [`Slot::claim`]: nothing was changed.
    pub(super) fn restore(&self, before: u64) {
        self.state.store(before, Ordering::Release);
    }

    pub(super) fn kind(&self) -> Kind {
        Kind::ALL[self.kind.load(Ordering::Relaxed) as usize]
    }

    pub(super) fn pd(&self) -> PdId {
        PdId(self.pd.load(Ordering::Relaxed))
    }

    /// Stores everything but the state; the slot is the caller's.
    pub(super) fn write(&self, region: &Region, kind: Kind) {
        self.iova.store(region.iova, Ordering::Relaxed);
        self.host.store(region.host, Ordering::Relaxed);
        self.len.store(region.len, Ordering::Relaxed);
        self.pd.store(region.pd.0, Ordering::Relaxed);
        self.access.store(region.access.0, Ordering::Relaxed);
        self.kind.store(kind as u32, Ordering::Relaxed);
    }

    /// Counts one more window bound to this region; false if it takes no more.
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

/// All memory regions of a device, by key.
#[derive(Debug)]
pub struct MrTable {
    pub(super) slots: Box<[Slot]>,
    space: KeySpace,
    /// Free slot numbers, oldest first so that a key is not used again soon.
    free: Mutex<std::collections::VecDeque<u32>>,
}

/// No slot is free, or the slot that a given key names is taken or outside the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFull;

impl MrTable {
    /// A table for `capacity` regions whose keys come from `space`.
    ///
    /// # Panics
    /// If `capacity` is more than 2^24, the number of key indices.
    pub fn new(capacity: u32, space: KeySpace) -> Self {
        assert!(capacity <= 1 << 24, "a key index has 24 bits");
        Self {
            slots: (0..capacity).map(|_| Slot::new()).collect(),
            space,
            free: Mutex::new((0..capacity).collect()),
        }
    }

    /// Publishes `region` under a fresh key with the variant `variant` (a random byte).
    ///
    /// # Safety
    /// `region.host .. + region.len` must stay mapped, readable, and (with a write right) writable
    /// until [`MrTable::withdraw`] was called and every core has ended the turn it was in. The
    /// engine and its peers read and write it as a device would: the program must not hold a Rust
    /// reference to bytes that a peer may write.
    ///
    /// # Errors
    /// [`TableFull`].
    pub unsafe fn insert(&self, region: &Region, variant: u8) -> Result<Key, TableFull> {
        let index = self.lock_free().pop_front().ok_or(TableFull)?;
        let key = Key::from_parts(self.space.index_of(index), variant);
        self.publish(index, key, region);
        Ok(key)
    }

    /// Publishes `region` under the given key, as a captured exchange needs.
    ///
    /// # Safety
    /// As for [`MrTable::insert`].
    ///
    /// # Errors
    /// [`TableFull`] if the key's slot is taken or outside the table.
    pub unsafe fn insert_with_key(&self, region: &Region, key: Key) -> Result<(), TableFull> {
        let slot = self.space.slot_of(key.index());
        let mut free = self.lock_free();
        let at = free.iter().position(|&s| s == slot).ok_or(TableFull)?;
        free.remove(at);
        drop(free);
        self.publish(slot, key, region);
        Ok(())
    }

    /// A slot for something that is not published yet, and its number.
    pub(super) fn take_slot(&self, variant: u8) -> Result<(&Slot, Key), TableFull> {
        let slot = self.lock_free().pop_front().ok_or(TableFull)?;
        let key = Key::from_parts(self.space.index_of(slot), variant);
        Ok((&self.slots[slot as usize], key))
    }

    /// Makes `key` invalid. Its slot stays taken until [`MrTable::release`].
    pub fn withdraw(&self, key: Key) {
        let Some(slot) = self.slot(key) else { return };
        loop {
            // Who else changes it is a core, for a moment.
            match slot.claim() {
                Some(before) => return slot.settle(before, key, false),
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Gives the slot of a withdrawn key back. Called when no core can still be using it.
    pub fn release(&self, key: Key) {
        self.lock_free().push_back(self.space.slot_of(key.index()));
    }

    /// Publishes `region` in the slot of `old`, a region that was withdrawn and that no core can still be
    /// using, under a key with another variant.
    ///
    /// # Safety
    /// As for [`MrTable::insert`].
    pub unsafe fn insert_again(&self, region: &Region, old: Key, variant: u8) -> Key {
        let key = Key::from_parts(old.index(), variant);
        self.publish(self.space.slot_of(old.index()), key, region);
        key
    }

    /// Lets no more windows be bound to the region `key`; false, and nothing changed, if some are.
    pub fn close(&self, key: Key) -> bool {
        let Some(slot) = self.slot(key) else { return false };
        slot.windows.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The same whether some are bound or not; true if some are.
    pub fn force_close(&self, key: Key) -> bool {
        let slot = self.slot(key);
        slot.is_some_and(|slot| slot.windows.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED != 0)
    }

    /// What `key` names, if it is valid.
    #[inline]
    pub(super) fn view(&self, key: Key) -> Result<View, AccessError> {
        let slot = self.slot(key).ok_or(AccessError::Key)?;
        let state = slot.state.load(Ordering::Acquire);
        if state & (GENERATION - 1) != VALID | u64::from(key.value()) {
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
        fence(Ordering::Acquire);
        if slot.state.load(Ordering::Relaxed) != state {
            return Err(AccessError::Key); // Changed meanwhile: the fields may be of two lives.
        }
        Ok(view)
    }

    /// The region or window that `key` names, if it is valid.
    ///
    /// # Errors
    /// [`AccessError::Key`].
    pub fn find(&self, key: Key) -> Result<Region, AccessError> {
        self.view(key).map(|view| view.region)
    }

    /// Checks key, protection domain, rights and, if given, the bounds `(va, len)`.
    ///
    /// # Errors
    /// The first check that failed, in that order.
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

    /// The same; returns where `va`, or the first byte, is.
    #[inline]
    pub(super) fn locate(
        &self,
        key: Key,
        scope: Scope,
        need: Access,
        range: Option<(u64, u64)>,
    ) -> Result<Target, AccessError> {
        let View { region, kind, qp } = self.view(key)?;
        if region.pd != scope.pd {
            return Err(AccessError::ProtectionDomain);
        }
        if !region.access.contains(need) {
            return Err(AccessError::Rights);
        }
        match (kind, scope.peer_of) {
            (Kind::Plain | Kind::OnDemand, _) | (Kind::Window1, Some(_)) | (Kind::Null, None) => {}
            (Kind::Window2, Some(through)) if through.value() == qp => {}
            (Kind::Window2, Some(_)) => return Err(AccessError::OtherQp),
            // A window is nothing that own requests can name, and the null region nothing for peers.
            (Kind::Window1 | Kind::Window2, None) | (Kind::Null, Some(_)) => {
                return Err(AccessError::Key);
            }
        }
        let (va, len) = range.unwrap_or((region.iova, 0));
        // Subtractions only: a sum of peer-given numbers may wrap past the end of the address space.
        let offset = va.checked_sub(region.iova).ok_or(AccessError::Bounds)?;
        let room = region.len.checked_sub(offset).ok_or(AccessError::Bounds)?;
        if len > room {
            return Err(AccessError::Bounds);
        }
        Ok(Target { host: region.host + offset, kind })
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
        let before = slot.claim().expect("a free slot is changed by whoever takes it");
        slot.write(region, kind);
        slot.windows.store(0, Ordering::Relaxed);
        slot.settle(before, key, true);
    }

    /// Publishes a region of `pd` that swallows what is written to it and reads as zeros, at any address.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn insert_null(&self, pd: PdId, variant: u8) -> Result<Key, TableFull> {
        let index = self.lock_free().pop_front().ok_or(TableFull)?;
        let key = Key::from_parts(self.space.index_of(index), variant);
        let access = Access::LOCAL_WRITE;
        let region = Region { iova: 0, host: 0, len: u64::MAX, pd, access };
        self.publish_as(index, key, &region, Kind::Null);
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

    fn lock_free(&self) -> std::sync::MutexGuard<'_, std::collections::VecDeque<u32>> {
        self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A table with one region of `len` zeroed bytes at iova 0, which are leaked: for tests without `unsafe`.
#[cfg(test)]
pub(crate) fn leaked_table(len: usize, pd: PdId, access: Access) -> (MrTable, Key) {
    let bytes = Box::leak(vec![0u8; len].into_boxed_slice());
    let host = bytes.as_mut_ptr().expose_provenance() as u64;
    let region = Region { iova: 0, host, len: len as u64, pd, access };
    let table = MrTable::new(4, KeySpace::identity());
    // SAFETY: the bytes are never freed, and nothing else refers to them.
    let key = unsafe { table.insert(&region, 1) }.expect("an empty table");
    (table, key)
}
