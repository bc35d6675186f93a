//! Completions: what a finished work request tells its program.

use feroce_wire::{Key, Qpn};

use crate::time::Instant;

/// How a work request ended, with the values of `ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// A local buffer was too short for the message, or a message is longer than 2^31 bytes.
    LocalLength = 1,
    /// The request cannot be executed on this QP as it is configured.
    LocalQpOperation = 2,
    /// A scatter/gather entry names memory that is not registered for the access.
    LocalProtection = 4,
    /// The request was outstanding when its QP went to ERR.
    WorkRequestFlushed = 5,
    /// A memory window cannot be bound so.
    WindowBind = 6,
    /// The peer's answer does not fit the request.
    BadResponse = 7,
    /// Local memory was withdrawn while the request was under way.
    LocalAccess = 8,
    /// The peer found the request invalid.
    RemoteInvalidRequest = 9,
    /// The peer refused access to its memory.
    RemoteAccess = 10,
    /// The peer could not execute the request for a reason of its own.
    RemoteOperational = 11,
    /// No answer came, `retry_cnt` times.
    RetryExceeded = 12,
    /// The peer had no receive posted, `rnr_retry` times.
    RnrRetryExceeded = 13,
    /// A fatal error of the QP.
    Fatal = 19,
}

impl Status {
    /// The text that rdma-core's `ibv_wc_status_str` gives for the status.
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

/// What kind of request completed, with the values of `ibv_wc_opcode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CompletionOpcode {
    /// A SEND, with or without immediate or invalidate.
    Send = 0,
    /// An RDMA WRITE.
    RdmaWrite = 1,
    /// An RDMA READ.
    RdmaRead = 2,
    /// A compare and swap.
    CompareSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// A memory window bound.
    BindWindow = 5,
    /// A key made invalid.
    LocalInvalidate = 6,
    /// A FLUSH.
    Flush = 8,
    /// An ATOMIC WRITE.
    AtomicWrite = 9,
    /// A receive that a SEND met.
    Receive = 128,
    /// A receive that a WRITE WITH IMMEDIATE consumed.
    ReceiveRdmaWithImmediate = 129,
}

/// What came with a received message besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Immediate(u32),
    /// The key that SEND WITH INVALIDATE made invalid.
    Invalidated(Key),
}

/// Where a datagram came from. Its first 40 bytes in the receive are always a GRH: an IPv6 header, or 20 bytes
/// that mean nothing and an IPv4 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatagramSource {
    /// The QP that sent it.
    pub src_qp: Qpn,
    /// 802.1Q priority of its frame; 0 if it had no tag.
    pub sl: u8,
    /// VLAN of its frame.
    pub vlan: Option<u16>,
    /// Which header the GRH holds.
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
    /// The program's own number of the request.
    pub wr_id: u64,
    /// How it ended. The fields below count only after [`Status::Success`], but for `qp`.
    pub status: Status,
    /// What it was.
    pub opcode: CompletionOpcode,
    /// Bytes received, read, or returned by an atomic.
    pub byte_len: u32,
    /// What came with a received message.
    pub extra: Extra,
    /// The message asked for an event on arrival.
    pub solicited: bool,
    /// The local QP.
    pub qp: Qpn,
    /// The time of the turn that completed it, by the device's clock.
    pub at: Instant,
    /// Where a datagram came from: receives of UD QPs only.
    pub datagram: Option<DatagramSource>,
}

impl Completion {
    /// True if the request did what it was asked.
    pub fn is_success(&self) -> bool {
        self.status == Status::Success
    }
}
