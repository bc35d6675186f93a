//! Bytes that the program and the engine share safely: the program accesses them by copying.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::arena::Block;
use super::copy;

/// Zeroed memory in the arena that can be registered without a contract. The engine and peers may
/// write it at any time, so the program copies data in and out. Bytes that race, with a peer's
/// access as with any device's DMA or with another thread's copy, have unspecified values. Aligned
/// words are copied whole; the methods for words and bytes are ordered, too.
#[derive(Debug)]
pub struct SharedBytes {
    block: Block,
    len: usize,
}

impl SharedBytes {
    /// Makes a buffer of the first `len` bytes of `block`.
    ///
    /// # Panics
    /// If the block is shorter.
    pub fn new(block: Block, len: usize) -> Self {
        assert!(len <= block.len(), "the block is too short");
        Self { block, len }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.block.as_ptr().as_ptr().expose_provenance() as u64
    }

    /// Copies `out.len()` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.range(offset, out.len());
        // SAFETY: `range` returned `out.len()` bytes of the block. `out` is outside the block,
        // because `SharedBytes` lends no slices of it. Other accesses to the block are atomic.
        unsafe { copy::load(from, out) };
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.range(offset, bytes.len());
        // SAFETY: `range` returned `bytes.len()` bytes of the block. `bytes` is outside the block,
        // because `SharedBytes` lends no slices of it. Other accesses to the block are atomic.
        unsafe { copy::store(to, bytes) };
    }

    /// Reads the byte at `offset` with acquire order: everything written before the byte is
    /// visible. Use this to spin on the last byte of a WRITE.
    ///
    /// # Panics
    /// If `offset` is outside the buffer.
    pub fn load_byte(&self, offset: usize) -> u8 {
        // SAFETY: `range` returned one byte of the block, which is mapped as long as `self` lives.
        unsafe { AtomicU8::from_ptr(self.range(offset, 1)) }.load(Ordering::Acquire)
    }

    /// Reads the aligned 8-byte word at `offset`, in native byte order, with acquire order.
    ///
    /// # Panics
    /// If the word exceeds the buffer or `offset` is not a multiple of 8.
    pub fn load_word(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores the aligned 8-byte word at `offset`, in native byte order, with release order.
    ///
    /// # Panics
    /// If the word exceeds the buffer or `offset` is not a multiple of 8.
    pub fn store_word(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "words lie at multiples of eight");
        // SAFETY: `range` returned 8 bytes of the block. The block is 64-byte aligned and lives as
        // long as `self`, and `offset` is a multiple of 8.
        unsafe { AtomicU64::from_ptr(self.range(offset, 8).cast()) }
    }

    fn range(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "range leaves the buffer");
        // SAFETY: `offset <= self.len <= block.len()`, so the pointer stays inside the block.
        unsafe { self.block.as_ptr().as_ptr().add(offset) }
    }
}
