//! A queue of events with a descriptor that programs may poll, read and make nonblocking.
//!
//! The descriptor is an eventfd in semaphore mode: it is readable once per event, and reading it
//! blocks or not, as the program has set it. The kernel's descriptors behave the same.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::errno;

/// A queue of events of type `T`.
#[derive(Debug)]
pub struct Channel<T> {
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
    /// Events in `events` that the descriptor does not count yet.
    uncounted: AtomicUsize,
}

impl<T> Channel<T> {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// The error number if no descriptor is left.
    pub fn new() -> Result<Self, c_int> {
        // SAFETY: the function takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(errno::last());
        }
        // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: Mutex::default(), uncounted: AtomicUsize::new(0) })
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        self.push_into(self.events(), event);
    }

    /// Adds an event of a source, unless the source is retired. A source that sets the flag and
    /// then calls [`Channel::remove`] has no events in the queue afterwards.
    pub fn push_unless(&self, is_retired: &AtomicBool, event: T) {
        let events = self.events();
        // read while locked: either `remove` finds the event, or this line finds the flag
        if !is_retired.load(Ordering::Acquire) {
            self.push_into(events, event);
        }
    }

    /// Adds an event. The queue is unlocked before the descriptor becomes readable: the reader,
    /// which may take over this CPU at once, does not have to wait for the lock.
    fn push_into(&self, mut events: MutexGuard<'_, VecDeque<T>>, event: T) {
        events.push_back(event);
        self.uncounted.fetch_add(1, Ordering::Relaxed);
        drop(events);
        let one = 1u64.to_ne_bytes();
        // SAFETY: the kernel reads the eight bytes. The call blocks only at 2^64 events.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
        self.uncounted.fetch_sub(1, Ordering::Release);
    }

    /// Removes and returns the events for which `which` returns true.
    pub fn remove(&self, which: impl Fn(&T) -> bool) -> Vec<T> {
        let mut events = self.events();
        let (removed, kept): (VecDeque<T>, VecDeque<T>) =
            std::mem::take(&mut *events).into_iter().partition(|event| which(event));
        *events = kept;
        // Other threads are about to count their events; the lock keeps new ones out.
        while self.uncounted.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        for _ in &removed {
            let mut count = [0u8; 8];
            let mut part =
                libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
            // `RWF_NOWAIT` instead of `read`: a thread in `get` may have consumed the count
            // already. SAFETY: the kernel writes eight bytes to `count`, which outlives the call.
            unsafe { libc::preadv2(self.fd(), &raw mut part, 1, -1, libc::RWF_NOWAIT) };
        }
        removed.into()
    }
}

thread_local! {
    /// The queue at which this thread waits. If the thread ends there, the queue is dropped with
    /// the other values of the thread.
    static AWAITED: RefCell<Option<Arc<dyn Any + Send + Sync>>> = const { RefCell::new(None) };
}

unsafe extern "C-unwind" {
    /// `libc::read`, declared as a function that may unwind.
    fn read(fd: c_int, buffer: *mut c_void, size: usize) -> isize;
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Begins to wait for an event of `queue`; returns the descriptor for [`wait`]. The thread keeps
/// the queue until it calls [`end`] or ends.
pub fn begin<T: Send + 'static>(queue: Arc<Channel<T>>) -> RawFd {
    let fd = queue.fd();
    AWAITED.set(Some(queue));
    fd
}

/// Waits for an event, unless the program made the descriptor nonblocking. Returns false with
/// `errno` set, EAGAIN or EINTR, if there is none.
///
/// Here the program may cancel the thread (`pthread_cancel`), as in rdma-core's functions: the C
/// library unwinds the stack. Rust allows that in functions whose ABI unwinds and which have no
/// values to drop. So a function that the program calls is `extern "C-unwind"`, calls `wait`
/// itself, and calls [`begin`] and [`end`] within separate functions.
pub fn wait(fd: RawFd) -> bool {
    let mut count = [0u8; 8];
    // SAFETY: the kernel writes eight bytes to `count`.
    unsafe { read(fd, count.as_mut_ptr().cast(), count.len()) >= 0 }
}

/// Returns the oldest event after [`wait`] has returned true, after calling `take` on it. Returns
/// `None` if the event was removed meanwhile: then the caller waits again.
pub fn end<T: Send + 'static>(take: impl FnOnce(&T)) -> Option<T> {
    let queue = AWAITED.take()?.downcast::<Channel<T>>().ok()?;
    // locked while `take` runs, so that `remove` sees the event either queued or counted
    let mut events = queue.events();
    let event = events.pop_front()?;
    take(&event);
    Some(event)
}

/// While it exists, the program cannot cancel the thread.
#[derive(Debug)]
pub struct Uncancellable(c_int);

impl Uncancellable {
    /// Disables cancellation.
    #[must_use]
    pub fn new() -> Self {
        Self(set_cancel_state(1)) // PTHREAD_CANCEL_DISABLE
    }
}

