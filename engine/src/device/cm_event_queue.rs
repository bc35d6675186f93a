//! A queue for the events of communication management, with a descriptor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};

use super::cm_channel::{CmEventSink, lock};
use crate::cm::Event;
use crate::wake::EventFd;

/// Events of a [`ConnectionManager`](super::ConnectionManager) that were not read yet, as
/// `rdma_event_channel`. The descriptor is readable while there are any. Clones are handles to the
/// same queue.
#[derive(Debug, Clone)]
pub struct CmEventQueue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    events: Mutex<VecDeque<Event>>,
    fd: EventFd,
}

impl CmEventQueue {
    /// Makes an empty queue. Its length is not limited, so the program must read all events.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let shared = Shared { events: Mutex::default(), fd: EventFd::new()? };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns a sink that appends to this queue, for
    /// [`ConnectionManager::new`](super::ConnectionManager::new).
    pub fn sink(&self) -> CmEventSink {
        let shared = Arc::clone(&self.shared);
        Box::new(move |event| {
            let mut events = lock(&shared.events);
            events.push_back(event);
            shared.fd.signal();
        })
    }

    /// Returns the oldest event not read yet.
    pub fn poll_event(&self) -> Option<Event> {
        let mut events = lock(&self.shared.events);
        let event = events.pop_front();
        if events.is_empty() {
            self.shared.fd.clear();
        }
        event
    }
}

/// The descriptor that is readable while events are queued.
impl AsFd for CmEventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }
}

impl AsRawFd for CmEventQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{CmId, EventKind, Parameters, Status};

    #[test]
    fn the_descriptor_is_readable_while_events_are_queued() {
        let queue = CmEventQueue::new().unwrap();
        let sink = queue.sink();
        let readable = || {
            let mut scratch = Vec::new();
            let no_wait = Some(std::time::Duration::ZERO);
            crate::sys::poll_readable(&[queue.as_raw_fd()], &mut scratch, no_wait);
            scratch[0].revents != 0
        };
        let event = |number| Event {
            id: CmId::from_number(number),
            listener: None,
            kind: EventKind::Established,
            status: Status::Success,
            parameters: Parameters::default(),
            private_data: Vec::new(),
        };
        assert!(!readable());
        sink(event(1));
        sink(event(2));
        assert!(readable());
        assert_eq!(queue.poll_event(), Some(event(1)));
        assert!(readable(), "one is left");
        assert_eq!(queue.clone().poll_event(), Some(event(2)));
        assert!(!readable());
        assert_eq!(queue.poll_event(), None);
        sink(event(3));
        assert!(readable());
    }
}
