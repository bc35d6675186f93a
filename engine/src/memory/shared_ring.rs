//! Shared rings: work queues that many threads post to and many cores take from.
//!
//! Any thread posts to a shared receive queue, and QPs of any core consume from it. A message holds
//! its receive from its first packet to its last, so receives finish in another order than they are
//! taken. A ring with a head and a tail cannot free slots in its middle. Therefore slots stay in
//! place in the arena, and only their numbers move: through a bounded lock-free queue of free slots
//! and another one of posted slots. The thread that has popped a number owns the slot until it
//! pushes the number again. The queues order the writes to a slot before the reads that follow.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::arena::{Arena, ArenaError, Block};
use super::work_ring::Sge;
use crate::sync::Handover;

/// A work queue of requests `T`, shared at both ends.
#[derive(Debug)]
pub struct SharedRing<T> {
    block: Block,
    capacity: u32,
    stride: usize,
    /// Bytes of the fixed part, rounded up to the alignment of [`Sge`].
    fixed: usize,
    free: ArrayQueue<u32>,
    posted: ArrayQueue<u32>,
    /// Which thread uses a slot, for loom.
    users: Handover,
    _requests: PhantomData<fn(T) -> T>,
}

impl<T: Copy + Send> SharedRing<T> {
    /// Makes a queue of `requests` slots, each with room for `max_sge` entries.
    ///
    /// # Errors
    /// [`ArenaError`] if the arena cannot hold it.
    pub fn new(arena: &Arc<Arena>, requests: u32, max_sge: usize) -> Result<Self, ArenaError> {
        assert!(align_of::<T>() <= 16, "slots are 16-byte aligned");
        let capacity = requests.max(1);
        let fixed = size_of::<T>().next_multiple_of(align_of::<Sge>());
        let stride = (fixed + max_sge * size_of::<Sge>()).next_multiple_of(16);
        let block = arena.alloc(capacity as usize * stride, 64)?;
        let free = ArrayQueue::new(capacity as usize);
        for index in 0..capacity {
            free.push(index).expect("as many places as slots");
        }
        let posted = ArrayQueue::new(capacity as usize);
        let users = Handover::new(capacity);
        Ok(Self { block, capacity, stride, fixed, free, posted, users, _requests: PhantomData })
    }

    /// Returns the number of slots.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of requests posted and not taken.
    #[inline]
    pub fn len(&self) -> u32 {
        u32::try_from(self.posted.len()).expect("at most the capacity")
    }

    /// Appends `request` with its scatter/gather entries. Returns false if every slot is posted or
    /// taken.
    ///
    /// # Panics
    /// If the entries do not fit the slot.
    pub fn push(&self, request: &T, sges: &[Sge]) -> bool {
        assert!(self.fixed + size_of_val(sges) <= self.stride, "request larger than its slot");
        let Some(index) = self.free.pop() else { return false };
        let slot = self.slot(index);
        self.users.write(index);
        // SAFETY: the slot's number was popped from `free`, so it is in no queue and in no `Taken`,
        // and this thread is the only user of the slot. The slot has room for both parts (asserted
        // above) and is 16-byte aligned, as is `fixed`.
        unsafe {
            slot.cast::<T>().write(*request);
            let entries = slot.add(self.fixed).cast::<Sge>();
            entries.copy_from_nonoverlapping(NonNull::from(sges).cast(), sges.len());
        }
        self.posted.push(index).expect("as many places as slots");
        true
    }

    /// Takes the oldest request.
    pub fn take(self: &Arc<Self>) -> Option<Taken<T>> {
        let index = self.posted.pop()?;
        Some(Taken { ring: Arc::clone(self), index, _request: PhantomData })
    }

    fn slot(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.capacity, "no such slot");
        // SAFETY: the block holds `capacity` slots of `stride` bytes, and `index < capacity`.
        unsafe { self.block.as_ptr().add(index as usize * self.stride) }
    }
}

/// A taken request, which only its owner accesses. Dropping it frees the slot.
#[derive(Debug)]
pub struct Taken<T: Copy + Send> {
    ring: Arc<SharedRing<T>>,
    index: u32,
    /// [`Taken::request`] lends the request: threads may share this value if they may share a `T`.
    _request: PhantomData<T>,
}

