//! Connection management in a process: one endpoint, and for each device a thread that is its QP 1.
//!
//! A [`ConnectionManager`] owns the [`Endpoint`] behind a lock. Commands take the lock for a moment; what they give to be sent goes to the
//! thread of the device, which also feeds what comes in and wakes at the endpoint's deadlines. Addresses are resolved by whoever asks
//! ([`ConnectionManager::resolve`]), not under the lock: a neighbour may take seconds to answer.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use feroce_wire::{MAD_LEN, PathMtu, Qkey, Qpn};

use super::{
    AddressHandle, Buffer, CompletionQueue, Destination, Device, DeviceError, Path, QpInit,
    QueuePair,
};
use crate::cm::{self, CmConfig, DeviceKey, Endpoint, Event, Outgoing, Source, Unresolved};
use crate::memory::Access;
use crate::net::Gid;
use crate::qp::Service;
use crate::sys;
use crate::time::{Clock, Duration, Instant};
use crate::verbs::{
    Completion, CompletionOpcode, Data, DatagramSource, GRH_LEN, NetworkHeader, Notify,
    RecvRequest, SendFlags, SendOp, SendRequest, Status,
};
use crate::wake::EventFd;

/// MADs that may wait in QP 1 for the thread: a burst of connections; more are lost, and sent again by their peers.
const RECEIVES: u32 = 256;
/// MADs that may wait to go out.
const SENDS: u32 = 64;
/// Bytes of a receive: the GRH in front of a MAD, and room to keep each aligned.
const SLOT: u32 = 320;
/// Ways to peers that are kept open.
const WAYS: usize = 256;

/// How long requests wait for a listener after a device was attached.
const EARLY: Duration = Duration::from_millis(500);

/// Takes events, in their order. It is called under the endpoint's lock: it must neither block nor call the manager.
pub type CmEventSink = Box<dyn Fn(Event) + Send + Sync>;

/// Connection management of a process.
pub struct ConnectionManager {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for ConnectionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionManager").finish_non_exhaustive()
    }
}

struct Shared {
    endpoint: Mutex<Endpoint>,
    clock: Clock,
    lines: Mutex<BTreeMap<DeviceKey, Arc<Line>>>,
    sink: CmEventSink,
    stop: AtomicBool,
}

