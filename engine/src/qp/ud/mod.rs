//! A queue pair of the unreliable datagram service: each request is one packet to whom it names, each packet
//! received one message from anybody who knows the Q_Key.

mod grh;
mod receive;
mod send;

use std::sync::Arc;

use feroce_wire::{FlowHeader, Pkey, Psn, Qkey, Qpn};

use super::attributes::{ModifyError, QpAttributes};
use super::{Env, QpSnapshot, QpState, ReceiveQueue, Service, check_transition};
use crate::memory::PdId;
use crate::memory::work_ring::WorkConsumer;
use crate::verbs::{AsyncEvent, CqRing, DatagramWqe};

/// What makes a UD QP, once and for all.
#[derive(Debug)]
pub struct UdQpParts {
    /// Its number.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: PdId,
    /// Where send requests complete.
    pub send_cq: Arc<CqRing>,
    /// Where receives complete.
    pub recv_cq: Arc<CqRing>,
    /// The core's end of the send queue.
    pub sq: WorkConsumer<DatagramWqe>,
    /// The core's end of the receive queue.
    pub rq: ReceiveQueue,
    /// Every send request completes with an entry.
    pub all_signaled: bool,
}

/// See the [module](self). Inputs and outputs are those of [`Qp`](super::Qp), but that it needs no time.
#[derive(Debug)]
pub struct UdQp {
    state: QpState,
    qpn: Qpn,
    pd: PdId,
    pkey: Pkey,
    qkey: Qkey,
    all_signaled: bool,
    send_cq: Arc<CqRing>,
    recv_cq: Arc<CqRing>,
    sq: WorkConsumer<DatagramWqe>,
    rq: ReceiveQueue,
    /// PSN of the next packet. Receivers do not look at it.
    psn: Psn,
    /// Headers of the packet that is sent now.
    flow: Option<FlowHeader>,
    /// As they were given.
    attributes: QpAttributes,
    notify_drained: bool,
}

impl UdQp {
    /// A QP in RESET.
    pub fn new(parts: UdQpParts) -> Self {
        let UdQpParts { qpn, pd, send_cq, recv_cq, sq, rq, all_signaled } = parts;
        Self {
            state: QpState::Reset,
            qpn,
            pd,
            pkey: Pkey::DEFAULT,
            qkey: Qkey::default(),
            all_signaled,
            send_cq,
            recv_cq,
            sq,
            rq,
            psn: Psn::new(0),
            flow: None,
            attributes: QpAttributes::default(),
            notify_drained: false,
        }
    }

    /// Its state.
    #[inline]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Its number.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Headers of the packet that was looked at last with [`UdQp::next_flow`].
    #[inline]
    pub fn flow(&self) -> Option<&FlowHeader> {
        self.flow.as_ref()
    }

    /// The attributes it was given, with the PSN as it stands now.
    pub fn attributes(&self) -> QpAttributes {
        let mut attributes = self.attributes;
        attributes.state = Some(self.state);
        attributes.sq_psn = attributes.sq_psn.map(|_| self.psn);
        attributes
    }

    /// Changes state and attributes.
    ///
    /// # Errors
    /// The rule that is broken; nothing was changed then.
    pub fn modify(&mut self, new: &QpAttributes, env: &mut Env<'_>) -> Result<(), ModifyError> {
        let from = self.state;
        if new.current_state.is_some_and(|believed| believed != from) {
            return Err(ModifyError::CurrentState(from));
        }
        let to = new.state.unwrap_or(from);
        check_transition(Service::Ud, from, to, new.mask())?;
        if new.flow_control.is_some() {
            return Err(ModifyError::Range("flow_control, on a datagram QP"));
        }
        if new.split.is_some() {
            return Err(ModifyError::Range("split, on a datagram QP"));
        }
        new.check_ranges()?;
        if to == QpState::Reset {
            self.reset();
            return Ok(());
        }
        self.take(new);
        self.state = to;
        match to {
            QpState::Err => self.flush(env),
            // Requests are done as soon as they are begun: the queue is always drained.
            QpState::Sqd if std::mem::take(&mut self.notify_drained) => {
                env.events.push(AsyncEvent::SqDrained(self.qpn));
            }
            _ => {}
        }
        self.finish_call(env);
        Ok(())
    }

    fn take(&mut self, new: &QpAttributes) {
        self.pkey = new.pkey.unwrap_or(self.pkey);
        self.qkey = new.qkey.unwrap_or(self.qkey);
        self.psn = new.sq_psn.unwrap_or(self.psn);
        self.notify_drained = new.en_sqd_async_notify.unwrap_or(self.notify_drained);
        let kept = &mut self.attributes;
        kept.pkey = new.pkey.or(kept.pkey);
        kept.port = new.port.or(kept.port);
        kept.qkey = new.qkey.or(kept.qkey);
        kept.sq_psn = new.sq_psn.or(kept.sq_psn);
    }

    fn reset(&mut self) {
        while !self.sq.is_empty() {
            self.sq.retire();
        }
        while self.rq.retire().is_some() {}
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.remove_completions_of(self.qpn);
        }
        self.state = QpState::Reset;
        self.qkey = Qkey::default();
        self.flow = None;
        self.attributes = QpAttributes::default();
        self.notify_drained = false;
    }

    /// Takes notice of work requests that were posted.
    #[inline]
    pub fn handle_doorbell(&mut self, env: &mut Env<'_>) {
        match self.state {
            QpState::Err => self.flush(env),
            QpState::Sqe => self.flush_sends(env),
            _ => return,
        }
        self.finish_call(env);
    }

    /// What every call ends with: a QP whose completion queue is full goes to ERR.
    fn finish_call(&mut self, env: &mut Env<'_>) {
        if let Some(event) = env.broken.take().filter(|_| self.state != QpState::Err) {
            env.events.push(event(self.qpn));
            self.enter_error(env);
            env.broken = None; // A full CQ cannot take the flushed requests either; said once.
        }
    }

    fn enter_error(&mut self, env: &mut Env<'_>) {
        self.state = QpState::Err;
        self.flush(env);
        if self.rq.has_a_last() {
            env.events.push(AsyncEvent::LastWqeReached(self.qpn));
        }
    }

    /// Completes everything posted as flushed.
    fn flush(&mut self, env: &mut Env<'_>) {
        self.flush_sends(env);
        self.flush_receives(env);
    }

    /// Where it stands now.
    pub fn snapshot(&self) -> QpSnapshot {
        QpSnapshot {
            qpn: self.qpn,
            state: self.state,
            peer: None,
            path_mtu: 0,
            unacknowledged: self.psn,
            next: self.psn,
            expected: Psn::new(0),
            packets_outstanding: 0,
            sends_posted: self.sq.len(),
            receives_posted: self.rq.posted(),
            reads_in_flight: 0,
            retries: 0,
            rnr_retries: 0,
            waits_for_receive: false,
            ssn: 0,
            msn: 0,
            rate: None,
        }
    }
}
