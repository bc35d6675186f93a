//! A device: the RNIC that a program opens, and the control plane of its objects.
//!
//! A [`Device`] owns cores, registered memory and numbers. Programs hold handles: [`ProtectionDomain`],
//! [`MemoryRegion`], [`CompletionQueue`], [`QueuePair`]. Control calls take a core's token for a moment;
//! posting and polling do not.

mod address_handle;
mod addressing;
mod completion_queue;
mod config;
mod connect;
mod connect_options;
mod datagram;
mod device_memory;
mod error;
mod follow;
mod follow_lan;
mod gsi;
mod helper;
mod host;
mod memory_region;
mod memory_window;
mod multicast;
mod open;
mod owner;
mod pool;
mod ports;
mod protection_domain;
mod queue_pair;
mod send_limits;
pub mod settings;
mod shared_receive_queue;
pub mod stat;
mod xrc;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::thread::JoinHandle;

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

pub use address_handle::AddressHandle;
pub use addressing::{Addressing, KernelAddresses, Path, SourcePort, StaticAddresses};
pub use completion_queue::CompletionQueue;
pub use config::{DeviceAttributes, DeviceConfig, Driver, MAX_CORES, MAX_CQE, MAX_INLINE, MAX_WR};
pub use connect::{AttachError, CmEventSink, ConnectionManager};
pub use connect_options::{ConnectOptions, Split};
pub use datagram::Destination;
pub use device_memory::{DeviceMemory, MAX_DEVICE_MEMORY};
pub use error::{DeviceError, OpenError, PostError};
pub use host::HostId;
pub use memory_region::{Advice, MemoryRegion, Reregistration};
pub use memory_window::MemoryWindow;
pub use owner::{Owner, owner_of};
pub use ports::{PortKind, UnknownPortKind};
pub use protection_domain::{Buffer, ProtectionDomain};
pub use queue_pair::{Endpoint, QpInit, QueuePair};
pub use shared_receive_queue::{SharedReceiveQueue, SrqInit};
pub use xrc::XrcDomain;

use crate::congestion::{ChangeError, CongestionConfig};
use crate::core::{Core, Doorbell, QpnMap};
use crate::counters::{Counter, Counters};
use crate::memory::MrTable;
use crate::memory::arena::{Arena, ArenaStats};
use crate::net::{GidEntry, Watcher};
use crate::port::PortStats;
use crate::time::{Clock, Duration, Instant};
use crate::verbs::{AsyncEvent, EventQueue, EventSink};
use feroce_wire::Psn;

/// An open device. Clones are handles to the same one; it closes when the last handle and the last
/// object made from it are gone.
#[derive(Debug, Clone)]
pub struct Device {
    inner: Arc<Opened>,
}

/// What every handle and object holds: the last one to go closes the device.
#[derive(Debug)]
struct Opened(Arc<DeviceInner>);

impl std::ops::Deref for Opened {
    type Target = DeviceInner;
    fn deref(&self) -> &DeviceInner {
        &self.0
    }
}

/// A turn that moves so many frames is long: who attends to a core is known by when its last turn ended.
const LONG_TURN: usize = 8;

/// One core and what is needed around its token.
#[derive(Debug)]
struct CoreCell {
    core: Mutex<Core>,
    doorbell: Arc<Doorbell>,
    /// Turns by threads other than the helper.
    driven: AtomicU64,
    /// Of these, long ones.
    long_turns: AtomicU64,
    /// When the last of them was, or ended if it was long, in nanoseconds of the device's clock.
    driven_at: AtomicU64,
    /// Control calls that wait for the token.
    waiters: AtomicU32,
    /// When the helper wakes by itself, in nanoseconds of the device's clock, while it sleeps; else 0.
    sleeps_until: AtomicU64,
}

