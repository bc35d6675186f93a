//! Work queues: single-producer, single-consumer rings of work requests in the arena.
//!
//! The program holds the [`WorkProducer`], the core the [`WorkConsumer`]. A slot is a fixed part
//! `T` followed by room for scatter/gather entries or inline data. The producer owns the slots from
//! `tail` to `head + capacity`, the consumer those from `head` to `tail`. Each index is written by
//! one side only, with release order. The consumer reads `tail` again only when it looks for a
//! request beyond the last one that it knows of.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use feroce_wire::Key;

use crossbeam_utils::CachePadded;

use super::arena::{Arena, ArenaError, Block};
use crate::sync::{AtomicU32, Handover, Ordering};

/// A scatter/gather entry: `length` bytes at `addr` of the region `lkey`, as `ibv_sge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes. Zero is allowed; no byte is accessed then.
    pub length: u32,
    /// Key of the region.
    pub lkey: Key,
}

#[derive(Debug)]
struct Ring {
    block: Block,
    capacity: u32,
    stride: usize,
    /// Bytes of the fixed part, rounded up to the alignment of [`Sge`].
    fixed: usize,
    head: CachePadded<AtomicU32>,
    tail: CachePadded<AtomicU32>,
    slots: Handover,
}

impl Ring {
    #[inline]
    fn slot(&self, index: u32) -> NonNull<u8> {
        let at = (index & (self.capacity - 1)) as usize * self.stride;
        debug_assert!(at + self.stride <= self.block.len());
        // SAFETY: the block holds `capacity` slots of `stride` bytes, and the masked index is below
        // `capacity`.
        unsafe { self.block.as_ptr().add(at) }
    }
}

/// The program's end of a work queue of requests `T`. It may move to another thread if `T` may:
/// requests move with the ring.
#[derive(Debug)]
pub struct WorkProducer<T> {
    ring: Arc<Ring>,
    _requests: PhantomData<T>,
}

/// The core's end of a work queue of requests `T`. It may move to another thread if `T` may.
#[derive(Debug)]
pub struct WorkConsumer<T> {
    ring: Arc<Ring>,
    /// The ring's head, which only this end moves.
    head: u32,
    /// The ring's tail, as last read.
    tail: Cell<u32>,
    _requests: PhantomData<T>,
}

/// A request in the ring, with its scatter/gather entries or inline data.
#[derive(Debug, Clone, Copy)]
pub struct Posted<'a, T> {
    slot: NonNull<u8>,
    ring: &'a Ring,
    _request: PhantomData<&'a T>,
}

impl<T> Deref for Posted<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the producer has written a `T` at the front of the slot, which the consumer owns
        // while this value borrows it.
        unsafe { self.slot.cast().as_ref() }
    }
}

/// A request in the ring that the core can update. It borrows the consumer exclusively.
#[derive(Debug)]
pub struct PostedMut<'a, T>(Posted<'a, T>);

impl<T> PostedMut<'_, T> {
    /// The request, to be read.
    #[inline]
    pub fn posted(&self) -> Posted<'_, T> {
        let Posted { slot, ring, _request } = self.0;
        Posted { slot, ring, _request }
    }
}

impl<T> Deref for PostedMut<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for PostedMut<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `Posted::deref`. The value borrows the consumer exclusively, and its other
        // views borrow it, so no other reference to the request exists.
        unsafe { self.0.slot.cast().as_mut() }
    }
}

