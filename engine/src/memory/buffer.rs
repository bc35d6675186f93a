//! Bytes that the program and the engine share safely: every access of the program is a copy.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::arena::Block;

/// Zeroed memory in the arena that can be registered without promises. The engine and peers may write it
/// at any time, so the program copies in and out. Bytes that race - with a peer's access, as with any
/// device's DMA, or with another thread's copy - are unspecified; the word and byte methods are atomic.
#[derive(Debug)]
pub struct SharedBytes {
    block: Block,
    len: usize,
}

impl SharedBytes {
    /// The first `len` bytes of `block`.
    ///
    /// # Panics
    /// If the block is shorter.
    pub fn new(block: Block, len: usize) -> Self {
        assert!(len <= block.len(), "the block is too short");
        Self { block, len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.block.as_ptr().as_ptr().expose_provenance() as u64
    }

    /// Copies `out.len()` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range leaves the buffer.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.range(offset, out.len());
        // SAFETY: in the block, by `range`; `out` is the caller's own and does not overlap the arena.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If the range leaves the buffer.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.range(offset, bytes.len());
        // SAFETY: in the block, by `range`; `bytes` are the caller's own and do not overlap the arena.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// The byte at `offset`, read with acquire order: what was written before it is visible. Spin on the
    /// last byte of a WRITE with this.
    ///
    /// # Panics
    /// If `offset` is outside the buffer.
    pub fn load_byte(&self, offset: usize) -> u8 {
        // SAFETY: in the block, by `range`.
        unsafe { AtomicU8::from_ptr(self.range(offset, 1)) }.load(Ordering::Acquire)
    }

    /// The aligned eight-byte word at `offset`, in native byte order, read with acquire order.
    ///
    /// # Panics
    /// If the word leaves the buffer or `offset` is no multiple of eight.
    pub fn load_word(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores the aligned eight-byte word at `offset`, in native byte order, with release order.
    ///
    /// # Panics
    /// If the word leaves the buffer or `offset` is no multiple of eight.
    pub fn store_word(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "words lie at multiples of eight");
        // SAFETY: eight bytes in the block, by `range`; blocks are aligned to at least eight.
        unsafe { AtomicU64::from_ptr(self.range(offset, 8).cast()) }
    }

    fn range(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "range leaves the buffer");
        // SAFETY: inside the block.
        unsafe { self.block.as_ptr().as_ptr().add(offset) }
    }
}
