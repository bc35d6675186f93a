//! Address handles: those of a received datagram, and the resolution of addresses.

use std::ffi::c_int;

use crate::abi::{IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_wc};
use crate::modify::gid;
use crate::{context, errno};

#[unsafe(no_mangle)]
extern "C" fn ibv_create_ah(_pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_ah(_ah: *mut ibv_ah) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: zeros are values of the plain structure.
    let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the program passes a live PD, a completion and the GRH that it announces.
    let code = unsafe { ibv_init_ah_from_wc((*pd).context, port, wc, grh, &raw mut attr) };
    if code != 0 { std::ptr::null_mut() } else { ibv_create_ah(pd, &raw mut attr) }
}

/// The flow label's bits of the first word of a GRH.
const FLOW_LABEL: u32 = 0xf_ffff;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    let failed = |code| {
        errno::set(code);
        -1
    };
    // SAFETY: the program passes an open context, a completion and the GRH that it announces, in a receive buffer
    // which need not be aligned.
    let (shared, wc, grh) = unsafe {
        let shared = match context::shared(context) {
            Ok(shared) => shared,
            Err(code) => return failed(code),
        };
        if (*wc).wc_flags & IBV_WC_GRH == 0 {
            return failed(libc::EINVAL); // RoCE has no other address.
        }
        (shared, *wc, grh.read_unaligned())
    };
    // The datagram came to our address: that is whom the answer comes from.
    let own = gid(grh.dgid);
    let gids = shared.engine.device.gids();
    let Some((index, _)) = gids.iter().find(|(_, entry)| entry.gid == own) else {
        return failed(libc::ENOENT);
    };
    let words = u32::from_be(grh.version_tclass_flow);
    // SAFETY: zeros are values of the plain structure.
    let mut told: ibv_ah_attr = unsafe { std::mem::zeroed() };
    told.grh.dgid = grh.sgid;
    told.grh.flow_label = words & FLOW_LABEL;
    told.grh.sgid_index = u8::try_from(*index).unwrap_or(u8::MAX);
    told.grh.hop_limit = u8::MAX;
    told.grh.traffic_class = u8::try_from(words >> 20 & 0xff).unwrap_or(0);
    told.dlid = wc.slid;
    told.sl = wc.sl;
    told.src_path_bits = wc.dlid_path_bits;
    told.is_global = 1;
    told.port_num = port;
    // SAFETY: the program passes a structure to fill in.
    unsafe { attr.write(told) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut [u8; 6],
    _vlan: *mut u16,
) -> c_int {
    libc::EOPNOTSUPP
}
