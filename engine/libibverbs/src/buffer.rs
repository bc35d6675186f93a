//! Buffers that the library allocates for the program: `ibv_alloc_buf`. Their memory is ordinary.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use libc::size_t;

use crate::abi::{ibv_buf, ibv_pd};
use crate::domain::{self, Pd};
use crate::errno;
use crate::object::{self, Base, Object, Release, Use};

/// A buffer. Programs know only its address.
#[repr(C)]
pub struct Buf {
    base: Base,
    pd: Use<Pd>,
    start: NonNull<c_void>,
    len: size_t,
}

// SAFETY: the mapping belongs to this value alone; the program may use it from every thread.
unsafe impl Send for Buf {}
// SAFETY: as for `Send`.
unsafe impl Sync for Buf {}

// SAFETY: the program's pointer is only an address: the memory behind it is not read, and buffers
// are not passed to `borrow`.
unsafe impl Object for Buf {
    type Abi = ibv_buf;

    fn base(&self) -> &Base {
        &self.base
    }

    fn release_uses(&self) {
        self.pd.release();
    }

    fn abi(&self) -> *mut ibv_buf {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

impl Buf {
    fn new(live: Arc<Pd>, len: size_t) -> Result<Arc<Self>, c_int> {
        if len == 0 {
            return Err(libc::EINVAL);
        }
        let pd = Use::new(live)?;
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses the address of the new mapping, so it replaces no other.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(errno::last());
        }
        let start = NonNull::new(start).ok_or(libc::ENOMEM)?;
        Ok(Arc::new(Self { base: Base::new(0, 0), pd, start, len }))
    }

    /// Checks that `len` bytes from `addr` on are in the buffer, and that `pd` allocated it.
    ///
    /// # Errors
    /// EINVAL otherwise.
    pub fn check(&self, pd: *mut ibv_pd, addr: *mut c_void, len: size_t) -> Result<(), c_int> {
        let offset = addr.addr().checked_sub(self.start.addr().get());
        let fits =
            offset.and_then(|offset| offset.checked_add(len)).is_some_and(|end| end <= self.len);
        if fits && self.pd.abi() == pd { Ok(()) } else { Err(libc::EINVAL) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: this is the mapping of `new`. The program has freed the buffer, and no region of
        // it is registered: a region refers to its buffer.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: size_t,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    match domain::live(pd).and_then(|live| Buf::new(live, size)) {
        Ok(made) => {
            let start = made.start.as_ptr();
            // SAFETY: the program passes a writable pointer.
            unsafe { buf.write(object::give(made)) };
            start
        }
        Err(code) => errno::fail(code),
    }
}

/// The memory stays until the last region of the buffer is deregistered.
#[unsafe(no_mangle)]
extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    match object::destroy::<Buf>(buf, |_| Ok(())) {
        Ok(destroyed) => drop(destroyed.finish()),
        Err(code) => errno::set(code),
    }
}

/// Fails: ordinary memory has no DMA buffer behind it.
#[unsafe(no_mangle)]
extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    errno::set(object::live::<Buf>(buf).err().unwrap_or(libc::ENODATA));
    -1
}
