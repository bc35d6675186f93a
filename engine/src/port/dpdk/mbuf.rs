//! Packet buffers: the mbufs of DPDK and their pool.

use std::ffi::CString;
use std::io;
use std::ptr::NonNull;

use dpdk_sys::{dpdk_frame, rte_mempool};

use super::error::DpdkError;
use crate::port::contract::RX_BURST;

/// Maximum number of frames that one call of DPDK moves (`shim.c`).
pub(super) const BURST: usize = RX_BURST;

/// A pool of buffers of one size. Before it is dropped, all its buffers must be freed and the
/// device that holds some must be closed.
#[derive(Debug)]
pub(super) struct Pool {
    raw: NonNull<rte_mempool>,
    /// Bytes of a buffer after its headroom.
    room: usize,
}

// SAFETY: pools of DPDK may be used by any thread.
unsafe impl Send for Pool {}
// SAFETY: as above; `Pool` itself is immutable.
unsafe impl Sync for Pool {}

impl Pool {
    /// Creates a pool of `count` buffers of `room` bytes on the NUMA node `socket`.
    pub fn create(name: &str, count: u32, room: u16, socket: i32) -> Result<Self, DpdkError> {
        let name = CString::new(name).expect("a name without zero bytes");
        let headroom = u16::try_from(dpdk_sys::RTE_PKTMBUF_HEADROOM).expect("128 bytes");
        // SAFETY: the name outlives the call.
        let raw = unsafe {
            dpdk_sys::rte_pktmbuf_pool_create(name.as_ptr(), count, 0, 0, room + headroom, socket)
        };
        NonNull::new(raw).map(|raw| Self { raw, room: room.into() }).ok_or_else(|| {
            // SAFETY: the call reads a number of this thread.
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
        // SAFETY: no buffer of the pool is in use any more; see the documentation of the type.
        unsafe { dpdk_sys::rte_mempool_free(self.raw.as_ptr()) };
    }
}

/// Buffers owned by this value, each with a frame. They are freed when dropped.
#[derive(Debug)]
pub(super) struct Frames {
    frames: Vec<dpdk_frame>,
}

// SAFETY: this value owns the buffers, and DPDK lets any thread use or free them.
unsafe impl Send for Frames {}

impl Frames {
    /// Creates an empty list with room for `capacity` frames, which are added without allocation.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { frames: Vec::with_capacity(capacity) }
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds `count` buffers of `pool`, at most [`BURST`]; adds none if the pool has too few.
    pub fn allocate(&mut self, pool: &Pool, count: usize) {
        let count = count.min(BURST).min(self.frames.capacity() - self.frames.len());
        let number = u16::try_from(count).expect("a burst");
        // SAFETY: the vector has room for `count` more entries; a successful call writes all of
        // them.
        unsafe {
            let end = self.frames.as_mut_ptr().add(self.frames.len());
            if dpdk_sys::dpdk_alloc(pool.as_ptr(), end, number) == 0 {
                self.frames.set_len(self.frames.len() + count);
            }
        }
    }

    /// Frees the current buffers and receives a burst from a queue. Adds the number of frames that
    /// were too long to `refused`.
    pub fn receive(&mut self, port: u16, queue: u16, refused: &mut u64) {
        self.clear();
        let most = u16::try_from(self.frames.capacity().min(BURST)).expect("a burst");
        // SAFETY: the vector is empty and has room for `most` entries; the call returns how many it
        // wrote. The port is started, and only the holder of this core's token uses the queue.
        unsafe {
            let start = self.frames.as_mut_ptr();
            let count = dpdk_sys::dpdk_rx_burst(port, queue, start, most, refused);
            self.frames.set_len(count.into());
        }
    }

    /// Offers the first frames, at most one burst, to a queue. The device owns the frames that it
    /// takes. Returns their number.
    pub fn transmit(&mut self, port: u16, queue: u16) -> usize {
        let count = u16::try_from(self.frames.len().min(BURST)).expect("a burst");
        // SAFETY: this value owns the first `count` frames, and their lengths are within their
        // buffers. The port is started, and only the holder of this core's token uses the queue.
        let taken = unsafe { dpdk_sys::dpdk_tx_burst(port, queue, self.frames.as_ptr(), count) };
        self.frames.drain(..usize::from(taken));
        taken.into()
    }

    /// The frame at `index`.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let frame = &self.frames[index];
        // SAFETY: DPDK reports that the frame has `len` bytes at `data`; this value owns the
        // buffer.
        unsafe { std::slice::from_raw_parts(frame.data, frame.len as usize) }
    }

    /// The complete buffer of the last frame, which came from `pool`.
    pub fn last_buffer(&mut self, pool: &Pool) -> Option<&mut [u8]> {
        let frame = self.frames.last_mut()?;
        // SAFETY: a new buffer of `pool` has `room` bytes after its headroom, where `data` points.
        // DPDK mapped them, so they are initialised.
        Some(unsafe { std::slice::from_raw_parts_mut(frame.data, pool.room) })
    }

    /// Moves the last frame to `to`, `len` bytes long.
    pub fn move_last(&mut self, to: &mut Self, len: usize) {
        let mut frame = self.frames.pop().expect("a frame");
        frame.len = u32::try_from(len).expect("a frame's length");
        to.frames.push(frame);
    }

    /// Swaps two frames.
    pub fn swap(&mut self, a: usize, b: usize) {
        self.frames.swap(a, b);
    }

    /// Frees all buffers.
    pub fn clear(&mut self) {
        let count = u16::try_from(self.frames.len()).expect("a few hundred");
        // SAFETY: this value owns the buffers and forgets them after the call.
        unsafe { dpdk_sys::dpdk_free(self.frames.as_mut_ptr(), count) };
        self.frames.clear();
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.clear();
    }
}
