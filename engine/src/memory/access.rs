//! Access to registered memory: every load and store passes the access check of its memory region.
//!
//! What programs rely on, and how it is implemented:
//! * **A packet's last bytes become visible last.** Programs spin on the last byte of a WRITE.
//!   [`Memory::store`] writes everything except the tail, then the tail, with release ordering
//!   between them.
//! * **Aligned 8-byte words are stored and loaded whole**, also inside a WRITE that begins at an
//!   odd address ([`copy`](super::copy)).
//! * **RDMA atomics are CPU atomics**, so they are atomic with respect to the program's own
//!   atomics. Exception: in on-demand regions they are atomic only with respect to each other.
//! * **No byte is accessed without a check** of key, protection domain, rights and bounds, in every
//!   packet: deregistering a region in the middle of a message stops the message. A request in a
//!   run (`qp/run.rs`) is checked one packet earlier in the same turn ([`Source`]).
//!
//! The program's threads may race with these accesses, as they may with a NIC's DMA. Bytes that
//! race have unspecified values; a race never causes a memory error. The accesses of the engine to
//! registered memory are atomic, so that a program thread that spins with an atomic load of the
//! same word, or of a byte that is stored alone, is no data race. Accesses of other sizes, and
//! those of the kernel to on-demand regions, are outside the rules of Rust, as a NIC's are.

use std::marker::PhantomData;
use std::ptr;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use feroce_wire::{Key, Payload};

use super::ahead::fetch_ahead;
use super::recent::Memory;
use super::region::{Access, AccessError, Kind, MrTable, Scope};
use super::tail::{address, tail_start};
use super::{copy, on_demand, pages};

/// The operation of an RDMA atomic on its 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Adds, with wrap-around.
    FetchAdd(u64),
}

/// Stores of up to this many bytes go word by word.
const SHORT_STORE: usize = 64;

impl Memory<'_> {
    /// Copies `payload` to `va`, the last bytes last. An empty payload is not checked. `ahead`:
    /// bytes that the caller expects to store after these soon; they are prefetched, at most as
    /// many as `payload` has.
    ///
    /// # Errors
    /// The failed check; nothing is written then.
    #[inline(always)] // Once per packet.
    pub fn store(
        &self,
        key: Key,
        scope: impl Into<Scope>,
        need: Access,
        va: u64,
        payload: Payload<'_>,
        ahead: usize,
    ) -> Result<(), AccessError> {
        if payload.is_empty() {
            return Ok(());
        }
        let target = self.locate(key, scope.into(), need, Some((va, payload.len() as u64)))?;
        let host = target.host;
        match target.kind {
            Kind::OnDemand => return on_demand::store(host, payload),
            Kind::Null => return Ok(()),
            Kind::Plain | Kind::Window1 | Kind::Window2 => {}
        }
        let (first, second) = (payload.first, payload.second);
        // SAFETY: `locate` found `payload.len()` writable bytes at `host`. The memory of a region
        // stays mapped while its key is valid and until the turns that saw the key have ended
        // (contract of `MrTable::insert`). The payload is in a frame of the port, which is not
        // registered memory, so the two do not overlap.
        unsafe {
            if second.is_empty() {
                store_in_order(host, first);
            } else {
                store_split(host, first, second);
            }
        }
        fetch_ahead(host.wrapping_add(payload.len() as u64), ahead.min(payload.len()));
        Ok(())
    }

    /// Copies `out.len()` bytes from `va`. An empty `out` is not checked. `ahead` is as for
    /// [`store`](Self::store), for the bytes that the caller will load next.
    ///
    /// # Errors
    /// The failed check; `out` is unchanged then.
    #[inline(always)] // Once per packet.
    pub fn load(
        &self,
        key: Key,
        scope: impl Into<Scope>,
        need: Access,
        va: u64,
        out: &mut [u8],
        ahead: usize,
    ) -> Result<(), AccessError> {
        if out.is_empty() {
            return Ok(());
        }
        let target = self.locate(key, scope.into(), need, Some((va, out.len() as u64)))?;
        match target.kind {
            Kind::OnDemand => return on_demand::load(target.host, out),
            Kind::Null => {
                out.fill(0);
                return Ok(());
            }
            Kind::Plain | Kind::Window1 | Kind::Window2 => {}
        }
        let from = ptr::with_exposed_provenance::<u8>(address(target.host));
        // SAFETY: `locate` found `out.len()` readable bytes at `host`, which stay mapped (see
        // `store`). `out` is in a transmit slot of the port or a local variable, neither of which
        // is registered memory, so the two do not overlap.
        unsafe { copy::load(from, out) };
        fetch_ahead(target.host.wrapping_add(out.len() as u64), ahead.min(out.len()));
        Ok(())
    }
}

