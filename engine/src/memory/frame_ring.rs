//! A single-producer single-consumer ring of Ethernet frames in a [`Block`].
//!
//! Frames are written in place, published in batches and read in bursts. The ring connects the two
//! ends of a shared-memory port, and passes frames from one core to another. It is lossless: a full
//! ring returns no slot.
//!
//! # Layout
//! ```text
//! tail     frames published, mod 2^32        written by the producer
//! head     frames given back, mod 2^32       written by the consumer
//! flags    sleeping and gone, of both        written rarely
//! slots    { len: u32, priority: u8, joins: u8, padding, frame: slot_bytes }, each on a cache line
//!          of its own
//! ```
//! `tail`, `head` and `flags` are padded against false sharing. The ring holds no pointers.
//!
//! # Two processes
//! The halves may be in two processes that do not trust each other ([`RingShape::producer`],
//! [`RingShape::consumer`]). Each half checks the values that the other half wrote (indices,
//! lengths) before use: bad values lose frames, but never cause a memory error. The other process
//! may write to the memory at any time, so a half that does not trust it copies frames in and out
//! ([`FrameProducer::push`], [`FrameConsumer::copy`]) and makes no reference to them.
//!
//! # Sleeping
//! Each half may sleep on a descriptor: the consumer until a frame is published, the producer until
//! slots are given back. The half that goes to sleep sets its flag, fences, and reads the ring once
//! more. The other half moves its index, fences, and reads the flag. At least one of them reads the
//! other's store, so no wake-up is lost. A half whose partner is awake makes no system call.

use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::arena::{Arena, Block};
use super::bell::Bell;
use super::copy;
pub use super::frame_ring_error::FrameRingError;
use super::shared_memory::SharedMemory;
use crate::port::{Priority, RX_BURST};
use crate::sync::{AtomicU32, Handover, Ordering, fence};
use crate::wake::EventFd;

/// Alignment of slots, in bytes: a cache line.
const LINE: usize = 64;

/// Bytes in front of a frame in its slot; keeps the frame 16-byte aligned.
const SLOT_HEADER: usize = 16;

/// Maximum number of slots.
const SLOTS_MAX: usize = 1 << 20;

/// Maximum size of a slot, in bytes.
const SLOT_BYTES_MAX: usize = 1 << 20;

/// [`RX_BURST`] in the type of the ring's indices.
#[allow(clippy::cast_possible_truncation)] // 64
const BURST: u32 = RX_BURST as u32;

/// Makes a ring of `slots` frames of up to `slot_bytes` bytes each.
///
/// # Errors
/// [`FrameRingError::Shape`] unless `slots` is a power of two; otherwise the missing memory or
/// eventfd.
pub fn frame_ring(
    arena: &Arc<Arena>,
    slots: usize,
    slot_bytes: usize,
) -> Result<(FrameProducer, FrameConsumer), FrameRingError> {
    let shape = RingShape::new(slots, slot_bytes)?;
    let block = arena.alloc(shape.bytes(), align_of::<Control>())?;
    // SAFETY: the block has room for a `Control` and its alignment, and no half exists yet. (Zeros,
    // as in the memory of an arena; loom's atomics are more than a number.)
    unsafe { block.as_ptr().cast::<Control>().write(Control::default()) };
    let ring = Arc::new(Ring {
        start: block.as_ptr(),
        shape,
        handover: Handover::new(shape.slots),
        frames_published: new_bell()?,
        slots_given_back: new_bell()?,
        _memory: RingMemory::Block { _block: block },
    });
    Ok((FrameProducer::new(Arc::clone(&ring)), FrameConsumer::new(ring)))
}

/// Number and size of the slots of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingShape {
    slots: u32,
    stride: usize,
    slot_bytes: usize,
}

impl RingShape {
    /// A ring of `slots` frames of up to `slot_bytes` bytes each.
    ///
    /// # Errors
    /// [`FrameRingError::Shape`].
    pub fn new(slots: usize, slot_bytes: usize) -> Result<Self, FrameRingError> {
        let fits = slots.is_power_of_two()
            && slots <= SLOTS_MAX
            && (1..=SLOT_BYTES_MAX).contains(&slot_bytes);
        let count = u32::try_from(slots).ok().filter(|_| fits);
        let count = count.ok_or(FrameRingError::Shape { slots, slot_bytes })?;
        let stride = (SLOT_HEADER + slot_bytes).next_multiple_of(LINE);
        Ok(Self { slots: count, stride, slot_bytes })
    }

