//! Completion queues.
//!
//! Several cores may complete to one queue: they share a bounded ring without a lock. Several
//! threads may poll the queue: each call takes a lock once, for all completions that it takes.
//!
//! A queue that grows gets a second, larger ring after the first one. New completions go to the
//! newest ring only. Older rings are kept, because a polling thread may be reading them. Each ring
//! is at least twice as large as the one before, so there are few rings. A core that finds the
//! queue full raises `AsyncEvent::CqError` and moves the QP to ERR.
//!
//! Notifications: [`CqRing::arm`] requests one wake-up. A completion that arrives without waking a
//! waiter is *unreported*; arming while unreported completions are queued wakes the waiter at once.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::Waker;

use feroce_wire::Qpn;

use super::completion::Completion;
use super::ids::CqId;
use crate::memory::queue::{Consumer, Queue, queue};
use crate::sync::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, fence,
};
use crate::time::{Duration, Instant};
use crate::wake::EventFd;

/// The completions that an armed CQ notifies its waiter of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// Every completion.
    Any,
    /// Completions of messages sent with the solicited flag, and errors.
    Solicited,
}

/// Bits of [`CqRing::state`]: the completions that the waiter requested notification of.
const UNARMED: u8 = 0;
const ARMED_SOLICITED: u8 = 1;
const ARMED_ANY: u8 = 2;
const ARMED: u8 = 0b11;
/// Bit of the state: unreported completions exist.
const UNREPORTED: u8 = 0b100;
/// Bit of the state: at least one unreported completion is solicited or an error.
const UNREPORTED_SOLICITED: u8 = 0b1000;

/// The queue was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqFull;

#[derive(Debug)]
struct Ring {
    queue: Arc<Queue<Completion>>,
    /// The larger ring that replaced this one.
    next: OnceLock<Box<Ring>>,
}

impl Ring {
    fn new(capacity: u32) -> (Self, Consumer<Completion>) {
        let (queue, consumer) = queue(capacity as usize);
        (Self { queue, next: OnceLock::new() }, consumer)
    }
}

/// What a thread that takes completions holds.
#[derive(Debug)]
struct Poller {
    /// Completions ahead of those in the rings: those that were kept when a QP was reset.
    front: VecDeque<Completion>,
    /// The ends of the rings, oldest first.
    rings: Vec<Consumer<Completion>>,
}

impl Poller {
    /// Takes one completion from the rings.
    fn next_in_rings(&mut self) -> Option<Completion> {
        // Completions in an older ring are older than those in a newer one.
        self.rings.iter_mut().find_map(Consumer::pop)
    }
}

/// Moderation of notifications: a waiter is notified at the `count`th completion, or `period` after
/// the first one.
#[derive(Debug, Default)]
struct Moderation {
    count: AtomicU32,
    /// In nanoseconds; 0: no limit by time.
    period: AtomicU64,
    /// Completions of the requested kind for which the waiter was not notified yet.
    pending: AtomicU32,
    /// Time in nanoseconds at which the pending completions must be notified; 0: none.
    due: AtomicU64,
}

impl Moderation {
    /// Counts a completion that arrived at `at`. Returns true if the waiter must be notified now.
    fn count_one(&self, at: Instant) -> bool {
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

    fn restart(&self) {
        self.pending.store(0, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
    }
}

/// How the waiter is woken.
#[derive(Debug)]
enum WakeMethod {
    /// The descriptor becomes readable. It is opened when it is first used.
    Descriptor(OnceLock<EventFd>),
    Waker(Waker),
}

/// A completion queue, as the cores and the application share it.
#[derive(Debug)]
pub struct CqRing {
    id: CqId,
    first: Ring,
    /// Completions that the queue holds at most. The newest ring may have more slots.
    depth: AtomicU32,
    overflowed: AtomicBool,
    /// A thread that takes completions holds this lock, so that completions are taken in order.
    poller: Mutex<Poller>,
    /// Length of [`Poller::front`].
    in_front: AtomicUsize,
    /// `ARMED_*` and `UNREPORTED_*` bits.
    state: AtomicU8,
    /// A waiter was woken at least once: the program sleeps on this queue.
    sleeps: AtomicBool,
    moderation: Moderation,
    wake_method: WakeMethod,
    /// Cores that may complete to this queue, one bit each. Polling the queue runs these cores.
    cores: AtomicU64,
}

impl CqRing {
    /// Makes a queue for `depth` completions. It has no descriptor until [`CqRing::open_fd`].
    pub fn new(id: CqId, depth: u32) -> Self {
        Self::with_wake_method(id, depth, WakeMethod::Descriptor(OnceLock::new()))
    }

    /// Makes a queue for `depth` completions that wakes `waker` and has no descriptor.
    pub fn with_waker(id: CqId, depth: u32, waker: Waker) -> Self {
        Self::with_wake_method(id, depth, WakeMethod::Waker(waker))
    }

    fn with_wake_method(id: CqId, depth: u32, wake_method: WakeMethod) -> Self {
        let (first, consumer) = Ring::new(depth);
        let poller = Poller { front: VecDeque::new(), rings: vec![consumer] };
        Self {
            id,
            first,
            depth: AtomicU32::new(depth.max(1)),
            overflowed: AtomicBool::new(false),
            poller: Mutex::new(poller),
            in_front: AtomicUsize::new(0),
            state: AtomicU8::new(UNARMED),
            sleeps: AtomicBool::new(false),
            moderation: Moderation::default(),
            wake_method,
            cores: AtomicU64::new(0),
        }
    }

    /// Number of the queue.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Completions that the queue can hold.
    pub fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed) as usize
    }