/// Bytes of registered memory that a check has found readable. They stay mapped until the core's
/// turn ends, even if their key becomes invalid meanwhile (contract of [`MrTable::insert`]); the
/// lifetime is that of the [`Memory`], which a core has for one turn.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    host: u64,
    len: usize,
    _turn: PhantomData<&'a MrTable>,
}

impl<'a> Memory<'a> {
    /// The `len` bytes at `va`, to be loaded later in this turn. `None`: they cannot be accessed,
    /// or the kernel must copy them. An empty range is not checked.
    #[inline(always)] // Once per packet.
    pub fn source(
        &self,
        key: Key,
        scope: impl Into<Scope>,
        need: Access,
        (va, len): (u64, u32),
    ) -> Option<Source<'a>> {
        let (mut host, _turn) = (0, PhantomData);
        if len > 0 {
            let target = self.locate(key, scope.into(), need, Some((va, u64::from(len)))).ok()?;
            if matches!(target.kind, Kind::OnDemand | Kind::Null) {
                return None;
            }
            host = target.host;
        }
        Some(Source { host, len: usize::try_from(len).expect("32 bits fit"), _turn })
    }
}

impl Source<'_> {
    /// No bytes.
    pub const EMPTY: Self = Self { host: 0, len: 0, _turn: PhantomData };

    /// Copies the bytes to `out`.
    ///
    /// # Panics
    /// If `out` has more bytes.
    #[inline(always)] // Once per packet.
    pub fn load(self, out: &mut [u8]) {
        assert!(out.len() <= self.len, "more than was checked");
        let from = ptr::with_exposed_provenance::<u8>(address(self.host));
        // SAFETY: `Memory::source` found `len` readable bytes at `host`, which stay mapped for the
        // lifetime of this value. `out` is in a transmit slot of the port, which is not registered
        // memory.
        unsafe { copy::load(from, out) };
    }
}

