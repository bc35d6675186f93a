//! `modify` of a connected QP: the checks that the specification demands, then the change.

use std::sync::Arc;

use feroce_wire::Psn;

use super::attributes::{ModifyError, QpAttributes};
use super::connected::Qp;
use super::env::Env;
use super::state::QpState;
use super::timer::{Timer, TimerTable};
use super::transitions;
use super::transmit_order::TransmitOrder;
use crate::verbs::Service;

impl Qp {
    /// Changes state and attributes.
    ///
    /// # Errors
    /// The rule that is violated; nothing is changed.
    pub fn modify(&mut self, new: &QpAttributes, env: &mut Env<'_>) -> Result<(), ModifyError> {
        let from = self.conn.state;
        if new.current_state.is_some_and(|expected| expected != from) {
            return Err(ModifyError::CurrentState(from));
        }
        let to = new.state.unwrap_or(from);
        transitions::check(self.conn.service, from, to, new.mask())?;
        for (name, is_given) in [
            ("flow_control, once the QP is in RTS", new.flow_control.is_some()),
            ("split, once the QP is in RTS", new.split.is_some()),
        ] {
            if is_given && !matches!(from, QpState::Init | QpState::Rtr) {
                return Err(ModifyError::Range(name));
            }
        }
        if new.selective_repeat.is_some() && to != QpState::Rtr {
            return Err(ModifyError::Range("selective_repeat, except on the transition to RTR"));
        }
        if new.selective_repeat == Some(true) && !self.offers_selective_repeat() {
            return Err(ModifyError::Range("selective_repeat, which the QP does not offer"));
        }
        new.check_ranges()?;
        if to == QpState::Reset {
            self.reset();
            return Ok(());
        }
        if new.flow.is_some() || new.dest_qp.is_some() {
            self.forget_peer();
        }
        self.set_connection(new);
        self.set_limits(new);
        self.conn.state = to;
        if matches!((from, to), (QpState::Rtr | QpState::Sqd, QpState::Rts)) {
            self.completer.reset();
        }
        if to == QpState::Err && from != QpState::Err {
            self.enter_error(env);
        }
        self.finish_call(env);
        Ok(())
    }

    fn offers_selective_repeat(&self) -> bool {
        self.conn.service == Service::Rc && self.ahead.is_some()
    }

    fn reset(&mut self) {
        self.requester.reset(Psn::new(0));
        self.responder.reset(Psn::new(0));
        self.timers = TimerTable::default();
        self.attributes = QpAttributes::default();
        self.established = false;
        self.notify_drained = false;
        self.order = TransmitOrder::default();
        self.forget_peer();
        self.remove_completions();
        let conn = &mut self.conn;
        conn.state = QpState::Reset;
        conn.flow_control = false;
        conn.selective_repeat = false;
    }

    /// Removes the completions of this QP that the program has not polled.
    pub fn remove_completions(&self) {
        for cq in [&self.conn.send_cq, &self.conn.recv_cq] {
            cq.remove_completions_of(self.conn.qpn);
        }
    }

    /// Sets the attributes of the connection: the peer and its rights.
    fn set_connection(&mut self, new: &QpAttributes) {
        let (conn, kept) = (&mut self.conn, &mut self.attributes);
        conn.access = new.access.unwrap_or(conn.access);
        conn.pkey = new.pkey.unwrap_or(conn.pkey);
        conn.dest_qp = new.dest_qp.unwrap_or(conn.dest_qp);
        conn.flow_control = new.flow_control.unwrap_or(conn.flow_control);
        if let Some(split) = new.split {
            self.requester.splitter.set_enabled(split);
        }
        if let (Some(true), Some(pool)) = (new.selective_repeat, &self.ahead) {
            conn.selective_repeat = true;
            self.responder.hold_ahead(Arc::clone(pool));
        }
        if let Some(mtu) = new.path_mtu {
            conn.mtu = usize::try_from(mtu.bytes()).expect("at most 4096");
        }
        if let Some(psn) = new.rq_psn {
            self.responder.start_at(psn);
        }
        if let Some(psn) = new.sq_psn {
            self.requester.start_at(psn);
        }
        kept.access = new.access.or(kept.access);
        kept.pkey = new.pkey.or(kept.pkey);
        kept.port = new.port.or(kept.port);
        kept.flow = new.flow.or(kept.flow);
        kept.path_mtu = new.path_mtu.or(kept.path_mtu);
        kept.dest_qp = new.dest_qp.or(kept.dest_qp);
        kept.rq_psn = new.rq_psn.or(kept.rq_psn);
        kept.sq_psn = new.sq_psn.or(kept.sq_psn);
        kept.flow_control = new.flow_control.or(kept.flow_control);
        kept.split = new.split.or(kept.split);
        kept.selective_repeat = new.selective_repeat.or(kept.selective_repeat);
    }

    /// Sets timeouts, retries and depths.
    fn set_limits(&mut self, new: &QpAttributes) {
        let kept = &mut self.attributes;
        kept.timeout = new.timeout.or(kept.timeout);
        kept.retry_cnt = new.retry_cnt.or(kept.retry_cnt);
        kept.rnr_retry = new.rnr_retry.or(kept.rnr_retry);
        kept.max_rd_atomic = new.max_rd_atomic.or(kept.max_rd_atomic);
        kept.max_dest_rd_atomic = new.max_dest_rd_atomic.or(kept.max_dest_rd_atomic);
        kept.min_rnr_timer = new.min_rnr_timer.or(kept.min_rnr_timer);
        if let Some(timeout) = new.timeout {
            self.requester.ack_timer.set_timeout(timeout);
            if timeout == 0 {
                self.timers.stop(Timer::Ack);
            }
        }
        self.completer.retry_cnt = new.retry_cnt.unwrap_or(self.completer.retry_cnt);
        self.completer.rnr_retry = new.rnr_retry.unwrap_or(self.completer.rnr_retry);
        self.requester.max_rd_atomic = new.max_rd_atomic.unwrap_or(self.requester.max_rd_atomic);
        if let Some(depth) = new.max_dest_rd_atomic {
            self.responder.set_depth(depth);
        }
        self.responder.min_rnr_timer = new.min_rnr_timer.unwrap_or(self.responder.min_rnr_timer);
        self.notify_drained = new.en_sqd_async_notify.unwrap_or(self.notify_drained);
    }
}
