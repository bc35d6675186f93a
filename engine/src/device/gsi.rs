//! The thread of QP 1: passes received MADs to the endpoint, and wakes at its deadlines.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_wire::MAD_LEN;

use super::CompletionQueue;
use super::cm_channel::{DeviceChannel, Shared, lock};
use crate::cm::{DeviceKey, Source};
use crate::sys;
use crate::time::Duration;
use crate::verbs::{Completion, DatagramSource, GRH_LEN, NetworkHeader, Notify, Status};

/// How soon the thread looks again at MADs for which the port had no room.
const NO_ROOM: Duration = Duration::from_millis(1);

/// The receiving side of QP 1 of a device, owned by its thread.
pub(super) struct Gsi {
    key: DeviceKey,
    channel: Arc<DeviceChannel>,
    /// CQ of the receives.
    cq: CompletionQueue,
}

impl Gsi {
    /// `cq`: the CQ of the receives.
    pub(super) fn new(key: DeviceKey, channel: &Arc<DeviceChannel>, cq: CompletionQueue) -> Self {
        Self { key, channel: Arc::clone(channel), cq }
    }

    /// Runs the thread until the connection manager is dropped.
    pub(super) fn serve(self, shared: &Shared) {
        let fds = [self.cq.as_raw_fd(), self.channel.wake().as_fd().as_raw_fd()];
        let mut scratch = Vec::new();
        while !shared.stop.load(Ordering::Acquire) {
            shared.with(|endpoint, now| endpoint.expire(now));
            let is_sent = self.channel.send_resolved();
            // Only pops: the core's helper receives, and wakes this thread.
            while let Some(completion) = self.cq.pop() {
                self.on_completion(&completion, shared);
            }
            // Completions that arrived since then make the descriptor readable at once.
            self.cq.request_notify(Notify::Any);
            let deadline = self.channel.begin_sleep(&lock(&shared.endpoint));
            let mut timeout = deadline.map(|due| due.saturating_since(shared.clock.now()));
            if !is_sent {
                timeout = Some(timeout.map_or(NO_ROOM, |timeout| timeout.min(NO_ROOM)));
            }
            sys::poll_readable(&fds, &mut scratch, timeout);
            self.channel.end_sleep();
            if scratch.get(1).is_none_or(|wake| wake.revents != 0) {
                self.channel.wake().clear();
            }
        }
    }

    fn on_completion(&self, completion: &Completion, shared: &Shared) {
        let slot = u32::try_from(completion.wr_id).unwrap_or(0);
        let mut bytes = [0; GRH_LEN + MAD_LEN];
        {
            let mut qp = lock(&self.channel.qp);
            qp.read_receive(slot, &mut bytes);
            qp.post_receive(slot);
        }
        if completion.status != Status::Success {
            return;
        }
        let (grh, mad) = bytes.split_at(GRH_LEN);
        let length = completion.byte_len as usize - GRH_LEN.min(completion.byte_len as usize);
        if let (Some(from), MAD_LEN) = (self.source(completion.datagram.as_ref(), grh), length) {
            let understood = shared.with(|endpoint, now| endpoint.receive(mad, &from, now));
            if let Err(error) = understood {
                tracing::debug!("MAD from {}: {error}", from.remote);
            }
        }
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
}
