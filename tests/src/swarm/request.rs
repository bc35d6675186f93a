//! The requests, receives and actions of the programs of a scenario, and how requests may fail.

use std::time::Duration;

use feroce_engine::verbs::Status;

use super::layout::{Area, Range};

/// Operation of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    Send,
    /// SEND with this immediate.
    SendImm(u32),
    /// SEND that invalidates the key of one of the peer's regions.
    SendInvalidate,
    /// WRITE.
    Write,
    /// WRITE with this immediate.
    WriteImm(u32),
    /// READ.
    Read,
    /// Compare and swap.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Fetch and add.
    FetchAdd(u64),
}

impl Op {
    /// Returns true if the request consumes a receive of the peer.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInvalidate | Self::WriteImm(_))
    }

    /// Returns true for all kinds of SEND.
    pub fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInvalidate)
    }

    /// Returns true for all kinds of WRITE.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm(_))
    }

    /// Returns true for atomics.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd(_))
    }

    /// Returns true if the response carries data.
    pub fn returns_data(self) -> bool {
        self == Self::Read || self.is_atomic()
    }
}

/// A remote address and key as the request names them, valid or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// The region.
    pub area: Area,
    /// Offset in the region; may be outside.
    pub offset: usize,
    /// The request carries another key than the region's.
    pub wrong_key: bool,
}

/// What is wrong with a send request. [`Flaw::failure`] says how the request must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flaw {
    /// A scatter/gather entry has a wrong key.
    LocalKey,
    /// A scatter/gather entry ends outside its region.
    LocalBounds,
    /// READ or atomic into local memory without write access.
    LocalRights,
    /// An atomic whose scatter/gather entry is not eight bytes long.
    AtomicLength,
    /// READ or atomic on a QP with an initiator depth of 0.
    NoDepth,
    /// The remote key is wrong.
    RemoteKey,
    /// The remote range ends outside its region.
    RemoteBounds,
    /// Address plus length of the remote range wraps around and ends inside the region.
    RemoteWrap,
    /// The remote region does not allow the operation.
    RemoteRights,
    /// The remote region belongs to another protection domain.
    RemoteDomain,
    /// An atomic at an address that is not a multiple of eight.
    Misaligned,
    /// The key to invalidate is wrong, or its region does not allow invalidation.
    NotInvalidatable,
    /// The peer's QP does not allow the operation.
    QpRights,
    /// An earlier request invalidated the key.
    Invalidated,
}

/// How the peer's program learns of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerReport {
    /// The peer's program does not learn of the failure.
    Nothing,
    /// An asynchronous event.
    Event(ErrorEvent),
    /// A receive that completes with this status.
    Receive(Status),
}

/// The asynchronous events that a refused request causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorEvent {
    /// Access error.
    Access,
    /// Request error.
    Request,
}

/// How a request fails, at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Status of the requester's completion.
    pub requester: Status,
    /// How the peer's program learns of the failure.
    pub peer: PeerReport,
}

/// Refused with an access error.
pub const ACCESS: Failure =
    Failure { requester: Status::RemoteAccess, peer: PeerReport::Event(ErrorEvent::Access) };
/// Refused as invalid.
pub const INVALID: Failure = Failure {
    requester: Status::RemoteInvalidRequest,
    peer: PeerReport::Event(ErrorEvent::Request),
};
/// The requester's local memory is not registered for the request.
pub const LOCAL_PROTECTION: Failure = local(Status::LocalProtection);
/// The message is longer than the receive.
pub const TOO_LONG: Failure = Failure {
    requester: Status::RemoteInvalidRequest,
    peer: PeerReport::Receive(Status::LocalLength),
};
/// The key to invalidate is wrong: the peer ends the connection without a NAK.
pub const NOT_INVALIDATED: Failure = Failure {
    requester: Status::RetryExceeded,
    peer: PeerReport::Receive(Status::RemoteInvalidRequest),
};
/// The receive uses memory that is not registered for it.
pub const BAD_RECEIVE: Failure = Failure {
    requester: Status::RemoteOperational,
    peer: PeerReport::Receive(Status::LocalProtection),
};
/// An access error of a WRITE with immediate that is a single packet: the receive is already
/// consumed.
const ACCESS_WITH_IMMEDIATE: Failure =
    Failure { requester: Status::RemoteAccess, peer: PeerReport::Receive(Status::LocalAccess) };

