//! Packet buffers: the layout of a UMEM and the ownership of its chunks.
//!
//! A UMEM is one mapping that consists of chunks of 4096 bytes. The first chunks belong to transmit
//! slots. The others circulate between the fill ring, the kernel and the receive ring. The kernel
//! reserves 256 bytes before the frame in every chunk, so a chunk holds 3840 bytes of a frame:
//!
//! ```text
//! slot of two chunks   |256| frame, first part    |256| tail        |
//!                      A                          B                 B + 4096
//! while it is written  |256| frame ...................... |         |
//! ```
//!
//! A slot is written contiguously from A across the start of B. If the frame is longer than 3840
//! bytes, [`TxSlots::commit`] moves the tail to its place in the second chunk.

use std::io;
use std::num::NonZeroU32;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};
use xsk_rs::{FrameDesc, Umem};

use super::error::AfXdpError;

/// Size of a chunk in bytes, the largest size that the kernel accepts.
pub(super) const CHUNK: usize = 4096;
/// Bytes that the kernel reserves at the start of each chunk.
const HEADROOM: usize = 256;
/// Bytes of a frame that one chunk holds.
pub(super) const CHUNK_DATA: usize = CHUNK - HEADROOM;
/// Chunks in a huge page of 2 MiB.
const HUGEPAGE_CHUNKS: u32 = 512;
/// Flag on every descriptor of a frame but the last (`XDP_PKT_CONTD`).
pub(super) const MORE: u32 = libc::XDP_PKT_CONTD;

/// The packet buffers of one queue.
#[derive(Debug)]
pub(super) struct Buffers {
    pub umem: Umem,
    /// The start of the mapping.
    base: NonNull<u8>,
    /// True if the buffers are in huge pages.
    pub hugepages: bool,
}

// SAFETY: `base` points into the mapping that `umem` owns, which is not bound to a thread.
unsafe impl Send for Buffers {}

/// Numbers of chunks of a queue, and the ring sizes that follow from them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Receive chunks; a power of two.
    pub rx_chunks: u32,
    /// Transmit slots; a power of two, or zero for a queue that only receives.
    pub tx_slots: u32,
    /// Chunks per transmit slot: 1 or 2.
    pub chunks_per_slot: u32,
}

impl Layout {
    /// Chunks of all transmit slots together.
    pub fn tx_chunks(self) -> u32 {
        self.tx_slots * self.chunks_per_slot
    }

    /// Entries of the fill ring.
    ///
    /// The kernel may show a frame in one ring before it has published in the other ring that the
    /// entry of the chunk is consumed. Therefore a ring that the port produces into has room for
    /// every chunk twice.
    pub fn fill_ring(self) -> u32 {
        2 * self.rx_chunks
    }

    /// Entries of the transmit ring: twice the chunks, as for the fill ring, and not zero.
    pub fn tx_ring(self) -> u32 {
        2 * self.completion_ring()
    }

    /// Entries of the completion ring.
    pub fn completion_ring(self) -> u32 {
        self.tx_chunks().max(1)
    }

    /// Size of the buffers in bytes.
    pub fn bytes(self) -> usize {
        (self.rx_chunks + self.tx_chunks()) as usize * CHUNK
    }
}

impl Buffers {
    /// Maps the buffers. Also returns the descriptors of the chunks, transmit chunks first.
    pub fn map(layout: Layout, hugepages: bool) -> Result<(Self, Vec<FrameDesc>), AfXdpError> {
        if hugepages && let Ok(mapped) = Self::map_in(layout, true) {
            return Ok(mapped);
        }
        Self::map_in(layout, false).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOBUFS) => AfXdpError::MemoryLock { bytes: layout.bytes() },
            Some(libc::ENOMEM) => AfXdpError::Memory { bytes: layout.bytes(), source },
            _ => AfXdpError::system("create an AF_XDP socket with its packet buffers", source),
        })
    }

    fn map_in(layout: Layout, hugepages: bool) -> io::Result<(Self, Vec<FrameDesc>)> {
        let ring = |size| QueueSize::new(size).expect("ring sizes are powers of two");
        let config = UmemConfig::builder()
            .frame_size(FrameSize::new(4096).expect("above the least"))
            .fill_queue_size(ring(layout.fill_ring()))
            .comp_queue_size(ring(layout.completion_ring()))
            .frame_headroom(0)
            .build()
            .expect("the headroom leaves room for data");
        let mut chunks = layout.rx_chunks + layout.tx_chunks();
        if hugepages {
            // Whole pages: otherwise the mapping could not be unmapped.
            chunks = chunks.next_multiple_of(HUGEPAGE_CHUNKS);
        }
        let count = NonZeroU32::new(chunks).expect("a queue has receive chunks");
        let (umem, mut descriptors) = Umem::new(config, count, hugepages).map_err(cause)?;
        descriptors.truncate((layout.rx_chunks + layout.tx_chunks()) as usize);

        // xsk-rs gives references only to single chunks, but a slot may span two. So slots are
        // addressed from the start of the mapping, whose provenance the foreign call that created
        // it has exposed.
        let mut first = descriptors[0];
        // SAFETY: `first` is a chunk of this UMEM, and nothing else has access to it yet.
        let data = unsafe { umem.data_mut(&mut first) }.contents_mut().as_mut_ptr().addr();
        let start = with_exposed_provenance_mut(data - HEADROOM);
        let base = NonNull::new(start).expect("a mapping is not at zero");
        Ok((Self { umem, base, hugepages }, descriptors))
    }

    /// The bytes of a received descriptor.
    ///
    /// # Safety
    /// `descriptor` came from the receive ring of this UMEM and was not returned to the kernel.
    pub unsafe fn received(&self, descriptor: &FrameDesc) -> &[u8] {
        // SAFETY: the kernel filled the chunk and does not write it until it is returned.
        unsafe { self.umem.data(descriptor) }.contents()
    }
}

