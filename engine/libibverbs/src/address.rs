//! Address handles: creating them, deriving them from a received datagram, and resolving addresses.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use feroce_engine::device::AddressHandle;
use feroce_engine::net::Gid;
use feroce_wire::Ipv4Header;

use crate::abi::{IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_wc};
use crate::context::{Shared, implement_object};
use crate::convert::{gid_from_halves, gid_to_halves, path_of};
use crate::domain::{self, Pd};
use crate::object::{self, Base, Use};
use crate::{context, cq, errno};

/// An address handle.
#[repr(C)]
pub struct Ah {
    abi: UnsafeCell<ibv_ah>,
    base: Base,
    shared: Arc<Shared>,
    /// The engine's address handle.
    pub handle: AddressHandle,
    _pd: Use<Pd>,
}

implement_object!(Ah: ibv_ah, handle; uses _pd);

/// Number of the next address handle. The engine has no numbers for them.
static NEXT: AtomicU32 = AtomicU32::new(0);

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { &*attr };
    object::give_or_fail(domain::live(pd).and_then(|live| create(live, pd, attr)))
}

fn create(live: Arc<Pd>, pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<Arc<Ah>, c_int> {
    let path = path_of(attr, &live.shared.engine.settings)?;
    let engine = live.pd.create_ah(&path).map_err(|error| {
        crate::log::print(&error.to_string());
        errno::of_device(&error)
    })?;
    let (context, handle) = (live.context(), NEXT.fetch_add(1, Ordering::Relaxed));
    Ok(Arc::new(Ah {
        abi: UnsafeCell::new(ibv_ah { context, pd, handle }),
        base: Base::new(context.addr(), handle),
        shared: Arc::clone(&live.shared),
        handle: engine,
        _pd: Use::new(live)?,
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    object::code(
        object::destroy::<Ah>(ah, |ah| ah.shared.check()).map(|destroyed| drop(destroyed.finish())),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    object::give_or_fail(domain::live(pd).and_then(|live| {
        // SAFETY: the program passes a completion and the GRH that the completion announces.
        let attr = unsafe { attr_from_wc(&live.shared, port, wc, grh)? };
        create(live, pd, &attr)
    }))
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

/// Returns the address of the sender of a datagram.
///
/// # Safety
/// `wc` is a completion, and `grh` the GRH that the completion announces, which may be unaligned:
/// it is in a receive buffer.
unsafe fn attr_from_wc(
    shared: &Shared,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, c_int> {
    // SAFETY: `wc` is a completion.
    let wc = unsafe { *wc };
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Err(libc::EINVAL); // RoCE has no address without a GRH.
    }
    // SAFETY: `grh` is the GRH that the completion announces.
    let grh = unsafe { grh.read_unaligned() };
    let Some(Header { source, destination: local, label, class }) = header(&grh) else {
        return Err(libc::EPROTONOSUPPORT);
    };
    // The datagram was sent to a local address: the response has that address as its source.
    let gids = shared.engine.device.gids();
    let (index, _) = gids.iter().find(|(_, entry)| entry.gid == local).ok_or(libc::ENOENT)?;
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
    Ok(result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the program passes a completion and the GRH that the completion announces.
    let made =
        context::shared(context).and_then(|shared| unsafe { attr_from_wc(&shared, port, wc, grh) });
    match made {
        Ok(made) => {
            // SAFETY: the program passes a writable `ibv_ah_attr`.
            unsafe { attr.write(made) };
            0
        }
        Err(code) => {
            errno::set(code);
            -1
        }
    }
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
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { &*attr };
    let found = context::shared(context).and_then(|shared| {
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
