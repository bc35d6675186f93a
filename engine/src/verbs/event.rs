//! Asynchronous events of a device.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use feroce_wire::Qpn;

use super::cq::CqId;
use super::srq::SrqId;
use crate::wake::EventFd;

/// Something that happened to an object while nobody asked, as `ibv_async_event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AsyncEvent {
    /// A completion queue was full when a request completed; the QP went to ERR.
    CqError(CqId),
    /// A QP went to ERR for a reason that no work request can tell.
    QpFatal(Qpn),
    /// A peer sent a request that the QP had to refuse as invalid (class C error).
    QpRequestError(Qpn),
    /// A peer tried to access memory it may not (class C error).
    QpAccessError(Qpn),
    /// The first packet arrived on a QP that is still in RTR.
    CommunicationEstablished(Qpn),
    /// The send queue of a QP in SQD is drained.
    SqDrained(Qpn),
    /// A shared receive queue has fewer receives than the limit that was armed.
    SrqLimitReached(SrqId),
    /// A QP in ERR has taken its last receive from its shared queue.
    LastWqeReached(Qpn),
    /// The port came up.
    PortActive,
    /// The port went down.
    PortError,
    /// The GID table changed.
    GidChange,
}

/// Where events go at once, instead of waiting to be read. Called by whoever raises the event, perhaps in the
/// middle of a turn: it must not block, and not call the device.
pub struct EventSink(pub Box<dyn Fn(AsyncEvent) + Send + Sync>);

impl std::fmt::Debug for EventSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventSink")
    }
}

/// Events waiting to be read, and a descriptor that is readable while there are any.
#[derive(Debug)]
pub struct EventQueue {
    events: ArrayQueue<AsyncEvent>,
    fd: EventFd,
    sink: OnceLock<EventSink>,
    lost: AtomicU64,
}

impl EventQueue {
    /// A queue for `capacity` unread events.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new(capacity: usize) -> std::io::Result<Self> {
        Ok(Self {
            events: ArrayQueue::new(capacity),
            fd: EventFd::new()?,
            sink: OnceLock::new(),
            lost: AtomicU64::new(0),
        })
    }

    /// From now on events go to `sink` instead. False if there is one already.
    pub fn set_sink(&self, sink: EventSink) -> bool {
        self.sink.set(sink).is_ok()
    }

    /// Adds an event. The oldest unread one is given up for it if the queue is full.
    pub fn push(&self, event: AsyncEvent) {
        if let Some(sink) = self.sink.get() {
            return (sink.0)(event);
        }
        if self.events.force_push(event).is_some() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.fd.signal();
    }

    /// The oldest unread event.
    pub fn pop(&self) -> Option<AsyncEvent> {
        let event = self.events.pop();
        if event.is_none() {
            self.fd.clear();
            let late = self.events.pop(); // One may have come between the two steps, and another.
            if !self.events.is_empty() {
                self.fd.signal();
            }
            return late;
        }
        event
    }

    /// Events given up because nobody read them.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Readable when events wait; it may stay readable until [`EventQueue::pop`] finds none.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
