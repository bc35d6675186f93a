//! An attempt to reach a peer: the retries of address and route resolution.

use std::ffi::c_int;
use std::net::SocketAddr;

/// Retries of address resolution and of route resolution.
const RETRIES: u32 = 6;

/// Progress of resolving the peer's address and route.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// The peer to connect to.
    pub peer: SocketAddr,
    /// How often the current step was tried.
    pub tries: u32,
}

impl Attempt {
    /// Returns the timeout of the next try in milliseconds: one second, doubled each time.
    pub fn timeout(&mut self) -> c_int {
        self.tries += 1;
        1000 << (self.tries - 1)
    }

    /// Returns true if the step may be retried after this error.
    pub fn may_retry(&self, error: c_int) -> bool {
        error == libc::ETIMEDOUT && self.tries <= RETRIES
    }
}
