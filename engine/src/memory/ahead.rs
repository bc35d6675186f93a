//! Hints to the processor about memory that is used soon. They access nothing.

#[cfg(target_arch = "x86_64")]
use std::ptr;

#[cfg(target_arch = "x86_64")]
use super::tail::address;

/// Bytes per prefetch.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// Prefetches `len` bytes at `host`. The CPU's own prefetcher stops at the end of each page, and a
/// long packet is about one page long.
#[inline]
pub(super) fn fetch_ahead(host: u64, len: usize) {
    if len == 0 {
        return; // The division of a stepped range costs more than this test.
    }
    #[cfg(target_arch = "x86_64")]
    for offset in (0..len).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let line = ptr::without_provenance::<i8>(address(host)).wrapping_add(offset);
        // SAFETY: a prefetch accesses no memory, whatever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _no_such_hint = (host, len);
}

/// Prefetches `len` bytes from the start of `of` on: the line of each 64th byte, so the last line
/// may be missed if `of` does not begin a line. For tables larger than the processor's cache, such
/// as the fabric's.
#[inline]
pub fn fetch<T>(of: &T, len: usize) {
    fetch_ahead((&raw const *of).addr() as u64, len);
}

/// Prefetches the first `len` bytes of element `index`, if there is one.
#[inline]
pub fn fetch_element<T>(elements: &[T], index: usize, len: usize) {
    if let Some(element) = elements.get(index) {
        fetch(element, len);
    }
}
