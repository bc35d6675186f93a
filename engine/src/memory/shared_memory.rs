//! Memory that two processes map: one makes it, the other gets its descriptor.
//!
//! The memory is a memfd whose size is sealed, so that neither process can take pages away by
//! truncation, which would kill the other one by `SIGBUS`. Once both have mapped it
//! ([`SharedMemory::finish`]), no hole can be punched into it either. It consists of ordinary
//! pages: until then, a hole in hugepages could kill the other process when none is free.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const LAST_SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// Mapped memory of a sealed memfd.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: `start` is the address of a mapping that lives as long as the value, which gives out only
// raw pointers into it.
unsafe impl Send for SharedMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes `len` zeroed bytes. All pages are allocated.
    ///
    /// # Errors
    /// The system's error: no memory, no descriptor.
    pub fn create(len: usize) -> io::Result<Arc<Self>> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("feroce-rings", flags)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Self::map(fd, len)
    }

    /// Maps the memory that another process has made.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it has not `len` bytes or its size is not sealed;
    /// otherwise the system's error.
    pub fn open(fd: OwnedFd, len: usize) -> io::Result<Arc<Self>> {
        let size = rustix::fs::fstat(&fd)?.st_size;
        let is_sealed = rustix::fs::fcntl_get_seals(&fd)?.contains(SEALS);
        if usize::try_from(size).ok() != Some(len) || !is_sealed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> io::Result<Arc<Self>> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address of the new mapping, so it replaces no other.
        let at = unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, flags, &fd, 0) }?;
        let start = NonNull::new(at.cast()).expect("mmap gave an address other than 0");
        Ok(Arc::new(Self { fd, start, len }))
    }

    /// Forbids new writable mappings, writing by system calls and holes. Present mappings stay.
    ///
    /// # Errors
    /// The system's error.
    pub fn finish(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.fd, LAST_SEALS)?)
    }

    /// The address of byte `offset`.
    ///
    /// # Panics
    /// If there are no `len` bytes from there on.
    pub fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        let end = offset.checked_add(len).expect("a range of memory");
        assert!(end <= self.len, "bytes {offset} to {end} of {}", self.len);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.start.add(offset) }
    }
}

#[cfg(any(test, fuzzing))]
impl SharedMemory {
    /// Writes a word at `offset`, a multiple of 4, as a process that does not keep to the rules.
    pub fn corrupt(&self, offset: usize, word: u32) {
        assert!(offset.is_multiple_of(4));
        // SAFETY: the four bytes are inside the mapping and aligned. Both processes expect the
        // other one to write anywhere at any time.
        unsafe { self.at(offset, 4).cast::<u32>().write_volatile(word) };
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made by `map`; users of pointers into it keep the value.
        let done = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(done.is_ok(), "munmap of its own range");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_sealed_and_checked() {
        let memory = SharedMemory::create(8192).unwrap();
        let fd = || memory.as_fd().try_clone_to_owned().unwrap();
        for len in [0, 4096, 16384] {
            assert!(rustix::fs::ftruncate(&memory, len).is_err());
        }
        let other = SharedMemory::open(fd(), 8192).unwrap();
        assert_eq!(SharedMemory::open(fd(), 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
        memory.finish().unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&other, hole, 0, 4096).is_err());
        assert!(SharedMemory::open(fd(), 8192).is_err(), "no other process maps it");
        // SAFETY: both addresses are inside mappings of the same page.
        unsafe {
            memory.at(5, 1).write(7);
            assert_eq!(other.at(5, 1).read(), 7);
        }
    }

    #[test]
    fn memory_whose_size_may_change_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert_eq!(SharedMemory::open(fd, 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    #[should_panic(expected = "bytes 4096 to 4097 of 4096")]
    fn an_address_outside_panics() {
        SharedMemory::create(4096).unwrap().at(4096, 1);
    }
}
