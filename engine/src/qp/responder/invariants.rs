//! What holds for a responder between two calls of its QP. Builds with debug assertions check it.

use super::{ACCESS_ERRORS_MAX, Inbound, Responder};
use crate::qp::responder_resources::PendingAck;
use crate::qp::state::QpState;
use crate::verbs::MAX_MESSAGE;

impl Responder {
    /// Checks the rules of the receive side.
    ///
    /// # Panics
    /// If one does not hold.
    pub(in crate::qp) fn check_invariants(&self) {
        self.resources.check_invariants(self.epsn);
        if let Some(ahead) = &self.ahead {
            ahead.check_invariants(self.epsn);
        }
        match self.inbound {
            Inbound::None => {}
            // The last packet of a message ends it.
            Inbound::Send { offset } => debug_assert!((1..=MAX_MESSAGE).contains(&offset)),
            Inbound::Write { left, total, .. } => {
                debug_assert!((1..total).contains(&left), "{self:?}");
            }
        }
        debug_assert!(self.access_errors <= ACCESS_ERRORS_MAX);
        if self.last_dropped.is_some() {
            debug_assert!(self.has_held(), "dropped behind nothing: {self:?}");
        }
    }

    /// Returns true if a QP in `state` may have this responder: it has nothing to send before it
    /// receives, reports a failure only in ERR, and keeps no receive for a message in ERR.
    pub(in crate::qp) fn may_be_in(&self, state: QpState) -> bool {
        let is_empty = self.pending_ack.is_none() && self.resources.is_empty();
        let is_failed =
            self.must_report_failure || matches!(self.pending_ack, Some(PendingAck::LastAck));
        match state {
            QpState::Reset | QpState::Init => is_empty && !is_failed,
            QpState::Err => !self.rq.holds_receive() && !self.has_held(),
            _ => !is_failed,
        }
    }
}
