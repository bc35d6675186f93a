//! A thread that follows the host's addressing and publishes changes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::NetError;
use super::event::{NetEvent, PublishedState, Snapshot};
use super::netlink::{Connection, Received, Wait, Waker};
use crate::time::{Clock, Duration, Instant};

/// Netlink groups that the watcher subscribes to.
const GROUPS: [u32; 6] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
];

/// Pause before another attempt when the kernel's tables could not be read.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Follows the addressing of one network namespace until it is dropped.
/// Dropping the watcher stops and joins its thread, so the callback is not called afterwards. (A
/// drop inside the callback only requests the stop.)
#[derive(Debug)]
pub struct Watcher {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts to watch the network namespace of the calling thread.
    ///
    /// `callback` is called on the watcher's thread: first with the whole current state, ended by
    /// [`NetEvent::Synchronised`], then with every change. It should not block for long. If the
    /// kernel drops events meanwhile, everything is read again.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read or the thread cannot be started.
    pub fn start(callback: Box<dyn FnMut(NetEvent) + Send>) -> Result<Self, NetError> {
        let mut callback = callback;
        let on_event = move |event| match event {
            Watched::Event(event) => callback(event),
            Watched::Tick => {}
        };
        Self::start_with_ticks(None, Box::new(on_event))
    }

    /// As [`Self::start`], and calls `callback` once per `interval` without an event as well.
    pub(crate) fn start_with_ticks(
        interval: Option<Duration>,
        callback: Box<dyn FnMut(Watched) + Send>,
    ) -> Result<Self, NetError> {
        // The sockets are opened here and not by the thread, so that they belong to the caller's
        // namespace. They subscribe before the first snapshot, so that no event is missed.
        let events = Connection::open()?;
        for group in GROUPS {
            events.join(group)?;
        }
        let mut requests = Connection::open()?;
        let first = Snapshot::read(&mut requests)?;

        let stop = Arc::new(AtomicBool::new(false));
        let waker = events.waker();
        let task = Task {
            events,
            requests,
            published: PublishedState::default(),
            callback,
            ticks: interval.map(Ticks::start),
            stop: Arc::clone(&stop),
        };
        let thread =
            feroce_threads::spawn("feroce-net", move || task.run(first)).map_err(|error| {
                NetError::Thread { errno: error.raw_os_error().unwrap_or(libc::EAGAIN) }
            })?;
        Ok(Self { stop, waker, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            // Joining could block for an unlimited time; the next event ends the thread.
            tracing::error!(%error, "the address watcher could not be woken to stop");
            return;
        }
        let Some(thread) = self.thread.take() else {
            return;
        };
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            tracing::error!("the callback of the address watcher panicked");
        }
    }
}

/// What the callback of [`Watcher::start_with_ticks`] is called for.
#[derive(Debug)]
pub(crate) enum Watched {
    /// A change of the host.
    Event(NetEvent),
    /// The interval has passed.
    Tick,
}

/// The times at which the callback is called without an event.
#[derive(Debug)]
struct Ticks {
    interval: Duration,
    clock: Clock,
    next: Instant,
}

impl Ticks {
    fn start(interval: Duration) -> Self {
        let clock = Clock::start();
        Self { interval, clock, next: clock.now() + interval }
    }

    /// Returns true once per interval.
    fn is_due(&mut self) -> bool {
        let now = self.clock.now();
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval;
        }
        is_due
    }

    /// The time until the next tick.
    fn left(&self) -> Duration {
        self.next.saturating_since(self.clock.now())
    }
}

struct Task {
    /// Subscribed to [`GROUPS`].
    events: Connection,
    /// Socket for requests, so that their responses and events do not mix.
    requests: Connection,
    published: PublishedState,
    callback: Box<dyn FnMut(Watched) + Send>,
    ticks: Option<Ticks>,
    stop: Arc<AtomicBool>,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("published", &self.published).finish_non_exhaustive()
    }
}

impl Task {
    fn run(mut self, first: Snapshot) {
        let mut changes = Vec::new();
        self.published.replace(first, &mut changes);
        changes.push(NetEvent::Synchronised);
        let mut messages = Vec::new();
        // The order of these steps matters: `stop` is set before the wake-up is sent.
        loop {
            for event in changes.drain(..) {
                (self.callback)(Watched::Event(event));
            }
            if self.stopping() {
                return;
            }
            let wait = match &mut self.ticks {
                Some(ticks) => {
                    if ticks.is_due() {
                        (self.callback)(Watched::Tick);
                    }
                    Wait::AtMost(ticks.left())
                }
                None => Wait::Forever,
            };
            match self.events.receive(wait, &mut messages) {
                Ok(Received::Messages) => {
                    for message in messages.drain(..) {
                        self.published.apply(&message, &mut changes);
                    }
                }
                Ok(Received::Overrun) => self.synchronise(&mut changes),
                Ok(Received::Nothing) => {}
                Err(error) => {
                    tracing::error!(%error, "address watcher: reading everything again");
                    thread::sleep(RETRY_PAUSE);
                    self.synchronise(&mut changes);
                }
            }
        }
    }

    /// Reads everything again after events were lost.
    fn synchronise(&mut self, changes: &mut Vec<NetEvent>) {
        // The kernel drops further events until the queue is empty. Empty it first, because changes
        // between a snapshot and that moment would be lost otherwise.
        let mut older = Vec::new();
        while !matches!(self.events.receive(Wait::No, &mut older), Ok(Received::Nothing) | Err(_)) {
            older.clear();
            if self.stopping() {
                return;
            }
        }
        while !self.stopping() {
            match Snapshot::read(&mut self.requests) {
                Ok(snapshot) => {
                    self.published.replace(snapshot, changes);
                    // Routes are not stored, so any of them may have changed.
                    changes.extend([NetEvent::RouteChanged, NetEvent::Synchronised]);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "address watcher: reading again");
                    thread::sleep(RETRY_PAUSE);
                }
            }
        }
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