/// The region of a READ is deregistered, but the peer's program gets no event. Either the READ was
/// a duplicate, so the responder's QP stays in RTS, or the responder's QP was already in ERR.
pub const READ_GONE: Failure = local(Status::RemoteAccess);

const fn local(requester: Status) -> Failure {
    Failure { requester, peer: PeerReport::Nothing }
}

impl Flaw {
    /// All flaws.
    pub const ALL: [Self; 14] = [
        Self::LocalKey,
        Self::LocalBounds,
        Self::LocalRights,
        Self::AtomicLength,
        Self::NoDepth,
        Self::RemoteKey,
        Self::RemoteBounds,
        Self::RemoteWrap,
        Self::RemoteRights,
        Self::RemoteDomain,
        Self::Misaligned,
        Self::NotInvalidatable,
        Self::QpRights,
        Self::Invalidated,
    ];

    /// Returns how a request with the flaw fails. `with_immediate`: the first packet of the request
    /// carries an immediate.
    pub fn failure(self, with_immediate: bool) -> Failure {
        match self {
            Self::LocalKey | Self::LocalBounds | Self::LocalRights => LOCAL_PROTECTION,
            Self::AtomicLength => local(Status::LocalLength),
            Self::NoDepth => local(Status::LocalQpOperation),
            Self::Misaligned | Self::QpRights => INVALID,
            Self::NotInvalidatable => NOT_INVALIDATED,
            Self::RemoteKey
            | Self::RemoteBounds
            | Self::RemoteWrap
            | Self::RemoteRights
            | Self::RemoteDomain
            | Self::Invalidated
                if with_immediate =>
            {
                ACCESS_WITH_IMMEDIATE
            }
            _ => ACCESS,
        }
    }

    /// Returns true if the requester detects the flaw and sends nothing.
    pub fn is_local(self) -> bool {
        self.failure(false).peer == PeerReport::Nothing
    }
}

/// A region that is deregistered while a request uses it. The request may succeed or fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevocationRisk {
    /// End that the region belongs to.
    pub end: usize,
    /// The region.
    pub area: Area,
    /// Possible failures of the request.
    pub failures: &'static [Failure],
}

/// A send request of a scenario.
#[derive(Debug, Clone)]
pub struct Request {
    /// Earliest time of posting, since the start of the scenario.
    pub at: Duration,
    /// Operation.
    pub op: Op,
    /// Scatter/gather entries: source of a SEND or WRITE, destination of a READ or atomic.
    pub local: Vec<Range>,
    /// The data are inline: posting copies them.
    pub inline: bool,
    /// Remote address and key.
    pub remote: Option<Remote>,
    /// The bytes that the request moves, in either direction.
    pub payload: Vec<u8>,
    /// Fenced: waits for earlier READs and atomics.
    pub fence: bool,
    /// Generates a completion.
    pub signaled: bool,
    /// Solicited event for the peer.
    pub solicited: bool,
    /// Reason why the request must fail.
    pub flaw: Option<Flaw>,
    /// Region that is deregistered during the scenario, if the request uses one.
    pub risk: Option<RevocationRisk>,
    /// A later request uses the same local bytes, so they must not be overwritten.
    pub keeps_local: bool,
    /// A later request uses the same remote bytes, so they must not be overwritten.
    pub keeps_remote: bool,
    /// Fetch and add on the word that all QPs of an end share. Its result is not known in advance.
    pub shared_word: bool,
}

impl Request {
    /// Creates a signaled request without flags, remote address or flaw.
    pub fn new(at: Duration, op: Op, local: Vec<Range>, payload: Vec<u8>) -> Self {
        Self {
            at,
            op,
            local,
            inline: false,
            remote: None,
            payload,
            fence: false,
            signaled: true,
            solicited: false,
            flaw: None,
            risk: None,
            keeps_local: false,
            keeps_remote: false,
            shared_word: false,
        }
    }

