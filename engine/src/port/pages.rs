//! Memory that the kernel reads and writes during system calls: packet buffers and rings.
#![allow(unsafe_code)] // A mapping is used by its address.

use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

/// Memory at a fixed address that the kernel reads and writes.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: this value is the only owner of the memory.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps `len` bytes of zeros, in transparent huge pages if the kernel has some.
    pub fn map(len: usize) -> io::Result<Self> {
        let pages = Self::map_from(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, len)?;
        // SAFETY: the range is this mapping; the call is only a hint.
        unsafe { libc::madvise(pages.address(0).cast(), len, libc::MADV_HUGEPAGE) };
        Ok(pages)
    }

    pub fn map_from(fd: RawFd, flags: libc::c_int, len: usize) -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping is not at null");
        Ok(Self { start, len })
    }

    /// A word that the kernel may change at any time.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= self.len && offset.is_multiple_of(4));
        // SAFETY: the word is within the mapping and aligned, since mappings are page-aligned.
        unsafe { AtomicU32::from_ptr(self.address(offset).cast()) }
    }

    /// The address of byte `offset`, for the kernel.
    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        // SAFETY: the address is within the mapping or at its end.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Bytes that the kernel does not write now. The kernel writes buffers only during calls, and
    /// slots of a ring only while it owns them.
    pub fn get(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the range is within the mapping and initialised; the kernel does not write it
        // now.
        unsafe { std::slice::from_raw_parts(self.address(offset), len) }
    }

    /// As [`Self::get`], for writing.
    pub fn get_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: as in `get`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address(offset), len) }
    }

    /// Copies `len` bytes from offset `from` to offset `to`.
    pub fn copy(&mut self, from: usize, to: usize, len: usize) {
        self.get_mut(0, self.len).copy_within(from..from + len, to);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map_from`, and no reference to it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
