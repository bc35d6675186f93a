//! Socket addresses of identifiers: binding, listening, and the path record.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::abi::connections::{
    CmAddress, CmPath, feroce_cm_bind, feroce_cm_device_of, feroce_cm_listen,
};
use crate::abi::{ibv_sa_path_rec, rdma_cm_id};
use crate::device;
use crate::id;
use crate::outcome::{check_code, return_code};

/// Number of a device's only port.
const PORT: u8 = 1;

/// The default partition key, the only one.
pub const PKEY: u16 = 0xffff;

/// Reads the program's address. Returns `None` for null and for families other than IPv4 and IPv6.
///
/// # Safety
/// `address` is null or points to a socket address of its family.
pub unsafe fn read(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: `address` points to an address of its family. Reads are unaligned because programs
    // may keep a `sockaddr_in6` at lower alignment.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

const _: () = assert!(size_of::<sockaddr_storage>() >= size_of::<sockaddr_in6>());

/// Writes the address as a C structure.
pub fn write(to: &mut sockaddr_storage, address: SocketAddr) {
    let to = std::ptr::from_mut(to);
    // The address families fit in 16 bits.
    #[allow(clippy::cast_possible_truncation)]
    let (inet, inet6) = (libc::AF_INET as u16, libc::AF_INET6 as u16);
    // SAFETY: `sockaddr_storage` has room and alignment for both types, and all-zero bytes are a
    // valid value of them.
    unsafe {
        match address {
            SocketAddr::V4(v4) => {
                let mut result: sockaddr_in = std::mem::zeroed();
                result.sin_family = inet;
                result.sin_port = v4.port().to_be();
                result.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                to.cast::<sockaddr_in>().write(result);
            }
            SocketAddr::V6(v6) => {
                let mut result: sockaddr_in6 = std::mem::zeroed();
                result.sin6_family = inet6;
                result.sin6_port = v6.port().to_be();
                result.sin6_addr.s6_addr = v6.ip().octets();
                result.sin6_scope_id = v6.scope_id();
                to.cast::<sockaddr_in6>().write(result);
            }
        }
    }
}

/// Returns the address as a GID in C form: two halves in memory order.
pub fn gid(address: &CmAddress) -> [u64; 2] {
    let octets = match address.socket().map(|address| address.ip()) {
        Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped().octets(),
        _ => address.octets,
    };
    let half = |at: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&octets[at..at + 8]);
        u64::from_ne_bytes(half)
    };
    [half(0), half(8)]
}

/// Returns true if the address selects no device, as in the connection manager: the device is then
/// chosen with the path to the peer.
fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback()
}

/// Updates the addresses and the device in the program's structure to the identifier's current
/// state.
///
/// # Safety
/// `id` is live.
///
/// # Errors
/// ENODEV if the device does not exist.
pub unsafe fn refresh(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `id` is live.
    let live = unsafe { id::borrow(id) };
    let view = live.view()?;
    // SAFETY: `id` is live; the program does not read the addresses during the call or event that
    // changes them.
    let addr = unsafe { &mut (*id).route.addr };
    if let Some(source) = view.source.socket() {
        write(&mut addr.src_storage, source);
    }
    if let Some(destination) = view.destination.socket() {
        write(&mut addr.dst_storage, destination);
    }
    let found = match view.path.local.socket() {
        Some(_) => {
            addr.addr.sgid = gid(&view.path.local);
            addr.addr.dgid = gid(&view.path.remote);
            Some(view.path.device)
        }
        None => match view.source.socket() {
            Some(source) if !is_any(source.ip()) => {
                addr.addr.sgid = gid(&view.source);
                let (mut index, mut at) = (0, 0);
                // SAFETY: both out parameters are writable.
                check_code(unsafe {
                    feroce_cm_device_of(&raw const view.source, &raw mut index, &raw mut at)
                })?;
                Some(index)
            }
            _ => None,
        },
    };
    if let Some(index) = found.filter(|_| live.private().device.is_none()) {
        let device = device::by_index(index)?;
        live.private().device = Some(device);
        addr.addr.pkey = PKEY.to_be();
        // SAFETY: `id` is live.
        unsafe {
            (*id).verbs = device.context;
            (*id).pd = device.pd;
            (*id).port_num = PORT;
        }
    }
    Ok(())
}

/// Writes the path record in the program's structure.
///
/// # Safety
/// `id` is live.
pub unsafe fn set_path_record(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live.
    let view = unsafe { id::borrow(id) }.view();
    let Some(path) = view.ok().map(|view| view.path).filter(|path| path.local.version != 0) else {
        return;
    };
    // SAFETY: `id` is live. The record is allocated with calloc because programs may replace it by
    // one of their own.
    unsafe {
        let route = &mut (*id).route;
        if route.path_rec.is_null() {
            route.path_rec = libc::calloc(1, size_of::<ibv_sa_path_rec>()).cast();
        }
        if let Some(place) = route.path_rec.as_mut() {
            *place = record(&path);
            route.num_paths = 1;
        }
    }
}

/// `IBV_RATE_10_GBPS`: a fixed value, the rate is not measured.
const RATE: u8 = 3;

fn record(path: &CmPath) -> ibv_sa_path_rec {
    const EXACTLY: u8 = 2;
    ibv_sa_path_rec {
        dgid: gid(&path.remote),
        sgid: gid(&path.local),
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: 0,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: PKEY.to_be(),
        sl: 0,
        mtu_selector: EXACTLY,
        mtu: path.mtu,
        rate_selector: EXACTLY,
        rate: RATE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_lifetime,
        preference: 0,
    }
}

/// Binds the identifier to a local address.
///
/// # Safety
/// `id` is live.
unsafe fn bind(id: *mut rdma_cm_id, address: SocketAddr) -> Result<(), c_int> {
    let address = CmAddress::from(address);
    // SAFETY: `id` is live.
    unsafe {
        id::check(id)?;
        device::open_all()?;
        check_code(feroce_cm_bind(id::borrow(id).number(), &raw const address))?;
        refresh(id)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    // SAFETY: the program passes a live identifier; the address is null or valid.
    return_code(unsafe { read(address).ok_or(libc::EINVAL).and_then(|address| bind(id, address)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // A negative backlog becomes 0, which means the maximum.
    let backlog = u32::try_from(backlog).unwrap_or(0);
    return_code(id::check(id).and_then(|()| device::open_all()).and_then(|()| {
        // SAFETY: `id` is live.
        unsafe {
            check_code(feroce_cm_listen(id::borrow(id).number(), backlog))?;
            refresh(id)
        }
    }))
}

/// Returns the port of an address in network byte order, or 0.
///
/// # Safety
/// `storage` begins with a valid socket address.
unsafe fn port(storage: &sockaddr_storage) -> u16 {
    // SAFETY: `storage` begins with a valid socket address.
    let address = unsafe { read(std::ptr::from_ref(storage).cast()) };
    address.map_or(0, |address| address.port().to_be())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the identifier is referenced.
    id::known(id).map_or(0, |_known| unsafe { port(&(*id).route.addr.src_storage) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the identifier is referenced.
    id::known(id).map_or(0, |_known| unsafe { port(&(*id).route.addr.dst_storage) })
}
