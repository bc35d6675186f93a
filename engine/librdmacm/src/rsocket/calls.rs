//! The exported functions. Each works like the socket call of the same name without the `r`; see
//! its manual page.

use std::ffi::{c_int, c_long, c_void};
use std::sync::Arc;

use libc::{
    fd_set, iovec, linger, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};

use super::address::{self, CAddress};
use super::any_socket::Socket;
use super::datagram::Datagram;
use super::gather::Gather;
use super::identifier::Identifier;
use super::options::{Options, SOL_RDMA};
use super::poll;
use super::socket::StreamSocket;
use super::{dispatch, epoll, table};
use crate::abi::RDMA_PS_TCP;
use crate::abi::select::{Sets, milliseconds};
use crate::outcome::return_code;

/// `RDMA_ROUTE`: this option has no integer value.
const ROUTE: (c_int, c_int) = (SOL_RDMA, 4);

/// Returns a count; for an error sets `errno` and returns -1.
fn return_count(done: Result<usize, c_int>) -> ssize_t {
    match done {
        Ok(count) => ssize_t::try_from(count).unwrap_or(ssize_t::MAX),
        Err(code) => return_code(Err(code)) as ssize_t,
    }
}

/// Returns a small number; for an error sets `errno` and returns -1.
fn return_number(done: Result<c_int, c_int>) -> c_int {
    done.unwrap_or_else(|code| return_code(Err(code)))
}

