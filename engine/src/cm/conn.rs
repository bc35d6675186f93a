//! What an identifier knows.

use std::net::{IpAddr, SocketAddr};

use feroce_wire::cm::{PortSpace, ServiceId};
use feroce_wire::{MAD_LEN, Psn, Qpn};

use super::state::{Phase, State};
use super::types::{CmId, Ece, Outgoing, Parameters, Path, QpKind, Resend};
use crate::time::Instant;

/// An identifier.
#[derive(Debug)]
pub(super) struct Conn {
    pub space: PortSpace,
    pub kind: QpKind,
    pub phase: Phase,
    pub state: State,
    /// Destroyed by the program: it ends its conversation and goes. Nothing is told any more.
    pub orphan: bool,

    /// Own address, once bound.
    pub source: Option<SocketAddr>,
    /// The peer's.
    pub destination: Option<SocketAddr>,
    pub path: Option<Path>,
    pub reuse_address: bool,
    pub v6_only: bool,
    pub traffic_class: u8,
    /// Chosen acknowledgement timeout.
    pub ack_timeout_set: Option<u8>,

    /// Of a listener: how many requests may wait to be taken by the program, and how many do.
    pub backlog: u32,
    pub waiting: u32,
    /// Of a connection that came in: through whom, and whether the program has taken it.
    pub listener: Option<CmId>,
    pub taken: bool,

    pub peer: Peer,
    pub local_qpn: Qpn,
    /// The PSN that the peer begins with.
    pub local_psn: Psn,
    pub local_ece: Ece,
    /// What the QP is set to.
    pub agreed: Parameters,
    pub ack_timeout: u8,
    /// How long the peer may take to answer, and how often it is asked.
    pub patience: Patience,
    pub transaction: u64,
    /// The peer was told that its request takes longer: it will ask again late.
    pub is_slow: bool,
    /// It stood: the peer asks no more.
    pub has_stood: bool,

    pub resend: Option<Resend>,
    /// The RTU, for a peer that has not got it.
    pub rtu: Option<[u8; MAD_LEN]>,
    pub timewait: Option<Instant>,
    /// When its timer is set to.
    pub armed: Option<Instant>,
}

/// What is known of the other end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peer {
    /// Its name for the connection; of a question, the question's.
    pub comm_id: Option<u32>,
    pub guid: u64,
    pub qpn: Qpn,
    /// The PSN that it wants us to begin with.
    pub psn: Psn,
    pub service: ServiceId,
    pub ece: Ece,
}

/// How messages are sent again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
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
            orphan: false,
            source: None,
            destination: None,
            path: None,
            reuse_address: false,
            v6_only: false,
            traffic_class: 0,
            ack_timeout_set: None,
            backlog: 0,
            waiting: 0,
            listener: None,
            taken: true,
            peer: Peer::default(),
            local_qpn: Qpn::default(),
            local_psn,
            local_ece: Ece::default(),
            agreed: Parameters::default(),
            ack_timeout: 0,
            patience: Patience::default(),
            transaction: 0,
            is_slow: false,
            has_stood: false,
            resend: None,
            rtu: None,
            timewait: None,
            armed: None,
        }
    }

    /// When something is to be done although nothing comes in.
    pub fn deadline(&self) -> Option<Instant> {
        let resend = self.resend.as_ref().map(|resend| resend.due);
        [resend, self.timewait].into_iter().flatten().min()
    }

    /// `mad` to the peer; `None` if no way is known.
    pub fn outgoing(&self, mad: [u8; MAD_LEN]) -> Option<Outgoing> {
        let path = self.path.as_ref()?;
        let (device, local, remote) = (path.device, path.local, path.remote);
        Some(Outgoing { device, local, remote, traffic_class: path.traffic_class, mad })
    }

    /// Under which name a late copy of the peer's request is known.
    pub fn request_key(&self) -> Option<(u64, u32)> {
        Some((self.peer.guid, self.peer.comm_id?))
    }

    /// Under which name a late copy of the peer's question is known.
    pub fn question_key(&self) -> Option<(IpAddr, u32)> {
        Some((self.path.as_ref()?.remote, self.peer.comm_id?))
    }
}