    /// The rings, oldest first.
    fn rings(&self) -> impl Iterator<Item = &Ring> {
        std::iter::successors(Some(&self.first), |ring| ring.next.get().map(Box::as_ref))
    }

    /// Completions in the queue.
    pub fn held(&self) -> usize {
        let in_rings: usize = self.rings().map(|ring| ring.queue.len()).sum();
        in_rings + self.in_front.load(Ordering::Acquire)
    }

    /// Returns true if the queue holds no completion.
    #[inline]
    fn is_empty(&self) -> bool {
        self.rings().all(|ring| ring.queue.is_empty()) && self.in_front.load(Ordering::Acquire) == 0
    }

    /// Changes the depth to `depth` completions. The caller must hold the tokens of all cores that
    /// complete to the queue.
    ///
    /// # Errors
    /// [`CqFull`] if the queue holds more completions than that; nothing is changed.
    pub fn resize(&self, depth: u32) -> Result<(), CqFull> {
        if self.held() > depth as usize {
            return Err(CqFull);
        }
        let newest = self.rings().last().expect("the first");
        if depth as usize > newest.queue.capacity() {
            let twice = u32::try_from(newest.queue.capacity() * 2).unwrap_or(u32::MAX);
            let (ring, consumer) = Ring::new(depth.max(twice));
            self.poller().rings.push(consumer);
            let _ = newest.next.set(Box::new(ring)); // Other calls wait for the tokens.
        }
        self.depth.store(depth.max(1), Ordering::Relaxed);
        Ok(())
    }

    /// Sets the moderation of notifications: a waiter is notified when `count` completions have
    /// arrived, or `period` after the first one, whichever is sooner. Zeros: at every completion.
    /// Completions that are queued when the CQ is armed are notified at once.
    pub fn moderate(&self, count: u32, period: Duration) {
        let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        self.moderation.count.store(count, Ordering::Relaxed);
        self.moderation.period.store(period, Ordering::Relaxed);
    }

    /// Time at which a notification that moderation delays is due.
    pub fn notification_due(&self) -> Option<Instant> {
        let due = self.moderation.due.load(Ordering::Relaxed);
        (due != 0).then(|| Instant::from_nanos(due))
    }

    /// Sends the notification that moderation delays, if it is due. Returns true if it was due.
    pub fn notify_if_due(&self, now: Instant) -> bool {
        let is_due = self.notification_due().is_some_and(|due| due <= now);
        if is_due {
            self.wake_waiter();
        }
        is_due
    }

    fn newest(&self) -> &Queue<Completion> {
        let mut ring = &self.first;
        while let Some(next) = ring.next.get() {
            ring = next;
        }
        &ring.queue
    }