    /// Bytes of memory that the ring takes; a multiple of its alignment.
    pub fn bytes(&self) -> usize {
        size_of::<Control>() + self.slots as usize * self.stride
    }

    /// The half that writes, of a ring at `offset` of memory shared with the process of the other
    /// half. `bell`: this process' end of the bell between them. The memory is zeroed before the
    /// first half is made, and each half is made once.
    ///
    /// # Panics
    /// If the ring does not fit the memory, or is not aligned to [`RING_ALIGN`].
    pub fn producer(self, memory: &Arc<SharedMemory>, offset: usize, bell: &Bell) -> FrameProducer {
        FrameProducer::new(self.shared(memory, offset, bell))
    }

    /// The half that reads; as [`Self::producer`].
    ///
    /// # Panics
    /// As [`Self::producer`].
    pub fn consumer(self, memory: &Arc<SharedMemory>, offset: usize, bell: &Bell) -> FrameConsumer {
        FrameConsumer::new(self.shared(memory, offset, bell))
    }

    fn shared(self, memory: &Arc<SharedMemory>, offset: usize, bell: &Bell) -> Arc<Ring> {
        assert!(offset.is_multiple_of(RING_ALIGN), "a ring at {offset}");
        Arc::new(Ring {
            start: memory.at(offset, self.bytes()),
            shape: self,
            handover: Handover::new(self.slots),
            frames_published: bell.clone(),
            slots_given_back: bell.clone(),
            _memory: RingMemory::Shared { _memory: Arc::clone(memory) },
        })
    }
}

/// Alignment of a ring in shared memory, in bytes.
pub const RING_ALIGN: usize = align_of::<Control>();

/// The half that writes frames.
#[derive(Debug)]
pub struct FrameProducer {
    ring: Arc<Ring>,
    /// Frames committed.
    tail: u32,
    /// Frames published.
    published: u32,
    /// Frames given back, as last read.
    head: u32,
    /// [`FrameProducer::slot`] has returned a slot that is not committed yet.
    taken: bool,
}

impl FrameProducer {
    fn new(ring: Arc<Ring>) -> Self {
        Self { ring, tail: 0, published: 0, head: 0, taken: false }
    }

    /// Returns how many slots can be filled: exact below [`RX_BURST`], a lower bound above.
    pub fn room(&mut self) -> usize {
        // The consumer's cache line is read only if a burst might not fit otherwise.
        if self.known_room() < BURST {
            self.refresh();
        }
        self.known_room() as usize
    }

    /// Returns the share of slots, in per cent, whose frames the consumer has not given back.
    pub fn fill(&mut self) -> u8 {
        self.refresh();
        let slots = self.ring.shape.slots;
        let used = u64::from(slots - self.known_room());
        u8::try_from(used * 100 / u64::from(slots)).expect("at most 100")
    }

    /// Returns the next slot, to be filled and committed; `None` without room. Its content is
    /// arbitrary. Repeated calls without a commit return the same slot.
    pub fn slot(&mut self) -> Option<&mut [u8]> {
        if self.known_room() == 0 {
            self.refresh();
        }
        self.taken = self.known_room() > 0;
        if self.taken {
            self.ring.handover.write(self.tail);
        }
        // SAFETY: the producer owns the slots between `tail` and `head + slots`: the consumer has
        // given them back (Acquire in `refresh`) and reads none before it is published.
        self.taken.then(|| unsafe {
            let start = self.ring.frame(self.tail).as_ptr();
            slice::from_raw_parts_mut(start, self.ring.shape.slot_bytes)
        })
    }

    /// Commits the first `len` bytes of the last slot. `joins`: the frame may share a super-frame
    /// with the one before it. The consumer sees them after [`FrameProducer::publish`].
    ///
    /// # Panics
    /// If no slot was taken, or `len` exceeds the slot.
    pub fn commit(&mut self, len: usize, priority: Priority, joins: bool) {
        assert!(self.taken, "commit without a slot");
        let slot_bytes = self.ring.shape.slot_bytes;
        assert!(len <= slot_bytes, "commit of {len} bytes in a slot of {slot_bytes}");
        #[allow(clippy::cast_possible_truncation)] // At most SLOT_BYTES_MAX.
        let header =
            SlotHeader { len: len as u32, priority: priority.value(), joins: joins.into() };
        // SAFETY: the producer owns the slot, as in `slot`; its header is aligned and inside the
        // slot.
        unsafe { self.ring.header(self.tail).write(header) };
        self.tail = self.tail.wrapping_add(1);
        self.taken = false;
    }

