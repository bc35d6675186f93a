//! Work requests: what a program asks of a QP, and how that lies in its work queues.

use std::ops::{BitOr, BitOrAssign};

use feroce_wire::{Key, PlacementType, Psn, Selectivity};

use super::completion::CompletionOpcode;
use crate::memory::WindowBind;
pub use crate::memory::work_ring::Sge;

/// Most scatter/gather entries of one request.
pub const MAX_SGE: usize = 16;

/// Longest message, in bytes (C9-94).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// A place in a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address, as the peer registered it.
    pub addr: u64,
    /// Key that the peer gave for it.
    pub rkey: Key,
}

/// What a send request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOp {
    /// Sends a message to a receive of the peer.
    Send,
    /// The same, with four bytes of immediate data.
    SendImm(u32),
    /// The same, and makes a key of the peer invalid.
    SendInvalidate(Key),
    /// Writes to the peer's memory.
    Write(RemoteAddr),
    /// The same, and consumes a receive of the peer to carry four bytes of immediate data.
    WriteImm(RemoteAddr, u32),
    /// Reads from the peer's memory.
    Read(RemoteAddr),
    /// Stores `swap` if the peer's eight bytes equal `compare`; returns what they were.
    CompareSwap {
        /// Where; a multiple of eight.
        remote: RemoteAddr,
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Adds to the peer's eight bytes; returns what they were.
    FetchAdd {
        /// Where; a multiple of eight.
        remote: RemoteAddr,
        /// Value to add.
        add: u64,
    },
    /// Writes eight bytes to the peer's memory at once, behind what was written before.
    AtomicWrite(RemoteAddr),
    /// Makes what was written to the peer's memory visible to all its agents, or safe from a loss of power.
    Flush {
        /// First byte, and the key.
        remote: RemoteAddr,
        /// Bytes.
        length: u32,
        /// How far they must have gone.
        placement: PlacementType,
        /// These bytes, or all of the region.
        selectivity: Selectivity,
    },
    /// Changes a key of this side, in the order of the queue. Nothing is sent.
    Local(LocalOp),
}

/// A request that is done without the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalOp {
    /// Binds a memory window.
    Bind(WindowBind),
    /// Makes the key of a type 2 window, or of a region with
    /// [`Access::REMOTE_INVALIDATE`](crate::memory::Access::REMOTE_INVALIDATE), invalid.
    Invalidate(Key),
}

impl SendOp {
    /// The opcode that the completion shows.
    pub const fn completion_opcode(&self) -> CompletionOpcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) => CompletionOpcode::Send,
            Self::Write(_) | Self::WriteImm(..) => CompletionOpcode::RdmaWrite,
            Self::Read(_) => CompletionOpcode::RdmaRead,
            Self::CompareSwap { .. } => CompletionOpcode::CompareSwap,
            Self::FetchAdd { .. } => CompletionOpcode::FetchAdd,
            Self::AtomicWrite(_) => CompletionOpcode::AtomicWrite,
            Self::Flush { .. } => CompletionOpcode::Flush,
            Self::Local(LocalOp::Bind(_)) => CompletionOpcode::BindWindow,
            Self::Local(LocalOp::Invalidate(_)) => CompletionOpcode::LocalInvalidate,
        }
    }

    /// True for compare-and-swap and fetch-and-add.
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// True for what returns data: READ and atomics.
    pub const fn returns_data(&self) -> bool {
        matches!(self, Self::Read(_)) || self.is_atomic()
    }

    /// True for what has an answer of its own and so counts against the depth of READs and atomics: these, ATOMIC
    /// WRITE and FLUSH.
    pub const fn is_read_or_atomic(&self) -> bool {
        self.returns_data() || matches!(self, Self::AtomicWrite(_) | Self::Flush { .. })
    }

    /// True for what consumes a receive of the peer.
    pub const fn consumes_receive(&self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) | Self::WriteImm(..))
    }
}

/// Flags of a send request, with the bit values of `ibv_send_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags(u8);

impl SendFlags {
    /// None.
    pub const NONE: Self = Self(0);
    /// Wait until all READs and atomics before have finished.
    pub const FENCE: Self = Self(1);
    /// Complete with an entry in the CQ, also on success.
    pub const SIGNALED: Self = Self(1 << 1);
    /// Ask the peer for an event on arrival.
    pub const SOLICITED: Self = Self(1 << 2);

    /// True if every flag of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for SendFlags {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitOrAssign for SendFlags {
    fn bitor_assign(&mut self, rhs: Self) {
        self.0 |= rhs.0;
    }
}

/// The local data of a send request.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// Registered memory, at most [`MAX_SGE`] entries. It must stay as it is until completion.
    Sges(&'a [Sge]),
    /// Bytes copied at posting, at most the QP's `max_inline`. SEND and WRITE only.
    Inline(&'a [&'a [u8]]),
}

/// A request for a send queue.
#[derive(Debug, Clone, Copy)]
pub struct SendRequest<'a> {
    /// The program's own number, returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// With which local bytes: source of SEND and WRITE, destination of READ and atomics.
    pub data: Data<'a>,
    /// How.
    pub flags: SendFlags,
}

/// A request for a receive queue.
#[derive(Debug, Clone, Copy)]
pub struct RecvRequest<'a> {
    /// The program's own number, returned in the completion.
    pub wr_id: u64,
    /// Where the message goes, at most [`MAX_SGE`] entries.
    pub sges: &'a [Sge],
}

/// A send request in its queue, and what the core notes about it.
#[derive(Debug, Clone, Copy)]
pub struct SendWqe {
    /// The program's own number.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Bytes of local data. More than [`MAX_MESSAGE`] ends in a local length error.
    pub length: u64,
    /// How.
    pub flags: SendFlags,
    /// Entries behind the request; 0 with inline data.
    pub num_sge: u8,
    /// The data are behind the request.
    pub inline: bool,
    /// PSN of the first packet, once it was sent. The core's.
    pub first_psn: Psn,
    /// PSNs the request takes: packets sent, or response packets of a READ. The core's.
    pub psn_count: u32,
    /// Each packet goes as a message of its own. The core's.
    pub split: bool,
    /// The peer's shared receive queue: of the XRC service only.
    pub srqn: u32,
    /// Send sequence number, for end-to-end credits. The core's.
    pub ssn: u32,
}

impl SendWqe {
    /// PSN one past the request's last.
    pub fn end_psn(&self) -> Psn {
        self.first_psn.add(self.psn_count)
    }
}

/// A receive request in its queue.
#[derive(Debug, Clone, Copy)]
pub struct RecvWqe {
    /// The program's own number.
    pub wr_id: u64,
    /// Bytes that fit.
    pub length: u64,
    /// Entries behind the request.
    pub num_sge: u8,
}

const _: () = assert!(size_of::<SendWqe>() <= 80, "a send request with one entry fits 96 bytes");
