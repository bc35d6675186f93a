//! Attributes of the device and its port: `ibv_query_device` and related functions. Only features
//! that work are advertised.

use std::ffi::{c_int, c_uint, c_void};

use feroce_engine::device::{MAX_DEVICE_MEMORY, MAX_GROUPS};
use feroce_engine::memory::on_demand_is_supported;
use feroce_engine::net::{GID_TABLE_LEN, GidEntry, Interface};
use feroce_wire::{PathMtu, Pkey};
use libc::{size_t, ssize_t};

use crate::abi::{
    IBV_ATOMIC_HCA, IBV_DEVICE_ATOMIC_WRITE, IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_FLUSH_GLOBAL,
    IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    IBV_DEVICE_PORT_ACTIVE_EVENT, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SYS_IMAGE_GUID,
    IBV_DEVICE_XRC, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_ODP_SUPPORT,
    IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV,
    IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE, IBV_PORT_ACTIVE,
    IBV_PORT_DOWN, IBV_PORT_IP_BASED_GIDS, IBV_QPF_GRH_REQUIRED, IBV_VALUES_MASK_RAW_CLOCK,
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid_entry, ibv_odp_caps, ibv_port_attr,
    ibv_values_ex,
};
use crate::context::{self, Shared};
use crate::convert::{fill, gid_to_halves};
use crate::device::text;
use crate::{errno, object};

/// The only port.
pub const PORT: u8 = 1;
/// Clock rate in kHz: completion timestamps are in nanoseconds.
const KILOHERTZ: u64 = 1_000_000;
/// "No vendor", the value that rxe uses.
const NO_VENDOR: u32 = 0xff_ffff;
/// First hardware revision.
const HARDWARE_VERSION: u32 = 1;

fn number(value: impl TryInto<c_int>) -> c_int {
    value.try_into().unwrap_or(c_int::MAX)
}

fn device(shared: &Shared) -> ibv_device_attr {
    let limits = &shared.engine.limits;
    let (max_qp, reads) = (number(limits.max_qp), number(limits.max_qp_rd_atom));
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
    attr.fw_ver = text(env!("CARGO_PKG_VERSION"));
    attr.node_guid = limits.node_guid.to_be();
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = !0xfff; // memory has no pages here: every page size is equal
    attr.vendor_id = NO_VENDOR;
    attr.hw_ver = HARDWARE_VERSION;
    attr.max_qp = max_qp;
    attr.max_qp_wr = number(limits.max_qp_wr);
    attr.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_XRC;
    attr.max_sge = number(limits.max_sge);
    attr.max_sge_rd = number(limits.max_sge);
    attr.max_cq = number(limits.max_cq);
    attr.max_cqe = number(limits.max_cqe);
    attr.max_mr = number(limits.max_mr);
    attr.max_pd = number(limits.max_pd);
    attr.max_qp_rd_atom = reads;
    attr.max_res_rd_atom = max_qp.saturating_mul(reads);
    attr.max_qp_init_rd_atom = reads;
    // The CPU's atomics give more (IBV_ATOMIC_GLOB), but UCX uses only atomics reported as the
    // RNIC's.
    attr.atomic_cap = IBV_ATOMIC_HCA;
    attr.max_mw = number(limits.max_mr);
    attr.max_mcast_grp = number(MAX_GROUPS);
    attr.max_mcast_qp_attach = max_qp;
    attr.max_total_mcast_qp_attach = attr.max_mcast_grp.saturating_mul(max_qp);
    attr.max_ah = number(limits.max_ah);
    attr.max_srq = number(limits.max_srq);
    attr.max_srq_wr = number(limits.max_srq_wr);
    attr.max_srq_sge = number(limits.max_sge);
    attr.max_pkeys = 1;
    attr.phys_port_cnt = PORT;
    attr
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    object::code(context::shared_in_any_process(context).map(|shared| {
        // SAFETY: the program passes a writable structure.
        unsafe { attr.write(device(&shared)) };
    }))
}

/// `ibv_query_device_ex`
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: size_t,
) -> c_int {
    // SAFETY: the program passes null or a structure that begins with a `comp_mask` of requested
    // extensions.
    let has_extensions = unsafe { input.cast::<u32>().as_ref() }.is_some_and(|mask| *mask != 0);
    object::code(match has_extensions {
        true => Err(libc::EINVAL),
        false => context::shared_in_any_process(context).map(|shared| {
            let full = device_ex(&shared);
            // SAFETY: the program passes a structure of `size` bytes.
            unsafe { fill(attr, &full, size) };
        }),
    })
}