    /// Copies the frame `first` + `second` into the next slot and commits it. Returns false without
    /// room, or if the frame is longer than a slot. Makes no reference to the memory of the ring.
    pub fn push(&mut self, first: &[u8], second: &[u8], priority: Priority) -> bool {
        if self.known_room() == 0 {
            self.refresh();
        }
        let len = first.len() + second.len();
        if self.known_room() == 0 || len > self.ring.shape.slot_bytes {
            return false;
        }
        let start = self.ring.frame(self.tail);
        self.ring.handover.write(self.tail);
        // SAFETY: the slot has at least `len` bytes, and no slice of this process overlaps it. The
        // other process may access them meanwhile, so the copies are atomic by words.
        unsafe {
            copy::store(start.as_ptr(), first);
            copy::store(start.add(first.len()).as_ptr(), second);
        }
        self.taken = true;
        self.commit(len, priority, false);
        true
    }

    /// Publishes all committed frames and wakes the consumer if it sleeps. Returns false if the
    /// consumer is gone, so that nothing will read them.
    pub fn publish(&mut self) -> bool {
        let control = self.ring.control();
        if self.published != self.tail {
            self.published = self.tail;
            control.tail.store(self.tail, Ordering::Release);
            wake(&control.flags.consumer_sleeps, &self.ring.frames_published);
        }
        control.flags.consumer_gone.load(Ordering::Acquire) == 0
    }

    /// Prepares to sleep until there is room. Returns false if there is room already: do not sleep.
    pub fn arm(&mut self) -> bool {
        self.ring.control().flags.producer_sleeps.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.refresh();
        let sleep = self.known_room() == 0;
        if !sleep {
            self.disarm();
        }
        sleep
    }

    /// A handle by which another thread reports that the other half's process has ended.
    pub fn handle(&self) -> RingHandle {
        RingHandle(Arc::clone(&self.ring))
    }

    /// Undoes [`FrameProducer::arm`].
    pub fn disarm(&mut self) {
        clear_sleep_flag(&self.ring.control().flags.producer_sleeps, &self.ring.slots_given_back);
    }

    /// Returns the descriptor that becomes readable when, after [`FrameProducer::arm`], there is
    /// room again or the consumer is gone.
    pub fn fd(&self) -> RawFd {
        self.ring.slots_given_back.fd()
    }

    /// Returns true if the consumer has written an impossible index.
    pub fn is_corrupt(&self) -> bool {
        let head = self.ring.control().head.load(Ordering::Relaxed);
        self.tail.wrapping_sub(head) > self.ring.shape.slots
    }

    fn known_room(&self) -> u32 {
        // If the other half reports more frames than there are slots, there is no room.
        self.ring.shape.slots.saturating_sub(self.tail.wrapping_sub(self.head))
    }

    fn refresh(&mut self) {
        let control = self.ring.control();
        let gone = control.flags.consumer_gone.load(Ordering::Acquire) != 0;
        // Without a consumer all slots are free: the sender continues, as with an unplugged cable.
        self.head = if gone { self.tail } else { control.head.load(Ordering::Acquire) };
    }
}

impl Drop for FrameProducer {
    fn drop(&mut self) {
        let flags = &self.ring.control().flags;
        flags.producer_gone.store(1, Ordering::Release);
        wake(&flags.consumer_sleeps, &self.ring.frames_published);
    }
}

/// The half that reads frames.
#[derive(Debug)]
pub struct FrameConsumer {
    ring: Arc<Ring>,
    /// Frames given back.
    head: u32,
    /// Frames of the current burst, starting at `head`.
    burst: u32,
    /// Frames published, as last read.
    tail: u32,
    /// Headers of the current burst. They are read once, so that no length changes after its check:
    /// a length is at most that of a slot.
    headers: [SlotHeader; RX_BURST],
    /// Bytes of all frames of the current burst.
    bytes: u64,
}

impl FrameConsumer {
    fn new(ring: Arc<Ring>) -> Self {
        let headers = [SlotHeader { len: 0, priority: 0, joins: 0 }; RX_BURST];
        Self { ring, head: 0, burst: 0, tail: 0, headers, bytes: 0 }
    }

