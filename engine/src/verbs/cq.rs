//! Completion queues.
//!
//! Several cores may complete to one queue and several threads may poll it, so the queue is a bounded
//! lock-free MPMC ring. A queue that grows gets another, larger ring behind the first, which is filled no more and
//! stays: who polls may be looking at it. Each is at least twice as large, so that there are few. A core that
//! finds the queue full raises [`AsyncEvent::CqError`] and takes the QP to ERR.
//!
//! [`AsyncEvent::CqError`]: super::event::AsyncEvent::CqError

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use crossbeam_queue::ArrayQueue;
use feroce_wire::Qpn;

use super::completion::Completion;
use crate::time::{Duration, Instant};
use crate::wake::EventFd;

/// Number of a completion queue, unique in its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// Which completions make the descriptor of a CQ readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// Any.
    Any,
    /// Those of messages sent with the solicited flag, and errors.
    Solicited,
}

/// What somebody waits for: the state's lower bits.
const UNARMED: u8 = 0;
const ARMED_SOLICITED: u8 = 1;
const ARMED_ANY: u8 = 2;
const ARMED: u8 = 0b11;
/// Completions have come that were not told, and among them one that is told to who waits for the solicited.
const UNTOLD: u8 = 0b100;
const UNTOLD_SOLICITED: u8 = 0b1000;

/// The queue was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqFull;

#[derive(Debug)]
struct Ring {
    queue: ArrayQueue<Completion>,
    /// The one that took its place.
    next: OnceLock<Box<Ring>>,
}

impl Ring {
    fn new(places: u32) -> Self {
        Self { queue: ArrayQueue::new(places.max(1) as usize), next: OnceLock::new() }
    }
}

/// When completions that somebody waits for are told: at the `count`th, or `period` after the first.
#[derive(Debug, Default)]
struct Moderation {
    count: AtomicU32,
    /// In nanoseconds; 0 is for ever.
    period: AtomicU64,
    /// Completions waited for that have come and were not told.
    pending: AtomicU32,
    /// When they must be told, in nanoseconds; 0 if not by time.
    due: AtomicU64,
}

impl Moderation {
    /// Counts a completion; true if it is to be told at once.
    fn tells(&self, at: Instant) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let period = self.period.load(Ordering::Relaxed);
        if count <= 1 && period == 0 {
            return true;
        }
        let pending = self.pending.fetch_add(1, Ordering::Relaxed) + 1;
        if pending == 1 && period > 0 {
            self.due.store((at + Duration::from_nanos(period)).as_nanos(), Ordering::Relaxed);
        }
        count > 0 && pending >= count
    }

    fn start_over(&self) {
        self.pending.store(0, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
    }
}

/// The part of a completion queue that cores and program share.
#[derive(Debug)]
pub struct CqRing {
    id: CqId,
    first: Ring,
    /// Completions that it is to hold; the newest ring may have more places.
    depth: AtomicU32,
    overflowed: AtomicBool,
    /// Those ahead of what is in the rings: what was kept when a QP was reset. Whoever takes completions holds it, so that they come in
    /// their order.
    front: Mutex<VecDeque<Completion>>,
    /// Its length.
    in_front: AtomicUsize,
    /// Who waits, and what was not told.
    state: AtomicU8,
    moderation: Moderation,
    fd: EventFd,
    /// Told instead of `fd`, if there is one.
    waker: Option<Waker>,
    /// Cores that may complete to this queue, one bit each: the ones that polling drives.
    cores: AtomicU64,
}