impl CoreCell {
    /// Takes the token, before the helper takes it again.
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let token = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        token
    }

    /// Takes the token if nobody has it.
    fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(token) => Some(token),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Somebody is in a turn, or in a control call.
    fn is_taken(&self) -> bool {
        matches!(self.core.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Wakes the helper if it sleeps past something that the holder of the token has left to be done.
    fn rouse(&self, core: &Core, now: Instant) {
        let until = self.sleeps_until.load(Ordering::Relaxed);
        if until != 0 && core.next_deadline(now).is_some_and(|next| next.as_nanos() < until) {
            self.doorbell.wake();
        }
    }

    /// True if a thread other than the helper had a turn less than `span` before `now`.
    fn driven_within(&self, span: Duration, now: Instant) -> bool {
        let driven_at = Instant::from_nanos(self.driven_at.load(Ordering::Relaxed));
        now.saturating_since(driven_at) < span
    }

    fn wake_fd(&self) -> RawFd {
        self.doorbell.fd().as_raw_fd()
    }
}

#[derive(Debug)]
struct DeviceInner {
    config: DeviceConfig,
    attributes: RwLock<DeviceAttributes>,
    /// Largest IP packet that the port's buffers hold, in bytes.
    port_mtu: u32,
    arena: Arc<Arena>,
    memory: Arc<MrTable>,
    events: Arc<EventQueue>,
    counters: Vec<Arc<Counters>>,
    cores: Vec<CoreCell>,
    qpns: QpnMap,
    /// Free indices into the slice of QP numbers, oldest first: a number is not used again soon.
    free_qpns: Mutex<VecDeque<u32>>,
    next_pd: AtomicU32,
    next_cq: AtomicU32,
    next_srq: AtomicU32,
    next_xrcd: AtomicU32,
    next_ah: AtomicU64,
    /// QP 1 lives.
    gsi_taken: AtomicBool,
    addressing: Addressing,
    /// Paths in use, to follow neighbours and routes.
    paths: Mutex<follow::Paths>,
    /// Multicast groups that QPs are attached to.
    groups: Mutex<multicast::Groups>,
    /// What tells the ports which frames are theirs, where something has to.
    filter: OnceLock<ports::Filter>,
    clock: Clock,
    /// With [`Driver::Manual`]: the time of the last turn, in nanoseconds.
    turned_at: AtomicU64,
    random: Mutex<Random>,
    /// As it is now: [`DeviceConfig::congestion`] is how the device was opened.
    congestion: Mutex<CongestionConfig>,
    stop: AtomicBool,
    helpers: Mutex<Vec<JoinHandle<()>>>,
    watcher: Mutex<Option<Watcher>>,
    stat: Mutex<Option<stat::Server>>,
    lan_follower: Mutex<Option<follow_lan::LanFollower>>,
    /// Held for as long as the device owns its interface.
    _owner: Option<owner::Ownership>,
}

/// Where keys and PSNs come from.
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

    /// The time now, for control calls. With [`Driver::Manual`] it is that of the last turn: time is the caller's.
    fn now(&self) -> Instant {
        match self.config.driver {
            Driver::Manual => Instant::from_nanos(self.turned_at.load(Ordering::Relaxed)),
            _ => self.clock.now(),
        }
    }

    /// Turns the cores in `mask`, if their tokens are free. Does nothing with [`Driver::Manual`].
    fn drive(&self, mask: u64) {
        if self.config.driver == Driver::Manual {
            return;
        }
        for (index, cell) in self.cores.iter().enumerate() {
            if mask >> index & 1 == 0 || cell.waiters.load(Ordering::Relaxed) > 0 {
                continue; // Control calls go first.
            }
            if let Some(mut token) = cell.try_lock() {
                let now = self.clock.now(); // Under the token: a core's time must not go backwards.
                let done = token.turn(now);
                cell.driven.fetch_add(1, Ordering::Relaxed);
                let mut at = now;
                if done >= LONG_TURN {
                    cell.long_turns.fetch_add(1, Ordering::Relaxed);
                    at = self.clock.now();
                }
                cell.driven_at.store(at.as_nanos(), Ordering::Relaxed);
                cell.rouse(&token, now);
            }
        }
    }

    /// Sets parameters of congestion control by name: all of them, or none if one is refused.
    fn set_congestion(&self, pairs: &[(String, String)]) -> Result<(), ChangeError> {
        if pairs.is_empty() {
            return Ok(());
        }
        let mut held = self.congestion.lock().unwrap_or_else(PoisonError::into_inner);
        let mut config = *held;
        let (opened, marked) = (self.config.congestion.control, self.config.marks_data());
        pairs.iter().try_for_each(|(name, value)| config.change(opened, marked, name, value))?;
        for cell in &self.cores {
            let mut token = cell.lock();
            let now = self.now();
            token.set_congestion(&config, now);
            cell.rouse(&token, now);
        }
        *held = config;
        Ok(())
    }

    /// Returns when every core has ended the turn it was in: none uses what was withdrawn before.
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
            let _ = helper.join(); // A helper that panicked has said so already.
        }
    }
}

