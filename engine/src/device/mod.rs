//! The handles that a program holds: a [`Device`], and the verbs objects made from it.
//!
//! | handle | file |
//! |---|---|
//! | [`Device`] | this file; `open.rs`, `pair.rs`; configuration: `config.rs`, `settings.rs` |
//! | [`ProtectionDomain`] | `protection_domain.rs` |
//! | [`MemoryRegion`], [`Buffer`] | `memory_region.rs`, `registration.rs` |
//! | [`MemoryWindow`] | `memory_window.rs` |
//! | [`DeviceMemory`] | `device_memory.rs` |
//! | [`CompletionQueue`] | `completion_queue.rs` |
//! | [`QueuePair`] | `queue_pair.rs`, `posting.rs`, `datagram.rs`; `connect_{options,qp,cm}.rs` |
//! | [`Endpoint`] | `endpoint.rs` |
//! | [`SharedReceiveQueue`] | `shared_receive_queue.rs` |
//! | [`XrcDomain`] | `xrc.rs` |
//! | [`AddressHandle`] | `address_handle.rs` |
//! | multicast membership | `multicast.rs` |
//! | [`ConnectionManager`] | `connect.rs`, `cm_event_queue.rs`; QP 1: `gsi*.rs`, `cm_channel.rs` |
//!
//! The other files do background work: `helper.rs` runs the cores, `follow.rs` follows the host's
//! addresses, neighbours and routes, `stat.rs` serves counters. `quota.rs` limits the number of
//! objects. The registered memory itself, the queues and the protocol are in `memory`, `verbs`,
//! `core` and `qp`.
//!
//! Control calls take a core's token briefly; posting and polling do not.

mod address_handle;
mod addressing;
mod cm_channel;
mod cm_event_queue;
mod completion_queue;
mod config;
mod connect;
mod connect_cm;
mod connect_options;
mod connect_qp;
mod datagram;
mod device_memory;
mod endpoint;
mod error;
mod follow;
mod follow_lan;
mod gsi;
mod gsi_qp;
mod helper;
mod helper_sleep;
mod host;
mod idle_polls;
mod memory_region;
mod memory_window;
mod multicast;
mod open;
pub(crate) mod owner;
mod pair;
mod port_owner;
pub(crate) mod ports;
mod posting;
mod protection_domain;
mod qpns;
mod queue_pair;
mod quota;
mod registration;
mod send_limits;
pub mod settings;
mod shared_receive_queue;
pub mod stat;
mod xrc;

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError, Weak};
use std::thread::JoinHandle;

use helper_sleep::HelperSleep;
use qpns::FreeQpns;
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

pub use address_handle::AddressHandle;
pub use addressing::{Addressing, KernelAddresses, Path, SourcePort, StaticAddresses};
pub use cm_channel::CmEventSink;
pub use cm_event_queue::CmEventQueue;
pub use completion_queue::CompletionQueue;
pub use config::{
    DeviceAttributes, DeviceConfig, Driver, MAX_CORES, MAX_CQE, MAX_DEVICE_MEMORY, MAX_GROUPS,
    MAX_INLINE, MAX_WR, Sharing,
};
pub(crate) use connect::EARLY_REQUEST_TIME;
pub use connect::{AttachError, ConnectionManager};
pub use connect_options::{ConnectOptions, Split};
pub use datagram::Destination;
pub use device_memory::DeviceMemory;
pub use endpoint::{Endpoint, EndpointError};
pub use error::{DeviceError, OpenError, PostError};
pub(crate) use follow::TICK;
pub use host::HostId;
pub use memory_region::{Advice, MemoryRegion, Reregistration};
pub use memory_window::MemoryWindow;
pub(crate) use multicast::join_kernel;
pub use owner::{Owner, owner_of};
pub use ports::{PortKind, UnknownPortKind};
pub use posting::PostBatch;
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{QpInit, QueuePair};
pub use registration::Buffer;
pub use shared_receive_queue::{SharedReceiveQueue, SrqInit};
pub use xrc::XrcDomain;

use crate::congestion::{ChangeError, CongestionConfig};
use crate::core::{Core, Doorbell, QpnMap};
use crate::counters::{Counter, Counters};
use crate::memory::MrTable;
use crate::memory::arena::{Arena, ArenaStats};
use crate::net::{GidEntry, Watcher};
use crate::port::PortStats;
use crate::port::kind::PortOwner;
use crate::qp::AheadPool;
use crate::time::{Clock, Duration, Instant};
use crate::verbs::{AsyncEvent, EventQueue, EventSink};
use feroce_wire::Psn;

