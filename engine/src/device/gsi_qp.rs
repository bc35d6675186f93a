//! QP 1 of a device: posts MADs and receives, and knows the paths to peers.
//!
//! The thread that makes a MAD also sends it: posting takes a lock, and a turn of the core puts the
//! MAD on the link. Waking another thread for that would cost more than all the rest.
//!
//! If a neighbour's Ethernet address is unknown, its MADs wait while another thread resolves the
//! path. MADs to other neighbours are sent meanwhile.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use feroce_wire::{Qkey, Qpn};

use super::addressing::PATH_TIMEOUT;
use super::{
    AddressHandle, Buffer, CompletionQueue, Destination, Device, DeviceError, Path, PostError,
    QpInit, QueuePair,
};
use crate::cm::Outgoing;
use crate::memory::Access;
use crate::net::{Gid, ResolveError};
use crate::pool::Pool;
use crate::qp::Service;
use crate::time::Duration;
use crate::verbs::{Data, RecvRequest, SendFlags, SendOp, SendRequest};
use crate::wake::EventFd;

/// Posted receives: enough for a burst of connections. Further MADs are dropped, and their senders
/// retransmit.
const RECEIVES: u32 = 1024;
/// MADs posted and not yet completed.
const SENDS: u32 = 64;
/// Bytes per receive: the GRH, the MAD, and padding that keeps each receive aligned.
const SLOT: u32 = 320;
/// Paths kept in the cache.
const CACHED_PATHS: usize = 256;
/// Maximum number of paths being resolved concurrently. MADs to further destinations are dropped.
const RESOLVING: usize = 64;
/// Threads that resolve paths.
const THREADS: usize = 8;
/// MADs that wait for one path; further ones are dropped.
const WAITING: usize = 8;

/// Key of a path: local and peer's address, traffic class.
type PathKey = (IpAddr, IpAddr, u8);

/// Cached paths to peers. When the cache is full, the least recently used path is removed.
#[derive(Default)]
struct PathCache {
    open: BTreeMap<PathKey, (u64, AddressHandle)>,
    uses: u64,
}

impl PathCache {
    fn get(&mut self, key: &PathKey) -> Option<&AddressHandle> {
        self.uses += 1;
        let (used, ah) = self.open.get_mut(key)?;
        *used = self.uses;
        Some(ah)
    }

    fn insert(&mut self, key: PathKey, ah: AddressHandle) {
        if self.open.len() >= CACHED_PATHS {
            let oldest = self.open.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
            oldest.map(|oldest| self.open.remove(&oldest));
        }
        self.uses += 1;
        self.open.insert(key, (self.uses, ah));
    }
}

/// Results of path resolutions, and the descriptor that wakes the thread of QP 1.
pub(super) struct Resolutions {
    done: Mutex<Vec<(PathKey, Result<AddressHandle, DeviceError>)>>,
    pub(super) wake: EventFd,
}

/// QP 1 of a device.
pub(super) struct GsiQp {
    qp: QueuePair,
    send_cq: CompletionQueue,
    receives: Buffer,
    paths: PathCache,
    /// MADs whose path is being resolved.
    resolving: BTreeMap<PathKey, Vec<Outgoing>>,
    resolvers: Pool,
    resolutions: Arc<Resolutions>,
    /// Sends posted and not yet completed.
    posted_sends: u32,
    /// MADs that were sent or dropped.
    finished: Arc<AtomicUsize>,
}

impl GsiQp {
    /// Takes QP 1 of `device`. Returns it with the CQ of its receives.
    pub(super) fn new(device: &Device) -> Result<(Self, CompletionQueue), DeviceError> {
        let pd = device.alloc_pd();
        let (send_cq, recv_cq) = (device.create_cq(SENDS)?, device.create_cq(RECEIVES)?);
        recv_cq.open_fd()?;
        let receives = pd.alloc_buffer((RECEIVES * SLOT) as usize, Access::LOCAL_WRITE)?;
        let init = QpInit {
            service: Service::Ud,
            recv_cq: &recv_cq,
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_inline: 256,
            ..QpInit::new(&send_cq)
        };
        let qp = pd.create_gsi_qp(&init)?;
        let wake = EventFd::new().map_err(DeviceError::System)?;
        let resolutions = Arc::new(Resolutions { done: Mutex::default(), wake });
        let mut gsi = Self {
            qp,
            send_cq,
            receives,
            paths: PathCache::default(),
            resolving: BTreeMap::new(),
            resolvers: Pool::new("feroce-cm-mads", THREADS),
            resolutions,
            posted_sends: 0,
            finished: Arc::default(),
        };
        (0..RECEIVES).for_each(|slot| gsi.post_receive(slot));
        Ok((gsi, recv_cq))
    }

    /// Results of path resolutions.
    pub(super) fn resolutions(&self) -> Arc<Resolutions> {
        Arc::clone(&self.resolutions)
    }

