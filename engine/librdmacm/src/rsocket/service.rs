//! The service thread: handles what happens while no call runs. It starts with the first socket
//! that needs it.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::socket::{State, StreamSocket};
use super::wait::{self, Awaited, lock};
use super::{Socket, table};
use crate::errno;

/// Interval at which silent connections are checked.
const TICK: Duration = Duration::from_secs(5);
const EVENTS: c_int = 16;

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

fn control(epoll: RawFd, operation: c_int, fd: RawFd) -> Result<(), c_int> {
    let data = u64::from(fd.cast_unsigned());
    let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: data };
    // SAFETY: the event is valid during the call.
    if unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) } == 0 {
        return Ok(());
    }
    Err(errno::last())
}

/// Closes a socket and removes it from the table.
pub fn close(socket: &Arc<Socket>) {
    table::remove(socket.fd());
    if let Ok(epoll) = epoll() {
        // the descriptor may never have been watched
        let _ = control(epoll, libc::EPOLL_CTL_DEL, socket.fd());
    }
    match &**socket {
        Socket::Stream(stream) => stream.close(),
        Socket::Datagram(datagram) => datagram.close(),
    }
}

fn run(epoll: RawFd) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS as usize];
    let timeout = c_int::try_from(TICK.as_millis()).unwrap_or(c_int::MAX);
    loop {
        // SAFETY: the kernel writes at most `EVENTS` events.
        let ready = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS, timeout) };
        for event in events.iter().take(usize::try_from(ready).unwrap_or(0)) {
            let data = event.u64;
            let Ok(fd) = RawFd::try_from(data) else { continue };
            match table::find(fd).as_deref() {
                Some(Socket::Stream(stream)) => stream.on_readable(),
                Some(Socket::Datagram(datagram)) => datagram.on_readable(),
                None => _ = control(epoll, libc::EPOLL_CTL_DEL, fd),
            }
        }
        for socket in table::all() {
            if let Socket::Stream(stream) = &*socket {
                stream.keep_alive();
            }
        }
    }
}

impl StreamSocket {
    /// Sends a keep-alive if the program enabled it, or if a call waits for a silent peer: when the
    /// peer process was killed together with its software RNIC, nothing else reports that the peer
    /// is gone.
    fn keep_alive(&self) {
        let mut inner = self.lock();
        let waited_for = !inner.waiters.is_empty();
        let period = inner.options.keep_alive_period().or(waited_for.then_some(TICK));
        let Some(period) = period else { return };
        if !matches!(inner.state, State::Open(_)) || inner.quiet_since.elapsed() < period {
            return;
        }
        inner.quiet_since = wait::now();
        if let Some(link) = inner.link() {
            link.keep_alive();
            link.queues().arm(); // waiters learn about a failed keep-alive
        }
        inner.progress();
    }
}
