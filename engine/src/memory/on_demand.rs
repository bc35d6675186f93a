//! On-demand regions: memory whose pages may be unmapped and mapped again while it is registered.
//!
//! A plain load or store of an unmapped page would end the process. Therefore the kernel copies
//! these bytes within this process (`process_vm_readv`, `process_vm_writev`). For an unmapped or
//! read-only page it returns an error, and the access fails as a page request that an RNIC cannot
//! satisfy would. This costs one system call per packet.

use std::ptr;
use std::sync::atomic::{Ordering, fence};

use feroce_wire::Payload;

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

/// Faults in `len` bytes at `host`, for reading or, with `write`, for writing. (A thread that
/// unmaps them at the same moment makes the engine's access fail like any other instruction's.)
#[cold]
pub(super) fn populate(host: u64, len: u64, write: bool) -> Result<(), AccessError> {
    const PAGE: u64 = 4096; // Larger pages start at multiples of it, too.
    let start = host & !(PAGE - 1);
    let span = usize::try_from(host - start + len).map_err(|_| AccessError::Unmapped)?;
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