/// A device's way out.
struct Line {
    device: Device,
    waiting: Mutex<VecDeque<Outgoing>>,
    wake: EventFd,
    /// MADs that wait, or that the device has not sent yet.
    unsent: AtomicUsize,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        Ok(Self { shared: Arc::new(shared), threads: Mutex::default() })
    }

    /// Takes QP 1 of `device` and starts its thread. `guid` is the device's node GUID.
    ///
    /// # Errors
    /// See [`AttachError`]; [`DeviceError::Qpn`] if QP 1 is somebody else's.
    pub fn attach(&self, key: DeviceKey, device: &Device, guid: u64) -> Result<(), AttachError> {
        let line = Arc::new(Line {
            device: device.clone(),
            waiting: Mutex::default(),
            wake: EventFd::new()?,
            unsent: AtomicUsize::new(0),
        });
        let gsi = Gsi::new(key, &line)?;
        let shared = Arc::clone(&self.shared);
        {
            let mut endpoint = lock(&shared.endpoint);
            endpoint.add_device(key, guid);
            endpoint.keep_early(shared.clock.now() + EARLY);
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
        let wanted =
            if source.is_unspecified() { chosen_source(destination) } else { Some(source) };
        let ways = self.ways(destination.ip());
        let is_wanted = |way: &Way| Some(way.local) == wanted;
        let mut ways = match ways.iter().any(is_wanted) {
            true => ways.into_iter().filter(is_wanted).collect(),
            false if source.is_unspecified() => ways,
            false => Vec::new(),
        };
        let mut why = Unresolved::NoDevice;
        for way in ways.drain(..) {
            match way.resolve(destination.ip()) {
                Ok(path) => return Ok(path),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Own addresses of the family of `destination`.
    fn ways(&self, destination: IpAddr) -> Vec<Way> {
        let lines = lock(&self.shared.lines);
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
    fn resolve(&self, destination: IpAddr) -> Result<cm::Path, Unresolved> {
        let path = Path::new(Gid::from(destination), self.index);
        let ah =
            self.line.device.alloc_pd().create_ah(&path).map_err(|error| unresolved(&error))?;
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

/// The address that the kernel would send from.
fn chosen_source(destination: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match destination {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Port 0 is nobody's, and refused.
    let port = if destination.port() == 0 { 1 } else { destination.port() };
    let mut destination = destination;
    destination.set_port(port);
    socket.connect(destination).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
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
    fn with<R>(&self, act: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
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

/// QP 1 of a device, and its thread's.
struct Gsi {
    key: DeviceKey,
    line: Arc<Line>,
    qp: QueuePair,
    cq: CompletionQueue,
    receives: Buffer,
    /// Ways to peers, by own and peer's address.
    ways: BTreeMap<(IpAddr, IpAddr, u8), AddressHandle>,
    /// Sends that have not completed.
    under_way: u32,
}

impl Gsi {
    fn new(key: DeviceKey, line: &Arc<Line>) -> Result<Self, DeviceError> {
        let device = &line.device;
        let pd = device.alloc_pd();
        let cq = device.create_cq(RECEIVES + SENDS)?;
        let receives = pd.alloc_buffer((RECEIVES * SLOT) as usize, Access::LOCAL_WRITE)?;
        let init = QpInit {
            service: Service::Ud,
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_inline: 256,
            ..QpInit::new(&cq)
        };
        let qp = pd.create_gsi_qp(&init)?;
        let (line, ways) = (Arc::clone(line), BTreeMap::new());
        let mut gsi = Self { key, line, qp, cq, receives, ways, under_way: 0 };
        (0..RECEIVES).for_each(|slot| gsi.post_receive(slot));
        Ok(gsi)
    }

    fn post_receive(&mut self, slot: u32) {
        let sge = self.receives.region().sge(u64::from(slot * SLOT), SLOT);
        let posted = self.qp.post_recv(&RecvRequest { wr_id: u64::from(slot), sges: &[sge] });
        if let Err(error) = posted {
            tracing::error!("QP 1 takes no receives: {error}");
        }
    }

    /// The thread: until the manager goes.
    fn serve(mut self, shared: &Shared) {
        let fds = [self.cq.fd().as_raw_fd(), self.line.wake.as_fd().as_raw_fd()];
        let mut scratch = Vec::new();
        while !shared.stop.load(Ordering::Acquire) {
            self.line.wake.clear();
            shared.with(|endpoint, now| endpoint.expire(now));
            self.send_waiting();
            self.cq.request_notify(Notify::Any);
            let mut is_idle = true;
            while let Some(completion) = self.cq.poll_one() {
                is_idle = false;
                self.on_completion(&completion, shared);
            }
            if is_idle {
                let deadline = lock(&shared.endpoint).next_deadline();
                let timeout = deadline.map(|due| due.saturating_since(shared.clock.now()));
                sys::poll_readable(&fds, &mut scratch, timeout);
            }
        }
    }

    fn on_completion(&mut self, completion: &Completion, shared: &Shared) {
        if completion.opcode != CompletionOpcode::Receive {
            self.under_way -= 1;
            self.line.unsent.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let slot = u32::try_from(completion.wr_id).unwrap_or(0);
        if completion.status == Status::Success {
            let mut bytes = [0; GRH_LEN + MAD_LEN];
            self.receives.read((slot * SLOT) as usize, &mut bytes);
            let (grh, mad) = bytes.split_at(GRH_LEN);
            let length = completion.byte_len as usize - GRH_LEN.min(completion.byte_len as usize);
            if let (Some(from), MAD_LEN) = (self.source(completion.datagram.as_ref(), grh), length)
            {
                let understood = shared.with(|endpoint, now| endpoint.receive(mad, &from, now));
                if let Err(error) = understood {
                    tracing::debug!("MAD from {}: {error}", from.remote);
                }
            }
        }
        self.post_receive(slot);
    }

    /// From whom, and to which of our addresses, a datagram came.
    fn source(&self, datagram: Option<&DatagramSource>, grh: &[u8]) -> Option<Source> {
        let part = |at: usize, len: usize| grh.get(at..at + len);
        let (remote, local): (IpAddr, IpAddr) = match datagram?.network {
            NetworkHeader::Ipv4 => {
                let ip = |at| Some(Ipv4Addr::from(<[u8; 4]>::try_from(part(at, 4)?).ok()?));
                (ip(32)?.into(), ip(36)?.into())
            }
            NetworkHeader::Ipv6 => {
                let ip = |at| Some(Ipv6Addr::from(<[u8; 16]>::try_from(part(at, 16)?).ok()?));
                (ip(8)?.into(), ip(24)?.into())
            }
        };
        Some(Source { device: self.key, local, remote })
    }

    fn send_waiting(&mut self) {
        while self.under_way < SENDS {
            let Some(outgoing) = lock(&self.line.waiting).pop_front() else { return };
            if let Err(error) = self.send(&outgoing) {
                // It will be sent again, if it needs an answer.
                self.line.unsent.fetch_sub(1, Ordering::AcqRel);
                tracing::debug!("MAD to {}: {error}", outgoing.remote);
            }
        }
    }

    fn send(&mut self, outgoing: &Outgoing) -> Result<(), SendError> {
        let key = (outgoing.local, outgoing.remote, outgoing.traffic_class);
        if !self.ways.contains_key(&key) {
            if self.ways.len() >= WAYS {
                self.ways.pop_first();
            }
            let own = Gid::from(outgoing.local);
            let gids = self.line.device.gids();
            let index = gids.into_iter().find(|(_, entry)| entry.gid == own);
            let (index, _) = index.ok_or(SendError::AddressGone)?;
            let path = Path {
                traffic_class: outgoing.traffic_class,
                ..Path::new(Gid::from(outgoing.remote), index)
            };
            let ah = self.qp.pd.create_ah(&path)?;
            self.ways.insert(key, ah);
        }
        let ah = &self.ways[&key];
        let to = Destination { ah, remote_qpn: Qpn::GSI, qkey: Qkey::GSI };
        let request = SendRequest {
            wr_id: 0,
            op: SendOp::Send,
            data: Data::Inline(&[&outgoing.mad]),
            flags: SendFlags::SIGNALED,
        };
        self.qp.post_send_to(&request, &to)?;
        self.under_way += 1;
        Ok(())
    }
}

/// Why a MAD was not sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("the address that it is sent from is gone")]
    AddressGone,
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Post(#[from] super::PostError),
}
