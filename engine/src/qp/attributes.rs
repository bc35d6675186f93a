//! The attributes of a QP, and `modify`: the checks that the specification demands, then the change.

use feroce_wire::{FlowHeader, PathMtu, Pkey, Psn, Qkey, Qpn, RnrTimer};

use super::responder_resources::MAX_RD_ATOMIC;
use super::timer::{Timer, TimerTable};
use super::{Env, Qp, QpAttrMask, QpState, TransitionError, check_transition};
use crate::memory::Access;
use crate::time::Duration;

/// Attributes to give to a QP, or that it has; those that are `None` are not given. The meaning is that of
/// `ibv_qp_attr`.
#[derive(Debug, Clone, Copy, Default)]
pub struct QpAttributes {
    /// The state to go to.
    pub state: Option<QpState>,
    /// The state the program believes the QP to be in.
    pub current_state: Option<QpState>,
    /// Raise an event when the send queue is drained.
    pub en_sqd_async_notify: Option<bool>,
    /// What the peer may do to memory.
    pub access: Option<Access>,
    /// The partition key. Stands for `pkey_index`: RoCE has one partition table entry.
    pub pkey: Option<Pkey>,
    /// The device's port, always 1.
    pub port: Option<u8>,
    /// The key that datagrams must have to be received. UD only.
    pub qkey: Option<Qkey>,
    /// Headers of the packets to the peer. Stands for the address vector, resolved.
    pub flow: Option<FlowHeader>,
    /// Path MTU.
    pub path_mtu: Option<PathMtu>,
    /// Local ACK timeout: 4.096 us * 2^n for n of 1..=31, and 0 for no timeout.
    pub timeout: Option<u8>,
    /// Retries after time-outs and sequence errors, 0..=7.
    pub retry_cnt: Option<u8>,
    /// Retries after RNR NAKs, 0..=6, and 7 for ever.
    pub rnr_retry: Option<u8>,
    /// First PSN expected.
    pub rq_psn: Option<Psn>,
    /// First PSN sent.
    pub sq_psn: Option<Psn>,
    /// READs and atomics that may be outstanding to the peer.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// Code of the time that RNR NAKs ask to wait.
    pub min_rnr_timer: Option<RnrTimer>,
    /// The peer's QP.
    pub dest_qp: Option<Qpn>,
    /// Use end-to-end credits. Only where both sides agreed to (the flow control bit of the CM REQ);
    /// taken on the way to RTR and to RTS, and not part of `ibv_qp_attr`.
    pub flow_control: Option<bool>,
    /// Long WRITEs and READs may go as several messages: see [`Split`](crate::device::Split). Taken on the way to RTR and to RTS, and not
    /// part of `ibv_qp_attr`.
    pub split: Option<bool>,
}

/// Why attributes are refused. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The transition or its set of attributes.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// `current_state` is not the state of the QP.
    #[error("the QP is in {0:?}")]
    CurrentState(QpState),
    /// An attribute's value is out of range.
    #[error("attribute {0} is out of range")]
    Range(&'static str),
}

/// The local ACK timeout for the code `n`: 4.096 us * 2^n; `None` for 0, which is no timeout.
pub fn ack_timeout(n: u8) -> Option<Duration> {
    (n > 0).then(|| Duration::from_nanos(4096u64 << n.min(31)))
}

impl QpAttributes {
    /// The attributes that are given.
    pub fn mask(&self) -> QpAttrMask {
        use QpAttrMask as A;
        let given = [
            (self.state.is_some(), A::STATE),
            (self.current_state.is_some(), A::CUR_STATE),
            (self.en_sqd_async_notify.is_some(), A::EN_SQD_ASYNC_NOTIFY),
            (self.access.is_some(), A::ACCESS_FLAGS),
            (self.pkey.is_some(), A::PKEY_INDEX),
            (self.port.is_some(), A::PORT),
            (self.qkey.is_some(), A::QKEY),
            (self.flow.is_some(), A::AV),
            (self.path_mtu.is_some(), A::PATH_MTU),
            (self.timeout.is_some(), A::TIMEOUT),
            (self.retry_cnt.is_some(), A::RETRY_CNT),
            (self.rnr_retry.is_some(), A::RNR_RETRY),
            (self.rq_psn.is_some(), A::RQ_PSN),
            (self.sq_psn.is_some(), A::SQ_PSN),
            (self.max_rd_atomic.is_some(), A::MAX_QP_RD_ATOMIC),
            (self.max_dest_rd_atomic.is_some(), A::MAX_DEST_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), A::MIN_RNR_TIMER),
            (self.dest_qp.is_some(), A::DEST_QPN),
        ];
        given.into_iter().filter(|(is_given, _)| *is_given).fold(A::NONE, |all, (_, bit)| all | bit)
    }

    pub(super) fn check_ranges(&self) -> Result<(), ModifyError> {
        let limits = [
            ("port", self.port.map(|port| port.wrapping_sub(1)), 0),
            ("timeout", self.timeout, 31),
            ("retry_cnt", self.retry_cnt, 7),
            ("rnr_retry", self.rnr_retry, 7),
            ("max_rd_atomic", self.max_rd_atomic, MAX_RD_ATOMIC),
            ("max_dest_rd_atomic", self.max_dest_rd_atomic, MAX_RD_ATOMIC),
        ];
        for (name, value, most) in limits {
            if value.is_some_and(|value| value > most) {
                return Err(ModifyError::Range(name));
            }
        }
        let known = Access::REMOTE | Access::LOCAL_WRITE | Access::MW_BIND;
        match self.access {
            Some(access) if !known.contains(access) => Err(ModifyError::Range("access")),
            _ => Ok(()),
        }
    }
}

