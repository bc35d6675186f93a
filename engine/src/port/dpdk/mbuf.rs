//! Packet buffers: DPDK's mbufs and the pool they come from.

use std::ffi::CString;
use std::io;
use std::ptr::NonNull;

use dpdk_sys::{dpdk_frame, rte_mempool};

use super::error::DpdkError;
use crate::port::contract::RX_BURST;

/// Most frames that one call into DPDK moves (`shim.c`).
pub(super) const BURST: usize = RX_BURST;

/// A pool of buffers of one size. Whoever drops it has freed them all and closed the device that has some.
#[derive(Debug)]
pub(super) struct Pool {
    raw: NonNull<rte_mempool>,
    /// Bytes that a buffer holds behind its headroom.
    room: usize,
}

// SAFETY: DPDK's pools may be used by any thread.
unsafe impl Send for Pool {}
// SAFETY: as above; `Pool` has no state of its own that changes.
unsafe impl Sync for Pool {}

impl Pool {
    /// `count` buffers of `room` bytes near the NUMA node `socket`.
    pub fn create(name: &str, count: u32, room: u16, socket: i32) -> Result<Self, DpdkError> {
        let name = CString::new(name).expect("a name without zero bytes");
        let headroom = u16::try_from(dpdk_sys::RTE_PKTMBUF_HEADROOM).expect("128 bytes");
        // SAFETY: the name lives as long as the call.
        let raw = unsafe {
            dpdk_sys::rte_pktmbuf_pool_create(name.as_ptr(), count, 0, 0, room + headroom, socket)
        };
        NonNull::new(raw).map(|raw| Self { raw, room: room.into() }).ok_or_else(|| {
            // SAFETY: reads a number of this thread.
            let source = io::Error::from_raw_os_error(unsafe { dpdk_sys::dpdk_errno() });
            DpdkError::Memory { buffers: count, bytes: room.into(), source }
        })
    }

    pub fn as_ptr(&self) -> *mut rte_mempool {
        self.raw.as_ptr()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: nothing refers to its buffers any more: see above.
        unsafe { dpdk_sys::rte_mempool_free(self.raw.as_ptr()) };
    }
}

/// Buffers that belong to us and to nobody else, each with a frame; freed when dropped.
#[derive(Debug)]
pub(super) struct Frames {
    frames: Vec<dpdk_frame>,
}

// SAFETY: the buffers are ours alone, and DPDK lets any thread use or free them.
unsafe impl Send for Frames {}

impl Frames {
    /// None, and room for `capacity`: it never allocates for fewer.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { frames: Vec::with_capacity(capacity) }
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Gets `count` buffers of `pool`, at most [`BURST`], or none.
    pub fn allocate(&mut self, pool: &Pool, count: usize) {
        let count = count.min(BURST).min(self.frames.capacity() - self.frames.len());
        let number = u16::try_from(count).expect("a burst");
        // SAFETY: the vector has room for `count` more; all are written if the call succeeds.
        unsafe {
            let end = self.frames.as_mut_ptr().add(self.frames.len());
            if dpdk_sys::dpdk_alloc(pool.as_ptr(), end, number) == 0 {
                self.frames.set_len(self.frames.len() + count);
            }
        }
    }

    /// Frees the buffers it has and takes what came to a queue. Adds frames that were too long to `refused`.
    pub fn receive(&mut self, port: u16, queue: u16, refused: &mut u64) {
        self.clear();
        let most = u16::try_from(self.frames.capacity().min(BURST)).expect("a burst");
        // SAFETY: the vector is empty and has room for `most`; the call says how many it wrote. The port is
        // started, and its queue is used by the holder of this core's token only.
        unsafe {
            let start = self.frames.as_mut_ptr();
            let count = dpdk_sys::dpdk_rx_burst(port, queue, start, most, refused);
            self.frames.set_len(count.into());
        }
    }

    /// Offers the first frames, a burst at most, to a queue; those taken are no longer ours. Returns how many.
    pub fn transmit(&mut self, port: u16, queue: u16) -> usize {
        let count = u16::try_from(self.frames.len().min(BURST)).expect("a burst");
        // SAFETY: the first `count` frames are ours and of the lengths noted, all within their buffers. The
        // port is started, and its queue is used by the holder of this core's token only.
        let taken = unsafe { dpdk_sys::dpdk_tx_burst(port, queue, self.frames.as_ptr(), count) };
        self.frames.drain(..usize::from(taken));
        taken.into()
    }

    /// The frame at `index`.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let frame = &self.frames[index];
        // SAFETY: DPDK says that so many bytes at `data` are the frame's, and the buffer is ours.
        unsafe { std::slice::from_raw_parts(frame.data, frame.len as usize) }
    }

    /// The buffer of the last frame, which came from `pool`: all that it holds.
    pub fn last_buffer(&mut self, pool: &Pool) -> Option<&mut [u8]> {
        let frame = self.frames.last_mut()?;
        // SAFETY: a new buffer of `pool` holds `room` bytes behind its headroom, where `data` points. They were
        // mapped by DPDK, hence have some value.
        Some(unsafe { std::slice::from_raw_parts_mut(frame.data, pool.room) })
    }

    /// Moves the last frame to `to`, `len` bytes long.
    pub fn move_last(&mut self, to: &mut Self, len: usize) {
        let mut frame = self.frames.pop().expect("a frame");
        frame.len = u32::try_from(len).expect("a frame's length");
        to.frames.push(frame);
    }

    /// Lets two frames change places.
    pub fn swap(&mut self, a: usize, b: usize) {
        self.frames.swap(a, b);
    }

    /// Frees all.
    pub fn clear(&mut self) {
        let count = u16::try_from(self.frames.len()).expect("a few hundred");
        // SAFETY: the buffers are ours, and forgotten after this.
        unsafe { dpdk_sys::dpdk_free(self.frames.as_mut_ptr(), count) };
        self.frames.clear();
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.clear();
    }
}
