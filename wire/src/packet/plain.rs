//! The common frame: untagged, IPv4 without options, with the packet in one slice. Its headers are
//! at fixed offsets, so that it is parsed with few steps.

use super::PROTOCOL_UDP;
use super::view::{IpBytes, PacketView, TRANSPORT};
use crate::{
    Bth, EthernetHeader, Ipv4Header, Payload, ROCE_PORT, UdpHeader, ethernet::ETHERTYPE_IPV4, ipv4,
};

const IP: usize = EthernetHeader::LEN;
const UDP: usize = IP + Ipv4Header::LEN;
const BTH: usize = UDP + UdpHeader::LEN;
const HEADERS: usize = BTH + Bth::LEN;

/// Bits of the IPv4 fragment fields that are 0 in a packet that is no fragment.
const FRAGMENT: u16 = 0x3fff;

/// The packet of a valid frame of this kind, and the bytes after it. `None` for every other frame,
/// and for one with an error.
#[inline(always)] // The parts stay in registers.
pub(super) fn find(frame: &[u8]) -> Option<(PacketView<'_>, &[u8])> {
    let headers: &[u8; HEADERS] = frame.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
    let is_plain = word(IP - 2) == ETHERTYPE_IPV4
        && headers[IP] == 0x45
        && word(IP + 6) & FRAGMENT == 0
        && headers[IP + 9] == PROTOCOL_UDP
        && word(UDP + 2) == ROCE_PORT
        && headers[BTH + 1] & 0xf == 0;
    if !is_plain || !ipv4::has_valid_checksum(at(headers, IP)) && !cfg!(fuzzing) {
        return None;
    }
    let len = usize::from(word(IP + 2));
    if usize::from(word(UDP + 4)) + Ipv4Header::LEN != len {
        return None;
    }
    let (packet, trailer) = frame.split_at_checked(IP + len)?;
    let (packet, &icrc) = packet.split_last_chunk()?;
    let info = crate::Opcode(headers[BTH]).info()?;
    let pad_len = usize::from(headers[BTH + 1] >> 4 & 3);
    let (padless, _) = packet.split_at_checked(packet.len().checked_sub(pad_len)?)?;
    let (_, behind) = padless.split_at_checked(HEADERS)?;
    let (ext, payload) = behind.split_at_checked(info.headers_len)?;
    let one = |first| Payload { first, second: &[] };
    let packet = PacketView {
        ethernet: at(headers, 0),
        vlan: None,
        ip: IpBytes::V4(at(headers, IP)),
        transport: at::<TRANSPORT>(headers, UDP),
        ext,
        info,
        payload: one(payload),
        covered: one(&packet[IP..]),
        icrc: u32::from_le_bytes(icrc),
    };
    Some((packet, trailer))
}

/// The header at the fixed offset `at`.
#[inline(always)] // The compiler knows the offset.
fn at<const LEN: usize>(headers: &[u8; HEADERS], at: usize) -> &[u8; LEN] {
    headers[at..].first_chunk().expect("inside the headers")
}

#[cfg(test)]
mod tests {
    use super::super::view;
    use super::*;

    use crate::{FlowHeader, FlowSpec, IpAddresses, MacAddr, Opcode, Packet, VlanTag};
    use std::vec::Vec;

    /// A sealed frame of `opcode` with `pad` pad bytes, and two bytes behind it.
    fn frame(spec: &FlowSpec, opcode: Opcode, pad: u8) -> Vec<u8> {
        let flow = FlowHeader::new(spec);
        let mut frame: Vec<u8> = (0..200).collect();
        let bth = Bth { opcode, pad, ..Bth::default() };
        bth.write(&mut frame[flow.len()..]);
        let info = opcode.info().expect("known");
        let len = flow.seal(&mut frame, Bth::LEN + info.headers_len + 20, 7);
        frame.truncate(len + 2);
        frame
    }

    fn specs() -> [FlowSpec; 2] {
        let v4 = IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        let v6 = IpAddresses::V6 { src: [1; 16].into(), dst: [2; 16].into() };
        [v4, v6].map(|addresses| FlowSpec::new(MacAddr([1; 6]), MacAddr([2; 6]), addresses))
    }

    /// Both ways to parse a frame give the same, whatever single byte is wrong and wherever the
    /// frame ends.
    #[test]
    fn a_plain_frame_is_parsed_as_every_frame() {
        let [plain, v6] = specs();
        let tagged = FlowSpec { vlan: Some(VlanTag::from_tci(5)), ..plain };
        for (spec, is_plain) in [(plain, true), (tagged, false), (v6, false)] {
            for info in Opcode::all() {
                for pad in 0..4 {
                    let whole = frame(&spec, info.opcode, pad);
                    assert_eq!(find(&whole).is_some(), is_plain, "{}", info.name);
                    check(&whole);
                }
            }
        }
        for opcode in [Opcode::RC_SEND_ONLY, Opcode::RC_WRITE_ONLY, Opcode::RC_ACKNOWLEDGE] {
            let whole = frame(&plain, opcode, 3);
            for len in 0..whole.len() {
                check(&whole[..len]);
            }
            for at in 0..HEADERS {
                for bit in 0..8 {
                    let mut changed = whole.clone();
                    changed[at] ^= 1 << bit;
                    check(&changed);
                    let checksum = ipv4::sum_words(&{
                        let mut header: [u8; Ipv4Header::LEN] = *super::at(first(&changed), IP);
                        header[10..12].fill(0);
                        header
                    });
                    let checksum = ipv4::fold_checksum(checksum);
                    changed[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
                    check(&changed);
                }
            }
        }
    }

    fn first(frame: &[u8]) -> &[u8; HEADERS] {
        frame.first_chunk().expect("a whole frame")
    }

    fn check(frame: &[u8]) {
        let more = [0xab; 3];
        let shown = |(packet, trailer)| std::format!("{:?}", Packet::new(&packet, trailer));
        let parsed = PacketView::parse_whole(frame, &more).map(shown);
        assert_eq!(parsed, view::find(frame, &more).map(shown));
        let (view, packet) = (PacketView::parse(frame, &more), Packet::parse(frame, &more));
        assert_eq!(view.as_ref().err(), packet.as_ref().err());
        let (Ok(view), Ok(packet)) = (view, packet) else { return };
        assert_eq!((view.ethernet(), view.vlan()), (packet.ethernet, packet.vlan));
        assert_eq!((view.ip(), view.udp(), view.bth()), (packet.ip, packet.udp, packet.bth));
        let ext = view.ext();
        let ext = crate::ExtHeaders {
            xrceth: ext.xrceth(),
            deth: ext.deth(),
            feth: ext.feth(),
            reth: ext.reth(),
            atomic_eth: ext.atomic_eth(),
            aeth: ext.aeth(),
            atomic_ack: ext.atomic_ack(),
            imm: ext.imm(),
            ieth: ext.ieth(),
        };
        assert_eq!((ext, view.payload), (packet.ext, packet.payload));
        let mut copy = [0xa5; 256];
        let len = view.copy_to(&mut copy);
        assert_eq!(len, view.len_to_icrc());
        assert_eq!(copy[..len], [frame, &more].concat()[..len]);
    }
}
