//! Requests that arrive before their listener. A program's device starts with the program, often in
//! the call before `listen`, whereas a kernel device always exists. A slightly faster peer would be
//! rejected.

use feroce_wire::MAD_LEN;
use feroce_wire::cm::ServiceId;

use super::Endpoint;
use super::state::Phase;
use super::types::Source;
use crate::time::Instant;

/// Maximum number of held requests, and of those of one source; further ones are rejected at once.
const MAX_PENDING: usize = 256;
const MAX_OF_SOURCE: usize = 192;

/// Requests held for a future listener.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    /// Requests that arrive before this time are held.
    until: Instant,
    /// When the held requests are delivered again, and rejected without a listener.
    pub due: Option<Instant>,
    kept: Vec<([u8; MAD_LEN], Source)>,
}

impl Endpoint {
    /// Holds requests for ports without a listener until `until`; then rejects them. Without this
    /// call such requests are rejected at once.
    pub fn hold_early_requests(&mut self, until: Instant) {
        self.pending.until = until;
    }

    /// Returns true if an identifier listens at the port of `service`.
    pub(super) fn has_listener(&self, service: ServiceId) -> bool {
        service.port().is_some_and(|(space, port)| {
            let mut owners = self.ports.owners(space, port).iter();
            owners.any(|owner| self.ids[&owner.id].phase == Phase::Listen)
        })
    }

    /// Holds the request `mad` for `service` if its listener may still appear. Returns true if the
    /// request is held.
    pub(super) fn hold_if_early(
        &mut self,
        service: ServiceId,
        mad: &[u8],
        from: &Source,
        now: Instant,
    ) -> bool {
        let kept = &self.pending.kept;
        let has_room = || {
            let of_source = kept.iter().filter(|(_, other)| other.remote == from.remote).count();
            kept.len() < MAX_PENDING && of_source < MAX_OF_SOURCE
        };
        let is_early = now < self.pending.until && has_room();
        let Ok(mad) = <[u8; MAD_LEN]>::try_from(mad) else { return false };
        if !is_early || self.has_listener(service) {
            return false;
        }
        self.pending.kept.push((mad, *from));
        self.pending.due.get_or_insert(self.pending.until);
        true
    }

    /// Processes the held requests again, in their order: a listener has appeared, or their time is
    /// over.
    pub(super) fn redeliver_pending(&mut self, now: Instant) {
        self.pending.due = None;
        for (mad, from) in std::mem::take(&mut self.pending.kept) {
            let _ = self.receive(&mad, &from, now); // The MAD parsed without error before.
        }
    }
}
