//! `rdma_getaddrinfo`: resolves names and services with the C library's `getaddrinfo`.

use std::ffi::{c_char, c_int, c_void};

use libc::{addrinfo, sockaddr, socklen_t};

use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, RAI_NUMERICHOST,
    RAI_PASSIVE, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_addrinfo,
};
use crate::device;
use crate::errno;
use crate::outcome::return_code;

/// Why the lookup failed: a `getaddrinfo` code, which is returned as it is, or an error number.
enum LookupError {
    Name(c_int),
    Errno(c_int),
}

impl From<c_int> for LookupError {
    fn from(code: c_int) -> Self {
        Self::Errno(code)
    }
}

/// Allocates a list with one empty entry.
fn empty() -> Result<*mut rdma_addrinfo, c_int> {
    // Allocated with calloc, like all fields of an entry, because the program may replace fields.
    // SAFETY: a plain allocation; all-zero bytes are a valid value of this C structure.
    let made = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) };
    if made.is_null() { Err(libc::ENOMEM) } else { Ok(made.cast()) }
}

/// Copies an address to newly allocated memory.
///
/// # Safety
/// `from` points to `length` readable bytes; `to` and `to_length` are writable.
unsafe fn copy(
    to: *mut *mut sockaddr,
    to_length: *mut socklen_t,
    from: *const sockaddr,
    length: socklen_t,
) -> Result<(), c_int> {
    // SAFETY: `from` has `length` readable bytes and both destinations are writable.
    unsafe {
        let place = libc::malloc(length as usize);
        if place.is_null() {
            return Err(libc::ENOMEM);
        }
        place.copy_from_nonoverlapping(from.cast::<c_void>(), length as usize);
        to.write(place.cast());
        to_length.write(length);
    }
    Ok(())
}

/// Returns the hints for `getaddrinfo` that match the QP type and port space.
///
/// # Safety
/// `hints` is valid.
unsafe fn lookup_hints(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut query: addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        query.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        query.ai_flags |= libc::AI_NUMERICHOST;
    }
    query.ai_family = hints.ai_family;
    query.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    query.ai_protocol = match (hints.ai_port_space.cast_unsigned(), query.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_IPOIB | RDMA_PS_UDP, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    query
}

/// Copies the first result of `getaddrinfo` to this library's structure.
///
/// # Safety
/// `found` was returned by `getaddrinfo`, and `result` is an empty entry.
unsafe fn convert(
    result: &mut rdma_addrinfo,
    hints: Option<&rdma_addrinfo>,
    found: &addrinfo,
) -> Result<(), c_int> {
    let chosen = |hint: fn(&rdma_addrinfo) -> c_int| hints.map_or(0, hint);
    result.ai_qp_type = match (chosen(|hints| hints.ai_qp_type), found.ai_socktype) {
        (0, libc::SOCK_STREAM) => IBV_QPT_RC.cast_signed(),
        (0, libc::SOCK_DGRAM) => IBV_QPT_UD.cast_signed(),
        (chosen, _) => chosen,
    };
    result.ai_port_space = match (chosen(|hints| hints.ai_port_space), found.ai_protocol) {
        (0, libc::IPPROTO_TCP) => RDMA_PS_TCP.cast_signed(),
        (0, libc::IPPROTO_UDP) => RDMA_PS_UDP.cast_signed(),
        (chosen, _) => chosen,
    };
    result.ai_family = found.ai_family;
    let is_passive = found.ai_flags & libc::AI_PASSIVE != 0;
    let (name, to, length): (&mut *mut c_char, _, _) = match is_passive {
        true => {
            result.ai_flags = RAI_PASSIVE;
            (&mut result.ai_src_canonname, &raw mut result.ai_src_addr, &raw mut result.ai_src_len)
        }
        false => {
            (&mut result.ai_dst_canonname, &raw mut result.ai_dst_addr, &raw mut result.ai_dst_len)
        }
    };
    // SAFETY: `found` was returned by `getaddrinfo`, so its pointers are valid.
    unsafe {
        if !found.ai_canonname.is_null() {
            *name = libc::strdup(found.ai_canonname);
        }
        copy(to, length, found.ai_addr, found.ai_addrlen)
    }
}

