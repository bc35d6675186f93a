//! Communication management of a process: one endpoint, and per device a thread that serves QP 1.
//!
//! A [`ConnectionManager`] owns the [`Endpoint`] under a lock, and commands hold the lock briefly.
//! The caller's thread sends the MADs that they produce (`gsi_qp.rs`). The device's thread passes
//! received MADs to the endpoint and wakes at the endpoint's deadlines (`gsi.rs`). Addresses are
//! resolved by the caller's thread ([`ConnectionManager::resolve`]) or by a pool
//! ([`ConnectionManager::start_resolve`]), not under the lock: a neighbour may take seconds to
//! answer.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use feroce_wire::PathMtu;

use super::addressing::PATH_TIMEOUT;
use super::cm_channel::{CmEventSink, DeviceChannel, Shared, lock};
use super::gsi::Gsi;
use super::{Device, DeviceError, DeviceUser, Path};
use crate::cm::{self, CmConfig, CmError, CmId, DeviceKey, Endpoint, Unresolved};
use crate::net::{self, Gid};
use crate::pool::Pool;
use crate::port::kind::{PortOwner, ServicePort};
use crate::sys;
use crate::time::{Clock, Duration, Instant};

/// How often a caller that waits for MADs to be sent looks.
const FLUSH_INTERVAL: std::time::Duration = std::time::Duration::from_micros(20);
/// Maximum number of addresses being resolved concurrently.
const RESOLVERS: usize = 16;

/// How long requests wait for a listener after a device is attached. Programs prepare their buffers
/// in between; on a busy host perftest needed more than half a second.
pub(crate) const EARLY_REQUEST_TIME: Duration = Duration::from_secs(1);

/// Communication management of a process: RDMA CM over QP 1 of its devices.
///
/// An identifier ([`CmId`]) is a listener, a connection or a SIDR exchange. Commands take the
/// [`Endpoint`] in [`ConnectionManager::with`]; results arrive as [events](cm::Event). Dropping the
/// manager sends the peers no DREQ: call [`ConnectionManager::close`] first.
///
/// ```
/// use std::net::{IpAddr, SocketAddr};
///
/// use feroce_engine::cm::{CmConfig, DeviceKey, Event, EventKind, Parameters, QpKind};
/// use feroce_engine::device::{CmEventQueue, ConnectionManager, Device, DeviceConfig, QpInit};
/// use feroce_engine::wire::cm::PortSpace;
///
/// /// A manager with one device, and its events.
/// fn manager(device: &Device) -> (ConnectionManager, CmEventQueue) {
///     let events = CmEventQueue::new().expect("a descriptor");
///     let manager = ConnectionManager::new(CmConfig::default(), events.sink()).expect("random");
///     manager.attach(DeviceKey(0), device).expect("QP 1 is free");
///     (manager, events)
/// }
///
/// /// Waits for an event of `kind`. Asynchronous programs use `stream::CmEventStream`.
/// fn wait(events: &CmEventQueue, kind: EventKind) -> Event {
///     loop {
///         match events.poll_event() {
///             Some(event) if event.kind == kind => return event,
///             Some(event) => println!("{event:?}"), // addresses and routes are resolved
///             None => std::thread::yield_now(),
///         }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let [near, far] = Device::open_pair(&DeviceConfig::default())?; // two ends in one process
/// let (near_cq, far_cq) = (near.create_cq(16)?, far.create_cq(16)?);
/// let mut active_qp = near.alloc_pd().create_qp(&QpInit::new(&near_cq))?;
/// let mut passive_qp = far.alloc_pd().create_qp(&QpInit::new(&far_cq))?;
/// let (active, active_events) = manager(&near);
/// let (passive, passive_events) = manager(&far);
/// let server = SocketAddr::from(([10, 0, 0, 2], 7471));
///
/// // The passive side listens.
/// passive.with(|cm, now| {
///     let listener = cm.create(PortSpace::Tcp, QpKind::Rc);
///     cm.bind(listener, server)?;
///     cm.listen(listener, 0, now)
/// })?;
///
/// // The active side resolves the address, then connects.
/// let path = active.resolve(IpAddr::from([0; 4]), server);
/// let local = Parameters {
///     qpn: active_qp.qpn(),
///     responder_resources: 16, // READs and atomics in each direction; 0 by default
///     initiator_depth: 16,
///     retry_count: 7,
///     rnr_retry_count: 7,
///     ..Parameters::default()
/// };
/// let connection = active.with(|cm, now| {
///     let id = cm.create(PortSpace::Tcp, QpKind::Rc);
///     cm.resolve_address(id, None, server)?;
///     cm.address_resolved(id, path)?;
///     cm.resolve_route(id)?;
///     cm.route_resolved(id, Ok(()))?;
///     cm.connect(id, &local, b"private data", now)?;
///     Ok::<_, feroce_engine::cm::CmError>(id)
/// })?;
///
/// // The passive side connects its QP and accepts; the active side does the same and confirms.
/// let request = wait(&passive_events, EventKind::ConnectRequest);
/// passive_qp.connect_cm(&passive.with(|cm, _| cm.qp_parameters(request.id))?)?;
/// let own = Parameters { qpn: passive_qp.qpn(), ..request.parameters };
/// passive.with(|cm, now| cm.accept(request.id, &own, b"", now))?;
/// wait(&active_events, EventKind::ConnectResponse);
/// active_qp.connect_cm(&active.with(|cm, _| cm.qp_parameters(connection))?)?;
/// active.with(|cm, _| cm.establish(connection, b""))?;
/// wait(&passive_events, EventKind::Established);
///
/// // Dropping a manager tells the peers nothing; closing it disconnects.
/// active.close(std::time::Duration::from_secs(1));
/// # Ok(())
/// # }
/// ```
pub struct ConnectionManager {
    shared: Arc<Shared>,
    resolvers: Pool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for ConnectionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionManager").finish_non_exhaustive()
    }
}

