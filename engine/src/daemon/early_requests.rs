//! Requests of communication management that arrive before a program claims their service: perftest
//! tells its client to connect just before it listens. If a program has attached lately, such a
//! request is held, as a device without a daemon holds it (`Endpoint::hold_early_requests`). The
//! same holds if a program has lately released a service: with `-R`, perftest listens twice, and
//! sleeps for a second in between.

use super::client::Origin;
use crate::device::EARLY_REQUEST_TIME;
use crate::time::{Duration, Instant};

/// How long requests are held after a program has released a service.
const LISTENS_AGAIN_TIME: Duration = Duration::from_secs(3);

/// Maximum number of held requests; further ones are rejected at once.
pub(super) const HELD_MAX: usize = 256;

/// A held request.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) frame: Vec<u8>,
    pub(super) from: Origin,
    /// When the request is rejected.
    pub(super) due: Instant,
}

/// The held requests, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct EarlyRequests {
    /// Requests that arrive before this time are held.
    until: Instant,
    held: Vec<Held>,
    /// A service was claimed since the last turn.
    is_claimed: bool,
}

impl EarlyRequests {
    /// Returns true if a request that arrives at `now` is held.
    pub(super) fn holds(&self, now: Instant) -> bool {
        now < self.until && self.held.len() < HELD_MAX
    }

    /// A program has attached and may listen soon.
    pub(super) fn note_attach(&mut self, now: Instant) {
        self.until = self.until.max(now + EARLY_REQUEST_TIME);
    }

    /// A program has released a service and may listen again.
    pub(super) fn note_release(&mut self, now: Instant) {
        self.until = self.until.max(now + LISTENS_AGAIN_TIME);
    }

    /// Holds a request.
    pub(super) fn hold(&mut self, held: Held) {
        self.held.push(held);
    }

    /// A service was claimed: the held requests must be routed again.
    pub(super) fn note_claim(&mut self) {
        self.is_claimed = true;
    }

    /// The requests to route again at `now`.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Held> {
        let is_due = |held: &mut Held| held.due <= now;
        match std::mem::take(&mut self.is_claimed) {
            true => std::mem::take(&mut self.held),
            false => self.held.extract_if(.., is_due).collect(),
        }
    }

    /// When the next request is rejected.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.due).min()
    }
}
