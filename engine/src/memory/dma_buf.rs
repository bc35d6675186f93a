//! DMA buffers of other devices, mapped.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

/// File system of DMA buffers, as `fstatfs` names it (`DMA_BUF_MAGIC`).
const MAGIC: i64 = 0x444d_4142;
/// `DMA_BUF_IOCTL_SYNC`: `_IOW('b', 0, struct dma_buf_sync)`, one 64-bit word of flags.
const SYNC: libc::c_ulong = 0x4008_6200;
/// Reads and writes of the CPU (`DMA_BUF_SYNC_RW`) begin, or with [`END`] end.
const READ_WRITE: u64 = 3;
const END: u64 = 4;

/// Part of a DMA buffer, mapped until it is dropped. The CPU may access it in the meantime, which is what its
/// exporter is told.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    start: NonNull<libc::c_void>,
    span: usize,
    /// The first byte that was asked for, in the mapping.
    skip: usize,
}

// SAFETY: the mapping belongs to this value alone, and it gives out nothing but an address.
unsafe impl Send for DmaBuf {}
// SAFETY: as for `Send`.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Maps `len` bytes of `buffer` from `offset` on.
    ///
    /// # Errors
    /// `EINVAL` if it is no DMA buffer or the range leaves it; what its exporter says to being mapped.
    pub fn map(buffer: BorrowedFd<'_>, offset: u64, len: usize, write: bool) -> io::Result<Self> {
        const PAGE: u64 = 4096;
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let fd = buffer.try_clone_to_owned()?;
        let end = offset.checked_add(len as u64).ok_or_else(invalid)?;
        if len == 0 || !is_dma_buf(&fd)? || end > size(&fd)? {
            return Err(invalid());
        }
        let aligned = offset & !(PAGE - 1);
        let skip = usize::try_from(offset - aligned).expect("less than a page");
        let at = libc::off_t::try_from(aligned).map_err(|_| invalid())?;
        let span = len.checked_add(skip).ok_or_else(invalid)?;
        let write = if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            let rights = libc::PROT_READ | write;
            libc::mmap(ptr::null_mut(), span, rights, libc::MAP_SHARED, fd.as_raw_fd(), at)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start).ok_or_else(invalid)?;
        let mapped = Self { fd, start, span, skip };
        mapped.sync(READ_WRITE)?;
        Ok(mapped)
    }

    /// Address of the first byte that was asked for.
    pub fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64 + self.skip as u64
    }

    fn sync(&self, flags: u64) -> io::Result<()> {
        // SAFETY: the kernel reads the eight bytes of `flags`.
        let refused = unsafe { libc::ioctl(self.fd.as_raw_fd(), SYNC, &raw const flags) } != 0;
        if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        let _ = self.sync(READ_WRITE | END);
        // SAFETY: the mapping of `map`, which nothing refers to any more: the region was withdrawn before.
        unsafe { libc::munmap(self.start.as_ptr(), self.span) };
    }
}

fn is_dma_buf(fd: &OwnedFd) -> io::Result<bool> {
    // SAFETY: all bytes zero are a valid `statfs`, and the kernel writes one.
    let (refused, stat) = unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(fd.as_raw_fd(), &mut stat) != 0, stat)
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(stat.f_type == MAGIC) }
}

/// Bytes of a DMA buffer: where its end is.
fn size(fd: &OwnedFd) -> io::Result<u64> {
    // SAFETY: no pointers are involved.
    let end = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) };
    u64::try_from(end).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn other_files_are_no_dma_buffers() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = DmaBuf::map(file.as_fd(), 0, 4096, false).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
