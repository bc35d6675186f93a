//! `rpoll` and `rselect`: polls rsockets together with other descriptors.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;

use libc::pollfd;

use super::any_socket::Socket;
use super::configuration::Configuration;
use super::table;
use super::wait::{self, Until};

/// The socket of a polled descriptor, if it is an rsocket.
type Polled = Option<Arc<Socket>>;

/// Waits until a descriptor is ready or the timeout expires. Sets `revents` and returns the number
/// of ready descriptors.
///
/// # Errors
/// EINTR, or the error of `poll`.
pub fn poll(fds: &mut [pollfd], timeout: c_int) -> Result<usize, c_int> {
    let until = Until::milliseconds(timeout);
    let sockets: Vec<Polled> = fds.iter().map(|polled| table::find(polled.fd)).collect();
    let polling = wait::now() + Configuration::get().polling_time;
    loop {
        let ready = set_ready(fds, &sockets)?;
        if ready > 0 || until.is_over() {
            return Ok(ready);
        }
        if wait::now() > polling {
            break;
        }
    }
    let eventfd = wait::thread_eventfd()?;
    loop {
        let waiters = WaiterGuard::register(&sockets, eventfd);
        let mut slept_on = waiters.arm(fds);
        let ready = set_ready(fds, &sockets)?; // events before arming send no notification
        if ready > 0 || until.is_over() {
            return Ok(ready);
        }
        slept_on.push(wait::readable(eventfd));
        wait::sleep(&mut slept_on, until)?;
    }
}

/// Registers this thread as a waiter of the sockets; drop unregisters it.
struct WaiterGuard<'a> {
    sockets: &'a [Polled],
    eventfd: RawFd,
}

impl<'a> WaiterGuard<'a> {
    fn register(sockets: &'a [Polled], eventfd: RawFd) -> Self {
        for socket in sockets.iter().flatten() {
            socket.with(|awaited| awaited.waiters().add(eventfd));
        }
        Self { sockets, eventfd }
    }

    /// Arms the sockets and returns the descriptors to sleep on.
    fn arm(&self, fds: &[pollfd]) -> Vec<pollfd> {
        let mut slept_on = Vec::with_capacity(fds.len() + 1);
        for (polled, socket) in fds.iter().zip(self.sockets) {
            match socket {
                None => slept_on.push(pollfd { revents: 0, ..*polled }),
                Some(socket) => {
                    let armed = socket.with(|awaited| awaited.arm());
                    slept_on.extend(armed.into_iter().map(wait::readable));
                }
            }
        }
        slept_on
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        for socket in self.sockets.iter().flatten() {
            socket.with(|awaited| {
                awaited.waiters().remove(self.eventfd);
                awaited.disarm();
            });
        }
    }
}

/// Sets `revents` for what is ready now. Returns the number of ready descriptors.
fn set_ready(fds: &mut [pollfd], sockets: &[Polled]) -> Result<usize, c_int> {
    let mut others: Vec<pollfd> = Vec::new();
    for (polled, socket) in fds.iter_mut().zip(sockets) {
        polled.revents = match socket {
            Some(socket) => socket.with(|awaited| awaited.ready(polled.events)),
            None => {
                others.push(pollfd { revents: 0, ..*polled });
                0
            }
        };
    }
    if !others.is_empty() {
        wait::set_revents(&mut others)?;
        let places = fds.iter_mut().zip(sockets).filter(|(_, socket)| socket.is_none());
        for ((polled, _), other) in places.zip(&others) {
            polled.revents = other.revents;
        }
    }
    Ok(fds.iter().filter(|polled| polled.revents != 0).count())
}
