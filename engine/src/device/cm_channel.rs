//! Shared by the connection manager and the threads of QP 1: the endpoint, and a channel per
//! device.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::follow::TRUST;
use super::gsi_qp::{GsiQp, Resolutions};
use super::{CompletionQueue, Device, DeviceError, DeviceInner, DeviceUser};
use crate::cm::{self, DeviceKey, Endpoint, Event, Outgoing};
use crate::time::{Clock, Instant};
use crate::wake::EventFd;

/// Receives events in order. It is called under the endpoint's lock, so it must neither block nor
/// call the manager.
pub type CmEventSink = Box<dyn Fn(Event) + Send + Sync>;

pub(super) struct Shared {
    pub(super) endpoint: Mutex<Endpoint>,
    pub(super) clock: Clock,
    pub(super) channels: Mutex<BTreeMap<DeviceKey, Arc<DeviceChannel>>>,
    pub(super) known_paths: Mutex<KnownPaths>,
    pub(super) sink: CmEventSink,
    pub(super) stop: AtomicBool,
}

/// The channel between the endpoint and QP 1 of a device.
pub(super) struct DeviceChannel {
    pub(super) device: Device,
    pub(super) qp: Mutex<GsiQp>,
    /// MADs to send. The thread that takes one holds the lock of `qp`.
    waiting: Mutex<VecDeque<Outgoing>>,
    resolutions: Arc<Resolutions>,
    /// Until when the device's thread sleeps, in nanoseconds of the endpoint's time; 0 while it is
    /// awake. Changed under the endpoint's lock when the thread begins to sleep.
    sleeps_until: AtomicU64,
    /// Number of MADs that were queued.
    pub(super) queued: AtomicUsize,
    /// Number of them that were sent or dropped.
    pub(super) finished: Arc<AtomicUsize>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl DeviceChannel {
    /// Takes QP 1 of `device`. Returns its channel with the CQ of its receives.
    pub(super) fn new(device: &Device) -> Result<(Arc<Self>, CompletionQueue), DeviceError> {
        let (qp, cq) = GsiQp::new(device)?;
        let channel = Self {
            device: device.clone(),
            resolutions: qp.resolutions(),
            finished: qp.finished(),
            qp: Mutex::new(qp),
            waiting: Mutex::default(),
            sleeps_until: AtomicU64::new(0),
            queued: AtomicUsize::new(0),
        };
        Ok((Arc::new(channel), cq))
    }

    /// Wakes the device's thread.
    pub(super) fn wake(&self) -> &EventFd {
        &self.resolutions.wake
    }

    /// Sends the MADs that wait. If the port has no room for all, the device's thread tries again.
    pub(super) fn send_waiting(&self) {
        let is_sent = lock(&self.qp).send_all(|| lock(&self.waiting).pop_front());
        if !is_sent {
            self.wake().signal();
        }
    }

    /// Sends the MADs whose paths have been resolved, and those that wait. Returns false if the
    /// port has no room for all.
    pub(super) fn send_resolved(&self) -> bool {
        let mut qp = lock(&self.qp);
        // These MADs go in front of later ones, in their order.
        let resolved = qp.take_resolved().into_iter().rev();
        resolved.for_each(|outgoing| lock(&self.waiting).push_front(outgoing));
        qp.send_all(|| lock(&self.waiting).pop_front())
    }

    /// The device's thread begins to sleep until the deadline of the endpoint. Returns the
    /// deadline.
    pub(super) fn begin_sleep(&self, endpoint: &Endpoint) -> Option<Instant> {
        let deadline = endpoint.next_deadline();
        let until = deadline.map_or(u64::MAX, |due| due.as_nanos().max(1));
        self.sleeps_until.store(until, Ordering::Relaxed);
        deadline
    }

    /// The device's thread is awake.
    pub(super) fn end_sleep(&self) {
        self.sleeps_until.store(0, Ordering::Relaxed);
    }

    /// Wakes the device's thread if it would sleep beyond `deadline`.
    fn wake_before(&self, deadline: Instant) {
        if deadline.as_nanos() < self.sleeps_until.load(Ordering::Relaxed) {
            self.wake().signal();
        }
    }
}

impl Shared {
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
        let mut endpoint = lock(&self.endpoint);
        let result = act(&mut endpoint, self.clock.now());
        let mut senders: Vec<Arc<DeviceChannel>> = Vec::new();
        {
            let channels = lock(&self.channels);
            while let Some(outgoing) = endpoint.transmit() {
                let Some(channel) = channels.get(&outgoing.device) else { continue };
                channel.queued.fetch_add(1, Ordering::AcqRel);
                lock(&channel.waiting).push_back(outgoing);
                if !senders.iter().any(|known| Arc::ptr_eq(known, channel)) {
                    senders.push(Arc::clone(channel));
                }
            }
            if let Some(deadline) = endpoint.next_deadline() {
                channels.values().for_each(|channel| channel.wake_before(deadline));
            }
        }
        while let Some(event) = endpoint.event() {
            (self.sink)(event);
        }
        drop(endpoint);
        senders.iter().for_each(|channel| channel.send_waiting());
        result
    }