    /// Gives the frames of the last burst back and takes the next ones, at most [`RX_BURST`].
    /// Returns how many [`FrameConsumer::frame`] can return.
    pub fn burst(&mut self) -> usize {
        self.give_back();
        if self.waiting() == 0 {
            self.refresh();
        }
        (self.burst, self.bytes) = (self.waiting().min(BURST), 0);
        let slot_bytes = u32::try_from(self.ring.shape.slot_bytes).expect("at most 2^20");
        for index in 0..self.burst {
            let header = self.ring.header(self.head.wrapping_add(index));
            self.ring.handover.read(self.head.wrapping_add(index));
            // SAFETY: the slot is published and not given back, so the producer does not access it
            // (Acquire in `refresh`). The header is aligned and inside the slot. Volatile: read
            // exactly once.
            let header = unsafe { header.read_volatile() };
            let len = header.len.min(slot_bytes);
            self.headers[index as usize] = SlotHeader { len, ..header };
            self.bytes += u64::from(len);
        }
        self.burst as usize
    }

    /// Returns frame `index` of the burst. A length that exceeds the slot, which no correct
    /// producer writes, is reduced to the slot's size.
    ///
    /// # Panics
    /// If `index` is not below the last result of [`FrameConsumer::burst`].
    pub fn frame(&self, index: usize) -> (&[u8], Priority) {
        let (start, len) = self.place(index);
        // SAFETY: the consumer owns the slot until `burst` gives it back, which needs `&mut self`;
        // `len` is at most the slot's size.
        let frame = unsafe { slice::from_raw_parts(start.as_ptr(), len) };
        (frame, Priority::new(self.headers[index].priority))
    }

    /// Copies frame `index` of the burst to `out`. Returns its length, its priority, and whether it
    /// may share a super-frame with the frame before; `None` if it is longer than `out`. Makes no
    /// reference to the memory of the ring.
    ///
    /// # Panics
    /// As [`FrameConsumer::frame`].
    pub fn copy(&self, index: usize, out: &mut [u8]) -> Option<(usize, Priority, bool)> {
        let (start, len) = self.place(index);
        let out = out.get_mut(..len)?;
        // SAFETY: the slot has at least `len` bytes, and no slice of this process overlaps it. The
        // other process may write them meanwhile, so the copy is atomic by words.
        unsafe { copy::load(start.as_ptr(), out) };
        let header = self.headers[index];
        Some((len, Priority::new(header.priority), header.joins != 0))
    }

    /// Length in bytes of frame `index` of the burst.
    ///
    /// # Panics
    /// As [`FrameConsumer::frame`].
    pub fn len(&self, index: usize) -> usize {
        self.place(index).1
    }

    /// Address and length of frame `index` of the burst.
    fn place(&self, index: usize) -> (NonNull<u8>, usize) {
        assert!(index < self.burst as usize, "frame {index} of a burst of {}", self.burst);
        #[allow(clippy::cast_possible_truncation)] // Below RX_BURST.
        let at = self.head.wrapping_add(index as u32);
        self.ring.handover.read(at);
        let start = self.ring.frame(at);
        (start, self.headers[index].len as usize)
    }

    /// Length in bytes of all frames of the burst.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the share of slots after the current burst, in per cent, that hold published frames.
    pub fn fill(&mut self) -> u8 {
        self.refresh();
        let after_burst = u64::from(self.waiting().saturating_sub(self.burst));
        let slots = u64::from(self.ring.shape.slots.saturating_sub(self.burst)).max(1);
        u8::try_from((after_burst * 100 / slots).min(100)).expect("at most 100")
    }

    /// Prepares to sleep until frames arrive; gives the last burst back. Returns false if frames
    /// are waiting: do not sleep.
    pub fn arm(&mut self) -> bool {
        self.give_back();
        self.ring.control().flags.consumer_sleeps.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.refresh();
        let sleep = self.waiting() == 0;
        if !sleep {
            self.disarm();
        }
        sleep
    }

    /// Undoes [`FrameConsumer::arm`].
    pub fn disarm(&mut self) {
        clear_sleep_flag(&self.ring.control().flags.consumer_sleeps, &self.ring.frames_published);
    }

    /// Returns the descriptor that becomes readable when, after [`FrameConsumer::arm`], frames
    /// arrive or the producer is gone.
    pub fn fd(&self) -> RawFd {
        self.ring.frames_published.fd()
    }

    /// As [`FrameProducer::handle`].
    pub fn handle(&self) -> RingHandle {
        RingHandle(Arc::clone(&self.ring))
    }

    /// Returns true if the producer is gone: published frames can still be read, and no more
    /// follow.
    pub fn producer_gone(&self) -> bool {
        self.ring.control().flags.producer_gone.load(Ordering::Acquire) != 0
    }

