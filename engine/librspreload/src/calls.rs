//! Calls that are passed on to the rsocket or kernel socket behind a descriptor.

use std::ffi::{c_int, c_long, c_void};

use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::forking;
use crate::names::other_calls;
use crate::table::{self, Kind};

/// Declares functions that pass their arguments on. Those that move data first decide whether a
/// pending socket becomes an rsocket.
macro_rules! pass {
    ($( $resolve:path: $name:ident($( $argument:ident: $type:ty ),*) -> $result:ty; )*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int $(, $argument: $type )*) -> $result {
            let backing = $resolve(fd);
            // SAFETY: the program passes the arguments that the function of the C library requires.
            unsafe { (backing.calls().$name)(backing.fd $(, $argument )*) }
        }
    )* };
}

pass! {
    table::resolve: bind(address: *const sockaddr, length: socklen_t) -> c_int;
    forking::resolve: recv(to: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    forking::resolve: recvfrom(
        to: *mut c_void,
        length: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_length: *mut socklen_t
    ) -> ssize_t;
    forking::resolve: recvmsg(message: *mut msghdr, flags: c_int) -> ssize_t;
    forking::resolve: read(to: *mut c_void, length: size_t) -> ssize_t;
    forking::resolve: readv(parts: *const iovec, count: c_int) -> ssize_t;
    forking::resolve: send(from: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    forking::resolve: sendto(
        from: *const c_void,
        length: size_t,
        flags: c_int,
        to: *const sockaddr,
        to_length: socklen_t
    ) -> ssize_t;
    forking::resolve: sendmsg(message: *const msghdr, flags: c_int) -> ssize_t;
    forking::resolve: write(from: *const c_void, length: size_t) -> ssize_t;
    forking::resolve: writev(parts: *const iovec, count: c_int) -> ssize_t;
    table::resolve: shutdown(how: c_int) -> c_int;
    table::resolve: getpeername(address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    table::resolve: getsockname(address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    table::resolve: setsockopt(
        level: c_int,
        option: c_int,
        value: *const c_void,
        length: socklen_t
    ) -> c_int;
    table::resolve: getsockopt(
        level: c_int,
        option: c_int,
        value: *mut c_void,
        length: *mut socklen_t
    ) -> c_int;
}

/// `F_GETFD` and `F_SETFD` concern the program's own descriptor, not the socket behind it.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let own = matches!(command, libc::F_GETFD | libc::F_SETFD);
    let backing =
        if own { table::Backing::kernel(fd, table::Pending::None) } else { table::resolve(fd) };
    // SAFETY: the program passes the arguments that the function of the C library requires.
    unsafe { (backing.calls().fcntl)(backing.fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(
    out: c_int,
    file: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    const CHUNK: usize = 1 << 16;
    let backing = forking::resolve(out);
    if backing.kind == Kind::Kernel {
        // SAFETY: the program passes the arguments that the function of the C library requires.
        return unsafe { (other_calls().sendfile)(backing.fd, file, offset, count) };
    }
    let mut chunk = vec![0u8; CHUNK.min(count)];
    let mut total: ssize_t = 0;
    while let left @ 1.. = count - total.cast_unsigned() {
        let want = left.min(CHUNK);
        // SAFETY: the chunk has `want` bytes; `offset` is null or valid. Bytes that could not be
        // sent are read again.
        let sent = unsafe {
            let begin =
                if offset.is_null() { libc::lseek(file, 0, libc::SEEK_CUR) } else { *offset };
            let got = libc::pread(file, chunk.as_mut_ptr().cast(), want, begin);
            let sent = match usize::try_from(got) {
                Ok(0) => break,
                Ok(got) => (backing.calls().write)(backing.fd, chunk.as_ptr().cast(), got),
                Err(_) => got,
            };
            if sent > 0 && offset.is_null() {
                libc::lseek(file, begin + sent as off_t, libc::SEEK_SET);
            } else if sent > 0 {
                *offset = begin + sent as off_t;
            }
            sent
        };
        if sent <= 0 {
            return if total > 0 { total } else { sent };
        }
        total += sent;
    }
    total
}