    /// Number of MADs that were sent or dropped.
    pub(super) fn finished(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.finished)
    }

    /// Posts receive `slot`.
    pub(super) fn post_receive(&mut self, slot: u32) {
        let sge = self.receives.region().sge(u64::from(slot * SLOT), SLOT);
        let posted = self.qp.post_recv(&RecvRequest { wr_id: u64::from(slot), sges: &[sge] });
        if let Err(error) = posted {
            tracing::error!("QP 1 takes no receives: {error}");
        }
    }

    /// Copies the beginning of receive `slot` into `bytes`.
    pub(super) fn read_receive(&self, slot: u32, bytes: &mut [u8]) {
        self.receives.read((slot * SLOT) as usize, bytes);
    }

    /// Sends MADs of `next` until it returns `None`. Returns false if the port has no room for all
    /// that were posted: call this again later.
    pub(super) fn send_all(&mut self, mut next: impl FnMut() -> Option<Outgoing>) -> bool {
        loop {
            self.reap();
            let mut has_posted = false;
            while self.posted_sends < SENDS
                && let Some(outgoing) = next()
            {
                has_posted = true;
                self.send_or_drop(outgoing);
            }
            if !has_posted {
                return self.posted_sends == 0;
            }
            self.qp.turn_core();
        }
    }

    /// Takes the completions of sends.
    fn reap(&mut self) {
        while self.send_cq.pop().is_some() {
            self.posted_sends -= 1;
            self.finished.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn send_or_drop(&mut self, outgoing: Outgoing) {
        if let Err(error) = self.send(outgoing) {
            self.drop_unsent(&outgoing, &error);
        }
    }

    /// Drops a MAD. If it needs a response, the endpoint retransmits it.
    fn drop_unsent(&self, outgoing: &Outgoing, why: &dyn std::error::Error) {
        self.finished.fetch_add(1, Ordering::AcqRel);
        tracing::debug!("MAD to {}: {why}", outgoing.remote);
    }

    fn send(&mut self, outgoing: Outgoing) -> Result<(), SendError> {
        let key = (outgoing.local, outgoing.remote, outgoing.traffic_class);
        if let Some(waiting) = self.resolving.get_mut(&key) {
            if waiting.len() >= WAITING {
                return Err(SendError::TooMany);
            }
            waiting.push(outgoing);
            return Ok(());
        }
        if self.paths.get(&key).is_none() {
            let path = self.path(&outgoing)?;
            match self.qp.pd.create_ah_within(&path, Duration::ZERO) {
                Ok(ah) => self.paths.insert(key, ah),
                Err(DeviceError::Path { source: ResolveError::Unresolved { .. }, .. }) => {
                    return self.start_resolve(key, path, outgoing);
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.post(&key, &outgoing)
    }

    fn path(&self, outgoing: &Outgoing) -> Result<Path, SendError> {
        let own = Gid::from(outgoing.local);
        let gids = self.qp.pd.device.addressing.gids();
        let index = gids.into_iter().find(|(_, entry)| entry.gid == own);
        let (index, _) = index.ok_or(SendError::AddressGone)?;
        let path = Path::new(Gid::from(outgoing.remote), index);
        Ok(Path { traffic_class: outgoing.traffic_class, ..path })
    }

    /// Resolves `path` in another thread, and keeps `outgoing` until then.
    fn start_resolve(
        &mut self,
        key: PathKey,
        path: Path,
        outgoing: Outgoing,
    ) -> Result<(), SendError> {
        if self.resolving.len() >= RESOLVING {
            return Err(SendError::TooMany);
        }
        let (pd, resolutions) = (self.qp.pd.clone(), Arc::clone(&self.resolutions));
        self.resolvers.run(Box::new(move || {
            let resolved = pd.create_ah_within(&path, PATH_TIMEOUT);
            resolutions.done.lock().unwrap_or_else(PoisonError::into_inner).push((key, resolved));
            resolutions.wake.signal();
        }))?;
        self.resolving.insert(key, vec![outgoing]);
        Ok(())
    }

    /// Takes the paths that have been resolved, and returns the MADs that waited for them.
    pub(super) fn take_resolved(&mut self) -> Vec<Outgoing> {
        let done = &self.resolutions.done;
        let resolved = std::mem::take(&mut *done.lock().unwrap_or_else(PoisonError::into_inner));
        let mut sendable = Vec::new();
        for (key, resolved) in resolved {
            let waiting = self.resolving.remove(&key).unwrap_or_default();
            match resolved {
                Ok(ah) => {
                    self.paths.insert(key, ah);
                    sendable.extend(waiting);
                }
                Err(error) => {
                    waiting.iter().for_each(|outgoing| self.drop_unsent(outgoing, &error));
                }
            }
        }
        sendable
    }

    fn post(&mut self, key: &PathKey, outgoing: &Outgoing) -> Result<(), SendError> {
        let Some(ah) = self.paths.get(key) else { return Err(SendError::AddressGone) };
        let to = Destination { ah, remote_qpn: Qpn::GSI, qkey: Qkey::GSI };
        let mad: [&[u8]; 1] = [&outgoing.mad];
        let request = SendRequest {
            wr_id: 0,
            op: SendOp::Send,
            data: Data::Inline(&mad),
            flags: SendFlags::SIGNALED,
        };
        self.qp.post_send_to_quietly(&request, &to)?;
        self.posted_sends += 1;
        Ok(())
    }
}

/// Why a MAD is not sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("its source address was removed")]
    AddressGone,
    #[error("too many MADs wait for address resolution")]
    TooMany,
    #[error(transparent)]
    System(#[from] std::io::Error),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Post(#[from] PostError),
}