impl CqRing {
    /// A queue for `depth` completions.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new(id: CqId, depth: u32) -> std::io::Result<Self> {
        Self::with_waker(id, depth, None)
    }

    /// The same; an armed completion wakes `waker` instead of making the descriptor readable.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn with_waker(id: CqId, depth: u32, waker: Option<Waker>) -> std::io::Result<Self> {
        Ok(Self {
            id,
            first: Ring::new(depth),
            depth: AtomicU32::new(depth.max(1)),
            overflowed: AtomicBool::new(false),
            front: Mutex::default(),
            in_front: AtomicUsize::new(0),
            state: AtomicU8::new(UNARMED),
            moderation: Moderation::default(),
            fd: EventFd::new()?,
            waker,
            cores: AtomicU64::new(0),
        })
    }

    /// Its number.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Completions it can hold.
    pub fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed) as usize
    }

    /// The rings, oldest first.
    fn rings(&self) -> impl Iterator<Item = &Ring> {
        std::iter::successors(Some(&self.first), |ring| ring.next.get().map(Box::as_ref))
    }

    /// Completions that it holds.
    pub fn held(&self) -> usize {
        let in_rings: usize = self.rings().map(|ring| ring.queue.len()).sum();
        in_rings + self.in_front.load(Ordering::Acquire)
    }

    /// Makes it hold `depth` completions. No core may be in a turn meanwhile: the caller has their tokens.
    ///
    /// # Errors
    /// [`CqFull`] if it holds more now; nothing was changed then.
    pub fn resize(&self, depth: u32) -> Result<(), CqFull> {
        if self.held() > depth as usize {
            return Err(CqFull);
        }
        let newest = self.rings().last().expect("the first");
        if depth as usize > newest.queue.capacity() {
            let twice = u32::try_from(newest.queue.capacity() * 2).unwrap_or(u32::MAX);
            let _ = newest.next.set(Box::new(Ring::new(depth.max(twice))));
        }
        self.depth.store(depth.max(1), Ordering::Relaxed);
        Ok(())
    }

    /// Tells those who wait for completions when `count` have come, or `period` after the first, whichever is
    /// sooner; zeros for each at once. What is there when somebody begins to wait is told at once.
    pub fn moderate(&self, count: u32, period: Duration) {
        let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        self.moderation.count.store(count, Ordering::Relaxed);
        self.moderation.period.store(period, Ordering::Relaxed);
    }

    /// When completions that were held back must be told.
    pub fn due(&self) -> Option<Instant> {
        let due = self.moderation.due.load(Ordering::Relaxed);
        (due != 0).then(|| Instant::from_nanos(due))
    }

    /// Tells completions that were held back, if it is time. True if it was.
    pub fn tell_due(&self, now: Instant) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due {
            self.tell();
        }
        is_due
    }

    fn newest(&self) -> &ArrayQueue<Completion> {
        let mut ring = &self.first;
        while let Some(next) = ring.next.get() {
            ring = next;
        }
        &ring.queue
    }

    /// Appends a completion and wakes whoever waits for one like it; true if somebody was woken.
    ///
    /// # Errors
    /// [`CqFull`]; the completion is lost and the queue is in error from then on.
    #[inline]
    pub fn push(&self, completion: Completion) -> Result<bool, CqFull> {
        let queue = self.newest();
        let is_full = self.depth() < queue.capacity() && queue.len() >= self.depth();
        if self.overflowed() || is_full || queue.push(completion).is_err() {
            self.overflowed.store(true, Ordering::Relaxed);
            return Err(CqFull);
        }
        fence(Ordering::SeqCst); // Pairs with the one in `arm`: one side sees the other.
        let solicited = completion.solicited || !completion.is_success();
        let untold = if solicited { UNTOLD | UNTOLD_SOLICITED } else { UNTOLD };
        let state = self.state.load(Ordering::Relaxed);
        Ok(state & (ARMED | untold) != untold && self.notify(state, untold, completion.at))
    }

    /// Tells who waits of a completion that came at `at`, or notes that it was not told. True if somebody was woken.
    fn notify(&self, mut state: u8, untold: u8, at: Instant) -> bool {
        let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let mut is_time = None; // It counts once.
        loop {
            let wanted = match state & ARMED {
                UNARMED => false,
                ARMED_SOLICITED => untold & UNTOLD_SOLICITED != 0,
                _ => true,
            };
            if wanted && *is_time.get_or_insert_with(|| self.moderation.tells(at)) {
                if self.tell() {
                    return true;
                }
                state = self.state.load(Ordering::Relaxed); // Another was faster.
                continue;
            }
            match self.state.compare_exchange(state, state | untold, set, failed) {
                Ok(_) => return false,
                Err(other) => state = other,
            }
        }
    }

    /// Wakes who waits; true if somebody does. What nobody was told of stays so.
    fn tell(&self) -> bool {
        let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let disarm = |state: u8| (state & ARMED != UNARMED).then_some(UNARMED);
        self.moderation.start_over(); // Ahead of it: what is held back from then on has a deadline of its own.
        if self.state.fetch_update(set, failed, disarm).is_err() {
            return false;
        }
        match &self.waker {
            Some(waker) => waker.wake_by_ref(),
            None => self.fd.signal(),
        }
        true
    }

    /// Takes up to `most` completions; returns how many.
    #[inline]
    pub fn take(&self, out: &mut Vec<Completion>, most: usize) -> usize {
        let before = out.len();
        if self.held() > 0 {
            let mut front = self.front();
            let next = || self.next(&mut front);
            out.extend(std::iter::from_fn(next).take(most));
        }
        out.len() - before
    }

    /// Takes one completion.
    #[inline]
    pub fn pop(&self) -> Option<Completion> {
        if self.held() == 0 { None } else { self.next(&mut self.front()) }
    }

    fn front(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn next(&self, front: &mut VecDeque<Completion>) -> Option<Completion> {
        if let Some(completion) = front.pop_front() {
            self.in_front.store(front.len(), Ordering::Release);
            return Some(completion);
        }
        self.next_in_rings()
    }

    #[inline]
    fn next_in_rings(&self) -> Option<Completion> {
        let mut ring = &self.first;
        loop {
            // What is in an older ring came before what is in a newer one.
            match ring.queue.pop() {
                Some(completion) => return Some(completion),
                None => ring = ring.next.get()?,
            }
        }
    }

    /// Takes the completions of the QP `qp` out, and frees their places. Nobody may complete to it meanwhile: the caller has the token of
    /// its core.
    pub fn forget(&self, qp: Qpn) {
        if self.held() == 0 {
            return;
        }
        let mut front = self.front();
        // Nobody finds it empty meanwhile: who takes waits for this to end.
        self.in_front.store(self.held(), Ordering::Release);
        front.extend(std::iter::from_fn(|| self.next_in_rings()));
        front.retain(|completion| completion.qp != qp);
        self.in_front.store(front.len(), Ordering::Release);
    }

    /// Asks for one wake-up at the next completion of that kind; at once, moderated or not, if one is in the queue that came since the
    /// last wake-up. So an RNIC has it, which knows what was told and, from the doorbell, what was polled: programs that poll until there
    /// is nothing and arm then, UCX for one, would sleep through what came between. Those that arm ahead of polling are not woken
    /// twice for the same.
    pub fn arm(&self, notify: Notify) {
        self.fd.clear();
        let (armed, untold) = match notify {
            Notify::Any => (ARMED_ANY, UNTOLD),
            Notify::Solicited => (ARMED_SOLICITED, UNTOLD_SOLICITED),
        };
        if self.state.load(Ordering::Relaxed) & ARMED == UNARMED {
            self.moderation.start_over();
        }
        let keep = |state: u8| Some(state & !ARMED | armed);
        let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let before = self.state.fetch_update(set, failed, keep).unwrap_or(UNARMED);
        fence(Ordering::SeqCst);
        // They are taken in their order: if any is left, the last one is, which was not told. (Of the solicited, one that was taken may
        // still count: a wake-up for nothing.)
        if before & untold != 0 && self.held() > 0 {
            self.tell();
        }
    }

    /// Readable once there is a completion that arming asked for, until armed again.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// True once a completion was lost.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Notes that core `core` completes to this queue.
    pub(crate) fn add_core(&self, core: usize) {
        self.cores.fetch_or(1 << core, Ordering::Relaxed);
    }

    /// The cores noted, one bit each.
    pub(crate) fn cores(&self) -> u64 {
        self.cores.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::completion::{CompletionOpcode, Extra, Status};
    use super::*;
    use feroce_wire::Qpn;
    use std::os::fd::AsRawFd;

    fn completion(wr_id: u64, solicited: bool) -> Completion {
        Completion {
            wr_id,
            status: Status::Success,
            opcode: CompletionOpcode::Receive,
            byte_len: 0,
            extra: Extra::None,
            solicited,
            qp: Qpn::masked(5),
            at: Instant::from_nanos(1000),
            datagram: None,
        }
    }

    fn readable(cq: &CqRing) -> bool {
        let mut scratch = Vec::new();
        let no_wait = Some(std::time::Duration::ZERO);
        crate::sys::poll_readable(&[cq.fd().as_raw_fd()], &mut scratch, no_wait);
        scratch[0].revents != 0
    }

    #[test]
    fn a_full_queue_says_so_and_keeps_what_it_has() {
        let cq = CqRing::new(CqId(1), 2).unwrap();
        assert_eq!(cq.push(completion(1, false)), Ok(false));
        assert_eq!(cq.push(completion(2, false)), Ok(false));
        assert!(!cq.overflowed());
        assert_eq!(cq.push(completion(3, false)), Err(CqFull));
        assert!(cq.overflowed());
        let mut out = Vec::new();
        assert_eq!(cq.take(&mut out, 8), 2);
        assert_eq!(out.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2]);
    }

    /// Shrunk and grown in any way, it gives what was put in, in order, and holds at least its depth.
    #[test]
    fn a_queue_may_grow_and_shrink() {
        let cq = CqRing::new(CqId(1), 2).unwrap();
        let (mut put, mut got) = (0, 0);
        for (depth, puts, gets) in [
            (4, 4, 1),
            (3, 0, 0),
            (100, 90, 13),
            (80, 0, 0),
            (90, 10, 90),
            (1000, 900, 7),
            (893, 0, 893),
        ] {
            cq.resize(depth).unwrap();
            assert_eq!(cq.depth(), depth as usize);
            for _ in 0..puts {
                cq.push(completion(put, false)).unwrap();
                put += 1;
            }
            for _ in 0..gets {
                assert_eq!(cq.pop().map(|c| c.wr_id), Some(got));
                got += 1;
            }
        }
        assert_eq!((cq.pop(), put), (None, got));
        cq.resize(2).unwrap();
        cq.push(completion(1, false)).unwrap();
        cq.push(completion(2, false)).unwrap();
        assert_eq!(cq.resize(1), Err(CqFull));
        assert_eq!(cq.push(completion(3, false)), Err(CqFull), "the depth counts, not the places");
        assert!(cq.overflowed());
    }

    #[test]
    fn moderation_counts_and_waits() {
        let cq = CqRing::new(CqId(1), 64).unwrap();
        let at = |nanos| Completion { at: Instant::from_nanos(nanos), ..completion(1, false) };
        cq.moderate(3, Duration::from_nanos(500));
        cq.arm(Notify::Any);
        cq.push(at(1000)).unwrap();
        cq.push(at(1100)).unwrap();
        assert!(!readable(&cq));
        assert_eq!(cq.due(), Some(Instant::from_nanos(1500)), "after the first");
        cq.push(at(1200)).unwrap();
        assert!(readable(&cq) && cq.due().is_none(), "the third");
        cq.arm(Notify::Any);
        cq.push(at(2000)).unwrap();
        assert!(!cq.tell_due(Instant::from_nanos(2499)) && !readable(&cq));
        assert!(cq.tell_due(Instant::from_nanos(2500)) && readable(&cq));
        cq.moderate(0, Duration::ZERO);
        cq.arm(Notify::Any);
        cq.push(at(3000)).unwrap();
        assert!(readable(&cq), "at once again");
    }

    #[test]
    fn what_is_forgotten_has_no_place() {
        let cq = CqRing::new(CqId(1), 4).unwrap();
        let of = |qp, wr_id| Completion { qp: Qpn::masked(qp), ..completion(wr_id, false) };
        let put = |completion| assert_eq!(cq.push(completion), Ok(false));
        [of(5, 1), of(6, 2), of(5, 3), of(6, 4)].into_iter().for_each(put);
        cq.forget(Qpn::masked(5));
        assert_eq!(cq.held(), 2);
        // A QP of the same number is not meant, nor are later completions of this one.
        [of(5, 5), of(6, 6)].into_iter().for_each(put);
        let mut taken = Vec::new();
        assert_eq!(cq.take(&mut taken, 3), 3);
        taken.extend(std::iter::from_fn(|| cq.pop()));
        assert_eq!(taken.iter().map(|shown| shown.wr_id).collect::<Vec<_>>(), [2, 4, 5, 6]);
        assert_eq!(cq.held(), 0);
        // A program that resets its QP again and again and takes nothing does not fill the queue.
        for wr_id in 0..100 {
            cq.push(of(5, wr_id)).unwrap();
            cq.forget(Qpn::masked(5));
        }
        assert!(!cq.overflowed() && cq.pop().is_none());
    }

    #[test]
    fn arming_wakes_once_and_only_for_its_kind() {
        let cq = CqRing::new(CqId(1), 8).unwrap();
        assert_eq!(cq.push(completion(1, false)), Ok(false));
        assert!(!readable(&cq), "not armed");
        cq.arm(Notify::Solicited);
        cq.push(completion(2, false)).unwrap();
        assert!(!readable(&cq), "not solicited");
        assert_eq!(cq.push(completion(3, true)), Ok(true));
        assert!(readable(&cq));
        cq.arm(Notify::Any);
        assert!(!readable(&cq), "arming clears");
        cq.push(Completion { status: Status::Fatal, ..completion(4, false) }).unwrap();
        assert!(readable(&cq));
    }

    /// What came between the last poll and arming is told at once; what was told or taken is not told again.
    #[test]
    fn arming_tells_what_came_since_the_last_wake_up() {
        let cq = CqRing::new(CqId(1), 8).unwrap();
        cq.push(completion(1, false)).unwrap();
        cq.arm(Notify::Solicited);
        assert!(!readable(&cq), "not solicited");
        cq.arm(Notify::Any);
        assert!(readable(&cq), "it came ahead of arming");
        cq.arm(Notify::Any);
        assert!(!readable(&cq), "it was told");
        cq.push(completion(2, true)).unwrap();
        cq.push(completion(3, false)).unwrap();
        assert!(readable(&cq), "the second was told, the third was not");
        cq.arm(Notify::Solicited);
        assert!(!readable(&cq));
        cq.arm(Notify::Any);
        assert!(readable(&cq));
        for wr_id in 4..6 {
            cq.push(completion(wr_id, true)).unwrap();
        }
        while cq.pop().is_some() {}
        cq.arm(Notify::Any);
        assert!(!readable(&cq), "taken");
        cq.push(completion(6, true)).unwrap();
        assert!(readable(&cq));
        cq.push(completion(7, true)).unwrap();
        cq.arm(Notify::Solicited);
        assert!(readable(&cq));
    }

    /// Two push, whenever there is next to nothing; one polls until there is nothing, arms and sleeps, and never sleeps while there is
    /// something: nobody would push any more.
    #[test]
    fn nobody_sleeps_through_a_completion() {
        const EACH: u64 = 20_000;
        let cq = CqRing::new(CqId(1), 64).unwrap();
        let push = || {
            for wr_id in 0..EACH {
                while cq.held() > 0 {
                    std::thread::yield_now();
                }
                cq.push(completion(wr_id, wr_id % 3 == 0)).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(push);
            scope.spawn(push);
            let (mut taken, mut scratch) = (0, Vec::new());
            loop {
                while cq.pop().is_some() {
                    taken += 1;
                }
                if taken == 2 * EACH {
                    break;
                }
                cq.arm(Notify::Any);
                let patience = Some(std::time::Duration::from_secs(20));
                crate::sys::poll_readable(&[cq.fd().as_raw_fd()], &mut scratch, patience);
                assert_ne!(scratch[0].revents, 0, "{taken} were taken, {} are there", cq.held());
            }
        });
    }

    /// A core may find a notification due that another has just told.
    #[test]
    fn what_is_told_to_nobody_is_not_told() {
        let cq = CqRing::new(CqId(1), 8).unwrap();
        cq.push(completion(1, false)).unwrap();
        cq.moderation.due.store(1, Ordering::Relaxed);
        cq.tell_due(Instant::from_nanos(1000));
        assert!(!readable(&cq) && cq.due().is_none());
        cq.arm(Notify::Any);
        assert!(readable(&cq));
    }
}
