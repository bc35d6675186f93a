//! What holds between two calls of a QP. Builds with debug assertions check it at the end of each
//! call, so that a test fails in the call that broke a rule, and not where the damage shows.

use feroce_wire::Psn;

use super::connected::Qp;
use super::requester::{MAX_READS, PSN_SPAN, Requester};
use super::scoreboard::SPAN;
use super::state::QpState;

/// Requests of the send queue that each call looks at: all would cost too much with long queues.
const WALK: u32 = 32;

impl Qp {
    /// Checks the rules of the whole QP.
    ///
    /// # Panics
    /// If one does not hold.
    pub(super) fn check_invariants(&self) {
        let Self { conn, requester, responder, timers, .. } = self;
        requester.check_invariants();
        responder.check_invariants();
        let state = conn.state;
        if matches!(state, QpState::Reset | QpState::Err) {
            debug_assert_eq!(timers.next(), None, "a timer runs in {state:?}");
        }
        if !conn.selective_repeat {
            debug_assert!(requester.active_board().is_none(), "a scoreboard of go-back-N");
        }
        if state == QpState::Reset {
            debug_assert!(!self.established && !self.notify_drained);
            debug_assert_eq!(requester.una, requester.fresh_psn, "packets of a reset QP");
        }
        if state.sends() {
            requester.check_oldest();
        }
        if state.sends() && !conn.service.is_reliable() {
            debug_assert!(!requester.has_unacknowledged(), "a packet of UC that is outstanding");
        }
        debug_assert!(responder.may_be_in(state), "a response of {state:?}: {responder:?}");
        debug_assert!((256..=4096).contains(&conn.mtu));
    }
}

impl Requester {
    /// PSNs from `una` to `psn`.
    fn ahead(&self, psn: Psn) -> u32 {
        self.una.distance_to(psn)
    }

    fn check_invariants(&self) {
        // una <= window base <= cursor <= sent_end <= fresh_psn <= una + half the PSN space
        let order = [self.window_base, self.cursor_psn, self.sent_end, self.fresh_psn];
        let order = order.map(|psn| self.ahead(psn));
        debug_assert!(order.is_sorted() && order[3] <= PSN_SPAN, "PSNs: {self:?}");
        // head <= cursor_wqe <= fresh_wqe <= tail
        let (head, posted) = (self.sq.head(), self.sq.len());
        let [cursor, fresh] = [self.cursor_wqe, self.fresh_wqe].map(|at| at.wrapping_sub(head));
        debug_assert!(cursor <= fresh && fresh <= posted, "requests: {self:?}");
        debug_assert!(self.reads_in_flight <= MAX_READS);
        debug_assert!(u32::from(self.reads_in_flight) <= self.responses_in_flight);
        if !self.has_unacknowledged() {
            debug_assert_eq!((self.reads_in_flight, self.responses_in_flight), (0, 0));
        }
        self.check_board();
    }

    /// Checks the oldest requests of a QP that sends: each begins where the one before ends, the
    /// first one is incomplete, and the cursor stands in the request that it names.
    fn check_oldest(&self) {
        let (mut index, mut next) = (self.sq.head(), None);
        while index != self.fresh_wqe && index.wrapping_sub(self.sq.head()) < WALK {
            let wqe = self.sq.get(index).expect("between head and fresh");
            let end = wqe.end_psn();
            match next {
                None => {
                    debug_assert!(!wqe.op.info().is_local(), "a local request waits for no peer");
                    let left = self.ahead(end);
                    debug_assert!((1..=wqe.psn_count).contains(&left), "complete: {wqe:?}");
                }
                Some(psn) => debug_assert_eq!(wqe.first_psn, psn, "a gap before {wqe:?}"),
            }
            if index == self.cursor_wqe {
                let at = wqe.first_psn.distance_to(self.cursor_psn);
                debug_assert!(at < wqe.psn_count.max(1), "the cursor is outside of {wqe:?}");
            }
            (index, next) = (index.wrapping_add(1), Some(end));
        }
        if index == self.fresh_wqe {
            let end = next.unwrap_or(self.una);
            debug_assert_eq!(end, self.fresh_psn, "PSNs of no request");
        }
        if self.cursor_wqe == self.fresh_wqe {
            debug_assert_eq!(self.cursor_psn, self.fresh_psn, "all requests were sent");
        }
    }

    /// Checks the scoreboard against what is outstanding.
    fn check_board(&self) {
        let Some(board) = &self.board else { return };
        board.check_invariants();
        let sent = self.ahead(self.sent_end);
        if board.is_active() {
            debug_assert!(self.ahead(board.end()) <= sent, "received, but not sent: {self:?}");
        }
        if board.stored_responses() > 0 {
            let in_span = (0..sent.min(SPAN)).filter(|&at| board.is_stored(self.una.add(at), at));
            let in_span = u32::try_from(in_span.count()).unwrap_or(u32::MAX);
            debug_assert_eq!(in_span, board.stored_responses(), "responses not asked for");
            debug_assert!(!board.is_stored(self.una, 0), "the oldest PSN is not missing");
        }
    }
}
