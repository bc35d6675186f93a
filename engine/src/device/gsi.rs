//! QP 1 of a device, and the thread that it belongs to: MADs in and out.
//!
//! A MAD to a neighbour that nobody knows waits while a thread of its own finds the way; those to others go out meanwhile.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_wire::{MAD_LEN, Qkey, Qpn};

use super::addressing::PATH_TIMEOUT;
use super::connect::{Line, Shared, lock};
use super::pool::Pool;
use super::{
    AddressHandle, Buffer, CompletionQueue, Destination, DeviceError, Path, PostError, QpInit,
    QueuePair,
};
use crate::cm::{DeviceKey, Outgoing, Source};
use crate::memory::Access;
use crate::net::{Gid, ResolveError};
use crate::qp::Service;
use crate::sys;
use crate::time::Duration;
use crate::verbs::{
    Completion, CompletionOpcode, Data, DatagramSource, GRH_LEN, NetworkHeader, Notify,
    RecvRequest, SendFlags, SendOp, SendRequest, Status,
};

/// MADs that may wait in QP 1 for the thread: a burst of connections; more are lost, and sent again by their peers.
const RECEIVES: u32 = 256;
/// MADs that may wait to go out.
const SENDS: u32 = 64;
/// Bytes of a receive: the GRH in front of a MAD, and room to keep each aligned.
const SLOT: u32 = 320;
/// Ways to peers that are kept open.
const WAYS: usize = 256;
/// Ways that are looked for at a time, by so many threads; MADs that wait for one of them. More are lost.
const SOUGHT: usize = 64;
const THREADS: usize = 8;
const WAITING: usize = 8;

/// A way: own and peer's address, traffic class.
pub(super) type WayKey = (IpAddr, IpAddr, u8);

/// What became of a way that was looked for.
pub(super) type Found = (WayKey, Result<AddressHandle, DeviceError>);

/// Ways to peers. When there are too many, the one that was not used for longest goes.
#[derive(Default)]
struct Ways {
    open: BTreeMap<WayKey, (u64, AddressHandle)>,
    uses: u64,
}

impl Ways {
    fn get(&mut self, key: &WayKey) -> Option<&AddressHandle> {
        self.uses += 1;
        let (used, ah) = self.open.get_mut(key)?;
        *used = self.uses;
        Some(ah)
    }

    fn insert(&mut self, key: WayKey, ah: AddressHandle) {
        if self.open.len() >= WAYS {
            let oldest = self.open.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
            oldest.map(|oldest| self.open.remove(&oldest));
        }
        self.uses += 1;
        self.open.insert(key, (self.uses, ah));
    }
}

/// QP 1 of a device, and its thread's.
pub(super) struct Gsi {
    key: DeviceKey,
    line: Arc<Line>,
    qp: QueuePair,
    cq: CompletionQueue,
    receives: Buffer,
    ways: Ways,
    /// MADs whose ways are looked for.
    sought: BTreeMap<WayKey, Vec<Outgoing>>,
    seekers: Pool,
    /// Sends that have not completed.
    under_way: u32,
}

impl Gsi {
    pub(super) fn new(key: DeviceKey, line: &Arc<Line>) -> Result<Self, DeviceError> {
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
        let (ways, sought) = (Ways::default(), BTreeMap::new());
        let seekers = Pool::new("feroce-cm-mads", THREADS);
        let line = Arc::clone(line);
        let mut gsi = Self { key, line, qp, cq, receives, ways, sought, seekers, under_way: 0 };
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
    pub(super) fn serve(mut self, shared: &Shared) {
        let fds = [self.cq.fd().as_raw_fd(), self.line.wake.as_fd().as_raw_fd()];
        let mut scratch = Vec::new();
        while !shared.stop.load(Ordering::Acquire) {
            self.line.wake.clear();
            shared.with(|endpoint, now| endpoint.expire(now));
            self.take_found();
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
            self.send_or_drop(outgoing);
        }
    }

    fn send_or_drop(&mut self, outgoing: Outgoing) {
        if let Err(error) = self.send(outgoing) {
            self.drop_unsent(&outgoing, &error);
        }
    }

    /// It will be sent again, if it needs an answer.
    fn drop_unsent(&self, outgoing: &Outgoing, why: &dyn std::error::Error) {
        self.line.unsent.fetch_sub(1, Ordering::AcqRel);
        tracing::debug!("MAD to {}: {why}", outgoing.remote);
    }

    fn send(&mut self, outgoing: Outgoing) -> Result<(), SendError> {
        let key = (outgoing.local, outgoing.remote, outgoing.traffic_class);
        if let Some(waiting) = self.sought.get_mut(&key) {
            if waiting.len() >= WAITING {
                return Err(SendError::TooMany);
            }
            waiting.push(outgoing);
            return Ok(());
        }
        if self.ways.get(&key).is_none() {
            let path = self.path(&outgoing)?;
            match self.qp.pd.create_ah_within(&path, Duration::ZERO) {
                Ok(ah) => self.ways.insert(key, ah),
                Err(DeviceError::Path { source: ResolveError::Unresolved { .. }, .. }) => {
                    return self.seek(key, path, outgoing);
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.post(&key, &outgoing)
    }

    fn path(&self, outgoing: &Outgoing) -> Result<Path, SendError> {
        let own = Gid::from(outgoing.local);
        let gids = self.line.device.gids();
        let index = gids.into_iter().find(|(_, entry)| entry.gid == own);
        let (index, _) = index.ok_or(SendError::AddressGone)?;
        let path = Path::new(Gid::from(outgoing.remote), index);
        Ok(Path { traffic_class: outgoing.traffic_class, ..path })
    }

    /// Has a thread wait for the neighbour.
    fn seek(&mut self, key: WayKey, path: Path, outgoing: Outgoing) -> Result<(), SendError> {
        if self.sought.len() >= SOUGHT {
            return Err(SendError::TooMany);
        }
        let (pd, line) = (self.qp.pd.clone(), Arc::clone(&self.line));
        self.seekers.run(Box::new(move || {
            let found = pd.create_ah_within(&path, PATH_TIMEOUT);
            lock(&line.found).push((key, found));
            line.wake.signal();
        }))?;
        self.sought.insert(key, vec![outgoing]);
        Ok(())
    }

    /// Sends what has waited for ways that are found.
    fn take_found(&mut self) {
        let found = std::mem::take(&mut *lock(&self.line.found));
        for (key, found) in found {
            let waiting = self.sought.remove(&key).unwrap_or_default();
            match found {
                Ok(ah) => {
                    self.ways.insert(key, ah);
                    // Ahead of those that have come since, in their order.
                    let mut line = lock(&self.line.waiting);
                    waiting.into_iter().rev().for_each(|outgoing| line.push_front(outgoing));
                }
                Err(error) => {
                    waiting.iter().for_each(|outgoing| self.drop_unsent(outgoing, &error));
                }
            }
        }
    }

    fn post(&mut self, key: &WayKey, outgoing: &Outgoing) -> Result<(), SendError> {
        let Some(ah) = self.ways.get(key) else { return Err(SendError::AddressGone) };
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
    #[error("too many wait for neighbours")]
    TooMany,
    #[error(transparent)]
    System(#[from] std::io::Error),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Post(#[from] PostError),
}
