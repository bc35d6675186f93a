//! Requests of communication management that arrive before a program claims their service: perftest
//! tells its client to connect just before it listens. If a program has attached lately, such a
//! request is held, as a device without a daemon holds it (`Endpoint::hold_early_requests`).

use super::client::Origin;
use crate::time::Instant;

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
    pub(super) until: Instant,
    held: Vec<Held>,
    /// A service was claimed since the last turn.
    is_claimed: bool,
}

impl EarlyRequests {
    /// Returns true if a request that arrives at `now` is held.
    pub(super) fn holds(&self, now: Instant) -> bool {
        now < self.until && self.held.len() < HELD_MAX
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