/// Why a device cannot serve connections.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// QP 1 or one of its resources cannot be made.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system has no thread or descriptor left.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl ConnectionManager {
    /// Makes a manager without devices, whose events go to `sink`.
    ///
    /// # Errors
    /// When the kernel supplies no randomness.
    pub fn new(config: CmConfig, sink: CmEventSink) -> io::Result<Self> {
        sys::random_u128()?;
        let random = || {
            // The call above succeeded, so later calls succeed.
            let [a, b, c, d, ..] = sys::random_u128().unwrap_or_default().to_ne_bytes();
            u32::from_ne_bytes([a, b, c, d])
        };
        let shared = Shared {
            endpoint: Mutex::new(Endpoint::new(config, random)),
            clock: Clock::start(),
            channels: Mutex::default(),
            known_paths: Mutex::default(),
            sink,
            stop: AtomicBool::new(false),
        };
        let resolvers = Pool::new("feroce-cm-paths", RESOLVERS);
        Ok(Self { shared: Arc::new(shared), resolvers, threads: Mutex::default() })
    }

    /// Takes QP 1 of `device` and starts its thread.
    ///
    /// # Errors
    /// See [`AttachError`]; [`DeviceError::Qpn`] if QP 1 is already taken.
    pub fn attach(&self, key: DeviceKey, device: &Device) -> Result<(), AttachError> {
        let (channel, cq) = DeviceChannel::new(device)?;
        let gsi = Gsi::new(key, &channel, cq);
        let shared = Arc::clone(&self.shared);
        {
            let mut endpoint = lock(&shared.endpoint);
            endpoint.add_device(key, device.attributes().node_guid);
            if let Some(owner) = &device.inner.port_owner {
                endpoint.add_registry(Box::new(HostServices(Arc::clone(owner))));
            }
            endpoint.hold_early_requests(shared.clock.now() + EARLY_REQUEST_TIME);
        }
        let user: Arc<dyn DeviceUser> = shared.clone();
        lock(&device.inner.users).push(Arc::downgrade(&user));
        lock(&shared.channels).insert(key, channel);
        lock(&shared.known_paths).forget(); // The new device may be the better one.
        let thread = feroce_threads::spawn("feroce-cm", move || gsi.serve(&shared))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Calls `act` with the endpoint and the time; then sends the MADs and delivers the events that
    /// result.
    pub fn with<R>(&self, act: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
        self.shared.with(act)
    }

    /// Resolves the path from `source` to `destination`. An unspecified `source` means any local
    /// address, with the kernel's choice first. Waits for the next hop's Ethernet address if it is
    /// unknown. Call this from a thread in the devices' network namespace.
    ///
    /// # Errors
    /// Why no path was resolved.
    pub fn resolve(&self, source: IpAddr, destination: SocketAddr) -> Result<cm::Path, Unresolved> {
        self.shared.resolve(source, destination, self.shared.clock.now() + PATH_TIMEOUT)
    }

    /// Resolves the path for `id`, which has started address resolution, in another thread, and
    /// reports the result to the endpoint; at once if the path was resolved recently. If the next
    /// hop does not answer, the resolution is repeated until `timeout` has passed. Asynchronous
    /// programs call [`Endpoint::resolve_address`], then this, await `AddrResolved`, and go on with
    /// `resolve_route`, `route_resolved` and `connect`, as the example of [`ConnectionManager`]
    /// does.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start_resolve(
        &self,
        id: CmId,
        source: IpAddr,
        destination: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        if let Some(path) = shared.known_path(source, destination) {
            let _ = shared.with(|endpoint, _| endpoint.address_resolved(id, Ok(path)));
            return Ok(());
        }
        let end = shared.clock.now() + timeout;
        self.resolvers.run(Box::new(move || {
            let is_bound = || shared.with(|endpoint, _| endpoint.state(id).is_ok());
            let resolved = loop {
                if shared.stop.load(Ordering::Acquire) || !is_bound() {
                    return; // Destroyed meanwhile.
                }
                match shared.resolve(source, destination, end) {
                    Err(Unresolved::NoAnswer) if shared.clock.now() < end => {}
                    resolved => break resolved,
                }
            };
            let _ = shared.with(|endpoint, _| endpoint.address_resolved(id, resolved));
        }))
    }

    /// Ends communication management: destroys all identifiers, and waits until the MADs to their
    /// peers are sent, at most for `timeout`.
    pub fn close(&self, timeout: Duration) {
        self.with(Endpoint::destroy_all);
        self.flush(timeout);
    }

    /// Waits until as many MADs are sent as have been queued so far, at most for `timeout`. A
    /// process that is killed, or calls `_exit`, loses the MADs that are not sent yet.
    pub fn flush(&self, timeout: Duration) {
        let end = self.shared.clock.now() + timeout;
        let with_count = |channel: &Arc<DeviceChannel>| {
            (Arc::clone(channel), channel.queued.load(Ordering::Acquire))
        };
        let channels: Vec<_> = lock(&self.shared.channels).values().map(with_count).collect();
        for (channel, queued) in channels {
            let is_unsent = || channel.finished.load(Ordering::Acquire) < queued;
            while is_unsent() && self.shared.clock.now() < end {
                channel.send_waiting();
                std::thread::sleep(FLUSH_INTERVAL);
            }
        }
    }
}

