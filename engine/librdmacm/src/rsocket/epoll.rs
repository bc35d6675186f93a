//! `repoll_create`, `repoll_ctl` and `repoll_wait`: epoll for rsockets together with other
//! descriptors. The functions return what epoll's return: -1 and `errno` for an error, where
//! rdma-core returns the error number, which looks like a count to a caller of `repoll_wait`.
//! Reports are level-triggered, as rdma-core's; EPOLLONESHOT is obeyed.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use libc::{epoll_event, pollfd};

use super::wait::{self, Waiters};
use super::{poll, table};
use crate::errno;
use crate::outcome::return_code;

/// Events that `poll` has with the same numbers: all but the flags.
const EVENTS: u32 = 0x3fff;

/// Events that are reported whether the program wants them or not.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();

/// A set of descriptors.
#[derive(Debug)]
struct Set {
    _fd: OwnedFd,
    state: Mutex<Members>,
}

/// What the program waits for on a descriptor.
#[derive(Debug, Clone, Copy)]
struct Member {
    /// Wanted events and flags.
    events: u32,
    /// The program's data.
    data: u64,
    /// Reported once with EPOLLONESHOT. As in the kernel, nothing is reported until the program
    /// changes the member, not even an error.
    has_fired: bool,
}

#[derive(Debug, Default)]
struct Members {
    entries: BTreeMap<RawFd, Member>,
    /// Threads in `repoll_wait`, woken when the entries change.
    waiters: Waiters,
    is_closed: bool,
}

/// The sets of the process by descriptor.
static SETS: RwLock<BTreeMap<RawFd, Arc<Set>>> = RwLock::new(BTreeMap::new());

fn find(fd: RawFd) -> Option<Arc<Set>> {
    SETS.read().unwrap_or_else(PoisonError::into_inner).get(&fd).cloned()
}

fn eventfd(flags: c_int) -> Result<OwnedFd, c_int> {
    // SAFETY: the function takes no pointers.
    let fd = unsafe { libc::eventfd(0, flags) };
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    if fd < 0 { Err(errno::last()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

/// Closes a set and wakes the threads that wait on it. Returns false if the descriptor is not that
/// of a set.
pub fn close(fd: RawFd) -> bool {
    let set = SETS.write().unwrap_or_else(PoisonError::into_inner).remove(&fd);
    if let Some(set) = &set {
        let mut members = wait::lock(&set.state);
        members.is_closed = true;
        members.waiters.wake();
    }
    set.is_some()
}

#[unsafe(no_mangle)]
extern "C" fn repoll_create(flags: c_int) -> c_int {
    let made = || {
        if flags & !(libc::EPOLL_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(libc::EINVAL);
        }
        let fd = eventfd(flags & libc::EFD_CLOEXEC)?;
        let number = fd.as_raw_fd();
        let set = Arc::new(Set { _fd: fd, state: Mutex::default() });
        SETS.write().unwrap_or_else(PoisonError::into_inner).insert(number, set);
        Ok(number)
    };
    made().unwrap_or_else(|code| return_code(Err(code)))
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: the function takes no pointers.
    table::find(fd).is_some() || unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn repoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let change = || {
        if !is_open(fd) || !is_open(epfd) {
            return Err(libc::EBADF);
        }
        let set = find(epfd).filter(|_| fd != epfd).ok_or(libc::EINVAL)?;
        let wanted = || {
            // SAFETY: the program passes null or a valid event, which may be unaligned.
            let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
            let member = |event: epoll_event| Member {
                events: event.events,
                data: event.u64,
                has_fired: false,
            };
            event.map(member).ok_or(libc::EFAULT)
        };
        let mut members = wait::lock(&set.state);
        let is_member = members.entries.contains_key(&fd);
        match operation {
            libc::EPOLL_CTL_ADD if is_member => return Err(libc::EEXIST),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !is_member => return Err(libc::ENOENT),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                members.entries.insert(fd, wanted()?);
            }
            libc::EPOLL_CTL_DEL => drop(members.entries.remove(&fd)),
            _ => return Err(libc::EINVAL),
        }
        members.waiters.wake();
        Ok(())
    };
    return_code(change())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let collect = || {
        if !is_open(epfd) {
            return Err(libc::EBADF);
        }
        let set = find(epfd).ok_or(libc::EINVAL)?;
        let most = usize::try_from(most).ok().filter(|most| *most > 0).ok_or(libc::EINVAL)?;
        let ready = wait_for(&set, most, timeout)?;
        for (at, event) in ready.iter().enumerate() {
            // SAFETY: the program passes room for `most` events, which may be unaligned.
            unsafe { events.add(at).write_unaligned(*event) };
        }
        Ok(c_int::try_from(ready.len()).unwrap_or(c_int::MAX))
    };
    collect().unwrap_or_else(|code| return_code(Err(code)))
}

/// Removes the thread's descriptor from the waiters of a set on drop.
struct Waiting<'a>(&'a Set, RawFd);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        wait::lock(&self.0.state).waiters.remove(self.1);
    }
}

