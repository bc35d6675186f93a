//! Doorbells: a posting thread notifies a core that a QP has new work.

use std::os::fd::{AsFd, BorrowedFd};

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicBool, AtomicU32, Ordering, fence, zeros};
use crate::wake::EventFd;

/// The doorbell of one core: the slots with new work, and an eventfd that wakes a sleeping helper
/// thread.
///
/// The slots are a list through `links`. Posting threads put slots in front of it, and the core
/// takes the whole list. A link needs no more memory than a number, and the links of slots without
/// a QP are not resident.
#[derive(Debug)]
pub struct Doorbell {
    /// The slot that was rung last, plus one; 0 if none was rung since the core took the list.
    rung: CachePadded<AtomicU32>,
    /// Indexed by slot: the next slot of the list, plus one; 0 at the end.
    links: Box<[AtomicU32]>,
    /// The list that the core took, the first slot that was rung in front. Only the holder of the
    /// core's token uses it.
    taken: CachePadded<AtomicU32>,
    sleeping: AtomicBool,
    wake: EventFd,
}

impl Doorbell {
    /// A doorbell for `slots` QPs.
    ///
    /// # Errors
    /// No free descriptor for the eventfd.
    pub fn new(slots: usize) -> std::io::Result<Self> {
        Ok(Self {
            rung: CachePadded::default(),
            links: zeros(slots),
            taken: CachePadded::default(),
            sleeping: AtomicBool::new(false),
            wake: EventFd::new()?,
        })
    }

    /// Notifies the core that the QP in `slot`, whose flag is `posted`, has new work.
    ///
    /// A slot is in the list at most once: until the core clears the flag of its QP, and the core
    /// empties the list before it takes a QP out of its slot.
    #[inline]
    pub fn ring(&self, slot: u32, posted: &AtomicBool) {
        if !self.enter(slot, posted) {
            return;
        }
        // Pairs with the fence in `arm`: at least one side reads the store of the other.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            self.wake.signal();
        }
    }

    /// As [`Doorbell::ring`], for a caller that runs the next turn: does not wake the helper.
    /// Returns false if the slot is in the list already.
    #[inline]
    pub fn enter(&self, slot: u32, posted: &AtomicBool) -> bool {
        if posted.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut last = self.rung.load(Ordering::Relaxed);
        loop {
            self.links[slot as usize].store(last, Ordering::Relaxed);
            let rung = &self.rung;
            match rung.compare_exchange_weak(last, slot + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => last = newer,
            }
        }
    }

    /// Wakes a sleeping helper thread although no QP has new work.
    pub fn wake(&self) {
        self.wake.signal();
    }

    /// The next slot with new work, in the order in which they were rung. The caller holds the
    /// core's token.
    #[inline]
    pub(super) fn next(&self) -> Option<u32> {
        let mut first = self.taken.load(Ordering::Relaxed);
        if first == 0 {
            // An idle turn asks too, and a swap locks the cache line.
            if self.rung.load(Ordering::Relaxed) == 0 {
                return None;
            }
            first = self.take();
        }
        let slot = first.checked_sub(1)?;
        self.taken.store(self.links[slot as usize].load(Ordering::Relaxed), Ordering::Relaxed);
        Some(slot)
    }

    /// Takes the list and reverses it. Returns its first slot, plus one.
    fn take(&self) -> u32 {
        let mut next = self.rung.swap(0, Ordering::Acquire);
        let mut first = 0;
        while let Some(slot) = next.checked_sub(1) {
            let link = &self.links[slot as usize];
            let before = link.load(Ordering::Relaxed);
            link.store(first, Ordering::Relaxed);
            (first, next) = (next, before);
        }
        first
    }

    fn is_quiet(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == 0 && self.rung.load(Ordering::Relaxed) == 0
    }

    /// Requests a wake-up at the next ring. Returns false if a slot is in the list already.
    pub(super) fn arm(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.is_quiet()
    }

    /// Cancels the request of `arm` and clears the eventfd. Returns true if a wake-up had arrived.
    pub(crate) fn disarm(&self) -> bool {
        self.sleeping.store(false, Ordering::Relaxed);
        self.wake.clear()
    }

    /// A descriptor that is readable after a ring while armed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(doorbell: &Doorbell) -> Vec<u32> {
        std::iter::from_fn(|| doorbell.next()).collect()
    }

    #[test]
    fn slots_come_once_and_in_order() {
        let doorbell = Doorbell::new(8).unwrap();
        let posted: Vec<AtomicBool> = (0..8).map(|_| AtomicBool::new(false)).collect();
        let ring = |slot: u32| doorbell.ring(slot, &posted[slot as usize]);
        assert!(doorbell.arm());
        [5, 0, 7, 5, 0].into_iter().for_each(ring);
        assert!(!doorbell.arm());
        assert_eq!(doorbell.next(), Some(5));
        posted[5].store(false, Ordering::Relaxed);
        [5, 3].into_iter().for_each(ring);
        assert_eq!(taken(&doorbell), [0, 7, 5, 3]);
        assert!(doorbell.arm() && doorbell.next().is_none());
    }

    #[test]
    fn only_a_ring_wakes_a_sleeping_helper() {
        let doorbell = Doorbell::new(4).unwrap();
        let posted: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
        assert!(doorbell.arm());
        assert!(doorbell.enter(2, &posted[2]));
        assert!(!doorbell.enter(2, &posted[2]), "in the list already");
        assert!(!doorbell.disarm(), "not woken");
        assert_eq!(taken(&doorbell), [2]);
        assert!(doorbell.arm());
        doorbell.ring(1, &posted[1]);
        assert!(doorbell.disarm());
        assert_eq!(taken(&doorbell), [1]);
    }

    #[test]
    fn no_ring_of_several_threads_is_lost() {
        const SLOTS: u32 = 64;
        const RINGS: u32 = 20_000;
        let doorbell = Doorbell::new(SLOTS as usize).unwrap();
        let posted: Vec<AtomicBool> = (0..SLOTS).map(|_| AtomicBool::new(false)).collect();
        let work: Vec<AtomicU32> = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        let mut done = 0;
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|thread| {
                let (doorbell, posted, work) = (&doorbell, &posted, &work);
                scope.spawn(move || {
                    for n in 0..RINGS {
                        // Each slot belongs to one thread, as a QP does.
                        let slot = (n * 7 % (SLOTS / 2)) * 2 + thread;
                        work[slot as usize].fetch_add(1, Ordering::Release);
                        doorbell.ring(slot, &posted[slot as usize]);
                    }
                })
            });
            let mut last = false;
            while !last {
                last = threads.iter().all(|thread| thread.is_finished());
                // A slot may come without work: an earlier ring brought the work of this one.
                while let Some(slot) = doorbell.next() {
                    posted[slot as usize].swap(false, Ordering::AcqRel);
                    done += work[slot as usize].swap(0, Ordering::Acquire);
                }
                std::thread::yield_now();
            }
        });
        assert_eq!(done, 2 * RINGS);
    }
}
