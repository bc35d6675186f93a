//! Base transport header: the first header after UDP in every packet.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-+-+---+-------+-------------------------------+
//! |    opcode     |S|M|pad| TVer  |             P_Key             |
//! +-+-+-----------+-+-+---+-------+-------------------------------+
//! |F|B| reserved  |             destination QP                    |
//! +-+-+-----------+-----------------------------------------------+
//! |A|  reserved   |          packet sequence number               |
//! +-+-------------+-----------------------------------------------+
//! ```
//!
//! S solicited event, M MigReq, TVer transport header version (0), F FECN, B BECN, A acknowledge
//! request. The byte of F and B is not covered by the ICRC.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U32,
};

use crate::{Opcode, Pkey, Psn, Qpn};

/// Base transport header, 12 bytes. Every bit survives parsing and writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bth {
    /// Operation and transport of the packet; decides which headers follow.
    pub opcode: Opcode,
    /// Solicited event: the receiver raises an event with the completion of this message.
    pub solicited: bool,
    /// Path migration state. Real RNICs send 1; a ConnectX-5 handles 0 on a slow path.
    pub mig_req: bool,
    /// Pad bytes after the payload, 0 to 3 (two bits; more are dropped when written).
    pub pad: u8,
    /// Transport header version, 4 bits; only 0 is defined.
    pub version: u8,
    /// Partition key of the packet.
    pub pkey: Pkey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification; set in CNPs.
    pub becn: bool,
    /// Six bits after FECN and BECN: sent as 0, ignored when received.
    pub reserved6: u8,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// Acknowledge request: the receiver must acknowledge this packet.
    pub ack_req: bool,
    /// Seven bits after the acknowledge request: sent as 0, ignored when received.
    pub reserved7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    opcode_flags_pkey: U32,
    congestion_and_qp: U32,
    ack_and_psn: U32,
}

impl From<&View> for Bth {
    #[inline(always)] // Callers use one or two fields: a call would read all.
    fn from(view: &View) -> Self {
        let [opcode, flags, pkey @ ..] = view.opcode_flags_pkey.to_bytes();
        let [congestion, ..] = view.congestion_and_qp.to_bytes();
        let [ack, ..] = view.ack_and_psn.to_bytes();
        Self {
            opcode: Opcode(opcode),
            solicited: flags & 0x80 != 0,
            mig_req: flags & 0x40 != 0,
            pad: (flags >> 4) & 3,
            version: flags & 0xf,
            pkey: Pkey(u16::from_be_bytes(pkey)),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            reserved6: congestion & 0x3f,
            dest_qp: Qpn::masked(view.congestion_and_qp.get()),
            ack_req: ack & 0x80 != 0,
            reserved7: ack & 0x7f,
            psn: Psn::new(view.ack_and_psn.get()),
        }
    }
}

impl From<&Bth> for View {
    #[inline(always)] // Most fields of our own packets are constants.
    fn from(value: &Bth) -> Self {
        let flags = (u32::from(value.solicited) << 23)
            | (u32::from(value.mig_req) << 22)
            | (u32::from(value.pad & 3) << 20)
            | (u32::from(value.version & 0xf) << 16);
        let opcode = u32::from(value.opcode.0) << 24;
        let congestion = (u32::from(value.fecn) << 31)
            | (u32::from(value.becn) << 30)
            | (u32::from(value.reserved6 & 0x3f) << 24);
        let ack = (u32::from(value.ack_req) << 31) | (u32::from(value.reserved7 & 0x7f) << 24);
        Self {
            opcode_flags_pkey: (opcode | flags | u32::from(value.pkey.0)).into(),
            congestion_and_qp: (congestion | value.dest_qp.value()).into(),
            ack_and_psn: (ack | value.psn.value()).into(),
        }
    }
}

fixed_header!(Bth, View, "BTH");

#[cfg(test)]
mod tests {
    use super::*;

    /// An RDMA WRITE of rdma_rxe, as captured.
    #[test]
    fn captured_bytes() {
        let bytes = [0x0a, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x45, 0x80, 0x59, 0x07, 0x1d];
        let bth = Bth {
            opcode: Opcode::RC_WRITE_ONLY,
            dest_qp: Qpn::masked(0x45),
            ack_req: true,
            psn: Psn::new(0x59_071d),
            ..Bth::default()
        };
        assert_eq!(Bth::parse(&bytes), Ok(bth));
        assert_eq!(bth.to_bytes(), bytes);
    }

    #[test]
    fn every_field_has_its_place() {
        let bytes = [0x81, 0xe5, 0x12, 0x34, 0x6a, 0xab, 0xcd, 0xef, 0x91, 0x23, 0x45, 0x67];
        let bth = Bth {
            opcode: Opcode::CNP,
            solicited: true,
            mig_req: true,
            pad: 2,
            version: 5,
            pkey: Pkey(0x1234),
            fecn: false,
            becn: true,
            reserved6: 0x2a,
            dest_qp: Qpn::masked(0xab_cdef),
            ack_req: true,
            reserved7: 0x11,
            psn: Psn::new(0x23_4567),
        };
        assert_eq!(Bth::parse(&bytes), Ok(bth));
        assert_eq!(bth.to_bytes(), bytes);
    }
}
