//! Local requests: they bind memory windows and invalidate keys, in the order of the send queue.
//!
//! A local request has no packet and takes no PSN. It is executed when the cursor reaches it for
//! the first time. When the packets around it are retransmitted, the cursor skips it. It completes
//! in order, like every request.

use super::completer;
use super::connected::Qp;
use super::connection::Connection;
use super::env::Env;
use super::requester::{Next, Requester};
use crate::verbs::{LocalOp, Status};

impl Requester {
    /// Executes the local request at the cursor, or skips it if it was executed already.
    pub(super) fn next_local(
        &mut self,
        op: &LocalOp,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Next {
        let index = self.cursor_wqe;
        if index == self.fresh_wqe {
            let wqe = self.sq.posted(index).expect("the cursor is in the queue");
            if let Some(obstacle) = self.obstacle_to_start(wqe, conn, env) {
                return obstacle;
            }
            if let Err(status) = execute(op, conn, env) {
                return self.fail_in_order(status);
            }
            self.has_bound_windows |= matches!(op, LocalOp::Bind(_));
            let mut wqe = self.sq.posted_mut(index).expect("the cursor is in the queue");
            (wqe.first_psn, wqe.psn_count, wqe.ssn) = (self.fresh_psn, 0, self.ssn);
            self.fresh_wqe = index.wrapping_add(1);
        }
        self.cursor_wqe = index.wrapping_add(1);
        Next::Local
    }
}

impl Qp {
    /// Executes the local requests that are next, while packets must wait.
    pub fn execute_local_requests(&mut self, env: &mut Env<'_>) {
        env.waits.requests = true;
        let packet = self.next_request(env, &mut []);
        debug_assert!(packet.is_none(), "a packet was sent that had to wait");
    }

    /// Completes executed local requests at the head of the send queue.
    pub(super) fn complete_local_requests(&mut self, env: &mut Env<'_>) {
        while self.requester.sq.head() != self.requester.fresh_wqe
            && let Some(wqe) = self.requester.sq.get(self.requester.sq.head())
            && wqe.op.info().is_local()
        {
            completer::complete(&mut self.requester, &self.conn, env, Status::Success);
        }
    }

    /// Returns true if memory windows may be bound on this QP.
    pub fn has_bound_windows(&self) -> bool {
        self.requester.has_bound_windows
    }
}

/// Executes `op`. Every error is a memory management operation error, as with mlx5.
fn execute(op: &LocalOp, conn: &Connection, env: &Env<'_>) -> Result<(), Status> {
    match op {
        LocalOp::Bind(bind) => {
            env.memory.bind(bind, conn.pd, conn.qpn).map_err(|_| Status::WindowBind)
        }
        LocalOp::Invalidate(key) => {
            env.memory.invalidate(*key, conn.pd, conn.qpn).map_err(|_| Status::WindowBind)
        }
    }
}