/// The ports of the host, which the process that owns the device's port gives out.
#[derive(Debug)]
struct HostServices(Arc<dyn PortOwner>);

impl HostServices {
    fn service(port: cm::ServicePort) -> ServicePort {
        let cm::ServicePort { space, port, ip, reuse, v6_only } = port;
        ServicePort { space: space.number(), port, ip, reuse, v6_only }
    }
}

impl cm::ServiceRegistry for HostServices {
    fn claim(&mut self, port: cm::ServicePort) -> Result<(), CmError> {
        let claimed = self.0.claim(Self::service(port));
        claimed.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => CmError::AddressInUse,
            _ => CmError::AddressNotAvailable,
        })
    }

    fn release(&mut self, port: cm::ServicePort) {
        self.0.release(Self::service(port));
    }
}

/// A local address as the source of a path.
struct LocalAddress {
    device: DeviceKey,
    channel: Arc<DeviceChannel>,
    local: IpAddr,
    /// GID index of the address.
    index: u32,
    /// Index of its interface; 0 for a port without one.
    interface: u32,
}

impl LocalAddress {
    fn is_up(&self) -> bool {
        self.interface == 0
            || net::Interface::by_index(self.interface).is_ok_and(|found| found.is_usable())
    }

    fn resolve(&self, destination: IpAddr, timeout: Duration) -> Result<cm::Path, Unresolved> {
        let path = Path::new(Gid::from(destination), self.index);
        let ah = self.channel.device.alloc_pd().create_ah_within(&path, timeout);
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
        for channel in lock(&self.shared.channels).values() {
            channel.wake().signal();
        }
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join(); // A thread that panicked has printed its message already.
        }
        // Frees QP 1 of each device, although a thread may still resolve a path for this manager.
        lock(&self.shared.channels).clear();
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
            let timeout = end.saturating_since(self.clock.now());
            return self.resolve_loopback(source, destination.ip(), timeout);
        }
        let since = (self.host_changes(), self.clock.now());
        let path = self.look_up(source, destination, end)?;
        lock(&self.known_paths).insert(source, destination, since, path);
        Ok(path)
    }

    /// Returns the path from `source` to `destination` if it was resolved recently, and the host
    /// has not changed since.
    fn known_path(&self, source: IpAddr, destination: SocketAddr) -> Option<cm::Path> {
        let (changes, now) = (self.host_changes(), self.clock.now());
        lock(&self.known_paths).get(source, destination, changes, now)
    }

    fn look_up(
        &self,
        source: IpAddr,
        destination: SocketAddr,
        end: Instant,
    ) -> Result<cm::Path, Unresolved> {
        let bound = if cm::is_any(source) { net::chosen_source(destination) } else { Some(source) };
        let sources = self.sources(destination.ip());
        let is_bound = |source: &LocalAddress| Some(source.local) == bound;
        let mut sources = match sources.iter().any(is_bound) {
            true => sources.into_iter().filter(is_bound).collect(),
            false if cm::is_any(source) => sources,
            false => Vec::new(),
        };
        let mut why = Unresolved::NoDevice;
        for source in sources.drain(..) {
            let timeout = end.saturating_since(self.clock.now());
            match source.resolve(destination.ip(), timeout) {
                Ok(path) => return Ok(path),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Resolves the path of a device to itself, as `cma_resolve_loopback` of the kernel: the device
    /// with the address `source`, or the first one with an active port. Its address is of the
    /// family of `destination`, a routable one if it has such.
    fn resolve_loopback(
        &self,
        source: IpAddr,
        destination: IpAddr,
        timeout: Duration,
    ) -> Result<cm::Path, Unresolved> {
        let is_local = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let mut own = self.sources(destination);
        if !cm::is_any(source) {
            own.retain(|own| own.local == source);
        }
        own.sort_by_key(|own| (own.device, is_local(own.local)));
        let active = own.iter().find(|own| own.is_up());
        let own = active.or(own.first()).ok_or(Unresolved::NoDevice)?;
        own.resolve(own.local, timeout)
    }

    /// Returns the local addresses of the family of `destination`.
    fn sources(&self, destination: IpAddr) -> Vec<LocalAddress> {
        let channels = lock(&self.channels);
        let sources = channels.iter().flat_map(|(&device, channel)| {
            channel.device.gids().into_iter().map(move |(index, entry)| LocalAddress {
                device,
                channel: Arc::clone(channel),
                local: entry.gid.ip(),
                index,
                interface: entry.interface,
            })
        });
        sources.filter(|source| source.local.is_ipv4() == destination.is_ipv4()).collect()
    }
}
