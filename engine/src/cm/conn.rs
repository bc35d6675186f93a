//! State of one identifier.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use feroce_wire::cm::{PortSpace, ServiceId};
use feroce_wire::{MAD_LEN, Psn, Qpn};

use super::state::{Phase, State};
use super::types::{CmId, Ece, Outgoing, Parameters, Path, QpKind, Resend};
use crate::time::Instant;

/// One identifier: a listener, a connection or a SIDR exchange.
#[derive(Debug)]
pub(super) struct Conn {
    pub space: PortSpace,
    pub kind: QpKind,
    pub phase: Phase,
    pub state: State,
    /// The program has destroyed the identifier. It ends its connection and is removed; no events
    /// are queued.
    pub is_destroyed: bool,

    /// Local address, once bound.
    pub source: Option<SocketAddr>,
    /// Peer's address.
    pub destination: Option<SocketAddr>,
    pub path: Option<Path>,
    pub reuse_address: bool,
    /// See [`Self::excludes_other_family`]. `None`: the program has not chosen.
    pub v6_only: Option<bool>,
    pub traffic_class: u8,
    /// ACK timeout code chosen by the program.
    pub ack_timeout_set: Option<u8>,

    /// Listener: maximum and current number of requests that the program has not taken yet.
    pub backlog: u32,
    pub waiting: u32,
    /// Listener: these requests by their source.
    pub waiting_of: BTreeMap<IpAddr, u32>,
    /// Incoming connection: its listener, and whether the program has taken it.
    pub listener: Option<CmId>,
    pub taken: bool,

    pub peer: Peer,
    pub local_qpn: Qpn,
    /// PSN of the peer's first packet to the local QP.
    pub local_psn: Psn,
    pub local_ece: Ece,
    /// Parameters of the local QP.
    pub agreed: Parameters,
    pub ack_timeout: u8,
    /// Timeout and number of retransmissions.
    pub retry: RetryPolicy,
    pub transaction: u64,
    /// An MRA was sent: the peer retransmits rarely.
    pub mra_sent: bool,
    /// The connection was established: the peer sends no further REQ.
    pub was_established: bool,

    pub resend: Option<Resend>,
    /// Time from which the response to a copy of the REQ is an MRA.
    pub mra_from: Instant,
    /// The RTU, to repeat it if the peer repeats its REP.
    pub rtu: Option<[u8; MAD_LEN]>,
    pub timewait: Option<Instant>,
    /// Deadline that the endpoint's timer is set to.
    pub armed: Option<Instant>,
}

/// Known properties of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peer {
    /// Peer's communication ID; for SIDR, its request ID.
    pub comm_id: Option<u32>,
    pub guid: u64,
    pub qpn: Qpn,
    /// PSN of the first packet that the local QP sends, chosen by the peer.
    pub psn: Psn,
    pub service: ServiceId,
    pub ece: Ece,
}

/// Retransmission of a message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetryPolicy {
    pub interval: crate::time::Duration,
    pub retries: u8,
}

impl Conn {
    pub fn new(space: PortSpace, kind: QpKind, local_psn: Psn) -> Self {
        Self {
            space,
            kind,
            phase: Phase::Idle,
            state: State::Idle,
            is_destroyed: false,
            source: None,
            destination: None,
            path: None,
            reuse_address: false,
            v6_only: None,
            traffic_class: 0,
            ack_timeout_set: None,
            backlog: 0,
            waiting: 0,
            waiting_of: BTreeMap::new(),
            listener: None,
            taken: true,
            peer: Peer::default(),
            local_qpn: Qpn::default(),
            local_psn,
            local_ece: Ece::default(),
            agreed: Parameters::default(),
            ack_timeout: 0,
            retry: RetryPolicy::default(),
            transaction: 0,
            mra_sent: false,
            was_established: false,
            resend: None,
            mra_from: Instant::ZERO,
            rtu: None,
            timewait: None,
            armed: None,
        }
    }

    /// Returns true if `ip`, to which the identifier is bound, does not include addresses of the
    /// other family.
    pub fn excludes_other_family(&self, ip: IpAddr) -> bool {
        self.v6_only.unwrap_or(ip.is_ipv4())
    }

    /// Listener: returns true if its backlog has no room for another request from `source`. All
    /// sources together may have a quarter more than one, so that one cannot keep others out.
    pub fn is_backlog_full(&self, source: IpAddr) -> bool {
        let of_source = self.waiting_of.get(&source).copied().unwrap_or(0);
        of_source >= self.backlog || self.waiting >= self.backlog + self.backlog.div_ceil(4)
    }

    /// Listener: a request from `source` waits for the program.
    pub fn add_waiting(&mut self, source: IpAddr) {
        self.waiting += 1;
        *self.waiting_of.entry(source).or_default() += 1;
    }

    /// Listener: the program has taken a request from `source`.
    pub fn remove_waiting(&mut self, source: IpAddr) {
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(count) = self.waiting_of.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.waiting_of.remove(&source);
            }
        }
    }

    /// Returns the earliest deadline: retransmission or end of timewait.
    pub fn deadline(&self) -> Option<Instant> {
        let resend = self.resend.as_ref().map(Resend::next);
        [resend, self.timewait].into_iter().flatten().min()
    }

    /// Addresses `mad` to the peer. `None` without a path.
    pub fn outgoing(&self, mad: [u8; MAD_LEN]) -> Option<Outgoing> {
        let path = self.path.as_ref()?;
        let (device, local, remote) = (path.device, path.local, path.remote);
        Some(Outgoing { device, local, remote, traffic_class: path.traffic_class, mad })
    }

    /// Returns the key that late copies of the peer's REQ carry.
    pub fn request_key(&self) -> Option<(u64, u32)> {
        Some((self.peer.guid, self.peer.comm_id?))
    }

    /// Returns the key that late copies of the peer's SIDR REQ carry.
    pub fn sidr_key(&self) -> Option<(IpAddr, u32)> {
        Some((self.path.as_ref()?.remote, self.peer.comm_id?))
    }
}