impl Default for Uncancellable {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Uncancellable {
    fn drop(&mut self) {
        set_cancel_state(self.0);
    }
}

/// Sets whether the thread can be cancelled; returns whether it could be.
fn set_cancel_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: the function writes an integer, and with deferred cancellation it does not unwind.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Number of an object's events that the program has read and not acknowledged.
#[derive(Debug, Default)]
pub struct Unacknowledged {
    count: Mutex<Count>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Count {
    events: u64,
    /// A thread waits, or has waited. Without one, an acknowledgement needs no system call.
    is_awaited: bool,
}

impl Unacknowledged {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more event as read.
    pub fn add(&self) {
        self.count().events += 1;
    }

    /// Counts `events` events as acknowledged.
    pub fn acknowledge(&self, events: u64) {
        let mut count = self.count();
        count.events = count.events.saturating_sub(events);
        if count.is_awaited {
            self.changed.notify_all();
        }
    }

    /// Waits until all events are acknowledged.
    pub fn wait(&self) {
        let mut count = self.count();
        count.is_awaited = true;
        while count.events > 0 {
            count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: RawFd) -> bool {
        let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which outlives the call.
        unsafe { libc::poll(&raw mut polled, 1, 0) };
        polled.revents != 0
    }

    fn get<T: Send + 'static>(channel: &Arc<Channel<T>>) -> Result<Option<T>, c_int> {
        match wait(begin(Arc::clone(channel))) {
            true => Ok(end(|_| ())),
            false => Err(errno::last()),
        }
    }

    #[test]
    fn the_descriptor_is_readable_once_per_event_and_may_be_nonblocking() {
        let channel = Arc::new(Channel::new().unwrap());
        channel.push(1);
        channel.push(2);
        assert!(readable(channel.fd()));
        assert_eq!((get(&channel), readable(channel.fd())), (Ok(Some(1)), true));
        assert_eq!((get(&channel), readable(channel.fd())), (Ok(Some(2)), false));
        // SAFETY: the function takes no pointers.
        unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(get(&channel), Err(libc::EAGAIN));
    }

    #[test]
    fn removed_events_do_not_make_it_readable() {
        let channel = Arc::new(Channel::new().unwrap());
        for event in [1, 2, 1] {
            channel.push(event);
        }
        channel.remove(|&event| event == 1);
        assert_eq!((get(&channel), readable(channel.fd())), (Ok(Some(2)), false));
    }

    #[test]
    fn a_retired_source_leaves_no_event() {
        let channel = Channel::new().unwrap();
        for _ in 0..200 {
            let is_retired = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let pusher = || (0..100).for_each(|_| channel.push_unless(&is_retired, 1));
                let pushing = scope.spawn(pusher);
                is_retired.store(true, Ordering::Release);
                channel.remove(|_| true);
                pushing.join().unwrap();
            });
            assert!(!readable(channel.fd()) && channel.events().is_empty());
        }
    }

    /// Begins to wait with the reference `queue`.
    extern "C" fn begin_with(queue: *mut c_void) -> RawFd {
        // SAFETY: the test passes a reference that it has turned into a pointer.
        begin(unsafe { Arc::from_raw(queue.cast::<Channel<u32>>()) })
    }

    extern "C-unwind" fn sleep(queue: *mut c_void) -> *mut c_void {
        wait(begin_with(queue));
        std::ptr::null_mut()
    }

    #[test]
    fn a_waiting_thread_can_be_cancelled_and_leaves_the_queue() {
        type Start = extern "C" fn(*mut c_void) -> *mut c_void;
        // SAFETY: the C library unwinds threads that it has started; it does not know Rust's ABIs.
        let start: Start = unsafe {
            std::mem::transmute::<extern "C-unwind" fn(*mut c_void) -> *mut c_void, Start>(sleep)
        };
        for _ in 0..20 {
            let queue = Arc::new(Channel::<u32>::new().unwrap());
            let argument = Arc::into_raw(Arc::clone(&queue)).cast_mut().cast();
            let (mut thread, mut result) = (0, std::ptr::null_mut());
            // SAFETY: the thread gets a reference of its own, and it is joined.
            unsafe {
                let made = libc::pthread_create(&raw mut thread, std::ptr::null(), start, argument);
                assert_eq!(made, 0);
                assert_eq!(libc::pthread_cancel(thread), 0);
                assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
            }
            assert_eq!(result.addr().cast_signed(), -1, "PTHREAD_CANCELED");
            assert_eq!(Arc::strong_count(&queue), 1);
        }
    }

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let unacknowledged = Unacknowledged::default();
        unacknowledged.add();
        unacknowledged.add();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| unacknowledged.wait());
            unacknowledged.acknowledge(1);
            assert!(!waiter.is_finished());
            unacknowledged.acknowledge(1);
        });
    }
}
