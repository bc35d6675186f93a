//! Mapped DMA buffers of other devices.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use super::pages;

/// File system type of DMA buffers, as `fstatfs` returns it (`DMA_BUF_MAGIC`).
const MAGIC: i64 = 0x444d_4142;
/// `DMA_BUF_IOCTL_SYNC`: `_IOW('b', 0, struct dma_buf_sync)`, one 64-bit word of flags.
const SYNC: libc::c_ulong = 0x4008_6200;
/// Start of CPU reads and writes (`DMA_BUF_SYNC_RW`); with [`END`], their end.
const READ_WRITE: u64 = 3;
const END: u64 = 4;

/// A mapped part of a DMA buffer, unmapped on drop. While it is mapped the CPU may access it; the
/// exporter is informed of this.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    start: NonNull<libc::c_void>,
    span: usize,
    /// Offset of the requested first byte in the mapping.
    skip: usize,
}

// SAFETY: the mapping belongs to this value alone, and its methods return only an address.
unsafe impl Send for DmaBuf {}
// SAFETY: as for `Send`.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Maps `len` bytes of `buffer` from `offset` on.
    ///
    /// # Errors
    /// `EINVAL` if it is not a DMA buffer or the range exceeds it; otherwise the exporter's error.
    pub fn map(buffer: BorrowedFd<'_>, offset: u64, len: usize, write: bool) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let fd = buffer.try_clone_to_owned()?;
        let end = offset.checked_add(len as u64).ok_or_else(invalid)?;
        if len == 0 || !is_dma_buf(&fd)? || end > size(&fd)? {
            return Err(invalid());
        }
        let (aligned, _) = pages::from_page_start(offset, 0, pages::size());
        let skip = usize::try_from(offset - aligned).expect("less than a page");
        let at = libc::off_t::try_from(aligned).map_err(|_| invalid())?;
        let span = len.checked_add(skip).ok_or_else(invalid)?;
        let write = if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: the kernel chooses the address of the new mapping, so it replaces no other.
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

    /// Returns the address of the requested first byte.
    pub fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64 + self.skip as u64
    }

    fn sync(&self, flags: u64) -> io::Result<()> {
        // SAFETY: the kernel reads the 8 bytes of `flags`.
        let refused = unsafe { libc::ioctl(self.fd.as_raw_fd(), SYNC, &raw const flags) } != 0;
        if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        let _ = self.sync(READ_WRITE | END);
        // SAFETY: this is the mapping of `map`. Nothing refers to it any more: the region that held
        // this value was withdrawn, and every core has ended its turn, before the value is dropped.
        unsafe { libc::munmap(self.start.as_ptr(), self.span) };
    }
}

fn is_dma_buf(fd: &OwnedFd) -> io::Result<bool> {
    // SAFETY: `statfs` is valid with all bytes zero, and the kernel writes at most one `statfs`.
    let (refused, stat) = unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(fd.as_raw_fd(), &mut stat) != 0, stat)
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(stat.f_type == MAGIC) }
}

/// Returns the size of a DMA buffer in bytes.
fn size(fd: &OwnedFd) -> io::Result<u64> {
    // SAFETY: the call takes no pointers.
    let end = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) };
    u64::try_from(end).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_regular_file_is_not_accepted_as_a_dma_buffer() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = DmaBuf::map(file.as_fd(), 0, 4096, false).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
