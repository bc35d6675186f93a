//! Ports: how frames come in and go out. No protocol lives here.
//!
//! A [`Port`] moves bursts of Ethernet frames for one core. Behind the trait: [`shm`] (rings in
//! shared memory), [`af_xdp`] (AF_XDP sockets on every receive queue of an interface), [`packet`]
//! (packet sockets on any interface, without root), [`dpdk`] (any device that DPDK drives), and the
//! wrappers [`fault`] (seeded loss, duplication, reordering, corruption) and [`pcap`] (a capture file of
//! what crosses the port).
//!
//! # The transmit contract
//! 1. The core asks for room ([`Port::tx_room`]) and takes one slot at a time ([`Port::tx_slot`]):
//!    a contiguous buffer in the port's own memory.
//! 2. The QP writes *BTH and what follows* behind the space for the flow's headers; the core lays
//!    the flow's Ethernet, IP and UDP headers in front and computes the ICRC last, when IPv4 ID and
//!    length are final ([`feroce_wire::FlowHeader::seal`]).
//! 3. [`Port::tx_commit`] queues the slot; [`Port::flush`] rings the doorbell once per burst. A
//!    slot taken and not committed is simply reused.
//!
//! A port whose attributes say `segments_max > 1` has super-frames: several packets to one destination that
//! the link carries as one frame, of equal length but for the last, which may be shorter. Only peers that say
//! that they take them get any ([`feroce_wire::FlowSpec::super_frames`]). The core writes and seals each packet
//! as ever, with IPv4 identifications that count up: exactly those that segmentation gives them, so that each
//! ICRC is right however the packets travel. [`Port::tx_commit_next`] says that a packet may ride with the one
//! before; whether it does is up to the port, which shows the packets of a received super-frame one by one.

pub mod af_xdp;
pub mod dpdk;
pub mod ethtool;
pub mod fault;
pub mod packet;
pub mod pcap;
pub mod shm;

use std::io;
use std::os::fd::RawFd;

use feroce_wire::MacAddr;

use crate::time::Duration;

/// Most frames that one [`Port::rx_burst`] delivers.
pub const RX_BURST: usize = 64;

/// How long frames wait for a link that takes none before they count as lost. Longer than a peer behind a memif, or a pause of
/// the link, keeps one that works.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// What a port is and can do. Fixed while the port is open, but for `mtu`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortAttributes {
    /// Kind of port and its mode, for people: `af_xdp (native, copy)`.
    pub kind: String,
    /// Interface or channel name.
    pub name: String,
    /// Own Ethernet address.
    pub mac: MacAddr,
    /// Largest IP packet in bytes (the interface's MTU).
    pub mtu: u32,
    /// Largest Ethernet frame a slot holds, in bytes.
    pub frame_max: usize,
    /// Link rate in bit/s, where the link has one.
    pub link_rate: Option<u64>,
    /// Receive queues this port serves.
    pub queues: u16,
    /// Segments one slot may carry; 1 means no super-frames.
    pub segments_max: usize,
}

/// Frame counters of a port since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received, Ethernet header included.
    pub rx_bytes: u64,
    /// Frames that arrived and could not be taken (ring full, no buffer).
    pub rx_dropped: u64,
    /// Frames that arrived and were nobody's here: neither RoCE nor for one of the port's addresses. Counted by
    /// ports without a kernel behind them; others never see such frames.
    pub rx_foreign: u64,
    /// Frames handed to the link.
    pub tx_frames: u64,
    /// Bytes handed to the link, Ethernet header included.
    pub tx_bytes: u64,
    /// Frames that the link refused.
    pub tx_dropped: u64,
}

/// A priority of the link, 0..=7, as PFC and 802.1Q count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Priority(u8);

impl Priority {
    /// The priority `value`; the upper five bits are dropped.
    pub const fn new(value: u8) -> Self {
        Self(value & 7)
    }

    /// 0..=7.
    pub const fn value(self) -> u8 {
        self.0
    }
}

/// A received frame, from the Ethernet header on, without FCS.
///
/// It comes in one or two slices (a frame may span two buffers); all protocol headers are in the
/// first.
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

    /// True if the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.second.is_empty()
    }
}

/// Frames in, frames out, for one core.
///
/// Every method is called by the holder of the core's token only. None blocks; none allocates after
/// the port was opened.
pub trait Port: Send + std::fmt::Debug {
    /// What this port is and can do.
    fn attributes(&self) -> &PortAttributes;

    /// Counters since the port was opened.
    fn stats(&self) -> PortStats;

    /// Gives the frames of the last burst back to the link and takes the next burst. Returns how
    /// many frames [`Port::rx_frame`] can show, at most [`RX_BURST`].
    fn rx_burst(&mut self) -> usize;

    /// Frame `index` of the burst.
    ///
    /// # Panics
    /// If `index` is not below the last answer of [`Port::rx_burst`].
    fn rx_frame(&self, index: usize) -> RxFrame<'_>;

    /// How full is what arrived frames wait in, behind the last burst, in per cent; `None` where the port cannot tell. What
    /// is full loses frames.
    fn rx_fill(&mut self) -> Option<u8> {
        None
    }

    /// How many frames [`Port::tx_slot`] can give now.
    fn tx_room(&mut self) -> usize;

    /// Whether frames went on since it was asked last, though their slots may not be free yet: a port without room whose frames
    /// move is slow, and not stuck.
    fn tx_moved(&mut self) -> bool {
        false
    }

    /// The next transmit slot: `attributes().frame_max` writable bytes, or `None` without room.
    /// Called again without a commit, it gives the same slot.
    fn tx_slot(&mut self) -> Option<&mut [u8]>;

    /// Queues the first `len` bytes of the slot that [`Port::tx_slot`] gave last.
    ///
    /// # Panics
    /// If no slot was taken or `len` is more than a slot holds.
    fn tx_commit(&mut self, len: usize, priority: Priority);

    /// The same, for a packet that may share a super-frame with the one committed last: the caller promises that it
    /// has the same headers up to UDP, but for lengths and an IPv4 identification that is one higher, and that its
    /// receiver takes super-frames. Ports without them, and ports that find no room in the last one, make it a frame
    /// of its own.
    ///
    /// # Panics
    /// As [`Port::tx_commit`].
    fn tx_commit_next(&mut self, len: usize, priority: Priority) {
        self.tx_commit(len, priority);
    }

    /// Tells the link of what was committed. Called once at the end of a transmit burst.
    ///
    /// # Errors
    /// When the link is gone or down; committed frames may then be lost, as frames may be.
    fn flush(&mut self) -> io::Result<()>;

    /// Arms the wake-up for sleeping and appends the descriptors that become readable when a frame
    /// arrives. False if a frame is waiting already: do not sleep.
    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool;

    /// Undoes [`Port::arm_wakeup`] after sleeping.
    fn disarm_wakeup(&mut self);
}
