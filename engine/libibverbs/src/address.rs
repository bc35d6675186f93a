//! Address handles: those of a received datagram, and the resolution of addresses.

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
use crate::domain::Pd;
use crate::modify::{gid, path};
use crate::object::{self, Object};
use crate::query::halves;
use crate::{context, cq, errno};

/// An address handle.
#[repr(C)]
pub struct Ah {
    abi: UnsafeCell<ibv_ah>,
    shared: Arc<Shared>,
    /// The engine's.
    pub handle: AddressHandle,
}

// SAFETY: the first field is the C structure.
unsafe impl Object for Ah {
    type Abi = ibv_ah;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the program passes a live PD, whose context is not written, and attributes.
    let (live, context, attr) = unsafe { (object::borrow::<Pd>(pd), (*pd).context, &*attr) };
    let made = live.shared.check().and_then(|()| {
        let path = path(attr, &live.shared.engine.settings)?;
        let handle = live.pd.create_ah(&path).map_err(|error| {
            crate::log::say(&error.to_string());
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
    // SAFETY: the program passes a live handle of a live PD.
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
    // SAFETY: zeros are values of the plain structure.
    let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the program passes a live PD, a completion and the GRH that it announces.
    let code = unsafe { ibv_init_ah_from_wc((*pd).context, port, wc, grh, &raw mut attr) };
    if code != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    unsafe { ibv_create_ah(pd, &raw mut attr) }
}

/// The flow label's bits of the first word of a GRH.
const FLOW_LABEL: u32 = 0xf_ffff;

/// What an answer needs of a datagram's header.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    source: Gid,
    destination: Gid,
    label: u32,
    class: u8,
}

/// Of IPv6 the header is all of the GRH, of IPv4 its second half, and then the first has no version.
fn header(grh: &ibv_grh) -> Option<Header> {
    let words = u32::from_be(grh.version_tclass_flow);
    let class = |word: u32, shift: u32| u8::try_from(word >> shift & 0xff).unwrap_or(0);
    if words >> 28 == 6 {
        let (source, destination) = (gid(grh.sgid), gid(grh.dgid));
        return Some(Header {
            source,
            destination,
            label: words & FLOW_LABEL,
            class: class(words, 20),
        });
    }
    // SAFETY: both are plain bytes of this size.
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
    let Some(Header { source, destination: own, label, class }) = header(&grh) else {
        return failed(libc::EPROTONOSUPPORT);
    };
    // The datagram came to our address: that is whom the answer comes from.
    let gids = shared.engine.device.gids();
    let Some((index, _)) = gids.iter().find(|(_, entry)| entry.gid == own) else {
        return failed(libc::ENOENT);
    };
    // SAFETY: zeros are values of the plain structure.
    let mut told: ibv_ah_attr = unsafe { std::mem::zeroed() };
    told.grh.dgid = halves(source.0);
    told.grh.flow_label = label;
    told.grh.sgid_index = u8::try_from(*index).unwrap_or(u8::MAX);
    told.grh.hop_limit = u8::MAX;
    told.grh.traffic_class = class;
    told.dlid = wc.slid;
    told.sl = cq::priority(wc.sl);
    told.src_path_bits = wc.dlid_path_bits;
    told.is_global = 1;
    told.port_num = port;
    // SAFETY: the program passes a structure to fill in.
    unsafe { attr.write(told) };
    0
}

/// No VLAN.
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
        let path = path(attr, &shared.engine.settings)?;
        let handle = shared.engine.device.alloc_pd().create_ah(&path);
        Ok(handle.map_err(|error| errno::of_device(&error))?.ethernet())
    });
    object::code(found.map(|(address, tag)| {
        // SAFETY: the program passes room for an Ethernet address and, if it wants it, the VLAN.
        unsafe {
            mac.write(address.0);
            if !vlan.is_null() {
                vlan.write(tag.unwrap_or(UNTAGGED));
            }
        }
    }))
}