    /// A number that changes with the host's addresses, routes and links.
    pub(super) fn host_changes(&self) -> u64 {
        let changes = |channel: &Arc<DeviceChannel>| {
            channel.device.inner.host_changes.load(Ordering::Acquire)
        };
        lock(&self.channels).values().map(changes).sum()
    }
}

impl DeviceUser for Shared {
    /// Each identifier with a path through the device gets an event.
    fn device_lost(&self, device: &DeviceInner) {
        let is_its =
            |channel: &DeviceChannel| std::ptr::eq(&raw const **channel.device.inner, device);
        let key = lock(&self.channels).iter().find(|(_, of)| is_its(of)).map(|(key, _)| *key);
        if let Some(key) = key {
            self.with(|endpoint, _| endpoint.remove_device(key));
        }
    }

    fn listeners(&self) -> usize {
        lock(&self.endpoint).listeners()
    }
}

/// Paths that were resolved since the last change of the host's addresses, routes and links.
/// Programs connect to few peers, many times.
#[derive(Debug, Default)]
pub(super) struct KnownPaths {
    /// [`Shared::host_changes`] before the first of the paths was resolved.
    changes: u64,
    /// By source and destination, with the time of resolution.
    paths: BTreeMap<(IpAddr, SocketAddr), (Instant, cm::Path)>,
}

impl KnownPaths {
    /// Maximum number of paths.
    const MAX: usize = 256;

    fn key(source: IpAddr, mut destination: SocketAddr) -> (IpAddr, SocketAddr) {
        destination.set_port(0);
        (source, destination)
    }

    /// Returns the path, if it was resolved less than [`TRUST`] before `now` and the host has not
    /// changed since.
    pub(super) fn get(
        &self,
        source: IpAddr,
        destination: SocketAddr,
        changes: u64,
        now: Instant,
    ) -> Option<cm::Path> {
        let (at, path) = self.paths.get(&Self::key(source, destination))?;
        (self.changes == changes && now.saturating_since(*at) < TRUST).then_some(*path)
    }

    /// Adds a path that was resolved after `changes` was read.
    pub(super) fn insert(
        &mut self,
        source: IpAddr,
        destination: SocketAddr,
        (changes, now): (u64, Instant),
        path: cm::Path,
    ) {
        if self.changes != changes || self.paths.len() >= Self::MAX {
            self.forget();
            self.changes = changes;
        }
        self.paths.insert(Self::key(source, destination), (now, path));
    }

    /// Forgets all paths.
    pub(super) fn forget(&mut self) {
        self.paths.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use feroce_wire::PathMtu;

    const ANY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

    fn address(last: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], port))
    }

    fn path(last: u8) -> cm::Path {
        cm::Path {
            device: DeviceKey(0),
            local: ANY,
            remote: address(last, 0).ip(),
            mtu: PathMtu::Mtu1024,
            hop_limit: 64,
            traffic_class: 0,
        }
    }

    #[test]
    fn paths_are_known_until_the_host_changes_or_they_are_old() {
        let (mut known, start) = (KnownPaths::default(), Instant::from_nanos(1));
        known.insert(ANY, address(1, 7), (5, start), path(1));
        known.insert(ANY, address(2, 7), (5, start), path(2));
        assert_eq!(known.get(ANY, address(1, 8), 5, start), Some(path(1)), "any port");
        assert_eq!(known.get(ANY, address(3, 7), 5, start), None);
        assert_eq!(known.get(address(9, 0).ip(), address(1, 7), 5, start), None);
        assert_eq!(known.get(ANY, address(1, 7), 6, start), None, "the host has changed");
        let last = start + (TRUST - Duration::from_nanos(1));
        assert_eq!(known.get(ANY, address(2, 7), 5, last), Some(path(2)));
        assert_eq!(known.get(ANY, address(2, 7), 5, start + TRUST), None);
        // A path from after the change replaces those from before.
        known.insert(ANY, address(1, 7), (6, start), path(1));
        assert_eq!(known.get(ANY, address(1, 7), 6, start), Some(path(1)));
        assert_eq!(known.get(ANY, address(2, 7), 6, start), None);
        known.forget();
        assert_eq!(known.get(ANY, address(1, 7), 6, start), None);
    }

    #[test]
    fn the_number_of_known_paths_is_limited() {
        let (mut known, now) = (KnownPaths::default(), Instant::from_nanos(1));
        for port in 0..2 * KnownPaths::MAX {
            let source = IpAddr::from(u32::try_from(port).unwrap().to_be_bytes());
            known.insert(source, address(1, 7), (0, now), path(1));
            assert_eq!(known.get(source, address(1, 7), 0, now), Some(path(1)));
            assert!(known.paths.len() <= KnownPaths::MAX);
        }
    }
}