impl<'a, T> Posted<'a, T> {
    /// Returns the first `count` scatter/gather entries.
    ///
    /// # Panics
    /// If the slot has no room for `count` entries.
    #[inline]
    pub fn sges(&self, count: usize) -> &'a [Sge] {
        let room = self.extra(count * size_of::<Sge>());
        // SAFETY: the consumer owns the slot, and `extra` checked the range. The producer wrote the
        // entries, or the bytes are arena memory, which is initialised, and every bit pattern is a
        // valid `Sge`.
        unsafe { slice::from_raw_parts(room.cast::<Sge>().as_ptr(), count) }
    }

    /// Returns the `len` inline bytes.
    ///
    /// # Panics
    /// If the slot has no room for `len` bytes.
    #[inline]
    pub fn inline_data(&self, len: usize) -> &'a [u8] {
        let room = self.extra(len);
        // SAFETY: as in `sges`; every bit pattern is a valid `u8`.
        unsafe { slice::from_raw_parts(room.as_ptr(), len) }
    }

    #[inline]
    fn extra(&self, len: usize) -> NonNull<u8> {
        let ring = self.ring;
        assert!(ring.fixed + len <= ring.stride, "more than a slot holds");
        // SAFETY: the assertion keeps the offset inside the slot.
        unsafe { self.slot.add(ring.fixed) }
    }
}

/// Makes a work queue of at least `requests` slots, each with room for `extra` bytes of entries or
/// inline data. The capacity is rounded up to a power of two.
///
/// # Errors
/// [`ArenaError`] if the arena cannot hold it.
pub fn work_ring<T: Copy>(
    arena: &Arc<Arena>,
    requests: u32,
    extra: usize,
) -> Result<(WorkProducer<T>, WorkConsumer<T>), ArenaError> {
    assert!(align_of::<T>() <= 16, "slots are 16-byte aligned");
    let capacity = requests.max(1).next_power_of_two();
    let fixed = size_of::<T>().next_multiple_of(align_of::<Sge>());
    let stride = (fixed + extra).next_multiple_of(16);
    let block = arena.alloc(capacity as usize * stride, 64)?;
    let index = || CachePadded::new(AtomicU32::new(0));
    let (head, tail, slots) = (index(), index(), Handover::new(capacity));
    let ring = Arc::new(Ring { block, capacity, stride, fixed, head, tail, slots });
    let producer = WorkProducer { ring: Arc::clone(&ring), _requests: PhantomData };
    Ok((producer, WorkConsumer { ring, head: 0, tail: Cell::new(0), _requests: PhantomData }))
}

impl<T: Copy> WorkProducer<T> {
    /// Returns the number of slots.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity
    }

    /// Returns the number of requests posted and not yet retired by the core.
    pub fn len(&self) -> u32 {
        let tail = self.ring.tail.load(Ordering::Relaxed);
        tail.wrapping_sub(self.ring.head.load(Ordering::Acquire))
    }

    /// Returns true if no request is posted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `request` with its scatter/gather entries. Returns false if the ring is full.
    ///
    /// # Panics
    /// If the entries do not fit the slot.
    pub fn push(&mut self, request: &T, sges: &[Sge]) -> bool {
        self.push_with(request, size_of_val(sges), |room| {
            // SAFETY: `push_with` passes `size_of_val(sges)` bytes that are aligned for `Sge` and
            // owned by this side.
            unsafe {
                room.cast::<Sge>().copy_from_nonoverlapping(NonNull::from(sges).cast(), sges.len())
            };
        })
    }

    /// Appends `request` with inline data instead of entries. Returns false if the ring is full.
    ///
    /// # Panics
    /// If the data does not fit the slot.
    pub fn push_inline(&mut self, request: &T, parts: &[&[u8]]) -> bool {
        let len = parts.iter().map(|part| part.len()).sum();
        self.push_with(request, len, |mut room| {
            for part in parts {
                // SAFETY: `push_with` passes `len` bytes, the length of all parts, owned by this
                // side.
                unsafe {
                    room.copy_from_nonoverlapping(NonNull::from(*part).cast(), part.len());
                    room = room.add(part.len());
                }
            }
        })
    }

    fn push_with(&mut self, request: &T, extra: usize, fill: impl FnOnce(NonNull<u8>)) -> bool {
        let ring = &*self.ring;
        assert!(ring.fixed + extra <= ring.stride, "request larger than its slot");
        let tail = ring.tail.load(Ordering::Relaxed);
        if tail.wrapping_sub(ring.head.load(Ordering::Acquire)) >= ring.capacity {
            return false;
        }
        let slot = ring.slot(tail);
        ring.slots.write(tail);
        // SAFETY: this side owns the slot at `tail` until the store below. The slot has `fixed`
        // bytes for a `T` and `extra` bytes after them (asserted above), and is 16-byte aligned.
        unsafe {
            slot.cast::<T>().write(*request);
            fill(slot.add(ring.fixed));
        }
        ring.tail.store(tail.wrapping_add(1), Ordering::Release);
        true
    }
}

