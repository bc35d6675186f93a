//! Congestion notification packet (RoCEv2): the receiver of ECN-marked packets notifies the sending
//! QP.
//!
//! ```text
//! +---------------------------------------------------------------+
//! |  BTH: opcode 0x81, BECN = 1, PSN 0, AckReq = 0                |
//! +---------------------------------------------------------------+
//! |                   16 reserved bytes, all 0                    |
//! +---------------------------------------------------------------+
//! ```

use crate::{Bth, Ecn, FlowHeader, FlowSpec, Opcode, Payload, Pkey, Qpn, VlanTag};

/// Reserved bytes after the BTH. [`Packet`](crate::Packet) shows them as payload.
pub const RESERVED_LEN: usize = 16;

/// Bytes of BTH and reserved bytes: the transport length for
/// [`FlowHeader::seal`](crate::FlowHeader::seal).
pub const LEN: usize = Bth::LEN + RESERVED_LEN;

/// Default DSCP of the CNPs of a ConnectX: class selector 6.
pub const DSCP: u8 = 48;

/// Default 802.1p priority of the CNPs of a ConnectX.
pub const PRIORITY: u8 = 6;

/// Headers of CNPs along the path of `path`, as a ConnectX writes them: `dscp` (6 bits) with
/// ECT(0), UDP source port 0, and `priority` (3 bits) in the VLAN tag, if `path` has one.
#[must_use]
pub fn flow(path: &FlowSpec, dscp: u8, priority: u8) -> FlowHeader {
    FlowHeader::new(&FlowSpec {
        vlan: path.vlan.map(|tag| VlanTag { pcp: priority & 7, ..tag }),
        traffic_class: Ecn::Ect0.set_in(dscp << 2),
        udp_source_port: 0,
        super_frames: false,
        ..*path
    })
}

/// Writes a CNP for `dest_qp` and the headers `flow`, made by [`flow()`], into `frame`. Returns the
/// length of the frame. Separate from the other sealing code, which is on the path of every packet.
///
/// # Panics
/// If `frame` is shorter than that length.
#[inline(never)]
pub fn seal(flow: &FlowHeader, frame: &mut [u8], dest_qp: Qpn, pkey: Pkey, ip_id: u16) -> usize {
    let len = write(&mut frame[flow.len()..], dest_qp, pkey);
    flow.seal(frame, len, ip_id)
}

/// Returns true if a packet whose opcode is [`Opcode::CNP`] is a valid CNP: BECN is set, and all
/// reserved bytes are present. Receivers ignore the value of the reserved bytes.
#[must_use]
pub fn is_valid(bth: &Bth, payload: Payload<'_>) -> bool {
    bth.becn && bth.pad == 0 && payload.len() == RESERVED_LEN
}

/// Writes a CNP for `dest_qp` to the front of `out`. Returns its length, [`LEN`].
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
    fn captured_bytes() {
        let mut out = [0xa5; LEN + 1];
        assert_eq!(write(&mut out, Qpn::masked(0x118), Pkey::DEFAULT), LEN);
        // A CNP of a ConnectX-4 Lx, as captured.
        let mut captured = [0; LEN + 1];
        captured[..8].copy_from_slice(&[0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18]);
        captured[LEN] = 0xa5;
        assert_eq!(out, captured);
    }
}
