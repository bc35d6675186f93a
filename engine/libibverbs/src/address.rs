//! Address handles: creating them, deriving them from a received datagram, and resolving addresses.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_engine::device::AddressHandle;
use feroce_engine::net::Gid;
use feroce_wire::Ipv4Header;

use crate::abi::{IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_wc};
use crate::context::Shared;
use crate::convert::{gid_from_halves, gid_to_halves, path_of};
use crate::domain::Pd;
use crate::object::{self, Object};
use crate::{context, cq, errno};

/// An address handle.
#[repr(C)]
pub struct Ah {
    abi: UnsafeCell<ibv_ah>,
    shared: Arc<Shared>,
    /// The engine's address handle.
    pub handle: AddressHandle,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for Ah {
    type Abi = ibv_ah;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the program passes a live PD and attributes; nothing writes the PD's `context` field.
    let (live, context, attr) = unsafe { (object::borrow::<Pd>(pd), (*pd).context, &*attr) };
    let made = live.shared.check().and_then(|()| {
        let path = path_of(attr, &live.shared.engine.settings)?;
        let handle = live.pd.create_ah(&path).map_err(|error| {
            crate::log::print(&error.to_string());
            errno::of_device(&error)
        })?;
        live.users.fetch_add(1, Ordering::AcqRel);
        let abi = UnsafeCell::new(ibv_ah { context, pd, handle: 0 });
        Ok(Box::new(Ah { abi, shared: Arc::clone(&live.shared), handle }))
    });
    object::give_or_fail(made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the program passes a live address handle, and its PD lives as long as the handle.
    unsafe {
        let live = object::borrow::<Ah>(ah);
        if let Err(code) = live.shared.check() {
            return code;
        }
        let pd = (*live.abi.get()).pd;
        drop(object::take::<Ah>(ah));
        object::borrow::<Pd>(pd).users.fetch_sub(1, Ordering::AcqRel);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the program passes a live PD, a completion and the GRH that the completion announces.
    let code = unsafe { ibv_init_ah_from_wc((*pd).context, port, wc, grh, &raw mut attr) };
    if code != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the program passes a live PD, and `attr` was filled in above.
    unsafe { ibv_create_ah(pd, &raw mut attr) }
}

/// Mask of the flow label in the first word of a GRH.
const FLOW_LABEL: u32 = 0xf_ffff;

/// Header fields of a received datagram that a response needs.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    source: Gid,
    destination: Gid,
    label: u32,
    class: u8,
}

/// Parses the 40 bytes of a GRH buffer. An IPv6 header fills all of it; an IPv4 header fills the
/// last 20 bytes, and the version field of the first word is then not 6.
fn header(grh: &ibv_grh) -> Option<Header> {
    let words = u32::from_be(grh.version_tclass_flow);
    let class = |word: u32, shift: u32| u8::try_from(word >> shift & 0xff).unwrap_or(0);
    if words >> 28 == 6 {
        let (source, destination) = (gid_from_halves(grh.sgid), gid_from_halves(grh.dgid));
        return Some(Header {
            source,
            destination,
            label: words & FLOW_LABEL,
            class: class(words, 20),
        });
    }
    // SAFETY: both types are plain bytes of the same size.
    let bytes: [u8; size_of::<ibv_grh>()] = unsafe { std::mem::transmute(*grh) };
    let ip = Ipv4Header::parse(&bytes[bytes.len() - Ipv4Header::LEN..]).ok()?;
    let (source, destination) = (IpAddr::V4(ip.src).into(), IpAddr::V4(ip.dst).into());
    Some(Header { source, destination, label: 0, class: ip.tos })
}

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
    // SAFETY: the program passes an open context, a completion and the GRH that the completion
    // announces. The GRH is in a receive buffer and may be unaligned.
    let (shared, wc, grh) = unsafe {
        let shared = match context::shared(context) {
            Ok(shared) => shared,
            Err(code) => return failed(code),
        };
        if (*wc).wc_flags & IBV_WC_GRH == 0 {
            return failed(libc::EINVAL); // RoCE has no address without a GRH.
        }
        (shared, *wc, grh.read_unaligned())
    };
    let Some(Header { source, destination: local, label, class }) = header(&grh) else {
        return failed(libc::EPROTONOSUPPORT);
    };
    // The datagram was sent to a local address: the response has that address as its source.
    let gids = shared.engine.device.gids();
    let Some((index, _)) = gids.iter().find(|(_, entry)| entry.gid == local) else {
        return failed(libc::ENOENT);
    };
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut result: ibv_ah_attr = unsafe { std::mem::zeroed() };
    result.grh.dgid = gid_to_halves(source.0);
    result.grh.flow_label = label;
    result.grh.sgid_index = u8::try_from(*index).unwrap_or(u8::MAX);
    result.grh.hop_limit = u8::MAX;
    result.grh.traffic_class = class;
    result.dlid = wc.slid;
    result.sl = cq::priority(wc.sl);
    result.src_path_bits = wc.dlid_path_bits;
    result.is_global = 1;
    result.port_num = port;
    // SAFETY: the program passes a writable `ibv_ah_attr`.
    unsafe { attr.write(result) };
    0
}

/// VLAN id that stands for "no VLAN tag".
const UNTAGGED: u16 = 0xffff;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    // SAFETY: the program passes an open context and attributes.
    let (shared, attr) = unsafe { (context::shared(context), &*attr) };
    let found = shared.and_then(|shared| {
        let path = path_of(attr, &shared.engine.settings)?;
        let handle = shared.engine.device.alloc_pd().create_ah(&path);
        Ok(handle.map_err(|error| errno::of_device(&error))?.ethernet())
    });
    object::code(found.map(|(address, tag)| {
        // SAFETY: the program passes room for an Ethernet address; `vlan` is null or writable.
        unsafe {
            mac.write(address.0);
            if !vlan.is_null() {
                vlan.write(tag.unwrap_or(UNTAGGED));
            }
        }
    }))
}
