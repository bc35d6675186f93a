//! Multicast groups: a UD QP joins a group and learns how to send to it.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use libc::sockaddr;

use crate::abi::connections::{CmAddress, feroce_cm_device_of};
use crate::abi::{
    IBV_QPT_UD, RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_MULTICAST_JOIN,
    RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_CM_JOIN_MC_ATTR_RESERVED,
    RDMA_MC_JOIN_FLAG_FULLMEMBER, RDMA_MC_JOIN_FLAG_RESERVED,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, RDMA_UDP_QKEY, cm_event_param, ibv_ah_attr, rdma_cm_id,
    rdma_cm_join_mc_attr_ex, rdma_ud_param,
};
use crate::address::{gid, read};
use crate::attributes;
use crate::channel::Unacknowledged;
use crate::event::{acknowledge_last, complete};
use crate::id::{self, Id};
use crate::outcome::{checked, returned};
use crate::verbs;

/// QP number that stands for every QP of a group.
const MULTICAST_QPN: u32 = 0xff_ffff;

/// Hop limit of packets to a group.
const HOP_LIMIT: u8 = 64;

/// The membership of an identifier in a group.
pub struct Membership {
    address: SocketAddr,
    /// The program's context for the events of the group.
    context: usize,
    /// Joined for sending only: receives no datagrams.
    is_send_only: bool,
    ah_attr: ibv_ah_attr,
    /// The program has left the group. Its QP is detached; an event that another thread still holds
    /// must not attach it again.
    has_left: Mutex<bool>,
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
}

impl Membership {
    /// Detaches the identifier's QP from the group.
    ///
    /// # Safety
    /// `id` is live.
    unsafe fn leave(&self, id: *mut rdma_cm_id) {
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

/// Returns the address vector of the group, from the identifier's local address.
fn way(live: &Id, group: SocketAddr) -> Result<ibv_ah_attr, c_int> {
    let view = live.view()?;
    let own = match view.path.local.version {
        0 => view.source,
        _ => view.path.local,
    };
    let (mut device, mut gid_index) = (0, 0);
    // SAFETY: both out parameters are writable.
    checked(unsafe { feroce_cm_device_of(&raw const own, &raw mut device, &raw mut gid_index) })?;
    let mut attr = attributes::empty().ah_attr;
    attr.grh.dgid = gid(&CmAddress::from(group));
    attr.grh.sgid_index = u8::try_from(gid_index).unwrap_or(u8::MAX);
    attr.grh.hop_limit = HOP_LIMIT;
    attr.grh.traffic_class = view.path.traffic_class;
    attr.is_global = 1;
    attr.port_num = 1;
    Ok(attr)
}

/// Joins a group.
///
/// # Safety
/// `id` is live, and `address` is null or points to an address of its family.
unsafe fn join(
    id: *mut rdma_cm_id,
    address: *const sockaddr,
    flag: u32,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: `id` is live, and `address` is null or points to an address of its family.
    unsafe {
        let address = read(address).ok_or(libc::EINVAL)?;
        let live = id::of(id);
        live.device()?;
        let is_group = match address.ip() {
            IpAddr::V4(ip) => ip.is_multicast(),
            IpAddr::V6(ip) => ip.is_multicast(),
        };
        if (*id).qp_type != IBV_QPT_UD || !is_group {
            return Err(libc::EINVAL);
        }
        let membership = Arc::new(Membership {
            address,
            context: context.expose_provenance(),
            is_send_only: flag == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
            ah_attr: way(live, address)?,
            has_left: Mutex::new(false),
            unacknowledged: Unacknowledged::default(),
        });
        live.private().memberships.push(Arc::clone(&membership));
        live.heard.tell_joined(membership);
        complete(id)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes a live identifier and a valid address.
    returned(unsafe { join(id, address, RDMA_MC_JOIN_FLAG_FULLMEMBER, context) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const NEEDED: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    // SAFETY: the program passes a live identifier and attributes with a valid address.
    unsafe {
        let rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr } = *attr;
        if comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return returned(Err(libc::ENOTSUP));
        }
        if comp_mask & NEEDED != NEEDED || join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
            return returned(Err(libc::EINVAL));
        }
        returned(join(id, addr, join_flags, context))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
) -> c_int {
    // SAFETY: the program passes a live identifier and a valid address.
    returned(unsafe {
        read(address).ok_or(libc::EINVAL).and_then(|address| {
            let live = id::of(id);
            let left = {
                let groups = &mut live.private().memberships;
                let at = groups.iter().rposition(|group| group.address == address);
                at.map(|at| groups.remove(at)).ok_or(libc::EADDRNOTAVAIL)?
            };
            left.leave(id);
            live.heard.forget_joined(&left);
            if live.is_sync() {
                acknowledge_last(id); // the last event may be the join event of this group
            }
            left.unacknowledged.wait();
            Ok(())
        })
    })
}
