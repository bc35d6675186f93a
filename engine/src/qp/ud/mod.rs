//! A queue pair of the unreliable datagram service. Each request is one packet to the QP that it
//! names; each received packet is one message, accepted from every sender that knows the Q_Key.

mod grh;
mod receive;
mod send;

use std::sync::Arc;

use feroce_wire::{FlowHeader, Pkey, Psn, Qkey, Qpn};

use super::attributes::{ModifyError, QpAttributes};
use super::env::Env;
use super::receive::ReceiveQueue;
use super::snapshot::QpSnapshot;
use super::state::QpState;
use super::transitions;
use crate::memory::PdId;
use crate::memory::work_ring::WorkConsumer;
use crate::verbs::{AsyncEvent, AttachedCounters, CqRing, DatagramWqe, Service};

/// The parts that a UD QP is made from.
#[derive(Debug)]
pub struct UdQpParts {
    /// Number of the QP.
    pub qpn: Qpn,
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of send requests.
    pub send_cq: Arc<CqRing>,
    /// Completion queue of receives.
    pub recv_cq: Arc<CqRing>,
    /// The core's end of the send queue.
    pub sq: WorkConsumer<DatagramWqe>,
    /// Source of receives.
    pub rq: ReceiveQueue,
    /// True if every send request generates a completion.
    pub all_signaled: bool,
}

/// See the [module](self). Inputs and outputs are those of [`Qp`](super::Qp), without timers.
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
    /// PSN of the next packet. Receivers ignore it.
    psn: Psn,
    /// Headers of the packet that is being sent.
    flow: Option<FlowHeader>,
    /// The attributes as given.
    attributes: QpAttributes,
    notify_drained: bool,
    /// See [`Qp::set_stopping`](super::Qp::set_stopping).
    is_stopping: bool,
    counters: AttachedCounters,
}

impl UdQp {
    /// Makes a QP in RESET.
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
            is_stopping: false,
            counters: AttachedCounters::default(),
        }
    }

    /// The completion counters.
    pub fn counters_mut(&mut self) -> &mut AttachedCounters {
        &mut self.counters
    }

    /// State of the QP.
    #[inline]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Number of the QP.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// See [`Qp::set_stopping`](super::Qp::set_stopping).
    pub fn set_stopping(&mut self, is_stopping: bool) {
        self.is_stopping = is_stopping;
    }

    /// Headers of the packet that [`UdQp::next_flow`] found last.
    #[inline]
    pub fn flow(&self) -> Option<&FlowHeader> {
        self.flow.as_ref()
    }

    /// The attributes as given, with the current PSN.
    pub fn attributes(&self) -> QpAttributes {
        let mut attributes = self.attributes;
        attributes.state = Some(self.state);
        attributes.sq_psn = attributes.sq_psn.map(|_| self.psn);
        attributes
    }

    /// Changes state and attributes.
    ///
    /// # Errors
    /// The rule that is violated; nothing is changed.
    pub fn modify(&mut self, new: &QpAttributes, env: &mut Env<'_>) -> Result<(), ModifyError> {
        let from = self.state;
        if new.current_state.is_some_and(|expected| expected != from) {
            return Err(ModifyError::CurrentState(from));
        }
        let to = new.state.unwrap_or(from);
        transitions::check(Service::Ud, from, to, new.mask())?;
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
        self.set_attributes(new);
        self.state = to;
        match to {
            QpState::Err => self.flush(env),
            // A request completes in the call that starts it: the queue is always drained.
            QpState::Sqd if std::mem::take(&mut self.notify_drained) => {
                env.events.push(AsyncEvent::SqDrained(self.qpn));
            }
            _ => {}
        }
        self.finish_call(env);
        Ok(())
    }

    fn set_attributes(&mut self, new: &QpAttributes) {
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
        self.remove_completions();
        self.state = QpState::Reset;
        self.qkey = Qkey::default();
        self.flow = None;
        self.attributes = QpAttributes::default();
        self.notify_drained = false;
    }

    /// Removes the completions of this QP that the program has not polled.
    pub fn remove_completions(&self) {
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.remove_completions_of(self.qpn);
        }
    }

    /// Handles newly posted work requests.
    #[inline]
    pub fn handle_doorbell(&mut self, env: &mut Env<'_>) {
        match self.state {
            QpState::Err => self.flush(env),
            QpState::Sqe => self.flush_sends(env),
            _ => return,
        }
        self.finish_call(env);
    }

    /// Ends every call: enters ERR after a fatal error, such as a full completion queue.
    fn finish_call(&mut self, env: &mut Env<'_>) {
        if let Some(event) = env.fatal_event.take().filter(|_| self.state != QpState::Err) {
            env.events.push(event(self.qpn));
            self.enter_error(env);
            // A full CQ cannot take the flushed requests either; the error is reported once.
            env.fatal_event = None;
        }
        self.check_invariants();
    }

    /// Checks what holds between two calls, in builds with debug assertions.
    fn check_invariants(&self) {
        let state = self.state;
        debug_assert!(state != QpState::Err || !self.rq.holds_receive(), "a receive is kept");
        let is_new = self.flow.is_none() && self.attributes.sq_psn.is_none();
        debug_assert!(state != QpState::Reset || is_new && !self.notify_drained, "{self:?}");
        // A request completes in the call that starts it.
        debug_assert!(state != QpState::Sqd || !self.notify_drained, "the drain is not reported");
    }

    fn enter_error(&mut self, env: &mut Env<'_>) {
        self.state = QpState::Err;
        self.flush(env);
        if self.rq.raises_last_wqe_event() {
            env.events.push(AsyncEvent::LastWqeReached(self.qpn));
        }
    }

    /// Completes all posted requests as flushed.
    fn flush(&mut self, env: &mut Env<'_>) {
        self.flush_sends(env);
        self.flush_receives(env);
    }

    /// A snapshot of the QP.
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
