//! Super-frames in a core: which packet may join the super-frame of the packet before it, and how
//! much a QP may send before the next QP. A port may send consecutive packets of one flow as one
//! super-frame, which the kernel or the NIC splits again. The core writes and seals each packet as
//! if it were sent alone.

use feroce_wire::{Audience, FlowHeader};

/// Maximum number of packets that a core sends in one turn, so that receiving is never delayed for
/// long. With this number, the last super-frame of a turn can be full: a super-frame has 15 packets
/// at a path MTU of 4096, 31 at 2048, and about 60 at smaller path MTUs.
pub(super) const TRANSMIT_BURST: usize = 60;

/// Maximum number of packets that a QP without super-frames sends before the next QP does.
const TRANSMIT_QUANTUM: usize = 16;

/// Bytes after which a QP with super-frames lets the next QP send, if another QP waits. The limit
/// is in bytes, because a super-frame holds more short packets than long ones.
const SUPER_FRAME_QUANTUM: usize = 60 << 10;

/// Where a packet goes. The packets of a connected QP go the same way in a quantum.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Path {
    /// Bytes in front of the BTH.
    pub start: usize,
    pub is_loopback: bool,
    pub is_group: bool,
    pub super_frames: bool,
}

impl Path {
    pub(super) fn of(flow: &FlowHeader) -> Self {
        Self {
            start: flow.len(),
            is_loopback: flow.audience() == Audience::Own,
            is_group: flow.audience() == Audience::Group,
            super_frames: flow.spec().super_frames,
        }
    }
}

/// The part of a QP's quantum that the QP has used.
#[derive(Debug)]
pub(super) struct Quantum {
    packets: usize,
    bytes: usize,
    is_alone: bool,
    /// For the counters: bytes from the BTHs to the ICRCs, and packets to the device itself.
    pub transport_bytes: usize,
    pub looped: usize,
}

impl Quantum {
    /// A new quantum. `is_alone`: no other QP waits. The quantum of a flow with super-frames is
    /// then not limited: the last packet of a READ response and the first packet of the next, which
    /// are longer than the others, can share a super-frame.
    pub(super) fn new(is_alone: bool) -> Self {
        Self { packets: 0, bytes: 0, is_alone, transport_bytes: 0, looped: 0 }
    }

    /// Number of packets sent.
    #[inline]
    pub(super) fn packets(&self) -> usize {
        self.packets
    }

    /// Returns true if the next packet, of a flow with or without `super_frames` and with IPv4
    /// identification `ip_id`, may join the super-frame of the packet before it. The core's
    /// identifications skip 0; those that the kernel or NIC writes when it splits a super-frame do
    /// not.
    #[inline]
    pub(super) fn joins_previous(&self, super_frames: bool, ip_id: u16) -> bool {
        super_frames && self.packets > 0 && ip_id != 1
    }

    /// Counts a packet along `path`: `bytes` of its frame, `transport_bytes` of them from the BTH
    /// to the ICRC. Returns true if the quantum is used up.
    #[inline]
    pub(super) fn count(&mut self, path: Path, bytes: usize, transport_bytes: usize) -> bool {
        self.packets += 1;
        self.bytes += bytes;
        self.transport_bytes += transport_bytes;
        self.looped += usize::from(path.is_loopback);
        match path.super_frames {
            true => self.bytes >= SUPER_FRAME_QUANTUM && !self.is_alone,
            false => self.packets >= TRANSMIT_QUANTUM,
        }
    }
}
