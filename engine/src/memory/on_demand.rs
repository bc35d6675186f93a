//! On-demand regions: memory whose pages may be unmapped and mapped again while it is registered.
//!
//! A plain load or store of an unmapped page would end the process. Therefore the kernel copies
//! these bytes within this process (`process_vm_readv`, `process_vm_writev`). For an unmapped or
//! read-only page it returns an error, and the access fails as a page request that an RNIC cannot
//! satisfy would. This costs one system call per packet, and two per atomic operation.
//!
//! No check could replace the kernel: the program may unmap a page between check and access.
//! The kernel has no atomic operation on 8 bytes of user memory. Therefore an RDMA atomic is a read
//! and a write under a lock of the device: atomic with respect to RDMA atomics on on-demand regions
//! of the device, which is what `IBV_ATOMIC_HCA` promises, and not to the program's instructions.

use std::ptr;
use std::sync::atomic::{Ordering, fence};

use feroce_wire::Payload;

use super::pages;
use super::region::AccessError;
use super::tail::{address, tail_start};

/// Returns true if the kernel lets this process copy its own memory; some sandboxes forbid it.
pub fn is_supported() -> bool {
    let from = [7u8];
    let mut to = [0u8];
    load(from.as_ptr().expose_provenance() as u64, &mut to).is_ok() && to == from
}

/// Copies `payload` to `host`, the last bytes last.
#[cold]
pub(super) fn store(host: u64, payload: Payload<'_>) -> Result<(), AccessError> {
    let (body, tail) = payload.split_at(tail_start(host, payload.len()));
    let mut at = host;
    for part in [body.first, body.second] {
        write(at, part)?;
        at += part.len() as u64;
    }
    fence(Ordering::Release);
    for part in [tail.first, tail.second] {
        write(at, part)?;
        at += part.len() as u64;
    }
    Ok(())
}

fn write(host: u64, from: &[u8]) -> Result<(), AccessError> {
    if from.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = named(host, from.len());
    // SAFETY: the kernel reads `from`, which is a valid slice, and checks the remote address
    // itself: an invalid one is an error. The target bytes are registered with a write right.
    let moved = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    whole(moved, from.len())
}

/// Copies `out.len()` bytes from `host`.
#[cold]
pub(super) fn load(host: u64, out: &mut [u8]) -> Result<(), AccessError> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = named(host, out.len());
    // SAFETY: the kernel writes at most `out.len()` bytes to `out`, and checks the remote address
    // itself.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    whole(moved, out.len())
}

/// Replaces the aligned word at `host` by the result of `next`, if there is one. Returns the old
/// value. The caller excludes other updates.
#[cold]
pub(super) fn update(host: u64, next: impl FnOnce(u64) -> Option<u64>) -> Result<u64, AccessError> {
    let mut word = [0; 8];
    load(host, &mut word)?;
    let old = u64::from_ne_bytes(word);
    if let Some(new) = next(old) {
        fence(Ordering::Release);
        write(host, &new.to_ne_bytes())?;
    }
    Ok(old)
}

/// Faults in `len` bytes at `host`, for reading or, with `write`, for writing. `page`: the size of
/// a page in bytes.
#[cold]
pub(super) fn populate(host: u64, len: u64, write: bool, page: u64) -> Result<(), AccessError> {
    let (start, span) = pages::from_page_start(host, len, page);
    let span = usize::try_from(span).map_err(|_| AccessError::Unmapped)?;
    let at = ptr::with_exposed_provenance_mut(address(start));
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: populating changes no byte.
    let refused = unsafe { libc::madvise(at, span, advice) } != 0;
    if refused { Err(AccessError::Unmapped) } else { Ok(()) }
}

fn named(host: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address(host)), iov_len: len }
}

fn whole(moved: isize, len: usize) -> Result<(), AccessError> {
    if usize::try_from(moved) == Ok(len) { Ok(()) } else { Err(AccessError::Unmapped) }
}

#[cfg(test)]
mod tests {
    use super::super::access::AtomicOp;
    use super::super::{Access, KeySpace, MrTable, PdId, Region, pages};
    use super::*;

    const PD: PdId = PdId(1);

    /// A page of its own, and a table with an on-demand region of this page.
    fn page() -> (*mut libc::c_void, usize, MrTable, feroce_wire::Key) {
        let len = usize::try_from(pages::size()).unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let host = at.expose_provenance() as u64;
        let table = MrTable::new(2, KeySpace::identity());
        let access = Access::ALL | Access::ON_DEMAND;
        let region = Region { iova: host, host, len: len as u64, pd: PD, access };
        // SAFETY: an on-demand region makes no promise about its pages.
        let key = unsafe { table.insert(&region, 0) }.unwrap();
        (at, len, table, key)
    }

