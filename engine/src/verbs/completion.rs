//! Completions: the entries of a completion queue, as `ibv_wc`.

use feroce_wire::{Key, Qpn};

use crate::time::Instant;

/// How a work request ended, with the values of `ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The request was executed.
    Success = 0,
    /// A local buffer is too short for the message, or the message is longer than 2^31 bytes.
    LocalLength = 1,
    /// The QP cannot execute the request in its configuration.
    LocalQpOperation = 2,
    /// A scatter/gather entry names memory that is not registered for this access.
    LocalProtection = 4,
    /// The QP was in ERR, or went there, before the request completed.
    WorkRequestFlushed = 5,
    /// A memory window cannot be bound with these parameters, or a key cannot be invalidated.
    WindowBind = 6,
    /// The response does not match the request.
    BadResponse = 7,
    /// The peer's access to local memory failed while a request was in progress.
    LocalAccess = 8,
    /// The peer rejected the request as invalid.
    RemoteInvalidRequest = 9,
    /// The peer denied access to its memory.
    RemoteAccess = 10,
    /// The peer could not execute the request because of an error at its side.
    RemoteOperational = 11,
    /// No acknowledgement arrived, even after `retry_cnt` retries.
    RetryExceeded = 12,
    /// The peer had no receive posted, even after `rnr_retry` retries.
    RnrRetryExceeded = 13,
    /// Fatal error of the QP.
    Fatal = 19,
}

impl Status {
    /// The text of rdma-core's `ibv_wc_status_str` for this status.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local QP operation error",
            Self::LocalProtection => "local protection error",
            Self::WorkRequestFlushed => "Work Request Flushed Error",
            Self::WindowBind => "memory management operation error",
            Self::BadResponse => "bad response error",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperational => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::RnrRetryExceeded => "RNR retry counter exceeded",
            Self::Fatal => "fatal error",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// The kind of request that completed, with the values of `ibv_wc_opcode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CompletionOpcode {
    /// A SEND, with or without immediate or invalidate.
    Send = 0,
    /// An RDMA WRITE.
    RdmaWrite = 1,
    /// An RDMA READ.
    RdmaRead = 2,
    /// A compare-and-swap.
    CompareSwap = 3,
    /// A fetch-and-add.
    FetchAdd = 4,
    /// The bind of a memory window.
    BindWindow = 5,
    /// A local invalidate.
    LocalInvalidate = 6,
    /// A FLUSH.
    Flush = 8,
    /// An ATOMIC WRITE.
    AtomicWrite = 9,
    /// A receive that a SEND consumed.
    Receive = 128,
    /// A receive that a WRITE WITH IMMEDIATE consumed.
    ReceiveRdmaWithImmediate = 129,
}

/// What a received message carries besides its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Immediate(u32),
    /// The key that a SEND with invalidate invalidated.
    Invalidated(Key),
}

/// The source of a datagram. The first 40 bytes in its receive are a GRH: an IPv6 header, or 20
/// undefined bytes and an IPv4 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatagramSource {
    /// The sending QP.
    pub src_qp: Qpn,
    /// 802.1Q priority of its frame; 0 without a VLAN tag.
    pub sl: u8,
    /// VLAN of its frame.
    pub vlan: Option<u16>,
    /// The header in the GRH.
    pub network: NetworkHeader,
}

/// The network header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetworkHeader {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// An entry of a completion queue, as `ibv_wc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The application's identifier of the request.
    pub wr_id: u64,
    /// Result. The fields below, except `qp`, are valid only with [`Status::Success`].
    pub status: Status,
    /// Kind of request.
    pub opcode: CompletionOpcode,
    /// Bytes received, read, or returned by an atomic.
    pub byte_len: u32,
    /// Immediate data or invalidated key of a received message.
    pub extra: Extra,
    /// True if the sender set the solicited event flag.
    pub solicited: bool,
    /// The local QP.
    pub qp: Qpn,
    /// Time of the turn that completed the request, by the device's clock.
    pub at: Instant,
    /// Source of a datagram. Receives of UD QPs only.
    pub datagram: Option<DatagramSource>,
}

impl Completion {
    /// Returns true if the request was executed.
    pub fn is_success(&self) -> bool {
        self.status == Status::Success
    }
}
