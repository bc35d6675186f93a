//! Asynchronous events of a device.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use feroce_wire::Qpn;

use super::ids::{CqId, SrqId};
use crate::wake::EventFd;

/// An asynchronous event, as `ibv_async_event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AsyncEvent {
    /// A request completed while its completion queue was full; the QP went to ERR.
    CqError(CqId),
    /// A QP went to ERR for a reason that no completion reports.
    QpFatal(Qpn),
    /// The QP rejected a request of its peer as invalid (class C error).
    QpRequestError(Qpn),
    /// The peer accessed memory without the needed access right (class C error).
    QpAccessError(Qpn),
    /// The first packet arrived on a QP in RTR.
    CommunicationEstablished(Qpn),
    /// The send queue of a QP in SQD is drained.
    SqDrained(Qpn),
    /// A shared receive queue holds fewer receives than the armed limit.
    SrqLimitReached(SrqId),
    /// A QP in ERR has taken its last receive from its shared receive queue.
    LastWqeReached(Qpn),
    /// The port came up.
    PortActive,
    /// The port went down.
    PortError,
    /// The GID table changed.
    GidChange,
    /// The device is lost: the daemon that owns its port has ended.
    DeviceFatal,
}

/// A function that receives events in place of the device's queue. It is called by the thread that
/// raises the event, possibly in the middle of a turn: it must not block and must not call the
/// device.
pub struct EventSink(pub Box<dyn Fn(AsyncEvent) + Send + Sync>);

impl std::fmt::Debug for EventSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventSink")
    }
}

/// Unread events, and a descriptor that is readable while there are any.
#[derive(Debug)]
pub struct EventQueue {
    events: ArrayQueue<AsyncEvent>,
    fd: EventFd,
    sink: OnceLock<EventSink>,
    lost: AtomicU64,
}

impl EventQueue {
    /// Makes a queue for `capacity` unread events.
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

    /// Sends later events to `sink` instead of the queue. Returns false if a sink was already set.
    pub fn set_sink(&self, sink: EventSink) -> bool {
        self.sink.set(sink).is_ok()
    }

    /// Adds an event. If the queue is full, the oldest unread event is dropped.
    pub fn push(&self, event: AsyncEvent) {
        if let Some(sink) = self.sink.get() {
            return (sink.0)(event);
        }
        if self.events.force_push(event).is_some() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.fd.signal();
    }

    /// Takes the oldest unread event.
    pub fn pop(&self) -> Option<AsyncEvent> {
        let event = self.events.pop();
        if event.is_none() {
            self.fd.clear();
            // An event may have been pushed between `pop` and `clear`, and more after that one.
            let late = self.events.pop();
            if !self.events.is_empty() {
                self.fd.signal();
            }
            return late;
        }
        event
    }

    /// Number of events dropped because the queue was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// A descriptor that is readable while events are unread. It may stay readable until
    /// [`EventQueue::pop`] finds none.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