    /// Returns true if the producer has written an impossible index.
    pub fn is_corrupt(&self) -> bool {
        let tail = self.ring.control().tail.load(Ordering::Relaxed);
        tail.wrapping_sub(self.head) > self.ring.shape.slots
    }

    fn give_back(&mut self) {
        if self.burst > 0 {
            self.head = self.head.wrapping_add(self.burst);
            self.burst = 0;
            let control = self.ring.control();
            control.head.store(self.head, Ordering::Release);
            wake(&control.flags.producer_sleeps, &self.ring.slots_given_back);
        }
    }

    fn waiting(&self) -> u32 {
        let waiting = self.tail.wrapping_sub(self.head);
        // If the other half reports more frames than there are slots, there are none.
        if waiting > self.ring.shape.slots { 0 } else { waiting }
    }

    fn refresh(&mut self) {
        self.tail = self.ring.control().tail.load(Ordering::Acquire);
    }
}

impl Drop for FrameConsumer {
    fn drop(&mut self) {
        let flags = &self.ring.control().flags;
        flags.consumer_gone.store(1, Ordering::Release);
        wake(&flags.producer_sleeps, &self.ring.slots_given_back);
    }
}

/// A ring whose other half may end without a word.
#[derive(Debug)]
pub struct RingHandle(Arc<Ring>);

impl RingHandle {
    /// The process of the other half has ended.
    pub fn abandon(&self) {
        let flags = &self.0.control().flags;
        flags.consumer_gone.store(1, Ordering::Release);
        flags.producer_gone.store(1, Ordering::Release);
    }
}

/// The state that a half keeps about the ring; one value for both halves in one process.
#[derive(Debug)]
struct Ring {
    /// Address of the first byte, in `_memory`.
    start: NonNull<u8>,
    shape: RingShape,
    handover: Handover,
    /// Wakes the consumer.
    frames_published: Bell,
    /// Wakes the producer.
    slots_given_back: Bell,
    _memory: RingMemory,
}

// SAFETY: `start` is an address in `_memory`, which may be sent and lives as long as the ring. All
// accesses through it say why they are sound.
unsafe impl Send for Ring {}
// SAFETY: as for `Send`.
unsafe impl Sync for Ring {}

/// The owner of the memory of a ring.
#[derive(Debug)]
enum RingMemory {
    Block { _block: Block },
    Shared { _memory: Arc<SharedMemory> },
}

impl Ring {
    fn control(&self) -> &Control {
        // SAFETY: the memory has at least the size and the alignment of `Control` and lives as long
        // as `self`. `Control` consists of atomics, which may be shared, also with another process,
        // and are valid with any bits.
        unsafe { self.start.cast::<Control>().as_ref() }
    }

    fn header(&self, index: u32) -> NonNull<SlotHeader> {
        let slot = (index & (self.shape.slots - 1)) as usize;
        // SAFETY: the slot number is below `slots`, and the ring has `slots` slots of `stride`
        // bytes after `Control`.
        unsafe { self.start.add(size_of::<Control>() + slot * self.shape.stride).cast() }
    }

    fn frame(&self, index: u32) -> NonNull<u8> {
        // SAFETY: every slot has at least SLOT_HEADER + slot_bytes bytes.
        unsafe { self.header(index).cast::<u8>().add(SLOT_HEADER) }
    }
}

#[repr(C)]
#[derive(Debug, Default)]
struct Control {
    tail: CachePadded<AtomicU32>,
    head: CachePadded<AtomicU32>,
    flags: CachePadded<Flags>,
}

#[repr(C)]
#[derive(Debug, Default)]
struct Flags {
    consumer_sleeps: AtomicU32,
    producer_sleeps: AtomicU32,
    consumer_gone: AtomicU32,
    producer_gone: AtomicU32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SlotHeader {
    len: u32,
    priority: u8,
    joins: u8,
}

const _: () = assert!(
    size_of::<SlotHeader>() <= SLOT_HEADER && LINE.is_multiple_of(align_of::<SlotHeader>())
);

/// Wakes the other half if its `sleeps` flag is set. Called after the index has moved.
fn wake(sleeps: &AtomicU32, bell: &Bell) {
    fence(Ordering::SeqCst);
    if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
        bell.signal();
    }
}

/// Clears the `sleeps` flag and the bell.
fn clear_sleep_flag(sleeps: &AtomicU32, bell: &Bell) {
    sleeps.store(0, Ordering::Relaxed);
    bell.clear();
}