    /// Returns true if the program sleeps on this queue: a completion has woken it at least once.
    /// It may be awake now, and poll.
    #[inline]
    pub fn sleeps(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Appends a completion and notifies the waiter if the CQ is armed for this kind.
    ///
    /// # Errors
    /// [`CqFull`]: the completion is lost, and every later one is refused, too.
    #[inline]
    pub fn push(&self, completion: Completion) -> Result<(), CqFull> {
        if self.overflowed() || !self.newest().push(&completion, self.depth()) {
            self.overflowed.store(true, Ordering::Relaxed);
            return Err(CqFull);
        }
        // Pairs with the fence in `arm`: at least one of the two reads the other's store.
        fence(Ordering::SeqCst);
        let solicited = completion.solicited || !completion.is_success();
        let unreported = if solicited { UNREPORTED | UNREPORTED_SOLICITED } else { UNREPORTED };
        let state = self.state.load(Ordering::Relaxed);
        if state & (ARMED | unreported) != unreported {
            self.notify(state, unreported, completion.at);
        }
        Ok(())
    }

    /// Wakes a waiter for a completion that arrived at `at`; without a waiter, marks the CQ as
    /// having unreported completions.
    fn notify(&self, mut state: u8, unreported: u8, at: Instant) {
        let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let mut is_time = None; // The completion is counted once.
        loop {
            let is_armed_for = match state & ARMED {
                UNARMED => false,
                ARMED_SOLICITED => unreported & UNREPORTED_SOLICITED != 0,
                _ => true,
            };
            if is_armed_for && *is_time.get_or_insert_with(|| self.moderation.count_one(at)) {
                if self.wake_waiter() {
                    return;
                }
                state = self.state.load(Ordering::Relaxed); // Another core was faster.
                continue;
            }
            match self.state.compare_exchange(state, state | unreported, set, failed) {
                Ok(_) => return,
                Err(other) => state = other,
            }
        }
    }

    /// Wakes the waiter, if any. Unreported completions stay marked. Returns true if there was one.
    fn wake_waiter(&self) -> bool {
        let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let disarm = |state: u8| (state & ARMED != UNARMED).then_some(UNARMED);
        // Before disarming: a completion that is delayed from now on gets a deadline of its own.
        self.moderation.restart();
        if self.state.fetch_update(set, failed, disarm).is_err() {
            return false;
        }
        self.sleeps.store(true, Ordering::Relaxed);
        match &self.wake_method {
            WakeMethod::Waker(waker) => waker.wake_by_ref(),
            WakeMethod::Descriptor(fd) => {
                if let Some(fd) = fd.get() {
                    fd.signal();
                }
            }
        }
        true
    }

    /// Appends up to `most` completions to `out`. Returns their number.
    #[inline]
    pub fn take(&self, out: &mut Vec<Completion>, most: usize) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut poller = self.poller();
        let mut taken = 0;
        while taken < most
            && let Some(completion) = self.next_in_front(&mut poller)
        {
            out.push(completion);
            taken += 1;
        }
        for ring in &mut poller.rings {
            taken += ring.take(out, most - taken);
        }
        taken
    }

    /// Takes one completion.
    #[inline]
    pub fn pop(&self) -> Option<Completion> {
        if self.is_empty() {
            return None;
        }
        let mut poller = self.poller();
        self.next_in_front(&mut poller).or_else(|| poller.next_in_rings())
    }

