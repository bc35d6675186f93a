//! A bounded queue of small values: several threads put values in, one at a time takes them out.
//!
//! A producer claims the position `tail`, writes the value to its slot and then marks the slot with
//! the position. The consumer takes values in the order of their positions and publishes `head`
//! once for all that it takes in a row, which gives the slots back.

use std::mem::MaybeUninit;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicUsize, Ordering, UnsafeCell, yield_now};

/// The end of a queue that producers share.
#[derive(Debug)]
pub struct Queue<T> {
    /// A power of two.
    slots: Box<[Slot<T>]>,
    /// Positions claimed by producers, and positions given back by the consumer, mod 2^64.
    tail: CachePadded<AtomicUsize>,
    head: CachePadded<AtomicUsize>,
}

#[derive(Debug)]
struct Slot<T> {
    /// The position after that of the value.
    written: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a slot is accessed by one thread at a time: by the producer that has claimed its position
// until it marks the slot (Release), then by the consumer (Acquire) until it publishes `head`
// (Release), then by the next producer, which reads `head` first (Acquire).
unsafe impl<T: Send> Sync for Queue<T> {}

/// The end of a queue that takes values. There is one for each queue.
#[derive(Debug)]
pub struct Consumer<T> {
    queue: Arc<Queue<T>>,
    /// The next position to take.
    head: usize,
}

/// Makes a queue for at least `capacity` values.
pub fn queue<T: Copy + Send>(capacity: usize) -> (Arc<Queue<T>>, Consumer<T>) {
    let empty =
        |_| Slot { written: AtomicUsize::new(0), value: UnsafeCell::new(MaybeUninit::uninit()) };
    let slots = (0..capacity.max(1).next_power_of_two()).map(empty).collect();
    let (tail, head) = Default::default();
    let queue = Arc::new(Queue { slots, tail, head });
    (Arc::clone(&queue), Consumer { queue, head: 0 })
}

impl<T: Copy + Send> Queue<T> {
    /// Number of values that fit.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Number of values in the queue, with those that are being written.
    #[inline]
    pub fn len(&self) -> usize {
        // `head` first: it cannot have passed the tail that is read after it.
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Returns true if the queue has no value.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `value`. Returns false if the queue holds `most` values, or as many as fit.
    #[inline]
    pub fn push(&self, value: &T, most: usize) -> bool {
        let Some(position) = self.claim(most) else { return false };
        let slot = &self.slots[position & (self.slots.len() - 1)];
        // SAFETY: this thread has claimed the position. The value that the slot had before was
        // taken: its position is at least `most` before the tail, and `head` has passed it.
        slot.value.with_mut(|place| unsafe { (*place).write(*value) });
        slot.written.store(position.wrapping_add(1), Ordering::Release);
        true
    }

    /// Claims the next position, whose slot the caller must write and mark.
    #[inline]
    fn claim(&self, most: usize) -> Option<usize> {
        let most = most.min(self.slots.len());
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let used = tail.wrapping_sub(self.head.load(Ordering::Acquire));
            let newer = if used < most {
                let next = tail.wrapping_add(1);
                let claim = &self.tail;
                match claim.compare_exchange_weak(tail, next, Ordering::Relaxed, Ordering::Relaxed)
                {
                    Ok(_) => return Some(tail),
                    Err(newer) => newer,
                }
            } else {
                // Full, unless the tail was read before others were taken.
                let newer = self.tail.load(Ordering::Relaxed);
                if newer == tail {
                    return None;
                }
                newer
            };
            tail = newer;
        }
    }
}

impl<T: Copy + Send> Consumer<T> {
    /// Appends up to `most` values to `out`. Returns their number.
    #[inline]
    pub fn take(&mut self, out: &mut Vec<T>, most: usize) -> usize {
        let mut taken = 0;
        while taken < most
            && let Some(value) = self.next()
        {
            out.push(value);
            taken += 1;
        }
        self.publish();
        taken
    }

