//! Congestion notification packet (RoCEv2): a receiver of marked packets asks the sender's QP to slow down.
//!
//! ```text
//! +---------------------------------------------------------------+
//! |  BTH: opcode 0x81, BECN = 1, PSN 0, no acknowledgement asked  |
//! +---------------------------------------------------------------+
//! |                   16 reserved bytes, all 0                    |
//! +---------------------------------------------------------------+
//! ```

use crate::{Bth, Opcode, Pkey, Qpn};

/// Reserved bytes behind the BTH. [`Packet`](crate::Packet) shows them as payload.
pub const RESERVED_LEN: usize = 16;

/// Bytes of BTH and reserved bytes: the transport length for [`FlowHeader::seal`](crate::FlowHeader::seal).
pub const LEN: usize = Bth::LEN + RESERVED_LEN;

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