fn device_ex(shared: &Shared) -> ibv_device_attr_ex {
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut full: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    full.orig_attr = device(shared);
    full.device_cap_flags_ex = u64::from(full.orig_attr.device_cap_flags)
        | IBV_DEVICE_ATOMIC_WRITE
        | IBV_DEVICE_FLUSH_GLOBAL;
    if on_demand_is_supported() {
        (full.odp_caps, full.xrc_odp_caps) = on_demand();
    }
    full.max_dm_size = MAX_DEVICE_MEMORY as u64;
    full.completion_timestamp_mask = u64::MAX;
    full.hca_core_clock = KILOHERTZ;
    full.cq_mod_caps = [u16::MAX; 2];
    full.phys_port_cnt_ex = u32::from(PORT);
    full
}

/// Returns the operations that on-demand regions support: by service, and for XRC.
fn on_demand() -> (ibv_odp_caps, u32) {
    const MESSAGES: u32 = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    const UC: u32 = MESSAGES | IBV_ODP_SUPPORT_WRITE;
    const RC: u32 = UC | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    let general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
    (ibv_odp_caps { general_caps, per_transport_caps: [RC, UC, MESSAGES] }, RC)
}

/// `ibv_query_rt_values_ex`
pub unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the program passes a structure whose mask selects values.
    let values = unsafe { &mut *values };
    object::code(context::shared(context).and_then(|shared| {
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            // The clock that stamps completions, in its own unit and entirely in `tv_nsec`:
            // programs compare it with `ibv_wc_read_completion_ts`.
            let now = shared.engine.device.clock().as_nanos();
            let tv_nsec = libc::c_long::try_from(now).unwrap_or(libc::c_long::MAX);
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec };
        }
        Ok(())
    }))
}

/// Returns the codes of link width and speed, as the kernel reports them for Ethernet.
pub fn width_and_speed(bits_per_second: Option<u64>) -> (u8, u8) {
    /// Minimum Gb/s, width code (1, 2, 4 or 8 lanes), speed code.
    const RATES: [(u64, u8, u8); 8] = [
        (400, 2, 128), // 4 x NDR
        (200, 2, 64),  // 4 x HDR
        (100, 2, 32),  // 4 x EDR
        (50, 16, 32),  // 2 x EDR
        (40, 2, 8),    // 4 x FDR10
        (25, 1, 32),   // 1 x EDR
        (20, 2, 2),    // 4 x DDR
        (10, 1, 8),    // 1 x FDR10
    ];
    let giga = bits_per_second.unwrap_or(0) / 1_000_000_000;
    let found = RATES.iter().find(|(least, ..)| giga >= *least);
    found.map_or((1, 1), |(_, width, speed)| (*width, *speed))
}

fn port(shared: &Shared) -> Result<ibv_port_attr, c_int> {
    // By index: the interface may have another name now.
    let interface = Interface::by_index(shared.entry.interface_index).map_err(|_| libc::ENODEV)?;
    let attributes = shared.engine.device.attributes();
    let code = |mtu: PathMtu| c_uint::from(mtu.code());
    let is_up = interface.is_usable();
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
    attr.state = if is_up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    attr.max_mtu = code(PathMtu::Mtu4096);
    attr.active_mtu = attributes.active_mtu.map_or(0, code);
    attr.gid_tbl_len = number(GID_TABLE_LEN);
    attr.port_cap_flags = IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = u32::try_from(attributes.max_message).unwrap_or(u32::MAX);
    attr.pkey_tbl_len = 1;
    attr.max_vl_num = 1;
    (attr.active_width, attr.active_speed) = width_and_speed(attributes.link_rate);
    attr.active_speed_ex = u32::from(attr.active_speed);
    attr.phys_state = if is_up { 5 } else { 3 }; // LinkUp, Disabled
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    attr.flags = IBV_QPF_GRH_REQUIRED;
    Ok(attr)
}

/// `ibv_query_port` of `verbs.h`, which passes the structure's size at compile time.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut ibv_port_attr,
    size: size_t,
) -> c_int {
    let result = context::shared(context).and_then(|shared| match number {
        PORT => port(&shared),
        _ => Err(libc::EINVAL),
    });
    // SAFETY: the program passes a structure of `size` bytes.
    object::code(result.map(|result| unsafe { fill(attr, &result, size) }))
}

/// Size of the structure before it grew. Callers of the exported function provide only this
/// much memory.
const OLD_PORT_ATTR: size_t = 48;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the program passes an open context and a structure of at least `OLD_PORT_ATTR` bytes.
    unsafe { query_port(context, number, attr, OLD_PORT_ATTR) }
}

/// Unit of `ibv_query_port_speed` in bits per second.
const SPEED_UNIT: u64 = 100_000_000;