impl Device {
    /// What the device can do.
    pub fn attributes(&self) -> DeviceAttributes {
        self.inner.attributes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// GIDs in use, by index.
    pub fn gids(&self) -> Vec<(u32, GidEntry)> {
        self.inner.addressing.gids()
    }

    /// Index of the first GID that routers know: not link-local. 0, the link-local one, if there is none.
    pub fn default_gid_index(&self) -> u32 {
        let routable = |entry: &GidEntry| match entry.gid.ip() {
            std::net::IpAddr::V4(_) => true,
            std::net::IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        };
        self.gids().into_iter().find(|(_, entry)| routable(entry)).map_or(0, |(index, _)| index)
    }

    /// The sum of a counter over all cores.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.inner.counters.iter().map(|counters| counters.get(counter)).sum()
    }

    /// Frame counters of each core's port.
    pub fn port_stats(&self) -> Vec<PortStats> {
        self.inner.cores.iter().map(|cell| cell.lock().port().stats()).collect()
    }

    /// Use of the arena.
    pub fn arena_stats(&self) -> ArenaStats {
        self.inner.arena.stats()
    }

    /// The time by the clock that stamps completions, as `ibv_query_rt_values_ex` reads it. With [`Driver::Manual`] it is
    /// that of the last turn.
    pub fn clock(&self) -> Instant {
        self.inner.now()
    }

    /// Sets parameters of congestion control by name, as `feroce set` does.
    ///
    /// # Errors
    /// See [`ChangeError`]; nothing was changed then.
    pub fn set_congestion(&self, pairs: &[(String, String)]) -> Result<(), ChangeError> {
        self.inner.set_congestion(pairs)
    }

    /// The oldest asynchronous event not read yet.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.inner.events.pop()
    }

    /// Events given up because nobody read them.
    pub fn events_lost(&self) -> u64 {
        self.inner.events.lost()
    }

    /// From now on events go to `sink` instead of waiting to be read. False if there is one already.
    pub fn set_event_sink(&self, sink: EventSink) -> bool {
        self.inner.events.set_sink(sink)
    }

    /// A descriptor that is readable while events wait.
    pub fn event_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.inner.events.fd()
    }

    /// A random starting PSN.
    ///
    /// # Errors
    /// When the kernel has no randomness to give.
    pub fn random_psn(&self) -> std::io::Result<Psn> {
        let bits = self.inner.random()? & 0xff_ffff;
        Ok(Psn::new(u32::try_from(bits).expect("24 bits")))
    }

    /// One turn of every core at the time `now`; returns how much was done. For [`Driver::Manual`].
    pub fn turn(&self, now: Instant) -> usize {
        self.inner.turned_at.store(now.as_nanos(), Ordering::Relaxed);
        self.inner.cores.iter().map(|cell| cell.lock().turn(now)).sum()
    }

    /// The time at which [`Device::turn`] has something to do although nothing comes in; `now` if at
    /// once, `None` if never.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.inner.cores.iter().filter_map(|cell| cell.lock().next_deadline(now)).min()
    }

    /// Turns all cores once if their tokens are free, as polling an empty completion queue does.
    pub fn drive(&self) {
        self.inner.drive(u64::MAX);
    }
}
