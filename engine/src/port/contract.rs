//! The trait [`Port`] and the values that cross it.
//!
//! # The transmit contract
//! 1. The core reads the number of free slots ([`Port::tx_room`]) and takes one slot at a time
//!    ([`Port::tx_slot`]): a contiguous buffer in memory of the port.
//! 2. The QP writes the BTH and everything after it, following the space for the headers of the
//!    flow. The core writes the Ethernet, IP and UDP headers of the flow into that space. It
//!    computes the ICRC last, when IPv4 identification ([`Port::tx_identification`]) and length are
//!    final ([`feroce_wire::FlowHeader::seal`]).
//! 3. [`Port::tx_commit`] queues the slot. [`Port::flush`] rings the doorbell of the link once per
//!    burst. A slot that was taken and not committed is reused.
//!
//! A packet that may share a super-frame with the previous one is queued with
//! [`Port::tx_commit_next`]; see [`super_frame`](super::super_frame).

use std::io;
use std::os::fd::RawFd;

use feroce_wire::MacAddr;

use crate::time::Duration;

/// Maximum number of frames that one [`Port::rx_burst`] delivers.
pub const RX_BURST: usize = 64;

/// Time without progress after which a link counts as stuck, and frames that wait for it as lost.
/// It is longer than a pause of the link, and longer than a slow memif peer delays a working link.
pub(crate) const STUCK_AFTER: Duration = Duration::from_millis(20);

/// Properties of a port. All but `mtu` are fixed while the port is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortAttributes {
    /// Kind of port and its mode, for display: `af_xdp (native, copy)`.
    pub kind: String,
    /// Interface or channel name.
    pub name: String,
    /// Local Ethernet address.
    pub mac: MacAddr,
    /// Largest IP packet in bytes (the MTU of the interface).
    pub mtu: u32,
    /// Largest Ethernet frame that a slot holds, in bytes.
    pub frame_max: usize,
    /// Link rate in bit/s; `None` if the link has none.
    pub link_rate: Option<u64>,
    /// Receive queues that this port serves.
    pub queues: u16,
    /// Maximum number of packets in a [super-frame](super::super_frame); 1 if the port sends none.
    pub segments_max: usize,
    /// UDP source ports that the port can send from; empty if it can send from any.
    pub source_ports: Vec<u16>,
}

/// Frame counters of a port since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received, including Ethernet headers.
    pub rx_bytes: u64,
    /// Frames dropped on arrival for lack of room (ring full, no buffer).
    pub rx_dropped: u64,
    /// Frames received that are neither RoCE nor for an address of the port. Only ports without a
    /// kernel interface count them; other ports never see such frames.
    pub rx_foreign: u64,
    /// Frames handed to the link.
    pub tx_frames: u64,
    /// Bytes handed to the link, including Ethernet headers.
    pub tx_bytes: u64,
    /// Frames that the link refused.
    pub tx_dropped: u64,
}

/// A link priority, 0..=7, as in PFC and 802.1Q.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Priority(u8);

impl Priority {
    /// The priority in the lower three bits of `value`; the upper five bits are ignored.
    pub const fn new(value: u8) -> Self {
        Self(value & 7)
    }

    /// The value, 0..=7.
    pub const fn value(self) -> u8 {
        self.0
    }
}

/// A received frame, from the Ethernet header on, without FCS.
///
/// The frame is in one or two slices, since it may span two buffers. All protocol headers are in
/// the first slice.
#[derive(Debug, Clone, Copy)]
pub struct RxFrame<'a> {
    /// First, or only, part.
    pub first: &'a [u8],
    /// Second part; empty if the frame fits one buffer.
    pub second: &'a [u8],
}

impl RxFrame<'_> {
    /// Length of the frame in bytes.
    pub fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// Returns true if the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.second.is_empty()
    }
}

/// Receives and sends frames for one core.
///
/// Only the holder of the core's token calls these methods. No method blocks. No method allocates
/// memory after the port was opened.
pub trait Port: Send + std::fmt::Debug {
    /// Properties of this port.
    fn attributes(&self) -> &PortAttributes;

    /// Counters since the port was opened.
    fn stats(&self) -> PortStats;

    /// Returns the frames of the last burst to the link and takes the next burst. Returns the
    /// number of frames in the burst, at most [`RX_BURST`]; [`Port::rx_frame`] reads them.
    fn rx_burst(&mut self) -> usize;

    /// Frame `index` of the burst.
    ///
    /// # Panics
    /// If `index` is not below the last result of [`Port::rx_burst`].
    fn rx_frame(&self, index: usize) -> RxFrame<'_>;

    /// Fill level of the receive queue after the last burst, in per cent; `None` if the port
    /// cannot measure it. A full queue loses frames.
    fn rx_fill(&mut self) -> Option<u8> {
        None
    }

    /// Number of frames that [`Port::tx_slot`] can give now.
    fn tx_room(&mut self) -> usize;

    /// Returns true if the link took frames since the last call, even if their slots are not free
    /// yet. A port without room whose frames move is slow but not stuck.
    fn tx_moved(&mut self) -> bool {
        false
    }

    /// The next transmit slot: `attributes().frame_max` writable bytes, or `None` without room.
    /// Without a commit in between, the next call returns the same slot.
    fn tx_slot(&mut self) -> Option<&mut [u8]>;

    /// The IPv4 identification that the link will give the next packet, which has `len` bytes after
    /// its UDP header. `joins`: it will be queued with [`Port::tx_commit_next`]. `None` if the port
    /// sends the identification that the core writes.
    fn tx_identification(&self, len: usize, joins: bool) -> Option<u16> {
        let _ = (len, joins);
        None
    }

    /// Queues the first `len` bytes of the slot that [`Port::tx_slot`] returned last.
    ///
    /// # Panics
    /// If no slot was taken or `len` is more than a slot holds.
    fn tx_commit(&mut self, len: usize, priority: Priority);

    /// Queues the slot like [`Port::tx_commit`], for a packet that may share a super-frame with the
    /// packet committed before it. The caller guarantees the conditions of
    /// [`super_frame`](super::super_frame). A port without super-frames, or without room in the
    /// last one, sends the packet as a frame of its own.
    ///
    /// # Panics
    /// As [`Port::tx_commit`].
    fn tx_commit_next(&mut self, len: usize, priority: Priority) {
        self.tx_commit(len, priority);
    }

    /// Hands the committed frames to the link. Called once at the end of a transmit burst.
    ///
    /// # Errors
    /// The link is gone or down. Committed frames may then be lost, as frames may be.
    fn flush(&mut self) -> io::Result<()>;

    /// Returns true if the port holds something that no descriptor announces, such as received
    /// frames that were not shown, or frames that the link did not take. A thread other than the
    /// helper that leaves this behind wakes the sleeping helper. False after [`Port::arm_wakeup`]
    /// has returned true.
    fn is_unfinished(&self) -> bool;

    /// Arms the wake-up for sleeping and appends the descriptors that become readable when a frame
    /// arrives. Returns false if a frame is already waiting; the caller must not sleep then.
    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool;

    /// Undoes [`Port::arm_wakeup`] after sleeping.
    fn disarm_wakeup(&mut self);
}
