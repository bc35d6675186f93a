//! `rpoll` and `rselect`: sockets and other descriptors side by side.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;

use libc::{fd_set, pollfd};

use super::configuration::Configuration;
use super::wait::{self, Until};
use super::{Socket, table};

/// A descriptor that a program polls, and its socket if it is one.
type Polled = Option<Arc<Socket>>;

/// Fills in what is ready; how many descriptors are.
///
/// # Errors
/// EINTR, and what `poll` says.
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
        let waiting = Waiting::begin(&sockets, own);
        let mut slept_on = waiting.arm(fds);
        let ready = look(fds, &sockets)?; // What came meanwhile is not announced.
        if ready > 0 || until.is_over() {
            return Ok(ready);
        }
        slept_on.push(wait::readable(own));
        wait::sleep(&mut slept_on, until)?;
    }
}

/// Threads are told of changes of these sockets as long as this is there.
struct Waiting<'a> {
    sockets: &'a [Polled],
    own: RawFd,
}

impl<'a> Waiting<'a> {
    fn begin(sockets: &'a [Polled], own: RawFd) -> Self {
        for socket in sockets.iter().flatten() {
            socket.with(|awaited| awaited.waiters().add(own));
        }
        Self { sockets, own }
    }

    /// What to sleep on.
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

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        for socket in self.sockets.iter().flatten() {
            socket.with(|awaited| {
                awaited.waiters().remove(self.own);
                awaited.disarm();
            });
        }
    }
}

/// What is ready now.
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

/// Sets of descriptors, any of which may be missing.
#[derive(Debug, Clone, Copy)]
pub struct Sets {
    /// What may be read, written, or has something else to say.
    pub sets: [*mut fd_set; 3],
}

impl Sets {
    const EVENTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, 0];

    /// What makes a descriptor a member again.
    const READY: [i16; 3] = [
        libc::POLLIN | libc::POLLHUP,
        libc::POLLOUT,
        !(libc::POLLIN | libc::POLLOUT | libc::POLLHUP),
    ];

    /// What the sets ask for, of descriptors below `count`.
    ///
    /// # Safety
    /// Those that are there are valid.
    pub unsafe fn polled(&self, count: c_int) -> Vec<pollfd> {
        let mut polled = Vec::new();
        for fd in 0..count.clamp(0, libc::FD_SETSIZE.try_into().unwrap_or(c_int::MAX)) {
            let (mut events, mut member) = (0, false);
            for (&set, event) in self.sets.iter().zip(Self::EVENTS) {
                // SAFETY: the caller says so.
                if !set.is_null() && unsafe { libc::FD_ISSET(fd, set) } {
                    (events, member) = (events | event, true);
                }
            }
            if member {
                polled.push(pollfd { fd, events, revents: 0 });
            }
        }
        polled
    }

    /// Leaves in the sets what is ready; how many members they have.
    ///
    /// # Safety
    /// Those that are there are valid.
    pub unsafe fn fill(&self, polled: &[pollfd]) -> usize {
        let mut members = 0;
        for (&set, ready) in self.sets.iter().zip(Self::READY) {
            if set.is_null() {
                continue;
            }
            let was_member = |fd| {
                // SAFETY: the caller says so.
                unsafe { libc::FD_ISSET(fd, set) }
            };
            let members_now: Vec<_> = polled
                .iter()
                .filter(|polled| was_member(polled.fd) && polled.revents & ready != 0)
                .collect();
            // SAFETY: as above.
            unsafe {
                libc::FD_ZERO(set);
                members_now.iter().for_each(|polled| libc::FD_SET(polled.fd, set));
            }
            members += members_now.len();
        }
        members
    }
}
