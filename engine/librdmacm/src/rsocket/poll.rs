//! `rpoll` and `rselect`: polls rsockets together with other descriptors.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;

use libc::pollfd;

use super::configuration::Configuration;
use super::wait::{self, Until};
use super::{Socket, table};

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
        let ready = look(fds, &sockets)?;
        if ready > 0 || until.is_over() {
            return Ok(ready);
        }
        if wait::now() > polling {
            break;
        }
    }
    let own = wait::own()?;
    loop {
        let waiting = PendingEvent::begin(&sockets, own);
        let mut slept_on = waiting.arm(fds);
        let ready = look(fds, &sockets)?; // events before arming send no notification
        if ready > 0 || until.is_over() {
            return Ok(ready);
        }
        slept_on.push(wait::readable(own));
        wait::sleep(&mut slept_on, until)?;
    }
}

/// Registers this thread as a waiter of the sockets; drop unregisters it.
struct PendingEvent<'a> {
    sockets: &'a [Polled],
    own: RawFd,
}

impl<'a> PendingEvent<'a> {
    fn begin(sockets: &'a [Polled], own: RawFd) -> Self {
        for socket in sockets.iter().flatten() {
            socket.with(|awaited| awaited.waiters().add(own));
        }
        Self { sockets, own }
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

impl Drop for PendingEvent<'_> {
    fn drop(&mut self) {
        for socket in self.sockets.iter().flatten() {
            socket.with(|awaited| {
                awaited.waiters().remove(self.own);
                awaited.disarm();
            });
        }
    }
}

/// Sets `revents` for what is ready now. Returns the number of ready descriptors.
fn look(fds: &mut [pollfd], sockets: &[Polled]) -> Result<usize, c_int> {
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
        wait::look(&mut others)?;
        let places = fds.iter_mut().zip(sockets).filter(|(_, socket)| socket.is_none());
        for ((polled, _), other) in places.zip(&others) {
            polled.revents = other.revents;
        }
    }
    Ok(fds.iter().filter(|polled| polled.revents != 0).count())
}