impl MrTable {
    /// Executes `op` on the 8 bytes at `va` as a CPU atomic; returns the previous value.
    ///
    /// # Errors
    /// The failed check; alignment is checked first.
    pub fn atomic(
        &self,
        key: Key,
        scope: impl Into<Scope>,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        let word = match self.word(key, scope.into(), Access::REMOTE_ATOMIC, va)? {
            Word::Null => return Ok(0),
            Word::OnDemand(host) => {
                let _alone = self.on_demand_atomics.lock().unwrap_or_else(PoisonError::into_inner);
                return on_demand::update(host, |old| match op {
                    AtomicOp::CompareSwap { compare, swap } => (old == compare).then_some(swap),
                    AtomicOp::FetchAdd(add) => Some(old.wrapping_add(add)),
                });
            }
            Word::Plain(word) => word,
        };
        Ok(match op {
            AtomicOp::CompareSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(old) | Err(old) => old,
                }
            }
            AtomicOp::FetchAdd(add) => word.fetch_add(add, Ordering::AcqRel),
        })
    }

    /// Stores the 8 bytes of an ATOMIC WRITE at once, after all earlier stores.
    ///
    /// # Errors
    /// The failed check; alignment is checked first.
    pub fn atomic_write(
        &self,
        key: Key,
        scope: impl Into<Scope>,
        va: u64,
        bytes: [u8; 8],
    ) -> Result<(), AccessError> {
        match self.word(key, scope.into(), Access::REMOTE_WRITE, va)? {
            Word::Null => {}
            Word::OnDemand(host) => {
                let _alone = self.on_demand_atomics.lock().unwrap_or_else(PoisonError::into_inner);
                on_demand::store(host, Payload { first: &bytes, second: &[] })?;
            }
            Word::Plain(word) => word.store(u64::from_ne_bytes(bytes), Ordering::Release),
        }
        Ok(())
    }

    /// Makes the stores to `range`, or to the whole region, visible before any later store. The
    /// range needs no further treatment: a fence orders all stores.
    ///
    /// # Errors
    /// The failed check.
    pub fn flush(
        &self,
        key: Key,
        scope: impl Into<Scope>,
        need: Access,
        range: Option<(u64, u64)>,
    ) -> Result<(), AccessError> {
        self.check(key, scope, need, range)?;
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Faults in the pages of `range`.
    ///
    /// # Errors
    /// The failed check; [`AccessError::Unmapped`] if nothing is mapped there.
    pub fn prefetch(
        &self,
        key: Key,
        scope: impl Into<Scope>,
        need: Access,
        range: (u64, u64),
    ) -> Result<(), AccessError> {
        let target = self.locate(key, scope.into(), need, Some(range))?;
        match target.kind {
            Kind::Null => Ok(()),
            _ => {
                let write = need.contains(Access::LOCAL_WRITE);
                on_demand::populate(target.host, range.1, write, pages::size())
            }
        }
    }

    /// Returns the aligned word at `va`.
    fn word(&self, key: Key, scope: Scope, need: Access, va: u64) -> Result<Word<'_>, AccessError> {
        if !va.is_multiple_of(8) {
            return Err(AccessError::Misaligned);
        }
        let target = self.locate(key, scope, need, Some((va, 8)))?;
        if target.kind == Kind::Null {
            return Ok(Word::Null);
        }
        if !target.host.is_multiple_of(8) {
            return Err(AccessError::Misaligned); // The iova and the host address differ modulo 8.
        }
        if target.kind == Kind::OnDemand {
            return Ok(Word::OnDemand(target.host));
        }
        let word = ptr::with_exposed_provenance_mut::<u64>(address(target.host));
        // SAFETY: `locate` found 8 writable bytes at `host`, `host` is a multiple of 8, and the
        // memory stays mapped until the turn ends (see `store`). Other accesses of the engine to
        // these bytes are atomic.
        Ok(Word::Plain(unsafe { AtomicU64::from_ptr(word) }))
    }
}

/// A word of registered memory.
enum Word<'a> {
    Plain(&'a AtomicU64),
    /// The address of a word that may be unmapped at any time: only the kernel may access it.
    OnDemand(u64),
    /// Discards what is written, and reads as 0.
    Null,
}

/// Copies `from` to `host` so that its last bytes become visible after all others.
///
/// # Safety
/// The bytes `host .. host + from.len()` are writable and do not overlap `from`.
#[inline(always)] // Once per packet.
unsafe fn store_in_order(host: u64, from: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(address(host));
    if from.len() <= SHORT_STORE
        && host.is_multiple_of(8)
        && let (words, []) = from.as_chunks::<8>()
    {
        // SAFETY: the words are the caller's range, and begin at a multiple of 8.
        unsafe { store_aligned(to.cast(), words) };
        return;
    }
    let body = tail_start(host, from.len());
    // SAFETY: `body <= from.len()`, so the range is inside the caller's.
    unsafe { copy::store(to, &from[..body]) };
    fence(Ordering::Release);
    // SAFETY: `to + body` and the rest of `from` are inside the caller's range.
    unsafe { store_tail(to.add(body), &from[body..]) };
}

