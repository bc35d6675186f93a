//! Congestion notification packet (RoCEv2): a receiver of marked packets asks the sender's QP to slow down.
//!
//! ```text
//! +---------------------------------------------------------------+
//! |  BTH: opcode 0x81, BECN = 1, PSN 0, no acknowledgement asked  |
//! +---------------------------------------------------------------+
//! |                   16 reserved bytes, all 0                    |
//! +---------------------------------------------------------------+
//! ```

use crate::{Bth, Ecn, FlowHeader, FlowSpec, Opcode, Packet, Pkey, Qpn, VlanTag};

/// Reserved bytes behind the BTH. [`Packet`] shows them as payload.
pub const RESERVED_LEN: usize = 16;

/// Bytes of BTH and reserved bytes: the transport length for [`FlowHeader::seal`](crate::FlowHeader::seal).
pub const LEN: usize = Bth::LEN + RESERVED_LEN;

/// The DSCP of a ConnectX's CNPs, unless it is told otherwise: class 6.
pub const DSCP: u8 = 48;

/// The 802.1p priority of a ConnectX's CNPs, unless it is told otherwise.
pub const PRIORITY: u8 = 6;

/// The headers of CNPs to where `way` leads, as a ConnectX writes them: `dscp` (6 bits) with ECT(0), UDP source port
/// 0, and `priority` (3 bits) in a VLAN.
#[must_use]
pub fn flow(way: &FlowSpec, dscp: u8, priority: u8) -> FlowHeader {
    FlowHeader::new(&FlowSpec {
        vlan: way.vlan.map(|tag| VlanTag { pcp: priority & 7, ..tag }),
        traffic_class: Ecn::Ect0.set_in(dscp << 2),
        udp_source_port: 0,
        super_frames: false,
        ..*way
    })
}

/// Completes a frame with `flow`, which is [`flow()`]'s, and a CNP for `dest_qp`; returns its length. What else
/// seals frames is on the path of every packet: this is apart from it.
///
/// # Panics
/// If `frame` is shorter than that.
#[inline(never)]
pub fn seal(flow: &FlowHeader, frame: &mut [u8], dest_qp: Qpn, pkey: Pkey, ip_id: u16) -> usize {
    let len = write(&mut frame[flow.len()..], dest_qp, pkey);
    flow.seal(frame, len, ip_id)
}

/// Whether `packet`, whose opcode is [`Opcode::CNP`], asks to slow down: BECN is set, and what is reserved is there. A
/// receiver does not look at the value of what is reserved.
#[must_use]
pub fn is_sound(packet: &Packet<'_>) -> bool {
    packet.bth.becn && packet.bth.pad == 0 && packet.payload.len() == RESERVED_LEN
}

/// Writes a CNP for `dest_qp` at the front of `out` and returns its length, [`LEN`].
///
/// # Panics
/// If `out` is shorter than [`LEN`].
pub fn write(out: &mut [u8], dest_qp: Qpn, pkey: Pkey) -> usize {
    let bth = Bth { opcode: Opcode::CNP, becn: true, pkey, dest_qp, ..Bth::default() };
    bth.write(out);
    out[Bth::LEN..LEN].fill(0);
    LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal() {
        let mut out = [0xa5; LEN + 1];
        assert_eq!(write(&mut out, Qpn::masked(0x118), Pkey::DEFAULT), LEN);
        // A CNP of a ConnectX-4 Lx, as captured.
        let mut captured = [0; LEN + 1];
        captured[..8].copy_from_slice(&[0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18]);
        captured[LEN] = 0xa5;
        assert_eq!(out, captured);
    }
}
