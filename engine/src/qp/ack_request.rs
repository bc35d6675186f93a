//! Acknowledgement requests: which request packets have AckReq set.
//!
//! Every request that waits for an acknowledgement must get one, even without a local ACK timeout.
//! Linux rxe sets AckReq on the last packet of every request. Here, requests that follow each other
//! at once share an acknowledgement: the last packet of a request has AckReq only if no other
//! request follows. The requester decides this when it writes the packet. If the next request
//! cannot be sent after all, the requester sends a packet again, with AckReq.

use super::connection::Connection;
use super::env::Env;
use super::requester::{Next, PSN_SPAN, Requester};
use super::segment::Segment;
use super::state::QpState;
use crate::verbs::{SendFlags, SendWqe};

/// Value of `since_ack_request` that makes the next packet request an acknowledgement.
pub const REQUEST_ACK: u32 = u32::MAX / 2;

impl Requester {
    /// Returns true if the packet must request an acknowledgement. This is the case once per
    /// acknowledgement interval, and at the end of a request unless the next request follows at
    /// once: every request that waits for an acknowledgement must get one. So if the last packet of
    /// a request requests none, the next request is validated.
    #[inline(always)] // Called once, for every packet.
    pub(super) fn must_request_ack(
        &self,
        wqe: &SendWqe,
        segment: Segment,
        conn: &Connection,
        env: &Env<'_>,
    ) -> bool {
        if !conn.service.is_reliable() {
            return false;
        }
        let ends_grant = env.ends_grant && self.in_window() + 1 >= env.window;
        if ends_grant || self.since_ack_request + 1 >= self.ack_interval(env) {
            return true;
        }
        let is_retransmit = self.cursor_psn.is_before(self.sent_end);
        segment.last
            && (is_retransmit
                || wqe.op.needs_responder_resource()
                || !self.next_request_follows(conn, env))
    }

    /// Maximum number of packets from one acknowledgement request to the next.
    pub(super) fn ack_interval(&self, env: &Env<'_>) -> u32 {
        let outstanding = env.window.min(self.window_after_timeout).min(self.sq.capacity());
        self.splitter.ack_interval(outstanding).min(env.ack_interval)
    }

    /// Returns true if the request after the cursor's will be sent without waiting for anything. A
    /// request with a local error does not follow: its error is reported in order.
    #[inline(always)] // As `must_request_ack`.
    fn next_request_follows(&self, conn: &Connection, env: &Env<'_>) -> bool {
        let index = self.cursor_wqe.wrapping_add(1);
        let Some(next) = self.sq.posted(index) else { return false };
        let operation = next.info();
        conn.state == QpState::Rts
            && !conn.flow_control
            && !operation.needs_responder_resource()
            && !operation.is_local()
            && !next.flags.contains(SendFlags::FENCE)
            && self.span_with(&next, conn.mtu) <= PSN_SPAN
            && self.validate(next, conn, env).is_ok()
    }

    /// Returns true if `next`, the result of looking for the next packet, leaves packets
    /// outstanding whose acknowledgement was not requested.
    #[inline]
    pub(super) fn lacks_ack_request(&self, next: Next, conn: &Connection, env: &Env<'_>) -> bool {
        let lacks = match next {
            Next::Blocked => self.since_ack_request > 0,
            // An earlier packet may have requested the acknowledgement that ends the wait, and a
            // response to a READ acknowledges every packet before it.
            Next::Limited => {
                self.responses_in_flight == 0 && self.outstanding() <= self.since_ack_request
            }
            Next::Packet(..) | Next::Local | Next::Failed(_) => false,
        };
        lacks && self.has_unacknowledged() && conn.service.is_reliable() && !env.waits.requests
    }

    /// Goes back to the packet before the cursor, which is then sent again and requests an
    /// acknowledgement. The first time it requested none, because another packet was to follow at
    /// once, and this packet cannot be sent now: its region was deregistered, the QP is in SQD, or
    /// the window has shrunk. Without the acknowledgement and without a local ACK timeout, the
    /// outstanding requests would never complete.
    ///
    /// If the region of the packet was deregistered, too, the next call goes back further: the ACK
    /// of a duplicate acknowledges everything that the peer has received. If the oldest request
    /// cannot be sent again, it fails.
    #[cold]
    pub(super) fn go_back_for_ack(&mut self) {
        self.rewind(self.cursor_psn.prev());
        self.since_ack_request = REQUEST_ACK;
    }
}
