//! The `virtio_net_hdr`, by which the kernel and the port exchange the segmentation of
//! [super-frames](crate::port::super_frame).

use feroce_wire::{EthernetHeader, VlanTag};

use crate::port::headers::{Headers, IP_MAX};

/// Bytes of `struct virtio_net_hdr`, which precedes each frame on a socket with `PACKET_VNET_HDR`.
pub(super) const VNET_LEN: usize = 10;
/// Longest super-frame with a VLAN tag, in bytes.
pub(super) const FRAME_MAX: usize = EthernetHeader::LEN + VlanTag::LEN + IP_MAX;

/// `virtio_net_hdr.flags`: the checksum is still to be computed.
pub(super) const NEEDS_CHECKSUM: u8 = 1;
const GSO_UDP_L4: u8 = 5;
/// Set in addition to the kind on frames with a congestion mark.
const GSO_ECN: u8 = 0x80;

/// Turns `headers` at the start of `frame`, which are those of its first packet, into those of a
/// super-frame with `total` bytes of segments of `segment` bytes each. Returns the virtio_net_hdr.
pub(super) fn widen(
    headers: Headers,
    frame: &mut [u8],
    total: usize,
    segment: u16,
) -> [u8; VNET_LEN] {
    headers.set(frame, total, headers.identification(frame));
    headers.set_pseudo_sum(frame);
    let short = |len: usize| u16::try_from(len).expect("headers are short").to_ne_bytes();
    let mut vnet = [0; VNET_LEN];
    (vnet[0], vnet[1]) = (NEEDS_CHECKSUM, GSO_UDP_L4);
    vnet[2..4].copy_from_slice(&short(headers.len()));
    vnet[4..6].copy_from_slice(&segment.to_ne_bytes());
    vnet[6..8].copy_from_slice(&short(headers.udp()));
    vnet[8..10].copy_from_slice(&short(6));
    vnet
}

/// Kind of a received frame according to its virtio_net_hdr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One packet.
    Plain,
    /// A super-frame with segments of this many bytes.
    Super(usize),
}

