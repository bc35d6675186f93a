//! The state of a client, which is an attached program: its rings, its statistics and what it may
//! send.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use feroce_wire::{MacAddr, Qpn};

use crate::memory::frame_ring::{FrameConsumer, FrameProducer};
use crate::port::Priority;
use crate::port::daemon::protocol::ProgramFrames;
use crate::time::{Duration, Instant};

/// Number of a program that is or was attached. A number is not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientId(pub u32);

/// Where a frame comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    Link,
    /// This host: a client, or the daemon itself. Contains the client for a datagram to a multicast
    /// group, which the client has delivered to its own QPs already.
    Host(Option<ClientId>),
}

/// A program whose ring stays full for this time is detached: it is stopped or stuck, for longer
/// than any peer waits.
pub(super) const STALLED_AFTER: Duration = Duration::from_secs(10);

/// Sources of marked datagrams that a client may send CNPs to: the latest ones.
const MARKED_SOURCES: usize = 64;

/// Who runs a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub user: u32,
    /// Process id in the daemon's namespace; 0 if it has none there.
    pub pid: i32,
    /// Name of the program, as the program states it.
    pub program: String,
}

/// A program that is attached.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) credentials: Credentials,
    pub(super) stats: ProgramFrames,
    from_client: FrameConsumer,
    to_client: FrameProducer,
    /// Frames of the current burst of `from_client`, and how many of them are done.
    burst: (usize, usize),
    /// `to_client` has frames that are not published yet.
    has_unpublished: bool,
    /// Time of the first frame that did not fit, since a frame last did.
    full_since: Option<Instant>,
    /// The client's deficit counter: bytes that it may still send in the current round. Negative
    /// after a drain, until later quanta have made up for the drained bytes.
    pub(super) deficit: isize,
    /// The client sends nothing before this time, because its user has used up a rate.
    pub(super) throttled_until: Option<Instant>,
    pub(super) permits: Permits,
    /// True once the client has mapped its rings. No frame is moved before.
    pub(super) is_ready: bool,
    /// Number of QP numbers that the client has.
    pub(super) qp_numbers: u32,
    /// Number of ports of RDMA CM that the client is bound to.
    pub(super) services: usize,
}

/// The destinations that a client may send to, and the groups it receives.
#[derive(Debug, Default)]
pub(super) struct Permits {
    /// The peers of the client's connected QPs, on this host or others, and the client's QP of
    /// each.
    peers: BTreeMap<(IpAddr, Qpn), Qpn>,
    /// The peer of each connected QP of the client.
    connected: BTreeMap<Qpn, (IpAddr, Qpn)>,
    /// Ethernet addresses of next hops that the client has resolved.
    pub(super) next_hops: BTreeSet<MacAddr>,
    /// Groups that the client receives.
    pub(super) groups: BTreeSet<IpAddr>,
    /// Sources of datagrams that arrived with a congestion mark, the latest last.
    marked: VecDeque<(IpAddr, Qpn)>,
}

impl Permits {
    /// Allows packets from `local` to `remote_qpn` of `remote`, in place of the earlier peer of
    /// `local`.
    pub(super) fn connect(&mut self, local: Qpn, remote: IpAddr, remote_qpn: Qpn) {
        self.disconnect(local);
        self.peers.insert((remote, remote_qpn), local);
        self.connected.insert(local, (remote, remote_qpn));
    }

    /// Ends the permission of `local`.
    pub(super) fn disconnect(&mut self, local: Qpn) {
        let Some(peer) = self.connected.remove(&local) else { return };
        if self.peers.get(&peer) == Some(&local) {
            self.peers.remove(&peer);
        }
    }

    /// Returns true if a QP of the client is connected to `remote_qpn` of `remote`.
    #[inline]
    pub(super) fn is_peer(&self, remote: IpAddr, remote_qpn: Qpn) -> bool {
        self.peers.contains_key(&(remote, remote_qpn))
    }

    /// The peer of the client's QP `local`.
    pub(super) fn peer_of(&self, local: Qpn) -> Option<(IpAddr, Qpn)> {
        self.connected.get(&local).copied()
    }

    /// Ends the permission of any QP to send to `remote_qpn` of `remote`, except for `local`.
    pub(super) fn evict(&mut self, (remote, remote_qpn): (IpAddr, Qpn), local: Qpn) {
        if let Some(other) = self.peers.get(&(remote, remote_qpn)).copied()
            && other != local
        {
            self.disconnect(other);
        }
    }

    /// The connected QPs with their peers.
    pub(super) fn connected(&self) -> impl Iterator<Item = (Qpn, (IpAddr, Qpn))> {
        self.connected.iter().map(|(local, peer)| (*local, *peer))
    }

    /// Records that a datagram with a congestion mark came from `source`.
    pub(super) fn note_marked(&mut self, source: (IpAddr, Qpn)) {
        if self.is_marked(source) {
            return;
        }
        if self.marked.len() == MARKED_SOURCES {
            self.marked.pop_front();
        }
        self.marked.push_back(source);
    }

