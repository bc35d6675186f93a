//! Multicast groups: a UD QP joins a group and learns how to send to it.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use libc::sockaddr;

use crate::abi::connections::{CmAddress, feroce_cm_device_of};
use crate::abi::{
    IBV_QPT_UD, RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
    RDMA_CM_JOIN_MC_ATTR_RESERVED, RDMA_MC_JOIN_FLAG_FULLMEMBER, RDMA_MC_JOIN_FLAG_RESERVED,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, ibv_ah_attr, rdma_cm_id, rdma_cm_join_mc_attr_ex,
};
use crate::address::{gid, read};
use crate::attributes;
use crate::channel::Unacknowledged;
use crate::event::complete;
use crate::event_channel::acknowledge_last;
use crate::id::{self, Id};
use crate::membership::Membership;
use crate::outcome::{check_code, return_code};

/// Hop limit of packets to a group.
const HOP_LIMIT: u8 = 64;

/// Returns the address vector of the group, from the identifier's local address.
fn path_to_group(live: &Id, group: SocketAddr) -> Result<ibv_ah_attr, c_int> {
    let view = live.view()?;
    let local = match view.path.local.version {
        0 => view.source,
        _ => view.path.local,
    };
    let (mut device, mut gid_index) = (0, 0);
    // SAFETY: both out parameters are writable.
    check_code(unsafe {
        feroce_cm_device_of(&raw const local, &raw mut device, &raw mut gid_index)
    })?;
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
/// `address` is null or points to an address of its family.
unsafe fn join(
    id: *mut rdma_cm_id,
    address: *const sockaddr,
    flag: u32,
    context: *mut c_void,
) -> Result<(), c_int> {
    let live = id::live(id)?;
    // SAFETY: `id` is live, and `address` is null or points to an address of its family.
    unsafe {
        let address = read(address).ok_or(libc::EINVAL)?;
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
            ah_attr: path_to_group(&live, address)?,
            has_left: Mutex::new(false),
            unacknowledged: Unacknowledged::default(),
        });
        live.private().memberships.push(Arc::clone(&membership));
        live.state.queue_join_event(membership);
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
    return_code(unsafe { join(id, address, RDMA_MC_JOIN_FLAG_FULLMEMBER, context) })
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
            return return_code(Err(libc::ENOTSUP));
        }
        if comp_mask & NEEDED != NEEDED || join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
            return return_code(Err(libc::EINVAL));
        }
        return_code(join(id, addr, join_flags, context))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
) -> c_int {
    // SAFETY: the program passes a live identifier and a valid address.
    return_code(unsafe {
        read(address).ok_or(libc::EINVAL).and_then(|address| {
            let live = id::live(id)?;
            let left = {
                let groups = &mut live.private().memberships;
                let at = groups.iter().rposition(|group| group.address == address);
                at.map(|at| groups.remove(at)).ok_or(libc::EADDRNOTAVAIL)?
            };
            left.leave(id);
            live.state.remove_join_event(&left);
            if live.is_sync() {
                acknowledge_last(id); // the last event may be the join event of this group
            }
            left.unacknowledged.wait();
            Ok(())
        })
    })
}
