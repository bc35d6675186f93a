//! Attributes that connect a QP: `rdma_init_qp_attr`.

use std::ffi::{c_int, c_uint};

use crate::abi::connections::{CmPath, CmQp, feroce_cm_qp_parameters, stage};
use crate::abi::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS,
    IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, RDMA_UDP_QKEY, ibv_ah_attr,
    ibv_qp_attr, rdma_cm_id,
};
use crate::address::gid;
use crate::id;
use crate::outcome::{check_code, return_code};

/// `ibv_qp_state`: `IBV_QPS_INIT`, `IBV_QPS_RTR`, `IBV_QPS_RTS`, `IBV_QPS_ERR`.
pub const INIT: c_uint = 1;
pub const RTR: c_uint = 2;
pub const RTS: c_uint = 3;
pub const ERR: c_uint = 6;

/// Returns attributes with all fields 0.
pub fn empty() -> ibv_qp_attr {
    // SAFETY: all-zero bytes are a valid value of this C structure.
    unsafe { std::mem::zeroed() }
}

/// Returns the address vector of a path; all zeros without a path.
pub fn ah_attr(path: &CmPath) -> ibv_ah_attr {
    let mut attr = empty().ah_attr;
    if path.local.version != 0 {
        attr.grh.dgid = gid(&path.remote);
        attr.grh.sgid_index = u8::try_from(path.gid_index).unwrap_or(u8::MAX);
        attr.grh.hop_limit = 0; // 0: the host's setting, else the route's value
        attr.grh.traffic_class = path.traffic_class;
        attr.is_global = 1;
        attr.port_num = 1;
    }
    attr
}

/// Returns the attributes and their mask for the transition to `state`.
///
/// # Safety
/// `id` is live.
///
/// # Errors
/// EINVAL if the identifier is not ready for the state or past it.
pub unsafe fn init(id: *mut rdma_cm_id, state: c_uint) -> Result<(ibv_qp_attr, c_uint), c_int> {
    // SAFETY: `id` is live.
    let (live, qp_type) = unsafe { (id::borrow(id), (*id).qp_type) };
    live.device()?;
    if state > ERR {
        return Err(libc::EINVAL);
    }
    let mut attr = empty();
    attr.qp_state = state;
    attr.port_num = 1;
    let begin = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if qp_type == IBV_QPT_UD {
        attr.qkey = RDMA_UDP_QKEY;
        return Ok((attr, begin | IBV_QP_QKEY));
    }
    let mut known = CmQp::default();
    // SAFETY: `known` is writable.
    check_code(unsafe { feroce_cm_qp_parameters(live.number(), &raw mut known) })?;
    match (state, known.stage) {
        // Like the kernel: the same attributes for every state while there is no connection
        // attempt.
        (_, stage::NOT_REQUESTED) => Ok((attr, begin | IBV_QP_ACCESS_FLAGS)),
        (INIT, _) => {
            attr.qp_access_flags = access(&known);
            Ok((attr, begin | IBV_QP_ACCESS_FLAGS))
        }
        (RTR, stage::KNOWN) => {
            attr.ah_attr = ah_attr(&live.view()?.path);
            attr.path_mtu = u32::from(live.view()?.path.mtu);
            let requested = live.private().rnr_retries_requested;
            attr.min_rnr_timer = min_rnr_timer(requested.unwrap_or(known.rnr_retry_count));
            let more = receiving(&mut attr, &known, qp_type);
            Ok((attr, IBV_QP_STATE | more))
        }
        (RTS, stage::KNOWN) => {
            let more = sending(&mut attr, &known, qp_type);
            Ok((attr, IBV_QP_STATE | more))
        }
        _ => Err(libc::EINVAL),
    }
}

fn access(known: &CmQp) -> c_uint {
    match known.responder_resources {
        0 => IBV_ACCESS_REMOTE_WRITE,
        _ => IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    }
}

/// Returns the RNR timer code: how long a peer waits after an RNR NAK. `retries`: the peer's RNR
/// retry count; 7 means without limit.
///
/// The kernel's CM sets code 0 (`cm_init_qp_rtr_attr`), which is the longest time, 655.36 ms: one
/// message that arrives before its receive stops the connection for that time. Feroce sets code 12
/// if the peer retries without limit: then a shorter time cannot make a message fail. A peer with a
/// finite count gives up after that many retries, so the code stays the kernel's.
fn min_rnr_timer(retries: u8) -> u8 {
    /// 0.64 ms, as the examples of rdma-core set.
    const SHORT: u8 = 12;
    const LONGEST: u8 = 0;
    const UNLIMITED: u8 = 7;
    if retries >= UNLIMITED { SHORT } else { LONGEST }
}

fn receiving(attr: &mut ibv_qp_attr, known: &CmQp, qp_type: c_uint) -> c_uint {
    attr.dest_qp_num = known.remote_qpn;
    attr.rq_psn = known.rq_psn;
    let mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if matches!(qp_type, IBV_QPT_UC | IBV_QPT_XRC_SEND) {
        attr.min_rnr_timer = 0;
        return mask;
    }
    attr.max_dest_rd_atomic = known.responder_resources;
    mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
}

fn sending(attr: &mut ibv_qp_attr, known: &CmQp, qp_type: c_uint) -> c_uint {
    attr.sq_psn = known.sq_psn;
    if qp_type == IBV_QPT_UC {
        return IBV_QP_SQ_PSN;
    }
    attr.timeout = known.ack_timeout;
    if qp_type == IBV_QPT_XRC_RECV {
        return IBV_QP_SQ_PSN | IBV_QP_TIMEOUT;
    }
    attr.retry_cnt = known.retry_count;
    attr.rnr_retry = known.rnr_retry_count;
    attr.max_rd_atomic = known.initiator_depth;
    IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the identifier is live; the program passes attributes with `qp_state` set, and a
    // writable mask.
    return_code(id::live(id).and_then(|_| unsafe {
        init(id, (*attr).qp_state).map(|(attributes, known)| {
            attr.write(attributes);
            mask.write(known.cast_signed());
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shorter time must not let a peer give up earlier than behind the kernel's CM.
    #[test]
    fn the_rnr_timer_is_short_for_peers_that_repeat_without_limit() {
        assert_eq!((min_rnr_timer(7), min_rnr_timer(255)), (12, 12));
        assert!((0..7).all(|retries| min_rnr_timer(retries) == 0));
    }
}