/// An open device. Clones are handles to the same device. It closes when the last handle and the
/// last object made from it are dropped.
///
/// Its descriptor ([`AsFd`]) is that of its asynchronous events, as `ibv_context::async_fd`.
///
/// ```no_run
/// use feroce_engine::device::{Device, DeviceConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open("eth0", DeviceConfig::default())?;
/// let attributes = device.attributes();
/// println!("{} (because {})", attributes.port, attributes.port_reason);
/// for (index, entry) in device.gids() {
///     println!("GID {index}: {}", entry.gid.ip());
/// }
/// while let Some(event) = device.poll_event() {
///     println!("{event:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Device {
    inner: Arc<Opened>,
}

/// Shared by all handles and objects; closes the device when the last one is dropped.
#[derive(Debug)]
struct Opened(Arc<DeviceInner>);

impl std::ops::Deref for Opened {
    type Target = DeviceInner;
    fn deref(&self) -> &DeviceInner {
        &self.0
    }
}

/// Units of work that make a turn long. [`CoreCell::driven_at`] holds the end of a long turn, not
/// its start, so that a thread in long turns counts as driving the core.
const LONG_TURN: usize = 8;

/// Polls that find all cores taken, after which a thread gives its CPU to others: a few
/// microseconds. With more polling threads than CPUs, the thread in a turn may be waiting for a
/// CPU, and the others would spin for their whole time slices.
const MISSED_POLLS: u32 = 128;

