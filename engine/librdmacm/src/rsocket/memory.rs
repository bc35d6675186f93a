//! Registered memory of sockets: pages of their own.

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

/// Memory that is registered as long as it is there.
#[derive(Debug)]
pub struct Region {
    pages: NonNull<u8>,
    layout: Layout,
    mr: *mut ibv_mr,
}

// SAFETY: the memory and its registration have this one owner.
unsafe impl Send for Region {}
// SAFETY: what is shared is written by the engine, as the protocol says when.
unsafe impl Sync for Region {}

impl Region {
    /// So many bytes of zeros.
    ///
    /// # Safety
    /// The protection domain is live, and outlives the region.
    pub unsafe fn new(pd: *mut ibv_pd, length: usize, access: c_uint) -> Result<Self, c_int> {
        let size = length.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| libc::ENOMEM)?;
        // SAFETY: its size is not zero.
        let pages = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(libc::ENOMEM)?;
        let mut region = Self { pages, layout, mr: std::ptr::null_mut() };
        // SAFETY: the domain is live; the pages are there until the region is dropped.
        region.mr = unsafe { ibv_reg_mr(pd, pages.as_ptr().cast(), size, access.cast_signed()) };
        if region.mr.is_null() { Err(errno::last()) } else { Ok(region) }
    }

    /// How the peer names it, and says that it is so long.
    pub fn remote(&self, length: u32) -> Remote {
        // SAFETY: the registration is live.
        let key = unsafe { (*self.mr).rkey };
        Remote { address: self.pages.as_ptr().expose_provenance() as u64, key, length }
    }

    /// Part of it in a work request.
    pub fn entry(&self, piece: Piece) -> ibv_sge {
        // SAFETY: the registration is live.
        let lkey = unsafe { (*self.mr).lkey };
        let addr = self.pages.as_ptr().expose_provenance() as u64 + u64::from(piece.offset);
        ibv_sge { addr, length: piece.length, lkey }
    }

    /// Where a part begins.
    fn at(&self, piece: Piece) -> *mut u8 {
        let (offset, length) = (piece.offset as usize, piece.length as usize);
        assert!(offset + length <= self.layout.size(), "a piece of the buffer");
        // SAFETY: it lies within the pages.
        unsafe { self.pages.as_ptr().add(offset) }
    }

    /// Copies a part to the program.
    ///
    /// # Safety
    /// `to` has as many bytes.
    pub unsafe fn copy_to(&self, piece: Piece, to: *mut u8) {
        // SAFETY: the caller answers for its memory. The peer does not write there before it is told that it may.
        unsafe { self.at(piece).copy_to_nonoverlapping(to, piece.length as usize) };
    }

    /// Copies a part from the program.
    ///
    /// # Safety
    /// `from` has as many bytes.
    pub unsafe fn copy_from(&self, piece: Piece, from: *const u8) {
        // SAFETY: the caller answers for its memory. No work request has the part.
        unsafe { self.at(piece).copy_from_nonoverlapping(from, piece.length as usize) };
    }

    /// What was received there.
    pub fn bytes(&self, piece: Piece) -> &[u8] {
        // SAFETY: it lies within the pages, and nobody writes there before it is posted again.
        unsafe { std::slice::from_raw_parts(self.at(piece), piece.length as usize) }
    }

    /// The word of 8 bytes at an offset, which the peer writes in one piece.
    fn word(&self, offset: usize) -> &AtomicU64 {
        let length = size_of::<u64>();
        assert!(offset.is_multiple_of(length) && offset + length <= self.layout.size());
        // SAFETY: it lies within the pages, is aligned, and is used as an atomic only.
        unsafe { AtomicU64::from_ptr(self.pages.as_ptr().add(offset).cast()) }
    }

    /// An entry; its last word, which says how long it is, becomes visible last.
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
        // SAFETY: this is the only owner; the memory was allocated with that layout.
        unsafe {
            if !self.mr.is_null() {
                ibv_dereg_mr(self.mr);
            }
            dealloc(self.pages.as_ptr(), self.layout);
        }
    }
}

/// Where the peer writes its targets and its mapped buffers.
#[derive(Debug)]
pub struct PeerTables {
    /// The memory: targets first.
    pub region: Region,
    /// How many mapped buffers.
    pub mappings: u16,
}

/// How long the tables are.
pub fn tables_length(mappings: u16) -> usize {
    TARGETS as usize * REMOTE_LENGTH + usize::from(mappings) * MAPPING_LENGTH
}

impl PeerTables {
    /// The mapped buffer that has this offset.
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