    /// Returns true if a datagram with a congestion mark came from `source` recently.
    pub(super) fn is_marked(&self, source: (IpAddr, Qpn)) -> bool {
        self.marked.contains(&source)
    }
}

impl Client {
    pub(super) fn new(
        id: ClientId,
        credentials: Credentials,
        from_client: FrameConsumer,
        to_client: FrameProducer,
    ) -> Self {
        Self {
            id,
            credentials,
            stats: ProgramFrames::default(),
            from_client,
            to_client,
            burst: (0, 0),
            has_unpublished: false,
            full_since: None,
            deficit: 0,
            throttled_until: None,
            permits: Permits::default(),
            is_ready: false,
            qp_numbers: 0,
            services: 0,
        }
    }

    /// Passes a frame of another client of this host. Such frames may fill half of the ring: the
    /// other half is for frames from the link.
    pub(super) fn push_from_host(&mut self, frame: &[u8], now: Instant) {
        match self.to_client.fill() < 50 {
            true => self.push(frame, &[], now),
            false => self.stats.rx_dropped += 1,
        }
    }

    /// Passes a frame to the client. The frame is lost if the client's ring is full.
    #[inline]
    pub(super) fn push(&mut self, first: &[u8], second: &[u8], now: Instant) {
        if !self.is_ready {
            self.stats.rx_dropped += 1;
        } else if self.to_client.push(first, second, Priority::default()) {
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += (first.len() + second.len()) as u64;
            self.has_unpublished = true;
            self.full_since = None;
        } else {
            self.stats.rx_dropped += 1;
            self.full_since = self.full_since.or(Some(now));
        }
    }

    /// Makes the frames passed since the last call visible to the client.
    #[inline]
    pub(super) fn publish(&mut self) {
        if std::mem::take(&mut self.has_unpublished) {
            self.to_client.publish();
        }
    }

    /// Length of the client's next frame; `None` if there is none.
    #[inline]
    pub(super) fn next_len(&mut self) -> Option<usize> {
        if !self.is_ready {
            return None;
        }
        if self.burst.1 == self.burst.0 {
            self.burst = (self.from_client.burst(), 0);
        }
        (self.burst.1 < self.burst.0).then(|| self.from_client.len(self.burst.1))
    }

    /// Copies the client's next frame to `out`. Returns its length, its priority, and whether it
    /// may share a super-frame with the frame before; `None` if the frame does not fit.
    ///
    /// # Panics
    /// If the client has no next frame.
    #[inline]
    pub(super) fn take(&mut self, out: &mut [u8]) -> Option<(usize, Priority, bool)> {
        let copied = self.from_client.copy(self.burst.1, out);
        self.burst.1 += 1;
        copied
    }

    /// Prepares to sleep until the client has frames, and appends the descriptor to wait for.
    /// Returns false if there are frames that may be sent now. The frames of a throttled client do
    /// not end the sleep.
    pub(super) fn arm(&mut self, fds: &mut Vec<std::os::fd::RawFd>) -> bool {
        if self.throttled_until.is_some() {
            return true;
        }
        let is_quiet = self.next_len().is_none() && self.from_client.arm();
        if is_quiet {
            fds.push(self.from_client.fd());
        }
        is_quiet
    }

    /// Undoes [`Self::arm`].
    pub(super) fn disarm(&mut self) {
        self.from_client.disarm();
    }

    /// Why the client must be detached: it has written impossible values into its rings, or takes
    /// no frames.
    pub(super) fn fault(&self, now: Instant) -> Option<&'static str> {
        if self.from_client.is_corrupt() || self.to_client.is_corrupt() {
            return Some("its rings are corrupt");
        }
        let is_stalled =
            self.full_since.is_some_and(|since| now.saturating_since(since) >= STALLED_AFTER);
        is_stalled.then_some("it takes no frames: stopped, or stuck")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qp_has_one_peer_at_a_time() {
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let qpn = Qpn::masked;
        let mut permits = Permits::default();
        permits.connect(qpn(5), a, qpn(7));
        permits.connect(qpn(6), a, qpn(8));
        assert!(permits.is_peer(a, qpn(7)) && !permits.is_peer(b, qpn(7)));
        permits.connect(qpn(5), b, qpn(9));
        assert!(!permits.is_peer(a, qpn(7)) && permits.is_peer(b, qpn(9)));
        permits.connect(qpn(6), b, qpn(9));
        permits.disconnect(qpn(5));
        assert!(permits.is_peer(b, qpn(9)), "the other QP still has this peer");
        permits.disconnect(qpn(6));
        assert_eq!((permits.peers.len(), permits.connected.len()), (0, 0));
    }

    #[test]
    fn marked_sources_are_bounded() {
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let mut permits = Permits::default();
        (0..100).for_each(|n| permits.note_marked((ip, Qpn::masked(n))));
        assert_eq!(permits.marked.len(), MARKED_SOURCES);
        assert!(permits.is_marked((ip, Qpn::masked(99))));
        assert!(!permits.is_marked((ip, Qpn::masked(35))));
    }
}