    fn poller(&self) -> MutexGuard<'_, Poller> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn next_in_front(&self, poller: &mut Poller) -> Option<Completion> {
        let completion = poller.front.pop_front()?;
        self.in_front.store(poller.front.len(), Ordering::Release);
        Some(completion)
    }

    /// Removes the completions of the QP `qp` and frees their slots. The caller must hold the token
    /// of the QP's core, so that none is added meanwhile.
    pub fn remove_completions_of(&self, qp: Qpn) {
        if self.is_empty() {
            return;
        }
        let mut poller = self.poller();
        // Readers that see a length above 0 wait for the lock and do not find the queue empty
        // meanwhile.
        self.in_front.store(self.held(), Ordering::Release);
        while let Some(completion) = poller.next_in_rings() {
            poller.front.push_back(completion);
        }
        poller.front.retain(|completion| completion.qp != qp);
        self.in_front.store(poller.front.len(), Ordering::Release);
    }

    /// Arms the CQ: requests one wake-up at the next completion of the kind `notify`. A request for
    /// any completion stays until its wake-up: a later request for solicited ones does not narrow
    /// it. If the queue
    /// holds a completion of this kind that arrived after the last wake-up, the waiter is woken at
    /// once, moderated or not.
    ///
    /// An RNIC behaves like this, because it records which completions it reported and learns
    /// from the doorbell which ones were polled. Applications that poll until the queue is empty
    /// and arm then, such as UCX, would otherwise sleep through completions that arrive between the
    /// two steps. Applications that arm before they poll are not woken twice for the same
    /// completion.
    pub fn arm(&self, notify: Notify) {
        if let WakeMethod::Descriptor(fd) = &self.wake_method
            && let Some(fd) = fd.get()
        {
            fd.clear();
        }
        let (armed, unreported) = match notify {
            Notify::Any => (ARMED_ANY, UNREPORTED),
            Notify::Solicited => (ARMED_SOLICITED, UNREPORTED_SOLICITED),
        };
        if self.state.load(Ordering::Relaxed) & ARMED == UNARMED {
            self.moderation.restart();
        }
        // The wider request has the higher number.
        let keep = |state: u8| Some(state & !ARMED | armed.max(state & ARMED));
        let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let before = self.state.fetch_update(set, failed, keep).unwrap_or(UNARMED);
        fence(Ordering::SeqCst);
        // Completions are taken in order: if any is left, the newest one is left, which is
        // unreported. (The unreported solicited completion may have been taken already; the wake-up
        // is spurious then.)
        if before & unreported != 0 && self.held() > 0 {
            self.wake_waiter();
        }
    }

    /// A descriptor that becomes readable with a completion that [`CqRing::arm`] requested, and
    /// stays readable until the CQ is armed again. It is opened at the first call, which must be
    /// before the CQ is armed. `None` if the queue wakes a waker.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn open_fd(&self) -> std::io::Result<Option<BorrowedFd<'_>>> {
        let WakeMethod::Descriptor(place) = &self.wake_method else { return Ok(None) };
        if let Some(fd) = place.get() {
            return Ok(Some(fd.as_fd()));
        }
        let opened = EventFd::new()?;
        // If two threads race, one descriptor is closed, which nobody has seen.
        Ok(Some(place.get_or_init(|| opened).as_fd()))
    }

    /// Returns true if a waker is notified in place of the descriptor.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_waker(&self) -> bool {
        matches!(self.wake_method, WakeMethod::Waker(_))
    }

    /// Returns true once a completion was lost because the queue was full.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Adds core number `core` to those that complete to this queue.
    pub(crate) fn add_core(&self, core: usize) {
        self.cores.fetch_or(1 << core, Ordering::Relaxed);
    }

    /// Cores that complete to this queue, one bit each.
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
        crate::sys::poll_readable(
            &[cq.open_fd().unwrap().unwrap().as_raw_fd()],
            &mut scratch,
            no_wait,
        );
        scratch[0].revents != 0
    }

    #[test]
    fn a_queue_that_is_only_polled_has_no_descriptor() {
        let cq = CqRing::new(CqId(1), 2);
        let has_fd = || matches!(&cq.wake_method, WakeMethod::Descriptor(fd) if fd.get().is_some());
        cq.push(completion(1, false)).unwrap();
        assert!(cq.pop().is_some() && !has_fd());
        assert!(!readable(&cq) && has_fd());
        cq.arm(Notify::Any);
        cq.push(completion(2, false)).unwrap();
        assert!(readable(&cq));
        let waking = CqRing::with_waker(CqId(1), 2, Waker::noop().clone());
        assert!(waking.open_fd().unwrap().is_none());
    }

    #[test]
    fn a_full_queue_refuses_completions_and_keeps_its_own() {
        let cq = CqRing::new(CqId(1), 2);
        assert_eq!(cq.push(completion(1, false)), Ok(()));
        assert_eq!(cq.push(completion(2, false)), Ok(()));
        assert!(!cq.overflowed());
        assert_eq!(cq.push(completion(3, false)), Err(CqFull));
        assert!(cq.overflowed());
        let mut out = Vec::new();
        assert_eq!(cq.take(&mut out, 8), 2);
        assert_eq!(out.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2]);
    }

    /// Whatever the sequence of sizes, completions come out in order, and the queue holds its
    /// depth.
    #[test]
    fn a_queue_grows_and_shrinks() {
        let cq = CqRing::new(CqId(1), 2);
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
        let cq = CqRing::new(CqId(1), 64);
        let at = |nanos| Completion { at: Instant::from_nanos(nanos), ..completion(1, false) };
        cq.moderate(3, Duration::from_nanos(500));
        cq.arm(Notify::Any);
        cq.push(at(1000)).unwrap();
        cq.push(at(1100)).unwrap();
        assert!(!readable(&cq));
        assert_eq!(cq.notification_due(), Some(Instant::from_nanos(1500)), "after the first");
        cq.push(at(1200)).unwrap();
        assert!(readable(&cq) && cq.notification_due().is_none(), "the third");
        cq.arm(Notify::Any);
        cq.push(at(2000)).unwrap();
        assert!(!cq.notify_if_due(Instant::from_nanos(2499)) && !readable(&cq));
        assert!(cq.notify_if_due(Instant::from_nanos(2500)) && readable(&cq));
        cq.moderate(0, Duration::ZERO);
        cq.arm(Notify::Any);
        cq.push(at(3000)).unwrap();
        assert!(readable(&cq), "at once again");
    }

    #[test]
    fn removed_completions_free_their_places() {
        let cq = CqRing::new(CqId(1), 4);
        let of = |qp, wr_id| Completion { qp: Qpn::masked(qp), ..completion(wr_id, false) };
        let put = |completion| assert_eq!(cq.push(completion), Ok(()));
        [of(5, 1), of(6, 2), of(5, 3), of(6, 4)].into_iter().for_each(put);
        cq.remove_completions_of(Qpn::masked(5));
        assert_eq!(cq.held(), 2);
        // Only completions that are in the queue are removed, not later ones of the same QP number.
        [of(5, 5), of(6, 6)].into_iter().for_each(put);
        let mut taken = Vec::new();
        assert_eq!(cq.take(&mut taken, 3), 3);
        taken.extend(std::iter::from_fn(|| cq.pop()));
        assert_eq!(taken.iter().map(|shown| shown.wr_id).collect::<Vec<_>>(), [2, 4, 5, 6]);
        assert_eq!(cq.held(), 0);
        // An application that resets its QP repeatedly without polling does not fill the queue.
        for wr_id in 0..100 {
            cq.push(of(5, wr_id)).unwrap();
            cq.remove_completions_of(Qpn::masked(5));
        }
        assert!(!cq.overflowed() && cq.pop().is_none());
    }

    #[test]
    fn arming_wakes_once_and_only_for_its_kind() {
        let cq = CqRing::new(CqId(1), 8);
        cq.push(completion(1, false)).unwrap();
        assert!(!readable(&cq), "not armed");
        cq.arm(Notify::Solicited);
        cq.push(completion(2, false)).unwrap();
        assert!(!readable(&cq) && !cq.sleeps(), "not solicited");
        cq.push(completion(3, true)).unwrap();
        assert!(readable(&cq) && cq.sleeps());
        cq.arm(Notify::Any);
        assert!(!readable(&cq), "arming clears");
        cq.push(Completion { status: Status::Fatal, ..completion(4, false) }).unwrap();
        assert!(readable(&cq));
    }

    /// A later request for solicited completions does not narrow a request for any completion; a
    /// later request for any completion widens a request for solicited ones.
    #[test]
    fn the_wider_of_two_requests_counts() {
        use Notify::{Any, Solicited};
        for (first, second, wakes) in
            [(Any, Solicited, true), (Solicited, Any, true), (Solicited, Solicited, false)]
        {
            let cq = CqRing::new(CqId(1), 8);
            cq.arm(first);
            cq.arm(second);
            assert!(!readable(&cq));
            cq.push(completion(1, false)).unwrap();
            assert_eq!(readable(&cq), wakes, "{first:?}, {second:?}");
            // The wake-up ends both requests.
            cq.arm(Solicited);
            cq.push(completion(2, false)).unwrap();
            assert!(!readable(&cq));
            cq.push(completion(3, true)).unwrap();
            assert!(readable(&cq));
        }
    }

    /// Completions that arrived between the last poll and arming are reported at once; completions
    /// that were reported or taken are not reported again.
    #[test]
    fn arming_reports_completions_since_the_last_wake_up() {
        let cq = CqRing::new(CqId(1), 8);
        cq.push(completion(1, false)).unwrap();
        cq.arm(Notify::Solicited);
        assert!(!readable(&cq), "not solicited");
        cq.arm(Notify::Any);
        assert!(readable(&cq), "the completion arrived before arming");
        cq.arm(Notify::Any);
        assert!(!readable(&cq), "already reported");
        cq.push(completion(2, true)).unwrap();
        cq.push(completion(3, false)).unwrap();
        assert!(readable(&cq), "the second was reported, the third was not");
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

    /// Two threads push whenever the queue is empty. A third polls until the queue is empty, arms
    /// and sleeps. It must never sleep while completions are queued: the other two would push no
    /// more.
    #[test]
    fn a_waiter_never_sleeps_while_completions_are_queued() {
        const EACH: u64 = 20_000;
        let cq = CqRing::new(CqId(1), 64);
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
                let timeout = Some(std::time::Duration::from_secs(20));
                crate::sys::poll_readable(
                    &[cq.open_fd().unwrap().unwrap().as_raw_fd()],
                    &mut scratch,
                    timeout,
                );
                assert_ne!(scratch[0].revents, 0, "{taken} taken, {} in the queue", cq.held());
            }
        });
    }

    /// A core may find a notification due that another core has just sent.
    #[test]
    fn a_due_notification_without_a_waiter_stays_unreported() {
        let cq = CqRing::new(CqId(1), 8);
        cq.push(completion(1, false)).unwrap();
        cq.moderation.due.store(1, Ordering::Relaxed);
        cq.notify_if_due(Instant::from_nanos(1000));
        assert!(!readable(&cq) && cq.notification_due().is_none());
        cq.arm(Notify::Any);
        assert!(readable(&cq));
    }
}
