//! The daemon: opens the port, runs the switch, and serves the control socket.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use feroce_wire::MacAddr;

use super::admission::Dscps;
use super::client::ClientId;
use super::cm_router::CmRouter;
use super::control;
use super::host::{self, NextHops};
use super::quota::Limits;
use super::switch::Switch;
use crate::device::ports::{self, Filter};
use crate::device::{Addressing, DeviceConfig, OpenError, owner};
use crate::net::{GidEntry, Interface, NetError, Watcher};
use crate::port::PortAttributes;
use crate::port::daemon::protocol::{DaemonStat, Message, Notice};
use crate::port::daemon::{channel, place};
use crate::sys;
use crate::time::{Clock, Duration, Instant};
use crate::wake::EventFd;

/// Turns without a frame before the switch yields its CPU between turns.
const SPINS: u32 = 64;
/// Turns without a frame before the switch sleeps.
const YIELDS: u32 = 512;
/// Turns after the last program was detached.
const LAST_TURNS: u32 = 4;
/// Maximum sleep; bounds the cost of a lost wake-up.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Configuration of a [`Daemon`].
#[derive(Debug, Clone, Default)]
pub struct DaemonConfig {
    /// Directory of the socket; `None` for the usual one: `/run/feroce` of root, `feroce` in the
    /// runtime directory of another user.
    pub directory: Option<PathBuf>,
    /// Group that may use the socket.
    pub group: Option<u32>,
    /// Permissions of the socket; `None`: 0660 with a group, 0600 without.
    pub mode: Option<u32>,
    /// What a user may have.
    pub limits: Limits,
    /// DSCPs that programs may use.
    pub dscps: Dscps,
    /// The switch never sleeps.
    pub polls: bool,
}

/// Why a daemon could not be started.
#[derive(Debug, thiserror::Error)]
pub enum DaemonOpenError {
    /// The port does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The socket cannot be made.
    #[error("cannot make the socket {}: {source}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel's tables could not be read.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A daemon that runs. Dropping it ends it: programs that are attached get
/// [`AsyncEvent::DeviceFatal`](crate::verbs::AsyncEvent::DeviceFatal).
#[derive(Debug)]
pub struct Daemon {
    shared: Arc<Shared>,
    socket: PathBuf,
    /// The control socket, until the daemon is started.
    listener: Option<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
    watcher: Option<Watcher>,
    _owner: Option<owner::Ownership>,
}

/// What the threads of a daemon share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) interface: String,
    switch: Mutex<Switch>,
    /// Threads that wait for the switch.
    waiters: AtomicU32,
    pub(super) addressing: Addressing,
    pub(super) filter: Option<Filter>,
    /// Held while the filter is set.
    pub(super) filtering: Mutex<()>,
    pub(super) hops: Mutex<NextHops>,
    pub(super) limits: Limits,
    pub(super) window_max: Option<u32>,
    pub(super) clock: Clock,
    /// Sockets of the clients, for news.
    pub(super) sockets: Mutex<BTreeMap<ClientId, Arc<OwnedFd>>>,
    stop: AtomicBool,
    /// Wakes the switch.
    wake_switch: EventFd,
    /// Wakes the control thread.
    pub(super) wake_control: EventFd,
    polls: bool,
}

impl Daemon {
    /// Opens `interface` with the kind of port that `device` chooses. `device` must have one core.
    /// Starts no thread, so that the caller can drop privileges before [`Self::start`].
    ///
    /// # Errors
    /// See [`DaemonOpenError`].
    pub fn open(
        interface: &str,
        device: &DeviceConfig,
        config: DaemonConfig,
    ) -> Result<Self, DaemonOpenError> {
        if device.cores != 1 || device.pfc.is_on() {
            let rule = "a daemon has one core and no flow control (`pfc`)";
            return Err(OpenError::Config(rule).into());
        }
        let opened = ports::open_own(interface, device)?;
        let system = |action| move |source| DaemonOpenError::System { action, source };
        let directory = config.directory.clone().unwrap_or_else(place::own_directory);
        let socket = place::socket_in(&directory, interface).map_err(system("read /proc"))?;
        let failed = |source| DaemonOpenError::Socket { path: socket.clone(), source };
        let listener = control::listen(&directory, &socket, &config).map_err(failed)?;
        let random = sys::random_u128().map_err(system("get random numbers"))?;
        let [drawn, seed] = [random, random >> 64].map(low_word);
        let guid = node_guid(opened.ports[0].attributes().mac);
        let router = CmRouter::new(guid, random_words(seed));
        let port = opened.ports.into_iter().next().expect("one core");
        let mut switch = Switch::new(port, router, (config.limits, config.dscps), drawn);
        let gids = opened.addressing.gids().into_iter().map(|(_, entry)| entry).collect();
        switch.tables.host.set_gids(gids);
        let eventfd = || EventFd::new().map_err(system("make an eventfd"));
        let shared = Arc::new(Shared {
            interface: interface.to_owned(),
            switch: Mutex::new(switch),
            waiters: AtomicU32::new(0),
            addressing: opened.addressing,
            filter: opened.filter,
            filtering: Mutex::default(),
            hops: Mutex::default(),
            limits: config.limits,
            window_max: opened.window_max,
            clock: Clock::start(),
            sockets: Mutex::default(),
            stop: AtomicBool::new(false),
            wake_switch: eventfd()?,
            wake_control: eventfd()?,
            polls: config.polls,
        });
        host::set_filter(&shared)?;
        Ok(Self {
            shared,
            socket,
            listener: Some(listener),
            threads: Vec::new(),
            watcher: None,
            _owner: opened.owner,
        })
    }

