//! Wake-ups between the two halves of a ring, in one process or in two.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::net::{RecvFlags, SendFlags};

use crate::wake::EventFd;

/// Wakes the thread that sleeps on the descriptor of the other half.
#[derive(Debug, Clone)]
pub enum Bell {
    /// Both halves are in this process and use the same eventfd.
    Event(Arc<EventFd>),
    /// The halves are in two processes, each with one end of a socket pair. The flags of an eventfd
    /// belong to both processes: one of them could make the calls of the other block. Calls on a
    /// socket say for themselves that they do not block.
    Socket(Arc<UnixStream>),
}

impl Bell {
    /// Makes the descriptor of the other half readable.
    pub fn signal(&self) {
        match self {
            Self::Event(event) => event.signal(),
            // A full socket is readable at its other end; one without another end wakes no thread.
            Self::Socket(socket) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = rustix::net::send(socket, &[0], flags);
            }
        }
    }

    /// Makes the descriptor of this half unreadable. A socket whose other end is closed stays
    /// readable.
    pub fn clear(&self) {
        match self {
            Self::Event(event) => _ = event.clear(),
            Self::Socket(socket) => {
                let mut bytes = [0; 256];
                let _ = rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT);
            }
        }
    }

    /// The descriptor of this half.
    pub fn fd(&self) -> RawFd {
        match self {
            Self::Event(event) => event.as_fd().as_raw_fd(),
            Self::Socket(socket) => socket.as_raw_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys::poll_readable;

    fn is_readable(bell: &Bell) -> bool {
        let mut scratch = Vec::new();
        poll_readable(&[bell.fd()], &mut scratch, Some(Duration::ZERO));
        scratch[0].revents != 0
    }

    #[test]
    fn a_bell_between_processes_never_blocks() {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (Bell::Socket(Arc::new(a)), Bell::Socket(Arc::new(b)));
        b.clear();
        assert!(!is_readable(&b));
        (0..100_000).for_each(|_| a.signal());
        assert!(is_readable(&b) && !is_readable(&a));
        while is_readable(&b) {
            b.clear();
        }
        drop(a);
        assert!(is_readable(&b), "the other end is closed");
        b.signal();
        b.clear();
    }
}
