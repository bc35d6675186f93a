//! What a program posts in a scenario, and what may become of it.

use std::time::Duration;

use feroce_engine::verbs::Status;

use super::layout::{Area, Range};

/// What a send request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    Send,
    /// SEND with this immediate.
    SendImm(u32),
    /// SEND that invalidates the key of an area of the peer.
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
    /// It consumes a receive of the peer.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInvalidate | Self::WriteImm(_))
    }

    /// It is one of the SENDs.
    pub fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInvalidate)
    }

    /// It is one of the WRITEs.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm(_))
    }

    /// It is an atomic.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd(_))
    }

    /// It is answered with data.
    pub fn returns_data(self) -> bool {
        self == Self::Read || self.is_atomic()
    }
}

/// A place in the peer's memory as the request names it, right or wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// The region.
    pub area: Area,
    /// From where; may lie outside.
    pub offset: usize,
    /// The key is not the region's.
    pub wrong_key: bool,
}

/// What is wrong with a send request. What must come of it is in [`Flaw::failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flaw {
    /// An entry has a wrong key.
    LocalKey,
    /// An entry leaves its region.
    LocalBounds,
    /// READ or atomic into memory that may not be written.
    LocalRights,
    /// An atomic whose entry has not eight bytes.
    AtomicLength,
    /// READ or atomic on a QP with an initiator depth of 0.
    NoDepth,
    /// The remote key is wrong.
    RemoteKey,
    /// The remote range ends outside its region.
    RemoteBounds,
    /// The remote range is so placed that address plus length wraps into the region.
    RemoteWrap,
    /// The remote region does not allow it.
    RemoteRights,
    /// The remote region belongs to another protection domain.
    RemoteDomain,
    /// An atomic at an odd address.
    Misaligned,
    /// The key to invalidate is wrong, or does not allow it.
    NotInvalidatable,
    /// The peer's QP does not allow it.
    QpRights,
    /// The key was invalidated by a request before.
    Invalidated,
}

/// What the peer's program sees of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Nothing.
    Unaware,
    /// An asynchronous event.
    Event(Trouble),
    /// A receive that completes with this status.
    Receive(Status),
}

/// The asynchronous events of a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Access error.
    Access,
    /// Request error.
    Request,
}

/// How a request fails, at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Status of its completion.
    pub requester: Status,
    /// What the peer sees.
    pub peer: Peer,
}

/// Refused with an access error.
pub const ACCESS: Failure =
    Failure { requester: Status::RemoteAccess, peer: Peer::Event(Trouble::Access) };
/// Refused as invalid.
pub const INVALID: Failure =
    Failure { requester: Status::RemoteInvalidRequest, peer: Peer::Event(Trouble::Request) };
/// The requester's own memory is not registered for it.
pub const LOCAL_PROTECTION: Failure = local(Status::LocalProtection);
/// The message is longer than the receive.
pub const TOO_LONG: Failure =
    Failure { requester: Status::RemoteInvalidRequest, peer: Peer::Receive(Status::LocalLength) };
/// The receive names memory that is not registered for it.
pub const BAD_RECEIVE: Failure =
    Failure { requester: Status::RemoteOperational, peer: Peer::Receive(Status::LocalProtection) };
/// An access error of a WRITE that carries its immediate in the same packet.
const ACCESS_TIED: Failure =
    Failure { requester: Status::RemoteAccess, peer: Peer::Receive(Status::LocalAccess) };

/// A READ that came again when its memory had gone, so that the peer's QP lives on; or whose memory went while
/// a QP that was in ERR already answered it.
pub const READ_GONE: Failure = local(Status::RemoteAccess);

const fn local(requester: Status) -> Failure {
    Failure { requester, peer: Peer::Unaware }
}

impl Flaw {
    /// Every flaw.
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

    /// How a request with the flaw fails. `tied`: its first packet carries an immediate.
    pub fn failure(self, tied: bool) -> Failure {
        match self {
            Self::LocalKey | Self::LocalBounds | Self::LocalRights => LOCAL_PROTECTION,
            Self::AtomicLength => local(Status::LocalLength),
            Self::NoDepth => local(Status::LocalQpOperation),
            Self::Misaligned | Self::QpRights => INVALID,
            Self::RemoteKey
            | Self::RemoteBounds
            | Self::RemoteWrap
            | Self::RemoteRights
            | Self::RemoteDomain
            | Self::Invalidated
                if tied =>
            {
                ACCESS_TIED
            }
            _ => ACCESS,
        }
    }

    /// It never leaves the requester.
    pub fn is_local(self) -> bool {
        self.failure(false).peer == Peer::Unaware
    }
}

