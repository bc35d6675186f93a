//! Runs: plain requests that follow each other. Most packets of a program that sends many short
//! messages are in one.
//!
//! Between two packets of a quantum nothing changes but what the packets themselves change: no
//! packet of the peer is handled, no timer fires, and no control call is made. So the requester
//! looks at its limits once, behind a packet that it sent with all checks, and counts how many
//! packets may follow without them. The run ends one packet before the limit, and one request
//! before the last one that is posted: the packet that must request an acknowledgement is sent with
//! all checks. So is every request that is not plain, and the one before a request whose memory is
//! not accessible.
//!
//! The key of each request is looked up once, when the packet before it is written: whether that
//! packet requests an acknowledgement depends on it. If the region is deregistered between the two
//! packets, the request is sent all the same: its memory stays mapped until the turn ends.

use feroce_wire::Opcode;

use super::connection::Connection;
use super::env::{Env, Run};
use super::request_headers::fill_inline;
use super::requester::{Outgoing, PSN_SPAN, Requester, SSN_MASK};
use super::segment;
use super::state::QpState;
use crate::congestion::SentRequest;
use crate::memory::work_ring::Posted;
use crate::memory::{Access, Memory, Source};
use crate::verbs::{SendFlags, SendOp, SendWqe, Service};

/// The data of a plain request: a SEND or WRITE of one packet that waits for nothing, with one
/// entry of accessible memory or inline data. `None`: it is not plain.
#[inline(always)] // Once per packet.
fn source_of<'a>(
    wqe: Posted<'_, SendWqe>,
    conn: &Connection,
    memory: Memory<'a>,
) -> Option<Source<'a>> {
    let is_plain = matches!(wqe.op, SendOp::Send | SendOp::Write(_))
        && !wqe.flags.contains(SendFlags::FENCE)
        && wqe.length <= conn.mtu as u64;
    if !is_plain {
        return None;
    }
    match (wqe.num_sge, wqe.inline) {
        (1, _) => {
            let [sge] = wqe.sges(1) else { return None };
            memory.source(sge.lkey, conn.pd, Access::NONE, (sge.addr, sge.length))
        }
        (0, true) => Some(Source::EMPTY),
        _ => None,
    }
}

impl Requester {
    /// The run that follows the packet that was just sent.
    #[inline]
    pub(super) fn start_run<'a>(&self, conn: &Connection, env: &Env<'a>) -> Run<'a> {
        // The next request follows at once (`must_request_ack`), and nothing is repeated.
        let follows = self.validated == Some(self.cursor_wqe)
            && self.cursor_wqe == self.fresh_wqe
            && self.cursor_psn == self.sent_end;
        // In SQD, no new request is started.
        let may_start = conn.state == QpState::Rts && conn.service == Service::Rc;
        if !follows || !may_start || self.board.is_some() {
            return Run::NONE;
        }
        let window = env.window.min(self.window_after_timeout).saturating_sub(self.in_window());
        let interval = self.ack_interval(env).saturating_sub(self.since_ack_request);
        let span = PSN_SPAN - self.outstanding();
        let left = window.min(interval).min(span).saturating_sub(1);
        let next = self.sq.posted(self.cursor_wqe).filter(|_| left > 0);
        match next.and_then(|next| source_of(next, conn, env.memory)) {
            Some(source) => Run { left, source },
            None => Run::NONE,
        }
    }

    /// Writes the next packet of the run to the front of `out`. Returns its length. `None`: the
    /// packet must be sent with all checks.
    #[inline(always)] // Called once.
    pub(super) fn next_in_run(
        &mut self,
        conn: &Connection,
        env: &mut Env<'_>,
        out: &mut [u8],
    ) -> Option<(usize, SentRequest)> {
        let left = env.run.left.checked_sub(1)?;
        env.run.left = 0;
        let (psn, after) = (self.cursor_psn, self.cursor_wqe.wrapping_add(1));
        let next_source = source_of(self.sq.posted(after)?, conn, env.memory)?;
        let mut wqe = self.sq.posted_mut(self.cursor_wqe)?;
        let opcode = match wqe.op {
            SendOp::Send => Opcode::RC_SEND_ONLY,
            SendOp::Write(_) => Opcode::RC_WRITE_ONLY,
            _ => return None,
        };
        let segment = segment::whole(opcode, wqe.length);
        let packet = Outgoing { psn, segment, ack_req: false };
        let (len, payload) = Self::write_headers(wqe.posted(), packet, conn, out);
        match wqe.inline {
            true => fill_inline(wqe.posted(), segment, payload),
            false => env.run.source.load(payload),
        }
        self.ssn = self.ssn.wrapping_add(1) & SSN_MASK;
        (wqe.first_psn, wqe.psn_count) = (psn, 1);
        (wqe.ssn, wqe.split) = (self.ssn, false);
        let next = psn.next();
        (self.cursor_psn, self.fresh_psn, self.sent_end) = (next, next, next);
        (self.cursor_wqe, self.fresh_wqe, self.validated) = (after, after, Some(after));
        self.since_ack_request += 1;
        env.run = Run { left, source: next_source };
        debug_assert!(self.in_window() < env.window && self.outstanding() < PSN_SPAN);
        debug_assert!(self.since_ack_request < self.ack_interval(env), "no acknowledgement");
        let sent = SentRequest {
            psn,
            carries_data: true,
            ack_requested: false,
            is_retransmit: false,
            follows_loss: false,
        };
        Some((len, sent))
    }
}
