//! The service thread: handles what happens while no call runs. It starts with the first socket
//! that needs it.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::wait::lock;
use crate::errno;

/// Interval at which silent connections are checked.
pub const TICK: Duration = Duration::from_secs(5);
const EVENTS: c_int = 16;

/// What the thread calls.
#[derive(Debug, Clone, Copy)]
pub struct Handlers {
    /// Handles a readable descriptor. Returns false if no socket has this descriptor.
    pub on_readable: fn(RawFd) -> bool,
    /// Called after each round of events, at least every [`TICK`].
    pub on_tick: fn(),
}

static HANDLERS: OnceLock<Handlers> = OnceLock::new();

/// Sets what the thread calls. Must precede the first [`watch`]; later calls have no effect.
pub fn set_handlers(handlers: Handlers) {
    HANDLERS.get_or_init(|| handlers);
}

/// The epoll descriptor of the thread, and the process that the thread belongs to.
static SERVICE: Mutex<Option<(u32, OwnedFd)>> = Mutex::new(None);

/// Returns the epoll descriptor. Starts the thread if this process has none, as after a fork.
fn epoll() -> Result<RawFd, c_int> {
    let mut service = lock(&SERVICE);
    if let Some((process, epoll)) = &*service
        && *process == std::process::id()
    {
        return Ok(epoll.as_raw_fd());
    }
    // SAFETY: the function takes no pointers.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(errno::last());
    }
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    let thread = std::thread::Builder::new().name("feroce-rsocket".to_owned());
    thread.spawn(move || run(fd)).map_err(|_| libc::EAGAIN)?;
    *service = Some((std::process::id(), owned));
    Ok(fd)
}

/// Makes the thread handle events on this descriptor.
pub fn watch(fd: RawFd) -> Result<(), c_int> {
    control(epoll()?, libc::EPOLL_CTL_ADD, fd)
}

/// Makes the thread ignore this descriptor, which it may never have watched.
pub fn unwatch(fd: RawFd) {
    if let Ok(epoll) = epoll() {
        let _ = control(epoll, libc::EPOLL_CTL_DEL, fd);
    }
}

fn control(epoll: RawFd, operation: c_int, fd: RawFd) -> Result<(), c_int> {
    let data = u64::from(fd.cast_unsigned());
    let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: data };
    // SAFETY: the event is valid during the call.
    if unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) } == 0 {
        return Ok(());
    }
    Err(errno::last())
}

fn run(epoll: RawFd) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS as usize];
    let timeout = c_int::try_from(TICK.as_millis()).unwrap_or(c_int::MAX);
    loop {
        // SAFETY: the kernel writes at most `EVENTS` events.
        let ready = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS, timeout) };
        let Some(handlers) = HANDLERS.get() else { continue };
        for event in events.iter().take(usize::try_from(ready).unwrap_or(0)) {
            let data = event.u64;
            let Ok(fd) = RawFd::try_from(data) else { continue };
            if !(handlers.on_readable)(fd) {
                let _ = control(epoll, libc::EPOLL_CTL_DEL, fd);
            }
        }
        (handlers.on_tick)();
    }
}
