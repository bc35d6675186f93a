//! The functions that programs call. What each does is in the manual page of the socket call of the same name.

use std::ffi::{c_int, c_long, c_void};
use std::sync::Arc;

use libc::{
    fd_set, iovec, linger, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};

use super::address::{self, Raw};
use super::datagram::Datagram;
use super::gather::Gather;
use super::identifier::Identifier;
use super::options::{Options, SOL_RDMA};
use super::poll;
use super::socket::StreamSocket;
use super::{Socket, service, table};
use crate::abi::RDMA_PS_TCP;
use crate::abi::select::{Sets, milliseconds};
use crate::outcome::return_code;

/// `RDMA_ROUTE`, which is no number.
const ROUTE: (c_int, c_int) = (SOL_RDMA, 4);

/// A count, or -1 and `errno`.
fn counted(done: Result<usize, c_int>) -> ssize_t {
    match done {
        Ok(count) => ssize_t::try_from(count).unwrap_or(ssize_t::MAX),
        Err(code) => return_code(Err(code)) as ssize_t,
    }
}

/// A small number, or -1 and `errno`.
fn numbered(done: Result<c_int, c_int>) -> c_int {
    done.unwrap_or_else(|code| return_code(Err(code)))
}

#[unsafe(no_mangle)]
extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
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
    numbered(made().map(|socket| {
        let fd = socket.fd();
        table::insert(fd, Arc::new(socket));
        fd
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let bound = table::get(fd).and_then(|socket| {
        // SAFETY: the program answers for the address.
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
    numbered(accepted.map(|socket| {
        if let Socket::Stream(stream) = &*socket
            && let (_, Some(peer)) = stream.addresses()
        {
            // SAFETY: the program answers for both.
            unsafe { Raw::from(peer).give(address, length) };
        }
        socket.fd()
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rconnect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let connected = table::get(fd).and_then(|socket| {
        // SAFETY: the program answers for the address.
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
    return_code(table::get(fd).map(|socket| service::close(&socket)))
}

/// # Safety
/// The memory can be written.
unsafe fn receive(fd: c_int, to: Gather<'_>, flags: c_int) -> Result<usize, c_int> {
    match &*table::get(fd)? {
        // SAFETY: the caller says so.
        Socket::Stream(stream) => unsafe { stream.receive(to, flags) },
        // SAFETY: the caller says so.
        Socket::Datagram(datagram) => unsafe {
            datagram.receive(to, flags).map(|(length, _)| length)
        },
    }
}

/// # Safety
/// The bytes can be read.
unsafe fn send(fd: c_int, from: Gather<'_>, flags: c_int) -> Result<usize, c_int> {
    match &*table::get(fd)? {
        // SAFETY: the caller says so.
        Socket::Stream(stream) => unsafe { stream.send(from, flags) },
        // SAFETY: the caller says so.
        Socket::Datagram(datagram) => unsafe { datagram.send(from, None, flags) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rrecv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program answers for the memory.
    counted(unsafe { receive(fd, Gather::one(to, length), flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rread(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the program answers for the memory.
    unsafe { rrecv(fd, to, length, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rreadv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Ok(count) = usize::try_from(count) else { return counted(Err(libc::EINVAL)) };
    // SAFETY: the program answers for the array and the memory.
    counted(unsafe { receive(fd, Gather::many(parts, count), 0) })
}

/// Receives, and says from whom.
///
/// # Safety
/// The memory can be written; both pointers are null, or valid as `Raw::give` says.
unsafe fn receive_from(
    fd: c_int,
    to: Gather<'_>,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> Result<usize, c_int> {
    // SAFETY: the caller says so.
    let (length, source) = match &*table::get(fd)? {
        Socket::Stream(stream) => {
            // SAFETY: as above.
            (unsafe { stream.receive(to, flags)? }, stream.addresses().1)
        }
        Socket::Datagram(datagram) => {
            // SAFETY: as above.
            let (length, source) = unsafe { datagram.receive(to, flags)? };
            (length, Some(source))
        }
    };
    if let Some(source) = source {
        // SAFETY: as above.
        unsafe { Raw::from(source).give(address, address_length) };
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
    // SAFETY: the program answers for the memory and the address.
    counted(unsafe { receive_from(fd, to, flags, address, address_length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program answers for the message and what it names.
    let message = unsafe { &mut *message };
    if !message.msg_control.is_null() && message.msg_controllen > 0 {
        return counted(Err(libc::ENOTSUP));
    }
    let (name, length) = (message.msg_name.cast(), &raw mut message.msg_namelen);
    message.msg_flags = 0;
    // SAFETY: as above.
    counted(unsafe {
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
    // SAFETY: the program answers for the bytes.
    counted(unsafe { send(fd, Gather::one(from, length), flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rwrite(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the program answers for the bytes.
    unsafe { rsend(fd, from, length, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rwritev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Ok(count) = usize::try_from(count) else { return counted(Err(libc::EINVAL)) };
    // SAFETY: the program answers for the array and the bytes.
    counted(unsafe { send(fd, Gather::many(parts, count), 0) })
}

/// Sends to somebody.
///
/// # Safety
/// The bytes can be read, and `to` is null or has `length` bytes.
unsafe fn send_to(
    fd: c_int,
    from: Gather<'_>,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> Result<usize, c_int> {
    match &*table::get(fd)? {
        Socket::Stream(_) if !to.is_null() || length > 0 => Err(libc::EISCONN),
        // SAFETY: the caller says so.
        Socket::Stream(stream) => unsafe { stream.send(from, flags) },
        Socket::Datagram(datagram) => {
            // SAFETY: as above.
            let to = (!to.is_null()).then(|| unsafe { address::read(to, length) }).transpose()?;
            // SAFETY: as above.
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
    // SAFETY: the program answers for the bytes and the address.
    counted(unsafe { send_to(fd, Gather::one(from, length), flags, to, to_length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program answers for the message and what it names.
    let message = unsafe { &*message };
    if !message.msg_control.is_null() && message.msg_controllen > 0 {
        return counted(Err(libc::ENOTSUP));
    }
    // SAFETY: as above.
    counted(unsafe {
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
        // SAFETY: the program answers for the array.
        unsafe { std::slice::from_raw_parts_mut(fds, count) }
    };
    let ready = poll::poll(fds, timeout);
    numbered(ready.map(|ready| c_int::try_from(ready).unwrap_or(c_int::MAX)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the program answers for it.
    let timeout = milliseconds(unsafe { timeout.as_ref() });
    let sets = Sets([read, write, except]);
    // SAFETY: the program answers for the sets.
    let mut polled = unsafe { sets.polled(count) };
    // SAFETY: as above.
    numbered(poll::poll(&mut polled, timeout).map(|_| unsafe { sets.fill(&polled) }))
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
    // SAFETY: the program answers for both.
    return_code(peer.map(|peer| unsafe { Raw::from(peer).give(address, length) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rgetsockname(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let own = table::get(fd).and_then(|socket| match &*socket {
        Socket::Stream(stream) => Ok(stream.addresses().0.unwrap_or(([0; 4], 0).into())),
        Socket::Datagram(datagram) => datagram.own(),
    });
    // SAFETY: the program answers for both.
    return_code(own.map(|own| unsafe { Raw::from(own).give(address, length) }))
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
        // SAFETY: the program answers for the value.
        Socket::Stream(stream) => unsafe { stream.set_option(option, value, length) },
        // SAFETY: as above.
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
    let told = table::get(fd).and_then(|socket| match &*socket {
        _ if (level, option) == ROUTE => Err(libc::ENOTSUP),
        Socket::Stream(stream) => stream.option((level, option)),
        Socket::Datagram(datagram) => datagram.option((level, option)),
    });
    let given = told.and_then(|told| {
        // SAFETY: the program answers for both.
        unsafe { give_option((level, option), told, value, length) }
    });
    return_code(given)
}

/// Gives an option's value to the program.
///
/// # Safety
/// `value` has `*length` bytes.
unsafe fn give_option(
    option: (c_int, c_int),
    told: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Result<(), c_int> {
    let lingers = linger { l_onoff: told, l_linger: 0 };
    let (from, size) = if option == (libc::SOL_SOCKET, libc::SO_LINGER) {
        ((&raw const lingers).cast::<u8>(), size_of::<linger>())
    } else {
        ((&raw const told).cast(), size_of::<c_int>())
    };
    if value.is_null() || length.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller answers for both.
    unsafe {
        let size = size.min(*length as usize);
        value.cast::<u8>().copy_from_nonoverlapping(from, size);
        *length = socklen_t::try_from(size).unwrap_or(0);
    }
    Ok(())
}

/// Its last argument is there for `F_SETFL` only; programs pass it, or nothing, as functions with varying arguments have it.
#[unsafe(no_mangle)]
extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let done = table::get(fd).and_then(|socket| match command {
        libc::F_GETFL => Ok(match &*socket {
            Socket::Stream(stream) => stream.flags(),
            Socket::Datagram(datagram) => datagram.flags(),
        }),
        libc::F_SETFL => {
            #[allow(clippy::cast_possible_truncation)] // An `int`, which is what programs pass.
            let flags = argument as c_int;
            match &*socket {
                Socket::Stream(stream) => stream.set_flags(flags),
                Socket::Datagram(datagram) => datagram.set_flags(flags),
            }
            Ok(0)
        }
        _ => Err(libc::ENOTSUP),
    });
    numbered(done)
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
        // SAFETY: the program answers for the bytes.
        unsafe { socket.stream()?.write_mapped(from, offset, flags) }
    });
    counted(written).cast_unsigned()
}
