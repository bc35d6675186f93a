//! Starts Feroce's threads. They run in processes of other programs, so they handle no signals of
//! the program and do not run on the CPUs that the program's threads are bound to.
//!
//! Product code starts no thread in another way; `tests/tests/tidy.rs` checks this.

mod cpus;
mod placement;
mod signals;

use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

pub use cpus::CpuSet;
pub use placement::{Placement, cpus, pin};

/// Starts a thread called `name`, at most 15 bytes that begin with `feroce-`.
///
/// All signals but those of faults are blocked in the thread: the kernel delivers signals of the
/// process to threads of the program, and a signal that the program has blocked stays pending for
/// its signalfd. `SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`, `SIGTRAP` and `SIGSYS` are not blocked,
/// so that a fault of this thread reaches the program's handler.
///
/// The thread starts on the CPUs that [`Placement`] chooses, whatever the caller is bound to. It
/// stays there if the program binds threads later: see [`spawn_placed`].
///
/// # Errors
/// The system's error if it starts no thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    spawn_placed(name, |_| run())
}

/// As [`spawn`], for a thread that updates its placement as the program binds its threads.
///
/// # Errors
/// The system's error if it starts no thread.
pub fn spawn_placed<T: Send + 'static>(
    name: &str,
    run: impl FnOnce(Placement) -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    debug_assert!(is_own_name(name), "{name}");
    let _blocked = signals::block_all();
    Builder::new().name(name.to_owned()).spawn(move || {
        let mut placement = Placement::default();
        placement.update();
        run(placement)
    })
}

/// As [`spawn`], for a thread that ends with `scope`.
///
/// # Errors
/// The system's error if it starts no thread.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    debug_assert!(is_own_name(name), "{name}");
    let _blocked = signals::block_all();
    Builder::new().name(name.to_owned()).spawn_scoped(scope, move || {
        Placement::default().update();
        run()
    })
}

/// Returns true for the name of a thread of Feroce. The kernel keeps 15 bytes of a name.
fn is_own_name(name: &str) -> bool {
    name.starts_with("feroce-") && name.len() <= 15
}