/// Stores `words` front to back, each whole; the last one becomes visible after all others.
///
/// # Safety
/// `to` is aligned, and the words there are writable.
#[inline(always)] // Once per short packet.
unsafe fn store_aligned(to: *mut u64, words: &[[u8; 8]]) {
    // Release for each word: one kind of store for all needs no loop of its own for the last.
    // SAFETY: the caller's range.
    unsafe { copy::store_each(to, words, Ordering::Release) };
}

/// Copies `first` and then `second` to `host`. An aligned word that crosses the boundary between
/// them is stored whole.
///
/// # Safety
/// As for [`store_in_order`], for both parts.
#[inline(never)] // Rare, and it stores up to three parts.
unsafe fn store_split(host: u64, first: &[u8], second: &[u8]) {
    let split = host + first.len() as u64;
    let before = address(split % 8);
    let after = 8 - before;
    // SAFETY: the ranges below are disjoint parts of the caller's two ranges.
    unsafe {
        if before == 0 || first.len() < before || second.len() < after {
            store_in_order(host, first);
            store_in_order(split, second);
            return;
        }
        let (body, head_of_word) = first.split_at(first.len() - before);
        let (tail_of_word, rest) = second.split_at(after);
        let mut word = [0; 8];
        word[..before].copy_from_slice(head_of_word);
        word[before..].copy_from_slice(tail_of_word);
        store_in_order(host, body);
        store_in_order(split - before as u64, &word);
        store_in_order(split + after as u64, rest);
    }
}

