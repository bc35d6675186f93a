//! Changes to a frame; after some changes, lengths, checksums and ICRC are corrected.

use feroce_pfc_tools::frame;
use feroce_wire::cm::CmMessage;
use feroce_wire::{
    Aeth, Bth, EthernetHeader, ExtHeaders, IpHeader, Key, Opcode, Packet, Payload, Pkey, Qpn,
    Syndrome, VlanTag, cnp, icrc,
};

use super::connection::cm_mad;

/// A key XORed with this value is a key that was never issued.
const WRONG_KEY: u32 = 0x55;
/// A distance beyond every region that a script registers.
const BEYOND_REGIONS: u64 = 1 << 30;

/// Marks the packet as "congestion experienced" (CE).
pub fn mark(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    frame::mark(&mut bytes);
    bytes
}

/// Flips a bit of the last byte that the ICRC covers. In an acknowledgement, too, this is not one
/// of the bytes that the ICRC leaves out.
pub fn corrupt(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let trailer = Packet::parse(&bytes, &[]).map_or(0, |packet| packet.trailer.len());
    if let Some(at) = bytes.len().checked_sub(trailer + 5) {
        bytes[at] ^= 1;
    }
    bytes
}

/// Removes the last `count` bytes.
pub fn truncate(bytes: &[u8], count: u32) -> Vec<u8> {
    bytes[..bytes.len().saturating_sub(count as usize)].to_vec()
}

/// Adds `count` to the PSN.
pub fn add_psn(bytes: &[u8], count: u32) -> Vec<u8> {
    with_checksums(bytes, |packet| packet.bth.psn = packet.bth.psn.add(count))
}

/// Replaces the remote key by one that was never issued.
pub fn wrong_key(bytes: &[u8]) -> Vec<u8> {
    let wrong = |key: Key| Key(key.value() ^ WRONG_KEY);
    with_checksums(bytes, |packet| {
        packet.ext.reth = packet.ext.reth.map(|mut reth| {
            reth.rkey = wrong(reth.rkey);
            reth
        });
        packet.ext.atomic_eth = packet.ext.atomic_eth.map(|mut eth| {
            eth.rkey = wrong(eth.rkey);
            eth
        });
    })
}

/// Moves the remote address beyond the region.
pub fn wrong_address(bytes: &[u8]) -> Vec<u8> {
    with_checksums(bytes, |packet| {
        packet.ext.reth = packet.ext.reth.map(|mut reth| {
            reth.va = reth.va.wrapping_add(BEYOND_REGIONS);
            reth
        });
        packet.ext.atomic_eth = packet.ext.atomic_eth.map(|mut eth| {
            eth.va = eth.va.wrapping_add(BEYOND_REGIONS);
            eth
        });
    })
}

/// Replaces the opcode by one with the same extended headers.
pub fn opcode(bytes: &[u8], code: u8) -> Vec<u8> {
    with_checksums(bytes, |packet| packet.bth.opcode = Opcode(code))
}

/// Clears the acknowledge request.
pub fn no_ack_request(bytes: &[u8]) -> Vec<u8> {
    with_checksums(bytes, |packet| packet.bth.ack_req = false)
}

/// Shortens the payload by `count` bytes.
pub fn shorten(bytes: &[u8], count: u32) -> Vec<u8> {
    with_checksums(bytes, |packet| {
        let payload = packet.payload.first;
        let left = payload.len().saturating_sub(count as usize);
        packet.payload = Payload { first: &payload[..left], second: &[] };
        packet.bth.pad = u8::try_from(left.next_multiple_of(4) - left).expect("less than four");
        packet.pad = [0; 3];
    })
}

/// Replaces the P_Key.
pub fn pkey(bytes: &[u8], pkey: u16) -> Vec<u8> {
    with_checksums(bytes, |packet| packet.bth.pkey = Pkey(pkey))
}

/// Replaces the DSCP (6 bits).
pub fn dscp(bytes: &[u8], dscp: u8) -> Vec<u8> {
    with_checksums(bytes, |packet| {
        let class = packet.ip.ecn().set_in(dscp << 2);
        match &mut packet.ip {
            IpHeader::V4(ip) => ip.tos = class,
            IpHeader::V6(ip) => ip.traffic_class = class,
        }
    })
}

/// Changes a field of the BTH: receivers ignore the first three of the fields, and drop a packet
/// with a wrong version, P_Key or QP. `number` selects the field and the change.
pub fn fuzz(bytes: &[u8], number: u32) -> Vec<u8> {
    let bits = u8::try_from(number / 6 % 63 + 1).expect("at most 63");
    with_checksums(bytes, |packet| {
        let bth = &mut packet.bth;
        match number % 6 {
            0 => bth.reserved6 = bits,
            1 => bth.reserved7 = bits,
            2 => bth.mig_req = !bth.mig_req,
            3 => bth.version = 1 + bits % 15,
            4 => bth.pkey = Pkey(bth.pkey.0 ^ u16::from(bits)),
            _ => bth.dest_qp = Qpn::masked(bth.dest_qp.value() ^ u32::from(bits) << 12),
        }
    })
}

/// Makes an acknowledgement with this syndrome for the PSN after that of a response. `None` if the
/// response has no AETH to make it from.
pub fn forged(bytes: &[u8], syndrome: Syndrome) -> Option<Vec<u8>> {
    let aeth = Packet::parse(bytes, &[]).ok()?.ext.aeth?;
    Some(with_checksums(bytes, |packet| {
        let Bth { dest_qp, pkey, mig_req, psn, .. } = packet.bth;
        let (opcode, psn) = (Opcode::RC_ACKNOWLEDGE, psn.next());
        packet.bth = Bth { opcode, psn, dest_qp, pkey, mig_req, ..Bth::default() };
        packet.info = opcode.info().expect("a known opcode");
        packet.ext = ExtHeaders { aeth: Some(Aeth { syndrome, ..aeth }), ..ExtHeaders::default() };
        packet.payload = Payload { first: &[], second: &[] };
        packet.pad = [0; 3];
    }))
}