/// The error of the operating system that caused an error of xsk-rs.
pub(super) fn cause(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    let source = error.source().and_then(|e| e.downcast_ref::<io::Error>());
    match source.and_then(io::Error::raw_os_error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error),
    }
}

/// The transmit slots of a queue and their states.
///
/// A slot is free, taken (being written; at most one slot), or in flight (the kernel holds its
/// chunks until the completion ring has returned all of them).
#[derive(Debug)]
pub(super) struct TxSlots {
    /// Descriptors of the transmit chunks, by chunk.
    descriptors: Box<[FrameDesc]>,
    chunks_per_slot: usize,
    /// Longest frame in bytes.
    frame_max: usize,
    /// Free slots. The slot freed last is used first, since it is still in the cache.
    free: Vec<usize>,
    taken: Option<usize>,
    /// Chunks that the kernel holds, by slot.
    in_flight: Box<[u8]>,
}

impl TxSlots {
    /// Creates free slots. `descriptors` are the first chunks of the UMEM; `chunks_per_slot` of
    /// them form a slot.
    pub fn new(descriptors: &[FrameDesc], chunks_per_slot: u32, frame_max: usize) -> Self {
        let chunks_per_slot = chunks_per_slot as usize;
        assert!(frame_max <= chunks_per_slot * CHUNK_DATA, "a slot holds the longest frame");
        let slots = descriptors.len() / chunks_per_slot;
        Self {
            descriptors: descriptors.into(),
            chunks_per_slot,
            frame_max,
            free: (0..slots).rev().collect(),
            taken: None,
            in_flight: vec![0; slots].into(),
        }
    }

    /// Number of slots that [`TxSlots::take`] can give.
    pub fn room(&self) -> usize {
        self.free.len() + usize::from(self.taken.is_some())
    }

    /// Returns true if few slots are free, so that completions should be collected.
    pub fn is_low(&self) -> bool {
        self.free.len() * 4 < self.in_flight.len()
    }

    /// The taken slot; takes a free one first if none is taken.
    pub fn take(&mut self, buffers: &Buffers) -> Option<&mut [u8]> {
        if self.taken.is_none() {
            self.taken = self.free.pop();
        }
        let start = self.taken? * self.chunks_per_slot * CHUNK + HEADROOM;
        // SAFETY: the kernel does not hold the chunks of the slot, no other reference to them
        // exists, and `frame_max` bytes after the headroom are within them (see `new`).
        Some(unsafe {
            std::slice::from_raw_parts_mut(buffers.base.add(start).as_ptr(), self.frame_max)
        })
    }

    /// Puts the taken slot in flight. Returns the descriptors to submit for its first `len` bytes.
    ///
    /// # Panics
    /// If no slot is taken or `len` is zero or more than a slot holds.
    pub fn commit(&mut self, buffers: &Buffers, len: usize) -> &[FrameDesc] {
        assert!(
            (1..=self.frame_max).contains(&len),
            "a frame of {len} bytes for a slot of {}",
            self.frame_max
        );
        let slot = self.taken.take().expect("a slot was taken");
        let first = slot * self.chunks_per_slot;
        let parts = len.div_ceil(CHUNK_DATA);
        if parts == 2 {
            // SAFETY: both ranges are in the second chunk of the slot, which the kernel does not
            // hold.
            unsafe {
                let second = buffers.base.add((first + 1) * CHUNK);
                second.copy_to(second.add(HEADROOM), len - CHUNK_DATA);
            }
        }
        let submitted = &mut self.descriptors[first..first + parts];
        for (part, descriptor) in submitted.iter_mut().enumerate() {
            let left = len - part * CHUNK_DATA;
            // SAFETY: the chunk is in this UMEM and no reference to it exists; only its length is
            // set.
            let mut data = unsafe { buffers.umem.data_mut(descriptor) };
            data.cursor().set_pos(left.min(CHUNK_DATA));
            descriptor.set_options(if left > CHUNK_DATA { MORE } else { 0 });
        }
        self.in_flight[slot] = u8::try_from(parts).expect("one or two");
        submitted
    }

    /// Records that the kernel has returned the chunk of `completed`.
    pub fn complete(&mut self, completed: &FrameDesc) {
        let slot = completed.addr() / CHUNK / self.chunks_per_slot;
        let left = &mut self.in_flight[slot];
        *left = left.checked_sub(1).expect("the kernel returns what it was given");
        if *left == 0 {
            self.free.push(slot);
        }
    }
}