    /// Takes one value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let value = self.next()?;
        self.publish();
        Some(value)
    }

    /// Takes one value, whose slot is given back by [`Self::publish`]. Waits for a producer that
    /// has claimed the next position and is writing: values of other producers may be complete
    /// behind it, and a value whose `push` has ended must be found.
    #[inline]
    fn next(&mut self) -> Option<T> {
        let slots = &self.queue.slots;
        let slot = &slots[self.head & (slots.len() - 1)];
        let next = self.head.wrapping_add(1);
        while slot.written.load(Ordering::Acquire) != next {
            if self.queue.tail.load(Ordering::Relaxed) == self.head {
                return None;
            }
            yield_now(); // The producer may wait for this CPU.
        }
        self.head = next;
        // SAFETY: the slot is marked with this position, so a value was written, and no producer
        // accesses the slot before `head` is published.
        Some(slot.value.with(|place| unsafe { (*place).assume_init() }))
    }

    #[inline]
    fn publish(&self) {
        self.queue.head.store(self.head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore)] // Miri is slow.
        fn a_queue_is_a_bounded_fifo(
            capacity in 1usize..9,
            steps in prop::collection::vec((any::<bool>(), 0usize..10), 0..200),
        ) {
            let (queue, mut consumer) = queue::<usize>(capacity);
            prop_assert_eq!(queue.capacity(), capacity.next_power_of_two());
            let mut model = VecDeque::new();
            for (number, (puts, most)) in steps.into_iter().enumerate() {
                if puts {
                    let fits = model.len() < most.min(queue.capacity());
                    prop_assert_eq!(queue.push(&number, most), fits);
                    if fits {
                        model.push_back(number);
                    }
                } else if most == 0 {
                    prop_assert_eq!(consumer.pop(), model.pop_front());
                } else {
                    let mut out = Vec::new();
                    let expected: Vec<_> = model.drain(..most.min(model.len())).collect();
                    prop_assert_eq!(consumer.take(&mut out, most), expected.len());
                    prop_assert_eq!(out, expected);
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn a_value_behind_one_that_is_being_written_is_waited_for() {
        let (queue, mut consumer) = queue::<u32>(4);
        let claimed = queue.claim(4).unwrap();
        assert!(queue.push(&2, 4));
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| {
                let mut out = Vec::new();
                consumer.take(&mut out, 4);
                out
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!taken.is_finished(), "the second value was missed, or taken first");
            // SAFETY: this thread has claimed the position.
            queue.slots[claimed].value.with_mut(|place| unsafe { (*place).write(1) });
            queue.slots[claimed].written.store(claimed + 1, Ordering::Release);
            assert_eq!(taken.join().unwrap(), [1, 2]);
        });
        assert_eq!(consumer.pop(), None);
    }

    #[test]
    fn the_values_of_each_thread_come_once_and_in_order() {
        const COUNT: u64 = if cfg!(miri) { 10 } else { 100_000 }; // Miri is slow.
        const THREADS: usize = 2;
        for most in [1, 3, 64] {
            let (queue, mut consumer) = queue::<(usize, [u64; 4])>(16);
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let queue = &queue;
                    scope.spawn(move || {
                        for number in 0..COUNT {
                            while !queue.push(&(thread, [number; 4]), most) {
                                std::thread::yield_now();
                            }
                        }
                    });
                }
                let (mut next, mut out) = ([0; THREADS], Vec::new());
                while next.iter().sum::<u64>() < THREADS as u64 * COUNT {
                    out.clear();
                    assert!(queue.len() <= most.min(queue.capacity()));
                    if consumer.take(&mut out, 5) == 0 {
                        std::thread::yield_now();
                    }
                    for (thread, numbers) in &out {
                        let expected = &mut next[*thread];
                        assert_eq!(*numbers, [*expected; 4]);
                        *expected += 1;
                    }
                }
            });
            assert!(queue.is_empty() && consumer.pop().is_none());
        }
    }
}
