//! Wake-ups between the two halves of a ring, in one process or in two.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};
use rustix::pipe::PipeFlags;

use crate::wake::EventFd;

/// Wakes the thread that sleeps on the descriptor of the other half.
#[derive(Debug, Clone)]
pub enum Bell {
    /// Both halves are in this process and use the same eventfd.
    Event(Arc<EventFd>),
    /// The halves are in two processes.
    Remote(Arc<RemoteBell>),
}

/// One process' end of a bell between two processes that do not trust each other: a pipe from the
/// daemon to the client, and an eventfd from the client to the daemon.
///
/// Neither end can make the other one wait. A socket would carry descriptors, and closing those can
/// block (`SO_LINGER`). The flags of an eventfd belong to both processes: its reader states for
/// each call that it does not wait, and only the client writes to it. The daemon writes to a pipe,
/// whose ends have flags of their own.
#[derive(Debug)]
pub struct RemoteBell {
    /// Readable after the other end has signalled.
    waits_on: OwnedFd,
    /// Written to, to signal the other end.
    signals: OwnedFd,
}

impl RemoteBell {
    /// Makes both ends: the daemon's, and what the client needs for its own
    /// ([`RemoteBell::of_client`]).
    ///
    /// # Errors
    /// No descriptor left.
    pub fn pair() -> std::io::Result<(Self, [OwnedFd; 2])> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let event = crate::sys::eventfd()?;
        let theirs = [read, event.try_clone()?];
        Ok((Self { waits_on: event, signals: write }, theirs))
    }

    /// The client's end.
    pub fn of_client([waits_on, signals]: [OwnedFd; 2]) -> Self {
        Self { waits_on, signals }
    }

    fn signal(&self) {
        // An eventfd takes eight bytes, a pipe any number. A full one is readable already.
        let _ = rustix::io::write(&self.signals, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let mut bytes = [0; 512];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let read =
            rustix::io::preadv2(&self.waits_on, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT);
        if read == Err(Errno::OPNOTSUPP) {
            let _ = rustix::io::read(&self.waits_on, &mut bytes); // A pipe of an older kernel.
        }
    }
}

impl Bell {
    /// Makes the descriptor of the other half readable.
    pub fn signal(&self) {
        match self {
            Self::Event(event) => event.signal(),
            Self::Remote(bell) => bell.signal(),
        }
    }

    /// Makes the descriptor of this half unreadable.
    pub fn clear(&self) {
        match self {
            Self::Event(event) => _ = event.clear(),
            Self::Remote(bell) => bell.clear(),
        }
    }

    /// The descriptor of this half.
    pub fn fd(&self) -> RawFd {
        let fd: BorrowedFd<'_> = match self {
            Self::Event(event) => event.as_fd(),
            Self::Remote(bell) => bell.waits_on.as_fd(),
        };
        fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::fs::OFlags;

    use super::*;
    use crate::sys::poll_readable;

    fn is_readable(bell: &Bell) -> bool {
        let mut scratch = Vec::new();
        poll_readable(&[bell.fd()], &mut scratch, Some(Duration::ZERO));
        scratch[0].revents != 0
    }

    #[test]
    fn no_end_of_a_bell_between_processes_waits() {
        let (daemon, fds) = RemoteBell::pair().unwrap();
        // A hostile client makes its descriptors blocking, which one shares with the daemon.
        for fd in &fds {
            rustix::fs::fcntl_setfl(fd, OFlags::empty()).unwrap();
        }
        let event = fds[1].try_clone().unwrap();
        let daemon = Bell::Remote(Arc::new(daemon));
        let client = Bell::Remote(Arc::new(RemoteBell::of_client(fds)));
        daemon.clear();
        (0..100_000).for_each(|_| daemon.signal());
        assert!(is_readable(&client) && !is_readable(&daemon));
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(is_readable(&daemon));
        daemon.clear();
        assert!(!is_readable(&daemon));
        client.signal();
        assert!(is_readable(&daemon));
        while is_readable(&client) {
            client.clear();
        }
        drop(daemon);
        assert!(is_readable(&client), "the other end is closed");
        client.signal();
    }
}
