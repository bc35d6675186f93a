//! Ctrl-C and SIGTERM as a flag that loops look at. An `unsafe` room of one screen.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on the first Ctrl-C or SIGTERM is noted; the second one kills, as if nobody had asked. Blocking
/// calls are not restarted.
pub fn watch() {
    // SAFETY: all zeros is a value of the plain structure, and the handler only stores to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESETHAND;
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Whether one came.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
