//! The daemon: opens the port, runs the switch, and serves the control socket.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::cm_router::CmRouter;
use super::config::DaemonConfig;
use super::shared::Shared;
use super::switch::Switch;
use super::{control, host, listener};
use crate::device::{DeviceConfig, OpenError, owner, ports};
use crate::net::{NetError, Watcher};
use crate::port::PortAttributes;
use crate::port::daemon::protocol::Notice;
use crate::port::daemon::socket_path;
use crate::sys;
use crate::time::Clock;
use crate::wake::EventFd;

/// Turns of the switch after the last program was detached.
const LAST_TURNS: u32 = 4;

/// Why a daemon could not be started.
#[derive(Debug, thiserror::Error)]
pub enum DaemonOpenError {
    /// The port cannot be opened.
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

/// A daemon that runs. The process must ignore SIGPIPE, as Rust programs do. Dropping the daemon
/// ends it: programs that are attached get
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
        let directory = config.directory.clone().unwrap_or_else(socket_path::own_directory);
        let socket = socket_path::socket_in(&directory, interface).map_err(system("read /proc"))?;
        let failed = |source| DaemonOpenError::Socket { path: socket.clone(), source };
        let listener = listener::listen(&directory, &socket, &config).map_err(failed)?;
        let random = sys::random_u128().map_err(system("get random numbers"))?;
        let [slice_choice, seed] = [random, random >> 64].map(low_word);
        let guid = u64::from_be_bytes(opened.ports[0].attributes().mac.eui64());
        let router = CmRouter::new(guid, random_words(seed));
        let port = opened.ports.into_iter().next().expect("one core");
        let mut switch = Switch::new(port, router, (config.limits, config.dscps), slice_choice);
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
            is_lost: AtomicBool::new(false),
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

    /// Returns true if a thread of the daemon has ended by a panic: programs no longer have a port.
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Returns true if the interface is gone, or if another program has taken its frames: drop the
    /// daemon, so that its programs hear of it.
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost()
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
        // Send the messages that end the connections of the detached programs.
        for _ in 0..LAST_TURNS {
            self.shared.lock_switch().turn(self.shared.now());
        }
        // Errors: the socket is gone already; the directory has sockets of other daemons.
        let _ = std::fs::remove_file(&self.socket);
        let _ = self.socket.parent().map(std::fs::remove_dir);
    }
}

/// Random words for transaction IDs. Without random numbers from the kernel, `seed`.
fn random_words(seed: u32) -> impl FnMut() -> u32 + Send + 'static {
    move || sys::random_u128().map_or(seed, low_word)
}

fn low_word(random: u128) -> u32 {
    let [a, b, c, d, ..] = random.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