/// Stores the tail of a packet: as one word if it is an aligned word, else byte by byte with the
/// last byte in release order.
///
/// # Safety
/// The bytes `to .. to + from.len()` are writable.
#[inline]
unsafe fn store_tail(to: *mut u8, from: &[u8]) {
    let Some((&last, before)) = from.split_last() else { return };
    if let (true, Ok(word)) = (to.addr().is_multiple_of(8), <[u8; 8]>::try_from(from)) {
        // SAFETY: `from` has 8 bytes, so 8 bytes at `to` are writable, and `to` is aligned.
        unsafe {
            AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes(word), Ordering::Release)
        };
        return;
    }
    // SAFETY: `before` and `last` are the `from.len()` bytes that are writable at `to`.
    unsafe {
        copy::store(to, before);
        AtomicU8::from_ptr(to.add(before.len())).store(last, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::KeySpace;
    use super::super::recent::Recent;
    use super::super::region::{PdId, Region};
    use super::*;

    const PD: PdId = PdId(1);

    fn table_with(bytes: &mut [u8], iova: u64, access: Access) -> (MrTable, Key) {
        let table = MrTable::new(4, KeySpace::identity());
        let host = bytes.as_mut_ptr().expose_provenance() as u64;
        let region = Region { iova, host, len: bytes.len() as u64, pd: PD, access };
        // SAFETY: `bytes` outlives the table in every test below, and is read only after the
        // stores.
        let key = unsafe { table.insert(&region, 7) }.unwrap();
        (table, key)
    }

    #[test]
    fn every_length_and_alignment_arrives_whole() {
        let from: Vec<u8> = (0..200u8).collect();
        for start in 0..16usize {
            for len in 0..180usize {
                let mut bytes = vec![0xaa; 256];
                let (table, key) = table_with(&mut bytes, 0x1000, Access::ALL);
                let split = len / 3;
                let parts = Payload { first: &from[..split], second: &from[split..len] };
                let va = 0x1000 + start as u64;
                let recent = Recent::default();
                let memory = Memory::new(&table, &recent);
                memory.store(key, PD, Access::REMOTE_WRITE, va, parts, 0).unwrap();
                let mut back = vec![0; len];
                memory.load(key, PD, Access::REMOTE_READ, va, &mut back, 0).unwrap();
                drop(table);
                assert_eq!(back, from[..len]);
                assert_eq!(bytes[start..start + len], from[..len]);
                assert!(bytes[..start].iter().chain(&bytes[start + len..]).all(|&b| b == 0xaa));
            }
        }
    }

    #[test]
    fn refusals_come_in_order_and_bounds_do_not_wrap() {
        let mut bytes = vec![0; 64];
        let iova = u64::MAX - 127;
        let (table, key) = table_with(&mut bytes, iova, Access::REMOTE_READ);
        let check = |key, pd, need, va, len| table.check(key, pd, need, Some((va, len)));
        let other = Key::from_parts(key.index(), key.variant() ^ 1);
        assert_eq!(check(other, PD, Access::NONE, iova, 1), Err(AccessError::Key));
        assert_eq!(check(Key::from_parts(99, 0), PD, Access::NONE, iova, 1), Err(AccessError::Key));
        assert_eq!(check(key, PdId(2), Access::NONE, iova, 1), Err(AccessError::ProtectionDomain));
        assert_eq!(check(key, PD, Access::REMOTE_WRITE, iova, 1), Err(AccessError::Rights));
        assert!(check(key, PD, Access::REMOTE_READ, iova, 64).is_ok());
        assert!(check(key, PD, Access::REMOTE_READ, iova + 64, 0).is_ok());
        for (va, len) in [
            (iova, 65),
            (iova + 1, 64),
            (iova + 65, 0),
            (iova - 1, 1),
            (iova + 32, u64::MAX - 31), // wraps to iova
            (iova, u64::MAX),
            (0, 64),
            (iova + 63, u64::MAX),
        ] {
            let refused = check(key, PD, Access::REMOTE_READ, va, len);
            assert_eq!(refused, Err(AccessError::Bounds), "{va:#x}+{len}");
        }
    }

    #[test]
    fn a_withdrawn_key_is_refused_and_its_slot_returns_last() {
        let mut bytes = vec![0; 8];
        let (table, key) = table_with(&mut bytes, 0, Access::ALL);
        table.withdraw(key);
        assert_eq!(table.find(key), Err(AccessError::Key));
        table.release(key);
        let region = Region { iova: 0, host: 8, len: 0, pd: PD, access: Access::NONE };
        // SAFETY: the region is empty, so no byte of it is accessed.
        let next = unsafe { table.insert(&region, 7) }.unwrap();
        assert_ne!(next.index(), key.index());
    }

    #[test]
    fn invalidation_needs_its_right() {
        let mut bytes = vec![0; 8];
        let (table, key) = table_with(&mut bytes, 0, Access::REMOTE_WRITE);
        let qp = feroce_wire::Qpn::masked(5);
        assert_eq!(table.invalidate(key, PD, qp), Err(AccessError::Rights));
        let (table, key) = table_with(&mut bytes, 0, Access::REMOTE_INVALIDATE);
        assert_eq!(table.invalidate(key, PD, qp), Ok(()));
        assert_eq!(table.invalidate(key, PD, qp), Err(AccessError::Key));
    }

    #[test]
    fn atomics_swap_add_and_refuse_bad_addresses() {
        let mut words = vec![0u64; 2];
        let host = words.as_mut_ptr().expose_provenance() as u64;
        let table = MrTable::new(4, KeySpace::identity());
        let region = Region { iova: host, host, len: 16, pd: PD, access: Access::ALL };
        // SAFETY: `words` outlives the table.
        let key = unsafe { table.insert(&region, 0) }.unwrap();
        let add = |va, n| table.atomic(key, PD, va, AtomicOp::FetchAdd(n));
        assert_eq!(add(host, u64::MAX), Ok(0));
        assert_eq!(add(host, 2), Ok(u64::MAX));
        let swap = |compare| AtomicOp::CompareSwap { compare, swap: 9 };
        assert_eq!(table.atomic(key, PD, host, swap(0)), Ok(1));
        assert_eq!(table.atomic(key, PD, host, swap(1)), Ok(1));
        assert_eq!(add(host, 0), Ok(9));
        assert_eq!(add(host + 4, 1), Err(AccessError::Misaligned));
        assert_eq!(add(host + 16, 1), Err(AccessError::Bounds));
        drop(table);
        assert_eq!(words, [9, 0]);
    }
}
