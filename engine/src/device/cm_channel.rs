//! Shared by the connection manager and the threads of QP 1: the endpoint, and a channel per
//! device.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{AddressHandle, Device, DeviceError};
use crate::cm::{DeviceKey, Endpoint, Event, Outgoing};
use crate::time::{Clock, Instant};
use crate::wake::EventFd;

/// Receives events in order. It is called under the endpoint's lock, so it must neither block nor
/// call the manager.
pub type CmEventSink = Box<dyn Fn(Event) + Send + Sync>;

/// Key of a path: local and peer's address, traffic class.
pub(super) type PathKey = (IpAddr, IpAddr, u8);

/// Result of a path resolution.
pub(super) type PathResolution = (PathKey, Result<AddressHandle, DeviceError>);

pub(super) struct Shared {
    pub(super) endpoint: Mutex<Endpoint>,
    pub(super) clock: Clock,
    pub(super) channels: Mutex<BTreeMap<DeviceKey, Arc<DeviceChannel>>>,
    pub(super) sink: CmEventSink,
    pub(super) stop: AtomicBool,
}

/// The channel between the endpoint and the thread of a device.
pub(super) struct DeviceChannel {
    pub(super) device: Device,
    pub(super) waiting: Mutex<VecDeque<Outgoing>>,
    /// Results of path resolutions.
    pub(super) resolved: Mutex<Vec<PathResolution>>,
    pub(super) wake: EventFd,
    /// Number of MADs that were queued.
    pub(super) queued: AtomicUsize,
    /// Number of them that were sent or dropped.
    pub(super) finished: AtomicUsize,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
        let mut endpoint = lock(&self.endpoint);
        let deadline = endpoint.next_deadline();
        let result = act(&mut endpoint, self.clock.now());
        let channels = lock(&self.channels);
        while let Some(outgoing) = endpoint.transmit() {
            if let Some(channel) = channels.get(&outgoing.device) {
                channel.queued.fetch_add(1, Ordering::AcqRel);
                lock(&channel.waiting).push_back(outgoing);
                channel.wake.signal();
            }
        }
        if endpoint.next_deadline() != deadline {
            channels.values().for_each(|channel| channel.wake.signal());
        }
        while let Some(event) = endpoint.event() {
            (self.sink)(event);
        }
        result
    }
}
