//! The QP of a socket, with its CQ and completion channel.

use std::ffi::{c_int, c_uint};
use std::os::fd::RawFd;
use std::ptr;

use super::identifier::Identifier;
use super::verbs::{
    ibv_ack_cq_events, ibv_get_cq_event, poll_cq, post_recv, post_send, req_notify_cq,
};
use crate::abi::{
    ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_wc, rdma_cm_id,
};
use crate::errno;
use crate::qp::rdma_destroy_qp;
use crate::verbs::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};

/// Completions taken per poll.
const BATCH: usize = 32;

/// Sizes of a QP.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// `ibv_qp_type`
    pub kind: c_uint,
    /// Work requests in the send queue.
    pub send_queue: u16,
    /// Work requests in the receive queue.
    pub receive_queue: u16,
    /// Bytes of inline data.
    pub inline: u32,
}

/// The QP, CQ and completion channel of an identifier.
#[derive(Debug)]
pub struct Queues {
    id: *mut rdma_cm_id,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    /// A notification was requested and its event not consumed.
    armed: bool,
    /// Bytes of inline data that the QP supports.
    pub inline: u32,
}

// SAFETY: the library's objects may be used from any thread, and this is their only owner.
unsafe impl Send for Queues {}
// SAFETY: the library guards the shared state with locks of its own.
unsafe impl Sync for Queues {}

impl Queues {
    /// Creates the QP. The result must be dropped before the identifier.
    pub fn new(identifier: &Identifier, capacity: Capacity) -> Result<Self, c_int> {
        let mut queues = Self {
            id: identifier.raw(),
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            armed: false,
            inline: 0,
        };
        // SAFETY: the identifier is live.
        let context = unsafe { (*identifier.raw()).verbs };
        if context.is_null() {
            return Err(libc::ENODEV);
        }
        // SAFETY: the context is the identifier's.
        queues.channel = unsafe { ibv_create_comp_channel(context) };
        if queues.channel.is_null() {
            return Err(errno::last());
        }
        let entries = c_int::from(capacity.send_queue) + c_int::from(capacity.receive_queue);
        let user = identifier.raw().cast();
        // SAFETY: the context and the channel are live.
        queues.cq = unsafe { ibv_create_cq(context, entries, user, queues.channel, 0) };
        if queues.cq.is_null() {
            return Err(errno::last());
        }
        // SAFETY: the channel owns the descriptor.
        unsafe { libc::fcntl(queues.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let mut attributes = ibv_qp_init_attr {
            qp_context: user,
            send_cq: queues.cq,
            recv_cq: queues.cq,
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: capacity.send_queue.into(),
                max_recv_wr: capacity.receive_queue.into(),
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: capacity.inline,
            },
            qp_type: capacity.kind,
            sq_sig_all: 1,
        };
        identifier.create_qp(&mut attributes)?;
        // SAFETY: the identifier is live and now has a QP.
        queues.qp = unsafe { (*identifier.raw()).qp };
        queues.inline = attributes.cap.max_inline_data;
        Ok(queues)
    }

    /// Returns the PD of the QP.
    pub fn pd(&self) -> *mut ibv_pd {
        // SAFETY: the QP is live.
        unsafe { (*self.qp).pd }
    }

    /// Returns the QP number.
    pub fn qpn(&self) -> u32 {
        // SAFETY: the QP is live.
        unsafe { (*self.qp).qp_num }
    }

    /// Returns the descriptor that becomes readable with the next completion after
    /// [`arm`](Self::arm).
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel is live.
        unsafe { (*self.channel).fd }
    }

    /// Posts a send request.
    ///
    /// # Safety
    /// The list is valid during the call; its memory is valid until the completion, unless it is
    /// inline.
    pub unsafe fn send(&self, request: &mut ibv_send_wr) -> Result<(), c_int> {
        // SAFETY: the QP is live; the request's list and memory are valid.
        result(unsafe { post_send(self.qp, request) })
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The list is valid during the call; its memory is valid until the completion.
    pub unsafe fn receive(&self, wr_id: u64, list: &mut [ibv_sge]) -> Result<(), c_int> {
        let num_sge = c_int::try_from(list.len()).unwrap_or(0);
        let mut request =
            ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: list.as_mut_ptr(), num_sge };
        // SAFETY: the QP is live; the list and its memory are valid.
        result(unsafe { post_recv(self.qp, &mut request) })
    }

    /// Passes each completion to `take`. Returns the number of completions.
    pub fn poll(&self, mut take: impl FnMut(&ibv_wc)) -> Result<usize, c_int> {
        // SAFETY: all-zero bytes are a valid completion.
        let mut completions: [ibv_wc; BATCH] = unsafe { std::mem::zeroed() };
        let mut total = 0;
        loop {
            // SAFETY: the CQ is live.
            let found = unsafe { poll_cq(self.cq, &mut completions) };
            let found = usize::try_from(found).map_err(|_| libc::EIO)?;
            completions[..found].iter().for_each(&mut take);
            total += found;
            if found < BATCH {
                return Ok(total);
            }
        }
    }

    /// Requests a notification for the next completion. Returns true if none was requested before;
    /// the caller must then poll again before it sleeps.
    pub fn arm(&mut self) -> bool {
        if self.armed {
            return false;
        }
        self.armed = true;
        // SAFETY: the CQ is live.
        unsafe { req_notify_cq(self.cq) };
        true
    }

    /// Consumes the notification, if it has arrived.
    pub fn disarm(&mut self) {
        if !self.armed {
            return;
        }
        let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is live and nonblocking; only this CQ uses it, so the event is the
        // CQ's.
        unsafe {
            if ibv_get_cq_event(self.channel, &raw mut cq, &raw mut user) == 0 {
                ibv_ack_cq_events(cq, 1);
                self.armed = false;
            }
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // SAFETY: this is the only owner, and the identifier is live.
        unsafe {
            if !self.qp.is_null() {
                rdma_destroy_qp(self.id);
            }
            if !self.cq.is_null() {
                ibv_destroy_cq(self.cq);
            }
            if !self.channel.is_null() {
                ibv_destroy_comp_channel(self.channel);
            }
        }
    }
}

fn result(code: c_int) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(code) }
}