    /// Serves programs from now on. Call this once.
    ///
    /// # Errors
    /// [`DaemonOpenError::System`] if a thread cannot be started, [`DaemonOpenError::Net`].
    pub fn start(&mut self) -> Result<(), DaemonOpenError> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        self.watcher = host::follow(&self.shared)?;
        let started = self.start_threads(listener);
        started.map_err(|source| DaemonOpenError::System { action: "start a thread", source })
    }

    fn start_threads(&mut self, listener: OwnedFd) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.threads.push(feroce_threads::spawn("feroce-switch", move || shared.run_switch())?);
        let shared = Arc::clone(&self.shared);
        let serve = move || control::Control::new(shared, listener).run();
        self.threads.push(feroce_threads::spawn("feroce-control", serve)?);
        Ok(())
    }

    /// Returns true if a thread of the daemon has ended by a panic: programs have a port no more.
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Path of the control socket.
    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// Properties of the port.
    pub fn port(&self) -> PortAttributes {
        self.shared.with(|switch| switch.attributes().clone())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.watcher.take());
        self.shared.notify(&Notice::Closing);
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake_switch.signal();
        self.shared.wake_control.signal();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // A thread that panicked has printed its message already.
        }
        // The messages to the peers of programs that were attached.
        for _ in 0..LAST_TURNS {
            self.shared.lock_switch().turn(self.shared.now());
        }
        // Gone already, or a daemon of another interface remains.
        let _ = std::fs::remove_file(&self.socket);
        let _ = self.socket.parent().map(std::fs::remove_dir);
    }
}

/// The node GUID of a device with this Ethernet address: the EUI-64 made from it.
fn node_guid(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Random words from `seed`, for identifiers of connections.
fn random_words(seed: u32) -> impl FnMut() -> u32 + Send + 'static {
    move || sys::random_u128().map_or(seed, low_word)
}

fn low_word(random: u128) -> u32 {
    let [a, b, c, d, ..] = random.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

impl Shared {
    /// Calls `act` with the switch, between two turns.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Switch) -> R) -> R {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut switch = self.lock_switch();
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        let result = act(&mut switch);
        drop(switch);
        self.wake_switch.signal();
        result
    }

    fn lock_switch(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The GID table.
    pub(super) fn gids(&self) -> Vec<GidEntry> {
        self.addressing.gids().into_iter().map(|(_, entry)| entry).collect()
    }

    /// Index of the interface; `None` if the kernel has none.
    pub(super) fn index(&self) -> Option<u32> {
        Interface::read(&self.interface).ok().map(|interface| interface.index)
    }

    /// Returns true if `ip` is an address of the host.
    pub(super) fn is_own(&self, ip: IpAddr) -> bool {
        self.addressing.is_own(ip.into())
    }

    /// Tells all clients. One that does not read its messages misses it.
    pub(super) fn notify(&self, notice: &Notice) {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, socket) in &*sockets {
            let sent = channel::send(socket.as_fd(), &Message::Notice(notice.clone()), &[]);
            if let Err(error) = sent {
                tracing::debug!(?id, %error, "a client misses news");
            }
        }
    }

    /// Statistics, with the programs of `user`; of all with `None`.
    pub(super) fn stat(&self, user: Option<u32>) -> DaemonStat {
        self.with(|switch| {
            let port = switch.port_stats();
            DaemonStat {
                port: switch.attributes().kind.clone(),
                rx_frames: port.rx_frames,
                rx_bytes: port.rx_bytes,
                rx_dropped: port.rx_dropped,
                rx_undelivered: switch.tables.undelivered,
                tx_frames: port.tx_frames,
                tx_bytes: port.tx_bytes,
                programs: switch.tables.programs(user),
            }
        })
    }

    /// Runs the switch until the daemon ends.
    fn run_switch(&self) {
        let (mut fds, mut scratch) = (Vec::new(), Vec::new());
        let mut idle = 0;
        while !self.is_stopping() {
            if self.waiters.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let moved = self.lock_switch().turn(self.now());
            idle = if moved > 0 { 0 } else { u32::saturating_add(idle, 1) };
            if self.polls || idle < SPINS {
                std::hint::spin_loop();
            } else if idle < YIELDS {
                std::thread::yield_now();
            } else {
                self.sleep(&mut fds, &mut scratch);
                idle = 0;
            }
        }
    }

    fn sleep(&self, fds: &mut Vec<i32>, scratch: &mut Vec<libc::pollfd>) {
        fds.clear();
        fds.push(self.wake_switch.as_fd().as_raw_fd());
        let mut switch = self.lock_switch();
        let is_quiet = switch.arm(fds);
        let deadline = switch.next_deadline();
        drop(switch);
        if is_quiet {
            let until = deadline.map_or(MAX_SLEEP, |at| at.saturating_since(self.now()));
            sys::poll_readable(fds, scratch, Some(until.min(MAX_SLEEP)));
        }
        self.wake_switch.clear();
        self.lock_switch().disarm();
    }
}
