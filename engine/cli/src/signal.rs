//! Ctrl-C and SIGTERM as a flag that loops poll.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn set_flag(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Notes the first Ctrl-C or SIGTERM from now on. The second one has the default action: it ends
/// the process. Blocking system calls are not restarted.
pub fn watch() {
    // SAFETY: all zeros is a value of the plain structure, and the handler only stores to an
    // atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = set_flag as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESETHAND;
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Returns true after a signal.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
