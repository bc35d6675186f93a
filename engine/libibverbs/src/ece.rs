//! Enhanced connection establishment (ECE): how programs agree on selective repeat.
//!
//! A program asks both QPs what they offer, and sets on both what both offer, before it moves them
//! to RTR. librdmacm does so for its programs, in the messages that connect. As with mlx5, a device
//! that offers nothing fails with EOPNOTSUPP, and a peer of another vendor agrees on nothing.

use std::ffi::c_int;

use feroce_engine::qp::QpState;

use crate::abi::{ibv_ece, ibv_qp};
use crate::object;
use crate::qp::live;
use crate::qp_state::State;

/// Vendor of the options: a locally administered identifier, which no vendor has.
const VENDOR: u32 = 0x02_f3_0c;

/// Option: lost packets are repeated selectively.
pub const SELECTIVE_REPEAT: u32 = 1;

/// Writes what the QP offers, or after [`ibv_set_ece`] what was set.
///
/// Fails with EOPNOTSUPP if the device has no selective repeat or the QP is not RC, with EINVAL if
/// `qp` is no live QP.
///
/// # Safety
/// `ece` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    object::code(live(qp).and_then(|live| {
        let options = live.with(|held| {
            let offers = held.qp.offers_selective_repeat();
            offers.then(|| held.ece.unwrap_or(SELECTIVE_REPEAT)).ok_or(libc::EOPNOTSUPP)
        })?;
        // SAFETY: the program passes a writable structure.
        unsafe { *ece = ibv_ece { vendor_id: VENDOR, options, comp_mask: 0 } };
        Ok(())
    }))
}

/// Sets the options for the transition to RTR.
///
/// Fails with EOPNOTSUPP as [`ibv_query_ece`]; with EINVAL for the options of another vendor, for
/// unknown options, in another state than RESET or INIT, and if `qp` is no live QP.
///
/// # Safety
/// `ece` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    object::code(live(qp).and_then(|live| {
        // SAFETY: the program passes a readable structure.
        let ibv_ece { vendor_id, options, comp_mask } = unsafe { *ece };
        live.with(|held| {
            if !held.qp.offers_selective_repeat() {
                return Err(libc::EOPNOTSUPP);
            }
            let is_known = options & !SELECTIVE_REPEAT == 0 && comp_mask == 0;
            if vendor_id != VENDOR || !is_known || !is_before_rtr(held) {
                return Err(libc::EINVAL);
            }
            held.ece = Some(options);
            Ok(())
        })
    }))
}

fn is_before_rtr(held: &State) -> bool {
    matches!(held.qp.query().state, Some(QpState::Reset | QpState::Init))
}
