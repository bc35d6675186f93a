//! A client's session with its daemon: sends calls and receives answers and notices.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use feroce_wire::MacAddr;
use rustix::net::Shutdown;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::channel;
use super::error::DaemonError;
use super::protocol::{Answer, Attached, Call, Message, Notice, Refusal, Request, VERSION};
use crate::memory::frame_ring::RingHandle;
use crate::net::GidEntry;
use crate::time::{Clock, Duration};

/// Maximum time to wait for an answer, apart from the time for a next hop. A daemon that takes
/// longer is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits for the next message of the daemon. The kernel restarts no call with a timeout after a
/// signal of the program, not even with SA_RESTART: QEMU has timers that send signals.
fn receive_despite_signals(
    socket: &OwnedFd,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<channel::Received<Message>>> {
    let clock = Clock::start();
    let end = clock.now() + ANSWER_TIMEOUT;
    loop {
        match channel::receive(socket, buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted && clock.now() < end => {}
            received => return received,
        }
    }
}

/// A session. A thread reads the messages of the daemon.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    socket: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    last_call: u64,
    /// Calls that wait for an answer (`None`), and answers that the caller has not taken yet.
    calls: BTreeMap<u64, Option<Result<Answer, Refusal>>>,
    gids: Vec<GidEntry>,
    neighbours: BTreeMap<(Option<u16>, IpAddr), MacAddr>,
    /// Number of notices with changed addresses, of neighbours or of this host.
    moves: u64,
    is_closed: bool,
    is_gone: bool,
    rings: Vec<RingHandle>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The daemon refused the request.
    #[error(transparent)]
    Refused(Refusal),
    /// The daemon has ended, or does not answer.
    #[error("the daemon (`feroce up`) is gone: {0}")]
    Gone(#[source] io::Error),
}

impl From<CallError> for io::Error {
    /// The error number that verbs and RDMA CM return for the error.
    fn from(error: CallError) -> Self {
        let errno = match error {
            CallError::Gone(source) => return source,
            CallError::Refused(Refusal::System { errno, .. }) => errno,
            CallError::Refused(Refusal::InUse) => libc::EADDRINUSE,
            CallError::Refused(Refusal::NotAvailable) => libc::EADDRNOTAVAIL,
            CallError::Refused(Refusal::Quota(what)) => {
                tracing::warn!("the daemon allows this user no more {what}");
                libc::ENOMEM
            }
            CallError::Refused(refusal) => {
                tracing::warn!("{refusal}");
                libc::EINVAL
            }
        };
        Self::from_raw_os_error(errno)
    }
}

impl Session {
    /// Attaches to the daemon at `path`. Also returns the descriptors of the port.
    ///
    /// # Errors
    /// [`DaemonError::NotThere`] if no daemon listens at `path`.
    pub fn attach(path: &Path) -> Result<(Self, Attached, [OwnedFd; 3]), DaemonError> {
        let at = || path.to_owned();
        let failed = |source| DaemonError::Socket { path: at(), source };
        let socket = channel::connect(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                DaemonError::NotThere { path: at() }
            }
            _ => failed(source),
        })?;
        // Programs must not hang if the daemon is stopped (SIGSTOP).
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))
            .map_err(|error| failed(error.into()))?;
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let request = Request::Attach { version: VERSION, program: program.trim().to_owned() };
        channel::send(&socket, &Call { id: 0, request }, &[]).map_err(failed)?;
        let invalid = || failed(io::ErrorKind::InvalidData.into());
        let (mut buffer, mut notice_gids) = (Vec::new(), None);
        let (result, fds) = loop {
            let received = receive_despite_signals(&socket, &mut buffer).map_err(failed)?;
            match received.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))? {
                (Message::Answer { id: 0, result }, fds) => break (result, fds),
                // Notices may come before the answer.
                (Message::Notice(Notice::Gids(gids)), _) => notice_gids = Some(gids),
                (Message::Notice(_), _) => {}
                (Message::Answer { .. }, _) => return Err(invalid()),
            }
        };
        set_socket_timeout(&socket, Timeout::Recv, None).map_err(|error| failed(error.into()))?;
        let attached = match result {
            Ok(Answer::Attached(attached)) => *attached,
            Ok(_) => return Err(invalid()),
            Err(refusal) => {
                return Err(DaemonError::Refused { path: at(), reason: refusal.to_string() });
            }
        };
        let fds = <[OwnedFd; 3]>::try_from(fds).map_err(|_| invalid())?;
        let gids =
            notice_gids.as_ref().unwrap_or(&attached.gids).iter().map(GidEntry::from).collect();
        let state = Mutex::new(State { gids, ..State::default() });
        let shared = Arc::new(Shared { socket, state, changed: Condvar::new() });
        Ok((Self { shared, reader: Mutex::default() }, attached, fds))
    }

    /// Starts the thread that reads. When the daemon ends, the thread marks the other halves of
    /// `rings` as gone.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(&self, rings: Vec<RingHandle>) -> io::Result<()> {
        self.shared.lock().rings = rings;
        let shared = Arc::clone(&self.shared);
        let reader = feroce_threads::spawn("feroce-daemon", move || shared.read())?;
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader);
        Ok(())
    }

    /// Sends a request and waits for the answer, for at most [`ANSWER_TIMEOUT`] and `longer`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(&self, request: Request, longer: Duration) -> Result<Answer, CallError> {
        let gone = || CallError::Gone(io::ErrorKind::NotConnected.into());
        let mut state = self.shared.lock();
        if state.is_gone {
            return Err(gone());
        }
        state.last_call += 1;
        let id = state.last_call;
        channel::send(&self.shared.socket, &Call { id, request }, &[]).map_err(CallError::Gone)?;
        state.calls.insert(id, None);
        let waits = |state: &mut State| !state.is_gone && state.calls.get(&id) == Some(&None);
        let limit = ANSWER_TIMEOUT + longer;
        let (mut state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, limit, waits)
            .unwrap_or_else(PoisonError::into_inner);
        match state.calls.remove(&id).flatten() {
            Some(result) => result.map_err(CallError::Refused),
            None if state.is_gone => Err(gone()),
            None => Err(CallError::Gone(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Sends a request whose only result is success.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn ask(&self, request: Request) -> io::Result<()> {
        Ok(self.call(request, Duration::ZERO).map(|_| ())?)
    }

    /// The local addresses.
    pub fn gids(&self) -> Vec<GidEntry> {
        self.shared.lock().gids.clone()
    }

    /// The Ethernet address of a next hop, if a notice has contained it.
    pub fn neighbour(&self, vlan: Option<u16>, ip: IpAddr) -> Option<MacAddr> {
        self.shared.lock().neighbours.get(&(vlan, ip)).copied()
    }

    /// As [`LinkAddresses::wait_for_move`](crate::port::kind::LinkAddresses::wait_for_move).
    pub fn wait_for_move(&self, seen: u64, timeout: Duration) -> Option<u64> {
        let waits = |state: &mut State| !state.is_closed && !state.is_gone && state.moves == seen;
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), timeout, waits)
            .unwrap_or_else(PoisonError::into_inner);
        (!state.is_closed && !state.is_gone).then_some(state.moves)
    }

    /// Ends [`Self::wait_for_move`].
    pub fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }

    /// Returns true if the daemon has ended.
    pub fn is_gone(&self) -> bool {
        self.shared.lock().is_gone
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.shared.socket, Shutdown::Both);
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reader) = reader {
            let _ = reader.join(); // A thread that panicked has printed its message already.
        }
    }
}