/// Resolves `node` and `service` into `result`.
///
/// # Safety
/// `node` and `service` are C strings or null; `result` is an empty entry.
unsafe fn resolve(
    result: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<(), LookupError> {
    // SAFETY: `node` and `service` are C strings or null; the list from `getaddrinfo` is freed
    // once.
    unsafe {
        let query = hints.map(|hints| lookup_hints(hints));
        let query = query.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut found = std::ptr::null_mut();
        match libc::getaddrinfo(node, service, query, &raw mut found) {
            0 => {}
            code => return Err(LookupError::Name(code)),
        }
        let done = convert(result, hints, &*found);
        libc::freeaddrinfo(found);
        done?;
    }
    Ok(())
}

/// Fills `result` from the name lookup and the hints.
///
/// # Safety
/// `node` and `service` are C strings or null; `hints` is valid; `result` is an empty entry.
unsafe fn fill(
    result: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<(), LookupError> {
    // SAFETY: `node` and `service` are C strings or null, and the addresses in `hints` have the
    // lengths given there.
    unsafe {
        if !node.is_null() || !service.is_null() {
            resolve(result, node, service, hints)?;
        } else if let Some(hints) = hints {
            result.ai_flags = hints.ai_flags;
            result.ai_family = hints.ai_family;
            result.ai_qp_type = hints.ai_qp_type;
            result.ai_port_space = hints.ai_port_space;
            if hints.ai_dst_len > 0 {
                let (to, length) = (&raw mut result.ai_dst_addr, &raw mut result.ai_dst_len);
                copy(to, length, hints.ai_dst_addr, hints.ai_dst_len)?;
            }
        }
        if let Some(hints) = hints.filter(|hints| result.ai_src_len == 0 && hints.ai_src_len > 0) {
            let (to, length) = (&raw mut result.ai_src_addr, &raw mut result.ai_src_len);
            copy(to, length, hints.ai_src_addr, hints.ai_src_len)?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    list: *mut *mut rdma_addrinfo,
) -> c_int {
    if node.is_null() && service.is_null() && hints.is_null() {
        return return_code(Err(libc::EINVAL));
    }
    match device::check_present() {
        // SAFETY: the program passes C strings or null, valid hints or null, and a writable
        // pointer.
        Ok(()) => unsafe { look_up(node, service, hints, list) },
        Err(code) => return_code(Err(code)),
    }
}

/// `rdma_getaddrinfo` without the check for devices.
///
/// # Safety
/// `node` and `service` are C strings or null; `hints` is valid or null; `list` is writable.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    list: *mut *mut rdma_addrinfo,
) -> c_int {
    let result = match empty() {
        Ok(result) => result,
        Err(code) => return return_code(Err(code)),
    };
    // SAFETY: `node` and `service` are C strings or null; `hints` is valid or null; `list` is
    // writable.
    unsafe {
        match fill(&mut *result, node, service, hints.as_ref()) {
            Ok(()) => {
                list.write(result);
                0
            }
            Err(error) => {
                rdma_freeaddrinfo(result);
                match error {
                    LookupError::Name(code) => code,
                    LookupError::Errno(code) => {
                        errno::set(code);
                        -1
                    }
                }
            }
        }
    }
}

/// A list from `rdma_getaddrinfo`.
#[derive(Debug)]
pub struct AddrInfoList(*mut rdma_addrinfo);

// SAFETY: the list belongs to this value alone.
unsafe impl Send for AddrInfoList {}

impl AddrInfoList {
    /// Resolves a name, as `rdma_getaddrinfo`.
    ///
    /// # Safety
    /// `node` and `service` are C strings or null; `hints` is valid or null.
    ///
    /// # Errors
    /// ENOENT for a name that has no address.
    pub unsafe fn resolve(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> Result<Self, c_int> {
        let mut list = std::ptr::null_mut();
        // SAFETY: the arguments are valid; the list is writable.
        match unsafe { rdma_getaddrinfo(node, service, hints, &raw mut list) } {
            0 => Ok(Self(list)),
            -1 => Err(errno::last()),
            libc::EAI_SYSTEM => Err(errno::last()),
            libc::EAI_MEMORY => Err(libc::ENOMEM),
            _ => Err(libc::ENOENT),
        }
    }

    /// Hands the list to the program.
    pub fn into_raw(self) -> *mut rdma_addrinfo {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for AddrInfoList {
    fn drop(&mut self) {
        // SAFETY: the list is from `rdma_getaddrinfo`, and nothing else refers to it.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    let mut rest = list;
    while !rest.is_null() {
        // SAFETY: the program passes a list from `rdma_getaddrinfo` and does not use it again.
        unsafe {
            let entry = *rest;
            for part in [
                entry.ai_connect,
                entry.ai_route,
                entry.ai_src_canonname.cast(),
                entry.ai_dst_canonname.cast(),
                entry.ai_src_addr.cast(),
                entry.ai_dst_addr.cast(),
                rest.cast(),
            ] {
                libc::free(part);
            }
            rest = entry.ai_next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up_7174(node: &std::ffi::CStr, hints: &rdma_addrinfo) -> (c_int, *mut rdma_addrinfo) {
        let mut list = std::ptr::null_mut();
        // SAFETY: C strings, valid hints and a writable pointer.
        let code = unsafe { look_up(node.as_ptr(), c"7174".as_ptr(), hints, &raw mut list) };
        (code, list)
    }

    #[test]
    fn the_qp_type_follows_from_the_port_space_in_the_hints() {
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let mut hints: rdma_addrinfo = unsafe { std::mem::zeroed() };
        hints.ai_port_space = RDMA_PS_UDP.cast_signed();
        hints.ai_flags = RAI_NUMERICHOST | RAI_PASSIVE;
        let (code, list) = look_up_7174(c"10.0.0.1", &hints);
        assert_eq!(code, 0);
        // SAFETY: the list was returned above.
        unsafe {
            let result = *list;
            assert_eq!(result.ai_qp_type, IBV_QPT_UD.cast_signed());
            assert_eq!(result.ai_family, libc::AF_INET);
            let address = crate::address::read(result.ai_src_addr);
            assert_eq!(address, Some("10.0.0.1:7174".parse().unwrap()));
            assert!(result.ai_dst_addr.is_null());
            rdma_freeaddrinfo(list);
        }
        let (code, _) = look_up_7174(c"no address", &hints);
        assert_eq!(code, libc::EAI_NONAME, "as getaddrinfo says it");
    }
}
