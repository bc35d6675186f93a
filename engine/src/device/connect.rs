//! Connection management in a process: one endpoint, and for each device a thread that is its QP 1.
//!
//! A [`ConnectionManager`] owns the [`Endpoint`] behind a lock. Commands take the lock for a moment; what they give to be sent goes to the
//! thread of the device, which also feeds what comes in and wakes at the endpoint's deadlines. Addresses are resolved by whoever asks
//! ([`ConnectionManager::resolve`]), or by threads for it ([`ConnectionManager::seek`]), not under the lock: a neighbour may take
//! seconds to answer. What the thread of a device does is in `gsi.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use feroce_wire::PathMtu;

use super::addressing::PATH_TIMEOUT;
use super::gsi::{Found, Gsi};
use super::pool::Pool;
use super::{Device, DeviceError, Path};
use crate::cm::{self, CmConfig, CmId, DeviceKey, Endpoint, Event, Outgoing, Unresolved};
use crate::net::{self, Gid};
use crate::sys;
use crate::time::{Clock, Duration, Instant};
use crate::wake::EventFd;

/// Ways to peers that are looked for at a time.
const SEEKERS: usize = 16;

/// How long requests wait for a listener after a device was attached.
const EARLY: Duration = Duration::from_millis(500);

/// Takes events, in their order. It is called under the endpoint's lock: it must neither block nor call the manager.
pub type CmEventSink = Box<dyn Fn(Event) + Send + Sync>;

/// Connection management of a process.
pub struct ConnectionManager {
    shared: Arc<Shared>,
    seekers: Pool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for ConnectionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionManager").finish_non_exhaustive()
    }
}

pub(super) struct Shared {
    pub(super) endpoint: Mutex<Endpoint>,
    pub(super) clock: Clock,
    lines: Mutex<BTreeMap<DeviceKey, Arc<Line>>>,
    sink: CmEventSink,
    pub(super) stop: AtomicBool,
}

/// A device's way out.
pub(super) struct Line {
    pub(super) device: Device,
    pub(super) waiting: Mutex<VecDeque<Outgoing>>,
    /// Ways that were looked for.
    pub(super) found: Mutex<Vec<Found>>,
    pub(super) wake: EventFd,
    /// MADs that wait, or that the device has not sent yet.
    pub(super) unsent: AtomicUsize,
}

