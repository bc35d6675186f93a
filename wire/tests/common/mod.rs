//! Shared by several tests: packets made from a few numbers.
#![allow(dead_code)] // each test file uses its own part
#![allow(clippy::cast_possible_truncation)] // fillers wrap

use feroce_wire::{
    Bth, ExtHeaders, FlowHeader, FlowSpec, Headers, IpAddresses, MacAddr, OpcodeInfo, Pkey, Psn,
    Qpn, VlanTag, write_transport,
};

/// A flow between two fixed endpoints.
pub fn flow_spec(v6: bool, vlan: Option<VlanTag>) -> FlowSpec {
    let addresses = if v6 {
        IpAddresses::V6 { src: "fd77::2".parse().unwrap(), dst: "fd77::3".parse().unwrap() }
    } else {
        IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() }
    };
    FlowSpec {
        vlan,
        traffic_class: 0x6a,
        flow_label: 0xabcde,
        ..FlowSpec::new(MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]), addresses)
    }
}

/// Extended headers of the set, each filled from `seed`.
pub fn ext_headers(headers: Headers, seed: u8) -> ExtHeaders {
    let bytes: Vec<u8> = (0..ExtHeaders::len(headers))
        .map(|at| seed.wrapping_mul(29).wrapping_add(at as u8))
        .collect();
    ExtHeaders::parse(headers, &bytes).unwrap()
}

/// A sealed frame of an opcode with a payload of `payload_len` bytes.
pub fn sealed(info: &OpcodeInfo, flow: &FlowHeader, payload_len: usize, ip_id: u16) -> Vec<u8> {
    let pad = (4 - payload_len % 4) % 4;
    let bth = Bth {
        opcode: info.opcode,
        mig_req: true,
        pad: pad as u8,
        pkey: Pkey::DEFAULT,
        dest_qp: Qpn::masked(0x1234),
        psn: Psn::new(0xff_fffe),
        ..Bth::default()
    };
    // Stale bytes of a reused buffer must not appear in the frame.
    let mut frame = vec![0xa5; FlowHeader::MAX_LEN + 64 + payload_len];
    let at = flow.len();
    let payload_at =
        at + write_transport(&mut frame[at..], &bth, &ext_headers(info.headers, ip_id as u8));
    for (offset, byte) in frame[payload_at..payload_at + payload_len].iter_mut().enumerate() {
        *byte = offset as u8;
    }
    frame[payload_at + payload_len..payload_at + payload_len + pad].fill(0);
    let transport_len = payload_at + payload_len + pad - at;
    let len = flow.seal(&mut frame, transport_len, ip_id);
    assert_eq!(len, flow.frame_len(transport_len));
    frame.truncate(len);
    frame
}
