//! Registered memory regions: the table behind the door.
//!
//! The table is read by every core while the program registers and deregisters. A slot is published
//! by storing its key last and withdrawn by clearing the key first; it is used again only after
//! every core has finished the turn in which it may have seen the old entry (the device takes each
//! core's token once). So a reader that found the key may trust the other fields until its turn ends.

use std::ops::{BitOr, BitOrAssign};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use feroce_wire::Key;

use super::access::AccessError;
use super::key::KeySpace;

/// A protection domain's number. Regions and QPs of different domains never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// Rights of a memory region or a QP, with the bit values of `ibv_access_flags`.
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
    /// A peer may invalidate the key with SEND WITH INVALIDATE.
    ///
    /// Verbs know this of fast-registered regions and type 2 windows; the bit is Feroce's own.
    pub const REMOTE_INVALIDATE: Self = Self(1 << 30);
    /// All rights.
    pub const ALL: Self = Self(0xf | 1 << 30);

    /// The rights whose bits are set in `bits`; `None` if a bit is unknown.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }

    /// The bits, as in `ibv_access_flags`.
    pub const fn bits(self) -> u32 {
        self.0
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

/// Key value of a slot that is free or withdrawn. Never drawn for a region: see [`MrTable::insert`].
const NO_KEY: u64 = u64::MAX;

#[derive(Debug)]
struct Slot {
    /// The full key, or [`NO_KEY`]. Stored last when publishing, first when withdrawing.
    key: AtomicU64,
    iova: AtomicU64,
    host: AtomicU64,
    len: AtomicU64,
    pd: AtomicU32,
    access: AtomicU32,
}

/// All memory regions of a device, by key.
#[derive(Debug)]
pub struct MrTable {
    slots: Box<[Slot]>,
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
        let slot = || Slot {
            key: AtomicU64::new(NO_KEY),
            iova: AtomicU64::new(0),
            host: AtomicU64::new(0),
            len: AtomicU64::new(0),
            pd: AtomicU32::new(0),
            access: AtomicU32::new(0),
        };
        Self {
            slots: (0..capacity).map(|_| slot()).collect(),
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
        let slot = self.lock_free().pop_front().ok_or(TableFull)?;
        let key = Key::from_parts(self.space.index_of(slot), variant);
        self.publish(slot, key, region);
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

    /// Makes `key` invalid. Its slot stays taken until [`MrTable::release`].
    pub fn withdraw(&self, key: Key) {
        if let Some(slot) = self.slot(key) {
            slot.key.store(NO_KEY, Ordering::Release);
        }
    }

    /// Gives the slot of a withdrawn key back. Called when no core can still be using it.
    pub fn release(&self, key: Key) {
        self.lock_free().push_back(self.space.slot_of(key.index()));
    }

    /// The region that `key` names, if it is valid.
    #[inline]
    pub fn find(&self, key: Key) -> Result<Region, AccessError> {
        let slot = self.slot(key).ok_or(AccessError::Key)?;
        if slot.key.load(Ordering::Acquire) != u64::from(key.value()) {
            return Err(AccessError::Key);
        }
        Ok(Region {
            iova: slot.iova.load(Ordering::Relaxed),
            host: slot.host.load(Ordering::Relaxed),
            len: slot.len.load(Ordering::Relaxed),
            pd: PdId(slot.pd.load(Ordering::Relaxed)),
            access: Access(slot.access.load(Ordering::Relaxed)),
        })
    }

    /// Invalidates `key` on behalf of a peer (SEND WITH INVALIDATE).
    ///
    /// # Errors
    /// As [`MrTable::check`], and [`AccessError::Rights`] without [`Access::REMOTE_INVALIDATE`].
    pub fn invalidate(&self, key: Key, pd: PdId) -> Result<(), AccessError> {
        self.check(key, pd, Access::REMOTE_INVALIDATE, None)?;
        self.withdraw(key);
        Ok(())
    }

    /// Checks key, protection domain, rights and, if given, the bounds `(va, len)`; returns the host
    /// address of `va`, or of the region's first byte.
    ///
    /// # Errors
    /// The first check that failed, in that order.
    #[inline]
    pub fn check(
        &self,
        key: Key,
        pd: PdId,
        need: Access,
        range: Option<(u64, u64)>,
    ) -> Result<u64, AccessError> {
        let region = self.find(key)?;
        if region.pd != pd {
            return Err(AccessError::ProtectionDomain);
        }
        if !region.access.contains(need) {
            return Err(AccessError::Rights);
        }
        let (va, len) = range.unwrap_or((region.iova, 0));
        // Subtractions only: a sum of peer-given numbers may wrap past the end of the address space.
        let offset = va.checked_sub(region.iova).ok_or(AccessError::Bounds)?;
        let room = region.len.checked_sub(offset).ok_or(AccessError::Bounds)?;
        if len > room {
            return Err(AccessError::Bounds);
        }
        Ok(region.host + offset)
    }

    fn publish(&self, index: u32, key: Key, region: &Region) {
        let slot = &self.slots[index as usize];
        slot.iova.store(region.iova, Ordering::Relaxed);
        slot.host.store(region.host, Ordering::Relaxed);
        slot.len.store(region.len, Ordering::Relaxed);
        slot.pd.store(region.pd.0, Ordering::Relaxed);
        slot.access.store(region.access.0, Ordering::Relaxed);
        slot.key.store(u64::from(key.value()), Ordering::Release);
    }

    #[inline]
    fn slot(&self, key: Key) -> Option<&Slot> {
        self.slots.get(self.space.slot_of(key.index()) as usize)
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