/// Makes a CNP to the QP of a packet.
pub fn cnp(bytes: &[u8]) -> Vec<u8> {
    with_checksums(bytes, |packet| {
        let Bth { dest_qp, pkey, mig_req, .. } = packet.bth;
        packet.bth =
            Bth { opcode: Opcode::CNP, becn: true, dest_qp, pkey, mig_req, ..Bth::default() };
        packet.info = Opcode::CNP.info().expect("a known opcode");
        packet.ext = ExtHeaders::default();
        packet.payload = Payload { first: &[0; cnp::RESERVED_LEN], second: &[] };
    })
}

/// Increases the QP number in a REP of the CM.
pub fn wrong_qpn(bytes: &[u8]) -> Vec<u8> {
    let Ok(packet) = Packet::parse(bytes, &[]) else { return bytes.to_vec() };
    let Some(mut mad) = cm_mad(&packet) else { return bytes.to_vec() };
    let CmMessage::Rep(rep) = &mut mad.message else { return bytes.to_vec() };
    rep.local_qpn = Qpn::masked(rep.local_qpn.value() + 1);
    let mad = mad.to_bytes();
    with_checksums(bytes, |packet| packet.payload = Payload { first: &mad, second: &[] })
}

/// Applies `change` and corrects lengths, checksum and ICRC. Returns the frame unchanged if the
/// result cannot be written.
fn with_checksums<'a>(bytes: &'a [u8], change: impl FnOnce(&mut Packet<'a>)) -> Vec<u8> {
    let Ok(mut packet) = Packet::parse(bytes, &[]) else { return bytes.to_vec() };
    let before = packet.frame_len();
    change(&mut packet);
    let resized = |len: u16| {
        let len = usize::from(len) + packet.frame_len() - before;
        u16::try_from(len).expect("a packet")
    };
    let (udp, ip) = (
        resized(packet.udp.length),
        match packet.ip {
            IpHeader::V4(ip) => resized(ip.total_length),
            IpHeader::V6(ip) => resized(ip.payload_length),
        },
    );
    packet.udp.length = udp;
    match &mut packet.ip {
        IpHeader::V4(header) => header.total_length = ip,
        IpHeader::V6(header) => header.payload_length = ip,
    }
    if let IpHeader::V4(ip) = &mut packet.ip {
        ip.checksum = ip.computed_checksum();
    }
    let mut out = vec![0; packet.frame_len()];
    if packet.emit(&mut out).is_err() {
        return bytes.to_vec();
    }
    // Not read back from a parsed packet: receivers refuse some of the changes before the ICRC.
    let start = EthernetHeader::LEN + packet.vlan.map_or(0, |_| VlanTag::LEN);
    let end = out.len() - packet.trailer.len() - icrc::LEN;
    let sum = icrc::icrc(Payload { first: &out[start..end], second: &[] });
    out[end..end + icrc::LEN].copy_from_slice(&sum.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_captures;

    fn parsed(frame: &[u8]) -> Packet<'_> {
        Packet::parse(frame, &[]).expect("a RoCEv2 frame")
    }

    /// A WRITE First, with a RETH.
    fn write_first() -> Vec<u8> {
        let frames = test_captures::read("rxe/ops_zero_len.pcap.zst");
        let found = frames.into_iter().find(|frame| parsed(frame).ext.reth.is_some());
        found.expect("a RETH")
    }

    #[test]
    fn only_the_intended_field_changes_and_the_icrc_is_right() {
        let frame = write_first();
        let packet = Packet::parse(&frame, &[]).expect("a packet");
        let reth = packet.ext.reth.expect("a RETH");
        for (changed, key, psn) in [
            (wrong_key(&frame), Key(reth.rkey.value() ^ WRONG_KEY), packet.bth.psn),
            (add_psn(&frame, 7), reth.rkey, packet.bth.psn.add(7)),
            (mark(&frame), reth.rkey, packet.bth.psn),
            (wrong_address(&frame), reth.rkey, packet.bth.psn),
        ] {
            let changed = Packet::parse(&changed, &[]).expect("still a packet");
            assert!(changed.icrc_valid());
            assert_eq!((changed.ext.reth.expect("a RETH").rkey, changed.bth.psn), (key, psn));
        }
    }

    #[test]
    fn a_shorter_payload_has_its_lengths_and_its_icrc() {
        let frames = test_captures::read("rxe/ops_psn_mismatch.pcap.zst");
        let frame = frames.iter().find(|frame| parsed(frame).payload.len() > 9);
        let frame = frame.expect("a payload");
        let before = Packet::parse(frame, &[]).expect("a packet").payload.len();
        let changed = shorten(frame, 5);
        let packet = Packet::parse(&changed, &[]).expect("a packet");
        assert_eq!(packet.payload.len(), before - 5);
        assert!(packet.icrc_valid());
    }

    #[test]
    fn damage_is_detected() {
        let frame = write_first();
        let bad = |bytes: &[u8]| Packet::parse(bytes, &[]).is_ok_and(|packet| !packet.icrc_valid());
        assert!(bad(&corrupt(&frame)));
        assert!(Packet::parse(&truncate(&frame, 3), &[]).is_err());
    }
}
