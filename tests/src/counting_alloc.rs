//! A global allocator that counts allocations by thread, for tests of memory use and of code that
//! must not allocate.
//!
//! A global allocator cannot be written without `unsafe`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system allocator with counts by thread. Use it as the `#[global_allocator]` of a test.
#[derive(Debug, Clone, Copy)]
pub struct CountingAlloc;

/// Allocations of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeapUse {
    /// Number of calls to allocate or reallocate.
    pub allocations: u64,
    /// Number of freed blocks.
    pub frees: u64,
    /// Allocated bytes minus freed bytes. Negative if the thread frees blocks of other threads.
    pub live_bytes: i64,
}

thread_local! {
    // Initialized at compile time and without a destructor, so access never allocates.
    static HEAP_USE: Cell<HeapUse> = const {
        Cell::new(HeapUse { allocations: 0, frees: 0, live_bytes: 0 })
    };
}

thread_local! {
    /// Maximum of live bytes since [`heap_peak_of`] started.
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// Returns the allocations of the calling thread since it started.
pub fn heap_use() -> HeapUse {
    HEAP_USE.with(Cell::get)
}

/// Runs `act` and returns the allocations of the calling thread meanwhile.
pub fn heap_use_of<R>(act: impl FnOnce() -> R) -> (R, HeapUse) {
    let before = heap_use();
    let result = act();
    let after = heap_use();
    let used = HeapUse {
        allocations: after.allocations - before.allocations,
        frees: after.frees - before.frees,
        live_bytes: after.live_bytes - before.live_bytes,
    };
    (result, used)
}

/// Runs `act` and returns the maximum number of bytes that the calling thread allocated in addition
/// to what it held before.
pub fn heap_peak_of<R>(act: impl FnOnce() -> R) -> (R, i64) {
    let before = heap_use().live_bytes;
    PEAK.with(|peak| peak.set(before));
    let result = act();
    (result, PEAK.with(Cell::get) - before)
}

fn note(allocations: u64, frees: u64, bytes: i64) {
    // An exiting thread has no thread locals any more; its counts are not read.
    let _ = HEAP_USE.try_with(|cell| {
        let mut used = cell.get();
        used.allocations += allocations;
        used.frees += frees;
        used.live_bytes += bytes;
        cell.set(used);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(used.live_bytes)));
    });
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).expect("block sizes fit in i64")
}

// SAFETY: every method passes its arguments to the system allocator unchanged and returns its
// result; counting only accesses a `Cell`.
unsafe impl GlobalAlloc for CountingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, 0, signed(layout.size()));
        // SAFETY: the caller's contract is the same as that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, 0, signed(layout.size()));
        // SAFETY: the caller's contract is the same as that of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(0, 1, -signed(layout.size()));
        // SAFETY: the caller's contract is the same as that of `System`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, 0, signed(size) - signed(layout.size()));
        // SAFETY: the caller's contract is the same as that of `System`.
        unsafe { System.realloc(block, layout, size) }
    }
}
