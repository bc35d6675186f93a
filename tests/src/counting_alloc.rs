//! An allocator that counts what each thread asks of it: for tests that say how much memory something
//! takes, and that something takes none.
//!
//! An `unsafe` room: a global allocator cannot be written without.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counted by thread. Make it the `#[global_allocator]` of a test.
#[derive(Debug, Clone, Copy)]
pub struct CountingAlloc;

/// What one thread asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeapUse {
    /// Blocks taken, moved or grown.
    pub allocations: u64,
    /// Blocks given back.
    pub frees: u64,
    /// Bytes taken less bytes given back. Below zero if the thread frees what others took.
    pub live_bytes: i64,
}

thread_local! {
    // Built at compile time and without a destructor: reading it never allocates.
    static HEAP_USE: Cell<HeapUse> = const {
        Cell::new(HeapUse { allocations: 0, frees: 0, live_bytes: 0 })
    };
}

thread_local! {
    /// The most live bytes since [`heap_peak_of`] began.
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// What the calling thread has asked for since it began.
pub fn heap_use() -> HeapUse {
    HEAP_USE.with(Cell::get)
}

/// What the calling thread asks for while it runs `act`.
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

/// The most bytes that the calling thread holds at a time while it runs `act`, besides those that it held before.
pub fn heap_peak_of<R>(act: impl FnOnce() -> R) -> (R, i64) {
    let before = heap_use().live_bytes;
    PEAK.with(|peak| peak.set(before));
    let result = act();
    (result, PEAK.with(Cell::get) - before)
}

fn note(allocations: u64, frees: u64, bytes: i64) {
    // A thread that is ending has no locals any more; nobody asks it either.
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
    i64::try_from(bytes).expect("no block is larger than the address space")
}

// SAFETY: every method passes its arguments on to the system's allocator unchanged and returns its
// answer; counting touches a `Cell` only.
unsafe impl GlobalAlloc for CountingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, 0, signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, 0, signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(0, 1, -signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, 0, signed(size) - signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(block, layout, size) }
    }
}
