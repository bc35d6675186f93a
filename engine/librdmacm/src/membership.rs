//! The membership of an identifier in a multicast group.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use crate::abi::{
    RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_UDP_QKEY, cm_event_param,
    ibv_ah_attr, rdma_cm_id, rdma_ud_param,
};
use crate::channel::Unacknowledged;
use crate::verbs;

/// QP number that stands for every QP of a group.
const MULTICAST_QPN: u32 = 0xff_ffff;

/// The membership of an identifier in a group.
pub struct Membership {
    /// Address of the group.
    pub address: SocketAddr,
    /// The program's context for the events of the group.
    pub context: usize,
    /// Joined for sending only: receives no datagrams.
    pub is_send_only: bool,
    /// Address vector for sending to the group.
    pub ah_attr: ibv_ah_attr,
    /// The program has left the group. Its QP is detached; an event that another thread still holds
    /// must not attach it again.
    pub has_left: Mutex<bool>,
    /// Events of the group that the program has read and not acknowledged.
    pub unacknowledged: Unacknowledged,
}

impl Membership {
    fn group(&self) -> [u8; 16] {
        let [first, second] = self.ah_attr.grh.dgid.map(u64::to_ne_bytes);
        let mut group = [0; 16];
        group[..8].copy_from_slice(&first);
        group[8..].copy_from_slice(&second);
        group
    }

    /// Attaches the QP to the group when the program reads the join event. Returns the kind, status
    /// and parameters of the event.
    ///
    /// # Safety
    /// `id` is live.
    pub unsafe fn joined(&self, id: *mut rdma_cm_id) -> (u32, c_int, cm_event_param) {
        let has_left = self.has_left.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `id` is live, and its QP is live if it is not null.
        let code = unsafe {
            match (*id).qp {
                qp if qp.is_null() || self.is_send_only || *has_left => 0,
                qp => verbs::ibv_attach_mcast(qp, &self.group(), 0),
            }
        };
        drop(has_left);
        let ud = rdma_ud_param {
            private_data: std::ptr::with_exposed_provenance(self.context),
            private_data_len: 0,
            ah_attr: self.ah_attr,
            qp_num: MULTICAST_QPN,
            qkey: RDMA_UDP_QKEY,
        };
        let kind =
            if code == 0 { RDMA_CM_EVENT_MULTICAST_JOIN } else { RDMA_CM_EVENT_MULTICAST_ERROR };
        (kind, -code, cm_event_param { ud })
    }

    /// Detaches the identifier's QP from the group.
    ///
    /// # Safety
    /// `id` is live.
    pub unsafe fn leave(&self, id: *mut rdma_cm_id) {
        *self.has_left.lock().unwrap_or_else(PoisonError::into_inner) = true;
        // SAFETY: `id` is live, and its QP is live if it is not null.
        unsafe {
            if !(*id).qp.is_null() && !self.is_send_only {
                // Fails if the QP was never attached, because the join event was not read.
                verbs::ibv_detach_mcast((*id).qp, &self.group(), 0);
            }
        }
    }
}