fn new_bell() -> Result<Bell, FrameRingError> {
    let event = EventFd::new().map_err(|error| FrameRingError::Eventfd {
        errno: error.raw_os_error().unwrap_or(libc::EMFILE),
    })?;
    Ok(Bell::Event(Arc::new(event)))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::arena::ArenaError;
    use crate::sys::poll_readable;

    fn ring(slots: usize, slot_bytes: usize) -> (FrameProducer, FrameConsumer) {
        frame_ring(&Arena::new(1 << 22).unwrap(), slots, slot_bytes).unwrap()
    }

    /// Sets the indices as if 2^32 - 5 frames had already passed.
    fn age((producer, consumer): (&mut FrameProducer, &mut FrameConsumer)) {
        let start = u32::MAX - 4;
        (producer.tail, producer.published, producer.head) = (start, start, start);
        (consumer.tail, consumer.head) = (start, start);
        producer.ring.control().tail.store(start, Ordering::Release);
        producer.ring.control().head.store(start, Ordering::Release);
    }

    fn send(producer: &mut FrameProducer, frame: &[u8], priority: u8) {
        producer.slot().unwrap()[..frame.len()].copy_from_slice(frame);
        producer.commit(frame.len(), Priority::new(priority), false);
    }

    /// Returns true if `fd` becomes readable within the time.
    fn readable(fd: RawFd, within: Duration) -> bool {
        let mut scratch = Vec::new();
        poll_readable(&[fd], &mut scratch, Some(within));
        scratch[0].revents != 0
    }

    const AT_ONCE: Duration = Duration::ZERO;
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn frames_appear_when_published_and_slots_return_with_the_next_burst() {
        let (mut producer, mut consumer) = ring(4, 100);
        send(&mut producer, b"one", 0);
        send(&mut producer, b"", 7);
        assert_eq!((consumer.burst(), producer.room()), (0, 2));
        assert!(producer.publish());
        assert_eq!(consumer.burst(), 2);
        assert_eq!(consumer.frame(0), (&b"one"[..], Priority::new(0)));
        assert_eq!(consumer.frame(1), (&b""[..], Priority::new(7)));
        assert_eq!(producer.room(), 2, "the burst is still being read");
        assert_eq!((consumer.burst(), producer.room()), (0, 4));
    }

    #[test]
    fn a_full_ring_gives_no_slot() {
        let (mut producer, mut consumer) = ring(2, 8);
        send(&mut producer, b"a", 0);
        send(&mut producer, b"b", 0);
        assert_eq!((producer.room(), producer.slot().is_none()), (0, true));
        producer.publish();
        assert_eq!(consumer.burst(), 2);
        assert!(producer.slot().is_none());
        consumer.burst();
        assert_eq!(producer.slot().unwrap().len(), 8);
    }

    #[test]
    fn a_frame_longer_than_a_slot_is_refused() {
        let (mut producer, mut consumer) = ring(2, 8);
        assert!(producer.push(b"12345", b"678", Priority::default()));
        assert!(!producer.push(b"12345", b"6789", Priority::default()), "9 bytes");
        assert!(!producer.push(&[0xff; 4000], &[], Priority::default()), "over all slots");
        assert!(producer.publish());
        assert_eq!(consumer.burst(), 1);
        assert_eq!(consumer.frame(0).0, b"12345678");
    }

    #[test]
    #[should_panic(expected = "commit without a slot")]
    fn commit_without_a_slot_panics() {
        ring(2, 8).0.commit(1, Priority::default(), false);
    }

    #[test]
    #[should_panic(expected = "commit of 9 bytes")]
    fn commit_of_more_than_a_slot_panics() {
        let (mut producer, _consumer) = ring(2, 8);
        producer.slot();
        producer.commit(9, Priority::default(), false);
    }

    #[test]
    #[should_panic(expected = "frame 1 of a burst of 1")]
    fn a_frame_beyond_the_burst_panics() {
        let (mut producer, mut consumer) = ring(2, 8);
        send(&mut producer, b"a", 0);
        producer.publish();
        consumer.burst();
        consumer.frame(1);
    }

    #[test]
    fn invalid_shapes_are_errors() {
        let arena = Arena::new(1 << 21).unwrap();
        for (slots, slot_bytes) in [(0, 1), (3, 1), (1 << 21, 1), (1, 0), (1, (1 << 20) + 1)] {
            let error = FrameRingError::Shape { slots, slot_bytes };
            assert_eq!(frame_ring(&arena, slots, slot_bytes).unwrap_err(), error);
        }
        let full = frame_ring(&arena, 1024, 4096).unwrap_err();
        assert!(matches!(full, FrameRingError::Memory(ArenaError::Full { .. })), "{full}");
    }

    #[test]
    fn a_sleeping_half_is_woken_and_an_awake_half_is_not() {
        let (mut producer, mut consumer) = ring(1, 8);
        assert!(consumer.arm());
        assert!(!readable(consumer.fd(), AT_ONCE));
        send(&mut producer, b"a", 0);
        producer.publish();
        assert!(readable(consumer.fd(), AT_ONCE));
        consumer.disarm();
        assert!(!readable(consumer.fd(), AT_ONCE));
        assert!(!consumer.arm(), "a frame is waiting");
        assert!(producer.arm());
        assert_eq!(consumer.burst(), 1);
        assert!(!readable(producer.fd(), AT_ONCE));
        assert!(consumer.arm(), "it gives the burst back");
        assert!(readable(producer.fd(), AT_ONCE));
        producer.disarm();
        assert!(!producer.arm(), "there is room");
        consumer.disarm();
        send(&mut producer, b"b", 0);
        producer.publish();
        assert!(!readable(consumer.fd(), AT_ONCE), "no thread sleeps");
    }

    #[test]
    fn dropping_one_half_wakes_the_other() {
        let (mut producer, mut consumer) = ring(2, 8);
        send(&mut producer, b"last", 0);
        producer.publish();
        consumer.burst();
        consumer.burst();
        assert!(consumer.arm() && !consumer.producer_gone());
        send(&mut producer, b"last", 0);
        producer.publish();
        drop(producer);
        assert!(readable(consumer.fd(), AT_ONCE) && consumer.producer_gone());
        assert_eq!(consumer.burst(), 1, "what was published can be read");

        let (mut producer, consumer) = ring(2, 8);
        send(&mut producer, b"a", 0);
        send(&mut producer, b"b", 0);
        assert!(producer.publish() && producer.arm());
        drop(consumer);
        assert!(readable(producer.fd(), AT_ONCE));
        assert_eq!(producer.room(), 2, "frames go nowhere, and there is room for them");
        send(&mut producer, b"c", 0);
        assert!(!producer.publish());
    }

    /// Values that a hostile process may write into shared memory.
    #[test]
    fn bad_values_of_the_other_half_stay_inside_the_ring() {
        let (mut producer, mut consumer) = ring(4, 100);
        send(&mut producer, b"x", 0);
        // SAFETY: the test has one thread; slot 0 is committed and not read yet.
        unsafe {
            producer.ring.header(0).write(SlotHeader { len: u32::MAX, priority: 0xff, joins: 0 })
        };
        producer.publish();
        assert_eq!(consumer.burst(), 1);
        assert_eq!((consumer.frame(0).0.len(), consumer.frame(0).1), (100, Priority::new(7)));
        producer.ring.control().tail.store(500, Ordering::Release);
        assert_eq!(consumer.burst(), 0, "500 frames are not in 4 slots");
        producer.ring.control().head.store(77, Ordering::Release);
        assert_eq!((producer.room(), producer.slot().is_none()), (0, true));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Compares with a queue: each committed frame comes out once, in order, unchanged, even
        /// where the indices wrap.
        #[test]
        fn behaves_like_a_queue(
            bits in 0..8_u32,
            steps in prop::collection::vec((0..3_u8, 0..200_usize), 1..300),
        ) {
            let slots = 1_usize << bits;
            let (mut producer, mut consumer) = ring(slots, 210);
            age((&mut producer, &mut consumer));
            let (mut committed, mut published) = (VecDeque::new(), VecDeque::new());
            let (mut reading, mut serial) = (0, 0_u8);
            for (step, number) in steps {
                match step {
                    0 => {
                        let room = slots - reading - published.len() - committed.len();
                        prop_assert!((room.min(RX_BURST)..=room).contains(&producer.room()));
                        prop_assert_eq!(producer.slot().is_some(), room > 0);
                        if room > 0 {
                            serial = serial.wrapping_add(1);
                            let frame = vec![serial; number];
                            send(&mut producer, &frame, serial & 7);
                            committed.push_back(frame);
                        }
                    }
                    1 => {
                        producer.publish();
                        published.append(&mut committed);
                    }
                    _ => {
                        reading = consumer.burst();
                        // It may return fewer frames than there are, but not none.
                        prop_assert!(reading <= published.len().min(RX_BURST));
                        prop_assert!(reading > 0 || published.is_empty());
                        for index in 0..reading {
                            let frame: Vec<u8> = published.pop_front().unwrap();
                            let priority = Priority::new(frame.first().copied().unwrap_or(0));
                            prop_assert_eq!(consumer.frame(index).0, &frame[..]);
                            prop_assert!(frame.is_empty() || consumer.frame(index).1 == priority);
                        }
                    }
                }
            }
        }
    }

    /// Two threads with a small ring that both sleep whenever possible: every frame arrives
    /// unchanged and in order, and no wake-up is lost.
    fn two_threads(frames: u32, sleepy: bool) {
        let (mut producer, mut consumer) = ring(16, 256);
        let writer = thread::spawn(move || {
            for serial in 0..frames {
                while producer.slot().is_none() {
                    producer.publish();
                    if !sleepy {
                        thread::yield_now();
                    } else if producer.arm() {
                        assert!(readable(producer.fd(), SOON), "wake-up of the producer lost");
                        producer.disarm();
                    }
                }
                let len = 4 + serial as usize % 250;
                let slot = producer.slot().unwrap();
                slot[..len].fill(serial.to_le_bytes()[0]);
                slot[..4].copy_from_slice(&serial.to_le_bytes());
                producer.commit(len, Priority::new(serial.to_le_bytes()[0]), false);
                if serial % 5 == 0 {
                    producer.publish();
                }
            }
            producer.publish();
        });
        let mut expected = 0_u32;
        while expected < frames {
            let burst = consumer.burst();
            for index in 0..burst {
                let (frame, priority) = consumer.frame(index);
                let low = expected.to_le_bytes()[0];
                assert_eq!(frame[..4], expected.to_le_bytes());
                assert_eq!(frame.len(), 4 + expected as usize % 250);
                assert!(frame[4..].iter().all(|&byte| byte == low));
                assert_eq!(priority, Priority::new(low));
                expected += 1;
            }
            if burst == 0 && !sleepy {
                thread::yield_now();
            } else if burst == 0 && consumer.arm() {
                assert!(readable(consumer.fd(), SOON), "wake-up of the consumer lost");
                consumer.disarm();
            }
        }
        writer.join().unwrap();
        assert_eq!(consumer.burst(), 0);
    }

    #[test]
    fn two_spinning_threads_exchange_frames() {
        two_threads(1_000_000, false);
    }

    #[test]
    fn two_sleeping_threads_exchange_frames() {
        two_threads(300_000, true);
    }

    /// Publishing and falling asleep at the same moment: the later one sees the other. Without
    /// either of the two fences this fails.
    #[test]
    fn no_wakeup_is_lost_when_both_sides_act_at_once() {
        const ROUNDS: u32 = 200_000;
        let (mut producer, mut consumer) = ring(2, 8);
        let arrived = Arc::new(AtomicU32::new(0));
        // Both threads leave the barrier at the same time, as far as possible on two cores.
        let barrier = |arrived: &AtomicU32, meeting: u32| {
            arrived.fetch_add(1, Ordering::SeqCst);
            let mut spins = 0_u32;
            while arrived.load(Ordering::Relaxed) < 2 * meeting {
                spins += 1;
                if spins.is_multiple_of(10_000) {
                    thread::yield_now(); // The other thread may have no core of its own.
                }
            }
            fence(Ordering::SeqCst);
        };
        let walk = |steps: u32| (0..steps).for_each(|step| _ = std::hint::black_box(step));
        let writer = thread::spawn({
            let arrived = Arc::clone(&arrived);
            move || {
                for round in 0..ROUNDS {
                    send(&mut producer, b"a", 0);
                    barrier(&arrived, 2 * round + 1);
                    walk(round / 97 % 97);
                    producer.publish();
                    barrier(&arrived, 2 * round + 2);
                }
            }
        });
        for round in 0..ROUNDS {
            barrier(&arrived, 2 * round + 1);
            walk(round % 97);
            let sleeps = consumer.arm();
            barrier(&arrived, 2 * round + 2);
            assert!(
                !sleeps || readable(consumer.fd(), AT_ONCE),
                "round {round}: sleeps beside a frame"
            );
            consumer.disarm();
            assert_eq!((consumer.burst(), consumer.burst()), (1, 0));
        }
        writer.join().unwrap();
    }
}