impl<T: Copy> WorkConsumer<T> {
    /// Returns the number of slots.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity
    }

    /// Returns the counter of the oldest request. Counters run freely and wrap at 2^32.
    #[inline]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Returns the counter after the newest request.
    #[inline]
    pub fn tail(&self) -> u32 {
        let tail = self.ring.tail.load(Ordering::Acquire);
        self.tail.set(tail);
        tail
    }

    /// Returns the number of requests in the ring.
    #[inline]
    pub fn len(&self) -> u32 {
        self.tail().wrapping_sub(self.head)
    }

    /// Returns true if the ring is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.holds(self.head)
    }

    /// Returns true if the request with counter `index` is in the ring.
    #[inline]
    fn holds(&self, index: u32) -> bool {
        let at = index.wrapping_sub(self.head);
        at < self.tail.get().wrapping_sub(self.head) || at < self.len()
    }

    /// Returns the request with counter `index` and what was posted with it, if it is in the ring.
    #[inline(always)] // A few instructions, several times per packet.
    pub fn posted(&self, index: u32) -> Option<Posted<'_, T>> {
        let ring = &*self.ring;
        if !self.holds(index) {
            return None;
        }
        ring.slots.read(index);
        // The slot is between head and tail, so the producer has written it and the consumer owns
        // it.
        Some(Posted { slot: ring.slot(index), ring, _request: PhantomData })
    }

    /// Returns the request with counter `index`, if it is in the ring.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        // SAFETY: as in `Posted::deref`; the borrow of `self` keeps the request in the ring.
        self.posted(index).map(|posted| unsafe { posted.slot.cast().as_ref() })
    }

    /// As [`Self::posted`], so that the core can update the request.
    #[inline(always)] // As `posted`.
    pub fn posted_mut(&mut self, index: u32) -> Option<PostedMut<'_, T>> {
        let slot = self.posted(index)?.slot;
        self.ring.slots.write(index);
        Some(PostedMut(Posted { slot, ring: &self.ring, _request: PhantomData }))
    }

    /// Returns the slots of the requests before the one with counter `index` to the producer.
    ///
    /// # Panics
    /// If the ring holds fewer.
    #[inline]
    pub fn retire_to(&mut self, index: u32) {
        let count = index.wrapping_sub(self.head);
        let known = self.tail.get().wrapping_sub(self.head);
        assert!(count <= known || count <= self.len(), "nothing to retire");
        self.head = index;
        self.ring.head.store(self.head, Ordering::Release);
    }

    /// Returns the oldest request's slot to the producer.
    ///
    /// # Panics
    /// If the ring is empty.
    #[inline]
    pub fn retire(&mut self) {
        self.retire_to(self.head.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::test_bounds::assert_lacks;

    #[test]
    fn the_ends_move_between_threads_only_if_requests_may() {
        type Local = &'static Cell<u8>; // Copy, but neither Send nor Sync.
        assert_lacks!(Send: WorkProducer<Local>, WorkConsumer<Local>);
        assert_lacks!(Sync: WorkProducer<Local>, WorkConsumer<Local>);
    }

    fn sge(n: u32) -> Sge {
        Sge { addr: u64::from(n) << 32, length: n, lkey: Key::from_parts(n, 1) }
    }

    #[test]
    fn requests_and_entries_cross_the_ring_and_the_counter_wrap() {
        let arena = Arena::new(1 << 22).unwrap();
        let (mut posts, mut core) = work_ring::<u64>(&arena, 3, 32).unwrap();
        assert_eq!(posts.capacity(), 4);
        // Start close to the wrap-around of the counters.
        posts.ring.head.store(u32::MAX - 1, Ordering::Relaxed);
        posts.ring.tail.store(u32::MAX - 1, Ordering::Relaxed);
        core.head = u32::MAX - 1;
        for round in 0..10u32 {
            for n in 0..4 {
                assert!(posts.push(&u64::from(round * 4 + n), &[sge(n), sge(n + 1)]));
            }
            assert!(!posts.push(&0, &[]));
            assert_eq!((posts.len(), core.len()), (4, 4));
            for n in 0..4 {
                let at = core.head();
                assert_eq!(core.get(at), Some(&u64::from(round * 4 + n)));
                assert_eq!(core.posted(at).unwrap().sges(2), [sge(n), sge(n + 1)]);
                core.retire();
                assert_eq!(core.get(at), None);
            }
        }
        assert!(posts.push_inline(&1, &[b"abc", b"", b"defgh"]));
        assert_eq!(core.posted(core.head()).unwrap().inline_data(8), b"abcdefgh");
    }

    /// For every fill and every position of the counters around their wrap: the requests that the
    /// ring has, and no others.
    #[test]
    fn only_requests_between_head_and_tail_are_found() {
        let arena = Arena::new(1 << 22).unwrap();
        let (mut posts, mut core) = work_ring::<u64>(&arena, 4, 0).unwrap();
        for start in (0..10).map(|n| u32::MAX.wrapping_add(n).wrapping_sub(5)) {
            for fill in 0..=4 {
                posts.ring.head.store(start, Ordering::Relaxed);
                posts.ring.tail.store(start, Ordering::Relaxed);
                (core.head, core.tail) = (start, Cell::new(start));
                for n in 0..fill {
                    assert!(posts.push(&u64::from(start.wrapping_add(n)), &[]));
                }
                assert_eq!((posts.len(), core.len(), posts.is_empty()), (fill, fill, fill == 0));
                assert_eq!(posts.push(&0, &[]), fill < 4);
                posts.ring.tail.store(start.wrapping_add(fill), Ordering::Relaxed);
                let far = [1 << 31, u32::MAX - 4].map(|by| start.wrapping_add(by));
                let near = (0..16).map(|n| start.wrapping_sub(8).wrapping_add(n));
                for index in near.chain(far) {
                    let is_there = index.wrapping_sub(start) < fill;
                    let found = core.get(index).copied();
                    assert_eq!(found, is_there.then_some(u64::from(index)), "{start} {index}");
                    assert_eq!(core.posted_mut(index).is_some(), is_there);
                }
            }
        }
    }

    #[test]
    fn two_threads_see_every_request_in_order() {
        const COUNT: u64 = 100_000;
        let arena = Arena::new(1 << 22).unwrap();
        let (mut posts, mut core) = work_ring::<u64>(&arena, 64, 16).unwrap();
        let poster = std::thread::spawn(move || {
            for n in 0..COUNT {
                while !posts.push(&n, &[sge(7)]) {
                    std::thread::yield_now();
                }
            }
        });
        for n in 0..COUNT {
            while core.is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(core.get(core.head()), Some(&n));
            assert_eq!(core.posted(core.head()).unwrap().sges(1), [sge(7)]);
            core.retire();
        }
        poster.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "request larger than its slot")]
    fn too_many_entries_panic() {
        let arena = Arena::new(1 << 22).unwrap();
        let (mut posts, _core) = work_ring::<u64>(&arena, 4, 16).unwrap();
        posts.push(&0, &[sge(1), sge(2)]);
    }
}
