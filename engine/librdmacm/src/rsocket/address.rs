//! Conversions between socket addresses of C and of Rust.

use std::ffi::c_int;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

#[allow(clippy::cast_possible_truncation)] // the values are 2 and 10
const INET: u16 = libc::AF_INET as u16;
#[allow(clippy::cast_possible_truncation)]
const INET6: u16 = libc::AF_INET6 as u16;
#[allow(clippy::cast_possible_truncation)] // the values are 16 and 28
const INET_LENGTH: socklen_t = size_of::<sockaddr_in>() as socklen_t;
#[allow(clippy::cast_possible_truncation)]
const INET6_LENGTH: socklen_t = size_of::<sockaddr_in6>() as socklen_t;

/// Reads an address that the program passes.
///
/// # Errors
/// EINVAL if it is shorter than its family requires, EAFNOSUPPORT for families other than IPv4 and
/// IPv6.
///
/// # Safety
/// `address` is null or points to `length` readable bytes.
pub unsafe fn read(address: *const sockaddr, length: socklen_t) -> Result<SocketAddr, c_int> {
    if address.is_null() || (length as usize) < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `address` points to `length` bytes, which include the family.
    match unsafe { (&raw const (*address).sa_family).read_unaligned() } {
        INET if length >= INET_LENGTH => {
            // SAFETY: `length` covers the whole structure.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let octets = v4.sin_addr.s_addr.to_ne_bytes();
            Ok(SocketAddr::from((octets, u16::from_be(v4.sin_port))))
        }
        INET6 if length >= INET6_LENGTH => {
            // SAFETY: `length` covers the whole structure.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let (port, flow) = (u16::from_be(v6.sin6_port), u32::from_be(v6.sin6_flowinfo));
            Ok(SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id).into())
        }
        INET | INET6 => Err(libc::EINVAL),
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// A C socket address and its length.
#[derive(Clone, Copy)]
pub struct CAddress(sockaddr_storage, socklen_t);

impl From<SocketAddr> for CAddress {
    fn from(address: SocketAddr) -> Self {
        let Self(mut storage, _) = Self::room();
        let place = &raw mut storage;
        let length = match address {
            SocketAddr::V4(v4) => {
                let address = sockaddr_in {
                    sin_family: INET,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: `sockaddr_storage` has room and alignment for any address.
                unsafe { place.cast::<sockaddr_in>().write(address) };
                INET_LENGTH
            }
            SocketAddr::V6(v6) => {
                let address = sockaddr_in6 {
                    sin6_family: INET6,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo().to_be(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: `sockaddr_storage` has room and alignment for any address.
                unsafe { place.cast::<sockaddr_in6>().write(address) };
                INET6_LENGTH
            }
        };
        Self(storage, length)
    }
}

impl CAddress {
    /// Returns zeroed room for any address.
    pub fn room() -> Self {
        // SAFETY: all-zero bytes are an address without a family.
        let storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        Self(storage, socklen_t::try_from(size_of_val(&storage)).unwrap_or(0))
    }

    /// Returns the pointer for C calls.
    pub fn pointer(&mut self) -> *mut sockaddr {
        (&raw mut self.0).cast()
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> socklen_t {
        self.1
    }

    /// Copies the address to the program's buffer of `*length` bytes, truncated if it does not fit,
    /// and sets `*length` to its full length.
    ///
    /// # Safety
    /// `to` and `length` are null, or `length` is writable and `to` has `*length` writable bytes.
    pub unsafe fn give(&self, to: *mut sockaddr, length: *mut socklen_t) {
        if to.is_null() || length.is_null() {
            return;
        }
        // SAFETY: neither is null; the copy is limited to the room at `to` and the length of the
        // address.
        unsafe {
            let room = (*length).min(self.1) as usize;
            to.cast::<u8>().copy_from_nonoverlapping((&raw const self.0).cast(), room);
            *length = self.1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_conversion() {
        let v6 = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 5, 3);
        for address in ["10.0.0.1:80".parse().unwrap(), SocketAddr::V6(v6)] {
            let mut raw = CAddress::from(address);
            let length = raw.length();
            // SAFETY: the address has `length` bytes.
            let read = |raw: &mut CAddress, length| unsafe { read(raw.pointer(), length) };
            assert_eq!(read(&mut raw, length), Ok(address));
            assert_eq!(read(&mut raw, length - 1), Err(libc::EINVAL));
        }
    }
}
