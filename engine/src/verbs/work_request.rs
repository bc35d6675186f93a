//! Work requests: as an application posts them, and as they are stored in a work queue.

use std::ops::{BitOr, BitOrAssign};

use feroce_wire::{Key, PlacementType, Psn, Selectivity};

use crate::memory::WindowBind;
pub use crate::memory::work_ring::Sge;

/// Maximum number of scatter/gather entries of one request.
pub const MAX_SGE: usize = 16;

/// Longest message in bytes (C9-94).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// An address in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address, in the address space that the peer registered.
    pub addr: u64,
    /// R_Key of the peer's region or window.
    pub rkey: Key,
}

/// The operation of a send request, with its operands.
///
/// | operations | services |
/// |---|---|
/// | SEND, with immediate data | all |
/// | WRITE, with immediate data; binding a window; local invalidate | RC, UC, XRC |
/// | SEND with invalidate, READ, compare and swap, fetch and add | RC, XRC |
/// | atomic WRITE, FLUSH | RC |
///
/// Own buffers of READs and of the two fetching atomics need
/// [`LOCAL_WRITE`](crate::memory::Access::LOCAL_WRITE). Atomics and atomic WRITEs have eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOp {
    /// Sends a message to a receive of the peer.
    Send,
    /// SEND with four bytes of immediate data.
    SendImm(u32),
    /// SEND that also invalidates a key of the peer.
    SendInvalidate(Key),
    /// Writes to the peer's memory.
    Write(RemoteAddr),
    /// WRITE with four bytes of immediate data, which consumes a receive of the peer.
    WriteImm(RemoteAddr, u32),
    /// Reads from the peer's memory.
    Read(RemoteAddr),
    /// Stores `swap` at `remote` if the eight bytes there equal `compare`; returns their old value.
    CompareSwap {
        /// Address, a multiple of eight.
        remote: RemoteAddr,
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Adds `add` to the eight bytes at `remote`; returns their old value.
    FetchAdd {
        /// Address, a multiple of eight.
        remote: RemoteAddr,
        /// Value to add.
        add: u64,
    },
    /// Writes eight bytes to the peer's memory atomically, after all earlier WRITEs.
    AtomicWrite(RemoteAddr),
    /// Makes earlier WRITEs globally visible or persistent in the peer's memory.
    Flush {
        /// First byte, and the key.
        remote: RemoteAddr,
        /// Length in bytes.
        length: u32,
        /// Requested placement guarantee: global visibility, persistence, or both.
        placement: PlacementType,
        /// The given range, or the whole region.
        selectivity: Selectivity,
    },
    /// Changes a local key, in the order of the send queue. Nothing is sent.
    Local(LocalOp),
}

/// A send request that is executed locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalOp {
    /// Binds a memory window.
    Bind(WindowBind),
    /// Invalidates the key of a type 2 window, or of a region registered with
    /// [`Access::REMOTE_INVALIDATE`](crate::memory::Access::REMOTE_INVALIDATE).
    Invalidate(Key),
}

/// Flags of a send request, with the bit values of `ibv_send_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags(u8);

impl SendFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Start this request only after all earlier READs and atomics have completed.
    pub const FENCE: Self = Self(1);
    /// Generate a completion even on success.
    pub const SIGNALED: Self = Self(1 << 1);
    /// Raise a solicited event at the peer.
    pub const SOLICITED: Self = Self(1 << 2);

    /// Returns true if every flag of `other` is set.
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
    /// Registered memory, at most [`MAX_SGE`] entries. It must not change until completion.
    Sges(&'a [Sge]),
    /// Bytes that are copied when the request is posted, at most the QP's `max_inline`. Not for
    /// operations that return data.
    Inline(&'a [&'a [u8]]),
}

/// A request for a send queue.
#[derive(Debug, Clone, Copy)]
pub struct SendRequest<'a> {
    /// The application's identifier, returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Local data: the source of a SEND or WRITE, the destination of a READ or atomic.
    pub data: Data<'a>,
    /// Flags.
    pub flags: SendFlags,
}

/// A request for a receive queue.
#[derive(Debug, Clone, Copy)]
pub struct RecvRequest<'a> {
    /// The application's identifier, returned in the completion.
    pub wr_id: u64,
    /// Destination of the message, at most [`MAX_SGE`] entries.
    pub sges: &'a [Sge],
}

/// The number of an operation's row in the table of operations. The send queue keeps it with the
/// request: a row is found from its number without a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row(pub(super) u8);

/// A send request in its queue. Fields marked "core" are written by the core when it starts the
/// request.
#[derive(Debug, Clone, Copy)]
pub struct SendWqe {
    /// The application's identifier.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The row of the operation.
    pub(crate) row: Row,
    /// Bytes of local data. More than [`MAX_MESSAGE`] fails with a local length error.
    pub length: u64,
    /// Flags.
    pub flags: SendFlags,
    /// Scatter/gather entries after the request; 0 with inline data.
    pub num_sge: u8,
    /// True if the data are inline, after the request.
    pub inline: bool,
    /// Core: PSN of the first packet.
    pub first_psn: Psn,
    /// Core: number of PSNs of the request. For a READ, these are the PSNs of its response packets.
    pub psn_count: u32,
    /// Core: true if the request is sent as several messages (see `qp/split`).
    pub split: bool,
    /// Number of the peer's shared receive queue. XRC only.
    pub srqn: u32,
    /// Core: send sequence number, for end-to-end credits.
    pub ssn: u32,
}

impl SendWqe {
    /// A request that the core has not started, without local data yet.
    #[inline]
    pub(crate) fn new(wr_id: u64, op: SendOp, length: u64, flags: SendFlags) -> Self {
        Self {
            wr_id,
            op,
            row: op.row(),
            length,
            flags,
            num_sge: 0,
            inline: false,
            first_psn: Psn::new(0),
            psn_count: 0,
            split: false,
            srqn: 0,
            ssn: 0,
        }
    }

    /// The PSN after the last one of the request.
    pub fn end_psn(&self) -> Psn {
        self.first_psn.add(self.psn_count)
    }
}

/// A receive request in its queue.
#[derive(Debug, Clone, Copy)]
pub struct RecvWqe {
    /// The application's identifier.
    pub wr_id: u64,
    /// Length of the buffers in bytes.
    pub length: u64,
    /// Scatter/gather entries after the request.
    pub num_sge: u8,
}

const _: () = assert!(size_of::<SendWqe>() <= 80, "a send request with one entry fits 96 bytes");
