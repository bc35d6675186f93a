//! The functions of the C library that this library replaces, and those of rsockets.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::sync::OnceLock;

use libc::{
    fd_set, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
};

/// Declares a table with one function per field, and its constructors.
macro_rules! tables {
    ($( $real:ident, $ours:ident: fn($( $type:ty ),*) -> $result:ty; )*) => {
        /// The socket calls of the C library or of rsockets.
        #[derive(Clone, Copy)]
        pub struct Calls { $( pub $real: unsafe extern "C" fn($( $type ),*) -> $result, )* }

        unsafe extern "C" { $( fn $ours($( _: $type ),*) -> $result; )* }

        /// The functions of rsockets.
        pub const RSOCKETS: Calls = Calls { $( $real: $ours, )* };

        /// Finds the functions of the C library.
        fn load() -> Calls {
            Calls { $( $real: {
                let name = concat!(stringify!($real), "\0");
                // SAFETY: the C library exports the function with this type.
                unsafe {
                    std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn($( $type ),*) -> $result,
                    >(next(name))
                }
            }, )* }
        }
    };
}

tables! {
    socket, rsocket: fn(c_int, c_int, c_int) -> c_int;
    bind, rbind: fn(c_int, *const sockaddr, socklen_t) -> c_int;
    listen, rlisten: fn(c_int, c_int) -> c_int;
    accept, raccept: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    connect, rconnect: fn(c_int, *const sockaddr, socklen_t) -> c_int;
    recv, rrecv: fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    recvfrom, rrecvfrom:
        fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    recvmsg, rrecvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t;
    read, rread: fn(c_int, *mut c_void, size_t) -> ssize_t;
    readv, rreadv: fn(c_int, *const iovec, c_int) -> ssize_t;
    send, rsend: fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
    sendto, rsendto: fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    sendmsg, rsendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t;
    write, rwrite: fn(c_int, *const c_void, size_t) -> ssize_t;
    writev, rwritev: fn(c_int, *const iovec, c_int) -> ssize_t;
    poll, rpoll: fn(*mut pollfd, nfds_t, c_int) -> c_int;
    select, rselect: fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    shutdown, rshutdown: fn(c_int, c_int) -> c_int;
    close, rclose: fn(c_int) -> c_int;
    getpeername, rgetpeername: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    getsockname, rgetsockname: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    setsockopt, rsetsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    getsockopt, rgetsockopt: fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    fcntl, rfcntl: fn(c_int, c_int, c_long) -> c_int;
}

/// Functions that only the C library has.
pub struct OtherCalls {
    /// `dup2`
    pub dup2: unsafe extern "C" fn(c_int, c_int) -> c_int,
    /// `sendfile`
    pub sendfile: unsafe extern "C" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t,
}

/// Returns the next function of this name in the search order, after this library.
fn next(name: &str) -> *mut c_void {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // No usable C library. A message would need `write`, one of the missing functions.
        std::process::abort();
    }
    found
}

/// Returns the socket calls of the C library.
pub fn kernel() -> &'static Calls {
    static LOADED: OnceLock<Calls> = OnceLock::new();
    LOADED.get_or_init(load)
}

/// Returns the other functions of the C library.
pub fn other_calls() -> &'static OtherCalls {
    static LOADED: OnceLock<OtherCalls> = OnceLock::new();
    // SAFETY: the C library exports the functions with these types.
    LOADED.get_or_init(|| unsafe {
        OtherCalls {
            dup2: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, c_int) -> c_int>(
                next("dup2\0"),
            ),
            sendfile: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t,
            >(next("sendfile\0")),
        }
    })
}
