//! Changes to a frame; after some changes, lengths, checksums and ICRC are corrected.

use feroce_pfc_tools::frame;
use feroce_wire::{IpHeader, Key, Opcode, Packet, Payload};

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
        let padded = |len: usize| len.next_multiple_of(4);
        let less = padded(payload.len()) - padded(left);
        packet.payload = Payload { first: &payload[..left], second: &[] };
        packet.bth.pad = u8::try_from(padded(left) - left).expect("less than four");
        packet.pad = [0; 3];
        let less = u16::try_from(less).expect("a packet");
        packet.udp.length -= less;
        match &mut packet.ip {
            IpHeader::V4(ip) => ip.total_length -= less,
            IpHeader::V6(ip) => ip.payload_length -= less,
        }
    })
}

/// Applies `change` and corrects checksum and ICRC. Returns the frame unchanged if the result
/// cannot be written.
fn with_checksums(bytes: &[u8], change: impl FnOnce(&mut Packet<'_>)) -> Vec<u8> {
    let Ok(mut packet) = Packet::parse(bytes, &[]) else { return bytes.to_vec() };
    change(&mut packet);
    if let IpHeader::V4(ip) = &mut packet.ip {
        ip.checksum = ip.computed_checksum();
    }
    let mut out = vec![0; packet.frame_len()];
    if packet.emit(&mut out).is_err() {
        return bytes.to_vec();
    }
    let Ok(changed) = Packet::parse(&out, &[]) else { return bytes.to_vec() };
    let (icrc, end) = (changed.computed_icrc(), out.len() - changed.trailer.len());
    out[end - 4..end].copy_from_slice(&icrc.to_le_bytes());
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
