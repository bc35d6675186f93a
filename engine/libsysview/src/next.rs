//! The C library's functions, which this library's replacements call (`dlsym(RTLD_NEXT)`).

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Marks a function that the C library lacks. No function has this address.
const ABSENT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// A function of the C library.
#[derive(Debug)]
pub struct NextFunction {
    name: &'static str,
    /// Null before the lookup; [`ABSENT`] if the C library has no such function.
    found: AtomicPtr<c_void>,
}

impl NextFunction {
    /// `name` ends with a zero byte.
    const fn new(name: &'static str) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the next function of this name in the search order, after this library; null if the
    /// C library has none. The first call, usually that of [`prepare`], looks the function up.
    /// Later calls only load the result, and are async-signal-safe.
    pub fn get(&self) -> *mut c_void {
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            let name = CStr::from_bytes_with_nul(self.name.as_bytes()).unwrap_or_default();
            // SAFETY: the name ends with a zero byte.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            if found.is_null() {
                found = ABSENT;
            }
            self.found.store(found, Ordering::Release);
        }
        if found == ABSENT { ptr::null_mut() } else { found }
    }
}

macro_rules! functions {
    ($( $name:ident )*) => {
        $(
            #[allow(non_upper_case_globals)] // the C library's names
            pub static $name: NextFunction = NextFunction::new(concat!(stringify!($name), "\0"));
        )*

        static ALL: &[&NextFunction] = &[$( &$name ),*];
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

/// Looks up all functions, because `dlsym` is not async-signal-safe and a signal handler may call
/// a replacement.
pub fn prepare() {
    for function in ALL {
        function.get();
    }
}

/// Returns true if this process has more privileges than its caller, who also chose its
/// environment (`AT_SECURE`).
pub fn has_gained_privileges() -> bool {
    // SAFETY: the call reads the auxiliary vector, which the kernel made, and has no other effect.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
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

    #[test]
    fn the_lookup_remembers_that_a_function_is_absent() {
        let absent = NextFunction::new("feroce_no_such_function\0");
        assert!(absent.get().is_null());
        assert_eq!(absent.found.load(Ordering::Acquire), ABSENT);
        assert!(absent.get().is_null());

        let present = NextFunction::new("getpid\0");
        let found = present.get();
        assert!(!found.is_null());
        assert_eq!((present.found.load(Ordering::Acquire), present.get()), (found, found));
    }
}
