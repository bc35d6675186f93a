//! QP 1 of a device, and the thread that serves it: sends and receives MADs.
//!
//! If a neighbour's Ethernet address is unknown, its MADs wait while another thread resolves the
//! path. MADs to other neighbours are sent meanwhile.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_wire::{MAD_LEN, Qkey, Qpn};

use super::addressing::PATH_TIMEOUT;
use super::cm_channel::{DeviceChannel, PathKey, Shared, lock};
use super::{
    AddressHandle, Buffer, CompletionQueue, Destination, DeviceError, Path, PostError, QpInit,
    QueuePair,
};
use crate::cm::{DeviceKey, Outgoing, Source};
use crate::memory::Access;
use crate::net::{Gid, ResolveError};
use crate::pool::Pool;
use crate::qp::Service;
use crate::sys;
use crate::time::Duration;
use crate::verbs::{
    Completion, CompletionOpcode, Data, DatagramSource, GRH_LEN, NetworkHeader, Notify,
    RecvRequest, SendFlags, SendOp, SendRequest, Status,
};

/// Posted receives: enough for a burst of connections. Further MADs are dropped, and their senders
/// retransmit.
const RECEIVES: u32 = 256;
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

/// QP 1 of a device, owned by its thread.
pub(super) struct Gsi {
    key: DeviceKey,
    channel: Arc<DeviceChannel>,
    qp: QueuePair,
    cq: CompletionQueue,
    receives: Buffer,
    paths: PathCache,
    /// MADs whose path is being resolved.
    resolving: BTreeMap<PathKey, Vec<Outgoing>>,
    resolvers: Pool,
    /// Sends posted and not yet completed.
    posted_sends: u32,
}

impl Gsi {
    pub(super) fn new(key: DeviceKey, channel: &Arc<DeviceChannel>) -> Result<Self, DeviceError> {
        let device = &channel.device;
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
        let (paths, resolving) = (PathCache::default(), BTreeMap::new());
        let resolvers = Pool::new("feroce-cm-mads", THREADS);
        let channel = Arc::clone(channel);
        let mut gsi =
            Self { key, channel, qp, cq, receives, paths, resolving, resolvers, posted_sends: 0 };
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

    /// Runs the thread until the connection manager is dropped.
    pub(super) fn serve(mut self, shared: &Shared) {
        let fds = [self.cq.as_raw_fd(), self.channel.wake.as_fd().as_raw_fd()];
        let mut scratch = Vec::new();
        while !shared.stop.load(Ordering::Acquire) {
            self.channel.wake.clear();
            shared.with(|endpoint, now| endpoint.expire(now));
            self.send_resolved();
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
            self.posted_sends -= 1;
            self.channel.finished.fetch_add(1, Ordering::AcqRel);
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

    /// Returns the sender of a datagram, and the local address that it was sent to.
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
        while self.posted_sends < SENDS {
            let Some(outgoing) = lock(&self.channel.waiting).pop_front() else { return };
            self.send_or_drop(outgoing);
        }
    }

    fn send_or_drop(&mut self, outgoing: Outgoing) {
        if let Err(error) = self.send(outgoing) {
            self.drop_unsent(&outgoing, &error);
        }
    }

    /// Drops a MAD. If it needs a response, the endpoint retransmits it.
    fn drop_unsent(&self, outgoing: &Outgoing, why: &dyn std::error::Error) {
        self.channel.finished.fetch_add(1, Ordering::AcqRel);
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
        let gids = self.channel.device.gids();
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
        let (pd, channel) = (self.qp.pd.clone(), Arc::clone(&self.channel));
        self.resolvers.run(Box::new(move || {
            let resolved = pd.create_ah_within(&path, PATH_TIMEOUT);
            lock(&channel.resolved).push((key, resolved));
            channel.wake.signal();
        }))?;
        self.resolving.insert(key, vec![outgoing]);
        Ok(())
    }

    /// Sends the MADs whose paths have been resolved.
    fn send_resolved(&mut self) {
        let resolved = std::mem::take(&mut *lock(&self.channel.resolved));
        for (key, resolved) in resolved {
            let waiting = self.resolving.remove(&key).unwrap_or_default();
            match resolved {
                Ok(ah) => {
                    self.paths.insert(key, ah);
                    // These MADs go in front of later ones, in their order.
                    let mut queue = lock(&self.channel.waiting);
                    waiting.into_iter().rev().for_each(|outgoing| queue.push_front(outgoing));
                }
                Err(error) => {
                    waiting.iter().for_each(|outgoing| self.drop_unsent(outgoing, &error));
                }
            }
        }
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
        self.qp.post_send_to(&request, &to)?;
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