impl Qp {
    /// Changes state and attributes.
    ///
    /// # Errors
    /// The rule that is broken; nothing was changed then.
    pub fn modify(&mut self, new: &QpAttributes, env: &mut Env<'_>) -> Result<(), ModifyError> {
        let from = self.conn.state;
        if new.current_state.is_some_and(|believed| believed != from) {
            return Err(ModifyError::CurrentState(from));
        }
        let to = new.state.unwrap_or(from);
        check_transition(self.conn.service, from, to, new.mask())?;
        for (name, is_given) in [
            ("flow_control, once the QP is in RTS", new.flow_control.is_some()),
            ("split, once the QP is in RTS", new.split.is_some()),
        ] {
            if is_given && !matches!(from, QpState::Init | QpState::Rtr) {
                return Err(ModifyError::Range(name));
            }
        }
        new.check_ranges()?;
        if to == QpState::Reset {
            self.reset();
            return Ok(());
        }
        self.take_connection(new);
        self.take_limits(new);
        self.conn.state = to;
        match (from, to) {
            (QpState::Rtr | QpState::Sqd, QpState::Rts) => self.completer.reset(),
            (QpState::Rts, QpState::Sqd) => self.requester.ask_for_last_ack(),
            _ => {}
        }
        if to == QpState::Err && from != QpState::Err {
            self.enter_error(env);
        }
        self.finish_call(env);
        Ok(())
    }

    fn reset(&mut self) {
        self.requester.reset(Psn::new(0));
        self.responder.reset(Psn::new(0));
        self.timers = TimerTable::default();
        self.attributes = QpAttributes::default();
        self.established = false;
        self.notify_drained = false;
        self.responses_next = false;
        let conn = &mut self.conn;
        for cq in [&conn.send_cq, &conn.recv_cq] {
            cq.remove_completions_of(conn.qpn);
        }
        conn.state = QpState::Reset;
        conn.flow_control = false;
    }

    /// Who the peer is and what it may do.
    fn take_connection(&mut self, new: &QpAttributes) {
        let (conn, kept) = (&mut self.conn, &mut self.attributes);
        conn.access = new.access.unwrap_or(conn.access);
        conn.pkey = new.pkey.unwrap_or(conn.pkey);
        conn.dest_qp = new.dest_qp.unwrap_or(conn.dest_qp);
        conn.flow_control = new.flow_control.unwrap_or(conn.flow_control);
        if let Some(split) = new.split {
            self.requester.grounds = split.then(Box::default);
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
    }

    /// Timeouts, retries and depths.
    fn take_limits(&mut self, new: &QpAttributes) {
        let kept = &mut self.attributes;
        kept.timeout = new.timeout.or(kept.timeout);
        kept.retry_cnt = new.retry_cnt.or(kept.retry_cnt);
        kept.rnr_retry = new.rnr_retry.or(kept.rnr_retry);
        kept.max_rd_atomic = new.max_rd_atomic.or(kept.max_rd_atomic);
        kept.max_dest_rd_atomic = new.max_dest_rd_atomic.or(kept.max_dest_rd_atomic);
        kept.min_rnr_timer = new.min_rnr_timer.or(kept.min_rnr_timer);
        if let Some(timeout) = new.timeout {
            self.requester.timeout = ack_timeout(timeout);
            if self.requester.timeout.is_none() {
                self.timers.stop(Timer::Ack);
            }
        }
        self.completer.retry_cnt = new.retry_cnt.unwrap_or(self.completer.retry_cnt);
        self.completer.rnr_retry = new.rnr_retry.unwrap_or(self.completer.rnr_retry);
        self.requester.max_rd_atomic = new.max_rd_atomic.unwrap_or(self.requester.max_rd_atomic);
        if let Some(depth) = new.max_dest_rd_atomic {
            self.responder.take_depth(depth);
        }
        self.responder.min_rnr_timer = new.min_rnr_timer.unwrap_or(self.responder.min_rnr_timer);
        self.notify_drained = new.en_sqd_async_notify.unwrap_or(self.notify_drained);
    }
}
