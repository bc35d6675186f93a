//! Super-frames: several packets that the link carries as one frame.
//!
//! ```text
//!  super-frame   Ethernet | IP | UDP | segment 0 | segment 1 | ... | segment n
//!  packet i      Ethernet | IP | UDP | segment i
//! ```
//!
//! The kernel calls this UDP segmentation offload (GSO). On a veth a super-frame of up to
//! [`SEGMENTS_MAX`] packets crosses the kernel at the cost of one frame.
//!
//! # Format
//! All segments but the last have the same length; the last one may be shorter. IP and UDP lengths
//! in the headers of a super-frame are those of the whole. The lengths in packet i are its own. Its
//! IPv4 identification is that of the super-frame plus i.
//!
//! If a receiver cannot take a super-frame, the kernel cuts it into packets by the same rules. It
//! then computes UDP checksums too, so packets of a super-frame carry one. The ICRC does not cover
//! the UDP checksum.
//!
//! # Which packets may share a super-frame
//! The core writes and seals each packet as if it were sent alone, with IPv4 identifications that
//! count up by one. Segmentation computes exactly these identifications, so the ICRC of each packet
//! is correct however the packet travels. A packet may follow another one in a super-frame if
//! - its Ethernet, IP and UDP headers equal those of the other packet, except for the lengths and
//!   an IPv4 identification that is one higher, and
//! - the peer accepts super-frames ([`feroce_wire::FlowSpec::super_frames`]). Peers announce this
//!   when they connect ([`Endpoint::super_frames`](crate::device::Endpoint::super_frames)), or the
//!   device assumes it ([`DeviceConfig`](crate::device::DeviceConfig)`::super_frames_to_all`).
//!
//! # Division of work
//! - A port that sends super-frames reports it ([`PortAttributes::segments_max`] above 1).
//! - The core marks a packet that may share a super-frame with the previous one by
//!   [`Port::tx_commit_next`] instead of [`Port::tx_commit`].
//! - The port decides whether the packets travel together: it ends the super-frame when it is full
//!   or when a packet is longer than the segments.
//! - The receiving port shows the packets one by one ([`Port::rx_frame`]). Neither the core nor a
//!   QP ever handles a super-frame.
//! - Wrappers of ports work on packets: a capture holds the packets as if sent alone, and a port
//!   with injected faults turns super-frames off, since a fault would hit all packets of one.
//!
//! [`Port::rx_frame`]: super::Port::rx_frame
//! [`Port::tx_commit`]: super::Port::tx_commit
//! [`Port::tx_commit_next`]: super::Port::tx_commit_next
//! [`PortAttributes::segments_max`]: super::PortAttributes::segments_max

/// Maximum number of packets in a super-frame that a port sends: the number that every kernel
/// accepts.
pub const SEGMENTS_MAX: usize = 64;