    /// Returns the range at end `peer` that the request writes or reads, if its remote address and
    /// key are valid.
    pub fn remote_range(&self, peer: usize) -> Option<Range> {
        let Remote { area, offset, .. } = self.remote?;
        let whole = self.flaw.is_none() && !self.payload.is_empty() && !self.op.is_send();
        whole.then_some(Range { end: peer, area, offset, len: self.payload.len() })
    }

    /// Returns how the request must fail with the receive that it consumes, and how many of its
    /// bytes arrive before the failure.
    pub fn must_fail(&self, receive: Option<&Receive>, mtu: usize) -> Option<(Failure, usize)> {
        let last = self.payload.len().div_ceil(mtu).max(1) - 1;
        let flaw_failure = |flaw: Flaw| match flaw {
            Flaw::NotInvalidatable => (last, flaw.failure(false)),
            _ => (0, flaw.failure(last == 0 && matches!(self.op, Op::WriteImm(_)))),
        };
        let flaw_failure = self.flaw.map(flaw_failure);
        let is_sent = !self.flaw.is_some_and(Flaw::is_local);
        let receive = receive.filter(|_| is_sent && self.op.is_send());
        let from_receive = receive.and_then(|receive| self.receive_failure(receive, mtu));
        // The earlier packet decides. Within one packet the length is checked first, then the key
        // to invalidate, then the memory of the receive.
        let first = match (flaw_failure, from_receive) {
            (Some(flaw_failure), Some(from_receive))
                if from_receive.0 < flaw_failure.0
                    || (from_receive.0 == flaw_failure.0 && from_receive.1 == TOO_LONG) =>
            {
                from_receive
            }
            (Some(flaw_failure), _) => flaw_failure,
            (None, from_receive) => from_receive?,
        };
        Some((first.1, first.0 * mtu))
    }

    /// Returns the index of the packet at which a SEND fails because of the receive, and the
    /// failure.
    fn receive_failure(&self, receive: &Receive, mtu: usize) -> Option<(usize, Failure)> {
        if receive.wrong_key && !self.payload.is_empty() {
            let short = self.payload.len().min(mtu) > receive.capacity();
            return Some((0, if short { TOO_LONG } else { BAD_RECEIVE }));
        }
        // The first packet that ends beyond the capacity of the receive.
        (self.payload.len() > receive.capacity()).then(|| (receive.capacity() / mtu, TOO_LONG))
    }
}

/// A receive of a scenario.
#[derive(Debug, Clone)]
pub struct Receive {
    /// Earliest time of posting, since the start of the scenario.
    pub at: Duration,
    /// Scatter/gather entries.
    pub local: Vec<Range>,
    /// The first entry that is not empty has a wrong key.
    pub wrong_key: bool,
    /// Region that is deregistered during the scenario, if the request uses one.
    pub risk: Option<RevocationRisk>,
}

impl Receive {
    /// Returns the size of the receive in bytes.
    pub fn capacity(&self) -> usize {
        self.local.iter().map(|range| range.len).sum()
    }
}

/// An action of a program or of the wire, apart from posting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Moves a QP to ERR.
    Kill {
        /// Index of the pair.
        pair: usize,
        /// End of the pair.
        end: usize,
    },
    /// Moves a QP to SQD.
    Drain {
        /// Index of the pair.
        pair: usize,
        /// End of the pair.
        end: usize,
    },
    /// Moves a QP in SQD back to RTS.
    Resume {
        /// Index of the pair.
        pair: usize,
        /// End of the pair.
        end: usize,
    },
    /// Cuts the wire: it drops every frame that an end sends.
    Cut {
        /// Sending end; `None` for both.
        from: Option<usize>,
    },
    /// Ends the cut of the wire.
    Restore,
    /// Deregisters a region.
    Deregister {
        /// End that the region belongs to.
        end: usize,
        /// The region.
        area: Area,
    },
}