    /// The program takes the page away while a peer sends atomics: each of them is executed or
    /// refused. (Page rights stand for `munmap`: another thread could map the address.)
    #[test]
    fn atomics_on_pages_that_come_and_go_are_refused_or_executed() {
        let (at, len, table, key) = page();
        let host = at.addr() as u64;
        let all = libc::PROT_READ | libc::PROT_WRITE;
        let (mut refused, mut executed) = (0, 0);
        std::thread::scope(|scope| {
            let start = at.expose_provenance();
            let toggles = scope.spawn(move || {
                let at = ptr::with_exposed_provenance_mut(start);
                for _ in 0..20_000 {
                    for rights in [libc::PROT_NONE, all] {
                        // SAFETY: a page of this test, without references to it.
                        assert_eq!(unsafe { libc::mprotect(at, len, rights) }, 0);
                    }
                }
            });
            while !toggles.is_finished() {
                match table.atomic(key, PD, host, AtomicOp::FetchAdd(1)) {
                    Ok(old) => {
                        assert_eq!(old, executed);
                        executed += 1;
                    }
                    Err(error) => {
                        assert_eq!(error, AccessError::Unmapped);
                        refused += 1;
                    }
                }
            }
        });
        assert!(refused + executed > 0);
        // SAFETY: mapped above; the table is not used any more.
        unsafe { libc::munmap(at, len) };
    }

    /// Pages of 16 and 64 KiB begin before those of 4 KiB. The kernel refuses an address inside a
    /// page; here it shows where the range began.
    #[test]
    fn a_range_is_populated_from_the_start_of_its_page() {
        const ALIGNED: usize = 64 << 10;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let own = pages::size();
        for page in [4096, 16 << 10, 64 << 10].into_iter().filter(|page| *page >= own) {
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let at = unsafe { libc::mmap(ptr::null_mut(), 3 * ALIGNED, rights, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            let start = at.expose_provenance().next_multiple_of(ALIGNED);
            // In the last page of 4 KiB of the first one of 64 KiB, and in the next page.
            let (host, len) = (start as u64 + 61_000, 5000);
            populate(host, len, true, page).unwrap();
            let mut resident = [0u8; 2 * ALIGNED / 4096];
            let place = ptr::with_exposed_provenance_mut(start);
            // SAFETY: the kernel writes a byte for each page of the range, which is mapped.
            let read = unsafe { libc::mincore(place, 2 * ALIGNED, resident.as_mut_ptr()) };
            assert_eq!(read, 0);
            let pages = 2 * ALIGNED / usize::try_from(own).unwrap();
            let first = resident[..pages].iter().position(|page| page & 1 != 0).unwrap() as u64;
            assert_eq!(first * own, (61_000 / page) * page, "pages of {page} bytes");
            // SAFETY: mapped above.
            unsafe { libc::munmap(at, 3 * ALIGNED) };
        }
    }

    #[test]
    fn atomics_in_on_demand_memory_have_the_same_results() {
        let (at, len, table, key) = page();
        let host = at.addr() as u64;
        let run = |op| table.atomic(key, PD, host + 8, op);
        assert_eq!(run(AtomicOp::FetchAdd(u64::MAX)), Ok(0));
        assert_eq!(run(AtomicOp::FetchAdd(2)), Ok(u64::MAX));
        assert_eq!(run(AtomicOp::CompareSwap { compare: 0, swap: 9 }), Ok(1));
        assert_eq!(run(AtomicOp::CompareSwap { compare: 1, swap: 9 }), Ok(1));
        assert_eq!(table.atomic_write(key, PD, host + 8, 5u64.to_ne_bytes()), Ok(()));
        assert_eq!(run(AtomicOp::FetchAdd(0)), Ok(5));
        // SAFETY: mapped by `page`, without references to it.
        assert_eq!(unsafe { libc::munmap(at, len) }, 0);
        assert_eq!(run(AtomicOp::FetchAdd(0)), Err(AccessError::Unmapped));
        let written = table.atomic_write(key, PD, host + 8, [0; 8]);
        assert_eq!(written, Err(AccessError::Unmapped));
    }

    #[test]
    fn atomics_of_several_cores_are_all_counted() {
        let (at, len, table, key) = page();
        let host = at.addr() as u64;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        table.atomic(key, PD, host, AtomicOp::FetchAdd(1)).unwrap();
                    }
                });
            }
        });
        assert_eq!(table.atomic(key, PD, host, AtomicOp::FetchAdd(0)), Ok(6000));
        // SAFETY: mapped by `page`, without references to it.
        unsafe { libc::munmap(at, len) };
    }
}
