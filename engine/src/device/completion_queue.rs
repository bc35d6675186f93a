//! The handle to a completion queue.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::Waker;

use super::quota::Place;
use super::{Device, DeviceError, MAX_CQE, Opened};
use crate::time::Duration;
use crate::verbs::{Completion, CqId, CqRing, Notify};

/// A completion queue. Threads may share it; clones are handles to the same queue, and QPs made
/// with it keep it alive.
///
/// Its descriptor ([`AsFd`]) becomes readable after [`CompletionQueue::request_notify`], as that of
/// a completion channel does. It works with `poll`, `epoll` and `AsyncFd`; with the feature
/// `tokio`, `stream::CompletionStream` wraps it. A queue that is only polled has no descriptor: it
/// is opened when it is first used, or by [`CompletionQueue::open_fd`].
///
/// ```
/// use feroce_engine::verbs::{Completion, Notify};
/// # use std::os::fd::AsFd;
/// # use feroce_engine::device::{CompletionQueue, Device, DeviceConfig};
///
/// /// Spins: the lowest latency.
/// fn spin(cq: &CompletionQueue) -> Completion {
///     loop {
///         if let Some(completion) = cq.poll_one() {
///             return completion;
///         }
///     }
/// }
///
/// /// Sleeps on the descriptor. `wait` returns when it is readable.
/// fn sleep(cq: &CompletionQueue, wait: impl Fn(std::os::fd::BorrowedFd<'_>)) -> Completion {
///     loop {
///         if let Some(completion) = cq.poll_one() {
///             return completion;
///         }
///         cq.request_notify(Notify::Any);
///         if let Some(completion) = cq.pop() {
///             return completion; // Arrived before the request.
///         }
///         wait(cq.as_fd());
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let [device, _] = Device::open_pair(&DeviceConfig::default())?;
/// let cq = device.create_cq(256)?;
/// assert!(cq.poll_one().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CompletionQueue {
    pub(super) ring: Arc<CqRing>,
    pub(super) device: Arc<Opened>,
    _place: Arc<Place>,
}

impl Device {
    /// Makes a completion queue for `depth` completions. A QP that completes to a full queue goes
    /// to ERR, so choose a depth of at least the number of outstanding requests.
    ///
    /// # Errors
    /// [`DeviceError::Limit`]; [`DeviceError::Exhausted`].
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, DeviceError> {
        self.create_cq_with(depth, None)
    }

    /// Like [`Device::create_cq`], but a requested notification wakes `waker`: the queue has no
    /// descriptor. The waker is called in the middle of a core's turn, by the
    /// thread that runs the turn: it must neither block nor call the device.
    ///
    /// # Errors
    /// As for [`Device::create_cq`].
    pub fn create_cq_waking(
        &self,
        depth: u32,
        waker: Waker,
    ) -> Result<CompletionQueue, DeviceError> {
        self.create_cq_with(depth, Some(waker))
    }

    fn create_cq_with(
        &self,
        depth: u32,
        waker: Option<Waker>,
    ) -> Result<CompletionQueue, DeviceError> {
        check_depth(depth)?;
        let _place = Arc::new(self.inner.cq_quota.take()?);
        let id = self.inner.next_cq.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let ring = match waker {
            Some(waker) => CqRing::with_waker(CqId(id), depth, waker),
            None => CqRing::new(CqId(id), depth),
        };
        let ring = Arc::new(ring);
        Ok(CompletionQueue { ring, device: Arc::clone(&self.inner), _place })
    }
}

fn check_depth(depth: u32) -> Result<(), DeviceError> {
    if depth == 0 || depth > MAX_CQE {
        let (value, limit) = (u64::from(depth), u64::from(MAX_CQE));
        return Err(DeviceError::Limit { what: "CQ depth", value, limit });
    }
    Ok(())
}

const NO_DESCRIPTOR: &str = "a free descriptor for the completion queue";

