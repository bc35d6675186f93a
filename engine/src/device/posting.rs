//! Posting work requests to a queue pair, one by one or many with one doorbell.

use super::PostError;
use super::datagram::Destination;
use super::queue_pair::{QueuePair, SendQueue};
use super::send_limits::SendLimits;
use crate::memory::work_ring::WorkProducer;
use crate::qp::{QpState, Service, sg};
use crate::verbs::{RecvRequest, RecvWqe, SendOp, SendRequest, SendWqe};

/// Requests that are posted together, as a list of `ibv_post_send`. The core learns of them at the
/// latest when this value is dropped: one doorbell costs less than one per request.
///
/// ```no_run
/// # use feroce_engine::device::{PostError, QueuePair};
/// # use feroce_engine::verbs::SendRequest;
/// # fn post(qp: &mut QueuePair, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
/// let mut batch = qp.batch();
/// requests.iter().try_for_each(|request| batch.post_send(request))
/// # }
/// ```
#[derive(Debug)]
pub struct PostBatch<'q> {
    qp: &'q mut QueuePair,
    rings: bool,
}

impl PostBatch<'_> {
    /// [`QueuePair::post_send`] as part of the batch.
    ///
    /// # Errors
    /// [`PostError`]; the request is not posted then.
    #[inline]
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.post_connected(request, None)
    }

    /// [`QueuePair::post_send_xrc`] as part of the batch.
    ///
    /// # Errors
    /// [`PostError`]; the request is not posted then.
    #[inline]
    pub fn post_send_xrc(&mut self, request: &SendRequest<'_>, srqn: u32) -> Result<(), PostError> {
        self.post_connected(request, Some(srqn))
    }

    /// [`QueuePair::post_send_to`] as part of the batch.
    ///
    /// # Errors
    /// [`PostError`]; the request is not posted then.
    #[inline]
    pub fn post_send_to(
        &mut self,
        request: &SendRequest<'_>,
        to: &Destination<'_>,
    ) -> Result<(), PostError> {
        let is_pushed = self.qp.push_to(request, to)?;
        self.after_push(is_pushed)
    }

    /// [`QueuePair::post_recv`] as part of the batch.
    ///
    /// # Errors
    /// [`PostError`]; the request is not posted then.
    #[inline]
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let is_pushed = self.qp.push_receive(request)?;
        self.after_push(is_pushed)
    }

    #[inline]
    fn post_connected(
        &mut self,
        request: &SendRequest<'_>,
        srqn: Option<u32>,
    ) -> Result<(), PostError> {
        let is_pushed = self.qp.push_connected(request, srqn)?;
        self.after_push(is_pushed)
    }

    #[inline]
    fn after_push(&mut self, is_pushed: bool) -> Result<(), PostError> {
        self.rings |= is_pushed;
        if is_pushed { Ok(()) } else { Err(PostError::Full) }
    }
}

impl Drop for PostBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.rings {
            let qp = &*self.qp;
            qp.device().cores[qp.core].doorbell.ring(qp.slot, &qp.posted);
        }
    }
}

impl QueuePair {
    /// Begins a batch of requests.
    #[inline]
    pub fn batch(&mut self) -> PostBatch<'_> {
        PostBatch { qp: self, rings: false }
    }

    /// Posts a send request. It is sent in the next turn of the QP's core, at the latest in a turn
    /// of the helper. An operation that the transport service lacks completes with
    /// [`Status::LocalQpOperation`](crate::verbs::Status::LocalQpOperation).
    ///
    /// # Errors
    /// [`PostError`]; nothing is posted then.
    #[inline]
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.batch().post_send(request)
    }

    /// Posts a send request of an XRC initiator QP to the peer's shared receive queue `srqn`.
    ///
    /// # Errors
    /// As for [`QueuePair::post_send`]; [`PostError::Destination`] if the QP has another service.
    pub fn post_send_xrc(&mut self, request: &SendRequest<'_>, srqn: u32) -> Result<(), PostError> {
        self.batch().post_send_xrc(request, srqn)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError`]; nothing is posted then.
    #[inline]
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.batch().post_recv(request)
    }

    /// Returns the error that posting `request` would return, except for a full queue. `srqn`: the
    /// peer's shared receive queue, for XRC.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn check_send(
        &self,
        request: &SendRequest<'_>,
        srqn: Option<u32>,
    ) -> Result<(), PostError> {
        self.check_connected(request, srqn)?;
        self.send_limits().check(request).map(drop)
    }

    /// Returns the receives posted and not yet consumed; 0 with a shared receive queue.
    pub fn receives_posted(&self) -> u32 {
        self.rq.as_ref().map_or(0, WorkProducer::len)
    }

    /// Returns the send requests posted and not yet completed.
    pub fn sends_posted(&self) -> u32 {
        match &self.sq {
            SendQueue::Connected(sq) => sq.len(),
            SendQueue::Datagram(sq) => sq.len(),
        }
    }

    /// Puts a request of a connected QP into the send queue. Returns false if the queue is full.
    #[inline]
    fn push_connected(
        &mut self,
        request: &SendRequest<'_>,
        srqn: Option<u32>,
    ) -> Result<bool, PostError> {
        self.check_connected(request, srqn)?;
        let limits = self.send_limits();
        let SendQueue::Connected(sq) = &mut self.sq else { return Err(PostError::Destination) };
        let srqn = srqn.unwrap_or(0);
        limits.push(sq, request, |wqe| Ok(SendWqe { srqn, ..wqe }))
    }

    /// Puts a receive into the receive queue. Returns false if the queue is full.
    #[inline]
    fn push_receive(&mut self, request: &RecvRequest<'_>) -> Result<bool, PostError> {
        if self.state == QpState::Reset {
            return Err(PostError::State);
        }
        let Some(rq) = &mut self.rq else { return Err(PostError::SharedReceives) };
        if request.sges.len() > self.max_recv_sge as usize {
            return Err(PostError::TooManySges);
        }
        let wqe = RecvWqe {
            wr_id: request.wr_id,
            length: sg::total(request.sges),
            num_sge: u8::try_from(request.sges.len()).expect("at most 16"),
        };
        Ok(rq.push(&wqe, request.sges))
    }

    /// Checks a request for a connected QP, except for its data.
    #[inline]
    fn check_connected(
        &self,
        request: &SendRequest<'_>,
        srqn: Option<u32>,
    ) -> Result<(), PostError> {
        self.check_post()?;
        // Local operations address no queue of the peer.
        let is_local = matches!(request.op, SendOp::Local(_));
        let is_xrc = self.service() == Service::XrcIni;
        if self.service() == Service::Ud || !is_local && srqn.is_some() != is_xrc {
            return Err(PostError::Destination);
        }
        Ok(())
    }

    /// Checks that the QP takes send requests.
    #[inline]
    pub(super) fn check_post(&self) -> Result<(), PostError> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State);
        }
        if self.service().has_requester() { Ok(()) } else { Err(PostError::Operation) }
    }

    #[inline]
    pub(super) fn send_limits(&self) -> SendLimits {
        SendLimits { max_sge: self.max_send_sge as usize, max_inline: self.max_inline as usize }
    }
}
