//! Registered memory of sockets, in whole pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_uint};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::protocol::{MAPPING_LENGTH, Mapping, REMOTE_LENGTH, Remote, TARGETS};
use super::stream::{Piece, Tables};
use super::verbs::{ibv_dereg_mr, ibv_reg_mr};
use crate::abi::{ibv_mr, ibv_pd, ibv_sge};
use crate::errno;

const PAGE: usize = 4096;

/// Registered memory; deregistered and freed on drop.
#[derive(Debug)]
pub struct Region {
    pages: NonNull<u8>,
    layout: Layout,
    mr: *mut ibv_mr,
}

// SAFETY: the region is the only owner of the memory and its registration.
unsafe impl Send for Region {}
// SAFETY: shared parts are written by the engine only, at the times that the protocol defines.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates and registers `length` bytes of zeros.
    ///
    /// # Safety
    /// `pd` is a live PD that outlives the region.
    pub unsafe fn new(pd: *mut ibv_pd, length: usize, access: c_uint) -> Result<Self, c_int> {
        let size = length.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| libc::ENOMEM)?;
        // SAFETY: the size is not zero.
        let pages = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(libc::ENOMEM)?;
        let mut region = Self { pages, layout, mr: std::ptr::null_mut() };
        // SAFETY: `pd` is live; the pages stay allocated until the region is dropped.
        region.mr = unsafe { ibv_reg_mr(pd, pages.as_ptr().cast(), size, access.cast_signed()) };
        if region.mr.is_null() { Err(errno::last()) } else { Ok(region) }
    }

    /// Returns the region as the peer addresses it, with the given length.
    pub fn remote(&self, length: u32) -> Remote {
        // SAFETY: the registration is live.
        let key = unsafe { (*self.mr).rkey };
        Remote { address: self.pages.as_ptr().expose_provenance() as u64, key, length }
    }

    /// Returns a scatter/gather entry for part of the region.
    pub fn entry(&self, piece: Piece) -> ibv_sge {
        // SAFETY: the registration is live.
        let lkey = unsafe { (*self.mr).lkey };
        let addr = self.pages.as_ptr().expose_provenance() as u64 + u64::from(piece.offset);
        ibv_sge { addr, length: piece.length, lkey }
    }

    /// Returns the address of a piece.
    fn at(&self, piece: Piece) -> *mut u8 {
        let (offset, length) = (piece.offset as usize, piece.length as usize);
        assert!(offset + length <= self.layout.size(), "a piece of the buffer");
        // SAFETY: the piece lies within the pages.
        unsafe { self.pages.as_ptr().add(offset) }
    }

    /// Copies a piece to the program.
    ///
    /// # Safety
    /// `to` has `piece.length` writable bytes.
    pub unsafe fn copy_to(&self, piece: Piece, to: *mut u8) {
        // SAFETY: `to` has `piece.length` writable bytes. The peer does not write the piece before
        // it is announced again.
        unsafe { self.at(piece).copy_to_nonoverlapping(to, piece.length as usize) };
    }

    /// Copies bytes of the program to a piece.
    ///
    /// # Safety
    /// `from` has `piece.length` readable bytes.
    pub unsafe fn copy_from(&self, piece: Piece, from: *const u8) {
        // SAFETY: `from` has `piece.length` readable bytes. No posted work request uses the piece.
        unsafe { self.at(piece).copy_from_nonoverlapping(from, piece.length as usize) };
    }

    /// Returns the received bytes of a piece.
    pub fn bytes(&self, piece: Piece) -> &[u8] {
        // SAFETY: the piece lies within the pages, and nothing writes it before its receive is
        // posted again.
        unsafe { std::slice::from_raw_parts(self.at(piece), piece.length as usize) }
    }

    /// Returns the 8-byte word at an offset. The peer's writes to it are atomic.
    fn word(&self, offset: usize) -> &AtomicU64 {
        let length = size_of::<u64>();
        assert!(offset.is_multiple_of(length) && offset + length <= self.layout.size());
        // SAFETY: the word lies within the pages, is aligned, and is accessed only atomically.
        unsafe { AtomicU64::from_ptr(self.pages.as_ptr().add(offset).cast()) }
    }

    /// Reads an entry. Its last word, which holds the length, becomes visible last.
    fn remote_at(&self, offset: usize) -> Remote {
        let last = self.word(offset + 8).load(Ordering::Acquire).to_ne_bytes();
        let address = self.word(offset).load(Ordering::Relaxed).to_ne_bytes();
        let mut bytes = [0; REMOTE_LENGTH];
        bytes[..8].copy_from_slice(&address);
        bytes[8..].copy_from_slice(&last);
        Remote::decode(&bytes)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the only owner; the memory was allocated with this layout.
        unsafe {
            if !self.mr.is_null() {
                ibv_dereg_mr(self.mr);
            }
            dealloc(self.pages.as_ptr(), self.layout);
        }
    }
}

/// Tables that the peer writes: its targets and its mapped buffers.
#[derive(Debug)]
pub struct PeerTables {
    /// Memory of the tables; the targets come first.
    pub region: Region,
    /// Number of entries for mapped buffers.
    pub mappings: u16,
}

/// Returns the length of the tables in bytes.
pub fn tables_length(mappings: u16) -> usize {
    TARGETS as usize * REMOTE_LENGTH + usize::from(mappings) * MAPPING_LENGTH
}

impl PeerTables {
    /// Returns the mapped buffer that contains this offset.
    pub fn find(&self, offset: u64) -> Option<Mapping> {
        let entries = (0..usize::from(self.mappings)).map(|index| {
            let at = TARGETS as usize * REMOTE_LENGTH + index * MAPPING_LENGTH;
            let buffer = self.region.remote_at(at + 8);
            Mapping { offset: self.region.word(at).load(Ordering::Relaxed), buffer }
        });
        let mut holding = entries.filter(|mapping| mapping.left_at(offset) > 0);
        holding.next()
    }
}

impl Tables for PeerTables {
    fn take_target(&mut self, index: u32) -> Option<Remote> {
        let at = index as usize * REMOTE_LENGTH;
        let target = self.region.remote_at(at);
        if target.length == 0 {
            return None;
        }
        self.region.word(at + 8).store(0, Ordering::Relaxed);
        Some(target)
    }
}