impl CompletionQueue {
    /// Appends up to `max` completions to `out`; returns how many. If there are none, runs one turn
    /// of the cores that complete to this queue and looks again: polling drives a device with the
    /// lowest latency.
    #[inline]
    pub fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        match self.ring.take(out, max) {
            0 => {
                self.device.drive(self.ring.cores());
                self.ring.take(out, max)
            }
            count => count,
        }
    }

    /// Returns a completion, if there is one; drives the device as [`CompletionQueue::poll`] does.
    #[inline]
    pub fn poll_one(&self) -> Option<Completion> {
        self.ring.pop().or_else(|| {
            self.device.drive(self.ring.cores());
            self.ring.pop()
        })
    }

    /// Returns a completion, if there is one, without driving the device. For further completions
    /// after the first.
    #[inline]
    pub fn pop(&self) -> Option<Completion> {
        self.ring.pop()
    }

    /// Opens the queue's descriptor, unless it is open already or notifications wake a waker. The
    /// calls that use the descriptor open it, too, and panic if the system has none left.
    ///
    /// # Errors
    /// [`DeviceError::System`] when no descriptor is left.
    pub fn open_fd(&self) -> Result<(), DeviceError> {
        self.ring.open_fd().map(drop).map_err(DeviceError::System)
    }

    /// Requests a notification: the descriptor becomes readable at the next completion of the kind,
    /// or at once if such a completion has arrived since the descriptor last became readable. Poll
    /// once more after this call and before sleeping, unless the descriptor was readable after the
    /// last call; this call clears the descriptor.
    ///
    /// # Panics
    /// If the queue has no descriptor yet and the system has none left: [`Self::open_fd`].
    pub fn request_notify(&self, notify: Notify) {
        self.ring.open_fd().expect(NO_DESCRIPTOR);
        self.ring.arm(notify);
        // The caller is about to sleep: the helpers take over. A helper that sleeps wakes up for
        // every frame, unlike one that has left the core to a thread that polls.
        for cell in self.device.cores.iter().filter(|cell| !cell.helper_sleeps()) {
            cell.doorbell.wake();
        }
    }

    /// Returns the number of completions in the queue, after the posted requests have progressed as
    /// far as they can without the peers.
    pub fn held(&self) -> usize {
        (0..self.device.cores.len()).for_each(|core| self.device.turn_core(core));
        self.ring.held()
    }

    /// Changes the depth to `depth`. Queued completions stay.
    ///
    /// # Errors
    /// [`DeviceError::Limit`]; [`DeviceError::Busy`] if more completions are queued.
    pub fn resize(&self, depth: u32) -> Result<(), DeviceError> {
        check_depth(depth)?;
        // All tokens are held, in core order, so no core adds completions.
        let _tokens: Vec<_> = self.device.cores.iter().map(super::CoreCell::lock).collect();
        let resized = self.ring.resize(depth);
        resized.map_err(|_| DeviceError::Busy("the completion queue holds more"))
    }

    /// Delays notifications until `count` completions have arrived, or `period` has passed since
    /// the first; zeros notify of each completion at once. As `ibv_modify_cq` with
    /// `IBV_CQ_ATTR_MODERATE`. Completions that are queued when a notification is requested are not
    /// delayed.
    pub fn moderate(&self, count: u16, period: Duration) {
        self.ring.moderate(u32::from(count), period);
        for cell in &self.device.cores {
            let mut token = cell.lock();
            token.watch_moderated(&self.ring);
            // A completion may have come before, from another thread, and await its notification.
            cell.wake_helper(&token, self.device.now());
        }
    }

    /// Returns true if notifications wake a waker in place of the descriptor.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_waker(&self) -> bool {
        self.ring.has_waker()
    }

    /// Returns the number that [`AsyncEvent::CqError`](crate::verbs::AsyncEvent::CqError) carries.
    pub fn id(&self) -> CqId {
        self.ring.id()
    }

    /// Returns the maximum number of completions.
    pub fn depth(&self) -> usize {
        self.ring.depth()
    }

    /// Returns true once a request has completed to the full queue.
    pub fn overflowed(&self) -> bool {
        self.ring.overflowed()
    }
}

/// The descriptor that is readable after a requested notification. It is opened at the first call,
/// which panics if the system has none left ([`CompletionQueue::open_fd`]), or if notifications
/// wake a waker.
impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let opened = self.ring.open_fd().expect(NO_DESCRIPTOR);
        opened.expect("a completion queue with a waker has no descriptor")
    }
}

impl AsRawFd for CompletionQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