/// Reads a virtio_net_hdr; `None` for kinds that the port does not take.
pub(super) fn kind(vnet: &[u8]) -> Option<Kind> {
    let size = usize::from(u16::from_ne_bytes([vnet[4], vnet[5]]));
    match vnet[1] & !GSO_ECN {
        0 => Some(Kind::Plain),
        GSO_UDP_L4 if size > 0 => Some(Kind::Super(size)),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use feroce_wire::{
        Bth, FlowHeader, FlowSpec, IpAddresses, MacAddr, Opcode, Packet, Pkey, Psn, Qpn, UdpHeader,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::port::headers::{SEGMENTS_LIMIT, fold, sum_words};

    pub fn flow(v6: bool, tagged: bool) -> FlowHeader {
        let addresses = match v6 {
            true => IpAddresses::V6 {
                src: "fd00::1".parse().expect("an address"),
                dst: "fd00::2".parse().expect("an address"),
            },
            false => IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() },
        };
        FlowHeader::new(&FlowSpec {
            dst_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            src_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: tagged.then_some(VlanTag { id: 7, pcp: 3, dei: false }),
            addresses,
            traffic_class: 0b10,
            hop_limit: 64,
            flow_label: 5,
            udp_source_port: 0xc123,
            super_frames: true,
        })
    }

    #[test]
    fn packets_over_ipv6_get_the_checksum_that_a_receiver_computes() {
        for (v6, tagged, payload) in [(true, false, 64), (true, true, 1024), (false, false, 64)] {
            let flow = flow(v6, tagged);
            let mut frame = sealed(&flow, payload, 7, 1);
            let headers = Headers::find(&frame).unwrap();
            headers.complete_v6(&mut frame);
            let udp = headers.len() - UdpHeader::LEN;
            let checksum = [frame[udp + 6], frame[udp + 7]];
            if !v6 {
                assert_eq!(checksum, [0, 0], "IPv4 needs none");
                continue;
            }
            let pseudo = u32::from(fold(sum_words(&frame[udp - 32..udp]))) + 17;
            let len = u32::try_from(frame.len() - udp).unwrap();
            let all = pseudo + len + u32::from(fold(sum_words(&frame[udp..])));
            assert_eq!((fold(all), checksum != [0, 0]), (0xffff, true));
            assert!(Packet::parse(&frame, &[]).unwrap().icrc_valid());
        }
    }

    /// A sealed WRITE packet with `payload` bytes, a multiple of four.
    pub fn sealed(flow: &FlowHeader, payload: usize, psn: u32, id: u16) -> Vec<u8> {
        let mut frame = vec![0; flow.frame_len(Bth::LEN + payload)];
        let bth = Bth {
            opcode: Opcode::RC_WRITE_MIDDLE,
            solicited: false,
            mig_req: true,
            pad: 0,
            version: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            reserved6: 0,
            dest_qp: Qpn::masked(0x11),
            ack_req: false,
            reserved7: 0,
            psn: Psn::new(psn),
        };
        bth.write(&mut frame[flow.len()..]);
        let body = flow.len() + Bth::LEN;
        for (byte, value) in frame[body..body + payload].iter_mut().zip(psn..) {
            *byte = value.to_le_bytes()[0];
        }
        let len = flow.seal(&mut frame, Bth::LEN + payload, id);
        assert_eq!(len, frame.len());
        frame
    }

    /// Segmentation as `port/super_frame.rs` specifies it, byte by byte.
    fn cut(frame: &[u8], headers: usize, segment: usize, v6: bool) -> Vec<Vec<u8>> {
        let ip = headers - 8 - if v6 { 40 } else { 20 };
        let (head, body) = frame.split_at(headers);
        let cut = |(count, part): (usize, &[u8])| {
            let mut packet = [head, part].concat();
            let udp_len = u16::try_from(8 + part.len()).expect("short");
            packet[headers - 4..headers - 2].copy_from_slice(&udp_len.to_be_bytes());
            if v6 {
                packet[ip + 4..ip + 6].copy_from_slice(&udp_len.to_be_bytes());
            } else {
                packet[ip + 2..ip + 4].copy_from_slice(&(udp_len + 20).to_be_bytes());
                let id = u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]);
                let id = id.wrapping_add(u16::try_from(count).expect("few"));
                packet[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
                packet[ip + 10..ip + 12].fill(0);
                let mut sum = sum_words(&packet[ip..ip + 20]);
                while sum > 0xffff {
                    sum = (sum & 0xffff) + (sum >> 16);
                }
                let sum = !u16::try_from(sum).expect("folded");
                packet[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
            }
            packet
        };
        body.chunks(segment).enumerate().map(cut).collect()
    }

    proptest! {
        /// Packets that were sealed one by one, combined into a super-frame and cut again stay
        /// valid.
        #[test]
        fn a_super_frame_cuts_into_its_packets(
            v6: bool,
            tagged: bool,
            words in 1_usize..300,
            count in 2_usize..20,
            last_words in 0_usize..300,
            first_id: u16,
        ) {
            let flow = flow(v6, tagged);
            let last_words = last_words.min(words);
            let mut packets = Vec::new();
            let mut id = first_id;
            for psn in 0..u32::try_from(count).unwrap() {
                let len = if packets.len() + 1 == count { last_words } else { words };
                packets.push(sealed(&flow, 4 * len, psn, id));
                id = id.wrapping_add(1);
            }
            let mut whole = packets[0].clone();
            let headers = Headers::find(&whole).unwrap();
            prop_assert_eq!(headers.len(), flow.len());
            for packet in &packets[1..] {
                whole.extend(&packet[flow.len()..]);
            }
            let segment = u16::try_from(packets[0].len() - flow.len()).unwrap();
            let total = whole.len() - flow.len();
            prop_assert!(total <= headers.segments_max());
            let vnet = widen(headers, &mut whole, total, segment);
            prop_assert_eq!(kind(&vnet), Some(Kind::Super(segment.into())));
            let cut = cut(&whole, flow.len(), segment.into(), v6);
            prop_assert_eq!(cut.len(), count);
            for (cut, packet) in cut.iter().zip(&packets) {
                let parsed = Packet::parse(cut, &[]).unwrap();
                prop_assert!(parsed.icrc_valid());
                // Only the UDP checksum differs.
                let mut cut = cut.clone();
                cut[flow.len() - 2..flow.len()].fill(0);
                prop_assert_eq!(&cut, packet);
            }
        }

        /// Every super-frame that is accepted can be cut, whatever a peer wrote.
        #[test]
        fn accepted_super_frames_have_valid_segment_lengths(
            v6: bool,
            tagged: bool,
            len in 0_usize..70_000,
            segment in 1_usize..70_000,
        ) {
            let mut packet = sealed(&flow(v6, tagged), 64, 1, 1);
            let headers = Headers::find(&packet).unwrap();
            if headers.can_be_cut(len, segment) {
                let total = len - headers.len();
                let sizes = (0..total).step_by(segment).map(|at| segment.min(total - at));
                let sizes: Vec<_> = sizes.collect();
                prop_assert!(!sizes.is_empty() && sizes.len() <= SEGMENTS_LIMIT);
                for size in sizes {
                    headers.set(&mut packet, size, 7);
                }
            }
        }

        #[test]
        fn header_search_accepts_any_bytes(
            frame in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            if let Some(headers) = Headers::find(&frame) {
                prop_assert!(headers.len() <= frame.len());
            }
        }
    }

    #[test]
    fn headers_limit_the_bytes_of_segments() {
        for (v6, most) in [(false, 65507), (true, 65487)] {
            let packet = sealed(&flow(v6, true), 64, 1, 1);
            assert_eq!(Headers::find(&packet).map(Headers::segments_max), Some(most));
            assert!(flow(v6, true).len() + most <= FRAME_MAX);
        }
        let packet = sealed(&flow(false, false), 64, 1, 1);
        for (at, value) in [(12, 9), (14, 0x46), (23, 6)] {
            let mut other = packet.clone();
            other[at] = value;
            assert_eq!(Headers::find(&other), None, "byte {at}");
        }
    }

    #[test]
    fn kinds_are_read_from_the_virtio_net_hdr() {
        let mut vnet = [0; VNET_LEN];
        assert_eq!(kind(&vnet), Some(Kind::Plain));
        vnet[1] = GSO_UDP_L4;
        assert_eq!(kind(&vnet), None, "segments of no length");
        vnet[4..6].copy_from_slice(&4112_u16.to_ne_bytes());
        assert_eq!(kind(&vnet), Some(Kind::Super(4112)));
        vnet[1] |= GSO_ECN;
        assert_eq!(kind(&vnet), Some(Kind::Super(4112)));
        vnet[1] = 1;
        assert_eq!(kind(&vnet), None, "TCP");
    }
}
