//! Frames that the daemon makes or changes itself.

use feroce_wire::{
    Aeth, Bth, Deth, ExtHeaders, FlowHeader, FlowSpec, IpAddresses, IpHeader, Ipv4Header, MAD_LEN,
    Msn, NakCode, Opcode, Packet, Payload, Pkey, Psn, Qkey, Qpn, Syndrome, icrc, write_transport,
};

/// Length of the longest frame with a MAD: all headers, MAD, ICRC.
pub(super) const MAD_FRAME_MAX: usize = FlowHeader::MAX_LEN + 20 + MAD_LEN + icrc::LEN;

/// Hop limit of the daemon's own packets: Linux' default.
const HOP_LIMIT: u8 = 64;

/// The flow of a packet.
pub(super) fn flow_of(packet: &Packet<'_>) -> FlowSpec {
    let (addresses, flow_label) = match packet.ip {
        IpHeader::V4(ip) => (IpAddresses::V4 { src: ip.src, dst: ip.dst }, 0),
        IpHeader::V6(ip) => (IpAddresses::V6 { src: ip.src, dst: ip.dst }, ip.flow_label),
    };
    FlowSpec {
        vlan: packet.vlan,
        traffic_class: packet.ip.traffic_class(),
        hop_limit: packet.ip.hop_limit(),
        flow_label,
        udp_source_port: packet.udp.src_port,
        ..FlowSpec::new(packet.ethernet.dst, packet.ethernet.src, addresses)
    }
}

/// The flow of responses to a packet that was received.
pub(super) fn reply_flow(packet: &Packet<'_>) -> FlowSpec {
    let flow = flow_of(packet);
    let addresses = match flow.addresses {
        IpAddresses::V4 { src, dst } => IpAddresses::V4 { src: dst, dst: src },
        IpAddresses::V6 { src, dst } => IpAddresses::V6 { src: dst, dst: src },
    };
    let (dst_mac, src_mac) = (flow.src_mac, flow.dst_mac);
    FlowSpec { dst_mac, src_mac, addresses, hop_limit: HOP_LIMIT, ..flow }
}

/// A datagram from QP 1 to QP 1 with `mad`.
pub(super) fn mad_frame(flow: &FlowSpec, mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let bth = Bth {
        opcode: Opcode::UD_SEND_ONLY,
        pkey: Pkey::DEFAULT,
        dest_qp: Qpn::GSI,
        ..Bth::default()
    };
    let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI, ..Deth::default() };
    frame(flow, &bth, &ExtHeaders { deth: Some(deth), ..ExtHeaders::default() }, mad)
}

/// A NAK of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nak {
    pub(super) flow: FlowSpec,
    /// The requester's QP.
    pub(super) dest_qp: Qpn,
    /// PSN of the request that is refused.
    pub(super) psn: Psn,
}

/// The frame of a NAK: remote operational error.
pub(super) fn nak_frame(nak: &Nak) -> Vec<u8> {
    let bth = Bth {
        opcode: Opcode::RC_ACKNOWLEDGE,
        pkey: Pkey::DEFAULT,
        dest_qp: nak.dest_qp,
        psn: nak.psn,
        ..Bth::default()
    };
    let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteOperational), msn: Msn::default() };
    frame(&nak.flow, &bth, &ExtHeaders { aeth: Some(aeth), ..ExtHeaders::default() }, &[])
}

fn frame(flow: &FlowSpec, bth: &Bth, ext: &ExtHeaders, payload: &[u8]) -> Vec<u8> {
    let header = FlowHeader::new(flow);
    let mut frame = vec![0; MAD_FRAME_MAX];
    let start = header.len();
    let at = write_transport(&mut frame[start..], bth, ext);
    frame[start + at..start + at + payload.len()].copy_from_slice(payload);
    let len = header.seal(&mut frame, at + payload.len(), 1);
    frame.truncate(len);
    frame
}

/// Offset of the IP header of a valid RoCE frame.
pub(super) fn ip_offset(frame: &[u8]) -> usize {
    if frame[12..14] == [0x81, 0] { 18 } else { 14 }
}

/// Bytes after the UDP header of `frame`, a valid RoCE frame without a trailer, if it is IPv4.
pub(super) fn ipv4_payload_len(frame: &[u8]) -> Option<usize> {
    let ip = ip_offset(frame);
    (frame[ip] >> 4 == 4).then(|| frame.len() - ip - 28)
}

/// Sets the IPv4 identification of `frame`, a valid RoCE frame without a trailer. Computes the
/// header checksum and the ICRC anew.
pub(super) fn set_identification(frame: &mut [u8], identification: u16) {
    let ip = ip_offset(frame);
    let header = &mut frame[ip..ip + Ipv4Header::LEN];
    let mut parsed = Ipv4Header::parse(header).expect("a valid frame");
    parsed.identification = identification;
    parsed.checksum = parsed.computed_checksum();
    parsed.write(header);
    let end = frame.len() - icrc::LEN;
    let crc = icrc::icrc(Payload { first: &frame[ip..end], second: &[] });
    frame[end..].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use feroce_wire::MacAddr;

    use super::*;

    fn flow() -> FlowSpec {
        let [src, dst] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        FlowSpec::new(MacAddr([2; 6]), MacAddr([4; 6]), IpAddresses::V4 { src, dst })
    }

    #[test]
    fn own_frames_are_valid_packets() {
        let frame = mad_frame(&flow(), &[7; MAD_LEN]);
        let packet = Packet::parse(&frame, &[]).unwrap();
        assert!(packet.icrc_valid() && packet.payload.len() == MAD_LEN);
        assert_eq!(flow_of(&packet), flow());
        assert_eq!(flow_of(&packet).addresses.src(), reply_flow(&packet).addresses.dst());
        let nak = Nak { flow: flow(), dest_qp: Qpn::masked(9), psn: Psn::new(77) };
        let frame = nak_frame(&nak);
        let packet = Packet::parse(&frame, &[]).unwrap();
        assert!(packet.icrc_valid() && packet.bth.psn == Psn::new(77));
        assert_eq!(packet.ext.aeth.unwrap().syndrome.to_byte(), 0x63);
    }

    #[test]
    fn another_identification_keeps_the_packet_valid() {
        let mut frame = mad_frame(&flow(), &[7; MAD_LEN]);
        for identification in [0, 1, 0xffff, 0x8000] {
            set_identification(&mut frame, identification);
            let packet = Packet::parse(&frame, &[]).expect("the checksum is right");
            let IpHeader::V4(ip) = packet.ip else { panic!("IPv4") };
            assert!(packet.icrc_valid() && ip.identification == identification);
        }
        assert_eq!(ipv4_payload_len(&frame), Some(12 + 8 + 256 + 4));
    }
}
