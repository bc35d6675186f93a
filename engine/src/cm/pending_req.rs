//! Requests that come before their listener. A program's device begins to live with the program, often in the call before it listens,
//! while a kernel's is always there: a peer that is a little faster would be refused.

use feroce_wire::MAD_LEN;
use feroce_wire::cm::ServiceId;

use super::Endpoint;
use super::state::Phase;
use super::types::Source;
use crate::time::Instant;

/// Requests kept at most.
const MOST: usize = 256;

/// Requests kept for listeners to come.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// Until then, requests are kept.
    until: Instant,
    /// When those that are kept are refused.
    pub due: Option<Instant>,
    kept: Vec<([u8; MAD_LEN], Source)>,
}

impl Endpoint {
    /// Requests for ports that nobody listens at are kept until `until`, and refused then. They are never kept if this is not called.
    pub fn keep_early(&mut self, until: Instant) {
        self.early.until = until;
    }

    /// Whether somebody listens at the port of the service.
    pub(super) fn is_listened(&self, service: ServiceId) -> bool {
        service.port().is_some_and(|(space, port)| {
            let mut owners = self.ports.owners(space, port).iter();
            owners.any(|owner| self.ids[&owner.id].phase == Phase::Listen)
        })
    }

    /// Keeps the request `mad` for `service`, if it is early. True if it did.
    pub(super) fn keep_if_early(
        &mut self,
        service: ServiceId,
        mad: &[u8],
        from: &Source,
        now: Instant,
    ) -> bool {
        let is_early = now < self.early.until && self.early.kept.len() < MOST;
        let Ok(mad) = <[u8; MAD_LEN]>::try_from(mad) else { return false };
        if !is_early || self.is_listened(service) {
            return false;
        }
        self.early.kept.push((mad, *from));
        self.early.due.get_or_insert(self.early.until);
        true
    }

    /// Takes those that are kept again, as they came: somebody listens now, or it is time to refuse them.
    pub(super) fn retry_early(&mut self, now: Instant) {
        self.early.due = None;
        for (mad, from) in std::mem::take(&mut self.early.kept) {
            let _ = self.receive(&mad, &from, now); // It was understood before.
        }
    }
}
