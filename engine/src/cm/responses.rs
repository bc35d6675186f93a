//! Responses to completed requests, kept for late copies of the requests: a copy gets the same
//! response, and makes no second connection.

use std::net::IpAddr;

use super::Endpoint;
use super::types::{CmId, Outgoing, code_duration};
use crate::time::{Duration, Instant};

/// Maximum number of cached responses. When there are more, the one that expires first goes.
const MAX_RESPONSES: usize = 16_384;

/// A completed request, by the key that its copies carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CompletedRequest {
    /// A REQ: node GUID and communication ID.
    Req(u64, u32),
    /// A SIDR REQ: address and request ID.
    SidrReq(IpAddr, u32),
}

/// The cached response for copies of a completed request.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedResponse {
    pub until: Instant,
    pub response: Outgoing,
}

impl Endpoint {
    /// Returns how long copies of this connection's request may still arrive. A peer that
    /// received an MRA retransmits rarely, and some of its copies may be lost.
    pub(super) fn copy_window(&self, id: CmId) -> Duration {
        match self.ids.get(&id) {
            Some(conn) if conn.was_established => self.config.copy_time,
            Some(conn) if conn.mra_sent => {
                self.config.response_cache_time + code_duration(self.config.service_timeout) * 4
            }
            _ => self.config.response_cache_time,
        }
    }

    /// Caches `response` for copies of `request`.
    pub(super) fn cache_response(
        &mut self,
        request: CompletedRequest,
        response: Option<Outgoing>,
        until: Instant,
    ) {
        let Some(response) = response else { return };
        if let Some(old) = self.responses.insert(request, CachedResponse { until, response }) {
            self.response_expiry.remove(&(old.until, request));
        }
        self.response_expiry.insert((until, request));
        if self.responses.len() > MAX_RESPONSES
            && let Some((_, first)) = self.response_expiry.pop_first()
        {
            self.responses.remove(&first);
        }
    }

    /// Sends the cached response to a copy of a completed request. Returns true if there is one.
    pub(super) fn repeat_response(&mut self, request: CompletedRequest, now: Instant) -> bool {
        let Some(cached) = self.responses.get_mut(&request) else { return false };
        self.response_expiry.remove(&(cached.until, request));
        cached.until = cached.until.max(now + self.config.response_cache_time);
        self.response_expiry.insert((cached.until, request));
        self.outbox.push_back(cached.response);
        true
    }
}
