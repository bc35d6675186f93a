//! Wake-ups between threads that can also be polled: an eventfd.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// An eventfd: readable from [`EventFd::signal`] until [`EventFd::clear`].
#[derive(Debug)]
pub struct EventFd {
    file: File,
}

impl EventFd {
    /// Makes a new descriptor, non-blocking and closed on exec.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { file: File::from(crate::sys::eventfd()?) })
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        // A non-blocking write fails only if the counter is full; the descriptor is readable then.
        let _ = (&self.file).write(&1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable. Returns true if it was readable.
    pub fn clear(&self) -> bool {
        let mut count = [0; 8];
        // A read fails only if the counter is 0; the descriptor is unreadable then.
        (&self.file).read(&mut count).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