/// Adds 1 to a counter that only the holder of the core's token changes.
#[inline]
fn count_under_token(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Counts a poll that found all cores taken.
#[cold]
fn miss() {
    thread_local! {
        static MISSED: Cell<u32> = const { Cell::new(0) };
    }
    let missed = MISSED.get().wrapping_add(1);
    MISSED.set(missed);
    if missed.is_multiple_of(MISSED_POLLS) {
        std::thread::yield_now();
    }
}

/// A core, its token, and the state that other threads read without the token.
#[derive(Debug)]
struct CoreCell {
    core: Mutex<Core>,
    doorbell: Arc<Doorbell>,
    /// Turns by threads other than the helper.
    driven: AtomicU64,
    /// Long turns among `driven`.
    long_turns: AtomicU64,
    /// Start of the last of these turns, or its end if it was long, in nanoseconds of the device's
    /// clock.
    driven_at: AtomicU64,
    /// Control calls that wait for the token.
    waiters: AtomicU32,
    helper_sleep: HelperSleep,
}

impl CoreCell {
    /// Takes the token. While this call waits, the helper does not take the token again.
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let token = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        token
    }

    /// Takes the token if it is free.
    fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(token) => Some(token),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns true if a thread is in a turn or in a control call.
    fn is_taken(&self) -> bool {
        matches!(self.core.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Wakes the helper if it would sleep beyond the time of the next turn.
    fn wake_helper(&self, core: &Core, now: Instant) {
        if self.helper_sleep.is_too_long(|| core.next_turn(now)) {
            self.helper_sleep.end(); // It is not woken twice.
            self.doorbell.wake();
        }
    }

    /// Returns true while the helper sleeps until a frame, a doorbell or a deadline.
    fn helper_sleeps(&self) -> bool {
        self.helper_sleep.is_asleep()
    }

    /// Returns true if a thread other than the helper was in a turn less than `span` before `now`.
    fn driven_within(&self, span: Duration, now: Instant) -> bool {
        let driven_at = Instant::from_nanos(self.driven_at.load(Ordering::Relaxed));
        now.saturating_since(driven_at) < span
    }

    fn wake_fd(&self) -> RawFd {
        self.doorbell.fd().as_raw_fd()
    }
}

/// Communication management that uses a device.
trait DeviceUser: std::fmt::Debug + Send + Sync {
    /// The device is lost.
    fn device_lost(&self, device: &DeviceInner);

    /// Number of identifiers that listen.
    fn listeners(&self) -> usize;
}

#[derive(Debug)]
struct DeviceInner {
    /// UDP source ports that the port can send from; empty if it can send from any.
    source_ports: Vec<u16>,
    config: DeviceConfig,
    attributes: RwLock<DeviceAttributes>,
    /// Largest IP packet that the port's buffers hold, in bytes.
    port_mtu: u32,
    arena: Arc<Arena>,
    /// Memory for selective repeat; `None` if the device does not offer it.
    ahead: Option<Arc<AheadPool>>,
    memory: Arc<MrTable>,
    events: Arc<EventQueue>,
    counters: Vec<Arc<Counters>>,
    cores: Vec<CoreCell>,
    qpns: QpnMap,
    free_qpns: Mutex<FreeQpns>,
    next_pd: AtomicU32,
    next_cq: AtomicU32,
    next_srq: AtomicU32,
    next_xrcd: AtomicU32,
    /// Limits of completion queues, shared receive queues and address handles.
    cq_quota: Arc<quota::Quota>,
    srq_quota: Arc<quota::Quota>,
    ah_quota: Arc<quota::Quota>,
    /// QP 1 exists.
    gsi_taken: AtomicBool,
    /// Communication management that uses the device.
    users: Mutex<Vec<Weak<dyn DeviceUser>>>,
    addressing: Addressing,
    /// The process that owns the port, if that is another one.
    port_owner: Option<Arc<dyn PortOwner>>,
    /// Paths in use, for following neighbours and routes.
    paths: Mutex<follow::Paths>,
    /// Changes of the host's addresses, routes and links so far, and failures of neighbours.
    host_changes: AtomicU64,
    /// Multicast groups that QPs are attached to.
    groups: Mutex<multicast::Groups>,
    /// Selects the frames that the ports receive, for ports that need it.
    filter: OnceLock<ports::Filter>,
    clock: Clock,
    /// With [`Driver::Manual`]: time of the last turn, in nanoseconds.
    turned_at: AtomicU64,
    random: Mutex<Random>,
    /// Current configuration; [`DeviceConfig::congestion`] is the one that the device was opened
    /// with.
    congestion: Mutex<CongestionConfig>,
    stop: AtomicBool,
    helpers: Mutex<Vec<JoinHandle<()>>>,
    watcher: Mutex<Option<Watcher>>,
    stat: Mutex<Option<stat::Server>>,
    lan_follower: Mutex<Option<follow_lan::LanFollower>>,
    /// All threads of the program share one CPU.
    has_one_cpu: bool,
    /// Ownership of the interface, released on drop.
    _owner: Option<owner::Ownership>,
}

/// Source of random keys and PSNs.
#[derive(Debug)]
enum Random {
    Kernel,
    Seeded(Box<Xoshiro256StarStar>),
}

impl Random {
    fn new(seed: Option<u64>) -> Self {
        match seed {
            Some(seed) => Self::Seeded(Box::new(Xoshiro256StarStar::seed_from_u64(seed))),
            None => Self::Kernel,
        }
    }

    fn next(&mut self) -> std::io::Result<u128> {
        match self {
            Self::Kernel => crate::sys::random_u128(),
            Self::Seeded(rng) => Ok(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())),
        }
    }
}

impl DeviceInner {
    fn random(&self) -> std::io::Result<u128> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    /// Returns the time for control calls. With [`Driver::Manual`] that is the time of the last
    /// turn, because the caller supplies the time.
    fn now(&self) -> Instant {
        match self.config.driver {
            Driver::Manual => Instant::from_nanos(self.turned_at.load(Ordering::Relaxed)),
            _ => self.clock.now(),
        }
    }

    /// Runs one turn of each core in `mask` whose token is free. Does nothing with
    /// [`Driver::Manual`].
    fn drive(&self, mask: u64) {
        if self.config.driver == Driver::Manual {
            return;
        }
        let (mut turned, mut missed, mut moved) = (false, false, 0);
        for (index, cell) in self.cores.iter().enumerate() {
            if mask >> index & 1 == 0 {
                continue;
            }
            // Control calls go first.
            let waits = cell.waiters.load(Ordering::Relaxed) > 0;
            let token = if waits { None } else { cell.try_lock() };
            missed |= token.is_none();
            if let Some(mut token) = token {
                let now = self.clock.now(); // Under the token: a core's time must not go backwards.
                let done = token.turn(now);
                moved += done;
                count_under_token(&cell.driven);
                let mut at = now;
                if done >= LONG_TURN {
                    count_under_token(&cell.long_turns);
                    at = self.clock.now();
                }
                cell.driven_at.store(at.as_nanos(), Ordering::Relaxed);
                cell.wake_helper(&token, now);
                turned = true;
            }
        }
        if missed && !turned {
            miss();
        }
        if self.has_one_cpu {
            idle_polls::share_cpu(moved, helper::measured_poll_time());
        }
        if turned && self.port_owner.is_some() {
            idle_polls::count(moved);
        }
    }

    /// Runs a turn of core `core` for a control call, after the turn that another thread may be in.
    /// Does nothing with [`Driver::Manual`].
    fn turn_core(&self, core: usize) {
        if self.config.driver == Driver::Manual {
            return;
        }
        let cell = &self.cores[core];
        let mut token = cell.lock();
        let now = self.clock.now();
        token.turn(now);
        cell.wake_helper(&token, now);
    }

    /// Sets parameters of congestion control by name: all of them, or none if one is refused.
    fn set_congestion(&self, pairs: &[(String, String)]) -> Result<(), ChangeError> {
        if pairs.is_empty() {
            return Ok(());
        }
        let mut current = self.congestion.lock().unwrap_or_else(PoisonError::into_inner);
        let mut config = *current;
        let (opened, marked) = (self.config.congestion.control, self.config.marks_data());
        pairs.iter().try_for_each(|(name, value)| config.change(opened, marked, name, value))?;
        for cell in &self.cores {
            let mut token = cell.lock();
            let now = self.now();
            token.set_congestion(&config, now);
            cell.wake_helper(&token, now);
        }
        *current = config;
        Ok(())
    }

    /// Reports that the device is lost, to its program and to the other users.
    fn lose(&self) {
        self.events.push(AsyncEvent::DeviceFatal);
        self.users().iter().for_each(|user| user.device_lost(self));
    }

    /// The users, to be called without the lock of their list: a thread that attaches takes that
    /// lock and theirs.
    fn users(&self) -> Vec<Arc<dyn DeviceUser>> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns when every core has ended its current turn. After that no turn uses objects that
    /// were withdrawn before.
    fn quiesce(&self) {
        for cell in &self.cores {
            drop(cell.lock());
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.stat.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.lan_follower.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut helpers = self.helpers.lock().unwrap_or_else(PoisonError::into_inner);
        for (cell, helper) in self.cores.iter().zip(helpers.drain(..)) {
            cell.doorbell.wake();
            let _ = helper.join(); // A helper that panicked has printed its message already.
        }
    }
}

impl Device {
    /// Returns the capabilities of the device.
    pub fn attributes(&self) -> DeviceAttributes {
        self.inner.attributes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the GIDs in use, with their indices.
    pub fn gids(&self) -> Vec<(u32, GidEntry)> {
        self.inner.addressing.gids()
    }

    /// Returns the index of the first GID that is not link-local. If there is none, returns 0,
    /// which may be the index of a link-local GID.
    pub fn default_gid_index(&self) -> u32 {
        let routable = |entry: &GidEntry| match entry.gid.ip() {
            std::net::IpAddr::V4(_) => true,
            std::net::IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        };
        self.gids().into_iter().find(|(_, entry)| routable(entry)).map_or(0, |(index, _)| index)
    }

    /// Returns the sum of a counter over all cores.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.inner.counters.iter().map(|counters| counters.get(counter)).sum()
    }

    /// Returns the frame counters of each core's port.
    pub fn port_stats(&self) -> Vec<PortStats> {
        self.inner.cores.iter().map(|cell| cell.lock().port().stats()).collect()
    }

    /// Returns the use of the arena.
    pub fn arena_stats(&self) -> ArenaStats {
        self.inner.arena.stats()
    }

    /// Returns the time of the clock that stamps completions, as `ibv_query_rt_values_ex` does.
    /// With [`Driver::Manual`] that is the time of the last turn.
    pub fn clock(&self) -> Instant {
        self.inner.now()
    }

    /// Sets parameters of congestion control by name, as `feroce set` does.
    ///
    /// # Errors
    /// See [`ChangeError`]; nothing is changed then.
    pub fn set_congestion(&self, pairs: &[(String, String)]) -> Result<(), ChangeError> {
        self.inner.set_congestion(pairs)
    }

    /// Returns the oldest asynchronous event not read yet.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.inner.events.pop()
    }

    /// Returns the number of events dropped because the queue was full.
    pub fn events_lost(&self) -> u64 {
        self.inner.events.lost()
    }

    /// Delivers events to `sink` from now on instead of queueing them. Returns false if a sink is
    /// already set.
    pub fn set_event_sink(&self, sink: EventSink) -> bool {
        self.inner.events.set_sink(sink)
    }

    /// Returns a random starting PSN.
    ///
    /// # Errors
    /// When the kernel supplies no randomness.
    pub fn random_psn(&self) -> std::io::Result<Psn> {
        let bits = self.inner.random()? & 0xff_ffff;
        Ok(Psn::new(u32::try_from(bits).expect("24 bits")))
    }

    /// Runs one turn of every core at the time `now`; returns the amount of work done. For
    /// [`Driver::Manual`].
    pub fn turn(&self, now: Instant) -> usize {
        self.inner.turned_at.store(now.as_nanos(), Ordering::Relaxed);
        self.inner.cores.iter().map(|cell| cell.lock().turn(now)).sum()
    }

    /// Returns when [`Device::turn`] is due without input: `now` if at once, `None` if never.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.inner.cores.iter().filter_map(|cell| cell.lock().next_deadline(now)).min()
    }

    /// Runs one turn of each core whose token is free, as polling an empty completion queue does.
    pub fn drive(&self) {
        self.inner.drive(u64::MAX);
    }
}

/// The descriptor that is readable while asynchronous events are queued.
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.events.fd()
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