impl<T: Copy + Send> Taken<T> {
    /// Returns the request.
    #[inline]
    pub fn request(&self) -> &T {
        self.ring.users.read(self.index);
        // SAFETY: the slot was written before its number was pushed to `posted`, and belongs to
        // this value until it is dropped.
        unsafe { self.ring.slot(self.index).cast::<T>().as_ref() }
    }

    /// Returns the first `count` scatter/gather entries.
    ///
    /// # Panics
    /// If the slot has no room for `count` entries.
    #[inline]
    pub fn sges(&self, count: usize) -> &[Sge] {
        let ring = &*self.ring;
        ring.users.read(self.index);
        assert!(ring.fixed + count * size_of::<Sge>() <= ring.stride, "more than a slot holds");
        // SAFETY: the range is inside the slot (asserted above), which belongs to this value.
        // Entries that the poster did not write are arena memory, which is initialised, and every
        // bit pattern is a valid `Sge`.
        unsafe {
            slice::from_raw_parts(ring.slot(self.index).add(ring.fixed).cast().as_ptr(), count)
        }
    }
}

impl<T: Copy + Send> Drop for Taken<T> {
    fn drop(&mut self) {
        self.ring.free.push(self.index).expect("as many places as slots");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::test_bounds::assert_lacks;
    use feroce_wire::Key;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_taken_request_is_shared_only_if_requests_may_be() {
        assert_lacks!(Sync: Taken<PhantomData<Cell<u8>>>); // Copy and Send, but not Sync.
    }

    fn sge(n: u64) -> Sge {
        Sge { addr: n << 32, length: 7, lkey: Key::from_parts(1, 1) }
    }

    proptest! {
        /// Compares with a queue and a set: each posted request is taken once, oldest first and
        /// unchanged, and slots are freed in any order.
        #[test]
        fn posts_takes_and_returns_in_any_order(
            steps in prop::collection::vec((0u8..3, 0usize..8), 1..200),
        ) {
            let arena = Arena::new(1 << 22).unwrap();
            let ring = Arc::new(SharedRing::<u64>::new(&arena, 5, 2).unwrap());
            let (mut posted, mut taken) = (VecDeque::new(), Vec::new());
            for (n, (step, which)) in (0u64..).zip(steps) {
                match step {
                    0 => {
                        let room = posted.len() + taken.len() < 5;
                        prop_assert_eq!(ring.push(&n, &[sge(n), sge(n + 1)]), room);
                        if room {
                            posted.push_back(n);
                        }
                    }
                    1 => match (ring.take(), posted.pop_front()) {
                        (Some(held), Some(n)) => {
                            prop_assert_eq!(*held.request(), n);
                            taken.push((held, n));
                        }
                        (held, expected) => prop_assert!(held.is_none() && expected.is_none()),
                    },
                    _ if !taken.is_empty() => drop(taken.swap_remove(which % taken.len())),
                    _ => {}
                }
                prop_assert_eq!(ring.len() as usize, posted.len());
                for (held, n) in &taken {
                    let sges = [sge(*n), sge(*n + 1)];
                    prop_assert_eq!((*held.request(), held.sges(2)), (*n, &sges[..]));
                }
            }
        }
    }

    #[test]
    fn threads_at_both_ends_see_each_request_once() {
        const EACH: u64 = 20_000;
        let arena = Arena::new(1 << 22).unwrap();
        let ring = Arc::new(SharedRing::<u64>::new(&arena, 16, 1).unwrap());
        let (sum, count) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for poster in 0..2 {
                let ring = &ring;
                scope.spawn(move || {
                    for n in 0..EACH {
                        while !ring.push(&(poster * EACH + n), &[sge(poster * EACH + n)]) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while count.load(Ordering::Relaxed) < 2 * EACH {
                        let Some(held) = ring.take() else {
                            std::thread::yield_now();
                            continue;
                        };
                        assert_eq!(held.sges(1), [sge(*held.request())]);
                        sum.fetch_add(*held.request(), Ordering::Relaxed);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), (0..2 * EACH).sum::<u64>());
    }

    #[test]
    #[should_panic(expected = "request larger than its slot")]
    fn too_many_entries_panic() {
        let arena = Arena::new(1 << 22).unwrap();
        let ring = SharedRing::<u64>::new(&arena, 4, 1).unwrap();
        ring.push(&0, &[sge(1), sge(2)]);
    }
}