/// A region that goes away while a request uses it: the request may succeed or fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doom {
    /// Whose region.
    pub end: usize,
    /// Which.
    pub area: Area,
    /// How the request may fail.
    pub failures: &'static [Failure],
}

/// A send request of a scenario.
#[derive(Debug, Clone)]
pub struct Request {
    /// Not posted before.
    pub at: Duration,
    /// What.
    pub op: Op,
    /// Entries: sources of SEND and WRITE, destinations of READ and atomics.
    pub local: Vec<Range>,
    /// The data are copied at posting.
    pub inline: bool,
    /// Where in the peer's memory.
    pub remote: Option<Remote>,
    /// The bytes that move, either way.
    pub payload: Vec<u8>,
    /// Waits for READs and atomics before.
    pub fence: bool,
    /// Completes with an entry.
    pub signaled: bool,
    /// Asks the peer for an event.
    pub solicited: bool,
    /// What is wrong with it.
    pub flaw: Option<Flaw>,
    /// What may go wrong with it.
    pub doom: Option<Doom>,
    /// A later request uses the local bytes.
    pub keeps_local: bool,
    /// A later request uses the remote bytes.
    pub keeps_remote: bool,
    /// It is an atomic on the word that all QPs of an end share; the result is not known in advance.
    pub shared_word: bool,
}

impl Request {
    /// A request without anything special.
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
            doom: None,
            keeps_local: false,
            keeps_remote: false,
            shared_word: false,
        }
    }

    /// The range of the peer `peer` that it writes or reads, if it names one rightly.
    pub fn remote_range(&self, peer: usize) -> Option<Range> {
        let Remote { area, offset, .. } = self.remote?;
        let whole = self.flaw.is_none() && !self.payload.is_empty() && !self.op.is_send();
        whole.then_some(Range { end: peer, area, offset, len: self.payload.len() })
    }

    /// How it must fail, given the receive that it meets; the number says how many of its bytes arrive.
    pub fn must_fail(&self, receive: Option<&Receive>, mtu: usize) -> Option<(Failure, usize)> {
        let last = self.payload.len().div_ceil(mtu).max(1) - 1;
        let own = |flaw: Flaw| match flaw {
            Flaw::NotInvalidatable => (last, flaw.failure(false)),
            _ => (0, flaw.failure(last == 0 && matches!(self.op, Op::WriteImm(_)))),
        };
        let own = self.flaw.map(own);
        let leaves = !self.flaw.is_some_and(Flaw::is_local);
        let receive = receive.filter(|_| leaves && self.op.is_send());
        let met = receive.and_then(|receive| self.meets(receive, mtu));
        // The earlier packet decides; in the same packet the length is checked first, then the key to
        // invalidate, then the receive's memory.
        let first = match (own, met) {
            (Some(own), Some(met)) if met.0 < own.0 || (met.0 == own.0 && met.1 == TOO_LONG) => met,
            (Some(own), _) => own,
            (None, met) => met?,
        };
        Some((first.1, first.0 * mtu))
    }

    /// The packet with which a SEND fails because of the receive.
    fn meets(&self, receive: &Receive, mtu: usize) -> Option<(usize, Failure)> {
        if receive.wrong_key && !self.payload.is_empty() {
            let short = self.payload.len().min(mtu) > receive.capacity();
            return Some((0, if short { TOO_LONG } else { BAD_RECEIVE }));
        }
        // The first packet that ends beyond the capacity.
        (self.payload.len() > receive.capacity()).then(|| (receive.capacity() / mtu, TOO_LONG))
    }
}

/// A receive of a scenario.
#[derive(Debug, Clone)]
pub struct Receive {
    /// Not posted before.
    pub at: Duration,
    /// Entries.
    pub local: Vec<Range>,
    /// The first entry that is not empty has a wrong key.
    pub wrong_key: bool,
    /// What may go wrong with it.
    pub doom: Option<Doom>,
}

impl Receive {
    /// Bytes that fit.
    pub fn capacity(&self) -> usize {
        self.local.iter().map(|range| range.len).sum()
    }
}

/// What a program does besides posting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Moves a QP to ERR.
    Kill {
        /// Which pair.
        pair: usize,
        /// Which end of it.
        end: usize,
    },
    /// Moves a QP to SQD.
    Drain {
        /// Which pair.
        pair: usize,
        /// Which end of it.
        end: usize,
    },
    /// Moves it back to RTS.
    Resume {
        /// Which pair.
        pair: usize,
        /// Which end of it.
        end: usize,
    },
    /// Cuts the wire: nothing that an end sends arrives.
    Cut {
        /// Which end; `None` for both.
        from: Option<usize>,
    },
    /// The wire is as before.
    Mend,
    /// Deregisters a region.
    Withdraw {
        /// Whose.
        end: usize,
        /// Which.
        area: Area,
    },
}