impl Shared {
    /// Locks the state, which is consistent at every point that can panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until the socket is closed.
    fn read(&self) {
        let mut buffer = Vec::new();
        loop {
            match channel::receive(&self.socket, &mut buffer) {
                Ok(Some((message, _))) => self.take(message),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(%error, "the daemon has sent an unknown message");
                }
                Ok(None) | Err(_) => break,
            }
        }
        let mut state = self.lock();
        state.is_gone = true;
        state.rings.iter().for_each(RingHandle::abandon);
        drop(state);
        self.changed.notify_all();
    }

    fn take(&self, message: Message) {
        let mut state = self.lock();
        match message {
            Message::Answer { id, result } => {
                if let Some(answer) = state.calls.get_mut(&id) {
                    *answer = Some(result);
                }
            }
            Message::Notice(Notice::Gids(gids)) => {
                state.gids = gids.iter().map(GidEntry::from).collect();
                state.moves += 1;
            }
            Message::Notice(Notice::Neighbour { vlan, ip, mac }) => {
                state.neighbours.insert((vlan, ip), MacAddr(mac));
                state.moves += 1;
            }
            Message::Notice(Notice::Closing) => tracing::warn!("the daemon (`feroce up`) ends"),
        }
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use nix::sys::pthread::pthread_kill;
    use nix::sys::signal::Signal;
    use rustix::net::{SocketAddrUnix, SocketFlags};

    use super::*;

    /// A daemon takes a while to answer, and the program gets signals meanwhile.
    #[test]
    fn signals_of_the_program_do_not_end_attaching() {
        let handled = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&handled)).unwrap();
        let path = std::env::temp_dir().join(format!("feroce-signals-{}", std::process::id()));
        let listener = channel::socket().unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let program = {
            let path = path.clone();
            std::thread::spawn(move || Session::attach(&path).map(drop))
        };
        let daemon =
            rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).expect("the program");
        for _ in 0..20 {
            pthread_kill(program.as_pthread_t(), Signal::SIGUSR1).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = Message::Answer { id: 0, result: Err(Refusal::InUse) };
        channel::send(&daemon, &refused, &[]).unwrap();
        let attached = program.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(handled.load(std::sync::atomic::Ordering::Relaxed));
        assert!(matches!(attached, Err(DaemonError::Refused { .. })), "{attached:?}");
    }
}