/// Waits until members of the set are ready and returns at most `most` of their events.
fn wait_for(set: &Set, most: usize, timeout: c_int) -> Result<Vec<epoll_event>, c_int> {
    let until = wait::Until::milliseconds(timeout);
    let changed = eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?;
    wait::lock(&set.state).waiters.add(changed.as_raw_fd());
    let _waiting = Waiting(set, changed.as_raw_fd());
    loop {
        let mut polled = {
            let members = wait::lock(&set.state);
            if members.is_closed {
                return Err(libc::EBADF);
            }
            // A member without events is polled: errors and hang-ups are always reported.
            let polled = |(fd, member): (&RawFd, &Member)| {
                let events = i16::try_from(member.events & EVENTS).expect("14 bits");
                pollfd { fd: *fd, events, revents: 0 }
            };
            let waiting = members.entries.iter().filter(|(_, member)| !member.has_fired);
            waiting.map(polled).collect::<Vec<_>>()
        };
        polled.push(wait::readable(changed.as_raw_fd()));
        poll::poll(&mut polled, until.left())?;
        let has_changed = polled.pop().is_some_and(|changed| changed.revents != 0);
        let ready = report(set, &polled, most);
        if !ready.is_empty() || !has_changed && until.is_over() {
            return Ok(ready);
        }
        let mut count = [0u8; 8];
        // SAFETY: the kernel writes at most eight bytes; the descriptor is nonblocking.
        unsafe { libc::read(changed.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

/// Returns the events of members that are ready. Another thread may have reported or changed a
/// member since it was polled. Descriptors that are closed leave the set, as in the kernel.
fn report(set: &Set, polled: &[pollfd], most: usize) -> Vec<epoll_event> {
    let mut members = wait::lock(&set.state);
    let mut ready = Vec::new();
    for polled in polled.iter().filter(|polled| polled.revents != 0) {
        if polled.revents & libc::POLLNVAL != 0 && !is_open(polled.fd) {
            members.entries.remove(&polled.fd);
            continue;
        }
        let Some(member) = members.entries.get_mut(&polled.fd) else { continue };
        let revents = u32::from(polled.revents.cast_unsigned());
        let events = revents & (member.events & EVENTS | ALWAYS);
        if member.has_fired || events == 0 {
            continue;
        }
        ready.push(epoll_event { events, u64: member.data });
        member.has_fired = member.events & libc::EPOLLONESHOT.cast_unsigned() != 0;
        if ready.len() == most {
            break;
        }
    }
    ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const DATA: u64 = 0x1234_5678_9abc;

    fn ctl(set: c_int, operation: c_int, fd: c_int, events: c_int) -> c_int {
        let mut event = epoll_event { events: events.cast_unsigned(), u64: DATA };
        // SAFETY: the event is valid.
        let code = unsafe { repoll_ctl(set, operation, fd, &raw mut event) };
        if code == 0 { 0 } else { errno::last() }
    }

    fn wait(set: c_int, timeout: c_int) -> Vec<(u32, u64)> {
        let mut events = [epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: there is room for four events.
        let count = unsafe { repoll_wait(set, events.as_mut_ptr(), 4, timeout) };
        let count = usize::try_from(count).expect("no error");
        events[..count].iter().map(|event| (event.events, event.u64)).collect()
    }

    #[test]
    fn a_ready_descriptor_is_reported_with_its_data() {
        let set = repoll_create(libc::EPOLL_CLOEXEC);
        let (mut here, there) = UnixStream::pair().unwrap();
        let fd = there.as_raw_fd();
        assert_eq!(ctl(set, libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN), libc::ENOENT);
        assert_eq!(ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN), 0);
        assert_eq!(ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN), libc::EEXIST);
        assert_eq!(ctl(set, libc::EPOLL_CTL_ADD, set, libc::EPOLLIN), libc::EINVAL);
        assert_eq!(ctl(fd, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN), libc::EINVAL);
        assert_eq!(ctl(set, libc::EPOLL_CTL_ADD, -1, libc::EPOLLIN), libc::EBADF);
        assert_eq!((wait(set, 0), wait(set, 5)), (vec![], vec![]));
        here.write_all(b"a").unwrap();
        assert_eq!(wait(set, -1), [(1, DATA)]);
        assert_eq!(wait(set, -1), [(1, DATA)], "level-triggered");
        let once = libc::EPOLLIN | libc::EPOLLONESHOT;
        assert_eq!(ctl(set, libc::EPOLL_CTL_MOD, fd, once), 0);
        assert_eq!((wait(set, -1), wait(set, 0)), (vec![(1, DATA)], vec![]));
        assert_eq!(ctl(set, libc::EPOLL_CTL_DEL, fd, 0), 0);
        assert_eq!(wait(set, 0), []);
        assert!(close(set) && !close(set));
    }

    #[test]
    fn a_member_reported_or_changed_since_it_was_polled_is_not_reported() {
        let set = repoll_create(0);
        let (_here, there) = UnixStream::pair().unwrap();
        let fd = there.as_raw_fd();
        let once = libc::EPOLLIN | libc::EPOLLONESHOT;
        assert_eq!(ctl(set, libc::EPOLL_CTL_ADD, fd, once), 0);
        // Two threads have polled the member and found it readable.
        let polled = [pollfd { fd, events: libc::POLLIN, revents: libc::POLLIN }];
        let report = || report(&find(set).unwrap(), &polled, 4).len();
        assert_eq!((report(), report()), (1, 0));
        assert_eq!(ctl(set, libc::EPOLL_CTL_MOD, fd, libc::EPOLLOUT), 0);
        assert_eq!(report(), 0, "changed to wait for something else");
        assert_eq!(ctl(set, libc::EPOLL_CTL_MOD, fd, once), 0);
        assert_eq!(report(), 1, "armed again");
        assert!(close(set));
    }

    #[test]
    fn a_member_without_events_reports_a_hang_up_and_a_closed_one_leaves_the_set() {
        let set = repoll_create(0);
        let (here, there) = UnixStream::pair().unwrap();
        let fd = there.as_raw_fd();
        assert_eq!(ctl(set, libc::EPOLL_CTL_ADD, fd, 0), 0);
        assert_eq!(wait(set, 0), []);
        drop(here);
        let hang_up = (libc::EPOLLHUP.cast_unsigned(), DATA);
        assert_eq!(wait(set, -1), [hang_up]);
        assert_eq!(ctl(set, libc::EPOLL_CTL_MOD, fd, libc::EPOLLONESHOT), 0);
        assert_eq!((wait(set, -1), wait(set, 0)), (vec![hang_up], vec![]));
        let members = || wait::lock(&find(set).unwrap().state).entries.len();
        assert_eq!(ctl(set, libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN), 0);
        // A number that no descriptor has: another test could open the closed one again.
        wait::lock(&find(set).unwrap().state)
            .entries
            .insert(1 << 20, Member { events: 1, data: 0, has_fired: false });
        assert_eq!(members(), 2);
        assert_eq!(wait(set, 0).len(), 1);
        assert_eq!(members(), 1);
        assert!(close(set));
    }

    #[test]
    fn a_change_reaches_a_thread_that_waits() {
        let set = repoll_create(0);
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(b"a").unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(set, -1));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            assert_eq!(ctl(set, libc::EPOLL_CTL_ADD, there.as_raw_fd(), libc::EPOLLIN), 0);
            assert_eq!(waiter.join().unwrap(), [(1, DATA)]);
        });
        assert!(close(set));
    }
}