#[unsafe(no_mangle)]
extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    dispatch::install();
    let made = || match (domain, kind, protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            let identifier = Identifier::new(RDMA_PS_TCP)?;
            Ok(Socket::Stream(Box::new(StreamSocket::new(identifier, Options::default()))))
        }
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            Ok(Socket::Datagram(Box::new(Datagram::new(domain)?)))
        }
        _ => Err(libc::ENOTSUP),
    };
    return_number(made().map(|socket| {
        let fd = socket.fd();
        table::insert(fd, Arc::new(socket));
        fd
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let bound = table::get(fd).and_then(|socket| {
        // SAFETY: the program passes an address of `length` bytes.
        let address = unsafe { address::read(address, length)? };
        match &*socket {
            Socket::Stream(stream) => stream.bind(address),
            Socket::Datagram(datagram) => datagram.bind(address),
        }
    });
    return_code(bound)
}

#[unsafe(no_mangle)]
extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    return_code(table::get(fd).and_then(|socket| socket.stream()?.listen(backlog)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn raccept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let accepted = table::get(fd).and_then(|socket| socket.stream()?.accept());
    let accepted = accepted.and_then(table::get);
    return_number(accepted.map(|socket| {
        if let Socket::Stream(stream) = &*socket
            && let (_, Some(peer)) = stream.addresses()
        {
            // SAFETY: the program passes null pointers, or a writable `length` and `*length`
            // writable bytes at `address`.
            unsafe { CAddress::from(peer).give(address, length) };
        }
        socket.fd()
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rconnect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let connected = table::get(fd).and_then(|socket| {
        // SAFETY: the program passes an address of `length` bytes.
        let address = unsafe { address::read(address, length)? };
        match &*socket {
            Socket::Stream(stream) => stream.connect(address),
            Socket::Datagram(datagram) => datagram.connect(address),
        }
    });
    return_code(connected)
}

#[unsafe(no_mangle)]
extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    return_code(table::get(fd).and_then(|socket| socket.stream()?.shutdown(how)))
}

#[unsafe(no_mangle)]
extern "C" fn rclose(fd: c_int) -> c_int {
    if epoll::close(fd) {
        return 0;
    }
    return_code(table::get(fd).map(|socket| dispatch::close(&socket)))
}

/// Receives from either kind of socket.
///
/// # Safety
/// The memory in `to` is writable.
unsafe fn receive(fd: c_int, to: Gather<'_>, flags: c_int) -> Result<usize, c_int> {
    match &*table::get(fd)? {
        // SAFETY: the memory in `to` is writable.
        Socket::Stream(stream) => unsafe { stream.receive(to, flags) },
        // SAFETY: the memory in `to` is writable.
        Socket::Datagram(datagram) => unsafe {
            datagram.receive(to, flags).map(|(length, _)| length)
        },
    }
}

/// Sends on either kind of socket.
///
/// # Safety
/// The memory in `from` is readable.
unsafe fn send(fd: c_int, from: Gather<'_>, flags: c_int) -> Result<usize, c_int> {
    match &*table::get(fd)? {
        // SAFETY: the memory in `from` is readable.
        Socket::Stream(stream) => unsafe { stream.send(from, flags) },
        // SAFETY: the memory in `from` is readable.
        Socket::Datagram(datagram) => unsafe { datagram.send(from, None, flags) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rrecv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program passes `length` writable bytes.
    return_count(unsafe { receive(fd, Gather::one(to, length), flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rread(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the program passes `length` writable bytes.
    unsafe { rrecv(fd, to, length, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rreadv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Ok(count) = usize::try_from(count) else { return return_count(Err(libc::EINVAL)) };
    // SAFETY: the program passes an array of `count` entries for writable memory.
    return_count(unsafe { receive(fd, Gather::many(parts, count), 0) })
}

/// Receives and writes the sender's address to `address`.
///
/// # Safety
/// The memory in `to` is writable; `address` and `address_length` are as for `CAddress::give`.
unsafe fn receive_from(
    fd: c_int,
    to: Gather<'_>,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> Result<usize, c_int> {
    // SAFETY: the memory in `to` is writable.
    let (length, source) = match &*table::get(fd)? {
        Socket::Stream(stream) => {
            // SAFETY: the memory in `to` is writable.
            (unsafe { stream.receive(to, flags)? }, stream.addresses().1)
        }
        Socket::Datagram(datagram) => {
            // SAFETY: the memory in `to` is writable.
            let (length, source) = unsafe { datagram.receive(to, flags)? };
            (length, Some(source))
        }
    };
    if let Some(source) = source {
        // SAFETY: both pointers are as `CAddress::give` requires.
        unsafe { CAddress::from(source).give(address, address_length) };
    }
    Ok(length)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    let to = Gather::one(to, length);
    // SAFETY: the program passes `length` writable bytes; the address pointers are null or valid.
    return_count(unsafe { receive_from(fd, to, flags, address, address_length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program passes a valid message.
    let message = unsafe { &mut *message };
    if !message.msg_control.is_null() && message.msg_controllen > 0 {
        return return_count(Err(libc::ENOTSUP));
    }
    let (name, length) = (message.msg_name.cast(), &raw mut message.msg_namelen);
    message.msg_flags = 0;
    // SAFETY: the program passes a valid message, so its array and its name are valid.
    return_count(unsafe {
        let to = Gather::many(message.msg_iov, message.msg_iovlen);
        receive_from(fd, to, flags, name, length)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsend(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program passes `length` readable bytes.
    return_count(unsafe { send(fd, Gather::one(from, length), flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rwrite(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the program passes `length` readable bytes.
    unsafe { rsend(fd, from, length, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rwritev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Ok(count) = usize::try_from(count) else { return return_count(Err(libc::EINVAL)) };
    // SAFETY: the program passes an array of `count` entries for readable memory.
    return_count(unsafe { send(fd, Gather::many(parts, count), 0) })
}

/// Sends to an address, or to the connected peer if `to` is null.
///
/// # Safety
/// The memory in `from` is readable, and `to` is null or has `length` bytes.
unsafe fn send_to(
    fd: c_int,
    from: Gather<'_>,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> Result<usize, c_int> {
    match &*table::get(fd)? {
        Socket::Stream(_) if !to.is_null() || length > 0 => Err(libc::EISCONN),
        // SAFETY: the memory in `from` is readable.
        Socket::Stream(stream) => unsafe { stream.send(from, flags) },
        Socket::Datagram(datagram) => {
            // SAFETY: `to` is not null, so it has `length` bytes.
            let to = (!to.is_null()).then(|| unsafe { address::read(to, length) }).transpose()?;
            // SAFETY: the memory in `from` is readable.
            unsafe { datagram.send(from, to, flags) }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsendto(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    // SAFETY: the program passes `length` readable bytes; the address is null or has `to_length`
    // bytes.
    return_count(unsafe { send_to(fd, Gather::one(from, length), flags, to, to_length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program passes a valid message.
    let message = unsafe { &*message };
    if !message.msg_control.is_null() && message.msg_controllen > 0 {
        return return_count(Err(libc::ENOTSUP));
    }
    // SAFETY: the program passes a valid message, so its array and its name are valid.
    return_count(unsafe {
        let from = Gather::many(message.msg_iov, message.msg_iovlen);
        send_to(fd, from, flags, message.msg_name.cast(), message.msg_namelen)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let Ok(count) = usize::try_from(count) else { return return_code(Err(libc::EINVAL)) };
    let fds = if count == 0 {
        &mut []
    } else {
        // SAFETY: the program passes an array of `count` entries.
        unsafe { std::slice::from_raw_parts_mut(fds, count) }
    };
    let ready = poll::poll(fds, timeout);
    return_number(ready.map(|ready| c_int::try_from(ready).unwrap_or(c_int::MAX)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the timeout is null or valid.
    let timeout = milliseconds(unsafe { timeout.as_ref() });
    let sets = Sets([read, write, except]);
    // SAFETY: the sets are null or valid for `count` descriptors.
    let mut polled = unsafe { sets.polled(count) };
    // SAFETY: the sets are null or valid for `count` descriptors.
    return_number(poll::poll(&mut polled, timeout).map(|_| unsafe { sets.fill(&polled) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rgetpeername(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let peer = table::get(fd).and_then(|socket| match &*socket {
        Socket::Stream(stream) => stream.addresses().1.ok_or(libc::ENOTCONN),
        Socket::Datagram(datagram) => datagram.peer(),
    });
    // SAFETY: the program passes null pointers, or a writable `length` and `*length` writable
    // bytes at `address`.
    return_code(peer.map(|peer| unsafe { CAddress::from(peer).give(address, length) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rgetsockname(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let local = table::get(fd).and_then(|socket| match &*socket {
        Socket::Stream(stream) => Ok(stream.addresses().0.unwrap_or(([0; 4], 0).into())),
        Socket::Datagram(datagram) => datagram.local(),
    });
    // SAFETY: the program passes null pointers, or a writable `length` and `*length` writable
    // bytes at `address`.
    return_code(local.map(|local| unsafe { CAddress::from(local).give(address, length) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let (option, length) = ((level, option), length as usize);
    let set = table::get(fd).and_then(|socket| match &*socket {
        // SAFETY: the program passes a value of `length` bytes.
        Socket::Stream(stream) => unsafe { stream.set_option(option, value, length) },
        // SAFETY: the program passes a value of `length` bytes.
        Socket::Datagram(datagram) => unsafe { datagram.set_option(option, value, length) },
    });
    return_code(set)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let current = table::get(fd).and_then(|socket| match &*socket {
        _ if (level, option) == ROUTE => Err(libc::ENOTSUP),
        Socket::Stream(stream) => stream.option((level, option)),
        Socket::Datagram(datagram) => datagram.option((level, option)),
    });
    let given = current.and_then(|current| {
        // SAFETY: the program passes a writable value of `*length` bytes.
        unsafe { give_option((level, option), current, value, length) }
    });
    return_code(given)
}

/// Copies the value of an option to the program.
///
/// # Safety
/// `value` and `length` are null, or `value` has `*length` writable bytes.
unsafe fn give_option(
    option: (c_int, c_int),
    current: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Result<(), c_int> {
    let lingers = linger { l_onoff: current, l_linger: 0 };
    let (from, size) = if option == (libc::SOL_SOCKET, libc::SO_LINGER) {
        ((&raw const lingers).cast::<u8>(), size_of::<linger>())
    } else {
        ((&raw const current).cast(), size_of::<c_int>())
    };
    if value.is_null() || length.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: neither is null, and the copy is limited to `*length` bytes.
    unsafe {
        let size = size.min(*length as usize);
        value.cast::<u8>().copy_from_nonoverlapping(from, size);
        *length = socklen_t::try_from(size).unwrap_or(0);
    }
    Ok(())
}

/// `argument` is used only for `F_SETFL`. C declares it as variadic; for other commands programs
/// may omit it.
#[unsafe(no_mangle)]
extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let done = table::get(fd).and_then(|socket| match command {
        libc::F_GETFL => Ok(match &*socket {
            Socket::Stream(stream) => stream.flags(),
            Socket::Datagram(datagram) => datagram.flags(),
        }),
        libc::F_SETFL => {
            #[allow(clippy::cast_possible_truncation)] // programs pass an `int`
            let flags = argument as c_int;
            match &*socket {
                Socket::Stream(stream) => stream.set_flags(flags),
                Socket::Datagram(datagram) => datagram.set_flags(flags),
            }
            Ok(0)
        }
        _ => Err(libc::ENOTSUP),
    });
    return_number(done)
}

#[unsafe(no_mangle)]
extern "C" fn riomap(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let offset = (offset != -1).then_some(offset.cast_unsigned());
    let mapped =
        table::get(fd).and_then(|socket| socket.stream()?.map(buffer, length, protection, offset));
    match mapped {
        Ok(offset) => offset.cast_signed(),
        Err(code) => return_code(Err(code)).into(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn riounmap(fd: c_int, buffer: *mut c_void, length: size_t) -> c_int {
    return_code(table::get(fd).and_then(|socket| socket.stream()?.unmap(buffer, length)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn riowrite(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    let (from, offset) = (Gather::one(from, length), offset.cast_unsigned());
    let written = table::get(fd).and_then(|socket| {
        // SAFETY: the program passes `length` readable bytes.
        unsafe { socket.stream()?.write_mapped(from, offset, flags) }
    });
    return_count(written).cast_unsigned()
}
