//! The replacements of C library functions. Each replaces a shown path by the path of the file in
//! the private folder, and calls the C library.
//!
//! A pointer to unreadable memory as path ends the program, because this library reads the path.
//! Without this library, the kernel would return `EFAULT`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::{mem, ptr};

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::next;
use crate::view::{self, PATH_MAX, PrivateFile};

/// Looks up all functions and the shown paths when the library is loaded, before a signal handler
/// can run. scripts/build-libs.sh names this symbol, so that the linker takes this object file.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = ".init_array"))]
#[used]
#[allow(non_upper_case_globals)] // the name of a symbol
static feroce_sysview_prepare: extern "C" fn() = prepare;

extern "C" fn prepare() {
    next::prepare();
    view::prepare();
}

/// The result of a replacement whose C library function does not exist: failure with `ENOSYS`.
trait Missing {
    const VALUE: Self;
}

impl Missing for c_int {
    const VALUE: Self = -1;
}

impl Missing for ssize_t {
    const VALUE: Self = -1;
}

impl<T> Missing for *mut T {
    const VALUE: Self = ptr::null_mut();
}

fn missing<T: Missing>() -> T {
    // SAFETY: the pointer is to the calling thread's `errno`.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    T::VALUE
}

/// Calls `call` with the path of the private file that is shown at `path`; with `path` itself if no
/// file is shown there.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn with_private_path<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    if path.is_null() {
        return call(path);
    }
    // SAFETY: the caller passes a C string.
    match view::find(unsafe { CStr::from_ptr(path) }.to_bytes()) {
        None => call(path),
        Some(file) => with_path_of(file, path, call),
    }
}

/// A function of its own, because the buffer needs much stack, which a signal handler may not have.
/// Only shown paths need it.
#[cold]
#[inline(never)]
fn with_path_of<R>(
    file: PrivateFile<'_>,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let mut buffer = [0; PATH_MAX];
    // The original path for a path that is too long: there is no such file.
    if file.write(&mut buffer) { call(buffer.as_ptr().cast()) } else { call(path) }
}

/// Changes a returned path in the private folder to the path at which the file is shown.
///
/// # Safety
/// `path` is null or a C string that may be written to.
unsafe fn as_shown(path: *mut c_char) -> *mut c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: the caller passes a C string.
    let text = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    if let Some(shown) = view::shown_at(text) {
        // SAFETY: the end of the string, with its zero byte, is copied to the beginning.
        unsafe { ptr::copy(shown.as_ptr(), path.cast(), shown.len()) };
    }
    path
}

/// Declares functions with a path parameter, at the position of `@`.
macro_rules! replace {
    ($( $name:ident(
        $( $before:ident: $before_type:ty, )* @ $( $after:ident: $after_type:ty ),*
    ) -> $result:ty; )*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(
            $( $before: $before_type, )* path: *const c_char $(, $after: $after_type )*
        ) -> $result {
            type Function = unsafe extern "C" fn(
                $( $before_type, )* *const c_char $(, $after_type )*
            ) -> $result;
            let next = next::$name.get();
            if next.is_null() {
                return missing();
            }
            // SAFETY: the C library's function has this type, and the program passes what the
            // function requires.
            unsafe {
                let next = mem::transmute::<*mut c_void, Function>(next);
                with_private_path(path, |path| next($( $before, )* path $(, $after )*))
            }
        }
    )* };
}