/// Why a device cannot serve connections.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Its QP 1, or what that needs, cannot be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system refused a thread or a descriptor.
    #[error(transparent)]
    System(#[from] io::Error),
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionManager {
    /// A manager without devices, whose events go to `sink`.
    ///
    /// # Errors
    /// When the kernel has no randomness to give.
    pub fn new(config: CmConfig, sink: CmEventSink) -> io::Result<Self> {
        sys::random_u128()?;
        let random = || {
            // It had some a moment ago, and does not run out of it.
            let [a, b, c, d, ..] = sys::random_u128().unwrap_or_default().to_ne_bytes();
            u32::from_ne_bytes([a, b, c, d])
        };
        let shared = Shared {
            endpoint: Mutex::new(Endpoint::new(config, random)),
            clock: Clock::start(),
            lines: Mutex::default(),
            sink,
            stop: AtomicBool::new(false),
        };
        let seekers = Pool::new("feroce-cm-ways", SEEKERS);
        Ok(Self { shared: Arc::new(shared), seekers, threads: Mutex::default() })
    }

    /// Takes QP 1 of `device` and starts its thread. `guid` is the device's node GUID.
    ///
    /// # Errors
    /// See [`AttachError`]; [`DeviceError::Qpn`] if QP 1 is somebody else's.
    pub fn attach(&self, key: DeviceKey, device: &Device, guid: u64) -> Result<(), AttachError> {
        let line = Arc::new(Line {
            device: device.clone(),
            waiting: Mutex::default(),
            found: Mutex::default(),
            wake: EventFd::new()?,
            unsent: AtomicUsize::new(0),
        });
        let gsi = Gsi::new(key, &line)?;
        let shared = Arc::clone(&self.shared);
        {
            let mut endpoint = lock(&shared.endpoint);
            endpoint.add_device(key, guid);
            endpoint.hold_early_requests(shared.clock.now() + EARLY);
        }
        lock(&shared.lines).insert(key, line);
        let thread = std::thread::Builder::new().name("feroce-cm".to_owned());
        let thread = thread.spawn(move || gsi.serve(&shared))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Calls `act` with the endpoint and the time, then sends and tells what follows from it.
    pub fn with<R>(&self, act: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
        self.shared.with(act)
    }

    /// The way from `source` (an unspecified address is any of the devices', the kernel's choice first) to `destination`. Waits
    /// for the next hop to answer, if it is not known. To be called from a thread in the devices' network namespace.
    ///
    /// # Errors
    /// Why there is none.
    pub fn resolve(&self, source: IpAddr, destination: SocketAddr) -> Result<cm::Path, Unresolved> {
        self.shared.resolve(source, destination, self.shared.clock.now() + PATH_TIMEOUT)
    }

    /// Looks for the way that `id` has asked the endpoint for, and tells the endpoint. If the next hop does not answer, it is
    /// asked again until `patience` is over. A thread of its own waits.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn seek(
        &self,
        id: CmId,
        source: IpAddr,
        destination: SocketAddr,
        patience: Duration,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let end = shared.clock.now() + patience;
        self.seekers.run(Box::new(move || {
            let is_wanted = || shared.with(|endpoint, _| endpoint.state(id).is_ok());
            let found = loop {
                if !is_wanted() {
                    return; // Destroyed meanwhile.
                }
                match shared.resolve(source, destination, end) {
                    Err(Unresolved::NoAnswer) if shared.clock.now() < end => {}
                    found => break found,
                }
            };
            let _ = shared.with(|endpoint, _| endpoint.address_resolved(id, found));
        }))
    }

    /// The program ends: its identifiers are destroyed, and what their peers shall hear is sent, if that takes no longer than
    /// `patience`.
    pub fn close(&self, patience: Duration) {
        self.with(Endpoint::destroy_all);
        let end = self.shared.clock.now() + patience;
        let is_unsent = |line: &Arc<Line>| line.unsent.load(Ordering::Acquire) > 0;
        while lock(&self.shared.lines).values().any(is_unsent) && self.shared.clock.now() < end {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// An own address as the begin of a way.
struct Way {
    device: DeviceKey,
    line: Arc<Line>,
    local: IpAddr,
    /// Of its GID.
    index: u32,
}

impl Way {
    fn resolve(&self, destination: IpAddr, patience: Duration) -> Result<cm::Path, Unresolved> {
        let path = Path::new(Gid::from(destination), self.index);
        let ah = self.line.device.alloc_pd().create_ah_within(&path, patience);
        let ah = ah.map_err(|error| unresolved(&error))?;
        let mut mtus = PathMtu::ALL.into_iter().rev();
        let mtu = mtus.find(|mtu| mtu.bytes() <= ah.max_datagram());
        Ok(cm::Path {
            device: self.device,
            local: self.local,
            remote: destination,
            mtu: mtu.ok_or(Unresolved::NotPossible)?,
            hop_limit: 64,
            traffic_class: 0,
        })
    }
}

fn unresolved(error: &DeviceError) -> Unresolved {
    use crate::net::ResolveError;
    match error {
        DeviceError::Path { source: ResolveError::NoRoute { .. }, .. } => Unresolved::NoRoute,
        DeviceError::Path { source: ResolveError::Unresolved { .. }, .. } => Unresolved::NoAnswer,
        _ => Unresolved::NotPossible,
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for line in lock(&self.shared.lines).values() {
            line.wake.signal();
        }
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join(); // A thread that panicked has said so already.
        }
    }
}

impl Shared {
    fn resolve(
        &self,
        source: IpAddr,
        destination: SocketAddr,
        end: Instant,
    ) -> Result<cm::Path, Unresolved> {
        if destination.ip().is_loopback() {
            return Err(Unresolved::NoDevice);
        }
        let wanted =
            if cm::is_any(source) { net::chosen_source(destination) } else { Some(source) };
        let ways = self.ways(destination.ip());
        let is_wanted = |way: &Way| Some(way.local) == wanted;
        let mut ways = match ways.iter().any(is_wanted) {
            true => ways.into_iter().filter(is_wanted).collect(),
            false if cm::is_any(source) => ways,
            false => Vec::new(),
        };
        let mut why = Unresolved::NoDevice;
        for way in ways.drain(..) {
            let patience = end.saturating_since(self.clock.now());
            match way.resolve(destination.ip(), patience) {
                Ok(path) => return Ok(path),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Own addresses of the family of `destination`.
    fn ways(&self, destination: IpAddr) -> Vec<Way> {
        let lines = lock(&self.lines);
        let ways = lines.iter().flat_map(|(&device, line)| {
            line.device.gids().into_iter().map(move |(index, entry)| Way {
                device,
                line: Arc::clone(line),
                local: entry.gid.ip(),
                index,
            })
        });
        ways.filter(|way| way.local.is_ipv4() == destination.is_ipv4()).collect()
    }

    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
        let mut endpoint = lock(&self.endpoint);
        let deadline = endpoint.next_deadline();
        let result = act(&mut endpoint, self.clock.now());
        let lines = lock(&self.lines);
        while let Some(outgoing) = endpoint.transmit() {
            if let Some(line) = lines.get(&outgoing.device) {
                line.unsent.fetch_add(1, Ordering::AcqRel);
                lock(&line.waiting).push_back(outgoing);
                line.wake.signal();
            }
        }
        if endpoint.next_deadline() != deadline {
            lines.values().for_each(|line| line.wake.signal());
        }
        while let Some(event) = endpoint.event() {
            (self.sink)(event);
        }
        result
    }
}