/// Speed of a link that reports none: that of the width and speed codes in `ibv_port_attr`.
const UNKNOWN_SPEED: u64 = 25;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    number: u32,
    speed: *mut u64,
) -> c_int {
    object::code(context::shared(context).and_then(|shared| {
        if number != u32::from(PORT) {
            return Err(libc::EINVAL);
        }
        let rate = shared.engine.device.attributes().link_rate;
        // SAFETY: the program passes a writable number.
        unsafe { speed.write(rate.map_or(UNKNOWN_SPEED, |rate| rate / SPEED_UNIT)) };
        Ok(())
    }))
}

fn gid_at(shared: &Shared, index: u32) -> Option<GidEntry> {
    let gids = shared.engine.device.gids();
    gids.into_iter().find(|(at, _)| *at == index).map(|(_, entry)| entry)
}

fn within_table(port: u32, index: u32) -> Result<(), c_int> {
    let is_there = port == u32::from(PORT) && (index as usize) < GID_TABLE_LEN;
    if is_there { Ok(()) } else { Err(libc::EINVAL) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut [u64; 2],
) -> c_int {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    let result = context::shared(context).and_then(|shared| {
        within_table(u32::from(port), index)?;
        Ok(gid_at(&shared, index).map_or([0; 2], |entry| gid_to_halves(entry.gid.0)))
    });
    match result {
        Ok(result) => {
            // SAFETY: the program passes a writable GID, which need not be aligned to eight bytes.
            unsafe { gid.write_unaligned(result) };
            0
        }
        Err(code) => {
            errno::set(code);
            -1
        }
    }
}

fn gid_entry(index: u32, entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: gid_to_halves(entry.gid.0),
        gid_index: index,
        port_num: u32::from(PORT),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: entry.interface,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: size_t,
) -> c_int {
    let result = context::shared(context).and_then(|shared| {
        within_table(port, index)?;
        if flags != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        gid_at(&shared, index).ok_or(libc::ENODATA)
    });
    // SAFETY: the program passes a structure of `size` bytes.
    object::code(result.map(|result| unsafe { fill(entry, &gid_entry(index, &result), size) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: size_t,
    flags: u32,
    size: size_t,
) -> ssize_t {
    let refused = |code: c_int| -ssize_t::try_from(code).unwrap_or(1);
    let shared = match context::shared(context) {
        Ok(shared) => shared,
        Err(code) => return refused(code),
    };
    if flags != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    let gids = shared.engine.device.gids();
    if gids.len() > most {
        return refused(libc::EINVAL);
    }
    for (at, (index, entry)) in gids.iter().enumerate() {
        // SAFETY: the program passes room for `most` structures of `size` bytes each.
        unsafe { fill(entries.byte_add(at * size), &gid_entry(*index, entry), size) };
    }
    ssize_t::try_from(gids.len()).unwrap_or(0)
}

/// `IBV_GID_TYPE_SYSFS_ROCE_V2`
const SYSFS_ROCE_V2: c_uint = 1;

/// A private symbol of rdma-core that programs call nevertheless.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    match context::shared(context).and_then(|_| within_table(u32::from(port), index)) {
        Ok(()) => {
            // SAFETY: the program passes a writable pointer.
            unsafe { kind.write(SYSFS_ROCE_V2) };
            0
        }
        Err(code) => {
            errno::set(code);
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    match context::shared_in_any_process(context) {
        Ok(_) if port == PORT && index == 0 => {
            // SAFETY: the program passes a writable pointer.
            unsafe { pkey.write(Pkey::DEFAULT.0.to_be()) };
            0
        }
        _ => {
            errno::set(libc::EINVAL);
            -1
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    let is_open = context::shared_in_any_process(context).is_ok();
    if is_open && port == PORT && u16::from_be(pkey) == Pkey::DEFAULT.0 {
        return 0;
    }
    errno::set(libc::EINVAL);
    -1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_times_speed_equals_the_rate() {
        // Lanes by width code, and Gb/s per lane by speed code.
        let lanes = |code| match code {
            1 => 1,
            16 => 2,
            2 => 4,
            other => panic!("width {other}"),
        };
        let per_lane = |code| match code {
            1 => 2.5,
            2 => 5.0,
            8 => 10.0,
            32 => 25.0,
            64 => 50.0,
            128 => 100.0,
            other => panic!("speed {other}"),
        };
        for giga in [10u32, 20, 25, 40, 50, 100, 200, 400] {
            let (width, speed) = width_and_speed(Some(u64::from(giga) * 1_000_000_000));
            assert_eq!(f64::from(lanes(width)) * per_lane(speed), f64::from(giga));
        }
        assert_eq!(width_and_speed(None), (1, 1));
    }
}
