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
    feroce_threads::spawn("feroce-rsocket", move || run(fd)).map_err(|_| libc::EAGAIN)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Signals of the process are for the program's threads.
    #[test]
    fn the_thread_blocks_signals() {
        let fd = epoll().expect("a thread");
        assert!(fd >= 0);
        let status = |id: &str| {
            std::fs::read_to_string(format!("/proc/self/task/{id}/status")).unwrap_or_default()
        };
        let find = || {
            let tasks = std::fs::read_dir("/proc/self/task").expect("the kernel shows it");
            let ids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
            ids.map(|id| status(&id)).find(|text| text.starts_with("Name:\tferoce-rsocket"))
        };
        let text = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            find()
        });
        let text = text.expect("the thread has its name");
        let mask = text.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask");
        let mask = u64::from_str_radix(mask.trim(), 16).expect("a number");
        for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGTERM, libc::SIGALRM, libc::SIGCHLD] {
            assert_ne!(mask & 1 << (signal - 1), 0, "signal {signal}: {mask:x}");
        }
    }
}
