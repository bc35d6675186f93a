//! The C library's own functions, which the replaced functions call.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library.
#[derive(Debug)]
pub struct Next {
    name: &'static str,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// `name` ends with a zero byte.
    const fn new(name: &'static str) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the next function of this name in the search order, after this library; null if the
    /// C library has none. The function is looked up once, usually by [`prepare`].
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Acquire);
        if !found.is_null() {
            return found;
        }
        let name = CStr::from_bytes_with_nul(self.name.as_bytes()).unwrap_or_default();
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }
}

macro_rules! functions {
    ($( $name:ident )*) => {
        $(
            #[allow(non_upper_case_globals)] // the C library's names
            pub static $name: Next = Next::new(concat!(stringify!($name), "\0"));
        )*

        static ALL: &[&Next] = &[$( &$name ),*];
    };
}

functions! {
    __fxstatat __fxstatat64 __getcwd_chk __lxstat __lxstat64 __open64_2 __open_2 __openat64_2
    __openat_2 __readlink_chk __readlinkat_chk __realpath_chk __xstat __xstat64 access
    canonicalize_file_name chdir eaccess euidaccess faccessat fopen fopen64 fstatat fstatat64 getcwd
    getxattr lgetxattr listxattr llistxattr lstat lstat64 open open64 openat openat64 opendir
    readlink readlinkat realpath scandir scandir64 stat stat64 statfs statfs64 statvfs statvfs64
    statx
}

/// Looks all functions up. A signal handler must not be the first to do so.
pub fn prepare() {
    for function in ALL {
        function.get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_exports_every_function() {
        let map = include_str!("../libsysview.map");
        let exported = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
        let exported: Vec<_> = exported.filter(|name| !name.contains([':', '}'])).collect();
        let names: Vec<_> = ALL.iter().map(|next| next.name.trim_end_matches('\0')).collect();
        assert_eq!(exported, names);
    }
}
