//! The signal mask of a thread that starts another.

use std::mem::MaybeUninit;

/// Signals of faults, which the kernel raises in the thread that commits one. If the thread blocks
/// the signal, the kernel ends the process without running the program's handler (`force_sig` in
/// Linux `kernel/signal.c`).
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Restores the signal mask of this thread when it is dropped.
#[derive(Debug)]
pub struct Blocked {
    /// `None` if the mask could not be changed.
    before: Option<libc::sigset_t>,
    /// A mask belongs to its thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

/// Blocks all signals but [`FAULTS`] in this thread. A thread that is started meanwhile inherits
/// this.
pub fn block_all() -> Blocked {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigfillset` initialises `all`, which `sigdelset` changes. The third argument has
    // room for a mask, and `pthread_sigmask` initialises it if it returns 0.
    let before = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        FAULTS.iter().for_each(|signal| _ = libc::sigdelset(all.as_mut_ptr(), *signal));
        let code = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        (code == 0).then(|| before.assume_init())
    };
    Blocked { before, _not_send: std::marker::PhantomData }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let Some(before) = &self.before else { return };
        // SAFETY: `before` is the mask that `pthread_sigmask` returned; a null pointer requests no
        // mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
    }
}
