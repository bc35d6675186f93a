//! Access to sysfs files, for programs that use the library's functions for it.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::size_t;

use crate::errno;

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> c_int {
    // SAFETY: the program passes two C strings.
    let [folder, file] = [folder, file].map(|text| unsafe { CStr::from_ptr(text) });
    let path = Path::new(OsStr::from_bytes(folder.to_bytes()));
    let path = path.join(OsStr::from_bytes(file.to_bytes()));
    let mut text = Vec::new();
    let most = u64::try_from(size).unwrap_or(u64::MAX);
    let read = std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut text));
    if let Err(error) = read {
        errno::set(error.raw_os_error().unwrap_or(libc::EIO));
        return -1;
    }
    // The terminating zero replaces the newline at the end.
    if text.last() == Some(&b'\n') || text.len() == size {
        text.pop();
    }
    let length = text.len();
    text.push(0);
    if text.len() > size {
        errno::set(libc::EINVAL);
        return -1;
    }
    // SAFETY: the program passes a buffer of `size` bytes, and `size` is at least `text.len()`.
    unsafe { buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    c_int::try_from(length).unwrap_or(c_int::MAX)
}