replace! {
    __open_2(@ flags: c_int) -> c_int;
    __open64_2(@ flags: c_int) -> c_int;
    __openat_2(folder: c_int, @ flags: c_int) -> c_int;
    __openat64_2(folder: c_int, @ flags: c_int) -> c_int;
    fopen(@ mode: *const c_char) -> *mut FILE;
    fopen64(@ mode: *const c_char) -> *mut FILE;
    opendir(@) -> *mut DIR;
    scandir(@ list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    scandir64(@ list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    stat(@ to: *mut c_void) -> c_int;
    stat64(@ to: *mut c_void) -> c_int;
    lstat(@ to: *mut c_void) -> c_int;
    lstat64(@ to: *mut c_void) -> c_int;
    fstatat(folder: c_int, @ to: *mut c_void, flags: c_int) -> c_int;
    fstatat64(folder: c_int, @ to: *mut c_void, flags: c_int) -> c_int;
    statx(folder: c_int, @ flags: c_int, mask: c_uint, to: *mut c_void) -> c_int;
    __xstat(version: c_int, @ to: *mut c_void) -> c_int;
    __xstat64(version: c_int, @ to: *mut c_void) -> c_int;
    __lxstat(version: c_int, @ to: *mut c_void) -> c_int;
    __lxstat64(version: c_int, @ to: *mut c_void) -> c_int;
    __fxstatat(version: c_int, folder: c_int, @ to: *mut c_void, flags: c_int) -> c_int;
    __fxstatat64(version: c_int, folder: c_int, @ to: *mut c_void, flags: c_int) -> c_int;
    access(@ mode: c_int) -> c_int;
    eaccess(@ mode: c_int) -> c_int;
    euidaccess(@ mode: c_int) -> c_int;
    faccessat(folder: c_int, @ mode: c_int, flags: c_int) -> c_int;
    readlink(@ to: *mut c_char, size: size_t) -> ssize_t;
    __readlink_chk(@ to: *mut c_char, size: size_t, length: size_t) -> ssize_t;
    readlinkat(folder: c_int, @ to: *mut c_char, size: size_t) -> ssize_t;
    __readlinkat_chk(
        folder: c_int, @ to: *mut c_char, size: size_t, length: size_t
    ) -> ssize_t;
    chdir(@) -> c_int;
    getxattr(@ name: *const c_char, to: *mut c_void, size: size_t) -> ssize_t;
    lgetxattr(@ name: *const c_char, to: *mut c_void, size: size_t) -> ssize_t;
    listxattr(@ to: *mut c_char, size: size_t) -> ssize_t;
    llistxattr(@ to: *mut c_char, size: size_t) -> ssize_t;
    statfs(@ to: *mut c_void) -> c_int;
    statfs64(@ to: *mut c_void) -> c_int;
    statvfs(@ to: *mut c_void) -> c_int;
    statvfs64(@ to: *mut c_void) -> c_int;
}

/// Declares the variants of `open`: a folder or none, a path, flags, and a mode that callers may
/// omit. An omitted mode has the arbitrary value of its register, and the C library ignores it.
macro_rules! replace_open {
    ($( $name:ident($( $folder:ident )?); )*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(
            $( $folder: c_int, )? path: *const c_char, flags: c_int, mode: mode_t
        ) -> c_int {
            type Function = unsafe extern "C" fn(
                $( replace_open!(@type $folder), )? *const c_char, c_int, ...
            ) -> c_int;
            let next = next::$name.get();
            if next.is_null() {
                return missing();
            }
            // SAFETY: as above.
            unsafe {
                let next = mem::transmute::<*mut c_void, Function>(next);
                with_private_path(path, |path| next($( $folder, )? path, flags, mode))
            }
        }
    )* };
    (@type $folder:ident) => { c_int };
}

replace_open! {
    open();
    open64();
    openat(folder);
    openat64(folder);
}

/// Declares functions that return a path.
macro_rules! replace_result {
    ($( $name:ident(
        $( @ $path:ident $(,)? )? $( $after:ident: $after_type:ty ),*
    ); )*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(
            $( $path: *const c_char, )? $( $after: $after_type ),*
        ) -> *mut c_char {
            type Function = unsafe extern "C" fn(
                $( replace_result!(@type $path), )? $( $after_type ),*
            ) -> *mut c_char;
            let next = next::$name.get();
            if next.is_null() {
                return missing();
            }
            // SAFETY: as above; the result is in the program's buffer or a new one.
            unsafe {
                let next = mem::transmute::<*mut c_void, Function>(next);
                as_shown(replace_result!(@call next $( $path )?; $( $after ),*))
            }
        }
    )* };
    (@type $path:ident) => { *const c_char };
    (@call $next:ident $path:ident; $( $after:ident ),*) => {
        with_private_path($path, |path| $next(path $(, $after )*))
    };
    (@call $next:ident; $( $after:ident ),*) => { $next($( $after ),*) };
}

replace_result! {
    realpath(@path, to: *mut c_char);
    __realpath_chk(@path, to: *mut c_char, length: size_t);
    canonicalize_file_name(@path);
    getcwd(to: *mut c_char, size: size_t);
    __getcwd_chk(to: *mut c_char, size: size_t, length: size_t);
}
