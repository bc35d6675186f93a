//! Requests that are done without the peer: they bind and invalidate keys in the order of the send queue.
//!
//! Such a request has no packet and takes no PSN. It is done when its turn comes for the first time; when packets
//! before and behind it are sent again, it is passed over and not done again. It completes behind what is before
//! it, as every request does.

use super::requester::{Next, Requester};
use super::{Connection, Env, Qp, completer};
use crate::memory::BindError;
use crate::verbs::{LocalOp, SendOp, SendWqe, Status};

impl Requester {
    /// Does the local request at the cursor, or passes over it.
    pub(super) fn next_local(
        &mut self,
        op: &LocalOp,
        wqe: &SendWqe,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Next {
        let index = self.cursor_wqe;
        if index == self.fresh_wqe {
            if let Some(refusal) = self.admit(wqe, conn, env) {
                return refusal;
            }
            if let Err(status) = execute(op, conn, env) {
                return self.fail_in_turn(status);
            }
            self.binds |= matches!(op, LocalOp::Bind(_));
            let psn = self.fresh_psn;
            let done = SendWqe { first_psn: psn, psn_count: 0, ssn: self.ssn, ..*wqe };
            *self.sq.get_mut(index).expect("the cursor is in the queue") = done;
            self.fresh_wqe = index.wrapping_add(1);
        }
        self.cursor_wqe = index.wrapping_add(1);
        Next::Local
    }
}

impl Qp {
    /// Does the requests that are next and send nothing: whatever holds packets back, these have none.
    pub fn do_local(&mut self, env: &mut Env<'_>) {
        env.waits.requests = true;
        let packet = self.next_request(env, &mut []);
        debug_assert!(packet.is_none(), "what waits was sent");
    }

    /// Completes local requests that were done and that nothing is before.
    pub(super) fn complete_local(&mut self, env: &mut Env<'_>) {
        while self.requester.sq.head() != self.requester.fresh_wqe
            && let Some(wqe) = self.requester.sq.get(self.requester.sq.head())
            && matches!(wqe.op, SendOp::Local(_))
        {
            completer::complete(&mut self.requester, &self.conn, env, Status::Success);
        }
    }

    /// Windows may be bound on this QP.
    pub fn binds_windows(&self) -> bool {
        self.requester.binds
    }
}

fn execute(op: &LocalOp, conn: &Connection, env: &Env<'_>) -> Result<(), Status> {
    match op {
        LocalOp::Bind(bind) => {
            env.memory.bind(bind, conn.pd, conn.qpn).map_err(|error| match error {
                BindError::Region(_) => Status::LocalProtection,
                BindError::Window(_) => Status::WindowBind,
            })
        }
        LocalOp::Invalidate(key) => {
            env.memory.invalidate(*key, conn.pd, conn.qpn).map_err(|_| Status::LocalQpOperation)
        }
    }
}
